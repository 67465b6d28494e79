/* SPDX-License-Identifier: Apache-2.0
 *
 * The listing by one process, and the snapshot: contents, garbage, killed processes. */
#include "place-test.h"

#include <sys/ptrace.h>
#include <sys/resource.h>

/* ------------------------------------------------------------------ listing */

static void
one_process_lists(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d), *b = open_writer(d), *r = open_reader(d);

    assert_false(kvt__table_is_listed(a));
    assert_int_equal(kvt__table_begin_list(r), -EINVAL);
    assert_int_equal(kvt__table_begin_list(a), 0);
    assert_int_equal(kvt__table_begin_list(a), -EBUSY);
    assert_int_equal(kvt__table_begin_list(b), -EBUSY);
    kvt__table_end_list(b, true); /* b does not list */
    assert_false(kvt__table_is_listed(b));
    kvt__table_end_list(a, false);
    assert_false(kvt__table_is_listed(a));
    assert_int_equal(kvt__table_begin_list(b), 0);
    kvt__table_end_list(b, true);
    assert_true(kvt__table_is_listed(a) && kvt__table_is_listed(r));
    assert_int_equal(kvt__table_begin_list(a), -EALREADY);
    assert_int_equal(kvt__table_begin_list(b), -EALREADY);
    kvt__table_close(a);
    kvt__table_close(b);
    kvt__table_close(r);
    a = open_writer(d);
    assert_true(kvt__table_is_listed(a));
    kvt__table_close(a);
}

static void
a_private_table_is_listed_by_its_process(void **state)
{
    struct kvt__table *t = open_table(0, 0);

    (void)state;
    assert_int_equal(kvt__table_begin_list(t), 0);
    assert_int_equal(kvt__table_begin_list(t), -EBUSY);
    kvt__table_end_list(t, true);
    assert_true(kvt__table_is_listed(t));
    kvt__table_close(t);
}

static void
a_closed_handle_lists_no_more(void **state)
{
    struct kvt__table *a = open_writer(*state), *b = open_writer(*state);

    assert_int_equal(kvt__table_begin_list(a), 0);
    kvt__table_close(a);
    assert_int_equal(kvt__table_begin_list(b), 0);
    kvt__table_close(b);
}

static int
enter(struct kvt__table *t, uint64_t n)
{
    struct kvt__name name = name_of(n);
    struct kvt__record record = { .bytes = 10, .flags = KVT__TABLE_UNREAD };

    return kvt__table_enter(t, &name, &record, TEXT);
}

/* ---------------------------------------------------------------- snapshots */

/* After a reboot only the snapshot is left of a table. */
static void
forget_table(const struct dir *d)
{
    empty(d->shm);
    unlinkat(d->fd, "lock", 0);
}

static void
save_and_close(const struct dir *d, struct kvt__table *t)
{
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    kvt__table_close(t);
    forget_table(d);
}

static void
expect_equal(const struct kvt__record *a, const struct kvt__record *b)
{
    assert_true(kvt__id_equal(&a->id, &b->id));
    assert_memory_equal(a->hash.bits, b->hash.bits, sizeof a->hash.bits);
    assert_int_equal(a->hash.form, b->hash.form);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->recency_ns, b->recency_ns);
    assert_int_equal(a->n_uses, b->n_uses);
}

static const char *const texts[] = { "m/l@1@0@@bfloat16", "other@2@1@@float16",
                                     "m/l@1@0@@bfloat16@tag%value" };

