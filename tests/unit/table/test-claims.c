/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims of names in one process: ends of claims, replacements of objects, leases. */
#include "table-test.h"

static void
a_claim_is_a_miss_and_blocks_the_name(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__claim c, d;
    struct kvt__name name = name_of(1);
    struct kvt__record unread = { .flags = KVT__TABLE_UNREAD };

    (void)state;
    assert_int_equal(claim_n(t, 1, 1, 100, &c), 0);
    assert_int_equal(c.kind, KVT__CLAIM_NEW);
    assert_false(find(t, 1, NULL));
    assert_int_equal(claim_n(t, 1, 1, 100, &d), -EBUSY);
    assert_null(d.table);
    assert_int_equal(claim_n(t, 1, 2, 100, &d), -EBUSY);
    assert_true(kvt__table_enter(t, &name, &unread, TEXT) < 0);
    assert_int_equal(used(t), 100);
    recount(t);
    kvt__table_abort(t, &c);
    assert_null(c.table);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 0);
    recount(t);
    assert_int_equal(n_unused_claims(t), TB_N_CLAIMS);
    kvt__table_close(t);
}

static void
a_claim_ends_once_and_at_its_own_handle(void **state)
{
    struct kvt__table *t = open_table(0, 0), *other = open_table(0, 0);
    struct kvt__claim c, copy;

    (void)state;
    assert_int_equal(claim_n(t, 1, 1, 100, &c), 0);
    assert_false(kvt__table_publish(other, &c));
    copy = c;
    assert_true(kvt__table_publish(t, &c));
    assert_false(kvt__table_publish(t, &c));
    assert_true(find(t, 1, NULL));
    recount(t);
    (void)copy;
    kvt__table_close(other);
    kvt__table_close(t);
}

static void
replacement_counts_both_objects_until_its_end(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__id new = id_of(2);
    struct kvt__name name = name_of(1);
    struct kvt__claim c;
    struct kvt__record r;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(claim_n(t, 1, 2, 70, &c), 0);
    assert_int_equal(c.kind, KVT__CLAIM_REPLACE);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 170);
    recount(t);
    kvt__table_abort(t, &c);
    assert_int_equal(used(t), 100);
    assert_true(find(t, 1, NULL));
    recount(t);
    assert_int_equal(claim_n(t, 1, 2, 70, &c), 0);
    c.flags = KVT__TABLE_FOREIGN;
    assert_true(kvt__table_publish(t, &c));
    assert_int_equal(used(t), 70);
    assert_false(find(t, 1, NULL));
    assert_true(kvt__table_find(t, &name, &new, &r));
    assert_int_equal(r.bytes, 70);
    assert_int_equal(r.flags, KVT__TABLE_FOREIGN);
    recount(t);
    kvt__table_close(t);
}

/* The entry of a replaced object gets the recency of a new object. */
static void
replacement_is_a_use(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record old = { .id = id_of(1), .recency_ns = 4096 };
    struct kvt__claim c;

    (void)state;
    assert_int_equal(kvt__table_enter(t, &name, &old, TEXT), 0);
    assert_int_equal(claim_n(t, 1, 2, 70, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    assert_true(ready_record(t, 1).recency_ns > 4096);
    kvt__table_close(t);
}

static void
an_abort_keeps_an_unread_entry_unread(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record unread = { .flags = KVT__TABLE_UNREAD, .bytes = 5 };
    struct kvt__table_totals totals;
    struct kvt__claim c;

    (void)state;
    assert_int_equal(kvt__table_enter(t, &name, &unread, TEXT), 0);
    assert_int_equal(claim_n(t, 1, 1, 7, &c), 0);
    kvt__table_abort(t, &c);
    assert_int_equal(ready_record(t, 1).flags, KVT__TABLE_UNREAD);
    struct kvt__record r = ready_record(t, 1);
    assert_int_equal(kvt__table_evict(t, &r, false, &c), 0);
    kvt__table_abort(t, &c);
    assert_int_equal(ready_record(t, 1).flags, KVT__TABLE_UNREAD);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_unread, 1);
    recount(t);
    kvt__table_close(t);
}

/* A put by key replaces a chunk that is READY under the same identity, leased or not. */
static void
an_overwriting_claim_replaces_any_entry(void **state)
{
    struct kvt__table *t = open_table(1000, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record record = record_of_n(1, 70);
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), -EEXIST);
    record.flags = KVT__TABLE_OVERWRITE;
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL));
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 170);
    kvt__table_abort(t, &c);
    assert_int_equal(used(t), 100);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    assert_int_equal(used(t), 70);
    assert_int_equal(ready_record(t, 1).flags, 0);
    recount(t);
    kvt__table_close(t);
}

/* After another chunk has taken the name, leases on the first chunk are void. */
static void
leases_end_with_the_identity(void **state)
{
    struct kvt__table *t = open_table(1000, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record record = record_of_n(2, 70);
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL));
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), -EBUSY);
    record.flags = KVT__TABLE_OVERWRITE;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    record.id = record_of_n(3, 70).id;
    record.flags = 0;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    kvt__table_abort(t, &c);
    /* A lease on an unread entry holds for the chunk with the identity that a read finds. */
    record.flags = KVT__TABLE_OVERWRITE | KVT__TABLE_UNREAD;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL));
    record.flags = KVT__TABLE_OVERWRITE;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    record.id = record_of_n(4, 70).id;
    record.flags = 0;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), -EBUSY);
    recount(t);
    kvt__table_close(t);
}

static void
too_many_claims_are_refused(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    static struct kvt__claim claims[TB_N_CLAIMS];
    struct kvt__record r;
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(t, TB_N_CLAIMS, 1), 0);
    for (uint64_t i = 0; i < TB_N_CLAIMS; i++)
        assert_int_equal(claim_n(t, i, i, 1, &claims[i]), 0);
    assert_int_equal(claim_n(t, TB_N_CLAIMS + 1, 1, 1, &c), -EAGAIN);
    r = ready_record(t, TB_N_CLAIMS);
    assert_int_equal(kvt__table_evict(t, &r, true, &c), -EAGAIN);
    assert_int_equal(kvt__table_forget(t, &r, true), -EAGAIN);
    recount(t);
    for (uint64_t i = 0; i < TB_N_CLAIMS; i++) {
        if (i & 1)
            assert_true(kvt__table_publish(t, &claims[i]));
        else
            kvt__table_abort(t, &claims[i]);
    }
    for (uint64_t i = 0; i < TB_N_CLAIMS; i++)
        assert_true(find(t, i, NULL) == (i & 1));
    recount(t);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_claim_is_a_miss_and_blocks_the_name),
        cmocka_unit_test(a_claim_ends_once_and_at_its_own_handle),
        cmocka_unit_test(replacement_counts_both_objects_until_its_end),
        cmocka_unit_test(replacement_is_a_use),
        cmocka_unit_test(an_abort_keeps_an_unread_entry_unread),
        cmocka_unit_test(an_overwriting_claim_replaces_any_entry),
        cmocka_unit_test(leases_end_with_the_identity),
        cmocka_unit_test(too_many_claims_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
