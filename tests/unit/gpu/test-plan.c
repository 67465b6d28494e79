/* SPDX-License-Identifier: Apache-2.0
 *
 * The input of the kernels with numbers near the limits: chunks of nearly 2 GiB, and the number of
 * units of a step.  The kernels are compiled as C. */
#include <stdlib.h>
#include <sys/mman.h>

#include "kvt-test.h"

#include "base/crc32c.h"
#include "gpu/plan.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* kernels have no prototypes */
#include "gpu/kernels.c"

#define MIB ((uint64_t)1 << 20)

static void
all_units_of_a_step_fit(void **state)
{
    static const uint32_t n_processors[] = { 1, 16, 132, 304 };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (uint64_t bytes = 1; bytes <= 1024 * MIB; bytes = bytes * 3 / 2 + 1) {
            uint64_t unit = kvt__plan_unit_bytes(bytes, n_processors[i]);

            assert_true(unit >= KVT__MIN_UNIT_BYTES && unit <= KVT__MAX_UNIT_BYTES);
            assert_true(bytes / unit <= KVT__MAX_UNITS);
        }
        assert_int_equal(kvt__plan_unit_bytes(1024 * MIB, n_processors[i]), MIB);
        assert_int_equal(kvt__plan_unit_bytes(MIB / 64, n_processors[i]), KVT__MIN_UNIT_BYTES);
    }
}

static void
units_contain_all_bytes_in_order(void **state)
{
    struct kvt__unit units[5];

    (void)state;
    assert_int_equal(kvt__plan_units(units, 7, 2, 512, 512 + 4 * MIB + 4, MIB), 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(units[i].job, 7);
        assert_int_equal(units[i].first, (512 + i * MIB) / 4);
        assert_int_equal(units[i].n, i < 4 ? MIB / 4 : 1);
    }
}

static void
divisions_are_exact(void **state)
{
    static const uint32_t divisors[] = { 1, 2, 3, 5, 7, 641, 65535, 65536, 65537, 1048573,
                                         1073741823, 1073741824, 1073741825, 2147483646,
                                         2147483647 };

    (void)state;
    for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
        uint32_t d = divisors[i], last = (uint32_t)KVT__MAX_JOB_BYTES;
        struct kvt__view view = { .opaque = true, .block_bytes = d, .n_layers = 1 };
        const uint32_t n[] = { 0, d - 1, d, last / d * d - 1, last / d * d, last - 1, last };
        struct kvt__copy_job job;

        kvt__plan_job(&job, KVT__JOB_GATHER, &view, 1, 0, 0, 0, 0);
        for (size_t k = 0; k < sizeof n / sizeof *n; k++)
            assert_int_equal(divided(n[k], job.by[0]), n[k] / d);
    }
}

/* --------------------------------------------------------------- large chunks */

enum { N_BLOCKS = 2048, BLOCK = 1048573, NULL_BLOCK = 3, STRIDE = BLOCK + 3 };

static const struct kvt__view views[] = {
    { .n_kv = 1, .n_layers = 1, .n_heads = 1, .head_bytes = BLOCK, .block_tokens = 1,
      .block_stride = -STRIDE, .token_stride = -7, .null_block = NULL_BLOCK },
    { .n_kv = 1, .n_layers = 1, .block_bytes = BLOCK, .block_tokens = 1, .opaque = true,
      .block_stride = -STRIDE, .null_block = NULL_BLOCK },
};

static unsigned char *
reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert_ptr_not_equal(at, MAP_FAILED);
    return at;
}

/* Copy the last bytes of a chunk, whose indexes are close to 2^31.  The blocks are in reverse
 * order in memory, and one of them is not real. */
static void
check_last_bytes(const struct kvt__view *view, bool gather)
{
    const uint64_t bytes = (uint64_t)N_BLOCKS * BLOCK, first = bytes - 3 * MIB - 512;
    const size_t room = (size_t)N_BLOCKS * STRIDE;
    unsigned char *kv = reserve(room), *chunk = reserve(bytes);
    struct kvt__sums *sums = malloc(sizeof *sums);
    uint64_t bases[] = { (uintptr_t)kv + room - STRIDE }, offsets[N_BLOCKS];
    int32_t blocks[N_BLOCKS];
    struct kvt__unit units[4];
    struct kvt__copy_job job;
    uint32_t results[4];

    for (int32_t i = 0; i < N_BLOCKS; i++)
        blocks[i] = N_BLOCKS - 1 - i;
    kvt__plan_offsets(offsets, view, blocks, N_BLOCKS);
    kvt__plan_job(&job, gather ? KVT__JOB_GATHER : KVT__JOB_SCATTER, view, N_BLOCKS, 0,
                  (uintptr_t)chunk, (uintptr_t)bases, (uintptr_t)offsets);
    job.sums = 1;
    kvt__plan_sums(sums);
    uint32_t n = kvt__plan_units(units, 0, 0, first, bytes, MIB);
    assert_int_equal(n, 4);
    for (uint64_t i = first; i < bytes; i++) {
        unsigned char *place = gather ? kv + i / BLOCK * STRIDE + i % BLOCK : chunk + i;

        *place = (unsigned char)(i * 2654435761u >> 24);
    }
    kvt_copy_1(0, 1, &job, units, sums, results, n);
    for (uint64_t i = first; i < bytes; i++) {
        unsigned char in_block = kv[i / BLOCK * STRIDE + i % BLOCK];

        if (blocks[i / BLOCK] != NULL_BLOCK)
            assert_int_equal(in_block, chunk[i]);
        else if (!gather)
            assert_int_equal(in_block, 0);
    }
    uint32_t crc = kvt__plan_crc(kvt__plan_join(0, results, units, n, 0), bytes - first);
    assert_int_equal(crc, kvt__crc32c(0, chunk + first, bytes - first));
    free(sums);
    munmap(kv, room);
    munmap(chunk, bytes);
}

static void
the_last_bytes_of_the_largest_chunk_are_copied(void **state)
{
    (void)state;
    assert_true((uint64_t)N_BLOCKS * BLOCK <= KVT__MAX_JOB_BYTES);
    assert_true((uint64_t)(N_BLOCKS + 1) * BLOCK > KVT__MAX_JOB_BYTES);
    for (int i = 0; i < 2; i++) {
        check_last_bytes(&views[i], true);
        check_last_bytes(&views[i], false);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_units_of_a_step_fit),
        cmocka_unit_test(units_contain_all_bytes_in_order),
        cmocka_unit_test(divisions_are_exact),
        cmocka_unit_test(the_last_bytes_of_the_largest_chunk_are_copied),
    };

    return cmocka_run_group_tests_name("plans of copies", tests, NULL, NULL);
}
