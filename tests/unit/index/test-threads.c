/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of two handles, two mappings of one file, hammering few identities
 * that share their places.  Threads count what is wrong, the test asserts. */
#include "index-test.h"

#include <pthread.h>
#include <sched.h>

#define N_THREADS 4
#define N_IDS 12
#define N_OPS 60000
#define N_ROUNDS 6000
#define LIMIT 1200
#define PATIENCE_NS (60 * KVT__NS_PER_S)
#define RACE_NS (30 * KVT__NS_PER_S)

static struct {
    int claimed[N_IDS]; /* 1 from a claim until it or its entry is gone */
    int twice;          /* a claim while another stands */
    int torn;           /* fields that do not belong together */
    int broken;         /* a leased entry that was not found */
    int over;           /* budget exceeded */
    int wrong;          /* an error that cannot be */
} seen;

static void
note(int *what)
{
    __atomic_fetch_add(what, 1, __ATOMIC_RELAXED);
}

static struct kvt__id
shared_id(unsigned n)
{
    return id_in(n, 3, 5);
}

struct hammer {
    struct kvt__index *ix;
    uint64_t random;
    bool is_first;
};

static uint64_t
next_random(struct hammer *h)
{
    return h->random = mix(h->random);
}

static void
gone(unsigned n)
{
    if (__atomic_sub_fetch(&seen.claimed[n], 1, __ATOMIC_SEQ_CST))
        note(&seen.twice);
}

static void
try_put(struct hammer *h, unsigned n, bool publish)
{
    struct kvt__id id = shared_id(n);
    struct kvt__index_claim c;
    int rc = claim(h->ix, &id, &c);

    if (rc) {
        if (rc != -EEXIST && rc != -ENOSPC)
            note(&seen.wrong);
        return;
    }
    if (__atomic_fetch_add(&seen.claimed[n], 1, __ATOMIC_SEQ_CST))
        note(&seen.twice);
    if (publish) {
        kvt__index_publish(h->ix, &c);
    } else {
        gone(n);
        kvt__index_abort(h->ix, &c);
    }
}

static void
try_evict(struct hammer *h, unsigned n, bool remove)
{
    struct kvt__id id = shared_id(n);
    struct kvt__index_entry out;
    struct kvt__index_claim c;
    int rc = kvt__index_evict(h->ix, &id, false, &out, &c);

    if (rc) {
        if (rc != -EBUSY && rc != -ENOENT)
            note(&seen.wrong);
        return;
    }
    if (!entry_is_whole(&out) || !kvt__id_equal(&out.id, &id))
        note(&seen.torn);
    if (remove) {
        gone(n);
        kvt__index_removed(h->ix, &c);
    } else {
        kvt__index_restore(h->ix, &c);
    }
}

static void
try_lease(struct hammer *h, unsigned n)
{
    struct kvt__id id = shared_id(n);
    struct kvt__index_entry out;

    if (!kvt__index_lease(h->ix, &id, kvt__now_ns() + 600 * KVT__NS_PER_S, &out))
        return;
    for (int i = 0; i < 20; i++) {
        if (!entry_is_whole(&out) || !kvt__id_equal(&out.id, &id))
            note(&seen.torn);
        /* An eviction holds the entry until the eviction sees the lease; the evicting
         * thread may not run for seconds. */
        int64_t end = kvt__now_ns() + PATIENCE_NS;
        while (!kvt__index_find(h->ix, &id, &out)) {
            if (kvt__now_ns() >= end) {
                note(&seen.broken);
                return;
            }
            sched_yield();
        }
    }
    kvt__index_unlease(h->ix, &id);
}

static void
look_around(struct hammer *h)
{
    struct kvt__index_entry out[16];
    struct kvt__index_totals t;
    struct kvt__id id = shared_id(0);
    size_t n = kvt__index_first(h->ix, &id, out, 16);

    for (size_t i = 0; i < n; i++)
        if (!entry_is_whole(&out[i]))
            note(&seen.torn);
    kvt__index_get_totals(h->ix, &t);
    if (t.used_bytes > LIMIT)
        note(&seen.over);
    kvt__index_recover(h->ix);
}

static void *
hammer(void *arg)
{
    struct hammer *h = arg;

    for (int i = 0; i < N_OPS && !__atomic_load_n(&seen.broken, __ATOMIC_RELAXED); i++) {
        uint64_t r = next_random(h);
        unsigned n = (unsigned)(r >> 8) % N_IDS;
        switch (r & 7) {
        case 0:
        case 1:
        case 2:
            try_put(h, n, r >> 3 & 7);
            break;
        case 3:
        case 4:
            try_evict(h, n, r >> 3 & 7);
            break;
        case 5:
        case 6:
            try_lease(h, n);
            break;
        default:
            look_around(h);
        }
    }
    return NULL;
}

