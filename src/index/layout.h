/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of the mapping, as docs/formats.md, Index, gives them, and the
 * packing of an entry.  Fields that change while others look are only touched
 * by the atomic helpers below. */
#ifndef KVT_INDEX_LAYOUT_H
#define KVT_INDEX_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "index/index.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the index is little-endian and so must be the machine"
#endif

#define IX_MAGIC "KVTINDEX"
#define IX_VERSION 3u
#define IX_HEADER_BYTES 4096u
#define IX_N_OWNERS 64u
#define IX_N_SPACES 4096u
#define IX_N_UNTAGGED 1024u /* the first spaces: only for texts without tags */
#define IX_NO_SPACE 0xffffu /* the entry's file needs no name */
#define IX_MIN_ENTRIES (UINT64_C(1) << 10)
#define IX_MAX_ENTRIES (UINT64_C(1) << 26)
#define IX_GROUP 8u
#define IX_TEXT_WORDS 60u
#define IX_MAX_BYTES (UINT64_C(1) << 40)
#define IX_MAX_PATHS 128u

#define IX_SCANNED 1u

enum ix_file_state { IX_MAKING, IX_IN_USE, IX_REPLACED };

struct ix_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t n_entries;
    uint32_t n_owners;
    uint32_t n_spaces;
    uint8_t boot_id[16];
    uint32_t state;
    uint32_t scanned; /* IX_SCANNED, and a number that changes when IX_SCANNED is cleared */
    uint32_t recount; /* the numbers below may be wrong, most likely too high */
    uint32_t wide_hashes; /* 1: behind the entries, the rest of each entry's hash */
    uint64_t limit_bytes;
    uint64_t used_bytes;
    uint64_t n_ready;
    uint64_t n_unread;
    uint64_t paused_until[2]; /* reads, writes */
    uint64_t file_id[2]; /* equal to the id in the file `lock` */
    uint8_t rest[IX_HEADER_BYTES - 128];
};

struct ix_owner {
    uint64_t incarnation;
    uint64_t reserved_bytes;
    uint64_t limit_bytes;
    uint64_t pid;
    uint64_t begun; /* changes of the numbers that were begun, and those */
    uint64_t done;  /* that are done: between them they may not add up */
    uint64_t pad[2];
};

enum ix_space_state {
    IX_SPACE_FREE,
    IX_SPACE_WRITING,
    IX_SPACE_VALID,
    IX_SPACE_CHECKED, /* the lock's holder searches for entries of this space */
};

struct ix_space {
    uint32_t state;
    uint32_t pad;
    uint64_t digest; /* of the text */
    uint32_t n_bytes;
    uint32_t pad2;
    uint64_t text[IX_TEXT_WORDS];
    uint64_t pad3;
};

enum ix_state {
    IX_FREE,
    IX_CLAIMED,
    IX_READY,
    IX_EVICTING,
    IX_CLAIMING,
    IX_FILLING,
};

struct ix_entry {
    uint64_t word;
    uint64_t id[2];
    uint64_t hash;
    uint64_t packed;
    uint64_t tokens_flags;
    uint64_t recency;
    uint64_t lease;
};

struct ix_map {
    struct ix_header header;
    struct ix_owner owners[IX_N_OWNERS];
    struct ix_space spaces[IX_N_SPACES];
    struct ix_entry entries[];
};

/* What a wide hash has more than an entry's hash. */
struct ix_hash_rest {
    uint64_t bits[KVT__HASH_WORDS - 1];
};

_Static_assert(offsetof(struct ix_header, state) == 48, "header");
_Static_assert(offsetof(struct ix_header, limit_bytes) == 64, "header");
_Static_assert(offsetof(struct ix_header, file_id) == 112, "header");
_Static_assert(sizeof(struct ix_header) == IX_HEADER_BYTES, "header");
_Static_assert(sizeof(struct ix_owner) == 64, "owner");
_Static_assert(offsetof(struct ix_space, text) == 24, "space");
_Static_assert(sizeof(struct ix_space) == 512, "space");
_Static_assert(sizeof(struct ix_entry) == 64, "entry");

static inline size_t
ix_map_bytes(uint64_t n_entries, bool wide_hashes)
{
    return sizeof(struct ix_map) +
           (size_t)n_entries * (sizeof(struct ix_entry) +
                                (wide_hashes ? sizeof(struct ix_hash_rest) : 0));
}

/* ------------------------------------------------------------------ atomics */

/* No stand-alone fences: loads acquire and stores release, so that a reader
 * orders its two looks at the word around the fields without one; where two
 * sides write one field and read the other's, all four are sequentially
 * consistent.  This is also what the thread sanitizer understands. */
