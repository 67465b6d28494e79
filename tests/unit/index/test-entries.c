/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries and their states, one behaviour a test. */
#include "index-test.h"

static void
published_entry_is_found_by_another_handle(void **state)
{
    struct kvt__index *a = open_writer(*state), *b = open_writer(*state);
    struct kvt__index *r = open_with(*state, 0, false);
    struct kvt__index_entry out;
    struct kvt__id id = id_of(1);

    assert_int_equal(put(a, &id), 0);
    assert_true(kvt__index_find(b, &id, &out));
    assert_true(kvt__id_equal(&out.id, &id));
    assert_true(entry_is_whole(&out));
    assert_true(kvt__index_find(r, &id, NULL));
    assert_true(adds_up(r, 0));
    kvt__index_close(a);
    kvt__index_close(b);
    kvt__index_close(r);
}

static void
claimed_entry_is_not_found(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;

    assert_false(kvt__index_find(ix, &id, NULL));
    assert_int_equal(claim(ix, &id, &c), 0);
    assert_false(kvt__index_find(ix, &id, NULL));
    assert_false(kvt__index_lease(ix, &id, INT64_MAX, NULL));
    kvt__index_abort(ix, &c);
    assert_true(adds_up(ix, 0));
    assert_int_equal(put(ix, &id), 0);
    kvt__index_close(ix);
}