static void
hammered_table_is_consistent(void **state)
{
    struct kvt__index *ix[2];
    struct hammer hammers[N_THREADS];
    pthread_t threads[N_THREADS];

    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < 2; i++)
        ix[i] = open_with(*state, LIMIT, true);
    for (unsigned i = 0; i < N_THREADS; i++) {
        hammers[i] = (struct hammer){ .ix = ix[i % 2], .random = mix(i) };
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, &hammers[i]),
                         0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(seen.twice, 0);
    assert_int_equal(seen.torn, 0);
    assert_int_equal(seen.broken, 0);
    assert_int_equal(seen.over, 0);
    assert_int_equal(seen.wrong, 0);
    assert_true(adds_up(ix[0], 0));
    for (unsigned n = 0; n < N_IDS; n++) {
        struct kvt__id id = shared_id(n);
        assert_int_equal(copies(ix[1], &id), seen.claimed[n]);
    }
    kvt__index_close(ix[0]);
    kvt__index_close(ix[1]);
}

/* ---------------------------------------------------------------- the race */

static struct {
    pthread_barrier_t meeting;
    int64_t end_ns;    /* no new round from then on: a busy machine runs fewer */
    unsigned n_rounds; /* atomic; the first thread writes it before a meeting */
    unsigned won[N_ROUNDS];
} race;

/* Return true if there is another round, once all threads are here. */
static bool
meet_all(const struct hammer *h, unsigned round)
{
    if (h->is_first && kvt__now_ns() < race.end_ns && round < N_ROUNDS)
        __atomic_store_n(&race.n_rounds, round + 1, __ATOMIC_RELAXED);
    pthread_barrier_wait(&race.meeting);
    return round < __atomic_load_n(&race.n_rounds, __ATOMIC_RELAXED);
}

/* The winner of a round keeps the claim until all threads have ended the round. */
static void *
race_claims(void *arg)
{
    struct hammer *h = arg;
    struct kvt__index_claim c;
    bool won = false;

    for (unsigned i = 0; meet_all(h, i); i++) {
        struct kvt__id id = id_in(i, 3, 5);

        if (won)
            kvt__index_abort(h->ix, &c);
        int rc = claim(h->ix, &id, &c);
        won = !rc;
        if (won)
            __atomic_fetch_add(&race.won[i], 1, __ATOMIC_RELAXED);
        else if (rc != -EEXIST)
            note(&seen.wrong);
    }
    if (won)
        kvt__index_abort(h->ix, &c);
    return NULL;
}

static void
one_of_racing_claims_wins(void **state)
{
    struct kvt__index *ix[2] = { open_writer(*state), open_writer(*state) };
    struct hammer hammers[N_THREADS];
    pthread_t threads[N_THREADS];

    memset(&seen, 0, sizeof seen);
    race.end_ns = kvt__now_ns() + RACE_NS;
    pthread_barrier_init(&race.meeting, NULL, N_THREADS);
    for (unsigned i = 0; i < N_THREADS; i++) {
        hammers[i] = (struct hammer){ .ix = ix[i % 2], .is_first = !i };
        assert_int_equal(pthread_create(&threads[i], NULL, race_claims,
                                        &hammers[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&race.meeting);
    assert_int_equal(seen.wrong, 0);
    assert_true(race.n_rounds > 0);
    for (unsigned i = 0; i < race.n_rounds; i++)
        assert_int_equal(race.won[i], 1);
    assert_true(adds_up(ix[0], 0));
    kvt__index_close(ix[0]);
    kvt__index_close(ix[1]);
}

/* ------------------------------------------------------------ open and close */

/* The wait for the lock of the file has a deadline; a busy machine may reach the deadline. */
static bool
makes_space(struct kvt__index *ix)
{
    int space;

    do
        space = kvt__ix_space(ix, "m");
    while (space == -ETIMEDOUT);
    return space >= 0;
}

static void *
open_and_close(void *arg)
{
    for (int i = 0; i < 150; i++) {
        struct kvt__index *ix = open_with(arg, 0, true);
        struct kvt__id id = id_of((uint64_t)i);
        if (!kvt__index_is_shared(ix) || !makes_space(ix))
            note(&seen.wrong);
        put(ix, &id);
        claim(ix, &(struct kvt__id){ { (uint8_t)i } },
              &(struct kvt__index_claim){ 0 });
        kvt__index_close(ix);
    }
    return NULL;
}

static void
handles_come_and_go(void **state)
{
    pthread_t threads[N_THREADS];

    memset(&seen, 0, sizeof seen);
    for (unsigned i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close,
                                        *state), 0);
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(seen.wrong, 0);
    struct kvt__index *ix = open_writer(*state);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(hammered_table_is_consistent),
        INDEX_TEST(one_of_racing_claims_wins),
        INDEX_TEST(handles_come_and_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
