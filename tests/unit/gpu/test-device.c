/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU's copies against the host's, over all layouts, by kernels and by batch copies, on
 * a fake driver whose streams wait for nothing that they are not told to. */
#include "unit/gpu/fake.h"

#include "base/crc32c.h"

static const char *way = "kernel";
static struct kvt__gpu *gpu;
static void *stream;

static int
open_gpu(void **state)
{
    (void)state;
    gpu = fake_open(way, 1); /* the least: many parts */
    stream = fake->stream();
    paged_alloc = fake->alloc;
    paged_free = fake->free;
    return 0;
}

static int
close_gpu(void **state)
{
    (void)state;
    kvt__gpu_close(gpu);
    fake->end_stream(stream);
    assert_int_equal(fake->n_misused, 0);
    assert_int_equal(fake->n_pageable, 0); /* all memory was a GPU's or pinned */
    assert_int_equal(fake->n_alive, 0);
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(fake->n_current, 0);
    return 0;
}

/* ------------------------------------------------------------------ layouts */

static void
gather(struct asked *a)
{
    struct kvt__gpu_copy *list[] = { &a->copy };

    assert_int_equal(kvt__gpu_gather(gpu, stream, list, 1), 0);
    assert_int_equal(asked_wait(a), 0);
}

static void
scatter(struct asked *a)
{
    struct kvt__gpu_copy *list[] = { &a->copy };

    assert_int_equal(kvt__gpu_scatter(gpu, list, 1), 0);
    assert_int_equal(asked_wait(a), 0);
}

/* One chunk out of the view, at any place. */
static void
check_gathered(struct paged *p, const int32_t *blocks, uint32_t n_tokens, bool on_device)
{
    uint64_t bytes = kvt__chunk_bytes(&p->view, n_tokens);
    unsigned char *room = on_device ? fake->alloc(bytes + 32) : fake->pinned(bytes + 32);
    unsigned char *want = malloc(bytes), *chunk = room + below(3) * 8 + below(3);
    struct asked a;
    uint32_t crc;

    kvt__gather(&p->view, blocks, n_tokens, want, &crc);
    ask(&a, &p->view, blocks, n_tokens, on_device, chunk);
    gather(&a);
    assert_memory_equal(chunk, want, bytes);
    assert_int_equal(a.crc, crc);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(chunk[bytes + i], 0xc3); /* as it came */
    free(want);
    (on_device ? fake->free : fake->unpin)(room);
}

/* And one into it, where some blocks are left out. */
static void
check_scattered(struct paged *p, const int32_t *blocks, uint32_t n_tokens, bool on_device)
{
    uint64_t bytes = kvt__chunk_bytes(&p->view, n_tokens);
    unsigned char *chunk = on_device ? fake->alloc(bytes) : fake->pinned(bytes);
    unsigned char *was = malloc(p->bytes), *want = malloc(p->bytes);
    int32_t some[MAX_CHUNK_BLOCKS];
    struct asked a;

    for (uint64_t i = 0; i < bytes; i++)
        chunk[i] = (unsigned char)below(256);
    for (int i = 0; i < MAX_CHUNK_BLOCKS; i++)
        some[i] = below(3) ? blocks[i] : -1 - (int32_t)below(2);
    p->view.null_block = blocks[below(MAX_CHUNK_BLOCKS)];
    memcpy(was, p->memory, p->bytes);
    kvt__scatter(&p->view, some, n_tokens, chunk);
    memcpy(want, p->memory, p->bytes);
    memcpy(p->memory, was, p->bytes);
    ask(&a, &p->view, some, n_tokens, on_device, chunk);
    scatter(&a);
    assert_memory_equal(p->memory, want, p->bytes);
    assert_int_equal(a.crc, kvt__crc32c(0, chunk, bytes));
    p->view.null_block = -1;
    free(was);
    free(want);
    (on_device ? fake->free : fake->unpin)(chunk);
}

static void
check_view(struct paged *p)
{
    uint32_t whole = p->view.block_tokens * MAX_CHUNK_BLOCKS;
    int32_t blocks[MAX_CHUNK_BLOCKS];

    for (int round = 0; round < 4; round++) {
        uint32_t n_tokens = round ? 1 + below(whole) : whole;

        choose_blocks(blocks);
        check_gathered(p, blocks, n_tokens, round % 2);
        check_scattered(p, blocks, n_tokens, round / 2);
    }
    fake->free(p->memory);
}

