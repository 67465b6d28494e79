/* SPDX-License-Identifier: Apache-2.0
 *
 * Times to live of entries. */
#include "place-test.h"

#define UNIT_S 16
#define UNIT_NS (UNIT_S * KVT__NS_PER_S)
#define DAY_S INT64_C(86400)

/* Both clocks of the test, in seconds. */
static int64_t wall_s, mono_s;

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    out->tv_sec = clock == CLOCK_MONOTONIC ? mono_s : wall_s;
    out->tv_nsec = 0;
    return 0;
}

static int64_t
in_s(int64_t seconds)
{
    return (wall_s + seconds) * KVT__NS_PER_S;
}

/* Claim a chunk that lives until expires_ns. */
static int
claim_until(struct kvt__table *t, uint64_t n, int64_t expires_ns, struct kvt__claim *out)
{
    struct kvt__name name = name_of(n);
    struct kvt__record record = record_of_n(n, 10);

    record.expires_ns = expires_ns;
    return kvt__table_claim(t, &name, &record, TEXT, out);
}

static int
store_until(struct kvt__table *t, uint64_t n, int64_t expires_ns)
{
    struct kvt__claim claim;
    int err = claim_until(t, n, expires_ns, &claim);

    if (!err)
        assert_true(kvt__table_publish(t, &claim));
    return err;
}

/* Return the entry of a chunk, also if the entry has expired. */
static struct kvt__record
entry_of(struct kvt__table *t, uint64_t n)
{
    struct kvt__record r = { 0 };
    struct kvt__id id = id_of(n);

    for (uint32_t i = 0; i < t->header->n_fresh; i++)
        if (kvt__table_read(t, i, &r) && kvt__id_equal(&r.id, &id))
            return r;
    fail_msg("chunk %u has no entry", (unsigned)n);
    return r;
}

static int
setup(void **state)
{
    wall_s = INT64_C(1800000000); /* a multiple of UNIT_S */
    mono_s = 1000;
    *state = open_table(0, 0);
    return 0;
}

static int
teardown(void **state)
{
    recount(*state);
    kvt__table_close(*state);
    return 0;
}

/* ------------------------------------------------------------------ lookups */

static void
an_expired_entry_is_neither_found_nor_leased(void **state)
{
    struct kvt__table *t = *state;
    struct kvt__name name = name_of(1);
    struct kvt__record r;
    struct kvt__claim claim;
    int64_t end = in_s(10 * UNIT_S);

    assert_int_equal(store_until(t, 1, end), 0);
    assert_int_equal(store(t, 2, 10), 0);
    wall_s += 10 * UNIT_S - 1;
    assert_true(find(t, 1, &r));
    assert_int_equal(r.expires_ns, end);
    assert_false(kvt__table_is_expired(&r));
    wall_s++;
    assert_false(find(t, 1, &r));
    assert_false(find(t, 1, NULL));
    assert_false(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 600 * KVT__NS_PER_S, &r));
    assert_false(kvt__table_lease(t, &name, NULL, 0, &r));
    assert_true(find(t, 2, &r));
    assert_int_equal(r.expires_ns, 0);

    r = entry_of(t, 1);
    assert_true(kvt__table_is_expired(&r));
    assert_int_equal(kvt__table_evict(t, &r, false, &claim), 0); /* no lease is left */
    kvt__table_evicted(t, &claim);
}

static void
a_time_to_live_is_rounded_down(void **state)
{
    struct kvt__table *t = *state;

    wall_s += 3;
    assert_int_equal(store_until(t, 1, in_s(UNIT_S)), 0);
    assert_int_equal(entry_of(t, 1).expires_ns, in_s(UNIT_S - 3));
    assert_int_equal(store_until(t, 2, in_s(1)), 0);
    assert_false(find(t, 2, NULL));
    assert_int_equal(store_until(t, 3, KVT__EXPIRED), 0);
    assert_false(find(t, 3, NULL));
    assert_int_equal(store_until(t, 4, in_s(1000 * DAY_S)), 0);
    assert_true(entry_of(t, 4).expires_ns <= in_s(KVT__TABLE_TTL_MAX_S));
    assert_true(entry_of(t, 4).expires_ns > in_s(KVT__TABLE_TTL_MAX_S - UNIT_S));
}