static void
entries_are_as_before(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);
    struct kvt__record before[6], after;
    struct kvt__name names[6];
    char text[KVT__TABLE_TEXT_MAX + 1];

    params.wide_hashes = true;
    struct kvt__table *t = open_with(d, &params);
    for (uint64_t i = 0; i < 6; i++) {
        struct kvt__record record = record_of_n(i, 1000 + i);

        names[i] = (struct kvt__name){ .digest = kvt__table_digest(texts[i % 3]),
                                       .hash = { { i + 1 }, (enum kvt__hash_form)(i % 3) } };
        if (i % 3 == KVT__HASH_WIDE)
            names[i].hash.bits[1] = names[i].hash.bits[3] = 7 + i;
        record.flags = i == 4 ? KVT__TABLE_FOREIGN : 0;
        record.recency_ns = (int64_t)(1 + i) << 40;
        assert_int_equal(kvt__table_enter(t, &names[i], &record, texts[i % 3]), 0);
        for (uint64_t n = 0; n < i; n++)
            kvt__table_touch(t, &names[i], NULL);
        assert_true(kvt__table_find(t, &names[i], NULL, &before[i]));
        assert_int_equal(before[i].n_uses, i);
    }
    save_and_close(d, t);
    t = open_with(d, &params);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 6);
    for (uint64_t i = 0; i < 6; i++) {
        assert_true(kvt__table_find(t, &names[i], &before[i].id, &after));
        expect_equal(&after, &before[i]);
        assert_int_equal(kvt__table_space_text(t, after.space, text, sizeof text), 0);
        assert_string_equal(text, texts[i % 3]);
    }
    recount(t);
    kvt__table_close(t);
    forget_table(d);
    params.wide_hashes = false; /* wide hashes are left out */
    t = open_with(d, &params);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 4);
    recount(t);
    kvt__table_close(t);
    assert_int_equal(n_warnings, 0);
}

static void
a_large_table_comes_back(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);

    for (uint64_t i = 0; i < 100000; i++)
        assert_int_equal(store(t, i, i), 0);
    assert_int_equal(enter(t, 100000), 0);
    save_and_close(d, t);
    t = open_writer(d);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 100001);
    for (uint64_t i = 0; i < 100000; i++)
        assert_true(find(t, i, NULL));
    assert_int_equal(t->header->n_unread, 1);
    recount(t);
    kvt__table_close(t);
}

static void
an_entry_of_the_table_is_younger(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);
    struct kvt__name name = name_of(1);
    struct kvt__record record = { .id = id_of(99), .bytes = 5 };

    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(store(t, 2, 10), 0);
    save_and_close(d, t);
    t = open_writer(d);
    assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), 0);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 1);
    assert_false(find(t, 1, NULL));
    assert_true(kvt__table_find(t, &name, &record.id, NULL));
    assert_true(find(t, 2, NULL));
    recount(t);
    kvt__table_close(t);
}

static void
a_smaller_limit_leaves_entries_out(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);
    struct kvt__table *t = open_writer(d);

    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(store(t, i, 10), 0);
    save_and_close(d, t);
    params.limit_bytes = 35;
    t = open_with(d, &params);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 3);
    recount(t);
    kvt__table_close(t);
}

static void
nothing_is_written_without_a_change(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d), *other = open_writer(d);
    struct kvt__name name = name_of(1);

    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), -EALREADY);
    assert_int_equal(kvt__table_write_snapshot(other, d->fd, 0), -EALREADY);
    assert_true(find(other, 1, NULL));
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), -EALREADY);
    kvt__table_touch(other, &name, NULL);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    assert_int_equal(store(t, 2, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(other, d->fd, 0), 0);
    /* A failed snapshot is written again. */
    kvt__table_touch(other, &name, NULL);
    assert_int_equal(mkdirat(d->fd, "snapshot.new", 0700), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), -EISDIR);
    assert_int_equal(unlinkat(d->fd, "snapshot.new", AT_REMOVEDIR), 0);
    /* The last snapshot is young. */
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 300), -EALREADY);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    kvt__table_close(t);
    kvt__table_close(other);
}

static void
one_process_writes_and_not_while_another_lists(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_writer(d), *b = open_writer(d), *r = open_reader(d);
    struct kvt__table *own = open_table(0, 0);

    assert_int_equal(kvt__tb_lock_byte(b->lock_fd, F_WRLCK, TB_SNAPSHOT_BYTE), 0);
    assert_int_equal(kvt__table_write_snapshot(a, d->fd, 0), -EBUSY);
    kvt__tb_unlock_byte(b->lock_fd, TB_SNAPSHOT_BYTE);
    assert_int_equal(kvt__table_begin_list(b), 0);
    assert_int_equal(kvt__table_write_snapshot(a, d->fd, 0), -EBUSY);
    kvt__table_end_list(b, false);
    assert_int_equal(kvt__table_write_snapshot(a, d->fd, 0), 0);
    assert_int_equal(kvt__table_write_snapshot(r, d->fd, 0), -EINVAL);
    assert_int_equal(kvt__table_write_snapshot(own, d->fd, 0), -EINVAL);
    assert_int_equal(kvt__table_read_snapshot(r, d->fd), -EINVAL);
    assert_int_equal(kvt__table_read_snapshot(own, d->fd), 0);
    kvt__table_close(a);
    kvt__table_close(b);
    kvt__table_close(r);
    kvt__table_close(own);
}

