/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that gives shared host memory its memory: in pieces, stopped, continued by
 * another handle, and on a full tmpfs. */
#include "shared-cpu-test.h"

#include <sched.h>
#include <sys/mount.h>

#include "base/log.h"

enum { N = 2048 /* units: four pieces; a new memory has two pieces */ };

static const struct kvt__mem_claim no_claim = { .fd = -1 };

static uint64_t
n_populated(const struct handle *h)
{
    return __atomic_load_n(&h->m.header->populated_bytes, __ATOMIC_SEQ_CST) / SC_UNIT;
}

static void
grow(struct handle *h, struct sc_growth *g)
{
    assert_int_equal(kvt__sc_grow(g, &h->m, &no_claim), 0);
}

static void
grow_to_the_end(struct handle *h)
{
    struct sc_growth g;

    grow(h, &g);
    while (!atomic_load(&g.ended))
        usleep(1000);
    kvt__sc_stop_growing(&g);
}

static void
all_memory_is_allocated_in_the_end(void **state)
{
    struct handle h = open_populated(*state, N, 0);

    assert_int_equal(put(&h, 1, 1), -ENOSPC);
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

static void
another_handle_continues(void **state)
{
    struct handle h[3];
    struct sc_growth g[3];

    for (unsigned i = 0; i < 3; i++)
        h[i] = open_populated(*state, N, 0);
    for (unsigned i = 0; i < 3; i++)
        grow(&h[i], &g[i]);
    kvt__sc_stop_growing(&g[0]);
    kvt__sc_stop_growing(&g[1]);
    while (!atomic_load(&g[2].ended))
        usleep(1000);
    kvt__sc_stop_growing(&g[2]);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(n_populated(&h[i]), N);
        kvt__table_close(h[i].table);
    }
}

static void
full_tmpfs_leaves_a_smaller_memory(void **state)
{
    const struct temp_dir *dir = *state;

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("kvtier-test", dir->path, "tmpfs", 0, "size=112m"))
        skip();
    struct handle h = open_populated(dir, N, 0);
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N / 4 * 3);
    for (uint64_t i = 0; i < 2 * N; i++) {
        assert_int_equal(put(&h, i, 4), 0);
        assert_int_equal(look(&h, i, 4), 1);
    }
    assert_int_equal(recount(&h), N / 4 * 3 / 4);
    assert_int_equal(put(&h, 3 * N, N / 4 * 3 + 1), -ENOSPC);
    assert_int_equal(put(&h, 3 * N, N / 4 * 3), 0);
    kvt__table_close(h.table);
    assert_int_equal(umount2(dir->path, MNT_DETACH), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(all_memory_is_allocated_in_the_end),
        SHM_TEST(another_handle_continues),
        SHM_TEST(full_tmpfs_leaves_a_smaller_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
