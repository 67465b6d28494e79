/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys: LMCache's key text and chunk hashes, which name files and objects, and kvtier's 128-bit
 * identity, which decides about hits.  docs/formats.md defines both.  All functions are pure: any
 * thread, no I/O, no allocation. */
#ifndef KVT_KEY_KEY_H
#define KVT_KEY_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

/* --------------------------------------------------------------- chunk hash */

/* The form of a chunk hash in key text. */
enum kvt__hash_form {
    KVT__HASH_SIGNED,   /* an int64_t; a negative number is '-' and the magnitude */
    KVT__HASH_UNSIGNED, /* a uint64_t */
    KVT__HASH_WIDE,     /* 256 bits, 64 digits: LMCache 0.3.13 to 0.4.5 */
};

#define KVT__HASH_WORDS 4
#define KVT__HASH_DIGITS 64 /* longest chunk hash in key text, without NUL */

/* LMCache's hash of a chunk, a part of the names of files and objects. */
struct kvt__hash {
    uint64_t bits[KVT__HASH_WORDS]; /* the first 64 bits in bits[0]; the rest 0 unless WIDE */
    enum kvt__hash_form form;
};

/* Write the hash in the form of key text: lower-case hex; 64 bits are not padded. */
void kvt__hash_text(const struct kvt__hash *hash, char out[KVT__HASH_DIGITS + 1]);

/* ----------------------------------------------------------------- key text */

#define KVT__KEY_MODEL_MAX 255 /* bytes of a model name, without NUL */
#define KVT__KEY_TEXT_MAX 767  /* bytes of a key text, without NUL */
#define KVT__KEY_TAGS_MAX 255  /* bytes of all tags, without NUL */

/* The parts of a key text: model@world@worker@hash@dtype[@layer][@tag%value]... */
struct kvt__key_parts {
    char model[KVT__KEY_MODEL_MAX + 1];
    uint32_t world_size;
    uint32_t worker_id;
    struct kvt__hash hash;    /* of 64 bits: UNSIGNED above INT64_MAX, else SIGNED */
    char dtype[24];
    int64_t layer;            /* -1: no layer */
    char tags[KVT__KEY_TAGS_MAX + 1]; /* "name%value@name%value", "" for none */
};

/* Parse key text by LMCache's rules: surrounding blanks are dropped; the first '%' of a tag ends
 * the tag's name.  A number must have the form in which LMCache prints numbers.  Return 0, or
 * -EINVAL with a sentence that quotes the text. */
int kvt__key_parse(const char *text, struct kvt__key_parts *out);

/* Check the tags of a request, "name%value@name%value" or "", at most max_bytes long.  Return 0,
 * or -EINVAL with a sentence: the tags are not valid in key text, or a tag has the name of
 * kvtier's own tag. */
int kvt__key_check_tags(const char *tags, size_t max_bytes);

/* Write the key text of a hash in a space.  space_text: the text of the space, a key text with
 * an empty hash.  Return 0; -ENAMETOOLONG, or -EINVAL: space_text has no empty hash; with a
 * sentence. */
int kvt__space_key(const char *space_text, const struct kvt__hash *hash, char *out,
                   size_t size);

/* Return true if a key text, with or without hash, names an opaque chunk. */
bool kvt__key_is_opaque(const char *key);

/* Return true if a key text with an empty hash has tags other than kvtier's own. */
bool kvt__key_has_tags(const char *text);

/* The tag of opaque chunks; the value is the layout fingerprint. */
#define KVT__KEY_OWN_TAG "kvt%"

/* Return true if dtype is a name of a dtype in LMCache's key text. */
bool kvt__key_dtype_known(const char *dtype);

/* The encodings of a key text as a name of a file or an object. */
enum kvt__key_encoding {
    KVT__KEY_FS,      /* '/' -> "-SEP-"; fs and hf3fs, before ".data" */
    KVT__KEY_DISK,    /* '/' -> "-"; local_disk, before ".pt" */
    KVT__KEY_S3,      /* '/' -> "_"; an object's key */
    KVT__KEY_PERCENT, /* all characters except letters, digits and "_.-~" -> %XX; gds */
};

/* Encode a key text as a name.  A name contains no '/'.  Return the length; or, with a sentence,
 * -EINVAL: text is "", "." or ".."; or -ENAMETOOLONG. */
