/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks with a time to live in a directory, in host memory and in shared host memory. */
#include "memory-test.h"
#include "shared-test.h"
#include "table-file.h"

#define TTL_S 64 /* the end is rounded down by less than 16 s */

static _Atomic time_t moved_s; /* seconds that all clocks are ahead */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int err = __real_clock_gettime(clock, out);

    out->tv_sec += moved_s;
    return err;
}

static struct kvt__table *
index_of(const struct env *e)
{
    return e->store->levels[0].index;
}

static int64_t
in_s(int64_t seconds)
{
    return kvt__wall_ns() + seconds * KVT__NS_PER_S;
}

static int
put_until(const struct env *e, unsigned i, int64_t expires_ns)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PUT, i);
    r.req.expires_ns = expires_ns;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

/* Run the part of the upkeep that deletes expired chunks. */
static void
expire(const struct env *e)
{
    moved_s += 15; /* a search begins at most every 15 s */
    kvt__memory_expire(e->store);
    for (size_t i = 0; i < e->store->n_storages; i++)
        kvt__level_expire(&e->store->levels[i]);
}

static uint64_t
n_expired(const struct env *e)
{
    return e->counters.value[KVT__N_expired_chunks];
}

static bool
is_marked(const struct env *e, unsigned i)
{
    struct stat st;
    char path[600];

    path_of(e, i, path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & S_ISVTX;
}

/* ------------------------------------------------------------------- a directory */

static void
a_chunk_is_served_until_its_end_and_then_deleted(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key = key_of(e, 1);

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    assert_int_equal(put(e, 2), 0);
    assert_true(is_marked(e, 1));
    assert_false(is_marked(e, 2));
    assert_true(find(e, 1));
    moved_s += TTL_S - 17;
    assert_int_equal(kvt__store_media(e->store, &key), KVT_MEDIUM_STORAGE);
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(probe(e, 1), 0);
    moved_s += 17;
    assert_false(find(e, 1));
    assert_int_equal(kvt__store_media(e->store, &key), 0);
    assert_false(lease(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_int_equal(get(e, 1), -ENOENT);
    assert_true(file_there(e, 1));
    expire(e);
    assert_false(file_there(e, 1));
    check_counted(e, 1, 0);
    assert_int_equal(n_expired(e), 1);
    assert_int_equal(get(e, 2), 0);
}

/* A load that follows a lookup has 16 s before the end. */
static void
a_lookup_finds_no_chunk_in_the_last_16_s_of_its_life(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key = key_of(e, 1);
    int64_t end = in_s(TTL_S) / (16 * KVT__NS_PER_S) * 16, expires_ns = INT64_MAX;

    assert_int_equal(put_until(e, 1, end * KVT__NS_PER_S), 0);
    moved_s += end - 20 - kvt__wall_ns() / KVT__NS_PER_S;
    assert_true(find(e, 1));
    assert_int_equal(kvt__store_lease(e->store, &key, KVT__ANYWHERE, INT64_MAX, &last_lease,
                                      &expires_ns), 1);
    assert_int_equal(expires_ns, end * KVT__NS_PER_S);
    moved_s += 6;
    assert_false(find(e, 1) || lease(e, 1));
    assert_false(kvt__store_has_lease(e->store, &key, &last_lease));
    kvt__store_unlease(e->store, &e->space, &last_lease);
    moved_s += 8;
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(put_until(e, 1, in_s(2 * TTL_S)), -EEXIST);
    assert_true(find(e, 1));
    assert_int_equal(put(e, 1), 0); /* no lease is left */
}

static void
a_lease_does_not_prolong_a_life(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key = key_of(e, 1);

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    assert_true(lease(e, 1));
    assert_true(kvt__store_has_lease(e->store, &key, &last_lease));
    moved_s += TTL_S;
    assert_false(kvt__store_has_lease(e->store, &key, &last_lease));
    assert_int_equal(get(e, 1), -ENOENT);
    expire(e);
    assert_false(file_there(e, 1));
}

static void
a_store_of_an_expired_chunk_renews_the_chunk(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    assert_true(lease(e, 1));
    moved_s += TTL_S;
    assert_int_equal(put_until(e, 1, in_s(2 * TTL_S)), 0);
    expire(e);
    assert_int_equal(get(e, 1), 0);
    assert_true(is_marked(e, 1));
    moved_s += 2 * TTL_S;
    assert_int_equal(put(e, 1), 0);
    assert_false(is_marked(e, 1));
    moved_s += 100 * TTL_S;
    expire(e);
    assert_int_equal(get(e, 1), 0);
    check_counted(e, 1, 0);
}

static void
the_longest_time_to_live_counts(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key keys[] = { key_of(e, 0), key_of(e, 1), key_of(e, 2) };

    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(put_until(e, i, in_s(TTL_S)), 0);
    assert_true(kvt__store_touch(e->store, &keys[0], in_s(TTL_S / 2)));
    assert_true(kvt__store_touch(e->store, &keys[1], in_s(2 * TTL_S)));
    assert_int_equal(put_until(e, 3, in_s(2 * TTL_S)), -EEXIST); /* as the touch */
    assert_true(is_marked(e, 1));
    assert_false(kvt__store_touch(e->store, &keys[2], 0)); /* needs another file */
    assert_int_equal(put(e, 2), 0);
    assert_false(is_marked(e, 2));
    moved_s += TTL_S;
    expire(e);
    assert_false(find(e, 0));
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(get(e, 3), 0);
    moved_s += TTL_S;
    expire(e);
    assert_false(find(e, 1) || find(e, 3));
    assert_int_equal(get(e, 2), 0);
    assert_int_equal(n_expired(e), 3);
    check_counted(e, 1, 0);
}

/* A lookup has promised the chunk: the load that follows must find the chunk. */
static void
a_leased_chunk_is_not_written_again(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key = key_of(e, 1);

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    assert_true(lease(e, 1));
    assert_int_equal(put(e, 1), -EEXIST);
    assert_true(is_marked(e, 1));
    assert_true(kvt__store_has_lease(e->store, &key, &last_lease));
    kvt__store_unlease(e->store, &e->space, &last_lease);
    assert_int_equal(put(e, 1), 0);
    assert_false(is_marked(e, 1));
    moved_s += TTL_S;
    assert_int_equal(get(e, 1), 0);
    check_counted(e, 1, 0);
}

static void
a_store_in_another_encoding_lets_a_chunk_live_on(void **state)
{
    static const char *const lossless[] = { "remote_serde=lossless", "max_remote_size=0.0001",
                                            NULL };
    struct env *e = *state;

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    reopen_over(e, "", lossless);
    assert_int_equal(put_until(e, 1, in_s(TTL_S)), -EEXIST);
    assert_int_equal(put(e, 1), 0); /* the codec has no shape, so the chunk stays naive */
    moved_s += TTL_S;
    assert_int_equal(get(e, 1), 0);
}

static void
an_expired_file_that_cannot_be_deleted_is_deleted_later(void **state)
{
    struct env *e = *state;

    reopen_over(e, "fault://remove_error=1/", small);
    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    moved_s += TTL_S;
    for (uint64_t i = 1; i <= 2; i++) {
        expire(e);
        assert_true(file_there(e, 1));
        assert_int_equal(get(e, 1), -ENOENT);
        assert_int_equal(e->counters.value[KVT__N_remove_failed], i);
    }
    reopen_over(e, "", small);
    expire(e);
    assert_false(file_there(e, 1));
    assert_int_equal(n_expired(e), 1);
}

static void
a_full_store_evicts_expired_chunks_first(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 13; i++)
        assert_int_equal(put_until(e, i, i == 12 ? in_s(TTL_S) : 0), 0);
    moved_s += TTL_S;
    assert_int_equal(put(e, 13), 0);
    for (unsigned i = 0; i < 14; i++)
        assert_int_equal(file_there(e, i), i != 12);
}

/* ------------------------------------------------------------------- a lost index */

static void
without_the_index_a_chunk_is_deleted(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(put_until(e, i, i < 3 ? in_s(TTL_S) : 0), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", small);
    assert_int_equal(probe(e, 0), -ENOENT);
    assert_int_equal(get(e, 0), -ENOENT);
    assert_int_equal(probe(e, 3), 0);
    expire(e); /* a probe has found chunk 0 */
    assert_false(file_there(e, 0));
    list_all(e->store);
    assert_false(find(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    assert_int_equal(put_until(e, 2, in_s(TTL_S)), 0); /* renewed before the search */
    expire(e);
    assert_false(file_there(e, 1));
    assert_int_equal(get(e, 2), 0);
    assert_int_equal(get(e, 3), 0);
    check_counted(e, 2, 0);
}

static void
the_snapshot_keeps_times_to_live(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    assert_int_equal(put_until(e, 2, in_s(100 * TTL_S)), 0);
    assert_int_equal(kvt__table_write_snapshot(index_of(e), private_dir(e), 0), 0);
    assert_int_equal(put_until(e, 3, in_s(100 * TTL_S)), 0);
    close_and_restart_host(e);
    moved_s += TTL_S;
    e->store = open_over(e, "", small);
    list_all(e->store);
    assert_false(find(e, 1));
    assert_int_equal(get(e, 2), 0);
    assert_false(find(e, 3));
    expire(e);
    assert_false(file_there(e, 1));
    assert_true(file_there(e, 2));
    assert_false(file_there(e, 3)); /* only the lost index knew the end */
    moved_s += 100 * TTL_S;
    expire(e);
    assert_false(file_there(e, 2));
}

/* Give a chunk another entry: unread, as after the death of a process, or with flags 0 as from a
 * snapshot. */
static void
replace_entry(const struct env *e, unsigned i, uint32_t flags, int64_t expires_ns)
{
    struct kvt__hash hash = { .bits = { i } };
    struct kvt__name name = kvt__level_name(&e->store->levels[0], &e->space, &hash);
    struct kvt__record record;

    assert_true(kvt__table_find(index_of(e), &name, NULL, &record));
    assert_int_equal(kvt__table_forget(index_of(e), &record, true), 0);
    record.flags = flags;
    record.expires_ns = expires_ns;
    assert_int_equal(kvt__table_enter(index_of(e), &name, &record, e->space.text), 0);
}

static void
an_unread_entry_keeps_its_end(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    replace_entry(e, 1, KVT__TABLE_UNREAD, in_s(TTL_S));
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
    check_counted(e, 1, 0);
    moved_s += TTL_S;
    assert_false(find(e, 1));
    expire(e);
    assert_false(file_there(e, 1));
}

/* The snapshot, or a process that died, described an older object of the name. */
static void
an_entry_without_end_does_not_let_a_chunk_live_for_ever(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(put_until(e, i, in_s(TTL_S)), 0);
        replace_entry(e, i, i < 2 ? KVT__TABLE_UNREAD : 0, 0);
    }
    assert_int_equal(probe(e, 0), -ENOENT);
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_int_equal(get(e, 2), -ENOENT);
    kvt__table_request_listing(index_of(e));
    list_all(e->store);
    assert_false(find(e, 3));
    expire(e);
    for (unsigned i = 0; i < 4; i++)
        assert_false(file_there(e, i));
    check_counted(e, 0, 0);
}

/* The index describes chunk 1, and the file of the name is another chunk with a time to live. */
static void
the_file_of_another_chunk_with_a_time_to_live_is_not_adopted(void **state)
{
    struct env *e = *state;
    char path[600], kept[610];
    struct request r;

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    path_of(e, 1, path, sizeof path);
    snprintf(kept, sizeof kept, "%s.kept", path);
    assert_int_equal(rename(path, kept), 0);
    request_init(&r, e, KVT__TIER_PUT, 1);
    r.req.id = id_of(77);
    r.req.overwrite = true;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    assert_int_equal(r.req.error.code, 0);
    assert_int_equal(rename(kept, path), 0);
    request_init(&r, e, KVT__TIER_GET, 1);
    r.req.id = id_of(77);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    assert_int_equal(r.req.error.code, -ENOENT);
    assert_false(find(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    expire(e);
    assert_false(file_there(e, 1));
}

static void
a_private_index_deletes_no_chunk_of_other_processes(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_until(e, 1, in_s(TTL_S)), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", small);
    atomic_store(&e->store->levels[0].reads_only, true);
    assert_int_equal(probe(e, 1), -ENOENT);
    list_all(e->store);
    assert_int_equal(get(e, 1), -ENOENT);
    expire(e);
    assert_true(file_there(e, 1));
}

/* ------------------------------------------------------------------- shared storage */

static void
storage_that_hosts_share_gets_no_chunk_with_a_time_to_live(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key = key_of(e, 1);

    assert_int_equal(put_until(e, 2, in_s(TTL_S)), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "fault://shared=1/", small);
    assert_true(e->store->levels[0].tier->multi_host);
    assert_int_equal(put_until(e, 1, in_s(TTL_S)), -EEXIST);
    assert_false(file_there(e, 1));
    assert_false(kvt__store_puts_in_storage(e->store, &e->space, in_s(TTL_S)));
    assert_true(kvt__store_touch(e->store, &key, in_s(TTL_S))); /* nothing to store */
    assert_false(kvt__store_touch(e->store, &key, 0));
    assert_int_equal(put(e, 1), 0);

    assert_int_equal(probe(e, 2), -ENOENT); /* a copied directory */
    expire(e);
    assert_true(file_there(e, 2));
}

/* ------------------------------------------------------------------- by key */

#define KEY "test/model@1@0@1f@bfloat16"

static struct kvt_store *
open_by_key(const struct env *e, const char *prefix)
{
    char url[600];
    const char *settings[] = { url, "max_remote_size=0.0001", "max_ttl_seconds=64", NULL };
    struct kvt_store *store;

    snprintf(url, sizeof url, "remote_url=%sfs://%s", prefix, e->dir.path);
    struct kvt_config *config = config_with(settings);
    if (kvt_store_open(config, &store))
        fail_msg("%s", kvt_last_error());
    kvt_config_free(config);
    return store;
}

/* Run an operation on KEY.  Return the status; *expires_ns: the end of the time to live. */
static int
run_by_key(struct kvt_store *store, uint32_t kind, int64_t *expires_ns)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);
    char bytes[8] = "bytes";

    op.kind = kind;
    op.key = KEY;
    op.buf = bytes;
    op.bytes = sizeof bytes;
    (void)!kvt_store_run(store, &op);
    *expires_ns = op.expires_ns;
    assert_true(!op.status == !*op.why);
    return op.status;
}

static void
a_key_is_served_until_its_end(void **state)
{
    static const uint32_t reads[] = { KVT_OP_GET, KVT_OP_STAT, KVT_OP_VERIFY };
    struct env *e = *state;
    struct kvt_store *store = open_by_key(e, "");
    int64_t end;

    assert_int_equal(run_by_key(store, KVT_OP_PUT, &end), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(run_by_key(store, reads[i], &end), 0);
        assert_true(end > in_s(TTL_S - 20) && end <= in_s(TTL_S));
    }
    moved_s += TTL_S;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(run_by_key(store, reads[i], &end), -ENOENT);
    assert_int_equal(run_by_key(store, KVT_OP_PUT, &end), 0);
    assert_int_equal(run_by_key(store, KVT_OP_GET, &end), 0);
    moved_s += TTL_S;
    assert_int_equal(totals_of(e).n_entries, 1);
    expire(e);
    assert_int_equal(disk_bytes(e), 0);

    assert_int_equal(run_by_key(store, KVT_OP_PUT, &end), 0);
    replace_entry(e, 0x1f, 0, 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(run_by_key(store, reads[i], &end), -ENOENT);
    kvt_store_close(store);
    close_and_lose_index(e);
    store = open_by_key(e, "");
    e->store = open_over(e, "", small);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(run_by_key(store, reads[i], &end), -ENOENT);
    kvt_store_close(store);
}

static void
a_key_without_storage_that_can_delete_in_time_is_not_stored(void **state)
{
    struct env *e = *state;
    struct kvt_store *store = open_by_key(e, "fault://shared=1/");
    int64_t end;

    assert_int_equal(run_by_key(store, KVT_OP_PUT, &end), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "max_ttl_seconds is set"));
    kvt_store_close(store);
}

/* ------------------------------------------------------------------- the limit */

static void
max_ttl_seconds_limits_each_time_to_live(void **state)
{
    static const char *const settings[] = { "max_ttl_seconds=1000", "max_remote_size=0.0001",
                                            NULL };
    struct env *e = *state;

    assert_int_equal(kvt__store_expiry(e->store, 0), 0);
    int64_t before = in_s(2000), end = kvt__store_expiry(e->store, 2000);
    assert_true(end >= before && end <= in_s(2000));
    reopen_over(e, "", settings);
    for (uint32_t wanted = 0; wanted <= 4000; wanted += 500) {
        int64_t seconds = wanted == 500 ? 500 : 1000;

        before = in_s(seconds);
        end = kvt__store_expiry(e->store, wanted);
        assert_true(end >= before && end <= in_s(seconds));
    }
}

/* ------------------------------------------------------------------- host memory */

static bool
is_in_memory(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);

    return kvt__store_find(e->store, &key, KVT__IN_MEMORY);
}

/* Enter a chunk into host memory. */
static int
keep_until(struct memory *m, unsigned i, int64_t expires_ns)
{
    struct kvt__store_req req = {
        .op = KVT__TIER_PUT, .space = &m->e.space, .id = id_of(i), .hash.bits = { i },
        .tokens = 256, .is_full = true, .bytes = BYTES, .expires_ns = expires_ns };

    assert_true(kvt__pool_acquire(m->pool, BYTES, 0, &req.slot));
    fill(req.slot.payload, i);
    req.crc = kvt__crc32c(0, req.slot.payload, BYTES);
    int err = kvt__memory_keep(m->e.store, &req, true);
    kvt__pool_release(m->pool, &req.slot);
    return err;
}

static void
host_memory_releases_expired_chunks(void **state)
{
    struct memory *m = *state;
    struct kvt__chunk_key key = key_of(&m->e, 1);

    assert_int_equal(keep_until(m, 1, in_s(TTL_S)), 0);
    assert_int_equal(keep_until(m, 2, in_s(TTL_S)), 0);
    assert_int_equal(keep_until(m, 3, 0), 0);
    kvt__store_protect(m->e.store, &key, kvt__now_ns() + 100 * TTL_S * KVT__NS_PER_S);
    moved_s += TTL_S;
    assert_false(is_in_memory(&m->e, 1) || is_in_memory(&m->e, 2));
    assert_int_equal(get(&m->e, 1), -ENOENT);
    assert_int_equal(keep_until(m, 2, in_s(TTL_S)), 0); /* renewed */
    assert_true(is_in_memory(&m->e, 2));
    expire(&m->e);
    assert_int_equal(kvt__pool_used(m->pool), 2 * kvt__pool_footprint(m->pool, BYTES));
    assert_int_equal(n_expired(&m->e), 1);
    assert_int_equal(get(&m->e, 2), 0);
    assert_int_equal(get(&m->e, 3), 0);
}

/* Read a chunk from storage into host memory. */
static void
prefetch(struct memory *m, unsigned i)
{
    struct kvt__store_req req = {
        .op = KVT__TIER_GET, .space = &m->e.space, .id = id_of(i), .hash.bits = { i },
        .tokens = 256, .is_full = true, .shape = shape_of_all, .bytes = BYTES,
        .is_prefetch = true };

    assert_true(kvt__pool_acquire(m->pool, BYTES, 0, &req.slot));
    kvt__store_run(m->e.store, &req);
    kvt__pool_release(m->pool, &req.slot);
    assert_int_equal(req.error.code, 0);
    assert_true(is_in_memory(&m->e, i));
}

static void
a_copy_in_host_memory_has_the_end_of_its_source(void **state)
{
    struct memory *m = *state;

    assert_int_equal(put_until(&m->e, 1, in_s(TTL_S)), 0);
    assert_int_equal(put(&m->e, 2), 0);
    prefetch(m, 1);
    prefetch(m, 2);
    moved_s += TTL_S;
    assert_false(is_in_memory(&m->e, 1));
    assert_true(is_in_memory(&m->e, 2));
    expire(&m->e);
    assert_int_equal(kvt__pool_used(m->pool), kvt__pool_footprint(m->pool, BYTES));
    assert_int_equal(n_expired(&m->e), 2);
}

/* The chunk was stored before max_ttl_seconds was set. */
static void
max_ttl_seconds_limits_a_copy_of_a_chunk_without_end(void **state)
{
    struct memory *m = *state;

    assert_int_equal(put(&m->e, 1), 0);
    m->e.store->max_ttl_s = TTL_S;
    prefetch(m, 1);
    moved_s += TTL_S;
    assert_false(is_in_memory(&m->e, 1));
    expire(&m->e);
    assert_int_equal(kvt__pool_used(m->pool), 0);
    assert_true(file_there(&m->e, 1));
}

/* ------------------------------------------------------------------- shared memory */

static void
count_name(void *ctx, const char *key, bool opaque, uint64_t stored_bytes, int64_t mtime_ns,
           bool expires)
{
    (void)key, (void)opaque, (void)stored_bytes, (void)mtime_ns, (void)expires;
    ++*(unsigned *)ctx;
}

static unsigned
n_listed(const struct env *e)
{
    struct kvt__tier *tier = e->store->levels[0].tier;
    unsigned n = 0;

    assert_int_equal(tier->ops->list(tier, "", count_name, &n), 0);
    return n;
}

static void
shared_memory_frees_expired_chunks(void **state)
{
    struct shared *s = *state;
    struct env *e = &s->e;
    struct kvt__chunk_key key = key_of(e, 4);

    open_with_chunk_1(s);
    assert_int_equal(put_until(e, 2, in_s(TTL_S)), 0);
    assert_int_equal(put_until(e, 3, in_s(TTL_S)), 0);
    assert_int_equal(put_until(e, 4, in_s(TTL_S)), 0);
    assert_true(kvt__store_touch(e->store, &key, 0)); /* in memory no byte is written again */
    assert_true(lease(e, 2));
    assert_int_equal(n_listed(e), 4);
    moved_s += TTL_S;
    assert_false(find(e, 2));
    assert_int_equal(n_listed(e), 2);
    assert_int_equal(get(e, 4), 0);
    assert_int_equal(get(e, 2), -ENOENT);
    assert_int_equal(put_until(e, 3, in_s(TTL_S)), 0); /* renewed */
    assert_int_equal(get(e, 3), 0);
    expire(e);
    assert_int_equal(totals_of(e).n_entries, 3);
    assert_int_equal(n_expired(e), 1);
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(get(e, 3), 0);
    kvt__store_close(e->store);
}

/* A prefetched chunk is verified by its first load, which then copies the chunk from the pool into
 * shared memory. */
static void
a_copy_in_shared_memory_has_the_end_of_its_source(void **state)
{
    struct shared *s = *state;
    struct memory m = { .e = s->e };
    struct temp_dir disk;
    char url[300];

    temp_dir_make(&disk);
    snprintf(url, sizeof url, "remote_url=fs://%s", disk.path);
    s->settings[2] = "max_remote_size=0.03";
    m.e.store = s->e.store = open_shared(s, url);
    assert_non_null(m.e.store);
    m.e.space = s->e.space;
    struct kvt__level *shared = &m.e.store->levels[0];
    struct kvt__hash hash = { .bits = { 1 } };
    struct kvt__name name = kvt__level_name(shared, &m.e.space, &hash);
    struct kvt__record record;
    assert_true(shared->tier->in_memory);
    open_memory_pool(&m);
    struct kvt__memory_params params = worker_memory(&m, NULL);
    params.prefetched_only = true;
    add_memory(&m.e, params);

    while (put_until(&m.e, 1, in_s(TTL_S)) == -ENOSPC) /* until the memory is allocated */
        usleep(1000);
    if (kvt__table_find(shared->index, &name, NULL, &record))
        assert_int_equal(kvt__table_forget(shared->index, &record, true), 0);
    prefetch(&m, 1);
    assert_false(kvt__table_find(shared->index, &name, NULL, &record));
    struct kvt__store_req req = { .op = KVT__TIER_GET, .space = &m.e.space, .id = id_of(1),
                                  .hash.bits = { 1 }, .bytes = BYTES };
    assert_true(kvt__store_acquire_chunk(m.e.store, &req));
    kvt__store_run(m.e.store, &req);
    assert_int_equal(req.error.code, 0);
    kvt__pool_release(m.pool, &req.slot);
    assert_true(kvt__table_find(shared->index, &name, NULL, &record));
    assert_true(record.expires_ns > in_s(0) && record.expires_ns <= in_s(TTL_S));
    kvt__store_close(m.e.store);
    kvt__pool_close(m.pool);
    temp_dir_remove(&disk);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_chunk_is_served_until_its_end_and_then_deleted),
        TEST(a_lookup_finds_no_chunk_in_the_last_16_s_of_its_life),
        TEST(a_lease_does_not_prolong_a_life),
        TEST(a_store_of_an_expired_chunk_renews_the_chunk),
        TEST(the_longest_time_to_live_counts),
        TEST(a_leased_chunk_is_not_written_again),
        TEST(a_store_in_another_encoding_lets_a_chunk_live_on),
        TEST(an_expired_file_that_cannot_be_deleted_is_deleted_later),
        TEST(a_full_store_evicts_expired_chunks_first),
        TEST(without_the_index_a_chunk_is_deleted),
        TEST(the_snapshot_keeps_times_to_live),
        TEST(an_unread_entry_keeps_its_end),
        TEST(an_entry_without_end_does_not_let_a_chunk_live_for_ever),
        TEST(the_file_of_another_chunk_with_a_time_to_live_is_not_adopted),
        TEST(a_private_index_deletes_no_chunk_of_other_processes),
        TEST(storage_that_hosts_share_gets_no_chunk_with_a_time_to_live),
        TEST(a_key_is_served_until_its_end),
        TEST(a_key_without_storage_that_can_delete_in_time_is_not_stored),
        TEST(max_ttl_seconds_limits_each_time_to_live),
        MEMORY_TEST(host_memory_releases_expired_chunks),
        MEMORY_TEST(a_copy_in_host_memory_has_the_end_of_its_source),
        MEMORY_TEST(max_ttl_seconds_limits_a_copy_of_a_chunk_without_end),
        SHARED_TEST(shared_memory_frees_expired_chunks),
        SHARED_TEST(a_copy_in_shared_memory_has_the_end_of_its_source),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
