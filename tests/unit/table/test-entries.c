/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries of one process: claims, ends of claims, victims, budgets, forms of names. */
#include "table-test.h"

#include <sys/wait.h>
#include <unistd.h>

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
a_record_has_every_field_of_the_claim(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record r = { .id = id_of(1), .bytes = TB_MAX_BYTES - 1, .path = 127,
                             .flags = KVT__TABLE_FOREIGN, .recency_ns = 4096 * 77,
                             .n_uses = 5 }, out;

    (void)state;
    assert_int_equal(kvt__table_enter(t, &name, &r, TEXT), 0);
    assert_true(find(t, 1, &out));
    assert_int_equal(out.bytes, TB_MAX_BYTES - 1);
    assert_int_equal(out.path, 127);
    assert_int_equal(out.flags, KVT__TABLE_FOREIGN);
    assert_int_equal(out.recency_ns, 4096 * 77);
    assert_int_equal(out.n_uses, 5);
    assert_true(out.hash.bits[0] == name.hash.bits[0]);
    assert_int_equal(out.hash.form, KVT__HASH_SIGNED);
    recount(t);
    kvt__table_close(t);
}

static void
values_out_of_range_are_refused(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record big = { .id = id_of(1), .bytes = TB_MAX_BYTES };
    struct kvt__record far = { .id = id_of(1), .path = 128 }, good = { .id = id_of(1) };
    char text[KVT__TABLE_TEXT_MAX + 2];

    (void)state;
    memset(text, 'x', sizeof text);
    text[KVT__TABLE_TEXT_MAX + 1] = '\0';
    assert_int_equal(kvt__table_enter(t, &name, &big, TEXT), -EINVAL);
    assert_int_equal(kvt__table_enter(t, &name, &far, TEXT), -EINVAL);
    assert_int_equal(kvt__table_enter(t, &name, &good, ""), -EINVAL);
    assert_int_equal(kvt__table_enter(t, &name, &good, text), -EINVAL);
    text[KVT__TABLE_TEXT_MAX] = '\0';
    name.digest = kvt__table_digest(text);
    assert_int_equal(kvt__table_enter(t, &name, &good, text), 0);
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
    assert_int_equal(t->header->n_heads, 200000);
    recount(t);
    kvt__table_close(t);
}

static void
a_claim_is_a_miss_and_blocks_the_name(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__claim c, d;
    struct kvt__name name = name_of(1);
    struct kvt__record unread = { .flags = KVT__TABLE_UNREAD };

    (void)state;
    assert_int_equal(claim_n(t, 1, 1, 100, &c), 0);
    assert_false(c.replaces);
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

/* Return the bytes that the entry counts after a listing found so many bytes. */
static uint64_t
list_bytes(struct kvt__table *t, uint32_t flags, uint64_t bytes)
{
    struct kvt__name name = name_of(1);
    struct kvt__record record = { .flags = KVT__TABLE_UNREAD | flags, .bytes = bytes };

    assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), -EEXIST);
    recount(t);
    return seen(t, 1).bytes;
}

static void
a_listed_object_corrects_the_bytes_of_its_entry(void **state)
{
    struct kvt__table *t = open_table(250, 0);
    struct kvt__record r;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(store(t, 2, 100), 0);
    uint64_t word = seen(t, 1).word;
    assert_int_equal(list_bytes(t, 0, 30), 100);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 30), 30);
    assert_int_equal(used(t), 130);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 500), 500); /* beyond the limit */
    assert_int_equal(used(t), 600);
    assert_int_equal(store(t, 3, 10), -ENOSPC);
    assert_int_equal(list_bytes(t, KVT__TABLE_FOUND, 0), 0);
    assert_int_equal(used(t), 100);
    r = seen(t, 1);
    assert_true(r.word == word && !(r.flags & KVT__TABLE_UNREAD));
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    assert_int_equal(used(t), 100);
    recount(t);
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
    assert_true(c.replaces);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 170);
    recount(t);
    kvt__table_abort(t, &c);
    assert_int_equal(used(t), 100);
    assert_true(find(t, 1, NULL));
    recount(t);
    assert_int_equal(claim_n(t, 1, 2, 70, &c), 0);
    c.flags = KVT__TABLE_FOREIGN;
    c.path = 9;
    assert_true(kvt__table_publish(t, &c));
    assert_int_equal(used(t), 70);
    assert_false(find(t, 1, NULL));
    assert_true(kvt__table_find(t, &name, &new, &r));
    assert_int_equal(r.bytes, 70);
    assert_int_equal(r.path, 9);
    assert_int_equal(r.flags, KVT__TABLE_FOREIGN);
    recount(t);
    kvt__table_close(t);
}

