/* SPDX-License-Identifier: Apache-2.0
 *
 * Compare a GPU's copies with copies in host memory, for all layouts, by kernels and by batch
 * copies.  The driver is real, or a fake whose streams run in parallel unless events order the
 * streams. */
#include "unit/gpu/device-test.h"

#include "base/crc32c.h"

/* ------------------------------------------------------------------ layouts */

enum chunk { PINNED, DEVICE, PAGEABLE, N_CHUNKS };

static unsigned char *
chunk_alloc(enum chunk where, size_t bytes)
{
    void *at = where == DEVICE ? rig_alloc(bytes)
             : where == PINNED ? rig_pinned(bytes) : malloc(bytes);

    return where == PAGEABLE ? memset(at, RIG_FRESH, bytes) : at;
}

static void
chunk_free(enum chunk where, void *at)
{
    if (where == DEVICE)
        rig_free(at);
    else if (where == PINNED)
        rig_unpin(at);
    else
        free(at);
    if (rig.fake && where == PAGEABLE)
        rig.fake->n_pageable = 0; /* this test copies pageable memory on purpose */
}

static void
chunk_put(enum chunk where, void *to, const void *from, size_t bytes)
{
    if (where == DEVICE)
        rig_put(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void
chunk_get(enum chunk where, void *to, const void *from, size_t bytes)
{
    if (where == DEVICE)
        rig_get(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* Gather a chunk to a random offset, and compare the chunk and the bytes around the chunk. */
static void
check_gathered(struct paged *p, struct twin *t, const int32_t *blocks, uint32_t n_tokens,
               enum chunk where)
{
    uint64_t bytes = kvt__chunk_bytes(&p->view, n_tokens), at = below(3) * 8 + below(3);
    unsigned char *room = chunk_alloc(where, bytes + 32);
    unsigned char *want = malloc(bytes + 32), *got = malloc(bytes + 32);
    struct pending_copy a;
    uint32_t crc;

    memset(want, RIG_FRESH, bytes + 32);
    kvt__gather(&p->view, blocks, n_tokens, want + at, &crc);
    pending_copy_init(&a, &t->view, blocks, n_tokens, where == DEVICE, room + at);
    gather(&a);
    chunk_get(where, got, room, bytes + 32);
    assert_memory_equal(got, want, bytes + 32);
    assert_int_equal(a.crc, crc);
    free(want);
    free(got);
    chunk_free(where, room);
}

/* Scatter a chunk with some blocks that are not real, and compare all of the view's memory. */
static void
check_scattered(struct paged *p, struct twin *t, const int32_t *blocks, uint32_t n_tokens,
                enum chunk where)
{
    uint64_t bytes = kvt__chunk_bytes(&p->view, n_tokens);
    unsigned char *chunk = chunk_alloc(where, bytes);
    unsigned char *from = malloc(bytes), *got = malloc(p->bytes);
    int32_t some[MAX_CHUNK_BLOCKS];
    struct pending_copy a;

    for (uint64_t i = 0; i < bytes; i++)
        from[i] = (unsigned char)below(256);
    for (int i = 0; i < MAX_CHUNK_BLOCKS; i++)
        some[i] = below(3) ? blocks[i] : -1 - (int32_t)below(2);
    p->view.null_block = t->view.null_block = blocks[below(MAX_CHUNK_BLOCKS)];
    kvt__scatter(&p->view, some, n_tokens, from, NULL);
    chunk_put(where, chunk, from, bytes);
    pending_copy_init(&a, &t->view, some, n_tokens, where == DEVICE, chunk);
    scatter(&a);
    rig_get(got, t->memory, p->bytes);
    assert_memory_equal(got, p->memory, p->bytes);
    assert_int_equal(a.crc, kvt__crc32c(0, from, bytes));
    p->view.null_block = t->view.null_block = -1;
    free(from);
    free(got);
    chunk_free(where, chunk);
}

/* Gather and scatter `rounds` chunks.  Nine rounds test all pairs of the chunks' memories. */
static void
check_view(struct paged *p, int rounds)
{
    uint32_t whole = p->view.block_tokens * MAX_CHUNK_BLOCKS;
    int32_t blocks[MAX_CHUNK_BLOCKS];
    struct twin t;

    twin_make(&t, p);
    for (int round = 0; round < rounds; round++) {
        uint32_t n_tokens = round ? 1 + below(whole) : whole;

        choose_blocks(blocks);
        check_gathered(p, &t, blocks, n_tokens, round % N_CHUNKS);
        check_scattered(p, &t, blocks, n_tokens, (round + round / 3) % N_CHUNKS);
    }
    twin_end(&t, p);
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
        check_view(&many, 4);
        lay_out(&one, paged_orders[i], 0, false);
        check_view(&one, 4);
        lay_out(&padded, paged_orders[i], 40, false);
        check_view(&padded, 4);
    }
}

static void
mla_is_copied_exactly(void **state)
{
    (void)state;
    for (uint32_t pad = 0; pad < 80; pad += 64) {
        struct paged p = strided(1, 4, 1, 144, 4);

        lay_out(&p, "kblth", pad, false);
        check_view(&p, 4);
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
        check_view(&p, 4);
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
        check_view(&p, 4);
    }
}

/* ------------------------------------------------------------------- models */

/* Use the default size of the staging buffer.  On a fake GPU test fewer layers, to save time. */
static void
check_model(struct paged p, const char *order)
{
    kvt__gpu_close(gpu);
    open_with(0);
    if (rig.fake)
        p.view.n_layers = 3;
    lay_out(&p, order, 0, false);
    check_view(&p, rig.fake ? 3 : 9);
}

/* Llama 3.1 8B: [block, token, head, K and V] and [block, head, token, K and V], both with one
 * tensor for each layer and with all layers of a block together; then K and V separate. */
static void
llamas_layers_are_copied_exactly(void **state)
{
    static const char *const orders[] = { "lbthk", "lbhtk", "blthk", "blhtk", "lkbth",
                                          "lkbht" };

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        check_model(strided(2, 32, 8, 256, 16), orders[i]);
}

/* DeepSeek V3: 512 + 64 elements of two bytes for each token. */
static void
deepseeks_layers_are_copied_exactly(void **state)
{
    (void)state;
    check_model(strided(1, 61, 1, 1152, 64), "lkbth");
    check_model(strided(1, 61, 1, 1152, 16), "blkth");
}

/* ---------------------------------------------------------- many and large */

static void
chunks_of_all_sizes_share_the_staging_memory(void **state)
{
    enum { N = 12 };
    struct paged p = strided(2, 2, 2, 256, 64);
    struct kvt__gpu_copy *list[N];
    int32_t blocks[N][MAX_CHUNK_BLOCKS];
    unsigned char *chunks[N], *want = malloc(4 << 20), *got = malloc(4 << 20);
    struct pending_copy pending[N];
    struct twin t;
    uint32_t crc;

    (void)state;
    lay_out(&p, "lkbth", 0, false);
    twin_make(&t, &p);
    for (uint32_t i = 0; i < N; i++) { /* sizes from some KB to 2 MB */
        uint32_t n_tokens = 1 + below(i % 3 ? 20 : 64 * MAX_CHUNK_BLOCKS);

        choose_blocks(blocks[i]);
        chunks[i] = chunk_alloc(i % 4 == 3, 4 << 20);
        pending_copy_init(&pending[i], &t.view, blocks[i], n_tokens, i % 4 == 3, chunks[i]);
        list[i] = &pending[i].copy;
    }
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t bytes = kvt__chunk_bytes(&p.view, pending[i].copy.n_tokens);

        assert_int_equal(pending_copy_wait(&pending[i]), 0);
        kvt__gather(&p.view, blocks[i], pending[i].copy.n_tokens, want, &crc);
        assert_int_equal(pending[i].crc, crc);
        chunk_get(i % 4 == 3, got, chunks[i], bytes);
        assert_memory_equal(got, want, bytes);
        chunk_free(i % 4 == 3, chunks[i]);
    }
    free(want);
    free(got);
    twin_end(&t, &p);
}

static void
more_chunks_than_steps_are_copied(void **state)
{
    enum { N = 700 };
    struct paged p = strided(2, 1, 2, 16, 4);
    struct kvt__gpu_copy *list[N];
    int32_t blocks[MAX_CHUNK_BLOCKS];
    struct pending_copy *pending = calloc(N, sizeof *pending);
    unsigned char *chunks = rig_pinned(N * 2048), *want = malloc(2048);
    struct twin t;

    (void)state;
    lay_out(&p, "lbthk", 0, false);
    twin_make(&t, &p);
    choose_blocks(blocks);
    for (uint32_t i = 0; i < N; i++) {
        pending_copy_init(&pending[i], &t.view, blocks, 20, false, chunks + i * 2048);
        list[i] = &pending[i].copy;
    }
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, N), 0);
    uint64_t bytes = kvt__chunk_bytes(&p.view, 20);
    kvt__gather(&p.view, blocks, 20, want, NULL);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(pending_copy_wait(&pending[i]), 0);
        assert_memory_equal(chunks + i * 2048, want, bytes);
    }
    free(want);
    free(pending);
    rig_unpin(chunks);
    twin_end(&t, &p);
}