/* 0 in the field of an entry means no end. */
static void
no_end_is_stored_as_none(void **state)
{
    struct kvt__table *t = *state;
    int64_t units = wall_s / UNIT_S;
    int64_t end = (units / (int64_t)(TB_EXPIRY + 1) + 1) * (int64_t)(TB_EXPIRY + 1);

    wall_s = (end - 100) * UNIT_S;
    assert_int_equal(store_until(t, 1, end * UNIT_NS), 0);
    assert_int_equal(entry_of(t, 1).expires_ns, (end - 1) * UNIT_NS);
}

static void
an_entry_stays_expired(void **state)
{
    struct kvt__table *t = *state;

    assert_int_equal(store_until(t, 1, in_s(KVT__TABLE_TTL_MAX_S)), 0);
    for (int64_t day = 0; day < 770; day++, wall_s += DAY_S)
        assert_int_equal(find(t, 1, NULL), day < 180);
}

static void
a_clock_that_is_set_back_makes_no_entry_live_longer_than_180_days(void **state)
{
    struct kvt__table *t = *state;

    assert_int_equal(store_until(t, 1, in_s(KVT__TABLE_TTL_MAX_S)), 0);
    wall_s -= DAY_S;
    assert_false(find(t, 1, NULL));
}

/* ------------------------------------------------------------------- stores */

static void
a_store_replaces_an_expired_entry(void **state)
{
    struct kvt__table *t = *state;
    struct kvt__name name = name_of(1);
    struct kvt__record r;

    assert_int_equal(store_until(t, 1, in_s(UNIT_S)), 0);
    assert_int_equal(store_until(t, 1, in_s(UNIT_S)), -EEXIST);
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 600 * KVT__NS_PER_S, &r));
    wall_s += UNIT_S;
    assert_int_equal(store_until(t, 1, in_s(2 * UNIT_S)), 0); /* although a lease holds */
    assert_true(find(t, 1, &r));
    assert_int_equal(r.expires_ns, in_s(2 * UNIT_S));
    wall_s += 2 * UNIT_S;
    assert_int_equal(store_until(t, 1, 0), 0);
    assert_true(find(t, 1, &r));
    assert_int_equal(r.expires_ns, 0);
}

/* An object without identity that a listing finds: the expired entry stays until its object is
 * deleted. */
static void
an_unread_object_does_not_renew_an_expired_entry(void **state)
{
    struct kvt__table *t = *state;
    struct kvt__name name = name_of(1);
    struct kvt__record unread = { .bytes = 10, .flags = KVT__TABLE_UNREAD };

    assert_int_equal(store_until(t, 1, KVT__EXPIRED), 0);
    assert_int_equal(kvt__table_enter(t, &name, &unread, TEXT), -EEXIST);
    assert_false(find(t, 1, NULL));
}

/* If the process of the claim dies, the entry may describe either object. */
static void
the_earlier_end_counts_until_a_replacement_is_published(void **state)
{
    struct kvt__table *t = *state;
    struct kvt__name name = name_of(1);
    struct kvt__record other = record_of_n(2, 10);
    struct kvt__claim claim;
    int64_t end = in_s(UNIT_S);

    assert_int_equal(store_until(t, 1, 0), 0);
    other.expires_ns = in_s(2 * UNIT_S);
    assert_int_equal(kvt__table_claim(t, &name, &other, TEXT, &claim), 0);
    kvt__table_abort(t, &claim);
    assert_int_equal(entry_of(t, 1).expires_ns, other.expires_ns);
    other.expires_ns = end;
    assert_int_equal(kvt__table_claim(t, &name, &other, TEXT, &claim), 0);
    kvt__table_abort(t, &claim);
    assert_int_equal(entry_of(t, 1).expires_ns, end);

    for (int64_t later = 0; later <= 2 * end; later += 2 * end) {
        other.expires_ns = later;
        assert_int_equal(kvt__table_claim(t, &name, &other, TEXT, &claim), 0);
        kvt__table_abort(t, &claim);
        assert_int_equal(entry_of(t, 1).expires_ns, end);
    }
    other.expires_ns = 0;
    assert_int_equal(kvt__table_claim(t, &name, &other, TEXT, &claim), 0);
    assert_true(kvt__table_publish(t, &claim));
    assert_int_equal(entry_of(t, 2).expires_ns, 0);
}

