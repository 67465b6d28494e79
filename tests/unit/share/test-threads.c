/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of two handles store, read, forget and clear in one full memory with chunks of
 * three sizes. */
#include "share-test.h"

enum { N_THREADS = 4, N_CHUNKS = 96, ROUNDS = 1500 };

static const uint64_t sizes[] = { 20000, 60000, 4096 };

struct work {
    struct kvt__share *share;
    uint64_t seed;
    unsigned n_hits, n_bad;
};

static void *
work_main(void *arg)
{
    struct work *w = arg;

    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t random = mix(w->seed * ROUNDS + i), n = (random >> 8) % N_CHUNKS;
        struct kvt__id id = id_of(n);

        if (!(random & 7))
            (void)put(w->share, n, sizes[n % 3]);
        int is = look(w->share, n, sizes[n % 3]);
        w->n_hits += is == 1;
        w->n_bad += is < 0;
        if (!(random & 0xff0000))
            kvt__share_forget(w->share, &id);
        if (i == ROUNDS / 2)
            (void)kvt__share_clear(w->share);
    }
    return NULL;
}

static void
threads_store_read_and_evict(void **state)
{
    struct kvt__share *s[2] = { share_open(*state, MIB), share_open(*state, MIB) };
    struct work work[N_THREADS];
    pthread_t threads[N_THREADS];
    unsigned n_hits = 0;

    for (unsigned i = 0; i < N_THREADS; i++) {
        work[i] = (struct work){ .share = s[i % 2], .seed = i };
        assert_int_equal(pthread_create(&threads[i], NULL, work_main, &work[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(work[i].n_bad, 0);
        n_hits += work[i].n_hits;
    }
    assert_true(n_hits > 0);
    recount(s[0]);
    kvt__share_close(s[0]);
    kvt__share_close(s[1]);
}

/* Clear without other handles gives memory back while threads store. */
static void
threads_store_beside_a_clear(void **state)
{
    struct kvt__share *s = share_open(*state, MIB);
    struct work work[2] = { { .share = s, .seed = 7 }, { .share = s, .seed = 8 } };
    pthread_t threads[2];

    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work_main, &work[i]), 0);
    for (unsigned i = 0; i < 50; i++)
        assert_true(kvt__share_clear(s) >= 0);
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(work[i].n_bad, 0);
    }
    recount(s);
    assert_int_equal(kvt__share_clear(s), 0);
    assert_int_equal(memory(s), 0);
    kvt__share_close(s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARE_TEST(threads_store_read_and_evict),
        SHARE_TEST(threads_store_beside_a_clear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