/* The new object is as young as any other new object. */
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
    assert_true(seen(t, 1).recency_ns > 4096);
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
    assert_int_equal(seen(t, 1).flags, KVT__TABLE_UNREAD);
    struct kvt__record r = seen(t, 1);
    assert_int_equal(kvt__table_evict(t, &r, false, &c), 0);
    kvt__table_restore(t, &c);
    assert_int_equal(seen(t, 1).flags, KVT__TABLE_UNREAD);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_unread, 1);
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
    assert_true(tb_usable(t));
    assert_int_equal(store(t, 1, 100), 0);
    r = seen(t, 1);
    assert_int_equal(kvt__table_evict(t, &r, false, &c), 0);
    assert_false(find(t, 1, NULL));
    assert_int_equal(kvt__table_evict(t, &r, false, &d), -ENOENT);
    assert_int_equal(used(t), 100);
    kvt__table_restore(t, &c);
    assert_true(find(t, 1, NULL));
    assert_int_equal(kvt__table_evict(t, &r, false, &c), -ENOENT);
    assert_int_equal(kvt__table_forget(t, &r, true), -ENOENT);
    r = seen(t, 1);
    assert_int_equal(kvt__table_evict(t, &r, false, &c), 0);
    kvt__table_evicted(t, &c);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 0);
    recount(t);
    assert_int_equal(store(t, 1, 100), 0);
    assert_int_equal(seen(t, 1).entry, r.entry); /* the free list gives the entry again */
    assert_true(seen(t, 1).word != r.word);
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
        r = seen(t, i);
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
a_claim_frees_its_victim(void **state)
{
    struct kvt__table *t = open_table(100, 0);
    struct kvt__name name = name_of(2);
    struct kvt__record record = record_of_n(2, 100), victim;
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(t, 1, 100), 0);
    victim = seen(t, 1);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), -ENOSPC);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &victim, &c), 0);
    assert_false(find(t, 1, NULL));
    recount(t);
    assert_true(kvt__table_publish(t, &c));
    assert_int_equal(used(t), 100);
    recount(t);
    /* A victim that has changed stays. */
    name = name_of(3);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, &victim, &c), -ENOSPC);
    assert_true(find(t, 2, NULL));
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
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), -EEXIST);
    record.flags = KVT__TABLE_OVERWRITE;
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL));
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), 0);
    assert_false(find(t, 1, NULL));
    assert_int_equal(used(t), 170);
    kvt__table_abort(t, &c);
    assert_int_equal(used(t), 100);
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    assert_int_equal(used(t), 70);
    assert_int_equal(seen(t, 1).flags, 0);
    recount(t);
    kvt__table_close(t);
}

/* A chunk whose name another chunk has taken is not promised any more. */
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
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), -EBUSY);
    record.flags = KVT__TABLE_OVERWRITE;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    record.id = record_of_n(3, 70).id;
    record.flags = 0;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), 0);
    kvt__table_abort(t, &c);
    /* A promise of an unread chunk holds for the chunk that is found. */
    record.flags = KVT__TABLE_OVERWRITE | KVT__TABLE_UNREAD;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL));
    record.flags = KVT__TABLE_OVERWRITE;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), 0);
    assert_true(kvt__table_publish(t, &c));
    record.id = record_of_n(4, 70).id;
    record.flags = 0;
    assert_int_equal(kvt__table_claim(t, &name, &record, TEXT, NULL, &c), -EBUSY);
    recount(t);
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
    kvt__table_restore(t, &claim);
    assert_int_equal(kvt__table_evict(t, &victims[0], false, &claim), -ENOENT);
    assert_int_equal(kvt__table_evict(t, &victims[1], false, &claim), 0);
    assert_int_equal(store(t, 100, 10), -ENOSPC);
    kvt__table_evicted(t, &claim);
    assert_int_equal(store(t, 100, 10), 0);
    recount(t);
    kvt__table_close(t);
}

