/* SPDX-License-Identifier: Apache-2.0
 *
 * Compare gather and scatter with a copy byte by byte, for the layouts of engines and for random
 * layouts. */
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"
#include "unit/gpu/paged.h"

#include "base/crc32c.h"
#include "gpu/copy.h"
#include "gpu/nt-copy.h"

static void
check_gather(const struct paged *p, const int32_t *blocks, uint32_t n_tokens,
             unsigned char *chunk, uint64_t bytes)
{
    uint32_t which, crc;

    memset(chunk - GUARD, 0xa5, bytes + 2 * GUARD);
    kvt__gather(&p->view, blocks, n_tokens, chunk, &crc);
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(chunk[i - GUARD], 0xa5);
        assert_int_equal(chunk[bytes + (size_t)i], 0xa5);
    }
    for (uint64_t i = 0; i < bytes; i++)
        if (chunk[i] != *address(&p->view, blocks, n_tokens, i, &which))
            fail_msg("byte %llu of %llu", (unsigned long long)i,
                     (unsigned long long)bytes);
    assert_int_equal(crc, kvt__crc32c(0, chunk, bytes));
}

/* Scatter other bytes with some blocks left out, and compare all memory. */
static void
check_scatter(struct paged *p, const int32_t *blocks, uint32_t n_tokens,
              unsigned char *chunk, uint64_t bytes)
{
    unsigned char *want = malloc(p->bytes), *was = p->memory;
    int32_t some[MAX_CHUNK_BLOCKS];
    uint32_t which, crc;

    assert_non_null(want);
    memcpy(want, p->memory, p->bytes);
    for (int i = 0; i < MAX_CHUNK_BLOCKS; i++)
        some[i] = below(3) ? blocks[i] : -1 - (int32_t)below(2);
    p->view.null_block = blocks[below(MAX_CHUNK_BLOCKS)];
    for (uint64_t i = 0; i < bytes; i++) {
        unsigned char *at = address(&p->view, blocks, n_tokens, i, &which);

        chunk[i] ^= 0x55;
        if (some[which] >= 0 && some[which] != p->view.null_block)
            want[at - was] = chunk[i];
    }
    kvt__scatter(&p->view, some, n_tokens, chunk, &crc);
    assert_memory_equal(p->memory, want, p->bytes);
    assert_int_equal(crc, kvt__crc32c(0, chunk, bytes)); /* including skipped blocks */
    free(want);
    p->view.null_block = -1;
}

static void
check_round_trip(struct paged *p, const int32_t *blocks, uint32_t n_tokens,
                 unsigned char *chunk, uint64_t bytes)
{
    unsigned char *again = malloc(bytes);

    assert_non_null(again);
    kvt__scatter(&p->view, blocks, n_tokens, chunk, NULL);
    kvt__gather(&p->view, blocks, n_tokens, again, NULL);
    assert_memory_equal(again, chunk, bytes);
    free(again);
}

/* Check whole and partial chunks of a view, and free the view's memory. */
static void
check_view(struct paged *p)
{
    uint32_t whole = p->view.block_tokens * MAX_CHUNK_BLOCKS;
    int32_t blocks[MAX_CHUNK_BLOCKS];

    for (int round = 0; round < 4; round++) {
        uint32_t n_tokens = round ? 1 + below(whole) : whole;
        uint64_t bytes = kvt__chunk_bytes(&p->view, n_tokens);
        unsigned char *room = malloc(bytes + 64 + 2 * GUARD);
        unsigned char *chunk = room + GUARD + below(64);

        assert_non_null(room);
        choose_blocks(blocks);
        check_gather(p, blocks, n_tokens, chunk, bytes);
        check_scatter(p, blocks, n_tokens, chunk, bytes);
        check_round_trip(p, blocks, n_tokens, chunk, bytes);
        free(room);
    }
    paged_free(p->memory);
}

/* ------------------------------------------------------------------- views */

static void
layouts_of_engines_are_copied_exactly(void **state)
{

    (void)state;
    for (size_t i = 0; i < sizeof paged_orders / sizeof *paged_orders; i++) {
        struct paged many = strided(2, 3, 4, 32, 8);
        struct paged one = strided(2, 2, 1, 10, 3); /* one KV head on this rank */
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
    static const char *const orders[] = { "klbth", "kblth", "bklth" };

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        for (uint32_t pad = 0; pad < 80; pad += 64) {
            struct paged p = strided(1, 4, 1, 144, 4);

            lay_out(&p, orders[i], pad, false);
            check_view(&p);
        }
    }
}

static void
random_views_are_copied_exactly(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct paged p = strided(1 + below(2), 1 + below(4), 1 + below(4),
                                 1 + below(20), 1 + below(6));
        char order[] = "klbht";

        for (uint32_t j = 0; j < 5; j++) {
            uint32_t k = j + below(5 - j);
            char c = order[j];

            order[j] = order[k];
            order[k] = c;
        }
        lay_out(&p, order, below(2) ? 24 : 0, below(2));
        check_view(&p);
    }
}

/* Runs that are collected in a stage, runs that are streamed alone, runs longer than a step. */
static void
runs_of_all_lengths_are_copied_exactly(void **state)
{
    static const char *const orders[] = { "lkbth", "klbht", "lbhtk", "blkth" };

    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        struct paged p = strided(2, 1, 1 + below(3), 1 + below(300), 1 + below(40));

        lay_out(&p, orders[i % 4], i % 3 ? 0 : 90, false);
        check_view(&p);
    }
}

static void
opaque_blocks_are_copied_block_by_block(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t n_layers = 1 + below(5);
        uint64_t block_bytes = 1 + below(i % 4 ? 300 : 20000);
        /* Lay out a view with one head and one token in each block, of block_bytes. */
        struct paged p = strided(1, n_layers, 1, (uint32_t)block_bytes, 1);

        lay_out(&p, i % 2 ? "klbht" : "kblht", i % 3 ? 50 : 0, i % 5 == 0);
        p.view.opaque = true;
        p.view.block_bytes = block_bytes;
        p.view.block_tokens = 1 + below(32);
        p.view.n_heads = p.view.head_bytes = 0; /* not needed */
        p.view.head_stride = p.view.token_stride = 0;
        check_view(&p);
    }
}

static void
chunk_bytes_counts_tokens_or_whole_blocks(void **state)
{
    struct paged p = strided(2, 32, 8, 256, 16);

    (void)state;
    assert_int_equal(kvt__chunk_bytes(&p.view, 256), 33554432);
    assert_int_equal(kvt__chunk_bytes(&p.view, 1), 131072);
    p.view.opaque = true;
    p.view.block_bytes = UINT64_C(1) << 31;
    assert_int_equal(kvt__chunk_bytes(&p.view, 17), UINT64_C(2) * 32 << 31);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_of_engines_are_copied_exactly),
        cmocka_unit_test(mla_is_copied_exactly),
        cmocka_unit_test(random_views_are_copied_exactly),
        cmocka_unit_test(runs_of_all_lengths_are_copied_exactly),
        cmocka_unit_test(opaque_blocks_are_copied_block_by_block),
        cmocka_unit_test(chunk_bytes_counts_tokens_or_whole_blocks),
    };
    int failed = 0;

    for (size_t i = 0; kvt__nt_code_at(i); i++) {
        if (!kvt__nt_code_at(i)->usable())
            continue;
        kvt__nt_code_use(kvt__nt_code_at(i));
        failed += cmocka_run_group_tests_name(kvt__nt_code_at(i)->name, tests, NULL, NULL);
    }
    return failed;
}