static void
the_longer_time_to_live_counts(void **state)
{
    struct kvt__table *t = *state;
    int64_t end = in_s(10 * UNIT_S);
    struct kvt__record r;

    assert_int_equal(store_until(t, 1, end), 0);
    r = entry_of(t, 1);
    kvt__table_prolong(t, &r, end - UNIT_NS);
    kvt__table_prolong(t, &r, end);
    assert_int_equal(entry_of(t, 1).expires_ns, end);
    kvt__table_prolong(t, &r, end + UNIT_NS);
    r = entry_of(t, 1);
    assert_int_equal(r.expires_ns, end + UNIT_NS);
    assert_int_equal(r.bytes, 10);
    kvt__table_prolong(t, &r, 0);
    assert_int_equal(entry_of(t, 1).expires_ns, 0);
    r = entry_of(t, 1);
    kvt__table_prolong(t, &r, end);
    assert_int_equal(entry_of(t, 1).expires_ns, 0);
}

static void
an_entry_that_has_changed_is_not_prolonged(void **state)
{
    struct kvt__table *t = *state;
    struct kvt__record old;

    assert_int_equal(store_until(t, 1, in_s(UNIT_S)), 0);
    old = entry_of(t, 1);
    assert_int_equal(kvt__table_forget(t, &old, false), 0);
    assert_int_equal(store_until(t, 2, in_s(UNIT_S)), 0);
    assert_int_equal(entry_of(t, 2).entry, old.entry);
    kvt__table_prolong(t, &old, 0);
    assert_int_equal(entry_of(t, 2).expires_ns, in_s(UNIT_S));
}

static void
expired_entries_are_the_first_victims(void **state)
{
    struct kvt__table *t = *state;
    struct kvt__record victims[KVT__TABLE_VICTIMS];

    for (uint64_t i = 0; i < 20; i++, wall_s++)
        assert_int_equal(store_until(t, i, i == 17 ? in_s(2 * UNIT_S) : 0), 0);
    assert_int_equal(kvt__table_victims(t, NULL, NULL, victims, 8), 8);
    assert_int_equal(victims[0].entry, entry_of(t, 0).entry);
    wall_s += 2 * UNIT_S;
    assert_int_equal(kvt__table_victims(t, NULL, NULL, victims, 8), 8);
    assert_int_equal(victims[0].entry, entry_of(t, 17).entry);
    kvt__table_make_last_victim(t, victims[0].entry); /* its object cannot be deleted */
    assert_int_equal(kvt__table_victims(t, NULL, NULL, victims, 8), 8);
    assert_int_equal(victims[0].entry, entry_of(t, 0).entry);
}

static void
a_search_is_due_every_15_seconds_if_an_entry_has_a_time_to_live(void **state)
{
    struct kvt__table *t = *state;

    assert_int_equal(store_until(t, 1, 0), 0);
    assert_false(kvt__table_begin_expiry(t));
    assert_int_equal(store_until(t, 2, in_s(UNIT_S)), 0);
    assert_true(kvt__table_begin_expiry(t));
    assert_false(kvt__table_begin_expiry(t));
    mono_s += 14;
    assert_false(kvt__table_begin_expiry(t));
    mono_s++;
    assert_true(kvt__table_begin_expiry(t));
}

/* ---------------------------------------------------------------- processes */

static int
dir_setup(void **state)
{
    wall_s = INT64_C(1800000000);
    mono_s = 1000;
    return make_dirs(state);
}