static void
every_bit_of_the_fields_comes_back(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_entry e = {
        .id = id_of(7), .hash = { { UINT64_C(1) << 63 }, KVT__HASH_UNSIGNED },
        .bytes = IX_MAX_BYTES - 1, .space = IX_N_SPACES - 1, .path = 127,
        .tokens = UINT32_MAX, .flags = KVT__INDEX_UNREAD | KVT__INDEX_FOREIGN,
    };
    struct kvt__index_entry out;
    struct kvt__index_claim c;

    assert_int_equal(kvt__index_reserve(ix, e.bytes), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
    kvt__index_publish(ix, &c);
    assert_true(kvt__index_find(ix, &e.id, &out));
    assert_true(same_hash(&out.hash, &e.hash));
    assert_true(out.bytes == e.bytes);
    assert_int_equal(out.space, e.space);
    assert_int_equal(out.path, e.path);
    assert_int_equal(out.tokens, e.tokens);
    assert_int_equal(out.flags, e.flags);
    kvt__index_close(ix);
}

static void
fields_out_of_range_are_einval(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_claim c;
    struct kvt__index_entry bytes = { .bytes = IX_MAX_BYTES };
    struct kvt__index_entry space = { .space = IX_N_SPACES };
    struct kvt__index_entry path = { .path = 128 };

    assert_int_equal(kvt__index_claim(ix, &bytes, NULL, &c), -EINVAL);
    assert_int_equal(kvt__index_claim(ix, &space, NULL, &c), -EINVAL);
    assert_int_equal(kvt__index_claim(ix, &path, NULL, &c), -EINVAL);
    kvt__index_close(ix);
}

static void
second_claim_is_eexist(void **state)
{
    struct kvt__index *a = open_writer(*state), *b = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c, other;

    assert_int_equal(claim(a, &id, &c), 0);
    assert_int_equal(claim(b, &id, &other), -EEXIST);
    assert_int_equal(claim(a, &id, &other), -EEXIST);
    kvt__index_publish(a, &c);
    assert_int_equal(claim(b, &id, &other), -EEXIST);
    assert_int_equal(kvt__index_evict(a, &id, false, NULL, &c), 0);
    assert_int_equal(claim(b, &id, &other), -EEXIST);
    kvt__index_removed(a, &c);
    assert_int_equal(claim(b, &id, &other), 0);
    kvt__index_close(a);
    kvt__index_close(b);
}

static void
seventeenth_claim_of_two_groups_is_enospc(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_claim c;
    struct kvt__id id;

    for (unsigned i = 0; i < 16; i++) {
        id = id_in(i, 3, 5);
        assert_int_equal(put(ix, &id), 0);
    }
    id = id_in(16, 3, 5);
    assert_int_equal(claim(ix, &id, &c), -ENOSPC);
    id = id_in(3, 3, 5);
    assert_int_equal(drop(ix, &id), 0);
    id = id_in(16, 3, 5);
    assert_int_equal(claim(ix, &id, &c), 0);
    kvt__index_close(ix);
}

static void
identity_with_one_group_has_eight_places(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_entry near[32];
    struct kvt__id id;

    for (unsigned i = 0; i < 8; i++) {
        id = id_in(i, 9, 9);
        assert_int_equal(put(ix, &id), 0);
    }
    id = id_in(8, 9, 9);
    assert_int_equal(put(ix, &id), -ENOSPC);
    assert_int_equal(kvt__index_first(ix, &id, near, 32), 8);
    kvt__index_close(ix);
}

static void
evicted_entry_is_not_found_and_gives_its_bytes_back(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_entry out, want = entry_of(&id);
    struct kvt__index_totals t;
    struct kvt__index_claim c;

    put(ix, &id);
    assert_int_equal(kvt__index_evict(ix, &id, false, &out, &c), 0);
    assert_true(entry_is_whole(&out));
    assert_false(kvt__index_find(ix, &id, NULL));
    kvt__index_get_totals(ix, &t);
    assert_int_equal(t.used_bytes, want.bytes);
    assert_int_equal(t.n_ready, 0);
    kvt__index_removed(ix, &c);
    kvt__index_get_totals(ix, &t);
    assert_int_equal(t.used_bytes, 0);
    assert_int_equal(drop(ix, &id), -ENOENT);
    kvt__index_close(ix);
}

static void
restored_entry_is_found_again(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;

    put(ix, &id);
    assert_int_equal(kvt__index_evict(ix, &id, false, NULL, &c), 0);
    assert_int_equal(kvt__index_evict(ix, &id, false, NULL, &c), -EBUSY);
    kvt__index_close(ix);

    ix = open_writer(*state);
    put(ix, &id);
    assert_int_equal(kvt__index_evict(ix, &id, false, NULL, &c), 0);
    kvt__index_restore(ix, &c);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
leased_entry_is_evicted_only_by_force(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index *r = open_with(*state, 0, false);
    int64_t until = kvt__now_ns() + 60 * KVT__NS_PER_S;
    struct kvt__id id = id_of(1);
    struct kvt__index_entry out, one;
    struct kvt__index_claim c;

    put(ix, &id);
    assert_true(kvt__index_lease(r, &id, until, &out));
    assert_true(out.lease_ns >= until && out.lease_ns - until < 1 << 17);
    assert_int_equal(drop(ix, &id), -EBUSY);
    assert_true(kvt__index_find(r, &id, NULL));
    assert_int_equal(kvt__index_first(ix, NULL, &one, 1), 0);
    assert_int_equal(kvt__index_evict(ix, &id, true, NULL, &c), 0);
    kvt__index_removed(ix, &c);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
    kvt__index_close(r);
}

static void
lease_ends_by_time(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);

    put(ix, &id);
    assert_true(kvt__index_lease(ix, &id, kvt__now_ns() - KVT__NS_PER_MS, NULL));
    assert_true(kvt__index_lease(ix, &id, -5, NULL));
    assert_int_equal(drop(ix, &id), 0);
    kvt__index_close(ix);
}

static void
lease_is_never_shortened(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    int64_t until = kvt__now_ns() + 60 * KVT__NS_PER_S;
    struct kvt__id id = id_of(1);
    struct kvt__index_entry out;

    put(ix, &id);
    kvt__index_lease(ix, &id, until, NULL);
    kvt__index_lease(ix, &id, until - 30 * KVT__NS_PER_S, &out);
    assert_true(out.lease_ns >= until);
    kvt__index_close(ix);
}

static void
lease_ends_with_its_last_holder(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    int64_t until = kvt__now_ns() + 60 * KVT__NS_PER_S;
    struct kvt__id id = id_of(1);

    put(ix, &id);
    kvt__index_lease(ix, &id, until, NULL);
    kvt__index_lease(ix, &id, until, NULL);
    kvt__index_unlease(ix, &id);
    assert_int_equal(drop(ix, &id), -EBUSY);
    kvt__index_unlease(ix, &id);
    kvt__index_unlease(ix, &id);
    assert_int_equal(drop(ix, &id), 0);
    kvt__index_close(ix);
}

static void
holders_of_a_lease_that_ended_do_not_count(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);

    put(ix, &id);
    kvt__index_lease(ix, &id, kvt__now_ns() - KVT__NS_PER_S, NULL);
    kvt__index_lease(ix, &id, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL);
    kvt__index_unlease(ix, &id);
    assert_int_equal(drop(ix, &id), 0);
    kvt__index_close(ix);
}

