/* SPDX-License-Identifier: Apache-2.0
 *
 * The speed of loads from a storage.  A measurement is the time from the begin of a read, while no
 * other read is in progress, until no read is in progress; and the bytes of the chunks that were
 * read.  So the measurement includes the storage's parallelism, the checksum and the codec.  A long
 * measurement has results meanwhile, and ends when the reads in progress hardly count.  The result
 * is in the index: all processes of the host see the last worker's result at once, and the next
 * process begins with the result.  The index also has the time since which reads in progress have
 * no result, so that a scheduler distinguishes stalled from idle storage. */
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "store/private.h"

#define RESULT_NS (KVT__NS_PER_S / 4) /* between two results of a measurement */
#define LONG_NS (2 * KVT__NS_PER_S)
#define KEEP 0.7 /* weight of the earlier measurements */

/* Begin with the results of earlier processes. */
static void
open_fit(struct kvt__level *owner)
{
    struct kvt__table_speed known = kvt__table_get_speed(kvt__level_index(owner));

    owner->speed.is_open = true;
    if (known.bytes_per_s)
        owner->speed.fit = (struct kvt__fit){ .a = (double)known.latency_ns,
                                              .b = 1e9 / (double)known.bytes_per_s };
}

static void
set_result(struct kvt__level *owner, const struct kvt__fit *fit, int64_t now)
{
    /* If nearly all time is latency, b is any small number. */
    double rate = fmin(fmax(1e9 / fit->b, 1), KVT__TABLE_MOST_BYTES_PER_S);
    struct kvt__table_speed result = { .latency_ns = (uint64_t)fit->a,
                                       .bytes_per_s = (uint64_t)rate };

    kvt__table_set_speed(kvt__level_index(owner), &result);
    owner->speed.result_ns = now;
}

/* Set the result of the present measurement, and end the measurement if no read is in progress, or
 * few of many reads.  A read in progress counts half.  speed->lock is held. */
static void
set_present_result(struct kvt__level *owner, int64_t now)
{
    struct kvt__speed *speed = &owner->speed;
    int64_t ns = now > speed->begun_ns ? now - speed->begun_ns : 1;
    uint64_t half = speed->bytes_begun / 2;
    bool ends = !speed->n || (ns >= LONG_NS && speed->n_done >= 4 * speed->n);

    if (!speed->is_open)
        open_fit(owner);
    struct kvt__fit fit = speed->fit;
    kvt__fit_add(&fit, 1, (double)(speed->bytes + half), (double)ns, KEEP);
    set_result(owner, &fit, now);
    if (!ends)
        return;
    speed->fit = fit;
    speed->begun_ns = now;
    speed->n_done = 0;
    speed->bytes = 0;
}

void
kvt__speed_begin(struct kvt__level *owner, uint64_t bytes)
{
    struct kvt__speed *speed = &owner->speed;

    pthread_mutex_lock(&speed->lock);
    if (!speed->n++) {
        speed->begun_ns = speed->result_ns = kvt__now_ns();
        kvt__table_set_reading(kvt__level_index(owner), speed->begun_ns);
        speed->n_done = 0;
        speed->bytes = 0;
    }
    speed->bytes_begun += bytes;
    pthread_mutex_unlock(&speed->lock);
}

void
kvt__speed_end(struct kvt__level *owner, uint64_t bytes, bool is_read)
{
    struct kvt__speed *speed = &owner->speed;

    pthread_mutex_lock(&speed->lock);
    int64_t now = kvt__now_ns();
    assert(speed->n && speed->bytes_begun >= bytes);
    speed->n--;
    speed->bytes_begun -= bytes;
    speed->bytes += is_read ? bytes : 0;
    speed->n_done += is_read;
    if (speed->bytes && (!speed->n || now - speed->result_ns >= RESULT_NS))
        set_present_result(owner, now);
    if (!speed->n || is_read)
        kvt__table_set_reading(kvt__level_index(owner), speed->n ? now : 0);
    pthread_mutex_unlock(&speed->lock);
}

/* ------------------------------------------------------------------------ results */

struct kvt__table_speed
kvt__store_speed(const struct kvt__store *store, int level)
{
    assert(level > KVT__LEVEL_MEMORY && (size_t)level <= store->n_levels);
    return kvt__table_get_speed(kvt__level_index(&store->levels[level - 1]));
}

int
kvt__store_storage(const struct kvt__store *store, int level)
{
    if (kvt__store_is_memory(store, level))
        return -1;
    return (int)(store->levels[level - 1].owner - store->levels);
}

void
kvt__store_set_prefill(struct kvt__store *store, const struct kvt__table_prefill *prefill)
{
    for (size_t i = 0; i < store->n_storages; i++)
        kvt__table_set_prefill(kvt__level_index(&store->levels[i]), prefill);
}

struct kvt__table_prefill
kvt__store_get_prefill(const struct kvt__store *store, uint64_t key)
{
    for (size_t i = 0; i < store->n_storages; i++) {
        struct kvt__table_prefill prefill = kvt__table_get_prefill(
            kvt__level_index(&store->levels[i]), kvt__table_prefill_place(key));

        if (prefill.key == key)
            return prefill;
    }
    return (struct kvt__table_prefill){ .key = 0 };
}
