/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases, pauses, and the orders of eviction. */
#include "table-test.h"

#define HOUR_NS (INT64_C(3600) * KVT__NS_PER_S)

/* The test sets the monotonic clock forward by moved_s seconds, from the n_calls-th call on. */
static int64_t moved_s;
static int n_calls;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int err = __real_clock_gettime(clock, out);

    if (clock == CLOCK_MONOTONIC && n_calls-- <= 0)
        out->tv_sec += moved_s;
    return err;
}

static void
move_clock(int64_t seconds, int after_calls)
{
    moved_s = seconds;
    n_calls = after_calls;
}

static struct kvt__lease leases[8]; /* the last lease of each chunk */

static bool
lease(struct kvt__table *t, uint64_t n, int64_t ns)
{
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);
    struct kvt__record r;

    if (!kvt__table_lease(t, &name, &id, kvt__now_ns() + ns, &r))
        return false;
    assert_true(kvt__id_equal(&r.id, &id));
    leases[n] = r.lease;
    return true;
}

static void
unlease(struct kvt__table *t, uint64_t n)
{
    kvt__table_unlease(t, &leases[n]);
}

static void
hold(struct kvt__table *t, uint64_t n, int64_t ns)
{
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);

    kvt__table_protect(t, &name, &id, kvt__now_ns() + ns);
}

/* Return true if an eviction without force can take the chunk; the chunk stays. */
static bool
is_evictable(struct kvt__table *t, uint64_t n)
{
    struct kvt__record r = ready_record(t, n);
    struct kvt__claim c;
    int err = kvt__table_evict(t, &r, false, &c);

    assert_true(!err || err == -EBUSY);
    if (!err)
        kvt__table_abort(t, &c);
    recount(t);
    return !err;
}

/* The lease of the entry ended an hour ago. */
static void
expire(struct kvt__table *t, uint64_t n)
{
    uint32_t *lease = &t->hot[ready_record(t, n).entry].lease;
    uint32_t ended = (uint32_t)((kvt__now_ns() - HOUR_NS) / KVT__NS_PER_S);

    *lease = ended << TB_LEASE_END | (*lease & ((1u << TB_LEASE_END) - 1));
}

static void
the_last_holder_ends_a_lease(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_false(lease(t, 1, HOUR_NS));
    assert_int_equal(store(t, 1, 10), 0);
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    assert_true(lease(t, 1, HOUR_NS));
    assert_true(lease(t, 1, HOUR_NS));
    assert_false(is_evictable(t, 1));
    unlease(t, 1);
    assert_false(is_evictable(t, 1));
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    unlease(t, 1);
    assert_true(lease(t, 1, HOUR_NS));
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    kvt__table_close(t);
}

static void
a_lease_stops_eviction_replacement_and_victims(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r, out[KVT__TABLE_VICTIMS];
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, 8), 1);
    assert_true(lease(t, 1, HOUR_NS));
    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, 8), 0);
    r = ready_record(t, 1);
    assert_int_equal(kvt__table_forget(t, &r, false), -EBUSY);
    assert_int_equal(claim_n(t, 1, 2, 10, &c), -EBUSY);
    assert_true(find(t, 1, NULL));
    assert_int_equal(used(t), 10);
    recount(t);
    assert_int_equal(kvt__table_evict(t, &r, true, &c), 0);
    kvt__table_abort(t, &c);
    r = ready_record(t, 1);
    assert_int_equal(kvt__table_forget(t, &r, true), 0);
    recount(t);
    /* The next chunk of the entry has no lease. */
    assert_int_equal(store(t, 3, 10), 0);
    assert_int_equal(ready_record(t, 3).entry, r.entry);
    assert_true(is_evictable(t, 3));
    kvt__table_close(t);
}

static void
forget(struct kvt__table *t, uint64_t n, bool force)
{
    struct kvt__record r = ready_record(t, n);

    assert_int_equal(kvt__table_forget(t, &r, force), 0);
}

