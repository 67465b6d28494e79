/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 (FIPS 180-4) of many messages: messages are hashed in groups, as many at once as the
 * processor has lanes; the rest is hashed by kvt__sha256.  Any thread. */
#include "key/sha256-many.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#define BLOCK KVT__SHA256_BLOCK
#define LANES_MAX KVT__SHA256_LANES_MAX

static void
hash_one(const void *head, size_t n_head, const void *text, size_t n,
         uint8_t out[KVT__SHA256_BYTES])
{
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, n_head);
    kvt__sha256_add(&sha, text, n);
    kvt__sha256_end(&sha, out);
}

static void
init_states(struct kvt__sha256_states *states, size_t n_lanes)
{
    static const uint32_t words[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };

    for (size_t i = 0; i < 8; i++)
        for (size_t lane = 0; lane < n_lanes; lane++)
            states->word[i][lane] = words[i];
}

static void
write_digest(const struct kvt__sha256_states *states, size_t lane,
             uint8_t out[KVT__SHA256_BYTES])
{
    for (size_t i = 0; i < 8; i++) {
        uint32_t word = htobe32(states->word[i][lane]);
        memcpy(out + i * sizeof word, &word, sizeof word);
    }
}

/* Buffers for the blocks of a message that are not contiguous in the input: the first block with
 * the head, and the last blocks with the padding. */
struct edges {
    uint8_t bytes[LANES_MAX][2 * BLOCK];
    const uint8_t *at[LANES_MAX];
};

/* Hash lanes->n messages at once.  The first block is assembled in a buffer, from head and text;
 * the following whole blocks are read in place; the end and the padding are assembled in the
 * buffer again.  A message shorter than a block uses the buffer only. */
static void
hash_group(const struct kvt__sha256_lanes *lanes, const void *head,
           size_t n_head, const uint8_t *texts, size_t n,
           uint8_t (*out)[KVT__SHA256_BYTES])
{
    const uint64_t n_bits = htobe64((uint64_t)(n_head + n) * 8);
    struct kvt__sha256_states states;
    const uint8_t *at[LANES_MAX];
    struct edges edges;
    size_t held = n_head, done = 0;

    init_states(&states, lanes->n);
    for (size_t i = 0; i < lanes->n; i++) {
        edges.at[i] = memcpy(edges.bytes[i], head, n_head);
        at[i] = texts + i * n;
    }
    if (n_head + n >= BLOCK) {
        done = BLOCK - n_head;
        for (size_t i = 0; i < lanes->n; i++) {
            memcpy(edges.bytes[i] + n_head, at[i], done);
            at[i] += done;
        }
        lanes->compress(&states, edges.at, 1);
        size_t whole = (n - done) / BLOCK;
        lanes->compress(&states, at, whole);
        done += whole * BLOCK;
        held = 0;
    }
    size_t left = n - done;
    size_t end = held + left + 1 + sizeof n_bits <= BLOCK ? BLOCK : 2 * BLOCK;
    for (size_t i = 0; i < lanes->n; i++) {
        uint8_t *to = edges.bytes[i] + held;
        memcpy(to, texts + i * n + done, left);
        memset(to + left, 0, end - held - left);
        to[left] = 0x80;
        memcpy(edges.bytes[i] + end - sizeof n_bits, &n_bits, sizeof n_bits);
    }
    lanes->compress(&states, edges.at, end / BLOCK);
    for (size_t i = 0; i < lanes->n; i++)
        write_digest(&states, i, out[i]);
}

void
kvt__sha256_many(const void *head, size_t n_head, const void *texts, size_t n,
                 size_t count, uint8_t (*out)[KVT__SHA256_BYTES])
{
    const uint8_t *at = texts;
    size_t step;

    assert(n_head <= KVT__SHA256_MANY_HEAD_MAX);
    for (; count; count -= step, out += step, at += step * n) {
        const struct kvt__sha256_lanes *lanes = kvt__sha256_lanes(count);

        step = lanes ? lanes->n : 1;
        if (lanes)
            hash_group(lanes, head, n_head, at, n, out);
        else
            hash_one(head, n_head, at, n, out[0]);
    }
}