static void
processes_agree(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d), *b = open_writer(d), *r = open_reader(d);

    assert_int_equal(store_until(a, 1, in_s(UNIT_S)), 0);
    assert_true(find(b, 1, NULL) && find(r, 1, NULL));
    assert_false(kvt__table_begin_expiry(r));
    assert_true(kvt__table_begin_expiry(b)); /* one process searches */
    assert_false(kvt__table_begin_expiry(a));
    wall_s += UNIT_S;
    assert_false(find(a, 1, NULL) || find(b, 1, NULL) || find(r, 1, NULL));
    assert_int_equal(store_until(b, 1, in_s(UNIT_S)), 0);
    assert_true(find(a, 1, NULL) && find(r, 1, NULL));
    struct kvt__record seen = entry_of(a, 1);
    kvt__table_prolong(r, &seen, 0); /* a reader changes nothing */
    assert_int_equal(entry_of(a, 1).expires_ns, in_s(UNIT_S));
    kvt__table_prolong(b, &seen, 0);
    assert_int_equal(entry_of(a, 1).expires_ns, 0);
    kvt__table_close(a);
    kvt__table_close(b);
    kvt__table_close(r);
}

static void
store_half(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);
    struct kvt__claim claim;

    (void)claim_until(t, 1, in_s(UNIT_S), &claim); /* a new entry */
    (void)claim_until(t, 2, in_s(UNIT_S), &claim); /* in place of another chunk without end */
}

/* The object of a dead process's claim may exist, and must not live for ever. */
static void
the_death_of_a_writer_leaves_the_end(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);
    struct kvt__name name = name_of(2);
    struct kvt__record other = record_of_n(77, 10), r;
    struct kvt__claim claim;

    assert_int_equal(kvt__table_claim(t, &name, &other, TEXT, &claim), 0);
    assert_true(kvt__table_publish(t, &claim));
    in_child(d, store_half);
    assert_int_equal(kvt__table_recover(t), 2);
    for (uint64_t n = 1; n <= 2; n++) {
        r = ready_record(t, n);
        assert_int_equal(r.flags, KVT__TABLE_UNREAD);
        assert_int_equal(r.expires_ns, in_s(UNIT_S));
    }
    wall_s += UNIT_S;
    name = name_of(1);
    assert_false(kvt__table_find(t, &name, NULL, &r));
    recount(t);
    kvt__table_close(t);
}

/* After a reboot only the snapshot is left of a table. */
static void
a_snapshot_keeps_times_to_live(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);
    int64_t end = in_s(10 * UNIT_S);

    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(store_until(t, i, (int64_t[]){ 0, end, in_s(UNIT_S) }[i]), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    kvt__table_close(t);
    empty(d->shm);
    unlinkat(d->fd, "lock", 0);
    wall_s += UNIT_S;
    t = open_writer(d);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 3);
    assert_int_equal(entry_of(t, 0).expires_ns, 0);
    assert_int_equal(entry_of(t, 1).expires_ns, end);
    assert_false(find(t, 2, NULL));
    assert_true(kvt__table_begin_expiry(t));
    kvt__table_close(t);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define DIR_TEST(fn) cmocka_unit_test_setup_teardown(fn, dir_setup, remove_dirs)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_expired_entry_is_neither_found_nor_leased),
        TEST(a_time_to_live_is_rounded_down),
        TEST(no_end_is_stored_as_none),
        TEST(an_entry_stays_expired),
        TEST(a_clock_that_is_set_back_makes_no_entry_live_longer_than_180_days),
        TEST(a_store_replaces_an_expired_entry),
        TEST(an_unread_object_does_not_renew_an_expired_entry),
        TEST(the_earlier_end_counts_until_a_replacement_is_published),
        TEST(the_longer_time_to_live_counts),
        TEST(an_entry_that_has_changed_is_not_prolonged),
        TEST(expired_entries_are_the_first_victims),
        TEST(a_search_is_due_every_15_seconds_if_an_entry_has_a_time_to_live),
        DIR_TEST(processes_agree),
        DIR_TEST(the_death_of_a_writer_leaves_the_end),
        DIR_TEST(a_snapshot_keeps_times_to_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