/* A corrupt chunk leaves the table although the chunk is leased, and is stored again. */
static void
the_end_of_a_void_lease_ends_no_other(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(store(t, 1, 10), 0);
        assert_true(lease(t, 1, HOUR_NS));
        struct kvt__lease old = leases[1];
        assert_true(kvt__table_has_lease(t, &old));
        forget(t, 1, true);
        assert_int_equal(store(t, 1, 10), 0);
        assert_int_equal(ready_record(t, 1).entry, old.entry);
        assert_false(kvt__table_has_lease(t, &old));
        assert_true(lease(t, 1, HOUR_NS));
        kvt__table_unlease(t, &old);
        assert_false(is_evictable(t, 1));
        unlease(t, 1);
        assert_true(is_evictable(t, 1));
        kvt__table_unlease(t, &old);
        forget(t, 1, false);
    }
    kvt__table_close(t);
}

/* The index was deleted, and a new index has the chunk in the entry with the old number. */
static void
a_lease_of_a_replaced_table_is_void(void **state)
{
    struct kvt__table *old = open_table(0, 0), *t = open_table(0, 0);

    (void)state;
    t->header->number[0] = 7;
    assert_int_equal(store(old, 1, 10), 0);
    assert_int_equal(store(t, 1, 10), 0);
    assert_true(lease(old, 1, HOUR_NS));
    struct kvt__lease lease_of_old = leases[1];
    assert_true(lease(t, 1, HOUR_NS));
    assert_int_equal(leases[1].entry, lease_of_old.entry);
    assert_false(kvt__table_has_lease(t, &lease_of_old));
    kvt__table_unlease(t, &lease_of_old);
    assert_false(is_evictable(t, 1));
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    kvt__table_close(old);
    kvt__table_close(t);
}

static void
a_lease_ends_by_time(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    assert_true(lease(t, 1, HOUR_NS));
    assert_true(lease(t, 1, HOUR_NS));
    expire(t, 1);
    assert_true(is_evictable(t, 1));
    /* A new lease does not count the holders of an expired lease. */
    assert_true(lease(t, 1, HOUR_NS));
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    /* A lease that would end in the past leases nothing. */
    assert_true(lease(t, 1, -1));
    assert_true(is_evictable(t, 1));
    /* A lease is at most a day long. */
    assert_true(lease(t, 1, INT64_MAX / 2));
    assert_false(is_evictable(t, 1));
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    kvt__table_close(t);
}

static void
a_lease_is_never_shortened(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    assert_true(lease(t, 1, HOUR_NS));
    uint32_t end = t->hot[0].lease >> TB_LEASE_END;
    assert_true(lease(t, 1, HOUR_NS / 2));
    assert_int_equal(t->hot[0].lease >> TB_LEASE_END, end);
    hold(t, 1, HOUR_NS / 2);
    assert_int_equal(t->hot[0].lease >> TB_LEASE_END, end);
    hold(t, 1, 2 * HOUR_NS);
    assert_true(t->hot[0].lease >> TB_LEASE_END >= end + 3599);
    assert_int_equal(t->hot[0].lease & TB_HOLDERS, 2);
    unlease(t, 1);
    unlease(t, 1);
    assert_true(is_evictable(t, 1));
    hold(t, 1, HOUR_NS);
    assert_false(is_evictable(t, 1));
    kvt__table_close(t);
}

/* With more holders than the count can store, only time ends the lease. */
static void
a_lease_with_too_many_holders_stays(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    for (unsigned i = 0; i < TB_HOLDERS - 1; i++)
        assert_true(lease(t, 1, HOUR_NS));
    for (unsigned i = 0; i < TB_HOLDERS - 1; i++)
        unlease(t, 1);
    assert_true(is_evictable(t, 1));
    for (unsigned i = 0; i < TB_HOLDERS + 5; i++)
        assert_true(lease(t, 1, HOUR_NS));
    for (unsigned i = 0; i < TB_HOLDERS + 5; i++)
        unlease(t, 1);
    assert_false(is_evictable(t, 1));
    expire(t, 1);
    assert_true(is_evictable(t, 1));
    kvt__table_close(t);
}

#define WRAP_S (TB_LEASE_S + INT64_C(1)) /* the seconds of a lease begin at 0 again */