static void
layouts_of_engines_are_copied_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof paged_orders / sizeof *paged_orders; i++) {
        struct paged many = strided(2, 3, 4, 32, 8);
        struct paged one = strided(2, 2, 1, 10, 3);
        struct paged padded = strided(2, 2, 3, 16, 4);

        lay_out(&many, paged_orders[i], 0, false);
        check_view(&many);
        lay_out(&one, paged_orders[i], 0, false);
        check_view(&one);
        lay_out(&padded, paged_orders[i], 40, false);
        check_view(&padded);
    }
}

static void
mla_is_copied_exactly(void **state)
{
    (void)state;
    for (uint32_t pad = 0; pad < 80; pad += 64) {
        struct paged p = strided(1, 4, 1, 144, 4);

        lay_out(&p, "kblth", pad, false);
        check_view(&p);
    }
}

static void
random_views_are_copied_exactly(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        struct paged p = strided(1 + below(2), 1 + below(4), 1 + below(4),
                                 (1 + below(20)) << below(4), 1 + below(6));

        lay_out(&p, paged_orders[below(12)], below(2) ? 24 : 0, below(2));
        check_view(&p);
    }
}

static void
opaque_blocks_are_copied_exactly(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        uint64_t block_bytes = (1 + below(i % 4 ? 300 : 20000)) << below(5);
        struct paged p = strided(1, 1 + below(5), 1, (uint32_t)block_bytes, 1);

        lay_out(&p, i % 2 ? "klbht" : "kblht", i % 3 ? 48 : 0, i % 5 == 0);
        p.view.opaque = true;
        p.view.block_bytes = block_bytes;
        p.view.block_tokens = 1 + below(32);
        p.view.n_heads = p.view.head_bytes = 0; /* not needed */
        p.view.head_stride = p.view.token_stride = 0;
        check_view(&p);
    }
}

/* ---------------------------------------------------------- many and large */

static void
chunks_of_all_sizes_share_what_is_staged(void **state)
{
    enum { N = 12 };
    struct paged p = strided(2, 2, 2, 256, 64);
    struct kvt__gpu_copy *list[N];
    int32_t blocks[N][MAX_CHUNK_BLOCKS];
    unsigned char *chunks[N], *want = malloc(4 << 20);
    struct asked asked[N];
    uint32_t crc;

    (void)state;
    lay_out(&p, "lkbth", 0, false);
    for (uint32_t i = 0; i < N; i++) { /* some 2 MB, others some KB */
        uint32_t n_tokens = 1 + below(i % 3 ? 20 : 64 * MAX_CHUNK_BLOCKS);

        choose_blocks(blocks[i]);
        chunks[i] = i % 4 == 3 ? fake->alloc(4 << 20) : fake->pinned(4 << 20);
        ask(&asked[i], &p.view, blocks[i], n_tokens, i % 4 == 3, chunks[i]);
        list[i] = &asked[i].copy;
    }
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(asked_wait(&asked[i]), 0);
        kvt__gather(&p.view, blocks[i], asked[i].copy.n_tokens, want, &crc);
        assert_int_equal(asked[i].crc, crc);
        assert_memory_equal(chunks[i], want,
                            kvt__chunk_bytes(&p.view, asked[i].copy.n_tokens));
        (i % 4 == 3 ? fake->free : fake->unpin)(chunks[i]);
    }
    free(want);
    fake->free(p.memory);
}

static void
more_chunks_than_steps_are_copied(void **state)
{
    enum { N = 700 };
    struct paged p = strided(2, 1, 2, 16, 4);
    struct kvt__gpu_copy *list[N];
    int32_t blocks[MAX_CHUNK_BLOCKS];
    struct asked *asked = calloc(N, sizeof *asked);
    unsigned char *chunks = fake->pinned(N * 2048), *want = malloc(2048);
    uint64_t bytes = 0;

    (void)state;
    lay_out(&p, "lbthk", 0, false);
    choose_blocks(blocks);
    for (uint32_t i = 0; i < N; i++) {
        ask(&asked[i], &p.view, blocks, 20, false, chunks + i * 2048);
        list[i] = &asked[i].copy;
    }
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, N), 0);
    bytes = kvt__chunk_bytes(&p.view, 20);
    kvt__gather(&p.view, blocks, 20, want, NULL);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(asked_wait(&asked[i]), 0);
        assert_memory_equal(chunks + i * 2048, want, bytes);
    }
    free(want);
    free(asked);
    fake->unpin(chunks);
    fake->free(p.memory);
}

