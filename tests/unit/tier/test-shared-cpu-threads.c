/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes with two handles and four threads each store, read and forget chunks of
 * three sizes in one full memory for two seconds. */
#include "shared-cpu-test.h"

enum { N = 64 /* units */, N_THREADS = 4, N_CHUNKS = 48 };

static const uint32_t sizes[] = { 1, 4, 9 };

struct work {
    struct handle *handle;
    uint64_t seed;
    unsigned n_puts, n_hits, n_bad;
};

static void *
work_main(void *arg)
{
    struct work *w = arg;
    int64_t end = kvt__now_ns() + 2 * KVT__NS_PER_S;

    for (uint64_t i = 0; kvt__now_ns() < end; i++) {
        uint64_t random = mix(w->seed << 32 | i), n = (random >> 8) % N_CHUNKS;

        if (!(random & 3))
            w->n_puts += !put(w->handle, n, sizes[n % 3]);
        int is = read_and_check(w->handle, n, sizes[n % 3]);
        w->n_hits += is == 1;
        w->n_bad += is < 0;
        if (!(random & 0xfc))
            forget(w->handle, n);
    }
    return NULL;
}

/* Return true if no thread read a wrong byte, and each stored and read. */
static bool
run_threads(const struct temp_dir *dir, uint64_t seed)
{
    struct handle h[2] = { open_memory(dir, N), open_memory(dir, N) };
    struct work work[N_THREADS];
    pthread_t threads[N_THREADS];
    bool good = true;

    for (unsigned i = 0; i < N_THREADS; i++) {
        work[i] = (struct work){ .handle = &h[i % 2], .seed = seed + i };
        if (pthread_create(&threads[i], NULL, work_main, &work[i]))
            abort();
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        good = good && !work[i].n_bad && work[i].n_puts && work[i].n_hits;
    }
    kvt__table_close(h[0].table);
    kvt__table_close(h[1].table);
    return good;
}

static void
threads_and_processes_store_read_and_evict(void **state)
{
    struct handle h = open_memory(*state, N);
    int status;

    pid_t pid = fork();
    if (!pid)
        _exit(run_threads(*state, 100) ? 0 : 1);
    assert_true(run_threads(*state, 200));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    recount(&h);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(threads_and_processes_store_read_and_evict),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
