/* SPDX-License-Identifier: Apache-2.0
 *
 * Full storage and full indexes: which chunks are evicted, and which files stay. */
#include "store-test.h"

/* Room for 13 chunks of TAKEN bytes. */
static struct kvt__level *
level_of(const struct env *e)
{
    return &e->store->levels[0];
}

/* --------------------------------------------------------------- no limit is set */

/* Replace the index of the store, shared with other hosts, by a small index without
 * limit. */
static uint64_t
open_unlimited(struct env *e)
{
    const struct kvt__index_params params = { .dirfd = -1, .n_entries = 1, .writer = true };
    struct kvt__index_totals totals;
    struct kvt__index *index = NULL;

    reopen_over(e, "fault://shared=1/", small);
    kvt__index_close(level_of(e)->index);
    assert_int_equal(kvt__index_open(&params, &index), 0);
    level_of(e)->index = index;
    kvt__index_get_totals(level_of(e)->index, &totals);
    assert_int_equal(totals.limit_bytes, 0);
    return totals.n_entries;
}

static void
a_full_index_without_limit_removes_no_file(void **state)
{
    struct env *e = *state;
    struct kvt__index_totals totals;
    unsigned n = (unsigned)open_unlimited(e) + 100;

    kvt__index_set_scanned(level_of(e)->index, true);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(put(e, i), 0);
    assert_false(kvt__index_scanned(level_of(e)->index)); /* files lost their entry */
    for (unsigned i = 0; i < n; i++)
        if (!file_there(e, i))
            fail_msg("the file of chunk %u of %u is gone", i, n);
    kvt__index_get_totals(level_of(e)->index, &totals);
    assert_true(totals.n_ready < n); /* so entries went */
    assert_int_equal(e->counters.value[KVT__N_evicted_chunks], 0);
    assert_int_equal(get(e, n - 1), 0);
}

static void
a_scan_without_limit_changes_nothing(void **state)
{
    struct env *e = *state;
    struct kvt__index_totals totals;
    unsigned n = (unsigned)open_unlimited(e) + 100;
    char path[600];

    assert_int_equal(put(e, 0), 0);
    for (unsigned i = 1; i < n; i++) {
        path_of(e, i, path, sizeof path);
        write_file(path, "", 0);
    }
    kvt__store_scan(e->store);
    for (unsigned i = 0; i < n; i++)
        assert_true(file_there(e, i));
    kvt__index_get_totals(level_of(e)->index, &totals);
    assert_int_equal(totals.n_ready, 1);
    assert_int_equal(get(e, 0), 0);
}

/* ------------------------------------------------------------- others fill the disk */

static uint64_t shortage;

static uint64_t
tell_shortage(const struct kvt__tier *tier, const struct kvt__object *object,
              uint64_t bytes)
{
    (void)tier;
    (void)object;
    (void)bytes;
    return shortage;
}

static void
the_store_shrinks_when_others_fill_the_disk(void **state)
{
    struct env *e = *state;
    struct kvt__tier_ops ops = *level_of(e)->tier->ops;
    const struct kvt__tier_ops *usual = level_of(e)->tier->ops;

    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(put(e, i), 0);
    assert_int_equal(disk_bytes(e), 12 * TAKEN);
    ops.shortage = tell_shortage;
    level_of(e)->tier->ops = &ops;
    level_of(e)->keeps_free = true;
    shortage = 3 * TAKEN;
    assert_int_equal(put(e, 100), 0);
    assert_int_equal(disk_bytes(e), (12 - 3 + 1) * TAKEN);
    shortage = 1000 * TAKEN; /* several puts free it together */
    assert_int_equal(put(e, 101), 0);
    assert_int_equal(disk_bytes(e), (10 - 4 + 1) * TAKEN);
    for (unsigned i = 0; i < 12; i++)
        (void)put(e, 200 + i);
    assert_in_range(disk_bytes(e), 0, TAKEN);
    shortage = 0;
    assert_int_equal(put(e, 300), 0);
    assert_int_equal(get(e, 300), 0);
    level_of(e)->tier->ops = usual;
}

static void
a_part_of_the_file_system_stays_free_without_limit_only(void **state)
{
    static const char *const unlimited[] = { "max_remote_size=0", NULL };
    struct env *e = *state;

    assert_false(level_of(e)->keeps_free);
    reopen_over(e, "fault://shared=1/", unlimited);
    assert_false(level_of(e)->keeps_free); /* other hosts' files are theirs */
    reopen_over(e, "", unlimited);
    const struct kvt__tier *tier = level_of(e)->tier;
    uint64_t limit = tier->ops->default_limit(tier);
    const struct kvt__object object = { .key = "" };
    assert_true(level_of(e)->keeps_free);
    /* All file system bytes are never free; none ask for more than is used. */
    assert_in_range(tier->ops->shortage(tier, &object, limit / 9 * 10), limit / 9, UINT64_MAX);
    assert_true(tier->ops->shortage(tier, &object, 2 * TAKEN) <= limit / 9 + 2 * TAKEN);
}

