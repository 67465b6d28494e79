/* SPDX-License-Identifier: Apache-2.0
 *
 * The 128-bit identity of a chunk, as docs/formats.md defines it: the digest of the space
 * (the geometry of the chunk) and of the prefix (the weights, the request, the tokens).
 * Any thread. */
#include "key/key.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "key/sha256-many.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token ids are hashed as they lie in memory");

/* Digests computed at a time. */
#define BATCH 64

/* ------------------------------------------------------------------ the space */

/* Add the line name=value.  '%' and newline in the value are escaped, so a value cannot contain
 * another line. */
static void
add_text(struct kvt__sha256 *sha, const char *name, const char *value)
{
    kvt__sha256_add(sha, name, strlen(name));
    kvt__sha256_add(sha, "=", 1);
    for (;;) {
        size_t n = strcspn(value, "%\n");
        kvt__sha256_add(sha, value, n);
        value += n;
        if (!*value)
            break;
        kvt__sha256_add(sha, *value == '%' ? "%25" : "%0A", 3);
        value++;
    }
    kvt__sha256_add(sha, "\n", 1);
}

static void
add_number(struct kvt__sha256 *sha, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    add_text(sha, name, text);
}

/* Add the lines that describe the bytes of a chunk. */
static void
add_layout(struct kvt__sha256 *sha, const struct kvt__space_desc *desc)
{
    add_number(sha, "chunk_tokens", desc->chunk_tokens);
    add_number(sha, "group", desc->group);
    add_text(sha, "kind", desc->kind);
    add_number(sha, "window_tokens", desc->window_tokens);
    add_number(sha, "n_layers", desc->n_layers);
    add_number(sha, "n_heads", desc->n_heads);
    add_number(sha, "head_bytes", desc->head_bytes);
    add_number(sha, "block_tokens", desc->block_tokens);
    add_number(sha, "block_bytes", desc->block_bytes);
    add_text(sha, "format", desc->format);
    add_text(sha, "layout", desc->layout);
    add_text(sha, "layers", desc->layers);
}

void
kvt__space_digest(const struct kvt__space_desc *desc,
                  uint8_t out[KVT__SHA256_BYTES])
{
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    add_number(&sha, "kvtier-space", 2);
    add_text(&sha, "model", desc->model);
    add_text(&sha, "kv_dtype", desc->kv_dtype);
    add_number(&sha, "world_size", desc->world_size);
    add_number(&sha, "rank", desc->rank);
    add_text(&sha, "serde", desc->serde);
    add_layout(&sha, desc);
    kvt__sha256_end(&sha, out);
}

uint64_t
kvt__layout_fingerprint(const struct kvt__space_desc *desc)
{
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    uint64_t v;

    kvt__sha256_init(&sha);
    add_layout(&sha, desc);
    kvt__sha256_end(&sha, digest);
    memcpy(&v, digest, sizeof v);
    return be64toh(v);
}

/* ----------------------------------------------------------------- the prefix */

static void
h128_end(struct kvt__sha256 *sha, uint8_t out[KVT__ID_BYTES])
{
    uint8_t digest[KVT__SHA256_BYTES];

    kvt__sha256_end(sha, digest);
    memcpy(out, digest, KVT__ID_BYTES);
}

/* Add the length of a text and the text. */
static void
add_counted(struct kvt__sha256 *sha, const char *text)
{
    size_t n = strlen(text);
    uint8_t len[4];

    assert(n <= UINT32_MAX);
    kvt__put_le32(len, (uint32_t)n);
    kvt__sha256_add(sha, len, sizeof len);
    kvt__sha256_add(sha, text, n);
}

void
kvt__weights_named(struct kvt__weights *weights, const char *fingerprint)
{
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, "W", 1);
    kvt__sha256_add(&sha, fingerprint, strlen(fingerprint));
    h128_end(&sha, weights->b);
}

void
kvt__prefix_start(struct kvt__prefix *prefix, const struct kvt__weights *weights,
                  const char *tags, const char *lora, const char *salt)
{
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, "R", 1);
    kvt__sha256_add(&sha, weights->b, sizeof weights->b);
    add_counted(&sha, tags);
    add_counted(&sha, lora);
    add_counted(&sha, salt);
    h128_end(&sha, prefix->b);
}