static void
a_chunk_of_nothing_is_done(void **state)
{
    struct paged p = strided(2, 1, 2, 16, 4);
    struct asked a;

    (void)state;
    lay_out(&p, "lbthk", 0, false);
    ask(&a, &p.view, NULL, 0, false, NULL);
    gather(&a);
    assert_int_equal(a.crc, 0);
    fake->free(p.memory);
}

static void
sums_are_those_of_the_processor(void **state)
{
    unsigned char *at;
    uint32_t crc;

    (void)state;
    assert_int_equal(kvt__gpu_alloc(gpu, 3 << 20, &at), 0);
    assert_int_equal((uintptr_t)at % (64 << 10), 0);
    for (size_t i = 0; i < 3 << 20; i++)
        at[i] = (unsigned char)below(256);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t from = below(64), n = i ? below(i % 4 ? 70000 : 3 << 19) : 3 << 20;

        from = i ? from : 0;
        assert_int_equal(kvt__gpu_sum(gpu, at + from, n, &crc), 0);
        assert_int_equal(crc, kvt__crc32c(0, at + from, n));
    }
    kvt__gpu_free(gpu, at);
}

/* -------------------------------------------------------------------- order */

struct fill {
    unsigned char *at;
    size_t n;
    int value;
};

static void
fill(void *arg)
{
    const struct fill *f = arg;

    memset(f->at, f->value, f->n);
}

static bool
all_are(const unsigned char *at, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value)
            return false;
    return true;
}

/* Larger than what is staged, so that parts are used again behind the gate. */
static void
a_gather_is_between_the_callers_writes(void **state)
{
    struct paged p = strided(2, 2, 2, 256, 64);
    uint64_t bytes = kvt__chunk_bytes(&p.view, 320);
    unsigned char *chunk = fake->pinned(bytes);
    const int32_t blocks[] = { 0, 2, 4, 6, 8 };
    struct gate gate = GATE;
    struct kvt__gpu_copy *list[1];
    struct asked a;

    (void)state;
    lay_out(&p, "lkbht", 0, false);
    struct fill before = { p.memory, p.bytes, 17 }, after = { p.memory, p.bytes, 18 };
    fake->call(stream, gate_pass, &gate);
    fake->call(stream, fill, &before);
    ask(&a, &p.view, blocks, 320, false, chunk);
    list[0] = &a.copy;
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, 1), 0); /* nobody waits */
    fake->call(stream, fill, &after);
    assert_int_equal(a.n_done, 0);
    gate_open(&gate);
    assert_int_equal(asked_wait(&a), 0);
    assert_true(all_are(chunk, bytes, 17));
    fake->wait(stream);
    fake->unpin(chunk);
    fake->free(p.memory);
}

static void
a_scatter_is_after_the_callers_write(void **state)
{
    struct paged p = strided(2, 2, 2, 256, 64);
    uint64_t bytes = kvt__chunk_bytes(&p.view, 320);
    unsigned char *chunk = fake->pinned(bytes), *back = malloc(bytes);
    const int32_t blocks[] = { 8, 1, 3, 5, 7 };
    struct gate gate = GATE;
    struct kvt__gpu_copy *list[1];
    struct asked a;

    (void)state;
    lay_out(&p, "lbkth", 0, false);
    memset(chunk, 19, bytes);
    struct fill before = { p.memory, p.bytes, 17 };
    fake->call(stream, gate_pass, &gate);
    fake->call(stream, fill, &before);
    assert_int_equal(kvt__gpu_after(gpu, stream), 0);
    ask(&a, &p.view, blocks, 320, false, chunk);
    list[0] = &a.copy;
    assert_int_equal(kvt__gpu_scatter(gpu, list, 1), 0);
    gate_open(&gate);
    assert_int_equal(asked_wait(&a), 0);
    kvt__gather(&p.view, blocks, 320, back, NULL);
    assert_true(all_are(back, bytes, 19));
    fake->wait(stream);
    free(back);
    fake->unpin(chunk);
    fake->free(p.memory);
}