static void
enospc_evicts_and_pauses_only_when_nothing_can_go(void **state)
{
    struct env *e = *state, full = *e;

    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(put(e, i), 0);
    full.store = open_over(&full, "fault://enospc=1/", small);
    assert_int_equal(put(&full, 100), -ENOSPC);
    assert_int_equal(disk_bytes(e), 4 * TAKEN);
    assert_int_equal(used(e), 4 * TAKEN);
    assert_int_equal(put(e, 101), 0); /* resets this process's count of failures */
    for (unsigned i = 0; i < 7; i++)
        (void)put(&full, 200 + i);
    assert_true(kvt__level_is_paused(level_of(&full), KVT__WRITES));
    assert_int_equal(put(&full, 300), -EIO);
    kvt__store_close(full.store);
}

/* ------------------------------------------------------- two chunks, one file name */

/* Put a chunk under the file name of another chunk: equal tokens of two adapters. */
static int
put_under_name(const struct env *e, unsigned id, unsigned name)
{
    struct request r;

    request_init(&r, e, KVT__STORE_PUT, id);
    r.req.hash.bits[0] = name;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.status;
}

static void
a_chunk_that_is_being_evicted_is_not_replaced(void **state)
{
    struct env *e = *state;
    struct kvt__id id = id_of(1);
    struct kvt__index_claim claim;

    assert_int_equal(put(e, 1), 0);
    assert_int_equal(kvt__index_evict(level_of(e)->index, &id, false, NULL, &claim), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(put_under_name(e, 2, 1), -EBUSY);
    assert_false(kvt__level_is_paused(level_of(e), KVT__WRITES));
    kvt__index_restore(level_of(e)->index, &claim);
    assert_int_equal(get(e, 1), 0); /* the file was not touched */
    assert_int_equal(used(e), TAKEN);
    assert_int_equal(put_under_name(e, 2, 1), 0);
    assert_false(find(e, 1));
    assert_int_equal(used(e), TAKEN);
}

/* Two processes storing both chunks at once leave both entries and one file. */
static void
an_eviction_leaves_the_file_of_the_other_chunk(void **state)
{
    struct env *e = *state;
    struct kvt__index *index = level_of(e)->index;
    struct kvt__index_entry old = { .id = id_of(1), .hash.bits = { 2 }, .bytes = TAKEN,
                                    .recency_ns = 4096 };
    struct kvt__index_claim claim;

    assert_int_equal(put(e, 2), 0);
    assert_true(lease(e, 2));
    assert_int_equal(kvt__index_reserve(index, old.bytes), 0);
    assert_int_equal(kvt__index_claim(index, &old, e->space.text, &claim), 0);
    kvt__index_publish(index, &claim);
    for (unsigned i = 0; i < 15; i++)
        assert_int_equal(put(e, 100 + i), 0);
    assert_false(find(e, 1));
    assert_int_equal(get(e, 2), 0);
}

/* LMCache wrote over files of kvtier in place: their names are in the index after a scan, but
 * no chunk is read from there. */
static void
files_that_nobody_can_read_are_evicted_too(void **state)
{
    struct env *e = *state;
    char path[600];

    if (!temp_dir_has_attributes(&e->dir))
        skip(); /* the files then look like files of LMCache */
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(put(e, i), 0);
        path_of(e, i, path, sizeof path);
        assert_int_equal(truncate(path, KVT__FS_HEADER_BYTES + BYTES), 0);
        assert_int_equal(probe(e, i), 0); /* the index has the chunk */
    }
    close_and_lose_index(e);
    e->store = open_over(e, "", small);
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(probe(e, i), -ENOENT);
    kvt__store_scan(e->store);
    assert_int_equal(used(e), 12 * TAKEN);
    for (unsigned i = 100; i < 120; i++)
        assert_int_equal(put(e, i), 0);
    assert_int_equal(disk_bytes(e), used(e));
    for (unsigned i = 0; i < 12; i++)
        assert_false(file_there(e, i));
}

/* Another thread enters the chunk between the look into the index and the claim. */
static void
a_probe_beside_a_store_of_the_same_chunk_finds_it(void **state)
{
    struct env *e = *state;
    struct kvt__index *index = level_of(e)->index;
    struct kvt__index_entry entry = { .id = id_of(1), .hash.bits = { 1 }, .bytes = TAKEN };
    struct kvt__index_claim claim;

    assert_int_equal(put(e, 1), 0);
    assert_true(kvt__level_drop(level_of(e), &entry.id, NULL));
    assert_int_equal(kvt__index_reserve(index, entry.bytes), 0);
    assert_int_equal(kvt__index_claim(index, &entry, e->space.text, &claim), 0);
    assert_int_equal(probe(e, 1), 0);
    kvt__index_abort(index, &claim);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_full_index_without_limit_removes_no_file),
        TEST(a_scan_without_limit_changes_nothing),
        TEST(the_store_shrinks_when_others_fill_the_disk),
        TEST(a_part_of_the_file_system_stays_free_without_limit_only),
        TEST(enospc_evicts_and_pauses_only_when_nothing_can_go),
        TEST(a_chunk_that_is_being_evicted_is_not_replaced),
        TEST(a_probe_beside_a_store_of_the_same_chunk_finds_it),
        TEST(an_eviction_leaves_the_file_of_the_other_chunk),
        TEST(files_that_nobody_can_read_are_evicted_too),
    };

    return cmocka_run_group_tests_name("store, full", tests, NULL, NULL);
}
