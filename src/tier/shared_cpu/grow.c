/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocation of the payload.  The file system allocates each piece before a process accesses
 * the piece, so a full file system is an error and not a SIGBUS.  One process allocates; if the
 * process dies, another process goes on. */

#include "base/error.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "kvtier.h"
#include "tier/shared_cpu/memory.h"

#define STEP (UINT64_C(32) << 20) /* bytes of a piece */
#define WAIT_NS (200 * KVT__NS_PER_MS)

int
kvt__sc_claim(uint64_t bytes, struct kvt__mem_claim *out)
{
    return kvt__mem_claim("/dev/shm", "max_shared_cpu_size", bytes, out);
}

/* Return the bytes of the piece at this offset. */
static uint64_t
n_next(const struct sc_growth *g, uint64_t at)
{
    uint64_t left = kvt__sc_payload_bytes(&g->memory) - at;

    return left < STEP ? left : STEP;
}

/* Allocate the rest of the payload; the caller holds the growth's lock word.  Only the process that
 * allocates holds a claim on the rest: the process that made the memory may be a scheduler, which
 * allocates nothing, or may be dead. */
static void
allocate(struct sc_growth *g)
{
    const struct sc_memory *m = &g->memory;
    uint64_t total = kvt__sc_payload_bytes(m), at = SC_LOAD(&m->header->populated_bytes);
    int err = at < total && g->claim.fd < 0 ? kvt__sc_claim(total - at, &g->claim) : 0;

    while (at < total && !atomic_load(&g->stop)) {
        uint64_t n = n_next(g, at);

        if (!err)
            err = kvt__sc_allocate(m, at, n);
        if (err) {
            kvt__log(KVT_LOG_ERROR, "shared_cpu: only %llu of %llu MiB were allocated (%s); the "
                     "next engine that starts allocates the rest",
                     (unsigned long long)(at >> 20), (unsigned long long)(total >> 20),
                     kvt__why());
            return;
        }
        at += n;
        SC_STORE(&m->header->populated_bytes, at);
        kvt__mem_claim_set(&g->claim, total - at);
    }
}

/* Map the allocated memory in this process, so that no copy has page faults. */
static void
populate(const struct sc_growth *g)
{
    const struct sc_memory *m = &g->memory;
    uint64_t end = SC_LOAD(&m->header->populated_bytes);

    for (uint64_t at = 0; at < end && end <= kvt__sc_payload_bytes(m);) {
        uint64_t n = n_next(g, at);

        if (atomic_load(&g->stop) || madvise(m->payload + at, n, MADV_POPULATE_WRITE))
            return; /* the first copy to each page maps the page */
        at += n;
    }
}

static void *
growth_main(void *arg)
{
    struct sc_growth *g = arg;
    uint32_t *lock = &g->memory.header->growth;
    bool locked = false;

    while (!atomic_load(&g->stop) && !locked)
        locked = !kvt__table_lock_word(g->memory.table, lock, WAIT_NS, &(uint32_t){ 0 });
    if (locked) {
        allocate(g);
        kvt__table_unlock_word(lock);
    }
    kvt__mem_claim_end(&g->claim);
    populate(g);
    g->on_end(g);
    return NULL;
}

int
kvt__sc_grow(struct sc_growth *g, const struct sc_memory *memory,
             const struct kvt__mem_claim *claim, void (*on_end)(struct sc_growth *growth))
{
    g->memory = *memory;
    g->claim = *claim;
    g->on_end = on_end;
    atomic_init(&g->stop, false);
    return kvt__thread_start(&g->thread, "kvt-populate", growth_main, g);
}

void
kvt__sc_stop_growing(struct sc_growth *g)
{
    atomic_store(&g->stop, true);
    pthread_join(g->thread, NULL);
}
