/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of two messages of one length at once: the SHA instructions of x86
 * have twice the throughput that one chain of them can use.  Any thread. */
#ifndef KVT_KEY_SHA256_TWO_H
#define KVT_KEY_SHA256_TWO_H

#include "base/sha256.h"

#define KVT__SHA256_TWO_HEAD_MAX 63

/* The digests of head || a and of head || b; a and b have n bytes each, head at
 * most KVT__SHA256_TWO_HEAD_MAX. */
void kvt__sha256_two(const void *head, size_t n_head, const void *a,
                     const void *b, size_t n,
                     uint8_t out_a[KVT__SHA256_BYTES],
                     uint8_t out_b[KVT__SHA256_BYTES]);

#endif
