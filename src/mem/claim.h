/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims on the host's memory: bytes of pools not yet populated.  MemAvailable still
 * contains these bytes, so every open of a pool subtracts the claims of all processes of
 * the user.  A claim ends with the process at the latest. */
#ifndef KVT_MEM_CLAIM_H
#define KVT_MEM_CLAIM_H

#include <stdint.h>

struct kvt__mem_claim {
    int fd; /* of the file of claims, with a lock on the claim's record; -1: none */
    unsigned record;
};

/* Claim bytes in the file of claims below parent.  If the directory cannot be used, compare
 * with the available memory alone and log the cause.  Return 0, or -ENOMEM with a sentence
 * beginning with key. */
int kvt__mem_claim(const char *parent, const char *key, uint64_t bytes,
                   struct kvt__mem_claim *out);

/* Lower the claim to the bytes not yet populated. */
void kvt__mem_claim_set(const struct kvt__mem_claim *claim, uint64_t bytes);

/* End the claim.  Repeated calls are harmless. */
void kvt__mem_claim_end(struct kvt__mem_claim *claim);

#endif
