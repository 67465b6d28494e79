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
    const struct kvt__table_params params = { .max_entries = 1, .writer = true };
    struct kvt__table *index = NULL;

    reopen_over(e, "fault://shared=1/", small);
    kvt__table_close(level_of(e)->index);
    assert_int_equal(kvt__table_open_private(&params, &index), 0);
    level_of(e)->index = index;
    level_of(e)->was_shared = false;
    assert_int_equal(totals_of(e).limit_bytes, 0);
    return totals_of(e).max_entries;
}

static void
a_full_index_without_limit_removes_no_file(void **state)
{
    struct env *e = *state;
    unsigned n = (unsigned)open_unlimited(e) + 100;

    for (unsigned i = 0; i < n; i++)
        assert_int_equal(put(e, i), 0);
    for (unsigned i = 0; i < n; i++)
        if (!file_there(e, i))
            fail_msg("the file of chunk %u of %u is gone", i, n);
    assert_true(totals_of(e).n_entries < n); /* so entries were forgotten */
    assert_int_equal(e->counters.value[KVT__N_evicted_chunks], 0);
    assert_int_equal(get(e, n - 1), 0);
}

static void
a_listing_without_limit_changes_nothing(void **state)
{
    struct env *e = *state;
    unsigned n = (unsigned)open_unlimited(e) + 100;
    char path[600];

    assert_int_equal(put(e, 0), 0);
    for (unsigned i = 1; i < n; i++) {
        path_of(e, i, path, sizeof path);
        write_file(path, "", 0);
    }
    list_all(e->store);
    for (unsigned i = 0; i < n; i++)
        assert_true(file_there(e, i));
    assert_int_equal(totals_of(e).n_entries, 1);
    assert_int_equal(get(e, 0), 0);
}

/* A search that no load has followed leaves unread entries of 0 bytes. */
static void
a_chunk_takes_one_place_of_a_full_index(void **state)
{
    struct env *e = *state;
    uint64_t n = open_unlimited(e);

    for (unsigned i = 0; i < n; i++) {
        struct kvt__name name = kvt__name_from_hash(e->space.digests[0],
                                                    &(struct kvt__hash){ .bits = { i } });
        const struct kvt__record record = { .flags = KVT__TABLE_UNREAD };
        assert_int_equal(kvt__table_enter(level_of(e)->index, &name, &record,
                                          e->space.text), 0);
    }
    assert_int_equal(put(e, (unsigned)n), 0);
    assert_int_equal(totals_of(e).n_entries, n);
    assert_true(find(e, (unsigned)n));
}

/* ------------------------------------------------------- files that cannot be removed */

static void
a_file_that_cannot_be_removed_counts_for_the_limit(void **state)
{
    struct env *e = *state;
    unsigned n = 0;

    reopen_over(e, "fault://remove_error=1/", small);
    while (!put(e, n))
        n++;
    assert_true(n > 8);
    assert_int_equal(put(e, n), -ENOSPC);
    assert_int_equal(used(e), n * TAKEN);
    assert_int_equal(disk_bytes(e), n * TAKEN);
    assert_true(e->counters.value[KVT__N_remove_failed] > 0);
    assert_int_equal(e->counters.value[KVT__N_evicted_chunks], 0);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(get(e, i), 0);
    reopen_over(e, "", small);
    assert_int_equal(put(e, n), 0);
}

static const struct kvt__tier_ops *usual_ops;

static unsigned first_kept; /* the files of 9 chunks from this chunk on cannot be removed */

static int
run_or_refuse(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    if (op->kind == KVT__TIER_REMOVE && op->object->hash.bits[0] - first_kept < 9)
        return kvt__fail(EROFS, "remove");
    return usual_ops->run(tier, op);
}

/* Store 13 chunks.  The policy evicts 9 chunks first whose files cannot be removed: more chunks
 * than a search chooses. */
static void
evict_beside_kept_files(struct env *e, const char *policy, unsigned kept)
{
    struct kvt__tier_ops ops = *level_of(e)->tier->ops;

    for (unsigned i = 0; i < 13; i++) {
        assert_int_equal(put(e, i), 0);
        wait_for_tick();
    }
    for (unsigned n = 0; !strcmp(policy, "LFU") && n < 40; n++)
        for (unsigned i = 9; i < 13; i++)
            assert_int_equal(get(e, i), 0);
    first_kept = kept;
    usual_ops = level_of(e)->tier->ops;
    ops.run = run_or_refuse;
    level_of(e)->tier->ops = &ops;
    for (unsigned i = 0; i < 13; i++)
        assert_int_equal(put(e, 100 + i), 0);
    for (unsigned i = kept; i < kept + 9; i++)
        assert_int_equal(get(e, i), 0);
    assert_int_equal(disk_bytes(e), 13 * TAKEN);
    level_of(e)->tier->ops = usual_ops;
}