static int64_t
now_s(void)
{
    return kvt__now_ns() / KVT__NS_PER_S;
}

/* A host is up for 48 days. */
static void
leases_are_right_where_their_seconds_wrap(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(store(t, i, 10), 0);
    int64_t to_wrap = WRAP_S - now_s() % WRAP_S;
    static const int64_t before_s[] = { 25 * 3600, 24 * 3600, 3600, 2, 1, 0, -1, -3600 };
    for (size_t i = 0; i < sizeof before_s / sizeof *before_s; i++) {
        move_clock(to_wrap - before_s[i], 0);
        assert_true(is_evictable(t, 1));
        assert_true(lease(t, 1, HOUR_NS));
        assert_true(lease(t, 2, 24 * HOUR_NS));
        assert_false(is_evictable(t, 1));
        assert_false(is_evictable(t, 2));
        unlease(t, 1);
        unlease(t, 2);
        assert_true(is_evictable(t, 1));
        assert_true(is_evictable(t, 2));
    }
    /* An end at each second around the wrap. */
    for (int64_t s = -3; s < 3; s++) {
        move_clock(to_wrap - 3600 + s, 0);
        assert_true(lease(t, 0, HOUR_NS));
        move_clock(to_wrap - 1 + s, 0);
        assert_false(is_evictable(t, 0));
        move_clock(to_wrap + 2 + s, 0);
        assert_true(is_evictable(t, 0));
    }
    move_clock(0, 0);
    kvt__table_close(t);
}

/* A process is stopped during a lease and goes on after the end of the lease: the lease of another
 * holder stays. */
static void
a_late_lease_does_not_end_another(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    for (int calls = 1; calls < 5; calls++) {
        move_clock(0, 0);
        assert_true(lease(t, 1, HOUR_NS));
        move_clock(10, calls);
        (void)lease(t, 1, 5 * KVT__NS_PER_S);
        assert_false(is_evictable(t, 1));
    }
    move_clock(0, 0);
    kvt__table_close(t);
}

/* A table whose entries have ages and uses: chunk i is used at second (i + 1) * 4096,
 * 10 - i times. */
static struct kvt__table *
aged(enum kvt__order order)
{
    struct kvt__table_params params = { .writer = true, .order = order };
    struct kvt__table *t;

    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    for (uint64_t i = 0; i < 10; i++) {
        struct kvt__name name = name_of(i);
        struct kvt__record r = record_of_n(i, 10);

        r.recency_ns = (int64_t)(i + 1) * 4096 * KVT__NS_PER_S;
        r.n_uses = (uint32_t)(10 - i);
        assert_int_equal(kvt__table_enter(t, &name, &r, TEXT), 0);
    }
    return t;
}

/* Return true if the policy may evict a before b. */
static bool
precedes(enum kvt__order order, const struct kvt__record *a, const struct kvt__record *b)
{
    if (order == KVT__EVICT_LFU && a->n_uses != b->n_uses)
        return a->n_uses < b->n_uses;
    return order == KVT__EVICT_MRU ? a->recency_ns >= b->recency_ns
                                   : a->recency_ns <= b->recency_ns;
}

static uint64_t
best_victim(struct kvt__table *t)
{
    struct kvt__record out[KVT__TABLE_VICTIMS];
    uint64_t n;

    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, KVT__TABLE_VICTIMS), 8);
    for (unsigned i = 1; i < 8; i++)
        assert_true(precedes(t->order, &out[i - 1], &out[i]));
    memcpy(&n, out[0].id.b + 8, sizeof n);
    return n;
}

static void
touch(struct kvt__table *t, uint64_t n)
{
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);

    kvt__table_touch(t, &name, &id);
}

