/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of many short messages of equal length.  The steps of a message depend on each other, so
 * a single message does not use the whole processor; several messages at once do.  Any thread. */
#ifndef KVT_KEY_SHA256_MANY_H
#define KVT_KEY_SHA256_MANY_H

#include "base/sha256.h"

#define KVT__SHA256_MANY_HEAD_MAX 63

/* Write the digests of head || text for count contiguous texts of n bytes each.  head has at most
 * KVT__SHA256_MANY_HEAD_MAX bytes. */
void kvt__sha256_many(const void *head, size_t n_head, const void *texts, size_t n,
                      size_t count, uint8_t (*out)[KVT__SHA256_BYTES]);

/* ------------------------------------------ several messages at once: lanes */

#define KVT__SHA256_BLOCK 64
#define KVT__SHA256_LANES_MAX 16

/* The states of several messages: word i of all messages, then word i + 1. */
struct kvt__sha256_states {
    uint32_t word[8][KVT__SHA256_LANES_MAX];
};

struct kvt__sha256_lanes {
    size_t n; /* messages at once */
    /* Add n_blocks blocks to each message; the blocks of message i begin at blocks[i]. */
    void (*compress)(struct kvt__sha256_states *states,
                     const uint8_t *const *blocks, size_t n_blocks);
};

/* Return the lanes of this processor with the largest n, at most count; NULL: none. */
const struct kvt__sha256_lanes *kvt__sha256_lanes(size_t count);

#endif