static void
files_that_cannot_be_removed_do_not_end_the_eviction(void **state)
{
    static const struct {
        const char *policy;
        unsigned kept; /* number of the first chunk that cannot be removed */
    } cases[] = { { "LRU", 0 }, { "FIFO", 0 }, { "LFU", 0 }, { "MRU", 4 } };
    struct env *e = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char policy[32];

        snprintf(policy, sizeof policy, "cache_policy=%s", cases[i].policy);
        kvt__store_close(e->store);
        temp_dir_remove(&e->dir);
        temp_dir_make(&e->dir);
        e->store = open_over(e, "", (const char *const[]){ small[0], policy, NULL });
        evict_beside_kept_files(e, cases[i].policy, cases[i].kept);
    }
}

static void
a_corrupt_file_that_cannot_be_removed_is_counted(void **state)
{
    struct env *e = *state;
    unsigned char byte = 0xff;
    char path[600];

    reopen_over(e, "fault://remove_error=1/", small);
    assert_int_equal(put(e, 1), 0);
    path_of(e, 1, path, sizeof path);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, &byte, 1, 1000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 1001), 1);
    close(fd);
    assert_int_equal(get(e, 1), -EBADMSG);
    assert_true(file_there(e, 1));
    assert_int_equal(e->counters.value[KVT__N_remove_failed], 1);
    assert_false(find(e, 1));
}

/* -------------------------------------------------- other programs fill the disk */

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
    shortage = 1000 * TAKEN; /* several PUTs together free the shortage */
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
    assert_false(level_of(e)->keeps_free); /* this host does not delete files of other hosts */
    reopen_over(e, "", unlimited);
    const struct kvt__tier *tier = level_of(e)->tier;
    uint64_t limit = tier->default_limit;
    const struct kvt__object object = { .key = "" };
    assert_true(level_of(e)->keeps_free);
    /* All file system bytes are never free; none ask for more than is used. */
    assert_in_range(tier->ops->shortage(tier, &object, limit / 9 * 10), limit / 9, UINT64_MAX);
    assert_true(tier->ops->shortage(tier, &object, 2 * TAKEN) <= limit / 9 + 2 * TAKEN);
}

static void
enospc_evicts_and_pauses_only_without_victims(void **state)
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
    assert_true(kvt__level_is_paused(level_of(&full), KVT__PAUSE_WRITES));
    assert_int_equal(put(&full, 300), -EIO);
    kvt__store_close(full.store);
}

/* ------------------------------------------------------- two chunks, one file name */

/* Put a chunk under the file name of another chunk: equal tokens of two adapters. */
static int
put_under_name(const struct env *e, unsigned id, unsigned name)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PUT, id);
    r.req.hash.bits[0] = name;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

/* Return the entry of a chunk that the index has. */
static struct kvt__record
entry_of(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);
    struct kvt__name name = kvt__level_name(level_of(e), key.space, &key.hash);
    struct kvt__record record;

    assert_true(kvt__table_find(level_of(e)->index, &name, NULL, &record));
    return record;
}

