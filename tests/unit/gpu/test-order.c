/* SPDX-License-Identifier: Apache-2.0
 *
 * Order of a GPU's copies: a copy runs after the earlier work and before the later work on the
 * caller's stream; sums wait for no stream of a caller; threads copy in parallel.  The driver is
 * real, or a fake whose streams run in parallel unless events order the streams. */
#include "unit/gpu/device-test.h"

#include "base/crc32c.h"

/* -------------------------------------------------------------------- order */

/* KV that a blocked stream will fill, and a copy between this KV and a chunk. */
struct late {
    struct paged p;
    struct twin t;
    uint64_t bytes;
    unsigned char *chunk; /* pinned host memory */
    struct gate gate;
    struct pending_copy a;
    struct kvt__gpu_copy *list[1];
};

static const int32_t late_blocks[] = { 8, 1, 3, 5, 7 };

/* The chunk is larger than the staging buffer, so that parts are reused behind the gate. */
static void
late_make(struct late *l, const char *order)
{
    *l = (struct late){ .p = strided(2, 2, 2, 256, 64), .gate = GATE };
    lay_out(&l->p, order, 0, false);
    twin_make(&l->t, &l->p);
    l->bytes = kvt__chunk_bytes(&l->p.view, 320);
    l->chunk = rig_pinned(l->bytes);
    pending_copy_init(&l->a, &l->t.view, late_blocks, 320, false, l->chunk);
    l->list[0] = &l->a.copy;
}

static void
late_end(struct late *l)
{
    rig_wait(stream);
    rig_unpin(l->chunk);
    twin_end(&l->t, &l->p);
}

static void
a_gather_is_between_the_callers_writes(void **state)
{
    struct late l;

    (void)state;
    late_make(&l, "lkbht");
    rig_call(stream, gate_pass, &l.gate);
    rig_fill(stream, l.t.memory, 17, l.p.bytes);
    assert_int_equal(kvt__gpu_gather(gpu, stream, l.list, 1), 0); /* does not wait */
    rig_fill(stream, l.t.memory, 18, l.p.bytes);
    assert_int_equal(l.a.n_done, 0);
    gate_open(&l.gate);
    assert_int_equal(pending_copy_wait(&l.a), 0);
    assert_true(all_are(l.chunk, l.bytes, 17));
    late_end(&l);
}

/* Expect that all bytes of the chunk's blocks are `value`. */
static void
expect_scattered(struct late *l, int value)
{
    unsigned char *back = malloc(l->bytes);

    rig_wait(stream);
    rig_get(l->p.memory, l->t.memory, l->p.bytes);
    kvt__gather(&l->p.view, late_blocks, 320, back, NULL);
    assert_true(all_are(back, l->bytes, value));
    free(back);
}

static void
a_scatter_is_after_the_callers_write(void **state)
{
    struct late l;

    (void)state;
    late_make(&l, "lbkth");
    memset(l.chunk, 19, l.bytes);
    rig_call(stream, gate_pass, &l.gate);
    rig_fill(stream, l.t.memory, 17, l.p.bytes);
    assert_int_equal(kvt__gpu_after(gpu, stream), 0);
    assert_int_equal(kvt__gpu_scatter(gpu, l.list, 1), 0);
    assert_int_equal(l.a.n_done, 0);
    gate_open(&l.gate);
    assert_int_equal(pending_copy_wait(&l.a), 0);
    expect_scattered(&l, 19);
    late_end(&l);
}

/* Let one call of the driver fail after another.  If the gather succeeds, the caller's later write
 * comes after the gather. */
static void
a_failed_order_of_the_caller_is_replaced_by_a_wait(void **state)
{
    (void)state;
    if (!rig.fake)
        skip();
    for (int after = 0; after < 40; after++) {
        struct late l;

        late_make(&l, "lkbht");
        rig_fill(stream, l.t.memory, 17, l.p.bytes);
        rig.fake->fail_on(rig.kind == KVT__GPU_CUDA ? "cuStreamWaitEvent" : "hipStreamWaitEvent",
                          after, 719, true);
        int err = kvt__gpu_gather(gpu, stream, l.list, 1);
        rig.fake->fail_on(NULL, 0, 0, false);
        rig_fill(stream, l.t.memory, 18, l.p.bytes);
        if (!err && !pending_copy_wait(&l.a))
            assert_true(all_are(l.chunk, l.bytes, 17));
        late_end(&l);
    }
}

/* Copies on another stream give a scatter time to run too early. */
static void
gather_beside(struct late *l)
{
    unsigned char *chunk = rig_pinned(l->bytes);
    void *beside = rig_stream();
    struct pending_copy a;
    struct kvt__gpu_copy *list[] = { &a.copy };

    for (int i = 0; i < 5; i++) {
        pending_copy_init(&a, &l->t.view, late_blocks, 320, false, chunk);
        assert_int_equal(kvt__gpu_gather(gpu, beside, list, 1), 0);
        assert_int_equal(pending_copy_wait(&a), 0);
    }
    rig_end_stream(beside);
    rig_unpin(chunk);
}