/* Verifying what was read does not stand behind the caller's computing. */
static void
sums_wait_for_no_stream(void **state)
{
    struct gate gate = GATE;
    unsigned char *at;
    uint32_t crc;

    (void)state;
    assert_int_equal(kvt__gpu_alloc(gpu, 100, &at), 0);
    memset(at, 1, 100);
    fake->call(stream, gate_pass, &gate);
    assert_int_equal(kvt__gpu_after(gpu, stream), 0);
    assert_int_equal(kvt__gpu_sum(gpu, at, 100, &crc), 0);
    gate_open(&gate);
    fake->wait(stream);
    assert_int_equal(crc, kvt__crc32c(0, at, 100));
    kvt__gpu_free(gpu, at);
}

static void
closing_waits_for_what_is_under_way(void **state)
{
    struct paged p = strided(2, 2, 2, 256, 64);
    unsigned char *chunk = fake->pinned(kvt__chunk_bytes(&p.view, 320));
    const int32_t blocks[] = { 0, 2, 4, 6, 8 };
    struct kvt__gpu_copy *list[1];
    struct asked a;

    lay_out(&p, "lkbht", 0, false);
    ask(&a, &p.view, blocks, 320, false, chunk);
    list[0] = &a.copy;
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, 1), 0);
    kvt__gpu_close(gpu);
    assert_int_equal(a.n_done, 1);
    assert_int_equal(a.err, 0);
    fake->end_stream(stream);
    fake->unpin(chunk);
    fake->free(p.memory);
    open_gpu(state);
}

/* ------------------------------------------------------------------ threads */

struct worker {
    pthread_t thread;
    struct paged p;
    int32_t block;
    int n_bad;
};

static void
copy_there_and_back(struct worker *w, unsigned char *chunk, unsigned char *back, int i)
{
    struct kvt__gpu_copy *list[1];
    const int32_t blocks[] = { w->block, w->block + 1 };
    uint64_t bytes = kvt__chunk_bytes(&w->p.view, 100);
    struct asked in, out;

    memset(chunk, i + w->block, bytes);
    ask(&in, &w->p.view, blocks, 100, false, chunk);
    list[0] = &in.copy;
    w->n_bad += kvt__gpu_scatter(gpu, list, 1) != 0 || asked_wait(&in) != 0;
    ask(&out, &w->p.view, blocks, 100, false, back);
    list[0] = &out.copy;
    w->n_bad += kvt__gpu_gather(gpu, NULL, list, 1) != 0 || asked_wait(&out) != 0;
    w->n_bad += in.crc != out.crc || memcmp(chunk, back, bytes) != 0;
}

static void *
work(void *arg)
{
    struct worker *w = arg;
    uint64_t bytes = kvt__chunk_bytes(&w->p.view, 100);
    unsigned char *chunk = fake->pinned(bytes), *back = fake->pinned(bytes);

    for (int i = 0; i < 10; i++)
        copy_there_and_back(w, chunk, back, i);
    fake->unpin(chunk);
    fake->unpin(back);
    return NULL;
}

static void
threads_copy_side_by_side(void **state)
{
    enum { N = 4 };
    struct paged p = strided(2, 2, 2, 64, 64);
    struct worker workers[N];

    (void)state;
    lay_out(&p, "lkbht", 0, false);
    for (int i = 0; i < N; i++) {
        workers[i] = (struct worker){ .p = p, .block = 2 * i };
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].n_bad, 0);
    }
    fake->free(p.memory);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, open_gpu, close_gpu)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(layouts_of_engines_are_copied_exactly),
        TEST(mla_is_copied_exactly),
        TEST(random_views_are_copied_exactly),
        TEST(opaque_blocks_are_copied_exactly),
        TEST(chunks_of_all_sizes_share_what_is_staged),
        TEST(more_chunks_than_steps_are_copied),
        TEST(a_chunk_of_nothing_is_done),
        TEST(sums_are_those_of_the_processor),
        TEST(a_gather_is_between_the_callers_writes),
        TEST(a_scatter_is_after_the_callers_write),
        TEST(sums_wait_for_no_stream),
        TEST(closing_waits_for_what_is_under_way),
        TEST(threads_copy_side_by_side),
    };
    static const char *const ways[] = { "kernel", "batch" };
    int failed = 0;

    (void)argc;
    fake_load(argv);
    if (fake_make_cache() < 0)
        return 1;
    for (size_t i = argv[3] ? 0 : 1; i < 2; i++) {
        way = ways[i];
        failed += cmocka_run_group_tests_name(way, tests, NULL, NULL);
    }
    fake_drop_cache();
    return failed;
}
