/* SPDX-License-Identifier: Apache-2.0
 *
 * LMCache's chunk hashes, and LMCache's token ids for multimodal placeholders.  The hash of a chunk
 * is the hash of the Python tuple (previous hash, (token ids), ()), by CPython's hash() or by
 * SHA-256 of canonical CBOR.  Older releases have another third item in the tuple, or use more
 * bits of the SHA-256: docs/formats.md, Older releases of LMCache.  Any thread. */
#include "key/key.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "key/tuple.h"

/* ------------------------------------------------- CPython's hash(), 3.11 on */

#define TUPLE_SEED UINT64_C(2870177450012600261)
#define TUPLE_LENGTH (TUPLE_SEED ^ UINT64_C(3527539))
#define EMPTY_TUPLE UINT64_C(5740354900026072187)

static inline uint64_t
rotl(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

static uint64_t
py_hash_int(int64_t x)
{
    const uint64_t prime = (UINT64_C(1) << 61) - 1;
    uint64_t h = (x < 0 ? 0 - (uint64_t)x : (uint64_t)x) % prime;

    if (x < 0)
        h = 0 - h;
    return h == UINT64_MAX ? UINT64_MAX - 1 : h;
}

/* Return py_hash_int(token), without the modulo: an int32 is below the prime. */
static inline uint64_t
py_hash_token(int32_t token)
{
    return (uint64_t)(int64_t)(token == -1 ? -2 : token);
}

static inline uint64_t
tuple_add(uint64_t acc, uint64_t item)
{
    return rotl(acc + item * TUPLE_ITEM, TUPLE_ROTATION) * TUPLE_MIX;
}

static inline uint64_t
tuple_end(uint64_t acc, size_t n)
{
    acc += (uint64_t)n ^ TUPLE_LENGTH;
    return acc == UINT64_MAX ? UINT64_C(1546275796) : acc;
}

/* A round of SipHash-1-3, CPython's hash of texts. */
static void
sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

static uint64_t
siphash13(const uint64_t key[2], const char *text, size_t n)
{
    uint64_t v[4] = {
        key[0] ^ UINT64_C(0x736f6d6570736575),
        key[1] ^ UINT64_C(0x646f72616e646f6d),
        key[0] ^ UINT64_C(0x6c7967656e657261),
        key[1] ^ UINT64_C(0x7465646279746573),
    };
    uint8_t tail[8] = {0};
    size_t whole = n & ~(size_t)7;

    for (size_t at = 0; at < whole; at += 8) {
        uint64_t word = kvt__get_le64(text + at);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    memcpy(tail, text + whole, n - whole);
    uint64_t last = kvt__get_le64(tail) | (uint64_t)n << 56;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Return hash(text) of a Python with PYTHONHASHSEED=seed. */
static uint64_t
py_hash_text(uint32_t seed, const char *text)
{
    uint8_t bytes[16] = {0};
    uint32_t x = seed;

    for (size_t i = 0; seed && i < sizeof bytes; i++) {
        x = x * 214013 + 2531011;
        bytes[i] = (uint8_t)(x >> 16);
    }
    const uint64_t key[2] = {kvt__get_le64(bytes), kvt__get_le64(bytes + 8)};
    uint64_t h = siphash13(key, text, strlen(text));
    return h == UINT64_MAX ? UINT64_MAX - 1 : h;
}

static uint64_t
hash_tokens(const int32_t *tokens, size_t n)
{
    uint64_t acc = TUPLE_SEED;

    for (size_t i = 0; i < n; i++)
        acc = tuple_add(acc, py_hash_token(tokens[i]));
    return tuple_end(acc, n);
}

/* Do hash_tokens() for four chunks at once, to hide the latency of multiplications. */
static void
hash_tokens_4(const int32_t *tokens, size_t n, uint64_t out[4])
{
    const int32_t *t1 = tokens + n, *t2 = t1 + n, *t3 = t2 + n;
    uint64_t a0 = TUPLE_SEED, a1 = a0, a2 = a0, a3 = a0;

    for (size_t i = 0; i < n; i++) {
        a0 = tuple_add(a0, py_hash_token(tokens[i]));
        a1 = tuple_add(a1, py_hash_token(t1[i]));
        a2 = tuple_add(a2, py_hash_token(t2[i]));
        a3 = tuple_add(a3, py_hash_token(t3[i]));
    }
    out[0] = tuple_end(a0, n);
    out[1] = tuple_end(a1, n);
    out[2] = tuple_end(a2, n);
    out[3] = tuple_end(a3, n);
}

static uint64_t
next_builtin(uint64_t prev, uint64_t tokens_hash)
{
    uint64_t acc = tuple_add(TUPLE_SEED, py_hash_int((int64_t)prev));

    acc = tuple_add(acc, tokens_hash);
    return tuple_end(tuple_add(acc, EMPTY_TUPLE), 3);
}

/* Do hash_tokens() for the first chunks of n_chunks, as many at once as is fastest.  Return the
 * number of hashed chunks. */
static size_t
hash_some(const int32_t *tokens, size_t n, size_t n_chunks, uint64_t out[TUPLES])
{
    if (n_chunks >= TUPLES) {
        for (size_t i = 0; i < TUPLES; i++)
            out[i] = TUPLE_SEED;
        if (kvt__tuples_add(tokens, n, out)) {
            for (size_t i = 0; i < TUPLES; i++)
                out[i] = tuple_end(out[i], n);
            return TUPLES;
        }
    }
    if (n_chunks >= 4) {
        hash_tokens_4(tokens, n, out);
        return 4;
    }
    out[0] = hash_tokens(tokens, n);
    return 1;
}

static void
hash_builtin(uint64_t *prev, const int32_t *tokens, size_t chunk_tokens,
             size_t n_chunks, uint64_t (*out)[KVT__HASH_WORDS])
{
    uint64_t inner[TUPLES];

    while (n_chunks) {
        size_t n = hash_some(tokens, chunk_tokens, n_chunks, inner);

        for (size_t i = 0; i < n; i++, out++) {
            memset(*out, 0, sizeof *out);
            (*out)[0] = *prev = next_builtin(*prev, inner[i]);
        }
        tokens += n * chunk_tokens;
        n_chunks -= n;
    }
}

/* ---------------------------------------------------- SHA-256 of canonical CBOR */

enum {
    CBOR_UINT = 0x00,
    CBOR_NEGATIVE = 0x20,
    CBOR_BYTES = 0x40,
    CBOR_TEXT = 0x60,
    CBOR_ARRAY = 0x80,
    CBOR_NONE = 0xf6,
};

#define CBOR_HEAD_MAX 9
#define CBOR_PIECE_TOKENS 512

static size_t
cbor_head(uint8_t *at, uint8_t major, uint64_t v)
{
    size_t n = v < 24 ? 0 : v < 0x100 ? 1 : v < 0x10000 ? 2 : v >> 32 ? 8 : 4;

    *at = (uint8_t)(major | (n == 0   ? v
                             : n == 1 ? 24
                             : n == 2 ? 25
                             : n == 4 ? 26
                                      : 27));
    for (size_t i = 0; i < n; i++)
        at[1 + i] = (uint8_t)(v >> 8 * (n - 1 - i));
    return 1 + n;
}

/* Do cbor_head() for a token, without a branch, because the CPU cannot predict the lengths of
 * tokens.  Writes 8 bytes; return the number of bytes that are valid. */
static inline size_t
cbor_token(uint8_t *at, int32_t token)
{
    static const uint8_t info[4] = {0, 24, 25, 26};
    static const uint8_t n_bytes[4] = {0, 1, 2, 4};
    uint32_t sign = (uint32_t)(token >> 31);
    uint32_t v = (uint32_t)token ^ sign;
    unsigned kind = (v >= 24) + (v >= 0x100) + (v >= 0x10000);
    uint64_t word = (uint64_t)((sign & CBOR_NEGATIVE) | info[kind]) << 56 |
                    (uint64_t)v << (56 - 8 * n_bytes[kind]);

    word = htobe64(word);
    memcpy(at, &word, sizeof word);
    return 1u + n_bytes[kind];
}

/* Convert a digest to bits.  For a kind with 64 bits, all other bits are 0. */
static void
bits_from_digest(enum kvt__hash_kind kind, const uint8_t digest[KVT__SHA256_BYTES],
                 uint64_t bits[KVT__HASH_WORDS])
{
    bool wide = kvt__hash_form(kind) == KVT__HASH_WIDE;

    for (size_t i = 0; i < KVT__HASH_WORDS; i++) {
        uint64_t v;

        memcpy(&v, digest + i * sizeof v, sizeof v);
        bits[i] = i && !wide ? 0 : be64toh(v);
    }
}

/* Encode the previous hash, the first item of a tuple: a number, or bytes if wide.  Return the
 * length. */
static size_t
cbor_prev(uint8_t *at, const struct kvt__hash_chain *chain)
{
    if (kvt__hash_form(chain->kind) != KVT__HASH_WIDE)
        return cbor_head(at, CBOR_UINT, chain->prev[0]);
    size_t len = cbor_head(at, CBOR_BYTES, KVT__SHA256_BYTES);
    for (size_t i = 0; i < KVT__HASH_WORDS; i++) {
        uint64_t v = htobe64(chain->prev[i]);

        memcpy(at + len + i * sizeof v, &v, sizeof v);
    }
    return len + KVT__SHA256_BYTES;
}

static void
next_sha256_cbor(struct kvt__hash_chain *chain, const int32_t *tokens, size_t n)
{
    uint8_t piece[1 + 2 * CBOR_HEAD_MAX + KVT__SHA256_BYTES + 5 * CBOR_PIECE_TOKENS + 8];
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    size_t len = 0;

    kvt__sha256_init(&sha);
    piece[len++] = CBOR_ARRAY | 3;
    len += cbor_prev(piece + len, chain);
    len += cbor_head(piece + len, CBOR_ARRAY, n);
    for (size_t at = 0; at < n;) {
        size_t end = n - at > CBOR_PIECE_TOKENS ? at + CBOR_PIECE_TOKENS : n;
        for (; at < end; at++)
            len += cbor_token(piece + len, tokens[at]);
        if (at < n) {
            kvt__sha256_add(&sha, piece, len);
            len = 0;
        }
    }
    piece[len++] = chain->kind == KVT__HASH_SHA256_CBOR_WIDE_NONE ? CBOR_NONE
                                                                 : CBOR_ARRAY;
    kvt__sha256_add(&sha, piece, len);
    kvt__sha256_end(&sha, digest);
    bits_from_digest(chain->kind, digest, chain->prev);
}

static void
sha256_cbor_text(struct kvt__hash_chain *chain, const char *text)
{
    uint8_t head[CBOR_HEAD_MAX];
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    size_t n = strlen(text);

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, cbor_head(head, CBOR_TEXT, n));
    kvt__sha256_add(&sha, text, n);
    kvt__sha256_end(&sha, digest);
    bits_from_digest(chain->kind, digest, chain->prev);
}

/* ------------------------------------------------------------------- the chain */

enum kvt__hash_kind
kvt__hash_kind_named(const char *algorithm, const char *release)
{
    if (!strcmp(algorithm, "builtin"))
        return KVT__HASH_BUILTIN;
    if (!release || !strcmp(release, "0.4.6"))
        return KVT__HASH_SHA256_CBOR;
    return !strncmp(release, "0.3.", 4) ? KVT__HASH_SHA256_CBOR_WIDE_NONE
                                        : KVT__HASH_SHA256_CBOR_WIDE;
}

static bool
parse_seed(const char *text, uint32_t *seed)
{
    uint64_t v = 0;

    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9')
            return false;
        v = v * 10 + (uint64_t)(*at - '0');
        if (v > UINT32_MAX)
            return false;
    }
    *seed = (uint32_t)v;
    return *text != '\0';
}

int
kvt__hash_start(struct kvt__hash_chain *chain, enum kvt__hash_kind kind,
                const char *seed)
{
    uint32_t number;

    if (!seed) /* vLLM's seed for SHA-256 is a constant */
        seed = kind == KVT__HASH_BUILTIN ? "0" : "vllm-none-hash";
    *chain = (struct kvt__hash_chain){.kind = kind};
    if (kind != KVT__HASH_BUILTIN) {
        sha256_cbor_text(chain, seed);
        return 0;
    }
    if (!parse_seed(seed, &number))
        return kvt__fail(EINVAL, "PYTHONHASHSEED '%.64s' gives no fixed root for "
                                 "the builtin hash; use a number from 0 to "
                                 "4294967295.", seed);
    chain->prev[0] = py_hash_text(number, seed);
    return 0;
}

void
kvt__hash_salt(struct kvt__hash_chain *chain, const char *salt)
{
    struct kvt__sha256 sha;
    uint8_t digest[KVT__SHA256_BYTES];

    if (!*salt)
        return;
    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, "S", 1);
    kvt__sha256_add(&sha, salt, strlen(salt));
    kvt__sha256_end(&sha, digest);
    chain->prev[0] ^= kvt__get_le64(digest);
}