/* The first two chunks just fit into the table of a step of kernels, the others do not. */
static void
chunks_of_many_blocks_are_copied_exactly(void **state)
{
    static const uint32_t n_blocks[] = { 8189, 8190, 8191, 20000 };
    struct paged p = strided(2, 1, 1, 16, 1);
    int32_t *blocks = malloc(20000 * sizeof *blocks);
    struct twin t;

    (void)state;
    lay_out(&p, "lkbth", 0, false);
    twin_make(&t, &p);
    for (size_t i = 0; i < sizeof n_blocks / sizeof *n_blocks; i++) {
        for (uint32_t b = 0; b < n_blocks[i]; b++)
            blocks[b] = (int32_t)below(N_BLOCKS);
        check_gathered(&p, &t, blocks, n_blocks[i], i % 2 ? PINNED : DEVICE);
    }
    free(blocks);
    twin_end(&t, &p);
}

/* Views of several groups, whose elements differ in width, in one submit.  The chunks are adjacent
 * in host memory, the second chunk is larger than a part, and the chunks of the last two views need
 * copies of the driver: 9000 blocks, and a block of 4 GiB. */
static void
chunks_of_different_views_are_copied_together(void **state)
{
    enum { N = 9, ROOM = 1 << 20, N_VIEWS = 4 };
    static const uint32_t n_tokens[N] = { 3, 300, 40, 10, 7, 9000, 5, 60, 1 };
    static const int which[N] = { 0, 1, 0, 3, 0, 2, 1, 0, 1 };
    struct paged p[N_VIEWS] = { strided(1, 1, 1, 6, 64), strided(2, 2, 2, 80, 64),
                                strided(1, 1, 1, 16, 1), strided(1, 1, 1, 4096, 16) };
    unsigned char *chunks = rig_pinned(ROOM), *want = malloc(ROOM);
    int32_t *blocks = malloc(9000 * sizeof *blocks);
    struct pending_copy pending[N];
    struct kvt__gpu_copy *list[N];
    struct twin t[N_VIEWS];
    uint64_t at = 0;
    uint32_t crc;

    (void)state;
    for (int i = 0; i < N_VIEWS; i++) {
        lay_out(&p[i], "lkbth", 0, false);
        p[i].view.block_tokens = i == 3 ? 1 << 20 : p[i].view.block_tokens;
        twin_make(&t[i], &p[i]);
    }
    for (uint32_t i = 0; i < 9000; i++)
        blocks[i] = (int32_t)below(N_BLOCKS);
    for (int i = 0; i < N; i++) {
        pending_copy_init(&pending[i], &t[which[i]].view, blocks, n_tokens[i], false,
                          chunks + at);
        pending[i].copy.own.sum = 1; /* the caller need not initialize the private part */
        pending[i].copy.own.err = -EIO;
        list[i] = &pending[i].copy;
        at += kvt__chunk_bytes(&p[which[i]].view, n_tokens[i]);
    }
    assert_true(at <= ROOM);
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, N), 0);
    for (int i = 0; i < N; i++) {
        struct paged *of = &p[which[i]];
        uint64_t bytes = kvt__chunk_bytes(&of->view, n_tokens[i]);

        assert_int_equal(pending_copy_wait(&pending[i]), 0);
        kvt__gather(&of->view, blocks, n_tokens[i], want, &crc);
        assert_int_equal(pending[i].crc, crc);
        assert_memory_equal(pending[i].copy.chunk, want, bytes);
    }
    for (int i = 0; i < N_VIEWS; i++)
        twin_end(&t[i], &p[i]);
    free(blocks);
    free(want);
    rig_unpin(chunks);
}

