/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool: a mapping, the free ranges of the mapping, and the thread that populates the mapping.
 * The lock guards ranges and counts, and is held for a few instructions. */
#include "mem/pool.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "kvtier.h"
#include "mem/available.h"
#include "mem/claim.h"
#include "mem/extents.h"
#include "mem/numa.h"

#define UNIT ((size_t)4096)
#define STEP ((size_t)32 << 20) /* bytes populated at a time */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct kvt__pool {
    const char *key; /* the setting, for messages */
    struct kvt__mem_claim claim; /* for the bytes that are not populated yet */
    unsigned char *base;
    size_t bytes;
    size_t phase;
    pthread_t populator;
    atomic_bool stop;

    pthread_mutex_t lock;
    pthread_cond_t grown;
    struct kvt__extents extents; /* of populated memory, in units */
    uint32_t *holders;           /* by unit: holders of the slot that begins there */
    size_t free_bytes;
    size_t populated_bytes;
    size_t usable_bytes; /* less than bytes after the populator failed */
};

/* Make pages present.  Return 0 or -errno: a page that the kernel cannot provide must not be
 * touched, because the touch is SIGBUS. */
static int
populate(unsigned char *at, size_t n)
{
    while (madvise(at, n, MADV_POPULATE_WRITE)) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL)
            return -errno;
        size_t page = (size_t)sysconf(_SC_PAGESIZE); /* before Linux 5.14 */
        for (size_t i = 0; i < n; i += page)
            *(volatile unsigned char *)(at + i) = 0;
        break;
    }
    return 0;
}

/* Use the populated part of the pool only. */
static void
stop_growing(struct kvt__pool *pool, int err)
{
    kvt__log(KVT_LOG_ERROR, "%s: only %zu of %zu MiB could be populated (%s); the pool keeps "
             "the smaller size", pool->key, pool->populated_bytes >> 20, pool->bytes >> 20,
             strerror(-err));
    pthread_mutex_lock(&pool->lock);
    pool->usable_bytes = pool->populated_bytes;
    pthread_cond_broadcast(&pool->grown);
    pthread_mutex_unlock(&pool->lock);
}

static void *
populator_main(void *arg)
{
    struct kvt__pool *pool = arg;

    for (size_t at = 0; at < pool->bytes && !atomic_load(&pool->stop);) {
        size_t n = pool->bytes - at < STEP ? pool->bytes - at : STEP;

        int err = populate(pool->base + at, n);
        if (err) {
            stop_growing(pool, err);
            break;
        }
        pthread_mutex_lock(&pool->lock);
        kvt__extents_free(&pool->extents, at / UNIT, n / UNIT);
        pool->free_bytes += n;
        pool->populated_bytes += n;
        pthread_cond_broadcast(&pool->grown);
        pthread_mutex_unlock(&pool->lock);
        at += n;
        kvt__mem_claim_set(&pool->claim, pool->bytes - at);
    }
    kvt__mem_claim_end(&pool->claim);
    return NULL;
}

static int
map_memory(struct kvt__pool *pool, const struct kvt__pool_params *params)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;

    /* The kernel reserves the huge pages of all processes together; without the
     * reservation a page that is missing later is SIGBUS. */
    flags |= params->huge_pages ? MAP_HUGETLB : MAP_NORESERVE;
    void *base = mmap(NULL, pool->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED)
        return params->huge_pages
            ? kvt__fail(errno, "%s: %zu MiB of huge pages asked, %" PRIu64 " MiB free; set "
                        "it lower, vm.nr_hugepages higher, or local_cpu_use_hugepages to "
                        "false.", params->key, pool->bytes >> 20,
                        kvt__huge_free_bytes() >> 20)
            : kvt__fail(errno, "%s: map %zu bytes", params->key, pool->bytes);
    pool->base = base;
    madvise(base, pool->bytes, MADV_DONTFORK);
    if (params->node)
        kvt__numa_prefer(base, pool->bytes, *params->node, "numa_mode");
    if (!params->huge_pages)
        madvise(base, pool->bytes, MADV_HUGEPAGE); /* a hint only */
    return 0;
}

int
kvt__pool_open(const struct kvt__pool_params *params, struct kvt__pool **out)
{
    size_t grain = params->huge_pages ? kvt__huge_page_bytes() : UNIT;
    struct kvt__mem_claim claim = { .fd = -1 };
    struct kvt__pool *pool;
    int err = 0;

    assert(params->phase < UNIT);
    if (!params->huge_pages)
        err = kvt__mem_claim("/dev/shm", params->key, params->bytes, &claim);
    if (err)
        return err;
    pool = calloc(1, sizeof *pool);
    if (!pool) {
        kvt__mem_claim_end(&claim);
        return kvt__fail(ENOMEM, "pool: open");
    }
    pool->key = params->key;
    pool->claim = claim;
    pool->bytes = kvt__round_up(params->bytes, grain);
    pool->usable_bytes = pool->bytes;
    pool->phase = params->phase;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->grown, NULL);
    err = kvt__extents_init(&pool->extents, pool->bytes / UNIT);
    if (err)
        goto free_pool;
    err = map_memory(pool, params);
    if (err)
        goto free_extents;
    pool->holders = calloc(pool->bytes / UNIT, sizeof *pool->holders);
    if (!pool->holders) {
        err = kvt__fail(ENOMEM, "pool: open");
        goto unmap;
    }
    err = kvt__thread_start(&pool->populator, "kvt-populate", populator_main, pool);
    if (err)
        goto unmap;
    *out = pool;
    return 0;