static void
who_holds_an_entry_is_no_holder_of_its_lease(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    int64_t until = kvt__now_ns() + 60 * KVT__NS_PER_S;

    put(ix, &id);
    kvt__index_hold(ix, &id, until);
    assert_int_equal(drop(ix, &id), -EBUSY);
    kvt__index_lease(ix, &id, until, NULL);
    kvt__index_hold(ix, &id, until);
    assert_int_equal(drop(ix, &id), -EBUSY);
    kvt__index_unlease(ix, &id);
    assert_int_equal(drop(ix, &id), 0);
    kvt__index_close(ix);
}

static void
budget_is_kept_and_given_back(void **state)
{
    struct kvt__index *ix = open_with(*state, 1000, true);

    assert_int_equal(kvt__index_reserve(ix, 1001), -ENOSPC);
    assert_int_equal(kvt__index_reserve(ix, 600), 0);
    assert_int_equal(kvt__index_reserve(ix, 401), -ENOSPC);
    assert_int_equal(kvt__index_reserve(ix, UINT64_MAX), -ENOSPC);
    assert_int_equal(kvt__index_reserve(ix, 400), 0);
    kvt__index_unreserve(ix, 600);
    assert_int_equal(kvt__index_reserve(ix, 600), 0);
    kvt__index_unreserve(ix, 5000);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
smallest_limit_of_those_open_holds(void **state)
{
    struct kvt__index *a = open_with(*state, 1000, true);
    struct kvt__index *b = open_with(*state, 300, true);
    struct kvt__index *c = open_with(*state, 0, true);
    struct kvt__index_totals t;

    kvt__index_get_totals(a, &t);
    assert_int_equal(t.limit_bytes, 300);
    assert_int_equal(kvt__index_reserve(a, 301), -ENOSPC);
    kvt__index_close(b);
    kvt__index_get_totals(a, &t);
    assert_int_equal(t.limit_bytes, 1000);
    assert_int_equal(kvt__index_reserve(c, 1001), -ENOSPC);
    kvt__index_close(a);
    assert_int_equal(kvt__index_reserve(c, 1001), 0);
    kvt__index_close(c);
}

static void
close_gives_claims_and_reservations_back(void **state)
{
    struct kvt__index *a = open_writer(*state), *b = open_writer(*state);
    struct kvt__id one = id_of(1), two = id_of(2);
    struct kvt__index_claim c;

    put(a, &two);
    kvt__index_set_scanned(b, true);
    assert_int_equal(kvt__index_evict(a, &two, false, NULL, &c), 0);
    assert_int_equal(claim(a, &one, &c), 0);
    assert_int_equal(kvt__index_reserve(a, 77), 0);
    kvt__index_close(a);
    assert_true(adds_up(b, 0));
    assert_false(kvt__index_scanned(b));
    assert_int_equal(put(b, &one), 0);
    assert_int_equal(put(b, &two), 0);
    kvt__index_close(b);
}

/* A reader with a missing file drops the entry of the lookup, never the new entry after
 * a concurrent store. */
static void
an_entry_that_was_stored_anew_is_not_the_one_seen(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_entry seen, fresh;
    struct kvt__index_claim c;

    put(ix, &id);
    assert_true(kvt__index_find(ix, &id, &seen));
    assert_int_equal(drop(ix, &id), 0);
    assert_int_equal(kvt__index_evict_seen(ix, &seen, &c), -ENOENT);
    put(ix, &id);
    assert_int_equal(kvt__index_evict_seen(ix, &seen, &c), -ENOENT);
    assert_true(kvt__index_find(ix, &id, &fresh));
    kvt__index_touch(ix, &id);
    assert_true(kvt__index_lease(ix, &id, INT64_MAX, NULL));
    assert_int_equal(kvt__index_evict_seen(ix, &fresh, &c), 0);
    assert_false(kvt__index_find(ix, &id, NULL));
    kvt__index_removed(ix, &c);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

/* Each slot has a separate count of changes: old and new entry may have equal counts. */
static void
an_entry_that_was_stored_anew_elsewhere_is_not_the_one_seen(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_in(1, 3, 5), neighbour = id_in(2, 3, 3);
    struct kvt__index_entry seen, fresh;
    struct kvt__index_claim c;

    assert_int_equal(put(ix, &id), 0);
    assert_true(kvt__index_find(ix, &id, &seen));
    assert_int_equal(drop(ix, &id), 0);
    assert_int_equal(put(ix, &neighbour), 0); /* now the other group has more room */
    assert_int_equal(put(ix, &id), 0);
    assert_true(kvt__index_find(ix, &id, &fresh));
    assert_int_equal(fresh.word, seen.word);
    assert_int_equal(kvt__index_evict_seen(ix, &seen, &c), -ENOENT);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_int_equal(kvt__index_evict_seen(ix, &fresh, &c), 0);
    kvt__index_removed(ix, &c);
    kvt__index_close(ix);
}

static void
oldest_are_sorted_and_bounded(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_entry out[300];

    for (unsigned i = 0; i < 200; i++) {
        struct kvt__id id = id_of(i);
        struct kvt__index_entry e = entry_of(&id);
        struct kvt__index_claim c;
        e.recency_ns = 4096 * (1 + (int64_t)(mix(i) % 200 * 1000 + i));
        kvt__index_reserve(ix, e.bytes);
        assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
        kvt__index_publish(ix, &c);
    }
    assert_int_equal(kvt__index_first(ix, NULL, out, 300), 200);
    for (unsigned i = 1; i < 200; i++)
        assert_true(out[i - 1].recency_ns <= out[i].recency_ns);
    int64_t tenth = out[9].recency_ns;
    assert_int_equal(kvt__index_first(ix, NULL, out, 10), 10);
    assert_true(out[9].recency_ns == tenth);
    for (unsigned i = 1; i < 10; i++)
        assert_true(out[i - 1].recency_ns <= out[i].recency_ns);
    struct kvt__id used = out[0].id;
    kvt__index_touch(ix, &used);
    assert_int_equal(kvt__index_first(ix, NULL, out, 1), 1);
    assert_false(kvt__id_equal(&out[0].id, &used));
    assert_int_equal(kvt__index_first(ix, NULL, out, 0), 0);
    kvt__index_close(ix);
}

/* Entries 0 to 3, made in this order; 0 is used twice, 2 once, the last use is that of
 * 0.  Whose turn it is first and last by each policy. */
static void
each_policy_lets_its_own_go_first(void **state)
{
    static const struct {
        const char *name;
        unsigned first, last;
    } want[] = { { "LRU", 1, 0 }, { "LFU", 1, 0 }, { "FIFO", 0, 3 }, { "MRU", 0, 1 } };

    for (unsigned w = 0; w < 4; w++) {
        struct dir *d = *state;
        struct kvt__index_params p = { .dirfd = -1, .n_entries = 1024, .writer = true,
                                       .policy = kvt__policy_named(want[w].name) };
        struct kvt__index_entry out[4];
        struct kvt__index *ix;
        struct kvt__id ids[4];

        (void)d;
        assert_int_equal(kvt__index_open(&p, &ix), 0);
        for (unsigned i = 0; i < 4; i++) {
            ids[i] = id_of(i);
            struct kvt__index_entry e = entry_of(&ids[i]);
            struct kvt__index_claim c;
            e.recency_ns = 4096 * (1000 + i);
            e.space = 0;
            assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
            kvt__index_publish(ix, &c);
        }
        kvt__index_touch(ix, &ids[0]);
        kvt__index_touch(ix, &ids[2]);
        assert_true(kvt__index_lease(ix, &ids[0], 0, NULL));
        kvt__index_unlease(ix, &ids[0]);
        assert_int_equal(kvt__index_first(ix, NULL, out, 4), 4);
        if (want[w].first) /* the clock is coarse: 0 and 2 may be as recent */
            assert_true(kvt__id_equal(&out[0].id, &ids[want[w].first]));
        assert_true(kvt__id_equal(&out[3].id, &ids[want[w].last]));
        kvt__index_close(ix);
    }
    assert_int_equal(kvt__policy_named("none"), KVT__LRU);
}

static void
uses_are_counted_to_4095(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_entry e, out;
    struct kvt__index_claim c;
    struct kvt__id id = id_of(1);

    e = entry_of(&id);
    kvt__index_reserve(ix, e.bytes);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
    kvt__index_publish(ix, &c);
    for (unsigned i = 0; i < 5000; i++)
        kvt__index_touch(ix, &id);
    assert_true(kvt__index_find(ix, &id, &out));
    assert_int_equal(out.n_uses, 4095);
    assert_true(out.recency_ns <= kvt__wall_ns());
    kvt__index_close(ix);
}

static void
recency_is_now_unless_given_and_never_later(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    const int64_t given[] = { 0, 12345 * 4096, INT64_MAX, -1 };
    struct kvt__index_entry out;
    struct kvt__index_claim c;

    for (unsigned i = 0; i < 4; i++) {
        struct kvt__id id = id_of(i);
        struct kvt__index_entry e = entry_of(&id);
        int64_t before = kvt__wall_ns() / 4096 * 4096;
        e.recency_ns = given[i];
        kvt__index_reserve(ix, e.bytes);
        assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
        kvt__index_publish(ix, &c);
        assert_true(kvt__index_find(ix, &id, &out));
        if (i == 1)
            assert_true(out.recency_ns == 12345 * 4096);
        else
            assert_true(out.recency_ns >= before
                        && out.recency_ns <= kvt__wall_ns());
    }
    kvt__index_close(ix);
}

static void
clear_makes_ready_entries_go(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(500);
    struct kvt__index_claim c;

    for (unsigned i = 0; i < 100; i++) {
        struct kvt__id some = id_of(i);
        put(ix, &some);
    }
    assert_int_equal(claim(ix, &id, &c), 0);
    kvt__index_set_scanned(ix, true);
    kvt__index_clear(ix);
    assert_false(kvt__index_scanned(ix));
    assert_true(adds_up(ix, c.bytes));
    kvt__index_publish(ix, &c);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static bool
stop_at_three(void *ctx, const struct kvt__index_entry *e)
{
    (void)e;
    return ++*(int *)ctx < 3;
}

static void
each_stops_when_told(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    int n = 0;

    for (unsigned i = 0; i < 10; i++) {
        struct kvt__id id = id_of(i);
        put(ix, &id);
    }
    kvt__index_each(ix, stop_at_three, &n);
    assert_int_equal(n, 3);
    kvt__index_close(ix);
}

static void
reader_may_not_write(void **state)
{
    struct kvt__index *r = open_with(*state, 0, false);
    struct kvt__index_entry e = { .bytes = 1 };
    struct kvt__index_claim c;

    assert_int_equal(kvt__index_reserve(r, 1), -EINVAL);
    assert_int_equal(kvt__index_claim(r, &e, NULL, &c), -EINVAL);
    assert_int_equal(kvt__index_evict(r, &e.id, true, NULL, &c), -EINVAL);
    kvt__index_clear(r);
    kvt__index_close(r);
}

static void
ended_claim_is_ended_once(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;

    assert_int_equal(claim(ix, &id, &c), 0);
    kvt__index_publish(ix, &c);
    kvt__index_abort(ix, &c);
    kvt__index_publish(ix, &c);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(adds_up(ix, 0));
    assert_int_equal(ix->n_claims, 0); /* else the close reads all entries */
    kvt__index_close(ix);
}

static void
spaces_are_shared_numbers_of_texts(void **state)
{
    struct kvt__index *a = open_writer(*state);
    struct kvt__index *r = open_with(*state, 0, false);
    char text[KVT__INDEX_SPACE_TEXT_MAX + 2], out[512];
    int n = kvt__ix_space(r, "m/l@1@0@@bfloat16");

    assert_true(n >= 0);
    assert_int_equal(kvt__ix_space(a, "m/l@1@0@@bfloat16"), n);
    assert_int_not_equal(kvt__ix_space(a, "m/l@1@0@@bfloat1"), n);
    assert_int_equal(kvt__index_space_text(a, (uint32_t)n, out, sizeof out), 0);
    assert_string_equal(out, "m/l@1@0@@bfloat16");
    assert_int_equal(kvt__index_space_text(a, (uint32_t)n, out, 17), -ENOENT);
    assert_int_equal(kvt__index_space_text(a, (uint32_t)n + 1, out, sizeof out), -ENOENT);
    assert_int_equal(kvt__index_space_text(a, IX_N_SPACES, out, sizeof out), -ENOENT);
    assert_int_equal(kvt__index_space_text(a, IX_NO_SPACE, out, sizeof out), -ENOENT);
    assert_true(kvt__index_space_digest(r, (uint32_t)n) ==
                kvt__index_text_digest("m/l@1@0@@bfloat16"));
    assert_true(kvt__index_space_digest(r, UINT32_MAX) == 0);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(kvt__ix_space(a, text), -EINVAL);
    assert_int_equal(kvt__ix_space(a, ""), -EINVAL);
    text[sizeof text - 2] = '\0';
    n = kvt__ix_space(a, text);
    assert_int_equal(kvt__index_space_text(r, (uint32_t)n, out, sizeof out), 0);
    assert_string_equal(out, text);
    kvt__index_close(a);
    kvt__index_close(r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(published_entry_is_found_by_another_handle),
        INDEX_TEST(claimed_entry_is_not_found),
        INDEX_TEST(every_bit_of_the_fields_comes_back),
        INDEX_TEST(fields_out_of_range_are_einval),
        INDEX_TEST(second_claim_is_eexist),
        INDEX_TEST(seventeenth_claim_of_two_groups_is_enospc),
        INDEX_TEST(identity_with_one_group_has_eight_places),
        INDEX_TEST(evicted_entry_is_not_found_and_gives_its_bytes_back),
        INDEX_TEST(restored_entry_is_found_again),
        INDEX_TEST(leased_entry_is_evicted_only_by_force),
        INDEX_TEST(lease_ends_by_time),
        INDEX_TEST(lease_is_never_shortened),
        INDEX_TEST(lease_ends_with_its_last_holder),
        INDEX_TEST(holders_of_a_lease_that_ended_do_not_count),
        INDEX_TEST(who_holds_an_entry_is_no_holder_of_its_lease),
        INDEX_TEST(budget_is_kept_and_given_back),
        INDEX_TEST(smallest_limit_of_those_open_holds),
        INDEX_TEST(close_gives_claims_and_reservations_back),
        INDEX_TEST(oldest_are_sorted_and_bounded),
        INDEX_TEST(each_policy_lets_its_own_go_first),
        INDEX_TEST(uses_are_counted_to_4095),
        INDEX_TEST(recency_is_now_unless_given_and_never_later),
        INDEX_TEST(clear_makes_ready_entries_go),
        INDEX_TEST(each_stops_when_told),
        INDEX_TEST(reader_may_not_write),
        INDEX_TEST(ended_claim_is_ended_once),
        INDEX_TEST(an_entry_that_was_stored_anew_is_not_the_one_seen),
        INDEX_TEST(an_entry_that_was_stored_anew_elsewhere_is_not_the_one_seen),
        INDEX_TEST(spaces_are_shared_numbers_of_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
