/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexes of storage: opened with the store, and opened again after another process replaced
 * or deleted the index.  The store closes an old handle at its own close, because other threads may
 * still use the handle or hold a claim in the old index.  Until then the file of the old index
 * keeps its disk blocks: a thread that writes to a file without blocks gets SIGBUS if the disk is
 * full. */
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/private.h"

#define RENEW_AGAIN_NS (60 * KVT__NS_PER_S)

/* Set the index of a level.  A process without the shared index only reads: each process with a
 * private index would store up to the whole limit. */
static void
set_index(struct kvt__level *level, struct kvt__table *index)
{
    assert(index && index != level->index);
    bool has_dir = level->dirfd >= 0 || level->tier->multi_host;
    bool reads_only = has_dir && level->index_params.limit_bytes &&
                      !kvt__table_is_shared(index);

    if (reads_only)
        kvt__log(KVT_LOG_WARN, "%s: without a shared index the limit of %s cannot be enforced: "
                 "this process only reads and stores nothing", level->tier->ops->name,
                 level->url);
    if (kvt__table_is_shared(index))
        atomic_store(&level->was_shared, true);
    atomic_store(&level->reads_only, reads_only);
    atomic_store(&level->index, index);
}

/* Return true if the index must be opened again: another process replaced or deleted the index, or
 * an earlier renewal could only open a private index. */
static bool
is_outdated(struct kvt__level *level)
{
    struct kvt__table *index = level->index;

    return !kvt__table_is_current(index) ||
           (atomic_load(&level->was_shared) && !kvt__table_is_shared(index));
}

/* Open the index, in the tier's directory if the tier has a directory, and pass the index to the
 * tier. */
static int
open_index(const struct kvt__level *level, const struct kvt__table_params *params,
           struct kvt__table **out)
{
    int dirfd = level->tier->ops->private_dir(level->tier);
    int err = dirfd < 0 ? kvt__table_open_private(params, out)
                        : kvt__table_open(params, dirfd, out);

    if (!err) {
        err = level->tier->ops->use_index(level->tier, *out);
        if (err)
            kvt__table_close(*out);
    }
    return err;
}

static void
close_index(const struct kvt__level *level, struct kvt__table *index)
{
    level->tier->ops->leave_index(level->tier, index);
    kvt__table_close(index);
}

int
kvt__level_open_index(struct kvt__level *level, const struct kvt__table_params *params)
{
    struct kvt__table *index;

    assert(!level->index);
    level->dirfd = level->tier->ops->private_dir(level->tier);
    int err = open_index(level, params, &index);
    if (err)
        return err;
    level->index_params = *params;
    /* Otherwise two versions of kvtier would replace each other's index again and again. */
    level->index_params.keep_version = true;
    set_index(level, index);
    return 0;
}

/* Replace the index by another open index. */
static void
replace_index(struct kvt__level *level, struct kvt__table *index, struct kvt__retired *retired)
{
    kvt__log(KVT_LOG_WARN, "%s: another process replaced or deleted the index of %s; this process "
             "opened the index again", level->tier->ops->name, level->url);
    *retired = (struct kvt__retired){ level->index, level->retired };
    level->retired = retired;
    set_index(level, index);
    kvt__table_retire(retired->index);
    /* The new index may lack objects: another process may have listed the storage for the new
     * index before this process stored objects under the old index.  So the next upkeep lists. */
    kvt__table_request_listing(index);
}

/* Open the index again.  If only a private index can be opened, replace a useless index by the
 * private index, and try again later. */
static void
open_again(struct kvt__level *level)
{
    struct kvt__retired *retired = malloc(sizeof *retired);
    struct kvt__table *index = NULL;

    if (!retired || open_index(level, &level->index_params, &index))
        KVT__LOG_ONCE(KVT_LOG_WARN, "%s: the index of %s was replaced or deleted and cannot be "
                      "opened again; the next attempt is in %lld s, or restart this process (%s)",
                      level->tier->ops->name, level->url,
                      (long long)(RENEW_AGAIN_NS / KVT__NS_PER_S),
                      retired ? kvt__why() : "no memory");
    if (!index || !kvt__table_is_shared(index))
        atomic_store(&level->renew_from_ns, kvt__now_ns() + RENEW_AGAIN_NS);
    if (index && (kvt__table_is_shared(index) || !kvt__table_is_current(level->index))) {
        replace_index(level, index, retired);
        return;
    }
    if (index)
        close_index(level, index);
    free(retired);
}

/* Job of level->renewal. */
static void
renew(struct kvt__job *job)
{
    struct kvt__level *level = (struct kvt__level *)
        ((char *)job - offsetof(struct kvt__level, renewal));

    assert(atomic_load(&level->is_renewing));
    if (is_outdated(level)) /* otherwise another thread has opened the index again */
        open_again(level);
    atomic_store(&level->is_renewing, false);
}

void
kvt__level_renew_index(struct kvt__level *level)
{
    if (!is_outdated(level) || kvt__now_ns() < atomic_load(&level->renew_from_ns) ||
        atomic_exchange(&level->is_renewing, true))
        return;
    level->renewal.run = renew;
    if (level->store->exec)
        kvt__exec_submit(level->store->exec, KVT__PRIO_STORE, &level->renewal);
    else
        renew(&level->renewal);
}

void
kvt__store_renew_indexes(struct kvt__store *store)
{
    for (size_t i = 0; i < store->n_storages; i++)
        kvt__level_renew_index(&store->levels[i]);
}

void
kvt__level_close_index(struct kvt__level *level)
{
    assert(level->index);
    close_index(level, level->index);
    for (struct kvt__retired *next, *it = level->retired; it; it = next) {
        next = it->next;
        close_index(level, it->index);
        free(it);
    }
}
