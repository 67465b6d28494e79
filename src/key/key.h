/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys: LMCache's key text and chunk hashes, which name files and objects, and
 * kvtier's 128-bit identity, which decides what is a hit.  docs/formats.md is
 * the norm for both.  Pure functions of their arguments: any thread, no I/O. */
#ifndef KVT_KEY_KEY_H
#define KVT_KEY_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

/* --------------------------------------------------------------- chunk hash */

/* How a chunk hash stands in key text. */
enum kvt__hash_form {
    KVT__HASH_SIGNED,   /* an int64_t: '-' before the magnitude of a negative one */
    KVT__HASH_UNSIGNED, /* a uint64_t */
    KVT__HASH_WIDE,     /* 256 bits, 64 digits: LMCache 0.3.13 to 0.4.5 */
};

#define KVT__HASH_WORDS 4
#define KVT__HASH_DIGITS 64 /* bytes of any chunk hash in key text, without NUL */

/* LMCache's hash of a chunk, which names its files and objects. */
struct kvt__hash {
    uint64_t bits[KVT__HASH_WORDS]; /* the first 64 bits first; all others 0 unless WIDE */
    enum kvt__hash_form form;
};

/* The hash as key text has it: lower-case hex, of 64 bits without padding. */
void kvt__hash_text(const struct kvt__hash *hash, char out[KVT__HASH_DIGITS + 1]);

/* ----------------------------------------------------------------- key text */

#define KVT__KEY_MODEL_MAX 255 /* bytes of a model name, without NUL */
#define KVT__KEY_TEXT_MAX 767  /* bytes of any key text, without NUL */
#define KVT__KEY_TAGS_MAX 255  /* bytes of all tags, without NUL */

/* A key text in pieces: model@world@worker@hash@dtype[@layer][@tag%value]... */
struct kvt__key_parts {
    char model[KVT__KEY_MODEL_MAX + 1];
    uint32_t world_size;
    uint32_t worker_id;
    struct kvt__hash hash;    /* UNSIGNED only where it would be negative */
    char dtype[24];
    int64_t layer;            /* -1: no layer */
    char tags[KVT__KEY_TAGS_MAX + 1]; /* "name%value@name%value", "" for none */
};

/* Parse key text as LMCache does: blanks around it are dropped, tags split at
 * their first '%'.  Numbers are taken only as LMCache prints them.  0, or -EINVAL
 * with a sentence naming the text. */
int kvt__key_parse(const char *text, struct kvt__key_parts *out);

/* Check the tags of a request, "name%value@name%value" or "", at most max_bytes long.
 * 0, or -EINVAL with a sentence: the tags are not valid in key text, or a tag has the name
 * of kvtier's own tag. */
int kvt__key_check_tags(const char *tags, size_t max_bytes);

/* Write the key text of a hash and of a key text with an empty hash.  0 or -ENAMETOOLONG,
 * -EINVAL with a sentence. */
int kvt__space_key(const char *space_text, const struct kvt__hash *hash, char *out,
                   size_t size);

/* Return true if a key text, with or without hash, is of an opaque chunk. */
bool kvt__key_is_opaque(const char *key);

/* Return true if a key text with an empty hash has tags other than kvtier's own. */
bool kvt__key_has_tags(const char *text);

/* The tag of opaque chunks; the value is the layout fingerprint. */
#define KVT__KEY_OWN_TAG "kvt%"

/* Whether dtype is one of LMCache's names (section 3.1 of its key grammar). */
bool kvt__key_dtype_known(const char *dtype);

/* How one kind of storage spells a key text as a name. */
enum kvt__key_encoding {
    KVT__KEY_FS,      /* '/' -> "-SEP-"; fs and hf3fs, before ".data" */
    KVT__KEY_DISK,    /* '/' -> "-"; local_disk, before ".pt" */
    KVT__KEY_S3,      /* '/' -> "_"; an object's key */
    KVT__KEY_PERCENT, /* all but letters, digits, "_.-~" as %XX; gds */
};

/* Spell text.  Returns the length, or -ENAMETOOLONG.  The result never holds a
 * '/' or a NUL, and is never "", "." or "..": -EINVAL. */
int kvt__key_encode(const char *text, enum kvt__key_encoding how, char *out,
                    size_t size);

/* The key text behind a name that KVT__KEY_FS made ("-SEP-" -> '/').
 * KVT__KEY_PERCENT can be undone too; the others lose information: -ENOTSUP.
 * -EINVAL for what kvt__key_encode() does not make: encoding the result gives
 * the same name.  Returns the length, or -ENAMETOOLONG. */
int kvt__key_decode(const char *name, enum kvt__key_encoding how, char *out,
                    size_t size);

/* Which directory of a comma list holds a key: LMCache's fs rule, abs(hash) mod
 * n, and its path sharder's (SplitMix64 finaliser mod n).  LMCache does neither with
 * wide hashes; here their first 64 bits decide. */
size_t kvt__key_fs_path(const struct kvt__hash *hash, size_t n_paths);
size_t kvt__key_sharder_path(const struct kvt__hash *hash, size_t n_paths);

#define KVT__ID_BYTES 16

/* A 128-bit id of a model's weights.  Different weights have different ids. */
struct kvt__weights {
    uint8_t b[KVT__ID_BYTES];
};

/* ------------------------------------------------------ hashes of a request */