static void
each_order_has_its_victim(void **state)
{
    static const struct {
        const char *name;
        enum kvt__order order;
        uint64_t victim, after; /* after a use of chunk 0 and two of chunk 9 */
    } rows[] = {
        { "LRU", KVT__EVICT_LRU, 0, 1 },
        { "LFU", KVT__EVICT_LFU, 9, 8 },
        { "FIFO", KVT__EVICT_FIFO, 0, 0 },
        { "MRU", KVT__EVICT_MRU, 9, 9 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(kvt__order_from_name(rows[i].name), rows[i].order);
        struct kvt__table *t = aged(rows[i].order);
        assert_int_equal(best_victim(t), rows[i].victim);
        touch(t, 0);
        wait_for_tick();
        touch(t, 9);
        touch(t, 9);
        assert_int_equal(best_victim(t), rows[i].after);
        assert_int_equal(ready_record(t, 9).n_uses, 3);
        assert_int_equal(ready_record(t, 9).recency_ns == 40960 * KVT__NS_PER_S,
                         rows[i].order == KVT__EVICT_FIFO);
        kvt__table_close(t);
    }
    assert_int_equal(kvt__order_from_name("lottery"), KVT__EVICT_LRU);
}

static void
uses_are_counted_to_4095(void **state)
{
    struct kvt__table *t = aged(KVT__EVICT_LFU);

    (void)state;
    for (unsigned i = 0; i < 5000; i++)
        touch(t, 3);
    assert_int_equal(ready_record(t, 3).n_uses, 4095);
    assert_true(lease(t, 4, HOUR_NS)); /* a use too */
    assert_int_equal(ready_record(t, 4).n_uses, 7);
    kvt__table_close(t);
}

/* The call of another thread, after a search for a victim has chosen chunk 0, the oldest. */
struct meanwhile {
    struct kvt__table *t;
    enum { IS_CLAIMED, IS_USED, IS_REPLACED } what;
    unsigned n_asked;
    struct kvt__claim claim;
};

static bool
suits_and_changes(void *ctx, const struct kvt__record *record)
{
    struct meanwhile *m = ctx;

    (void)record;
    if (++m->n_asked != 10)
        return true;
    struct kvt__record oldest = ready_record(m->t, 0);

    if (m->what == IS_CLAIMED) {
        assert_int_equal(kvt__table_evict(m->t, &oldest, false, &m->claim), 0);
    } else if (m->what == IS_USED) {
        touch(m->t, 0);
    } else {
        assert_int_equal(kvt__table_forget(m->t, &oldest, false), 0);
        assert_int_equal(store(m->t, 100, 10), 0);
        assert_int_equal(ready_record(m->t, 100).entry, oldest.entry);
    }
    return true;
}

/* If a chosen entry changes before the thread reads the entry, the thread must choose again: the
 * thread must neither report that no victim exists, nor evict the chunk that another thread has
 * just stored in the entry. */
static void
a_search_chooses_again_if_its_choice_has_changed(void **state)
{
    (void)state;
    for (int what = IS_CLAIMED; what <= IS_REPLACED; what++) {
        struct meanwhile m = { .t = aged(KVT__EVICT_LRU), .what = what };
        struct kvt__record out;

        assert_int_equal(kvt__table_victims(m.t, suits_and_changes, &m, &out, 1), 1);
        assert_int_equal(out.entry, ready_record(m.t, 1).entry);
        if (what == IS_CLAIMED)
            kvt__table_abort(m.t, &m.claim);
        kvt__table_close(m.t);
    }
}

/* Every entry is in a sample: as many calls as the stride return all entries. */
static void
samples_cover_a_large_table(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record out[KVT__TABLE_VICTIMS];

    (void)state;
    for (uint64_t i = 0; i < 2560; i++)
        assert_int_equal(store(t, i, 10), 0);
    for (uint64_t i = 0; i < 2560; i += 257) {
        uint64_t *recency = &t->cold[ready_record(t, i).entry].recency;
        uint64_t old = *recency;
        bool found = false;

        *recency = 4096;
        for (unsigned n = 0; n < 20; n++)
            found |= kvt__table_victims(t, NULL, NULL, out, 1) == 1 && out[0].recency_ns == 4096;
        assert_true(found);
        *recency = old;
    }
    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, 100), KVT__TABLE_VICTIMS);
    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, 0), 0);
    kvt__table_close(t);
}

