/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of many short messages of one length: one message is a chain of steps
 * that wait for each other, several at once fill the processor.  Any thread. */
#ifndef KVT_KEY_SHA256_MANY_H
#define KVT_KEY_SHA256_MANY_H

#include "base/sha256.h"

#define KVT__SHA256_MANY_HEAD_MAX 63

/* The digests of head || text for count texts of n bytes each, which lie one
 * behind the other; head has at most KVT__SHA256_MANY_HEAD_MAX bytes. */
void kvt__sha256_many(const void *head, size_t n_head, const void *texts, size_t n,
                      size_t count, uint8_t (*out)[KVT__SHA256_BYTES]);

/* ------------------------------------- how a processor does several at once */

#define KVT__SHA256_BLOCK 64
#define KVT__SHA256_LANES_MAX 16

/* The states of some messages side by side: word i of all of them, then word
 * i + 1. */
struct kvt__sha256_states {
    uint32_t word[8][KVT__SHA256_LANES_MAX];
};

struct kvt__sha256_lanes {
    size_t n; /* messages at once */
    /* Add n_blocks blocks to each; those of message i are at blocks[i]. */
    void (*compress)(struct kvt__sha256_states *states,
                     const uint8_t *const *blocks, size_t n_blocks);
};

/* The widest lanes of this processor that count messages fill; NULL for none. */
const struct kvt__sha256_lanes *kvt__sha256_lanes(size_t count);

#endif
