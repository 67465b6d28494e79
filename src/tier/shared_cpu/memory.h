/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory: chunks in the area of an index (table/table.h), which all processes
 * of the user on this host share.  Design: ARCHITECTURE.md, Host memory between processes.
 *
 * The payload is divided into units.  An entry of the index has a place: consecutive units.
 * A unit is used if an entry that is not FREE has the unit in its place, or if a living
 * process pins the unit; all other units are free.  So an eviction frees the entry and
 * nothing else, and a killed process leaves no unit used.
 *
 * Any thread.  The number of an entry comes from a claim or a record of the same table.
 * Every byte of the area may be garbage: no call loops, crashes or touches other memory. */
#ifndef KVT_TIER_SHARED_CPU_MEMORY_H
#define KVT_TIER_SHARED_CPU_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "mem/claim.h"
#include "table/table.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define SC_VERSION 2u
#define SC_UNIT (UINT64_C(64) << 10)
#define SC_N_PINS 1024u                 /* of an owner */
#define SC_ALIGN (UINT64_C(2) << 20)    /* of the payload: a huge page */

#ifndef SC_STEP
#define SC_STEP(p) ((void)0) /* tests compile with another */
#endif
#define SC_LOAD(p) (SC_STEP(p), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define SC_STORE(p, v) (SC_STEP(p), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))

/* A place: the first unit in bits 0-31, the number of units in bits 32-63; 0: none. */
static inline uint64_t
sc_place(uint32_t first, uint32_t n)
{
    return first | (uint64_t)n << 32;
}

static inline uint32_t
sc_first(uint64_t place)
{
    return (uint32_t)place;
}

static inline uint32_t
sc_n(uint64_t place)
{
    return (uint32_t)(place >> 32);
}

/* The pins of an owner of the table: places whose bytes the owner's process reads.  A set
 * bit of `used` makes a pin valid. */
struct sc_pins {
    uint64_t used[SC_N_PINS / 64];
    uint64_t place[SC_N_PINS];
};

struct sc_header {
    uint64_t populated_bytes;  /* bytes from the begin of the payload that have memory */
    uint32_t growth;           /* lock word, held while memory is allocated */
    _Alignas(64) uint32_t lock; /* lock word, held while a place is chosen */
    uint32_t hand;             /* unit at which the next search begins; guarded by lock */
    _Alignas(64) uint32_t n_pins[KVT__TABLE_OWNERS]; /* at least the set bits of `used` */
};

/* A view of an index's area. */
struct sc_memory {
    struct kvt__table *table;
    struct sc_header *header;
    struct sc_pins *pins;      /* [owner] */
    uint32_t *units;           /* [unit]: a hint: entry + 1 that has the unit in its place */
    uint64_t *places;          /* [entry] */
    unsigned char *payload;
    uint64_t payload_at;       /* in the area */
    uint64_t n_entries;
    uint32_t n_units;
    uint32_t stuck;            /* acquisition of header->lock that a put waited for in vain */
};

/* Set max_entries, area_bytes and area_version for a payload of this size, at most 2^44
 * bytes, the maximum of the setting. */
void kvt__sc_set_params(struct kvt__table_params *params, uint64_t payload_bytes);

/* Fill in the view.  0; -EINVAL with a sentence: the table has no area, or the area of another
 * number of entries. */
int kvt__sc_view(struct kvt__table *table, struct sc_memory *out);

/* Allocate the part before the payload of a new area, and the begin of the payload.  0; -errno
 * with a sentence. */
int kvt__sc_make(struct kvt__table *table);

/* Allocate a part of the payload, all or nothing, with huge pages if the tmpfs has the option
 * huge=advise.  No process uses the part.  0; -errno with a sentence. */
int kvt__sc_allocate(const struct sc_memory *m, uint64_t at, uint64_t bytes);

static inline uint64_t
kvt__sc_payload_bytes(const struct sc_memory *m)
{
    return m->n_units * SC_UNIT;
}

/* ------------------------------------------------------------------- place.c */

/* Give an entry that the caller has claimed a place for bytes > 0, evicting entries if no
 * place is free.  The place holds until the entry is FREE.  evicted: the number and bytes of
 * evicted chunks.  0; -ENOSPC: no place is free and none becomes free by an eviction now;
 * -EFBIG: the memory is smaller; -ETIMEDOUT: other processes held the lock for 1 s, or one
 * process still holds the lock that an earlier call waited for. */
struct sc_evicted {
    uint64_t n, bytes;
};
int kvt__sc_take(struct sc_memory *m, uint32_t entry, uint64_t bytes,
                 struct sc_evicted *evicted);

/* Return the payload of an entry that the caller has claimed; NULL: the place has less than
 * bytes. */
unsigned char *kvt__sc_payload(const struct sc_memory *m, uint32_t entry, uint64_t bytes);

/* The same, of a pin.  The entry may have another chunk at another place by now. */
unsigned char *kvt__sc_pinned(const struct sc_memory *m, unsigned pin, uint64_t bytes);

/* ------------------------------------------------------------------- grow.c */

/* Claim bytes of the host's memory for the payload.  0; -ENOMEM with a sentence. */
int kvt__sc_claim(uint64_t bytes, struct kvt__mem_claim *out);

/* A thread that gives the payload memory of the host, piece by piece, unless another process
 * does so, and maps the memory in this process. */
struct sc_growth {
    struct sc_memory memory;
    struct kvt__mem_claim claim; /* of the bytes without memory; fd -1: none */
    void (*ended)(struct sc_growth *growth); /* called by the thread at its end */
    pthread_t thread;
    atomic_bool stop;
};

/* Begin.  Owner of claim: the growth.  0; -errno with a sentence: no thread, and the caller owns
 * the claim. */
int kvt__sc_grow(struct sc_growth *growth, const struct sc_memory *memory,
                 const struct kvt__mem_claim *claim,
                 void (*ended)(struct sc_growth *growth));

/* Stop and join the thread. */
void kvt__sc_stop_growing(struct sc_growth *growth);

/* ------------------------------------------------------------------- pins.c */

/* Delete the pins and locks of the process that had this handle's owner number before and
 * died.  Call this function before the handle pins and stores. */
void kvt__sc_clear_owner(const struct sc_memory *m);

/* Pin the place of an entry: until the unpin, or the end of the process, no process changes
 * its bytes.  Returns the number of the pin; -ENOENT: the entry has changed since the caller
 * read word; -EAGAIN: this process has SC_N_PINS pins; -EINVAL: a handle without number. */
int kvt__sc_pin(const struct sc_memory *m, uint32_t entry, uint64_t word);
void kvt__sc_unpin(const struct sc_memory *m, unsigned pin);

/* Return a unit behind the last pin of a living process in the place, or 0: there is none. */
uint32_t kvt__sc_pinned_end(const struct sc_memory *m, uint32_t first, uint32_t n);

#endif