int kvt__key_encode(const char *text, enum kvt__key_encoding how, char *out,
                    size_t size);

/* Decode a name of the encodings KVT__KEY_FS and KVT__KEY_PERCENT to its key text.  The encoding
 * of the result is the name again.  Return the length; or, with a sentence, -ENOTSUP: the other
 * encodings lose information; -EINVAL: kvt__key_encode() never makes this name; or
 * -ENAMETOOLONG. */
int kvt__key_decode(const char *name, enum kvt__key_encoding how, char *out,
                    size_t size);

/* Return the index of a chunk's path among n_paths > 0 configured paths.  kvt__key_fs_path():
 * the rule of LMCache's fs backend, abs(hash) mod n; kvt__key_sharder_path(): the rule of
 * LMCache's path sharder, SplitMix64's finaliser mod n.  LMCache does not shard wide hashes;
 * kvtier uses the first 64 bits of a wide hash. */
size_t kvt__key_fs_path(const struct kvt__hash *hash, size_t n_paths);
size_t kvt__key_sharder_path(const struct kvt__hash *hash, size_t n_paths);

#define KVT__ID_BYTES 16

/* The weights id: a 128-bit id of a model's weights.  Different weights have different ids. */
struct kvt__weights {
    uint8_t b[KVT__ID_BYTES];
};

/* ------------------------------------------------------ hashes of a request */

enum kvt__hash_kind {
    KVT__HASH_BUILTIN,          /* Python's hash() of nested tuples */
    KVT__HASH_SHA256_CBOR,      /* first 64 bits of SHA-256 of canonical CBOR */
    KVT__HASH_SHA256_CBOR_WIDE, /* all 256 bits: LMCache 0.4.1 to 0.4.5 */
    KVT__HASH_SHA256_CBOR_WIDE_NONE, /* all bits, of tuples that end in None: 0.3.13 to 0.3.15 */
};

/* A chain of chunk hashes: a chunk's hash depends on all previous chunks. */
struct kvt__hash_chain {
    enum kvt__hash_kind kind;
    uint64_t prev[KVT__HASH_WORDS]; /* bits of the previous chunk's hash */
};

/* Start the chain at the root of an LMCache with PYTHONHASHSEED=seed.  For SHA-256, seed may be any
 * text.  NULL: PYTHONHASHSEED is not set; then the root is vLLM 0.32's constant for SHA-256, and
 * the root of "0" for BUILTIN, because LMCache's root differs in each process.  Return 0, or
 * -EINVAL with a sentence: the kind is BUILTIN and seed is not a decimal number below 2^32
 * ("random" has no fixed root). */
int kvt__hash_start(struct kvt__hash_chain *chain, enum kvt__hash_kind kind,
                    const char *seed);

/* Mix a request's cache salt into the start of the chain, so that equal tokens with different
 * salts have different names.  "" changes nothing.  LMCache's names contain no salt, so LMCache
 * never finds salted chunks. */
void kvt__hash_salt(struct kvt__hash_chain *chain, const char *salt);

/* Mix a random weights id into the start of the chain, so that a chunk of these weights never has
 * the name of another chunk. */
void kvt__hash_weights(struct kvt__hash_chain *chain, const struct kvt__weights *weights);

/* Hash n_chunks chunks of chunk_tokens tokens each, and advance the chain.  out[n_chunks]: the
 * hashes' bits.  Tokens may have any int32 value. */
void kvt__hash_chunks(struct kvt__hash_chain *chain, const int32_t *tokens,
                      size_t chunk_tokens, size_t n_chunks,
                      uint64_t (*out)[KVT__HASH_WORDS]);

/* Return the kind for the settings pre_caching_hash_algorithm and lmcache_release (NULL: the newest
 * release). */
enum kvt__hash_kind kvt__hash_kind_named(const char *algorithm, const char *release);

/* Return the form of this kind's hashes in key text. */
static inline enum kvt__hash_form
kvt__hash_form(enum kvt__hash_kind kind)
{
    return kind == KVT__HASH_BUILTIN ? KVT__HASH_SIGNED
         : kind == KVT__HASH_SHA256_CBOR ? KVT__HASH_UNSIGNED : KVT__HASH_WIDE;
}