static void
a_chunk_that_is_being_evicted_is_not_replaced(void **state)
{
    struct env *e = *state;
    struct kvt__claim claim;

    assert_int_equal(put(e, 1), 0);
    struct kvt__record seen = entry_of(e, 1);
    assert_int_equal(kvt__table_evict(level_of(e)->index, &seen, false, &claim), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(put_under_name(e, 2, 1), -EEXIST);
    assert_false(kvt__level_is_paused(level_of(e), KVT__PAUSE_WRITES));
    kvt__table_abort(level_of(e)->index, &claim);
    assert_int_equal(get(e, 1), 0); /* the file was not touched */
    assert_int_equal(used(e), TAKEN);
    assert_int_equal(put_under_name(e, 2, 1), 0);
    assert_false(find(e, 1));
    assert_int_equal(used(e), TAKEN);
}

static struct kvt__claim evicting;

/* After each PUT, end an eviction that began before the PUT. */
static int
run_beside_eviction(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct kvt__tier_op removal = { .kind = KVT__TIER_REMOVE, .object = op->object };
    struct kvt__table *index = (struct kvt__table *)evicting.table;
    int err = usual_ops->run(tier, op);

    if (op->kind != KVT__TIER_PUT)
        return err;
    assert_int_equal(usual_ops->run(tier, &removal), 0);
    kvt__table_evicted(index, &evicting);
    return err;
}

/* The eviction deletes the object of a PUT that overwrites: no lookup may promise the chunk. */
static void
an_overwriting_put_beside_an_eviction_is_not_promised(void **state)
{
    struct env *e = *state;
    struct kvt__tier_ops ops = *level_of(e)->tier->ops;
    struct request r;

    assert_int_equal(put(e, 1), 0);
    struct kvt__record seen = entry_of(e, 1);
    assert_int_equal(kvt__table_evict(level_of(e)->index, &seen, false, &evicting), 0);
    usual_ops = level_of(e)->tier->ops;
    ops.run = run_beside_eviction;
    level_of(e)->tier->ops = &ops;
    request_init(&r, e, KVT__TIER_PUT, 1);
    r.req.overwrite = true;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    level_of(e)->tier->ops = usual_ops;
    assert_false(find(e, 1));
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_int_equal(used(e), 0);
}

/* The lease was of the first chunk, which no request can read any more. */
static void
a_put_replaces_a_leased_chunk_and_ends_the_lease(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key second = key_of(e, 2);
    struct kvt__lease of_second;

    second.hash.bits[0] = 1;
    assert_int_equal(put(e, 1), 0);
    assert_true(lease(e, 1));
    assert_int_equal(put_under_name(e, 2, 1), 0);
    assert_false(find(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    assert_int_equal(used(e), TAKEN);
    assert_int_equal(totals_of(e).n_entries, 1);
    assert_int_equal(kvt__store_lease(e->store, &second, KVT__ANYWHERE,
                                      kvt__now_ns() + 600 * KVT__NS_PER_S, &of_second,
                                      &(int64_t){ INT64_MAX }), 1);
    kvt__store_unlease(e->store, &e->space, &last_lease); /* not of the second chunk */
    assert_int_equal(kvt__level_evict(level_of(e), NULL, 1), 0);
    kvt__store_unlease(e->store, &e->space, &of_second);
    assert_int_equal(kvt__level_evict(level_of(e), NULL, 1), TAKEN);
    assert_int_equal(disk_bytes(e), 0);
}

/* The bytes of a chunk that another chunk replaces again and again. */
static void
chunks_of_one_name_count_once(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(put_under_name(e, 2 + i % 2, 1), 0);
        assert_int_equal(used(e), TAKEN);
        assert_int_equal(disk_bytes(e), TAKEN);
    }
    for (unsigned i = 0; i < 30; i++) {
        wait_for_tick();
        assert_int_equal(put(e, 100 + i), 0);
    }
    assert_false(file_there(e, 1));
    assert_int_equal(used(e), disk_bytes(e));
}

/* The entry is the oldest one, the chunk is the newest one. */
static void
a_chunk_that_replaces_an_old_one_is_not_evicted_first(void **state)
{
    struct env *e = *state;

    for (unsigned i = 1; i < 11; i++) {
        assert_int_equal(put(e, i), 0);
        wait_for_tick();
    }
    assert_int_equal(put_under_name(e, 500, 1), 0);
    wait_for_tick();
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(put(e, 100 + i), 0);
    assert_true(file_there(e, 1));
    assert_false(file_there(e, 2));
    assert_int_equal(used(e), disk_bytes(e));
}

/* LMCache wrote over files of kvtier in place: their names are in the index after a listing, but
 * no chunk is read from there. */
static void
unreadable_files_are_evicted(void **state)
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
    list_all(e->store);
    assert_int_equal(used(e), 12 * TAKEN);
    for (unsigned i = 100; i < 120; i++)
        assert_int_equal(put(e, i), 0);
    assert_int_equal(disk_bytes(e), used(e));
    for (unsigned i = 0; i < 12; i++)
        assert_false(file_there(e, i));
}

/* Another thread enters the chunk between the lookup and the claim. */
static void
a_probe_during_a_store_of_the_chunk_hits(void **state)
{
    struct env *e = *state;
    struct kvt__table *index = level_of(e)->index;
    struct kvt__record record = { .id = id_of(1), .bytes = TAKEN };
    char text[KVT__TABLE_TEXT_MAX + 1];
    struct kvt__claim claim;

    assert_int_equal(put(e, 1), 0);
    struct kvt__record seen = entry_of(e, 1);
    struct kvt__name name = kvt__level_name(level_of(e), &e->space, &seen.hash);
    assert_int_equal(kvt__table_forget(index, &seen, false), 0);
    assert_int_equal(kvt__level_spell(level_of(e), &e->space, text), 0);
    assert_int_equal(kvt__table_claim(index, &name, &record, text, &claim), 0);
    assert_int_equal(probe(e, 1), 0);
    kvt__table_abort(index, &claim);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_full_index_without_limit_removes_no_file),
        TEST(a_file_that_cannot_be_removed_counts_for_the_limit),
        TEST(files_that_cannot_be_removed_do_not_end_the_eviction),
        TEST(a_corrupt_file_that_cannot_be_removed_is_counted),
        TEST(a_listing_without_limit_changes_nothing),
        TEST(a_chunk_takes_one_place_of_a_full_index),
        TEST(the_store_shrinks_when_others_fill_the_disk),
        TEST(a_part_of_the_file_system_stays_free_without_limit_only),
        TEST(enospc_evicts_and_pauses_only_without_victims),
        TEST(a_chunk_that_is_being_evicted_is_not_replaced),
        TEST(an_overwriting_put_beside_an_eviction_is_not_promised),
        TEST(a_probe_during_a_store_of_the_chunk_hits),
        TEST(a_put_replaces_a_leased_chunk_and_ends_the_lease),
        TEST(chunks_of_one_name_count_once),
        TEST(a_chunk_that_replaces_an_old_one_is_not_evicted_first),
        TEST(unreadable_files_are_evicted),
    };

    return cmocka_run_group_tests_name("store, full", tests, NULL, NULL);
}
