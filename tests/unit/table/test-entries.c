/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries in a private table: fields, forms of names, chains, and calls without a result. */
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
    struct kvt__record r = { .id = id_of(1), .bytes = TB_MAX_BYTES - 1,
                             .flags = KVT__TABLE_FOREIGN, .recency_ns = 4096 * 77,
                             .n_uses = 5 }, out;

    (void)state;
    assert_int_equal(kvt__table_enter(t, &name, &r, TEXT), 0);
    assert_true(find(t, 1, &out));
    assert_int_equal(out.bytes, TB_MAX_BYTES - 1);
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
    struct kvt__record good = { .id = id_of(1) };
    char text[KVT__TABLE_TEXT_MAX + 2];

    (void)state;
    memset(text, 'x', sizeof text);
    text[KVT__TABLE_TEXT_MAX + 1] = '\0';
    assert_int_equal(kvt__table_enter(t, &name, &big, TEXT), -EINVAL);
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
an_entry_is_read_by_number(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r, again;
    struct kvt__claim claim;

    (void)state;
    assert_int_equal(store(t, 1, 10), 0);
    r = ready_record(t, 1);
    assert_true(kvt__table_read(t, r.entry, &again) && again.word == r.word);
    assert_true(kvt__table_is_used(t, r.entry) && kvt__table_is_unchanged(t, r.entry, r.word));
    assert_int_equal(kvt__table_evict(t, &r, false, &claim), 0);
    assert_false(kvt__table_read(t, r.entry, &again));
    assert_true(kvt__table_is_used(t, r.entry));
    assert_false(kvt__table_is_unchanged(t, r.entry, r.word));
    kvt__table_abort(t, &claim);
    assert_true(kvt__table_read(t, r.entry, &again));
    assert_false(kvt__table_is_unchanged(t, r.entry, r.word));
    assert_int_equal(kvt__table_forget(t, &again, false), 0);
    assert_false(kvt__table_is_used(t, r.entry));
    assert_false(kvt__table_is_used(t, UINT32_MAX) || kvt__table_read(t, UINT32_MAX, &again) ||
                 kvt__table_is_unchanged(t, UINT32_MAX, r.word));
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
    struct kvt__record r = ready_record(t, 1), out[8];
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
        kvt__table_protect(t, &name, &id, INT64_MAX);
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

/* Names with equal low bits must not be in one chain. */
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

/* A client can choose wide hashes with equal first 64 bits. */
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

/* kvtier never writes a snapshot with an entry out of range. */
static void
a_saved_entry_out_of_range_is_an_error(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__name name = name_of(1);
    struct kvt__record record = record_of_n(1, TB_MAX_BYTES);
    int64_t n_entered = 0;

    (void)state;
    assert_int_equal(kvt__tb_enter_saved(t, &name, &record, 0, TEXT, &n_entered), -EINVAL);
    record.bytes = 10;
    assert_int_equal(kvt__tb_enter_saved(t, &name, &record, 0, TEXT, &n_entered), 0);
    assert_int_equal(kvt__tb_enter_saved(t, &name, &record, 0, TEXT, &n_entered), 0);
    assert_int_equal(n_entered, 1);
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
        cmocka_unit_test(a_saved_entry_out_of_range_is_an_error),
        cmocka_unit_test(an_entry_is_read_by_number),
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
