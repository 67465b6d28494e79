/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries of one process: claims, ends of claims, victims, leases. */
#include "table-test.h"

static void
a_published_chunk_is_found_under_its_identity(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__id other = id_of(2);
    struct kvt__record r;

    (void)state;
    assert_false(find(t, 1, NULL));
    assert_int_equal(store(t, 1, 100), 0);
    assert_true(find(t, 1, &r));
    assert_int_equal(r.bytes, 100);
    assert_false(kvt__table_find(t, &name, &other, NULL));
    assert_true(kvt__table_find(t, &name, NULL, &r));
    struct kvt__id first = id_of(1);
    assert_true(kvt__id_equal(&r.id, &first));
    assert_int_equal(store(t, 1, 100), -EEXIST);
    recount(t);
    kvt__table_close(t);
}

static void
many_chunks_grow_the_table(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    for (uint64_t i = 0; i < 200000; i++)
        assert_int_equal(store(t, i, 10), 0);
    for (uint64_t i = 0; i < 200000; i++)
        assert_true(find(t, i, NULL));
    for (uint64_t i = 200000; i < 201000; i++)
        assert_false(find(t, i, NULL));
    recount(t);
    kvt__table_close(t);
}

static void
a_full_budget_evicts_the_oldest(void **state)
{
    struct kvt__table *t = open_table(1000, 0);
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    struct kvt__claim claim;

    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(store(t, i, 10), 0);
    assert_int_equal(store(t, 100, 10), -ENOSPC);
    assert_int_equal(kvt__table_victims(t, victims, 8), 8);
    assert_int_equal(kvt__table_evict(t, &victims[0], false, &claim), 0);
    kvt__table_restore(t, &claim);
    assert_int_equal(kvt__table_evict(t, &victims[0], false, &claim), -ENOENT);
    assert_int_equal(kvt__table_evict(t, &victims[1], false, &claim), 0);
    assert_int_equal(store(t, 100, 10), -ENOSPC);
    kvt__table_evicted(t, &claim);
    assert_int_equal(store(t, 100, 10), 0);
    recount(t);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_published_chunk_is_found_under_its_identity),
        cmocka_unit_test(many_chunks_grow_the_table),
        cmocka_unit_test(a_full_budget_evicts_the_oldest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
