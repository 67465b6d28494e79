/* SPDX-License-Identifier: Apache-2.0
 *
 * Gather and scatter against a copy of one byte after the other, over the layouts
 * that engines have and over random ones. */
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"

#include "base/crc32c.h"
#include "gpu/copy.h"
#include "gpu/stream.h"

#define N_BLOCKS 9u
#define MAX_PLANES 16
#define MAX_CHUNK_BLOCKS 5
#define GUARD 64 /* bytes around everything, which nobody may touch */

static uint64_t seed = 1;

static uint32_t
below(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* A view and the memory that it shows. */
struct paged {
    struct kvt__view view;
    void *base[MAX_PLANES];
    unsigned char *memory;
    size_t bytes;
};

/* Lay the dimensions out, outermost first: k(v), l(ayer), b(lock), h(ead),
 * t(oken).  pad: bytes between, at random; mirrored: some run backwards. */
static void
lay_out(struct paged *p, const char *order, uint32_t pad, bool mirrored)
{
    struct kvt__view *v = &p->view;
    const char *const letters = "klbht";
    const uint32_t extents[5] = { v->n_kv, v->n_layers, v->n_blocks, v->n_heads,
                                  v->block_tokens };
    int64_t strides[5], bytes = v->head_bytes, origin = 0;

    for (size_t i = 5; i--;) {
        size_t d = (size_t)(strchr(letters, order[i]) - letters);

        strides[d] = bytes + (pad ? (int64_t)below(pad) : 0);
        bytes = strides[d] * extents[d];
        if (mirrored && below(3) == 0) {
            origin += strides[d] * (extents[d] - 1);
            strides[d] = -strides[d];
        }
    }
    origin += GUARD + below(64);
    p->bytes = (size_t)bytes + 64 + 2 * GUARD;
    p->memory = malloc(p->bytes);
    assert_non_null(p->memory);
    for (size_t i = 0; i < p->bytes; i++)
        p->memory[i] = (unsigned char)below(256);
    for (uint32_t kv = 0; kv < v->n_kv; kv++)
        for (uint32_t layer = 0; layer < v->n_layers; layer++)
            p->base[kv * v->n_layers + layer] =
                p->memory + origin + kv * strides[0] + layer * strides[1];
    v->base = p->base;
    v->block_stride = strides[2];
    v->head_stride = strides[3];
    v->token_stride = strides[4];
}

/* Where byte i of a chunk lies in memory, and in which of the chunk's blocks. */
static unsigned char *
address_of(const struct kvt__view *v, const int32_t *blocks, uint32_t n_tokens,
           uint64_t i, uint32_t *which)
{
    uint64_t byte = i % v->head_bytes, head = i / v->head_bytes % v->n_heads;
    uint64_t token = i / v->head_bytes / v->n_heads % n_tokens;
    uint64_t plane = i / v->head_bytes / v->n_heads / n_tokens;

    *which = (uint32_t)token / v->block_tokens;
    return (unsigned char *)v->base[plane] + blocks[*which] * v->block_stride +
           (int64_t)head * v->head_stride +
           (int64_t)(token % v->block_tokens) * v->token_stride + byte;
}

static unsigned char *
address_of_opaque(const struct kvt__view *v, const int32_t *blocks, uint64_t i,
                  uint32_t *which)
{
    uint64_t byte = i % v->block_bytes, layer = i / v->block_bytes % v->n_layers;

    *which = (uint32_t)(i / v->block_bytes / v->n_layers);
    return (unsigned char *)v->base[layer] + blocks[*which] * v->block_stride + byte;
}

static unsigned char *
address(const struct kvt__view *v, const int32_t *blocks, uint32_t n_tokens,
        uint64_t i, uint32_t *which)
{
    return v->opaque ? address_of_opaque(v, blocks, i, which)
                     : address_of(v, blocks, n_tokens, i, which);
}

/* Distinct block ids, some of them one after the other. */
static void
choose_blocks(int32_t blocks[MAX_CHUNK_BLOCKS])
{
    int32_t all[N_BLOCKS];

    if (below(2)) {
        int32_t first = (int32_t)below(N_BLOCKS - MAX_CHUNK_BLOCKS + 1);

        for (int32_t i = 0; i < MAX_CHUNK_BLOCKS; i++)
            blocks[i] = first + i;
        return;
    }
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        all[i] = (int32_t)i;
    for (uint32_t i = 0; i < MAX_CHUNK_BLOCKS; i++) {
        uint32_t j = i + below(N_BLOCKS - i);
        int32_t block = all[j];

        all[j] = all[i];
        all[i] = block;
        blocks[i] = block;
    }
}

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
    uint32_t which;

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
    kvt__scatter(&p->view, some, n_tokens, chunk);
    assert_memory_equal(p->memory, want, p->bytes);
    free(want);
    p->view.null_block = -1;
}

static void
check_round_trip(struct paged *p, const int32_t *blocks, uint32_t n_tokens,
                 unsigned char *chunk, uint64_t bytes)
{
    unsigned char *again = malloc(bytes);

    assert_non_null(again);
    kvt__scatter(&p->view, blocks, n_tokens, chunk);
    kvt__gather(&p->view, blocks, n_tokens, again, NULL);
    assert_memory_equal(again, chunk, bytes);
    free(again);
}

/* Whole and partial chunks of one view; ends its memory. */
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
    free(p->memory);
}

static struct paged
strided(uint32_t n_kv, uint32_t n_layers, uint32_t n_heads, uint32_t head_bytes,
        uint32_t block_tokens)
{
    return (struct paged){ .view = {
        .n_kv = n_kv, .n_layers = n_layers, .n_heads = n_heads,
        .head_bytes = head_bytes, .block_tokens = block_tokens,
        .n_blocks = N_BLOCKS, .null_block = -1 } };
}

/* ------------------------------------------------------------------- views */

static void
layouts_of_engines_are_copied_exactly(void **state)
{
    static const char *const orders[] = {
        "lkbth", /* a tensor a layer, K and V apart, tokens before heads */
        "lkbht", /* the same, heads before tokens */
        "lbkth", /* K and V in turn, block by block */
        "lbkht",
        "lbhkt",
        "lbthk", /* K and V fused, head by head */
        "lbhtk",
        "klbth", /* all keys, then all values */
        "blkth", /* one tensor for all layers, block by block */
        "blkht",
        "bhlkt",
        "tlkbh",
    };

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct paged many = strided(2, 3, 4, 32, 8);
        struct paged one = strided(2, 2, 1, 10, 3); /* one KV head on this rank */
        struct paged padded = strided(2, 2, 3, 16, 4);

        lay_out(&many, orders[i], 0, false);
        check_view(&many);
        lay_out(&one, orders[i], 0, false);
        check_view(&one);
        lay_out(&padded, orders[i], 40, false);
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

/* Where runs are staged, streamed as they are, or longer than one step. */
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
        /* As a view of one head and one token a block, of block_bytes. */
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

    for (size_t i = 0; kvt__stream_at(i); i++) {
        if (!kvt__stream_at(i)->usable())
            continue;
        kvt__stream_use(kvt__stream_at(i));
        failed += cmocka_run_group_tests_name(kvt__stream_at(i)->name, tests, NULL, NULL);
    }
    return failed;
}
