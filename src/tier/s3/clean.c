/* SPDX-License-Identifier: Apache-2.0
 *
 * The enforcement of max_remote_size for all processes that store under one prefix.  A process that
 * has stored objects runs the thread "kvt-s3-clean".  The thread acquires the lease, lists all
 * objects, and deletes the oldest objects.
 *
 * A bucket's own lifecycle rules cannot replace the thread: the rules delete objects by age, and
 * max_remote_size promises a number of bytes.  A full bucket with a quota refuses new chunks. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "conf/conf.h"
#include "tier/s3/clean.h"

#define GIB 1073741824.0
#define SHORT_INTERVAL_NS (10 * KVT__NS_PER_S)
#define LONG_INTERVAL_NS (60 * KVT__NS_PER_S)
#define FAILURE_DELAY_NS (300 * KVT__NS_PER_S) /* delay after a failed round */
/* Minimum time between warnings, and delay after -EACCES. */
#define WARN_INTERVAL_NS (3600 * KVT__NS_PER_S)
#define LEASE_CHECK_NS (60 * KVT__NS_PER_S) /* time between checks of the lease during a listing */
#define LIMIT_SHARES 20  /* a twentieth of the limit */
#define MAX_VICTIMS 131072 /* names of these objects need about 20 MiB */
/* Limit for the size of an object: the sum of MAX_VICTIMS sizes is at most 2^63. */
#define MAX_OBJECT_BYTES ((uint64_t)1 << 46)

/* -------------------------------------------------------------------------- a round */

struct round {
    struct s3_tier *t;
    struct s3_lease lease;
    struct s3_oldest oldest;
    bool choosing;
    int err; /* -ENOMEM from kvt__s3_oldest_add() */
    uint64_t total;
    uint64_t n_deleted, deleted_bytes, n_failed;
    char why[256]; /* reason for the first object that was not deleted */
};

static void
on_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    struct round *r = ctx;
    char key[KVT__KEY_TEXT_MAX + 1];
    bool opaque;

    if (kvt__s3_key_from_name(listed->key, key, sizeof key, &opaque))
        return;
    uint64_t bytes = listed->bytes < MAX_OBJECT_BYTES ? listed->bytes : MAX_OBJECT_BYTES;
    if (__builtin_add_overflow(r->total, bytes, &r->total))
        r->total = UINT64_MAX;
    if (r->choosing && !r->err)
        r->err = kvt__s3_oldest_add(&r->oldest, listed->key, bytes, listed->modified_ns);
}

static int
count_all(struct round *r)
{
    struct s3_walk *w = kvt__s3_walk_begin(r->t, "", on_listed, r);
    int rc = w ? 1 : -ENOMEM;

    r->total = 0;
    while (rc > 0) {
        bool is_old = kvt__now_ns() - r->lease.checked_ns > LEASE_CHECK_NS;
        int err = is_old ? kvt__s3_lease_renew(&r->lease) : 0;

        rc = err ? err : kvt__s3_walk_page(w);
        if (rc >= 0 && r->err)
            rc = r->err;
    }
    kvt__s3_walk_end(w);
    r->t->cleaner.last_total = r->total;
    return rc;
}

/* Delete the first of n objects, while the lease is held.  Return the number of tried objects, or
 * -errno with a sentence. */
static int
delete_some(struct round *r, struct s3_victim *victims, size_t n)
{
    struct kvt__counters *counters = r->t->counters;
    char why[sizeof r->why];
    int err = kvt__s3_lease_renew(&r->lease);

    if (err)
        return err;
    int n_tried = kvt__s3_delete(r->t, victims, n, why);
    for (size_t i = 0; i < (n_tried < 0 ? n : (size_t)n_tried); i++) {
        r->n_failed += victims[i].failed;
        if (victims[i].failed && counters)
            kvt__count(counters, KVT__N_remove_failed, 1);
        if (victims[i].failed)
            continue;
        r->n_deleted++;
        r->deleted_bytes += victims[i].bytes;
        if (counters) {
            kvt__count(counters, KVT__N_evicted_chunks, 1);
            kvt__count(counters, KVT__N_evicted_bytes, victims[i].bytes);
        }
    }
    if (!*r->why)
        snprintf(r->why, sizeof r->why, "%s", why);
    return n_tried;
}

