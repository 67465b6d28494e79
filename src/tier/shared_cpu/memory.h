/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory: chunks in the area of an index (table/table.h).  All processes of the user
 * on this host share the area.  Design: ARCHITECTURE.md, Host memory between processes.
 *
 * The payload is divided into units.  The place of an entry of the index is a range of units.
 * A unit is used if an entry that is not FREE has the unit in the entry's place, or if a living
 * process pins the unit; all other units are free.  So an eviction only frees the entry, and no
 * unit stays used after a process was killed.
 *
 * All calls may be made on any thread, several at once.  The number of an entry comes from a
 * claim or a record of the same table.  Every byte of the area may be garbage: no call loops,
 * crashes or accesses other memory. */
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
#define SC_N_PINS 1024u                 /* pins of each owner */
#define SC_ALIGN (UINT64_C(2) << 20)    /* alignment of the payload: a huge page */

#ifndef SC_STEP
#define SC_STEP(p) ((void)0) /* tests have a definition of their own */
#endif
#define SC_LOAD(p) (SC_STEP(p), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define SC_STORE(p, v) (SC_STEP(p), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))

/* Return a place: the first unit in bits 0-31, the number of units in bits 32-63.  0 is no
 * place. */
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

/* The pins of an owner of the table: places that the owner's process reads.  Pin i is valid if bit
 * i of `used` is set. */
struct sc_pins {
    uint64_t used[SC_N_PINS / 64];
    uint64_t place[SC_N_PINS];
};

/* The first part of the area. */
struct sc_header {
    uint64_t populated_bytes;  /* bytes at the begin of the payload that have memory */
    uint32_t growth;           /* lock word, held while a process allocates memory */
    _Alignas(64) uint32_t lock; /* lock word, held while a process chooses a place */
    uint32_t next_unit;        /* unit at which the next search begins; guarded by lock */
    _Alignas(64) uint32_t n_pins[KVT__TABLE_OWNERS]; /* at least the number of the owner's pins */
};

/* A view of an index's area, valid until the table's handle closes. */
struct sc_memory {
    struct kvt__table *table;
    struct sc_header *header;
    struct sc_pins *pins;      /* [owner] */
    uint32_t *units;           /* [unit]: 1 + the entry that took the unit last.  The unit is in
                                * use only if the unit is in this entry's place too */
    uint64_t *places;          /* [entry] */
    unsigned char *payload;
    uint64_t payload_at;       /* offset of the payload in the area */
    uint64_t n_entries;
    uint32_t n_units;
    uint32_t timed_out;        /* for kvt__table_lock_word() of header->lock */
};

/* Set max_entries, area_bytes and area_version for a payload of this size.  payload_bytes: at most
 * 2^44, the maximum of the setting. */
void kvt__sc_set_params(struct kvt__table_params *params, uint64_t payload_bytes);

/* Fill in the view of a table's area.  0; -EINVAL with a sentence: the table has no area, or the
 * sizes of table and area do not match. */
int kvt__sc_view(struct kvt__table *table, struct sc_memory *out);

/* Allocate the parts of a new area before the payload, and the begin of the payload.  0; -errno
 * with a sentence. */
int kvt__sc_make_area(struct kvt__table *table);

/* Allocate a part of the payload, with huge pages if the tmpfs has the option huge=advise.  at:
 * offset in the payload.  No process may use the part.  0; -errno with a sentence: no memory of
 * the part is allocated. */
int kvt__sc_allocate(const struct sc_memory *m, uint64_t at, uint64_t bytes);

static inline uint64_t
kvt__sc_payload_bytes(const struct sc_memory *m)
{
    return m->n_units * SC_UNIT;
}

/* ------------------------------------------------------------------- place.c */

struct sc_evicted {
    uint64_t n, bytes;
};

/* Find a place of `bytes` (above 0) for an entry that the caller has claimed; if no place is free,
 * evict entries.  The entry has the place until the entry is FREE.  evicted: number and bytes of
 * the evicted chunks, also after an error.  Errors have a sentence.  0; -ENOSPC: no place is free,
 * and no eviction makes a place free now; -EFBIG: the whole memory is smaller; -ETIMEDOUT: other
 * processes held the lock for 1 s, or the process for which an earlier call waited in vain still
 * holds the lock. */
int kvt__sc_acquire_place(struct sc_memory *m, uint32_t entry, uint64_t bytes,
                          struct sc_evicted *evicted);

/* Return the payload of an entry that the caller has claimed.  NULL: the entry's place is smaller
 * than `bytes`, or is garbage. */
unsigned char *kvt__sc_payload(const struct sc_memory *m, uint32_t entry, uint64_t bytes);

/* Return the payload at a pinned place; the entry may have another place now.  NULL: the place is
 * smaller than `bytes`, or is garbage. */
unsigned char *kvt__sc_pinned_payload(const struct sc_memory *m, unsigned pin, uint64_t bytes);

/* ------------------------------------------------------------------- grow.c */

/* Claim bytes of the host's memory for the payload.  The caller ends the claim with
 * kvt__mem_claim_end().  0; -ENOMEM with a sentence. */
int kvt__sc_claim(uint64_t bytes, struct kvt__mem_claim *out);

/* A growth: a thread that allocates the payload piece by piece, unless a thread of another process
 * does, and then maps the memory in this process. */
struct sc_growth {
    struct sc_memory memory;
    struct kvt__mem_claim claim; /* claim of the bytes without memory; fd -1: no claim */
    void (*on_end)(struct sc_growth *growth); /* called on the thread before the thread ends */
    pthread_t thread;
    atomic_bool stop;
};

/* Start the thread.  Owner of the claim: the growth.  0; -errno with a sentence: there is no
 * thread, and the caller still owns the claim. */
int kvt__sc_grow(struct sc_growth *growth, const struct sc_memory *memory,
                 const struct kvt__mem_claim *claim,
                 void (*on_end)(struct sc_growth *growth));

/* Stop and join the thread. */
void kvt__sc_stop_growing(struct sc_growth *growth);

/* ------------------------------------------------------------------- pins.c */

/* Delete the pins and locks that the last process with this handle's owner number left when it
 * died.  Call this function before the handle pins or stores a chunk. */
void kvt__sc_clear_owner(const struct sc_memory *m);

/* Pin the place of an entry: until the unpin or the end of the process, no process changes the
 * bytes of the place.  Returns the number of the pin; -ENOENT: the entry has changed since the
 * caller read `word`; -EAGAIN: this handle has SC_N_PINS pins; -EINVAL: the handle is a reader. */
int kvt__sc_pin(const struct sc_memory *m, uint32_t entry, uint64_t word);
void kvt__sc_unpin(const struct sc_memory *m, unsigned pin);

/* Return the end of the last pinned place that overlaps units [first, first + n); 0: no living
 * process pins these units. */
uint32_t kvt__sc_pinned_end(const struct sc_memory *m, uint32_t first, uint32_t n);

#endif
