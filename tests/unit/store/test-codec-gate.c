/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate of the codecs: at most codec_threads threads are in a codec, and loads come first. */
#include <sched.h>

#include "encoded-test.h"
#include "wrapped-frame.h"

static atomic_uint n_inside, max_inside; /* threads in a codec */
static atomic_uint n_waits;              /* calls of pthread_cond_wait() */
static atomic_bool holds_first; /* the first encoder posts first_inside and waits for go_on */
static sem_t first_inside, go_on;
static char order[8]; /* a letter for each run of a codec: e, d */
static atomic_uint n_order;

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

int
__wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    atomic_fetch_add(&n_waits, 1);
    return __real_pthread_cond_wait(cond, lock);
}

static void
enter_codec(char letter)
{
    unsigned n = atomic_fetch_add(&n_inside, 1) + 1;

    if (n > atomic_load(&max_inside))
        atomic_store(&max_inside, n);
    n = atomic_fetch_add(&n_order, 1);
    if (n < sizeof order)
        order[n] = letter;
    for (int i = 0; i < 20; i++) /* let other threads come in */
        sched_yield();
}

size_t
__wrap_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                         const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                         unsigned char *out)
{
    enter_codec('e');
    if (atomic_exchange(&holds_first, false)) {
        sem_post(&first_inside);
        sem_wait(&go_on);
    }
    size_t n = __real_kvt__frame_encode(serde, shape, id, chunk, crc, out);
    atomic_fetch_sub(&n_inside, 1);
    return n;
}

bool
__wrap_kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk)
{
    enter_codec('d');
    bool is_decoded = __real_kvt__frame_decode(frame, chunk);
    atomic_fetch_sub(&n_inside, 1);
    return is_decoded;
}

static void
many_threads_encode_and_decode_through_a_narrow_gate(void **state)
{
    static const char *const settings[] = { ROOMY, "remote_serde=lossless", "codec_threads=1",
                                            NULL };
    struct env *e = *state;
    struct request r[64];

    reopen(e, settings);
    atomic_store(&max_inside, 0);
    for (unsigned i = 0; i < 32; i++) {
        init_kv(&r[i], e, KVT__TIER_PUT, i);
        fill_kv(r[i].req.slot.payload, i);
        r[i].req.crc = kvt__crc32c(0, r[i].req.slot.payload, BYTES);
    }
    run_at_once(e, settings, 8, r, 32);
    for (unsigned i = 0; i < 32; i++) {
        assert_int_equal(r[i].req.error.code, 0);
        free(r[i].memory);
        init_kv(&r[i], e, KVT__TIER_GET, i);
        init_kv(&r[i + 32], e, KVT__TIER_PUT, i + 32);
        fill_kv(r[i + 32].req.slot.payload, i + 32);
        r[i + 32].req.crc = kvt__crc32c(0, r[i + 32].req.slot.payload, BYTES);
    }
    run_at_once(e, settings, 8, r, 64);
    for (unsigned i = 0; i < 32; i++) {
        unsigned char expected[BYTES];

        fill_kv(expected, i);
        assert_int_equal(r[i].req.error.code, 0);
        assert_memory_equal(r[i].req.slot.payload, expected, BYTES);
        assert_int_equal(r[i + 32].req.error.code, 0);
    }
    for (unsigned i = 0; i < 64; i++)
        free(r[i].memory);
    assert_int_equal(max_inside, 1);
}

static void *
run_request(void *request)
{
    struct request *r = request;

    kvt__store_run((struct kvt__store *)r->req.store, &r->req);
    return NULL;
}

/* A PUT is in the codec, and other PUTs and then two GETs wait. */
static void
loads_pass_the_gate_before_stores_that_wait_longer(void **state)
{
    enum { N_PUTS = 8, N = N_PUTS + 2 };
    struct env *e = *state;
    struct request r[N];
    pthread_t threads[N];

    reopen(e, (const char *const[]){ ROOMY, "remote_serde=lossless", "codec_threads=1", NULL });
    for (unsigned i = N_PUTS; i < N; i++)
        assert_int_equal(put_kv(e, i), 0);
    sem_init(&first_inside, 0, 0);
    sem_init(&go_on, 0, 0);
    atomic_store(&n_order, 0);
    atomic_store(&n_waits, 0);
    atomic_store(&holds_first, true);
    for (unsigned i = 0; i < N; i++) {
        init_kv(&r[i], e, i < N_PUTS ? KVT__TIER_PUT : KVT__TIER_GET, i);
        if (i < N_PUTS)
            fill_kv(r[i].req.slot.payload, i);
        r[i].req.crc = kvt__crc32c(0, r[i].req.slot.payload, BYTES);
        r[i].req.store = e->store;
        assert_int_equal(pthread_create(&threads[i], NULL, run_request, &r[i]), 0);
        if (i == 0)
            sem_wait(&first_inside);
        while (atomic_load(&n_waits) < i)
            sched_yield();
    }
    sem_post(&go_on);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(r[i].req.error.code, 0);
        free(r[i].memory);
    }
    assert_memory_equal(order, "eddeeeee", sizeof order);
    sem_destroy(&first_inside);
    sem_destroy(&go_on);
}

static void
a_process_with_one_cpu_has_one_codec_thread(void **state)
{
    struct env *e = *state;
    cpu_set_t all, one;

    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    reopen(e, lossless);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(e->store->codec_threads, 1);
    reopen(e, (const char *const[]){ ROOMY, "remote_serde=lossless", "codec_threads=3", NULL });
    assert_int_equal(e->store->codec_threads, 3);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_threads_encode_and_decode_through_a_narrow_gate),
        TEST(loads_pass_the_gate_before_stores_that_wait_longer),
        TEST(a_process_with_one_cpu_has_one_codec_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