/* Bytes before the tokens in a leaf. */
#define LEAF_HEAD_BYTES 9

static void
leaf_head(size_t n, size_t n_extra, uint8_t head[LEAF_HEAD_BYTES])
{
    assert(n <= UINT32_MAX && n_extra <= UINT32_MAX);
    head[0] = 'L';
    kvt__put_le32(head + 1, (uint32_t)n);
    kvt__put_le32(head + 5, (uint32_t)n_extra);
}

static void
leaf_digest(const int32_t *tokens, size_t n, const void *extra, size_t n_extra,
            uint8_t out[KVT__SHA256_BYTES])
{
    struct kvt__sha256 sha;
    uint8_t head[LEAF_HEAD_BYTES];

    leaf_head(n, n_extra, head);
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, sizeof head);
    kvt__sha256_add(&sha, tokens, n * sizeof *tokens);
    if (n_extra)
        kvt__sha256_add(&sha, extra, n_extra);
    kvt__sha256_end(&sha, out);
}

static void
add_leaf(struct kvt__prefix *prefix, const uint8_t leaf[KVT__SHA256_BYTES])
{
    uint8_t text[1 + KVT__ID_BYTES + KVT__SHA256_BYTES] = {'C'};
    struct kvt__sha256 sha;

    memcpy(text + 1, prefix->b, KVT__ID_BYTES);
    memcpy(text + 1 + KVT__ID_BYTES, leaf, KVT__SHA256_BYTES);
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, text, sizeof text);
    h128_end(&sha, prefix->b);
}

void
kvt__prefix_add(struct kvt__prefix *prefix, const int32_t *tokens, size_t n,
                const void *extra, size_t n_extra)
{
    uint8_t leaf[KVT__SHA256_BYTES];

    leaf_digest(tokens, n, extra, n_extra, leaf);
    add_leaf(prefix, leaf);
}

void
kvt__prefix_add_chunks(struct kvt__prefix *prefix, const int32_t *tokens,
                       size_t chunk_tokens, size_t n_chunks,
                       struct kvt__prefix *out)
{
    uint8_t head[LEAF_HEAD_BYTES], leaves[BATCH][KVT__SHA256_BYTES];

    leaf_head(chunk_tokens, 0, head);
    while (n_chunks) {
        size_t n = n_chunks < BATCH ? n_chunks : BATCH;

        kvt__sha256_many(head, sizeof head, tokens, chunk_tokens * sizeof *tokens, n,
                         leaves);
        for (size_t i = 0; i < n; i++) {
            add_leaf(prefix, leaves[i]);
            *out++ = *prefix;
        }
        tokens += n * chunk_tokens;
        n_chunks -= n;
    }
}

/* ---------------------------------------------------------------- the identity */

#define ID_HEAD_BYTES (1 + KVT__SHA256_BYTES)

static void
id_head(const uint8_t space[KVT__SHA256_BYTES], uint8_t head[ID_HEAD_BYTES])
{
    head[0] = 'O';
    memcpy(head + 1, space, KVT__SHA256_BYTES);
}

void
kvt__id_make(const uint8_t space[KVT__SHA256_BYTES],
             const struct kvt__prefix *prefix, struct kvt__id *out)
{
    uint8_t head[ID_HEAD_BYTES];
    struct kvt__sha256 sha;

    id_head(space, head);
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, sizeof head);
    kvt__sha256_add(&sha, prefix->b, sizeof prefix->b);
    h128_end(&sha, out->b);
}

void
kvt__id_make_n(const uint8_t space[KVT__SHA256_BYTES],
               const struct kvt__prefix *prefixes, size_t n, struct kvt__id *out)
{
    uint8_t head[ID_HEAD_BYTES], digests[BATCH][KVT__SHA256_BYTES];

    id_head(space, head);
    while (n) {
        size_t step = n < BATCH ? n : BATCH;

        kvt__sha256_many(head, sizeof head, prefixes, KVT__ID_BYTES, step, digests);
        for (size_t i = 0; i < step; i++)
            memcpy(out++->b, digests[i], KVT__ID_BYTES);
        prefixes += step;
        n -= step;
    }
}