unmap:
    free(pool->holders);
    munmap(pool->base, pool->bytes);
free_extents:
    kvt__extents_fini(&pool->extents);
free_pool:
    kvt__mem_claim_end(&pool->claim);
    free(pool);
    return err;
}

void
kvt__pool_close(struct kvt__pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    pthread_join(pool->populator, NULL);
    assert(pool->free_bytes == pool->populated_bytes);
    munmap(pool->base, pool->bytes);
    free(pool->holders);
    kvt__extents_fini(&pool->extents);
    pthread_cond_destroy(&pool->grown);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* A slot consists of margin, phase, payload and margin, rounded up to whole units. */
size_t
kvt__slot_footprint(size_t phase, size_t bytes)
{
    return kvt__round_up(2 * KVT__SLOT_MARGIN + phase + bytes, UNIT);
}

size_t
kvt__pool_footprint(const struct kvt__pool *pool, size_t bytes)
{
    return kvt__slot_footprint(pool->phase, bytes);
}

bool
kvt__pool_fits(const struct kvt__pool *pool, size_t bytes)
{
    return bytes <= pool->bytes && kvt__pool_footprint(pool, bytes) <= pool->bytes;
}

bool
kvt__pool_acquire(struct kvt__pool *pool, size_t bytes, size_t keep_free,
                  struct kvt__slot *out)
{
    size_t n, at;
    bool got = false;

    if (bytes > pool->bytes)
        return false;
    n = kvt__pool_footprint(pool, bytes);
    pthread_mutex_lock(&pool->lock);
    /* Memory that is not populated yet counts as free for the reserve keep_free. */
    size_t left = pool->free_bytes + (pool->usable_bytes - pool->populated_bytes);
    if (left >= n && left - n >= keep_free)
        got = kvt__extents_alloc(&pool->extents, n / UNIT, &at);
    if (got) {
        pool->free_bytes -= n;
        pool->holders[at] = 1;
    }
    pthread_mutex_unlock(&pool->lock);
    if (got)
        *out = (struct kvt__slot){
            .payload = pool->base + at * UNIT + KVT__SLOT_MARGIN + pool->phase,
            .bytes = bytes };
    return got;
}

/* Return the unit at which a slot begins. */
static size_t
first_unit(const struct kvt__pool *pool, const struct kvt__slot *slot)
{
    size_t offset = (size_t)(slot->payload - pool->base) - KVT__SLOT_MARGIN - pool->phase;

    assert(offset % UNIT == 0 && offset < pool->bytes);
    return offset / UNIT;
}

void
kvt__pool_share(struct kvt__pool *pool, const struct kvt__slot *slot)
{
    size_t at = first_unit(pool, slot);

    pthread_mutex_lock(&pool->lock);
    assert(pool->holders[at]);
    pool->holders[at]++;
    pthread_mutex_unlock(&pool->lock);
}

static void
release_holder(struct kvt__pool *pool, const struct kvt__slot *slot)
{
    size_t n = kvt__pool_footprint(pool, slot->bytes);
    size_t at = first_unit(pool, slot);

    pthread_mutex_lock(&pool->lock);
    assert(pool->holders[at]);
    if (!--pool->holders[at]) {
        kvt__extents_free(&pool->extents, at, n / UNIT);
        pool->free_bytes += n;
    }
    pthread_mutex_unlock(&pool->lock);
}

void
kvt__pool_release(struct kvt__pool *pool, struct kvt__slot *slot)
{
    if (slot->source)
        slot->source->release(slot->source, slot);
    else
        release_holder(pool, slot);
    *slot = (struct kvt__slot){ 0 };
}

bool
kvt__pool_is_shared(struct kvt__pool *pool, const struct kvt__slot *slot)
{
    pthread_mutex_lock(&pool->lock);
    bool shared = pool->holders[first_unit(pool, slot)] > 1;
    pthread_mutex_unlock(&pool->lock);
    return shared;
}

size_t
kvt__pool_bytes(const struct kvt__pool *pool)
{
    return pool->bytes;
}

void *
kvt__pool_memory(const struct kvt__pool *pool)
{
    return pool->base;
}

size_t
kvt__pool_used(struct kvt__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    size_t used = pool->populated_bytes - pool->free_bytes;
    pthread_mutex_unlock(&pool->lock);
    return used;
}

bool
kvt__pool_is_populated(struct kvt__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool all = pool->populated_bytes == pool->usable_bytes;
    pthread_mutex_unlock(&pool->lock);
    return all;
}

void
kvt__pool_wait_populated(struct kvt__pool *pool, size_t bytes)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->populated_bytes < bytes && pool->populated_bytes < pool->usable_bytes)
        pthread_cond_wait(&pool->grown, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