/* Small chunks made many entries, and all entries but one are FREE now. */
static void
the_only_chunk_of_many_entries_is_a_victim(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r, out[KVT__TABLE_VICTIMS];

    (void)state;
    for (uint64_t i = 0; i < 20000; i++)
        assert_int_equal(store(t, i, 10), 0);
    for (uint64_t i = 0; i < 20000; i++) {
        r = ready_record(t, i);
        assert_true(i == 12345 || !kvt__table_forget(t, &r, false));
    }
    r = ready_record(t, 12345);
    for (uint32_t hand = r.entry - 200; hand < r.entry + 200; hand++) {
        t->header->next_sample = hand;
        assert_int_equal(kvt__table_victims(t, NULL, NULL, out, KVT__TABLE_VICTIMS), 1);
        assert_int_equal(out[0].entry, r.entry);
    }
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, KVT__TABLE_VICTIMS), 0);
    kvt__table_close(t);
}

/* The clock was set back by a year: chunks with an older use do not look younger than all other
 * chunks for a year. */
static void
future_times_become_the_current_time(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record out[KVT__TABLE_VICTIMS];

    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        struct kvt__name name = name_of(i);
        struct kvt__record r = record_of_n(i, 10);

        r.recency_ns = kvt__wall_ns() + 365 * 24 * HOUR_NS;
        r.n_uses = 7;
        assert_int_equal(kvt__table_enter(t, &name, &r, TEXT), 0);
    }
    (void)kvt__table_victims(t, NULL, NULL, out, KVT__TABLE_VICTIMS);
    assert_true(ready_record(t, 0).recency_ns <= kvt__wall_ns());
    assert_int_equal(ready_record(t, 0).n_uses, 7);
    wait_for_tick();
    assert_int_equal(store(t, 100, 10), 0);
    assert_int_equal(kvt__table_victims(t, NULL, NULL, out, KVT__TABLE_VICTIMS), 8);
    for (unsigned i = 0; i < 8; i++)
        assert_true(out[i].entry != ready_record(t, 100).entry);
    kvt__table_close(t);
}

static void
a_pause_ends(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_false(kvt__table_is_paused(t, KVT__PAUSE_READS));
    assert_false(kvt__table_resume(t, KVT__PAUSE_READS));
    assert_true(kvt__table_pause(t, KVT__PAUSE_READS, 100 * KVT__NS_PER_S));
    assert_true(kvt__table_is_paused(t, KVT__PAUSE_READS));
    assert_false(kvt__table_is_paused(t, KVT__PAUSE_WRITES));
    assert_false(kvt__table_pause(t, KVT__PAUSE_READS, 100 * KVT__NS_PER_S));
    assert_true(kvt__table_resume(t, KVT__PAUSE_READS));
    assert_false(kvt__table_is_paused(t, KVT__PAUSE_READS));
    t->header->paused_until[1] = (uint64_t)(kvt__now_ns() - 1);
    assert_false(kvt__table_is_paused(t, KVT__PAUSE_WRITES));
    t->header->paused_until[1] = (uint64_t)(kvt__now_ns() + KVT__TABLE_PAUSE_MAX_NS * 2);
    assert_false(kvt__table_is_paused(t, KVT__PAUSE_WRITES));
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_holder_ends_a_lease),
        cmocka_unit_test(a_lease_stops_eviction_replacement_and_victims),
        cmocka_unit_test(the_end_of_a_void_lease_ends_no_other),
        cmocka_unit_test(a_lease_of_a_replaced_table_is_void),
        cmocka_unit_test(a_lease_ends_by_time),
        cmocka_unit_test(a_lease_is_never_shortened),
        cmocka_unit_test(a_lease_with_too_many_holders_stays),
        cmocka_unit_test(leases_are_right_where_their_seconds_wrap),
        cmocka_unit_test(a_late_lease_does_not_end_another),
        cmocka_unit_test(each_order_has_its_victim),
        cmocka_unit_test(uses_are_counted_to_4095),
        cmocka_unit_test(a_search_chooses_again_if_its_choice_has_changed),
        cmocka_unit_test(samples_cover_a_large_table),
        cmocka_unit_test(the_only_chunk_of_many_entries_is_a_victim),
        cmocka_unit_test(future_times_become_the_current_time),
        cmocka_unit_test(a_pause_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
