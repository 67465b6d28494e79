/* SPDX-License-Identifier: Apache-2.0
 *
 * Pauses of tiers.  A tier that fails repeatedly, or does not respond, is paused, so that requests
 * do not wait for the tier.  Workers see the failures of their reads and writes.  The pause is in
 * the tier's index: the scheduler sees the pause and promises no chunk that only this tier holds.
 * The first operation after the pause decides: a failure pauses the tier again, a response ends
 * the failures.  Any thread. */
#include <assert.h>
#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/private.h"

#define FAILURES 8u /* consecutive failures in this process */
#define PAUSE_NS (INT64_C(10) * KVT__NS_PER_S)
#define HANG_PAUSE_NS (INT64_C(60) * KVT__NS_PER_S)

static const char *
verb_of(enum kvt__table_pause kind)
{
    return kind == KVT__PAUSE_READS ? "read" : "written";
}

/* Meaning of an operation's result for the state of the storage. */
enum response { RESPONDED, FAILED, NO_EVIDENCE };

static enum response
response_of(const struct kvt__level *level, int err)
{
    switch (-err) {
    case 0:
    case ENOENT:
    case EEXIST:
    case EBADMSG:
    case EBUSY:
        return RESPONDED;
    case ECANCELED: /* the store closes, or the tier got no request */
    case EINVAL:    /* the tier refused the key or the operation */
    case ENAMETOOLONG:
    case ENOTSUP:
    case EMFILE: /* this process or host lacks descriptors or memory */
    case ENFILE:
    case ENOMEM:
        return NO_EVIDENCE;
    /* Full storage is a failure.  Each failed PUT evicts chunks for the next PUTs; if the evictions
     * do not help, each further PUT would write a chunk and fail. */
    case ENOSPC:
    case EDQUOT:
        return level->tier->several_disks ? NO_EVIDENCE /* the other disks have room */ : FAILED;
    default:
        return FAILED;
    }
}

bool
kvt__level_is_paused(const struct kvt__level *level, enum kvt__table_pause kind)
{
    return kvt__table_is_paused(kvt__level_index(level), kind);
}

static void
pause_level(struct kvt__level *level, enum kvt__table_pause kind, int64_t ns,
            const char *why)
{
    if (!kvt__table_pause(level->index, kind, ns))
        return;
    kvt__count(level->store->counters, KVT__N_tier_pauses, 1);
    kvt__log(KVT_LOG_WARN, "%s: %s is not %s for %lld s: %s", level->tier->ops->name,
             level->url, verb_of(kind), (long long)(ns / KVT__NS_PER_S), why);
}

int
kvt__circuit_check(const struct kvt__level *level, enum kvt__table_pause kind)
{
    if (level->tier->in_memory || !kvt__level_is_paused(level, kind))
        return 0;
    return kvt__fail(EIO, "%s: %s is paused after failures and is not %s now.",
                     level->tier->ops->name, level->url, verb_of(kind));
}

int
kvt__circuit_begin(struct kvt__level *level, enum kvt__table_pause kind)
{
    int err = kvt__circuit_check(level, kind);

    level = level->owner;
    if (err || level->tier->in_memory)
        return err;
    /* Set the time first: kvt__store_pause_hung_tiers() must not see the new operation together
     * with the time of an old response. */
    if (!atomic_load(&level->n_in_progress[kind]))
        atomic_store(&level->response_ns[kind], kvt__now_ns());
    atomic_fetch_add(&level->n_in_progress[kind], 1);
    return 0;
}

void
kvt__circuit_end(struct kvt__level *level, enum kvt__table_pause kind, int err)
{
    level = level->owner;
    if (level->tier->in_memory) /* full memory is not a failure */
        return;
    atomic_store(&level->response_ns[kind], kvt__now_ns());
    unsigned before = atomic_fetch_sub(&level->n_in_progress[kind], 1);
    assert(before);
    enum response response = response_of(level, err);
    if (response == RESPONDED) {
        atomic_store(&level->n_failures[kind], 0);
        if (kvt__table_resume(level->index, kind))
            kvt__log(KVT_LOG_INFO, "%s: %s is %s again", level->tier->ops->name,
                     level->url, verb_of(kind));
    } else if (response == FAILED &&
               atomic_fetch_add(&level->n_failures[kind], 1) + 1 >= FAILURES) {
        pause_level(level, kind, PAUSE_NS, kvt__why());
    }
}

void
kvt__store_pause_hung_tiers(struct kvt__store *store, int64_t min_silence_ns)
{
    int64_t now = kvt__now_ns();

    for (size_t i = 0; i < store->n_storages; i++) {
        struct kvt__level *level = &store->levels[i];

        if (atomic_load(&level->n_in_progress[KVT__PAUSE_READS]) &&
            now - atomic_load(&level->response_ns[KVT__PAUSE_READS]) >= min_silence_ns)
            pause_level(level, KVT__PAUSE_READS, HANG_PAUSE_NS, "the storage does not respond");
    }
}