/* A user of the table that keeps memory for entries chooses among entries of one size. */
static void
victims_among_named_entries(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record out[KVT__TABLE_VICTIMS];
    uint32_t entries[4];

    (void)state;
    for (uint64_t i = 0; i < 40; i++) {
        struct kvt__name name = name_of(i);
        struct kvt__record record = record_of_n(i, 10);

        record.recency_ns = (int64_t)(100 - i) << 20;
        assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), 0);
    }
    for (uint64_t i = 0; i < 3; i++)
        entries[i] = seen(t, 10 * i).entry;
    entries[3] = UINT32_MAX;
    assert_int_equal(kvt__table_victims_of(t, entries, 4, out, 8), 3);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(out[i].entry, entries[2 - i]);
    assert_int_equal(kvt__table_victims_of(t, entries, 4, out, 1), 1);
    assert_int_equal(out[0].entry, entries[2]);
    assert_int_equal(kvt__table_victims_of(t, entries, 0, out, 8), 0);
    struct kvt__name name = name_of(20);
    assert_true(kvt__table_lease(t, &name, NULL, kvt__now_ns() + KVT__NS_PER_S, NULL));
    assert_int_equal(kvt__table_victims_of(t, entries, 4, out, 8), 2);
    assert_int_equal(out[0].entry, entries[1]);
    kvt__table_close(t);
}

static void
an_entry_is_read_by_number(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r, again;
    struct kvt__claim claim;

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    r = seen(t, 1);
    assert_true(kvt__table_read(t, r.entry, &again) && again.word == r.word);
    assert_true(kvt__table_is_used(t, r.entry) && kvt__table_is_same(t, r.entry, r.word));
    assert_int_equal(kvt__table_evict(t, &r, false, &claim), 0);
    assert_false(kvt__table_read(t, r.entry, &again));
    assert_true(kvt__table_is_used(t, r.entry));
    assert_false(kvt__table_is_same(t, r.entry, r.word));
    kvt__table_restore(t, &claim);
    assert_true(kvt__table_read(t, r.entry, &again));
    assert_false(kvt__table_is_same(t, r.entry, r.word));
    assert_int_equal(kvt__table_forget(t, &again, false), 0);
    assert_false(kvt__table_is_used(t, r.entry));
    assert_false(kvt__table_is_used(t, UINT32_MAX) || kvt__table_read(t, UINT32_MAX, &again) ||
                 kvt__table_is_same(t, UINT32_MAX, r.word));
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

/* A probe fills in the identity of an object that counts already. */
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
    assert_int_equal(seen(t, 1).flags, KVT__TABLE_UNREAD);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_unread, 1);
    assert_int_equal(kvt__table_enter(t, &name, &more, TEXT), -ENOSPC);
    assert_int_equal(kvt__table_enter(t, &name, &known, TEXT), 0);
    assert_true(find(t, 1, NULL));
    assert_int_equal(seen(t, 1).flags, 0);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_unread, 0);
    assert_int_equal(totals.used_bytes, 100);
    assert_int_equal(kvt__table_enter(t, &name, &known, TEXT), -EEXIST);
    assert_int_equal(kvt__table_enter(t, &name, &unread, TEXT), -EEXIST);
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
    r = seen(t, 7);
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    assert_int_equal(store(t, TB_MIN_HEADS, 10), 0);
    assert_int_equal(store(t, 7, 10), -ENOSPC);
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
    r = seen(t, TB_N_CLAIMS);
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