#ifndef IX_STEP
#define IX_STEP() ((void)0) /* tests/unit/index/test-model.c has another */
#endif
#define IX_LOAD(p) (IX_STEP(), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define IX_STORE(p, v) (IX_STEP(), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define IX_LOAD_SEQ(p) (IX_STEP(), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define IX_STORE_SEQ(p, v) (IX_STEP(), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))
#define IX_ADD(p, n) (IX_STEP(), __atomic_fetch_add((p), (n), __ATOMIC_SEQ_CST))

/* *old is what stood there when it fails. */
static inline bool
ix_swap(uint64_t *at, uint64_t *old, uint64_t v)
{
    IX_STEP();
    return __atomic_compare_exchange_n(at, old, v, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

/* A number that lost its truth by garbage or a death must not wrap. */
static inline void
ix_sub(uint64_t *at, uint64_t n)
{
    uint64_t old = IX_LOAD(at);

    while (!ix_swap(at, &old, old > n ? old - n : 0))
        ;
}

/* Clear IX_SCANNED because a file without an entry may exist.  A scan in progress does not
 * set the bit either. */
static inline void
ix_clear_scanned(struct ix_header *h)
{
    uint32_t old = IX_LOAD(&h->scanned);

    do
        IX_STEP();
    while (!__atomic_compare_exchange_n(&h->scanned, &old, (old | IX_SCANNED) + 1, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

/* --------------------------------------------------------------------- word */

static inline enum ix_state
ix_word_state(uint64_t word)
{
    unsigned state = (unsigned)(word & 15);

    return state > IX_FILLING ? IX_FREE : (enum ix_state)state;
}

/* Not certain to become a claim: its bytes are still its owner's. */
static inline bool
ix_is_tentative(enum ix_state state)
{
    return state == IX_FILLING || state == IX_CLAIMING;
}

static inline unsigned
ix_word_owner(uint64_t word)
{
    return (unsigned)(word >> 4 & 0xfff);
}

/* The word of the next move. */
static inline uint64_t
ix_word_next(uint64_t word, enum ix_state state, unsigned owner)
{
    return ((word >> 16) + 1) << 16 | (uint64_t)owner << 4 | (uint64_t)state;
}

/* Move an entry on from the word that the caller saw. */
static inline bool
ix_move(struct ix_entry *e, uint64_t word, uint64_t next)
{
    return ix_swap(&e->word, &word, next);
}

/* ------------------------------------------------------------------- fields */

static inline void
ix_id_words(const struct kvt__id *id, uint64_t out[2])
{
    memcpy(out, id->b, sizeof id->b);
}

static inline uint64_t
ix_packed_bytes(uint64_t packed)
{
    return packed & (IX_MAX_BYTES - 1);
}

static inline uint32_t
ix_packed_space(uint64_t packed)
{
    return (uint32_t)(packed >> 40 & 0xffff);
}

static inline bool
ix_space_in_range(uint32_t space)
{
    return space < IX_N_SPACES || space == IX_NO_SPACE;
}

/* A flag of the entry beside KVT__INDEX_*. */
#define IX_WIDE 4u

static inline bool
ix_is_unread(uint64_t tokens_flags)
{
    return (tokens_flags >> 32 & KVT__INDEX_UNREAD) != 0;
}

static inline enum kvt__hash_form
ix_hash_form(uint64_t packed, uint64_t tokens_flags)
{
    if (tokens_flags >> 32 & IX_WIDE)
        return KVT__HASH_WIDE;
    return packed >> 63 ? KVT__HASH_UNSIGNED : KVT__HASH_SIGNED;
}

/* ------------------------------------------------------------------ recency */

/* Wall clock, nanoseconds, with the number of uses in the low 12 bits. */
#define IX_USES UINT64_C(0xfff)

/* ------------------------------------------------------------------- leases */

/* A lease is its end in nanoseconds, rounded up to 2^16, with the number of
 * its holders in the low 16 bits. */
#define IX_HOLDERS UINT64_C(0xffff)
#define IX_LEASE_MAX_NS (INT64_C(24) * 3600 * 1000000000)

static inline int64_t
ix_lease_end(uint64_t lease)
{
    return (int64_t)(lease & ~IX_HOLDERS);
}

/* An end that nobody can have asked for is garbage. */
static inline bool
ix_lease_holds(uint64_t lease, int64_t now)
{
    int64_t end = ix_lease_end(lease);

    return end > now && end - now <= IX_LEASE_MAX_NS + (int64_t)IX_HOLDERS + 1;
}

#endif
