/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims on the host's memory: the bytes of pools that are not populated yet.  MemAvailable still
 * contains these bytes, so every open of a pool subtracts the claims of all processes of the user.
 * A claim ends at the latest when the process ends.  Any thread, but one thread at a time for a
 * claim. */
#ifndef KVT_MEM_CLAIM_H
#define KVT_MEM_CLAIM_H

#include <stdint.h>

struct kvt__mem_claim {
    int fd; /* the file of claims, with a lock on the claim's record; -1: no claim is recorded */
    unsigned record;
};

/* Check that the host has `bytes` of memory besides the claims of all processes, and record a claim
 * in the user's private directory in parent.  If the file of claims cannot be used, compare only
 * with the available memory, and log the cause.  key: the setting, for messages.  Blocks for at
 * most 5 s.  Return 0, or -ENOMEM with a sentence that begins with key; the caller ends *out with
 * kvt__mem_claim_end(). */
int kvt__mem_claim(const char *parent, const char *key, uint64_t bytes,
                   struct kvt__mem_claim *out);

/* Change the claim to `bytes`, the bytes that are not populated yet. */
void kvt__mem_claim_set(const struct kvt__mem_claim *claim, uint64_t bytes);

/* End the claim.  Repeated calls are harmless. */
void kvt__mem_claim_end(struct kvt__mem_claim *claim);

#endif