static void
an_error_of_a_later_order_keeps_the_earlier_order(void **state)
{
    struct late l;

    (void)state;
    if (!rig.fake)
        skip();
    late_make(&l, "lkbth");
    memset(l.chunk, 19, l.bytes);
    rig_call(stream, gate_pass, &l.gate);
    rig_fill(stream, l.t.memory, 17, l.p.bytes);
    assert_int_equal(kvt__gpu_after(gpu, stream), 0);
    rig.fake->fail_on(rig.kind == KVT__GPU_CUDA ? "cuEventRecord" : "hipEventRecord", 0, 2, true);
    assert_int_equal(kvt__gpu_after(gpu, stream), -ENOMEM);
    assert_int_equal(kvt__gpu_scatter(gpu, l.list, 1), 0);
    gather_beside(&l);
    gate_open(&l.gate);
    assert_int_equal(pending_copy_wait(&l.a), 0);
    expect_scattered(&l, 19);
    late_end(&l);
}

/* The verification of a read does not wait for computations on the caller's stream. */
static void
sums_wait_for_no_stream(void **state)
{
    unsigned char *at, ones[100];
    struct gate gate = GATE;
    uint32_t crc;

    (void)state;
    memset(ones, 1, sizeof ones);
    assert_int_equal(kvt__gpu_alloc(gpu, sizeof ones, &at), 0);
    rig_put(at, ones, sizeof ones);
    rig_call(stream, gate_pass, &gate);
    assert_int_equal(kvt__gpu_after(gpu, stream), 0);
    assert_int_equal(kvt__gpu_sum(gpu, at, sizeof ones, &crc), 0);
    gate_open(&gate);
    rig_wait(stream);
    assert_int_equal(crc, kvt__crc32c(0, ones, sizeof ones));
    kvt__gpu_free(gpu, at);
}

static void
closing_waits_for_copies_in_flight(void **state)
{
    struct late l;

    (void)state;
    late_make(&l, "lkbht");
    assert_int_equal(kvt__gpu_gather(gpu, stream, l.list, 1), 0);
    kvt__gpu_close(gpu);
    assert_int_equal(l.a.n_done, 1);
    assert_int_equal(l.a.err, 0);
    late_end(&l);
    open_with(1);
}

/* ------------------------------------------------------------------ threads */

struct worker {
    pthread_t thread;
    const struct kvt__view *view; /* of device memory */
    int32_t block;
    int n_bad;
};

static void
copy_there_and_back(struct worker *w, unsigned char *chunk, unsigned char *back, int i)
{
    struct kvt__gpu_copy *list[1];
    const int32_t blocks[] = { w->block, w->block + 1 };
    uint64_t bytes = kvt__chunk_bytes(w->view, 100);
    struct pending_copy in, out;

    memset(chunk, i + w->block, bytes);
    pending_copy_init(&in, w->view, blocks, 100, false, chunk);
    list[0] = &in.copy;
    w->n_bad += kvt__gpu_scatter(gpu, list, 1) != 0 || pending_copy_wait(&in) != 0;
    pending_copy_init(&out, w->view, blocks, 100, false, back);
    list[0] = &out.copy;
    w->n_bad += kvt__gpu_gather(gpu, NULL, list, 1) != 0 || pending_copy_wait(&out) != 0;
    w->n_bad += in.crc != out.crc || memcmp(chunk, back, bytes) != 0;
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    uint64_t bytes = kvt__chunk_bytes(w->view, 100);
    unsigned char *chunk = rig_pinned(bytes), *back = rig_pinned(bytes);

    for (int i = 0; i < 10; i++)
        copy_there_and_back(w, chunk, back, i);
    rig_unpin(chunk);
    rig_unpin(back);
    return NULL;
}

static void
threads_copy_side_by_side(void **state)
{
    enum { N = 4 };
    struct paged p = strided(2, 2, 2, 64, 64);
    struct worker workers[N];
    struct twin t;

    (void)state;
    lay_out(&p, "lkbht", 0, false);
    twin_make(&t, &p);
    for (int i = 0; i < N; i++) {
        workers[i] = (struct worker){ .view = &t.view, .block = 2 * i };
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].n_bad, 0);
    }
    twin_end(&t, &p);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_gather_is_between_the_callers_writes),
        TEST(a_scatter_is_after_the_callers_write),
        TEST(a_failed_order_of_the_caller_is_replaced_by_a_wait),
        TEST(an_error_of_a_later_order_keeps_the_earlier_order),
        TEST(sums_wait_for_no_stream),
        TEST(closing_waits_for_copies_in_flight),
        TEST(threads_copy_side_by_side),
    };

    return run_both_ways(argc, argv, tests, sizeof tests / sizeof *tests);
}