/* The tables of the chunks need more room than one step has. */
static void
many_chunks_of_many_blocks_are_copied(void **state)
{
    enum { N = 100, N_TOKENS = 1600 };
    struct paged p = strided(1, 1, 1, 16, 1);
    uint64_t bytes = kvt__chunk_bytes(&p.view, N_TOKENS);
    unsigned char *chunks = rig_alloc(N * bytes), *want = malloc(bytes), *got = malloc(bytes);
    struct pending_copy *pending = calloc(N, sizeof *pending);
    int32_t blocks[N_TOKENS];
    struct kvt__gpu_copy *list[N];
    struct twin t;

    (void)state;
    lay_out(&p, "lkbth", 0, false);
    twin_make(&t, &p);
    for (int i = 0; i < N_TOKENS; i++)
        blocks[i] = (int32_t)below(N_BLOCKS);
    for (int i = 0; i < N; i++) {
        pending_copy_init(&pending[i], &t.view, blocks, N_TOKENS, true, chunks + i * bytes);
        list[i] = &pending[i].copy;
    }
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, N), 0);
    kvt__gather(&p.view, blocks, N_TOKENS, want, NULL);
    for (int i = 0; i < N; i++) {
        assert_int_equal(pending_copy_wait(&pending[i]), 0);
        rig_get(got, chunks + i * bytes, bytes);
        assert_memory_equal(got, want, bytes);
    }
    free(want);
    free(got);
    free(pending);
    rig_free(chunks);
    twin_end(&t, &p);
}

