/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of bytes and entries in one process: totals, victims, evictions. */
#include "table-test.h"

/* Return the bytes that the entry counts after a listing found an object of `bytes`. */
static uint64_t
list_bytes(struct kvt__table *t, uint32_t flags, uint64_t bytes)
{
    struct kvt__name name = name_of(1);
    struct kvt__record record = { .flags = KVT__TABLE_UNREAD | flags, .bytes = bytes };

    assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), -EEXIST);
    recount(t);
    return ready_record(t, 1).bytes;
}

static void
a_listed_object_corrects_the_bytes_of_its_entry(void **state)
{
    struct kvt__table *t = open_table(250, 0);
    struct kvt__record r;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(store(t, 2, 100), 0);
    uint64_t word = ready_record(t, 1).word;
    assert_int_equal(list_bytes(t, 0, 30), 100);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 30), 30);
    assert_int_equal(used(t), 130);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 500), 500); /* beyond the limit */
    assert_int_equal(used(t), 600);
    assert_int_equal(store(t, 3, 10), -ENOSPC);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 0), 0);
    assert_int_equal(used(t), 100);
    r = ready_record(t, 1);
    assert_true(r.word == word && !(r.flags & KVT__TABLE_UNREAD));
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    assert_int_equal(used(t), 100);
    recount(t);
    kvt__table_close(t);
}

static void
eviction_is_for_the_version_that_was_seen(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r, nothing = { .entry = 0 }, beyond = { .entry = UINT32_MAX };
    struct kvt__claim c, d;

    (void)state;
    assert_int_equal(kvt__table_evict(t, &nothing, true, &c), -ENOENT);
    assert_int_equal(kvt__table_evict(t, &beyond, true, &c), -ENOENT);
    assert_int_equal(kvt__table_forget(t, &nothing, true), -ENOENT);
    assert_int_equal(kvt__table_forget(t, &beyond, true), -ENOENT);
    assert_true(tb_is_usable(t));
    assert_int_equal(store(t, 1, 100), 0);
    r = ready_record(t, 1);
    assert_int_equal(kvt__table_evict(t, &r, false, &c), 0);
    assert_false(find(t, 1, NULL));
    assert_int_equal(kvt__table_evict(t, &r, false, &d), -ENOENT);
    assert_int_equal(used(t), 100);
    kvt__table_abort(t, &c);
    assert_true(find(t, 1, NULL));
    assert_int_equal(kvt__table_evict(t, &r, false, &c), -ENOENT);
    assert_int_equal(kvt__table_forget(t, &r, true), -ENOENT);
    r = ready_record(t, 1);
    assert_int_equal(kvt__table_evict(t, &r, false, &c), 0);
    kvt__table_evicted(t, &c);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 0);
    recount(t);
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(ready_record(t, 1).entry, r.entry); /* the free list gives the entry again */
    assert_true(ready_record(t, 1).word != r.word);
    recount(t);
    kvt__table_close(t);
}

static void
forget_frees_the_entry(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r;

    (void)state;
    for (uint64_t i = 0; i < 3000; i++)
        assert_int_equal(store(t, i, 10), 0);
    for (uint64_t i = 0; i < 3000; i += 2) {
        r = ready_record(t, i);
        assert_int_equal(kvt__table_forget(t, &r, false), 0);
    }
    struct kvt__name many[100];
    for (uint64_t i = 0; i < 100; i++)
        many[i] = name_of(i);
    kvt__table_prefetch(t, many, 100);
    for (uint64_t i = 0; i < 3000; i++)
        assert_true(find(t, i, NULL) == (i & 1));
    recount(t);
    assert_int_equal(n_unused_claims(t), TB_N_CLAIMS);
    for (uint64_t i = 0; i < 3000; i += 2)
        assert_int_equal(store(t, i, 10), 0);
    assert_int_equal(t->header->n_fresh, 3000);
    recount(t);
    kvt__table_close(t);
}

static void
a_forgotten_entry_makes_room(void **state)
{
    struct kvt__table *t = open_table(100, 0);
    struct kvt__name name = name_of(2);
    struct kvt__record record = record_of_n(2, 100), victim;
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    victim = ready_record(t, 1);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), -ENOSPC);
    assert_int_equal(kvt__table_forget(t, &victim, false), 0);
    assert_false(find(t, 1, NULL));
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &c), 0);
    recount(t);
    assert_true(kvt__table_publish(t, &c));
    assert_int_equal(used(t), 100);
    recount(t);
    /* A victim that has changed stays. */
    assert_int_equal(kvt__table_forget(t, &victim, false), -ENOENT);
    assert_true(find(t, 2, NULL));
    kvt__table_close(t);
}

static bool
is_odd(void *ctx, const struct kvt__record *record)
{
    (*(unsigned *)ctx)++;
    return record->hash.bits[0] & 1;
}

static void
victims_can_be_chosen(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record out[KVT__TABLE_VICTIMS];
    unsigned n_asked = 0;

    (void)state;
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(store(t, i, 10), 0);
    assert_int_equal(kvt__table_victims(t, is_odd, &n_asked, out, 8), 8);
    assert_int_equal(n_asked, 20);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(out[i].hash.bits[0] & 1, 1);
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
    assert_int_equal(kvt__table_victims(t, NULL, NULL, victims, 8), 8);
    assert_int_equal(kvt__table_evict(t, &victims[0], false, &claim), 0);
    kvt__table_abort(t, &claim);
    assert_int_equal(kvt__table_evict(t, &victims[0], false, &claim), -ENOENT);
    assert_int_equal(kvt__table_evict(t, &victims[1], false, &claim), 0);
    assert_int_equal(store(t, 100, 10), -ENOSPC);
    kvt__table_evicted(t, &claim);
    assert_int_equal(store(t, 100, 10), 0);
    recount(t);
    kvt__table_close(t);
}