/* ------------------------------------------------------------------ garbage */

static size_t
load(const struct dir *d, char *bytes, size_t max)
{
    int fd = openat(d->fd, "snapshot", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, bytes, max);

    assert_true(n > 0 && (size_t)n < max);
    close(fd);
    return (size_t)n;
}

static void
replace(const struct dir *d, const char *bytes, size_t n)
{
    int fd = openat(d->fd, "snapshot", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

static void
expect_refused(const struct dir *d, struct kvt__table *t)
{
    struct kvt__table_totals totals;

    t->header->restored = 0; /* as for the first reader */
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), -EBADMSG);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.n_entries, 0);
}

static void
garbage_is_refused(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);
    char good[4096], bad[4096];

    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(store(t, i, 10), 0);
    save_and_close(d, t);
    size_t n = load(d, good, sizeof good);
    t = open_writer(d);
    for (size_t i = 0; i < n; i++) {
        memcpy(bad, good, n);
        bad[i] = (char)(bad[i] ^ (1 << i % 8));
        replace(d, bad, n);
        expect_refused(d, t);
        replace(d, good, i); /* truncated */
        expect_refused(d, t);
    }
    memcpy(bad, good, n);
    bad[n] = 0;
    replace(d, bad, n + 1);
    expect_refused(d, t);
    replace(d, good, n);
    t->header->restored = 0;
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 3);
    kvt__table_close(t);
}

static void
only_a_regular_file_is_a_snapshot(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);

    assert_int_equal(kvt__table_read_snapshot(t, d->fd), -ENOENT);
    assert_int_equal(symlinkat("/dev/zero", d->fd, "snapshot"), 0);
    t->header->restored = 0;
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), -ELOOP);
    unlinkat(d->fd, "snapshot", 0);
    assert_int_equal(mkfifoat(d->fd, "snapshot", 0600), 0);
    t->header->restored = 0;
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), -EBADMSG);
    kvt__table_close(t);
}

/* A second listing of a table must not bring back evicted chunks from the snapshot. */
static void
a_snapshot_is_read_once_for_each_table(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);

    assert_int_equal(store(t, 1, 10), 0);
    save_and_close(d, t);
    t = open_writer(d);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 1);
    struct kvt__record record = ready_record(t, 1);
    assert_int_equal(kvt__table_forget(t, &record, true), 0);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 0);
    assert_false(find(t, 1, NULL));
    assert_int_equal(store(t, 2, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 0);
    kvt__table_close(t);
}

static int
save_with_a_file_limit(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);
    struct rlimit limit = { 100, 100 };

    for (uint64_t i = 0; i < 10; i++)
        if (store(t, i, 10))
            return 1;
    setrlimit(RLIMIT_FSIZE, &limit);
    return kvt__table_write_snapshot(t, d->fd, 0) != -EFBIG ||
           !faccessat(d->fd, "snapshot.new", F_OK, 0);
}

/* SIGXFSZ would end the process. */
static void
a_file_limit_is_an_error(void **state)
{
    succeed_in_child(*state, save_with_a_file_limit);
}

/* The first lister was killed, or has not begun yet. */
static void
a_snapshot_that_was_not_read_stays(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);

    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(store(t, i, 10), 0);
    save_and_close(d, t);
    t = open_writer(d);
    assert_int_equal(store(t, 7, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), -EBUSY);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 3);
    save_and_close(d, t);
    t = open_writer(d);
    assert_int_equal(kvt__table_read_snapshot(t, d->fd), 4);
    kvt__table_close(t);
}