/* Replace n placeholder tokens of a multimodal item, before hashing, by the ids that LMCache
 * derives from the item's identifier.  first: position of tokens[0] in the item. */
void kvt__hash_mm_tokens(const char *identifier, uint64_t first, int32_t *tokens,
                         size_t n);

/* ------------------------------------------------------------------ identity */

/* The identity of a chunk: different chunks have different identities.  See docs/formats.md,
 * Identity. */
struct kvt__id {
    uint8_t b[KVT__ID_BYTES];
};

static inline bool
kvt__id_equal(const struct kvt__id *a, const struct kvt__id *b)
{
    return !__builtin_memcmp(a->b, b->b, sizeof a->b);
}

/* Convert the identity of a chunk to the identity of the chunk in an engine that stores or accepts
 * lossy chunks, or back.  Engines without lossy chunks never load the chunk. */
static inline void
kvt__id_toggle_lossy(struct kvt__id *id)
{
    /* H128("kvtier lossy") */
    static const uint8_t mark[KVT__ID_BYTES] = { 0x88, 0xb2, 0xc1, 0xfa, 0x31, 0xec, 0x9c, 0x32,
                                                 0x7e, 0x50, 0x9f, 0xa6, 0x5b, 0xba, 0xa3, 0xec };

    for (int i = 0; i < KVT__ID_BYTES; i++)
        id->b[i] ^= mark[i];
}

/* The description of a space for identities: the properties of the chunks of a rank and group that
 * do not depend on the request or the weights. */
struct kvt__space_desc {
    const char *model;
    const char *kv_dtype;
    uint32_t world_size;
    uint32_t rank;
    const char *serde;       /* "naive" */
    uint32_t chunk_tokens;
    uint32_t group;
    const char *kind;        /* "full", "sliding" */
    uint32_t window_tokens;
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t head_bytes;
    uint32_t block_tokens;   /* opaque chunks only, else 0 */
    uint64_t block_bytes;    /* opaque chunks only, else 0 */
    const char *format;      /* "opaque", "kv_2ltd", "kv_mla" */
    const char *layout;      /* "" for none */
    const char *layers;
};

/* Write the SHA-256 of the description's canonical text. */
void kvt__space_digest(const struct kvt__space_desc *desc,
                       uint8_t out[KVT__SHA256_BYTES]);

/* Return the layout fingerprint, the value of the tag "kvt%" of opaque chunks: the first 64 bits of
 * the digest of the fields from chunk_tokens on, which describe the bytes of a chunk. */
uint64_t kvt__layout_fingerprint(const struct kvt__space_desc *desc);

/* Make the weights id from a fingerprint: the revision or a digest of the weights. */
void kvt__weights_named(struct kvt__weights *weights, const char *fingerprint);

/* The digest of a prefix: of the request's properties and of all tokens up to the end of a
 * chunk. */
struct kvt__prefix {
    uint8_t b[KVT__ID_BYTES];
};

/* Start the prefix of a request.  tags, lora, salt: "" for none. */
void kvt__prefix_start(struct kvt__prefix *prefix, const struct kvt__weights *weights,
                       const char *tags, const char *lora, const char *salt);

/* Extend the prefix by a chunk of n tokens.  extra: n_extra bytes that identify the multimodal
 * items in the chunk, see docs/formats.md. */
void kvt__prefix_add(struct kvt__prefix *prefix, const int32_t *tokens, size_t n,
                     const void *extra, size_t n_extra);

/* Extend the prefix by n_chunks chunks of chunk_tokens tokens each, without extra.  out[n_chunks]:
 * the prefix after each chunk.  Faster than n_chunks calls of kvt__prefix_add(). */
void kvt__prefix_add_chunks(struct kvt__prefix *prefix, const int32_t *tokens,
                            size_t chunk_tokens, size_t n_chunks,
                            struct kvt__prefix *out);

/* Make the identity of the chunk that ends at prefix.  space: from kvt__space_digest(). */
void kvt__id_make(const uint8_t space[KVT__SHA256_BYTES],
                  const struct kvt__prefix *prefix, struct kvt__id *out);

/* Make the identities of n chunks.  Faster than n calls of kvt__id_make(). */
void kvt__id_make_n(const uint8_t space[KVT__SHA256_BYTES],
                    const struct kvt__prefix *prefixes, size_t n,
                    struct kvt__id *out);

#endif