/* A caller with memory for each entry chooses only entries of one size. */
static void
an_entry_is_a_victim_unless_claimed_or_leased(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record r, out;
    struct kvt__claim claim;

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    r = ready_record(t, 1);
    assert_true(kvt__table_is_victim(t, r.entry, &out));
    assert_true(out.entry == r.entry && out.word == r.word && out.recency_ns == r.recency_ns);
    assert_false(kvt__table_is_victim(t, r.entry + 1, &out));
    assert_false(kvt__table_is_victim(t, UINT32_MAX, &out));
    assert_int_equal(kvt__table_evict(t, &r, false, &claim), 0);
    assert_false(kvt__table_is_victim(t, r.entry, &out));
    kvt__table_abort(t, &claim);
    assert_true(kvt__table_is_victim(t, r.entry, &out));
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + KVT__NS_PER_S, NULL));
    assert_false(kvt__table_is_victim(t, r.entry, &out));
    kvt__table_close(t);
}

static void
budget_is_exact(void **state)
{
    struct kvt__table *t = open_table(100, 0);

    (void)state;
    assert_int_equal(store(t, 1, 101), -ENOSPC);
    assert_int_equal(store(t, 1, 60), 0);
    assert_int_equal(store(t, 2, 41), -ENOSPC);
    assert_int_equal(store(t, 2, 40), 0);
    assert_int_equal(store(t, 3, 1), -ENOSPC);
    assert_int_equal(store(t, 3, 0), 0);
    recount(t);
    kvt__table_close(t);
}

/* A probe fills in the identity of an object whose bytes count already. */
static void
an_unread_entry_is_identified_in_a_full_budget(void **state)
{
    struct kvt__table *t = open_table(100, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record unread = { .flags = KVT__TABLE_UNREAD, .bytes = 100 };
    struct kvt__record known = record_of_n(1, 100), more = record_of_n(1, 101);
    struct kvt__table_totals totals;

    (void)state;
    assert_int_equal(kvt__table_enter(t, &name, &unread, TEXT), 0);
    assert_int_equal(kvt__table_enter(t, &name, &unread, TEXT), -EEXIST);
    assert_false(find(t, 1, NULL));
    assert_int_equal(ready_record(t, 1).flags, KVT__TABLE_UNREAD);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_unread, 1);
    assert_int_equal(kvt__table_enter(t, &name, &more, TEXT), -ENOSPC);
    assert_int_equal(kvt__table_enter(t, &name, &known, TEXT), 0);
    assert_true(find(t, 1, NULL));
    assert_int_equal(ready_record(t, 1).flags, 0);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_unread, 0);
    assert_int_equal(totals.used_bytes, 100);
    assert_int_equal(kvt__table_enter(t, &name, &known, TEXT), -EEXIST);
    assert_int_equal(kvt__table_enter(t, &name, &unread, TEXT), -EEXIST);
    recount(t);
    kvt__table_close(t);
}

/* If the limit has become lower, a change without further bytes still has room. */
static void
an_entry_beyond_the_limit_is_replaced_by_equal_bytes(void **state)
{
    struct kvt__table *t = open_table(250, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record other = record_of_n(2, 500), larger = record_of_n(3, 501);

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 500), 500);
    assert_int_equal(kvt__table_enter(t, &name, &larger, TEXT), -ENOSPC);
    assert_int_equal(kvt__table_enter(t, &name, &other, TEXT), 0);
    assert_int_equal(used(t), 500);
    recount(t);
    kvt__table_close(t);
}

static void
a_full_table_is_no_space(void **state)
{
    struct kvt__table *t = open_table(0, TB_MIN_HEADS);
    struct kvt__record r;

    (void)state;
    for (uint64_t i = 0; i < TB_MIN_HEADS; i++)
        assert_int_equal(store(t, i, 10), 0);
    assert_int_equal(store(t, TB_MIN_HEADS, 10), -ENOSPC);
    recount(t);
    r = ready_record(t, 7);
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    assert_int_equal(store(t, TB_MIN_HEADS, 10), 0);
    assert_int_equal(store(t, 7, 10), -ENOSPC);
    recount(t);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listed_object_corrects_the_bytes_of_its_entry),
        cmocka_unit_test(eviction_is_for_the_version_that_was_seen),
        cmocka_unit_test(forget_frees_the_entry),
        cmocka_unit_test(a_forgotten_entry_makes_room),
        cmocka_unit_test(victims_can_be_chosen),
        cmocka_unit_test(a_full_budget_evicts_the_oldest),
        cmocka_unit_test(an_entry_is_a_victim_unless_claimed_or_leased),
        cmocka_unit_test(budget_is_exact),
        cmocka_unit_test(an_unread_entry_is_identified_in_a_full_budget),
        cmocka_unit_test(an_entry_beyond_the_limit_is_replaced_by_equal_bytes),
        cmocka_unit_test(a_full_table_is_no_space),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