/* A block of 4 GiB, of which the chunk has the first tokens: too many elements for kernels. */
static void
a_huge_block_is_copied_exactly(void **state)
{
    struct paged p = strided(1, 1, 1, 4096, 16);
    static const int32_t blocks[] = { 0 };
    struct twin t;

    (void)state;
    lay_out(&p, "lkbth", 0, false);
    twin_make(&t, &p);
    p.view.block_tokens = t.view.block_tokens = 1 << 20;
    check_gathered(&p, &t, blocks, 10, PINNED);
    check_gathered(&p, &t, blocks, 10, DEVICE);
    twin_end(&t, &p);
}

static void
a_chunk_of_nothing_is_done(void **state)
{
    struct paged p = strided(2, 1, 2, 16, 4);
    struct pending_copy a;
    struct twin t;

    (void)state;
    lay_out(&p, "lbthk", 0, false);
    twin_make(&t, &p);
    pending_copy_init(&a, &t.view, NULL, 0, false, NULL);
    gather(&a);
    assert_int_equal(a.crc, 0);
    twin_end(&t, &p);
}

static void
device_checksums_equal_host_checksums(void **state)
{
    enum { BYTES = 3 << 20 };
    unsigned char *at, *same = malloc(BYTES);
    uint32_t crc;

    (void)state;
    assert_int_equal(kvt__gpu_alloc(gpu, BYTES, &at), 0);
    assert_int_equal((uintptr_t)at % (64 << 10), 0);
    for (size_t i = 0; i < BYTES; i++)
        same[i] = (unsigned char)below(256);
    rig_put(at, same, BYTES);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t from = below(64), n = i ? below(i % 4 ? 70000 : BYTES / 2) : BYTES;

        from = i ? from : 0;
        assert_int_equal(kvt__gpu_sum(gpu, at + from, n, &crc), 0);
        assert_int_equal(crc, kvt__crc32c(0, same + from, n));
    }
    kvt__gpu_free(gpu, at);
    free(same);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(layouts_of_engines_are_copied_exactly),
        TEST(mla_is_copied_exactly),
        TEST(random_views_are_copied_exactly),
        TEST(opaque_blocks_are_copied_exactly),
        TEST(llamas_layers_are_copied_exactly),
        TEST(deepseeks_layers_are_copied_exactly),
        TEST(chunks_of_all_sizes_share_the_staging_memory),
        TEST(more_chunks_than_steps_are_copied),
        TEST(chunks_of_many_blocks_are_copied_exactly),
        TEST(chunks_of_different_views_are_copied_together),
        TEST(many_chunks_of_many_blocks_are_copied),
        TEST(a_huge_block_is_copied_exactly),
        TEST(a_chunk_of_nothing_is_done),
        TEST(device_checksums_equal_host_checksums),
    };

    return run_both_ways(argc, argv, tests, sizeof tests / sizeof *tests);
}