/* Return the number of objects at the start of victims that add up to `bytes`, limited to the
 * maximum of one request. */
static size_t
count_victims(const struct s3_victim *victims, size_t n, uint64_t bytes)
{
    uint64_t sum = 0;
    size_t i = 0;

    while (i < n && i < KVT__S3_MAX_DELETES && sum < bytes)
        sum += victims[i++].bytes;
    return i;
}

/* Delete the oldest objects until the sum is a twentieth below the limit.  If the store does not
 * delete some objects, younger objects are deleted instead, until KVT__S3_MAX_DELETES objects have
 * failed.  Return 0; 1: not enough objects were chosen; -errno with a sentence. */
static int
delete_oldest(struct round *r)
{
    uint64_t limit = r->t->cleaner.limit, excess = r->total - (limit - limit / LIMIT_SHARES);
    const struct s3_oldest *o = &r->oldest;
    size_t at = 0;

    kvt__s3_oldest_sort(&r->oldest);
    while (at < o->n && r->deleted_bytes < excess && r->n_failed < KVT__S3_MAX_DELETES) {
        size_t n = count_victims(o->victims + at, o->n - at, excess - r->deleted_bytes);
        int n_tried = delete_some(r, o->victims + at, n);

        if (n_tried < 0)
            return n_tried;
        at += (size_t)n_tried;
    }
    if (r->n_failed && !r->n_deleted)
        return kvt__fail(strstr(r->why, "AccessDenied") ? EACCES : EIO,
                         "none of %llu chunks could be removed: %s.",
                         (unsigned long long)r->n_failed, r->why);
    return r->deleted_bytes < excess && at == o->max;
}

/* Count all objects and delete the excess, with the lease held.  The listing chooses the oldest
 * objects only if the last sum was above three quarters of the limit; otherwise a second listing
 * chooses, if the limit is exceeded. */
static int
clean(struct round *r)
{
    uint64_t limit = r->t->cleaner.limit;

    r->choosing = r->t->cleaner.last_total > limit - limit / 4;
    int rc = count_all(r);
    if (!rc && r->total > limit && !r->choosing) {
        r->choosing = true;
        rc = count_all(r);
    }
    if (!rc && r->total > limit)
        rc = delete_oldest(r);
    return rc;
}

/* Log a warning, at most once an hour. */
static void
warn(struct s3_tier *t, const char *what, const char *why)
{
    struct s3_cleaner *c = &t->cleaner;
    const struct kvt__s3_address *a = kvt__s3_address_of(t);
    int64_t now = kvt__now_ns();

    if (c->warned_ns && now - c->warned_ns < WARN_INTERVAL_NS)
        return;
    c->warned_ns = now;
    kvt__log(KVT_LOG_WARN, "S3: max_remote_size is not enforced at %s%s: %s: %s", a->host,
             a->object_path, what, why);
}

static void
report(const struct round *r, int rc)
{
    char what[96];

    if (r->n_deleted)
        kvt__log(KVT_LOG_DEBUG, "S3: %.3f GiB exceed max_remote_size (%.3f): the "
                 "oldest %llu chunks (%.3f GiB) were removed.", (double)r->total / GIB,
                 (double)r->t->cleaner.limit / GIB, (unsigned long long)r->n_deleted,
                 (double)r->deleted_bytes / GIB);
    if (rc < 0 || !r->n_failed)
        return;
    snprintf(what, sizeof what, "%llu of %llu chunks could not be removed",
             (unsigned long long)r->n_failed, (unsigned long long)(r->n_failed + r->n_deleted));
    warn(r->t, what, r->why);
}

int
kvt__s3_enforce_limit(struct s3_tier *t)
{
    struct round r = { .t = t, .oldest = { .max = t->cleaner.max_victims } };
    char why[512];
    int rc = kvt__s3_lease_acquire(t, &r.lease);

    if (!rc) {
        rc = clean(&r);
        snprintf(why, sizeof why, "%s", kvt__why());
        /* -EBUSY: the lease is lost.  -ECANCELED: the tier closes, and the lease expires. */
        if (rc != -EBUSY && rc != -ECANCELED)
            kvt__s3_lease_release(&r.lease);
        report(&r, rc);
        kvt__s3_oldest_free(&r.oldest);
        kvt__set_why(why);
    }
    return rc;
}

