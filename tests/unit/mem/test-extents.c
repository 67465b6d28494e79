/* SPDX-License-Identifier: Apache-2.0
 *
 * Free ranges against a model: an array with a flag for each unit. */
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"

#include "mem/extents.h"

#define N_UNITS 257
#define N_HELD 300

static uint64_t seed = 1;

static size_t
below(size_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (size_t)(seed >> 33) % n;
}

struct model {
    struct kvt__extents e;
    bool is_free[N_UNITS];
    struct kvt__extent held[N_HELD];
    size_t n_held;
};

/* Check that the free ranges are sorted, not adjacent, and equal to the model. */
static void
check(const struct model *m)
{
    bool seen[N_UNITS] = { false };
    size_t end = 0;

    assert_true(m->e.n_free <= m->e.max_free);
    for (size_t i = 0; i < m->e.n_free; i++) {
        const struct kvt__extent *x = &m->e.free[i];

        assert_true(x->n > 0);
        assert_true(!i || x->at > end);
        end = x->at + x->n;
        assert_true(end <= N_UNITS);
        memset(seen + x->at, true, x->n);
    }
    assert_memory_equal(seen, m->is_free, sizeof seen);
}

/* Return the first fit by the model, or N_UNITS. */
static size_t
first_fit(const struct model *m, size_t n)
{
    size_t run = 0;

    for (size_t i = 0; i < N_UNITS; i++) {
        run = m->is_free[i] ? run + 1 : 0;
        if (run == n)
            return i + 1 - n;
    }
    return N_UNITS;
}

static void
take(struct model *m, size_t n)
{
    size_t want = first_fit(m, n), at = 0;
    bool got = kvt__extents_alloc(&m->e, n, &at);

    assert_int_equal(got, want < N_UNITS);
    if (!got)
        return;
    assert_int_equal(at, want);
    memset(m->is_free + at, false, n);
    m->held[m->n_held++] = (struct kvt__extent){ at, n };
}

/* Free a random held range, or a part at either end. */
static void
give(struct model *m)
{
    struct kvt__extent *x = &m->held[below(m->n_held)];
    size_t n = below(4) ? x->n : below(x->n) + 1;
    size_t at = below(2) ? x->at : x->at + x->n - n;

    kvt__extents_free(&m->e, at, n);
    memset(m->is_free + at, true, n);
    if (at == x->at)
        x->at += n;
    x->n -= n;
    if (!x->n)
        *x = m->held[--m->n_held];
}

static void
random_takes_and_gives_follow_the_model(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct model m = { .n_held = 0 };
        size_t largest = round % 2 ? 3 : 40;

        assert_int_equal(kvt__extents_init(&m.e, N_UNITS), 0);
        check(&m);
        assert_false(kvt__extents_alloc(&m.e, 1, &(size_t){ 0 }));
        kvt__extents_free(&m.e, 0, N_UNITS);
        memset(m.is_free, true, N_UNITS);
        for (int i = 0; i < 2000; i++) {
            if (m.n_held && below(2))
                give(&m);
            else
                take(&m, below(largest) + 1);
            check(&m);
        }
        while (m.n_held)
            give(&m);
        check(&m);
        assert_int_equal(m.e.n_free, 1);
        kvt__extents_fini(&m.e);
    }
}

static void
the_maximum_number_of_ranges_has_room(void **state)
{
    (void)state;
    for (size_t n_units = 1; n_units < 12; n_units++) {
        struct kvt__extents e;

        assert_int_equal(kvt__extents_init(&e, n_units), 0);
        for (size_t i = 0; i < n_units; i += 2)
            kvt__extents_free(&e, i, 1);
        assert_int_equal(e.n_free, (n_units + 1) / 2);
        for (size_t i = 1; i < n_units; i += 2)
            kvt__extents_free(&e, i, 1);
        assert_int_equal(e.n_free, 1);
        assert_int_equal(e.free[0].n, n_units);
        kvt__extents_fini(&e);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_takes_and_gives_follow_the_model),
        cmocka_unit_test(the_maximum_number_of_ranges_has_room),
    };

    return cmocka_run_group_tests_name("mem extents", tests, NULL, NULL);
}