enum kvt__hash_kind {
    KVT__HASH_BUILTIN,          /* Python's hash() of nested tuples */
    KVT__HASH_SHA256_CBOR,      /* SHA-256 of canonical CBOR, its first 64 bits */
    KVT__HASH_SHA256_CBOR_WIDE, /* all of it: LMCache 0.4.1 to 0.4.5 */
    KVT__HASH_SHA256_CBOR_WIDE_NONE, /* of tuples that end in None: 0.3.13 to 0.3.15 */
};

/* A chain of chunk hashes: chunk i's hash depends on all before it. */
struct kvt__hash_chain {
    enum kvt__hash_kind kind;
    uint64_t prev[KVT__HASH_WORDS]; /* bits of the previous one */
};

/* Start at the root that LMCache has under PYTHONHASHSEED=seed; any text for
 * those by SHA-256.  NULL: at the one of LMCache without that variable where it is the
 * same in every process (SHA-256, vLLM 0.32), else as for "0".
 *   -EINVAL  BUILTIN and seed is not a decimal number below 2^32: "random" names
 *            no fixed root */
int kvt__hash_start(struct kvt__hash_chain *chain, enum kvt__hash_kind kind,
                    const char *seed);

/* Start elsewhere for a request with a cache salt, so that equal tokens under
 * different salts have different names; "" changes nothing.  LMCache names do not
 * know salts: it is never asked for these. */
void kvt__hash_salt(struct kvt__hash_chain *chain, const char *salt);

/* Mix a random weights id into the start of the chain: chunks of these weights never take
 * the name of another chunk. */
void kvt__hash_weights(struct kvt__hash_chain *chain, const struct kvt__weights *weights);

/* Hash n_chunks chunks of chunk_tokens tokens each; chain moves on, the bits of the
 * hashes go to out[n_chunks].  Tokens may be any int32. */
void kvt__hash_chunks(struct kvt__hash_chain *chain, const int32_t *tokens,
                      size_t chunk_tokens, size_t n_chunks,
                      uint64_t (*out)[KVT__HASH_WORDS]);

/* The kind that pre_caching_hash_algorithm and lmcache_release (NULL: the newest)
 * name. */
enum kvt__hash_kind kvt__hash_kind_named(const char *algorithm, const char *release);

static inline enum kvt__hash_form
kvt__hash_form(enum kvt__hash_kind kind)
{
    return kind == KVT__HASH_BUILTIN ? KVT__HASH_SIGNED
         : kind == KVT__HASH_SHA256_CBOR ? KVT__HASH_UNSIGNED : KVT__HASH_WIDE;
}

/* Replace the placeholder tokens of one multimodal item, before hashing, by the
 * ids LMCache derives from its identifier; first is the position within the item
 * of tokens[0]. */
void kvt__hash_mm_tokens(const char *identifier, uint64_t first, int32_t *tokens,
                         size_t n);

/* ------------------------------------------------------------------ identity */

/* 128 bits that no two different chunks share.  See docs/formats.md, Identity. */
struct kvt__id {
    uint8_t b[KVT__ID_BYTES];
};

static inline bool
kvt__id_equal(const struct kvt__id *a, const struct kvt__id *b)
{
    return !__builtin_memcmp(a->b, b->b, sizeof a->b);
}

/* The description of an engine's chunks: everything common to all requests of the
 * engine, except the weights. */
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

/* SHA-256 of the description's canonical text. */
void kvt__space_digest(const struct kvt__space_desc *desc,
                       uint8_t out[KVT__SHA256_BYTES]);

/* The layout fingerprint that tags opaque chunks, "kvt%<this>": the first 64
 * bits of the digest of what in desc describes the bytes of a block. */
uint64_t kvt__layout_fingerprint(const struct kvt__space_desc *desc);

/* Make the weights id of a fingerprint: the revision of the weights or a digest of
 * them. */
void kvt__weights_named(struct kvt__weights *weights, const char *fingerprint);

/* The digest of a prefix.  It starts from what holds for the whole request. */
struct kvt__prefix {
    uint8_t b[KVT__ID_BYTES];
};

/* Start the prefix of a request.  tags, lora, salt: "" for none. */
void kvt__prefix_start(struct kvt__prefix *prefix, const struct kvt__weights *weights,
                       const char *tags, const char *lora, const char *salt);

/* Extend by one chunk of n tokens; extra: n_extra bytes that tell the multimodal
 * items in it, see docs/formats.md. */
void kvt__prefix_add(struct kvt__prefix *prefix, const int32_t *tokens, size_t n,
                     const void *extra, size_t n_extra);

/* Extend by n_chunks chunks of chunk_tokens tokens each, without extra; the
 * prefix after each goes to out[n_chunks].  Faster than one at a time. */
void kvt__prefix_add_chunks(struct kvt__prefix *prefix, const int32_t *tokens,
                            size_t chunk_tokens, size_t n_chunks,
                            struct kvt__prefix *out);

/* The identity of the chunk that ends at prefix, in a space. */
void kvt__id_make(const uint8_t space[KVT__SHA256_BYTES],
                  const struct kvt__prefix *prefix, struct kvt__id *out);

/* The identities of n chunks.  Faster than one at a time. */
void kvt__id_make_n(const uint8_t space[KVT__SHA256_BYTES],
                    const struct kvt__prefix *prefixes, size_t n,
                    struct kvt__id *out);

#endif
