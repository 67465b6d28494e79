/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of all kinds at the same time, over storage that fails: each request ends once, verified
 * bytes are right, the index counts the bytes on disk exactly, and every slot is released. */
#include <pthread.h>

#include "memory-test.h"
#include "own-shm.h"

#define N_NUMBERS 24u /* chunks: twice as many as fit in the storage */
#define N_AT_ONCE 32  /* slots of requests */
#define N_KEPT 3      /* chunks in host memory */
#define N_THREADS 4
#define N_ROUNDS 1000

static struct memory m;
static struct kvt__exec *exec;
static sem_t room;
static atomic_uint n_wrong, n_twice;

struct one {
    struct kvt__store_req req; /* first */
    unsigned number;
    atomic_bool ended;
};

static bool
is_right(const struct one *one)
{
    for (size_t i = 0; i < BYTES; i++)
        if (one->req.slot.payload[i] != byte_at(one->number, i))
            return false;
    return true;
}

static void
on_end(struct kvt__store_req *req)
{
    struct one *one = (struct one *)req;

    if (atomic_exchange(&one->ended, true))
        n_twice++;
    if (req->op == KVT__TIER_GET && !req->error.code && req->verified && !is_right(one))
        n_wrong++;
    if (req->error.code && req->error.code != -EEXIST && !req->error.why[0])
        n_wrong++;
    if (req->slot.payload)
        kvt__pool_release(m.pool, &req->slot);
    free(one);
    sem_post(&room);
}

/* Lease and unlease a chunk, or call another function that is no request. */
static void
run_other_call(const struct one *one, unsigned kind)
{
    struct kvt__chunk_key key = kvt__request_key(&one->req);
    enum kvt__where where = (enum kvt__where)(one->number % (KVT__READ_FIRST + 1));
    struct kvt__lease lease;

    if (kind == 0)
        (void)kvt__store_evict_memory(m.e.store, 1);
    else if (kind == 1)
        (void)kvt__store_touch(m.e.store, &key, 0);
    else if (kind == 2)
        kvt__store_enter_unread(m.e.store, &one->req);
    else if (kvt__store_lease(m.e.store, &key, where, kvt__now_ns() + 60 * KVT__NS_PER_S,
                              &lease, &(int64_t){ INT64_MAX }) >= 0)
        kvt__store_unlease(m.e.store, &m.e.space, &lease);
}

/* Fill in the slot of a request.  kind: 4 to 6 PUT, 7 PROBE, 8 a GET ahead of any load, then
 * GET. */
static void
prepare(struct one *one, unsigned kind)
{
    struct kvt__store_req *req = &one->req;

    req->op = kind < 7 ? KVT__TIER_PUT : kind == 7 ? KVT__TIER_PROBE : KVT__TIER_GET;
    req->is_prefetch = kind == 8;
    if (kind == 7 || (kind > 8 && kvt__store_acquire_chunk(m.e.store, req)))
        return;
    if (!kvt__pool_acquire(m.pool, BYTES, 0, &req->slot))
        abort();
    fill(req->slot.payload, kind < 7 ? one->number : one->number + 1);
    req->crc = kvt__crc32c(0, req->slot.payload, BYTES);
}

static void *
submit_many(void *arg)
{
    unsigned seed = *(unsigned *)arg;

    for (unsigned i = 0; i < N_ROUNDS; i++) {
        struct one *one = calloc(1, sizeof *one);
        unsigned kind = (seed = seed * 1103515245 + 12345) / 65536 % 16;

        if (!one)
            abort();
        one->number = (seed = seed * 1103515245 + 12345) / 65536 % N_NUMBERS;
        one->req = (struct kvt__store_req){
            .space = &m.e.space, .id = id_of(one->number), .hash.bits = { one->number },
            .tokens = 256, .is_full = true, .shape = shape_of_all, .bytes = BYTES,
            .on_done = on_end };
        if (kind < 4) {
            run_other_call(one, kind);
            free(one);
            continue;
        }
        sem_wait(&room);
        prepare(one, kind);
        kvt__store_submit(m.e.store, &one->req);
    }
    return NULL;
}

/* Run all threads over a store with these settings, and return when all requests have ended. */
static void
run_many(const char *faults, const char *const *more, bool prefetched_only)
{
    pthread_t threads[N_THREADS];
    unsigned seeds[N_THREADS];
    char url[600];

    env_init(&m.e);
    assert_int_equal(kvt__exec_open(3, &exec), 0);
    snprintf(url, sizeof url, "remote_url=%sfs://%s", faults, m.e.dir.path);
    m.e.store = open_store(&m.e, url, exec, more);
    open_memory_pool(&m);
    struct kvt__memory_params params = worker_memory(&m, NULL);
    params.limit_bytes = N_KEPT * kvt__pool_footprint(m.pool, BYTES);
    params.prefetched_only = prefetched_only;
    add_memory(&m.e, params);
    n_wrong = n_twice = 0;
    assert_int_equal(sem_init(&room, 0, N_AT_ONCE), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        seeds[i] = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, &seeds[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < N_AT_ONCE; i++)
        sem_wait(&room);
    kvt__store_stop(m.e.store);
    kvt__exec_close(exec);
    sem_destroy(&room);
}

static void
expect_exact_totals(void)
{
    const struct kvt__level *storage = &m.e.store->levels[m.e.store->n_levels - 1];
    struct kvt__table_totals totals;

    assert_int_equal(n_wrong, 0);
    assert_int_equal(n_twice, 0);
    kvt__table_get_totals(storage->index, &totals);
    assert_int_equal(totals.used_bytes, disk_bytes(&m.e));
    assert_true(totals.used_bytes <= totals.limit_bytes);
    assert_true(m.e.counters.value[KVT__N_evicted_chunks] > 0);
    env_fini(&m.e);
    assert_int_equal(kvt__pool_used(m.pool), 0);
    kvt__pool_close(m.pool);
}

static void
requests_over_storage_that_fails(void **state)
{
    (void)state;
    run_many("fault://read_error=0.05,write_error=0.05,bit_flip=0.1/", small, false);
    expect_exact_totals();
}

static void
requests_over_storage_of_other_hosts(void **state)
{
    (void)state;
    run_many("fault://shared=1,bit_flip=0.1,probe_error=0.1/", small, false);
    expect_exact_totals();
}

static void
requests_with_memory_for_chunks_that_are_read_ahead(void **state)
{
    (void)state;
    run_many("fault://bit_flip=0.1,short_read=0.1/", small, true);
    expect_exact_totals();
}

static void
requests_with_shared_host_memory(void **state)
{
    static const char *const more[] = { "max_remote_size=0.0001", "shared_cpu=true",
                                        "max_shared_cpu_size=0.0625", NULL };

    (void)state;
    run_many("fault://read_error=0.05,write_error=0.05,bit_flip=0.1/", more, true);
    expect_exact_totals();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_over_storage_that_fails),
        cmocka_unit_test(requests_over_storage_of_other_hosts),
        cmocka_unit_test(requests_with_memory_for_chunks_that_are_read_ahead),
        cmocka_unit_test(requests_with_shared_host_memory),
    };

    (void)own_shm(NULL); /* workers of other programs would remove the directories */
    return cmocka_run_group_tests_name("many requests", tests, NULL, NULL);
}