/* ------------------------------------------------------------------------ the thread */

/* Return a time in ns to 1.25 * ns from now.  The random part separates processes that started
 * together. */
static int64_t
with_jitter(int64_t ns)
{
    uint32_t bits = (uint32_t)kvt__now_ns();
    ssize_t n = getrandom(&bits, sizeof bits, GRND_NONBLOCK);

    (void)n; /* without random bits, the time is random enough */
    return kvt__now_ns() + ns + ns / 4 * (int64_t)(bits % 1024) / 1024;
}

static void
plan(struct s3_cleaner *c, int64_t much_ns, int64_t little_ns)
{
    c->due_ns[0] = with_jitter(much_ns);
    c->due_ns[1] = with_jitter(little_ns);
}

/* Wait until the next round is due; the caller holds the lock.  Return false if the tier closes. */
static bool
wait_locked(struct s3_cleaner *c)
{
    while (!c->stop) {
        uint64_t wrote = atomic_load(&c->stored_bytes);
        int64_t due = c->due_ns[wrote < c->limit / LIMIT_SHARES];

        if (wrote && kvt__now_ns() >= due)
            return true;
        struct timespec at = kvt__timespec(due);
        if (wrote)
            pthread_cond_timedwait(&c->changed, &c->lock, &at);
        else
            pthread_cond_wait(&c->changed, &c->lock);
    }
    return false;
}

/* Plan the next round from the result of this round.  Return false if further rounds are
 * useless. */
static bool
note_round(struct s3_tier *t, int rc, uint64_t wrote)
{
    struct s3_cleaner *c = &t->cleaner;
    bool failed = rc < 0 && rc != -EBUSY && rc != -ECANCELED;
    int64_t later_ns = rc == -EACCES ? WARN_INTERVAL_NS : FAILURE_DELAY_NS;

    if (failed)
        warn(t, "nothing more is evicted", kvt__why());
    if (rc)
        atomic_fetch_add(&c->stored_bytes, rc > 0 ? c->limit : wrote);
    plan(c, failed ? later_ns : c->short_interval_ns, failed ? later_ns : c->long_interval_ns);
    return rc != -EOPNOTSUPP;
}

static void *
cleaner_main(void *arg)
{
    struct s3_tier *t = arg;
    struct s3_cleaner *c = &t->cleaner;
    bool useful = true;

    pthread_mutex_lock(&c->lock);
    plan(c, c->short_interval_ns, c->long_interval_ns);
    while (useful && wait_locked(c)) {
        pthread_mutex_unlock(&c->lock);
        uint64_t wrote = atomic_exchange(&c->stored_bytes, 0);

        useful = note_round(t, kvt__s3_enforce_limit(t), wrote);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Wake the thread only if the new bytes change the time of the next round. */
void
kvt__s3_note_stored(struct s3_tier *t, uint64_t bytes)
{
    struct s3_cleaner *c = &t->cleaner;
    uint64_t much = c->limit / LIMIT_SHARES;

    if (!c->limit)
        return;
    uint64_t before = atomic_fetch_add(&c->stored_bytes, bytes);
    if (before && (before >= much || bytes < much - before))
        return;
    pthread_mutex_lock(&c->lock);
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* -------------------------------------------------------------------------- opening */

int
kvt__s3_cleaner_open(struct s3_tier *t, const struct kvt_config *config)
{
    struct s3_cleaner *c = &t->cleaner;

    c->limit = (uint64_t)(config->max_remote_size * GIB);
    if (!c->limit)
        return 0;
    c->short_interval_ns = SHORT_INTERVAL_NS;
    c->long_interval_ns = LONG_INTERVAL_NS;
    c->max_victims = MAX_VICTIMS;
    pthread_mutex_init(&c->lock, NULL);
    kvt__cond_init(&c->changed);
    int err = kvt__thread_start(&c->thread, "kvt-s3-clean", cleaner_main, t);
    c->has_thread = !err;
    return err;
}

void
kvt__s3_cleaner_stop(struct s3_tier *t)
{
    struct s3_cleaner *c = &t->cleaner;

    if (!c->limit)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void
kvt__s3_cleaner_close(struct s3_tier *t)
{
    struct s3_cleaner *c = &t->cleaner;

    if (!c->limit)
        return;
    kvt__s3_cleaner_stop(t);
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
}