static void
wide_hashes_need_room_and_all_bits(void **state)
{
    struct kvt__table_params params = { .writer = true, .wide_hashes = true };
    struct kvt__table *t, *narrow = open_table(0, 0);
    struct kvt__name name = name_of(1), other;
    struct kvt__record record = record_of_n(1, 1), r;

    (void)state;
    name.hash.form = KVT__HASH_WIDE;
    assert_int_equal(kvt__table_enter(narrow, &name, &record, TEXT), -ENOTSUP);
    assert_false(kvt__table_find(narrow, &name, NULL, NULL));
    kvt__table_close(narrow);
    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    for (unsigned i = 0; i < KVT__HASH_WORDS; i++) {
        other = name;
        other.hash.bits[i] ^= UINT64_C(1) << 63;
        assert_int_equal(kvt__table_enter(t, &other, &record, TEXT), 0);
        assert_int_equal(kvt__table_enter(t, &other, &record, TEXT), -EEXIST);
        assert_false(kvt__table_find(t, &name, NULL, NULL));
        assert_true(kvt__table_find(t, &other, NULL, &r));
        assert_memory_equal(r.hash.bits, other.hash.bits, sizeof r.hash.bits);
        assert_int_equal(r.hash.form, KVT__HASH_WIDE);
    }
    other = name;
    other.hash = (struct kvt__hash){ .bits = { name.hash.bits[0] ^ UINT64_C(1) << 63 },
                                     .form = KVT__HASH_UNSIGNED };
    assert_false(kvt__table_find(t, &other, NULL, NULL));
    assert_int_equal(kvt__table_enter(t, &other, &record, TEXT), 0);
    assert_true(kvt__table_find(t, &other, NULL, &r));
    assert_int_equal(r.hash.form, KVT__HASH_UNSIGNED);
    assert_int_equal(r.hash.bits[3], 0);
    recount(t);
    kvt__table_close(t);
}

/* In host memory the name is the identity. */
static void
a_table_of_memory_needs_no_space(void **state)
{
    struct kvt__table_params params = { .writer = true, .of_memory = true };
    struct kvt__name name = { .hash = { .bits = { 1, 0 } } }, in_space = name;
    struct kvt__record record = record_of_n(1, 1), r;
    struct kvt__table *t;

    (void)state;
    in_space.digest = kvt__table_digest(TEXT);
    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    assert_int_equal(kvt__table_enter(t, &name, &record, NULL), 0);
    assert_true(kvt__table_find(t, &name, NULL, &r));
    assert_int_equal(r.space, TB_NO_SPACE);
    assert_true(kvt__table_find(t, &name, &record.id, NULL));
    assert_false(kvt__table_find(t, &in_space, NULL, NULL));
    assert_int_equal(kvt__table_enter(t, &name, &record, NULL), -EEXIST);
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    recount(t);
    kvt__table_close(t);
}

static bool
count_two(void *ctx, const struct kvt__record *r)
{
    unsigned *n = ctx;

    assert_int_equal(r->bytes, 10);
    return ++*n < 2;
}

static bool
count_all(void *ctx, const struct kvt__record *r)
{
    *(unsigned *)ctx += (unsigned)r->bytes;
    return true;
}

static void
each_lists_ready_entries_until_fn_returns_false(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__claim c;
    unsigned n = 0;

    (void)state;
    kvt__table_each(t, count_all, &n);
    assert_int_equal(n, 0);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(store(t, i, 10), 0);
    assert_int_equal(claim_n(t, 9, 9, 10, &c), 0);
    kvt__table_each(t, count_all, &n);
    assert_int_equal(n, 50);
    n = 0;
    kvt__table_each(t, count_two, &n);
    assert_int_equal(n, 2);
    kvt__table_abort(t, &c);
    kvt__table_close(t);
}