/* If a process has stored chunks under a table that was replaced, the store is listed again. */
static void
a_relist_is_for_listings_that_begin_later(void **state)
{
    struct kvt__table *a = open_writer(*state), *b = open_writer(*state);

    assert_int_equal(kvt__table_begin_list(a), 0);
    kvt__table_end_list(a, true);
    assert_true(kvt__table_is_listed(b));
    kvt__table_request_listing(b);
    assert_false(kvt__table_is_listed(a));
    assert_int_equal(kvt__table_begin_list(a), 0);
    kvt__table_request_listing(b);
    kvt__table_end_list(a, true);
    assert_false(kvt__table_is_listed(b));
    assert_int_equal(kvt__table_begin_list(b), 0);
    kvt__table_end_list(b, false);
    assert_false(kvt__table_is_listed(b));
    assert_int_equal(kvt__table_begin_list(b), 0);
    kvt__table_end_list(b, true);
    assert_true(kvt__table_is_listed(a));
    assert_int_equal(kvt__table_begin_list(a), -EALREADY);
    kvt__table_close(a);
    kvt__table_close(b);
}

/* -------------------------------------------------------------------- kills */

static void
save_another(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);

    (void)store(t, 2, 10);
    (void)kvt__table_write_snapshot(t, d->fd, 0);
}

/* The older or the new snapshot is left, never a part. */
static void
a_killed_writer_leaves_a_whole_snapshot(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);
    struct kvt__table_params own = { .writer = true };
    bool has_new = false;

    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    for (int n = 1; kill_at(d, save_another, n); n++) {
        struct kvt__table *p;

        assert_int_equal(kvt__table_open_private(&own, &p), 0);
        int64_t got = kvt__table_read_snapshot(p, d->fd);
        assert_true(got == 1 || got == 2);
        assert_true(find(p, 1, NULL));
        has_new |= got == 2;
        kvt__table_close(p);
    }
    assert_true(has_new);
    kvt__table_touch(t, &(struct kvt__name){ .digest = name_of(1).digest,
                                             .hash = name_of(1).hash }, NULL);
    assert_int_equal(kvt__table_write_snapshot(t, d->fd, 0), 0);
    kvt__table_close(t);
}

static void
list_three(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);

    if (kvt__table_begin_list(t))
        return;
    (void)kvt__table_read_snapshot(t, d->fd);
    for (uint64_t i = 1; i <= 3; i++)
        (void)enter(t, i);
    kvt__table_end_list(t, true);
}

/* A part of the names is left, and another process lists. */
static void
a_killed_lister_leaves_the_listing_to_another(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);

    assert_int_equal(store(t, 1, 10), 0);
    save_and_close(d, t);
    for (int n = 1; kill_at(d, list_three, n); n++) {
        t = open_writer(d);
        int err = kvt__table_begin_list(t);
        assert_true(err == 0 || err == -EALREADY);
        assert_int_equal(kvt__table_is_listed(t), err == -EALREADY);
        if (!err) {
            assert_true(kvt__table_read_snapshot(t, d->fd) >= 0);
            for (uint64_t i = 1; i <= 3; i++)
                (void)enter(t, i);
            kvt__table_end_list(t, true);
        }
        recount(t);
        assert_int_equal(t->header->n_entries, 3);
        assert_true(find(t, 1, NULL)); /* with the identity of the snapshot */
        kvt__table_close(t);
        forget_table(d);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(one_process_lists),
        PLACE_TEST(a_private_table_is_listed_by_its_process),
        PLACE_TEST(a_closed_handle_lists_no_more),
        PLACE_TEST(entries_are_as_before),
        PLACE_TEST(a_large_table_comes_back),
        PLACE_TEST(an_entry_of_the_table_is_younger),
        PLACE_TEST(a_smaller_limit_leaves_entries_out),
        PLACE_TEST(nothing_is_written_without_a_change),
        PLACE_TEST(one_process_writes_and_not_while_another_lists),
        PLACE_TEST(garbage_is_refused),
        PLACE_TEST(only_a_regular_file_is_a_snapshot),
        PLACE_TEST(a_snapshot_is_read_once_for_each_table),
        PLACE_TEST(a_file_limit_is_an_error),
        PLACE_TEST(a_snapshot_that_was_not_read_stays),
        PLACE_TEST(a_relist_is_for_listings_that_begin_later),
        PLACE_TEST(a_killed_writer_leaves_a_whole_snapshot),
        PLACE_TEST(a_killed_lister_leaves_the_listing_to_another),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