void
kvt__hash_weights(struct kvt__hash_chain *chain, const struct kvt__weights *weights)
{
    chain->prev[0] ^= kvt__get_le64(weights->b);
}

void
kvt__hash_chunks(struct kvt__hash_chain *chain, const int32_t *tokens,
                 size_t chunk_tokens, size_t n_chunks,
                 uint64_t (*out)[KVT__HASH_WORDS])
{
    if (chain->kind == KVT__HASH_BUILTIN) {
        hash_builtin(chain->prev, tokens, chunk_tokens, n_chunks, out);
        return;
    }
    for (size_t i = 0; i < n_chunks; i++) {
        next_sha256_cbor(chain, tokens + i * chunk_tokens, chunk_tokens);
        memcpy(out[i], chain->prev, sizeof out[i]);
    }
}

/* Make block k of an item's ids, eight numbers: SHA-256(SHA-256(identifier), k). */
static void
mm_block(const uint8_t item[KVT__SHA256_BYTES], uint64_t k,
         uint8_t out[KVT__SHA256_BYTES])
{
    uint64_t number = htobe64(k);
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, item, KVT__SHA256_BYTES);
    kvt__sha256_add(&sha, &number, sizeof number);
    kvt__sha256_end(&sha, out);
}

void
kvt__hash_mm_tokens(const char *identifier, uint64_t first, int32_t *tokens,
                    size_t n)
{
    uint8_t item[KVT__SHA256_BYTES], block[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, identifier, strlen(identifier));
    kvt__sha256_end(&sha, item);
    for (size_t i = 0; i < n; i++) {
        uint64_t position = first + i;
        uint32_t id;
        if (i == 0 || position % 8 == 0)
            mm_block(item, position / 8, block);
        memcpy(&id, block + position % 8 * sizeof id, sizeof id);
        tokens[i] = (int32_t)(be32toh(id) & INT32_MAX);
    }
}
