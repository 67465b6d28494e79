/* SPDX-License-Identifier: Apache-2.0
 *
 * Another process acts between any two accesses to shared memory: for each operation of one
 * handle and each access of the operation, another handle sweeps, fills the memory with
 * chunks of another size, clears, forgets or reads just before the access. */
#include "share-test.h"

void table_step(const void *at);
void share_step(const void *at);

enum { N = 12, SMALL = 5000, LARGE = 9000, LIMIT = 1 << 18 };

static struct {
    uint64_t left; /* accesses before the other handle acts; 0: never */
    void (*act)(struct kvt__share *other);
    struct kvt__share *other;
    uint64_t first; /* of the other handle's new chunks */
} step;

void
table_step(const void *at)
{
    (void)at;
}

void
share_step(const void *at)
{
    (void)at;
    if (step.left && !--step.left)
        step.act(step.other);
}

/* ------------------------------------------------------------- the other handle */

static void
sweeps(struct kvt__share *s)
{
    kvt__sh_sweep(s, UINT32_MAX);
    (void)put(s, step.first++, SMALL);
}

/* Chunks of the other size take all segments that can be drained. */
static void
drains(struct kvt__share *s)
{
    for (uint32_t g = 0; g < s->n_segments; g++)
        s->segments[g].used_ns = 1;
    kvt__sh_sweep(s, UINT32_MAX);
    for (unsigned i = 0; i < 2 * LIMIT / LARGE; i++)
        (void)put(s, step.first++ | 1 << 20, LARGE);
}

static void
fills(struct kvt__share *s)
{
    for (unsigned i = 0; i < 2 * LIMIT / SMALL; i++)
        (void)put(s, step.first++, SMALL);
}

static void
clears(struct kvt__share *s)
{
    (void)kvt__share_clear(s);
    fills(s);
}

static void
forgets(struct kvt__share *s)
{
    struct kvt__id id = id_of(1);

    kvt__share_forget(s, &id);
    (void)put(s, 1, SMALL);
    (void)put(s, 2, SMALL);
}

/* ----------------------------------------------------------- the first handle */

static void
store_one(struct kvt__share *s, uint64_t n, uint64_t bytes)
{
    int err = put(s, n, bytes);

    assert_true(!err || err == -EEXIST || err == -ENOSPC || err == -EBUSY);
}

static void
stores(struct kvt__share *s)
{
    store_one(s, 2, SMALL);
}

static void
reads(struct kvt__share *s)
{
    assert_true(look(s, 1, SMALL) >= 0);
}

static void
drops(struct kvt__share *s)
{
    struct kvt__id id = id_of(1);

    kvt__share_forget(s, &id);
}

static void
stores_another_size(struct kvt__share *s)
{
    store_one(s, 3 | 1 << 20, LARGE);
}

/* A process was killed after it freed the entry of chunk 1 and before it freed the slot. */
static void
sweeps_a_slot(struct kvt__share *s)
{
    struct kvt__name name = { .digest = 0 };
    struct kvt__id id = id_of(1);
    struct kvt__record seen;
    uint64_t left = step.left;

    step.left = 0;
    memcpy(&name.hash.bits[0], id.b, sizeof name.hash.bits[0]);
    if (kvt__table_find(s->table, &name, &id, &seen))
        assert_int_equal(kvt__table_forget(s->table, &seen, true), 0);
    step.left = left;
    kvt__sh_sweep(s, UINT32_MAX);
}

static uint64_t
bytes_of(uint64_t n)
{
    return n & 1 << 20 ? LARGE : SMALL;
}

static bool
is_right(void *ctx, const struct kvt__share_info *info)
{
    uint64_t n;

    memcpy(&n, info->id.b + 8, sizeof n);
    assert_int_equal(look(ctx, n, bytes_of(n)), 1);
    return true;
}

/* Returns true if the operation had fewer accesses. */
static bool
once(struct kvt__share *s, void (*fn)(struct kvt__share *s),
     void (*act)(struct kvt__share *s), uint64_t at, bool full)
{
    for (uint64_t i = 0; full && i < LIMIT / SMALL; i++)
        (void)put(s, 100 + i, SMALL);
    assert_int_equal(put(s, 1, SMALL), 0);
    step.act = act;
    step.first = 1000;
    step.left = at;
    fn(s);
    bool done = step.left;
    step.left = 0;
    kvt__share_each(s, is_right, s);
    recount(s);
    assert_int_equal(kvt__share_clear(s), 0);
    return done;
}

static void
beside(const struct temp_dir *dir, void (*fn)(struct kvt__share *s))
{
    static void (*const acts[])(struct kvt__share *s) = { sweeps, drains, fills, clears,
                                                         forgets };
    struct kvt__share *s = share_open(dir, LIMIT);

    step.other = share_open(dir, LIMIT);
    for (unsigned i = 0; i < sizeof acts / sizeof *acts; i++)
        for (int full = 0; full < 2; full++) {
            uint64_t at = 1;

            while (!once(s, fn, acts[i], at, full))
                at += at < 400 ? 1 : at / 10;
            assert_true(at > 3);
        }
    kvt__share_close(step.other);
    kvt__share_close(s);
}

static void
a_put(void **state)
{
    beside(*state, stores);
}

static void
a_put_of_another_size(void **state)
{
    beside(*state, stores_another_size);
}

static void
a_read(void **state)
{
    beside(*state, reads);
}

static void
a_forget(void **state)
{
    beside(*state, drops);
}

static void
a_sweep(void **state)
{
    beside(*state, sweeps_a_slot);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARE_TEST(a_put),
        SHARE_TEST(a_put_of_another_size),
        SHARE_TEST(a_read),
        SHARE_TEST(a_forget),
        SHARE_TEST(a_sweep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