/* The mapping does not exist in the child. */
static void
a_forked_child_finds_nothing(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__claim c;
    int status;

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    struct kvt__record r = seen(t, 1), out[8];
    assert_int_equal(claim_n(t, 2, 2, 10, &c), 0);
    pid_t child = fork();
    if (!child) {
        struct kvt__id id = id_of(1);
        struct kvt__table_totals totals;
        struct kvt__claim d;

        kvt__table_prefetch(t, &name, 1);
        bool bad = find(t, 1, NULL) || kvt__table_lease(t, &name, &id, INT64_MAX, NULL) ||
                   store(t, 3, 10) != -ESTALE || kvt__table_victims(t, NULL, NULL, out, 8) ||
                   kvt__table_evict(t, &r, true, &d) != -ESTALE ||
                   kvt__table_forget(t, &r, true) != -ESTALE || kvt__table_publish(t, &c) ||
                   kvt__table_recover(t) || kvt__table_pause(t, KVT__PAUSE_READS, 1) ||
                   kvt__table_is_paused(t, KVT__PAUSE_READS) ||
                   kvt__table_resume(t, KVT__PAUSE_READS) ||
                   !kvt__table_space_text(t, 0, (char *)out, sizeof out);
        kvt__table_unlease(t, &(struct kvt__lease){ .life = 1 });
        kvt__table_touch(t, &name, &id);
        kvt__table_hold(t, &name, &id, INT64_MAX);
        kvt__table_get_totals(t, &totals);
        kvt__table_each(t, count_all, &status);
        kvt__table_close(t);
        _exit(bad || totals.n_entries);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    kvt__table_abort(t, &c);
    recount(t);
    kvt__table_close(t);
}

static void
a_reader_changes_nothing(void **state)
{
    struct kvt__table_params params = { .limit_bytes = 1 };
    struct kvt__record r = { .entry = 0 };
    struct kvt__table *t;
    struct kvt__claim c;

    (void)state;
    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    assert_int_equal(store(t, 1, 1), -EINVAL);
    assert_int_equal(kvt__table_evict(t, &r, true, &c), -EINVAL);
    assert_int_equal(kvt__table_forget(t, &r, true), -EINVAL);
    assert_int_equal(kvt__table_recover(t), 0);
    assert_false(kvt__table_is_shared(t));
    kvt__table_close(t);
    kvt__table_close(NULL);
}

/* Bits without effect in the second half of a name must not meet in one chain. */
static void
chains_are_short(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record record = record_of_n(1, 1);
    unsigned longest = 0;

    (void)state;
    for (uint64_t i = 0; i < 50000; i++) {
        struct kvt__name name = name_of(0);

        name.hash.bits[0] = i << 32;
        assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), 0);
    }
    for (uint32_t head = 0; head < t->header->n_heads; head++) {
        unsigned n = 0;

        for (uint32_t at = tb_linked(t, t->heads[head]); at != TB_NONE;
             at = tb_linked(t, t->hot[at].next))
            n++;
        longest = n > longest ? n : longest;
    }
    assert_true(longest < 16);
    kvt__table_close(t);
}

/* Wide hashes whose first 64 bits are equal, as a client can choose them. */
static void
chains_of_chosen_wide_hashes_are_short(void **state)
{
    struct kvt__table_params params = { .writer = true, .wide_hashes = true };
    struct kvt__record record = record_of_n(1, 1);
    struct kvt__name name = name_of(1);
    struct kvt__table *t;

    (void)state;
    name.hash.form = KVT__HASH_WIDE;
    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    for (unsigned word = 1; word < KVT__HASH_WORDS; word++)
        for (name.hash.bits[word] = 1; name.hash.bits[word] < 500; name.hash.bits[word]++)
            assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), 0);
    recount(t);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_published_chunk_is_found_under_its_identity),
        cmocka_unit_test(a_record_has_every_field_of_the_claim),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(many_chunks_grow_the_table),
        cmocka_unit_test(a_claim_is_a_miss_and_blocks_the_name),
        cmocka_unit_test(a_listed_object_corrects_the_bytes_of_its_entry),
        cmocka_unit_test(a_claim_ends_once_and_at_its_own_handle),
        cmocka_unit_test(replacement_counts_both_objects_until_its_end),
        cmocka_unit_test(replacement_is_a_use),
        cmocka_unit_test(an_abort_keeps_an_unread_entry_unread),
        cmocka_unit_test(eviction_is_for_the_version_that_was_seen),
        cmocka_unit_test(forget_frees_the_entry),
        cmocka_unit_test(a_claim_frees_its_victim),
        cmocka_unit_test(an_overwriting_claim_replaces_any_entry),
        cmocka_unit_test(leases_end_with_the_identity),
        cmocka_unit_test(victims_can_be_chosen),
        cmocka_unit_test(a_full_budget_evicts_the_oldest),
        cmocka_unit_test(victims_among_named_entries),
        cmocka_unit_test(an_entry_is_read_by_number),
        cmocka_unit_test(budget_is_exact),
        cmocka_unit_test(an_unread_entry_is_identified_in_a_full_budget),
        cmocka_unit_test(a_full_table_is_no_space),
        cmocka_unit_test(too_many_claims_are_refused),
        cmocka_unit_test(wide_hashes_need_room_and_all_bits),
        cmocka_unit_test(a_table_of_memory_needs_no_space),
        cmocka_unit_test(each_lists_ready_entries_until_fn_returns_false),
        cmocka_unit_test(a_forked_child_finds_nothing),
        cmocka_unit_test(a_reader_changes_nothing),
        cmocka_unit_test(chains_are_short),
        cmocka_unit_test(chains_of_chosen_wide_hashes_are_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
