/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT, GET and PROBE: results, and the handling of corrupt, replaced and deleted files. */
#include "store-test.h"

/* ------------------------------------------------------------- put and get */

static void
a_stored_chunk_is_found_and_read(void **state)
{
    struct env *e = *state;

    assert_int_equal(get(e, 1), -ENOENT);
    assert_int_equal(put(e, 1), 0);
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get(e, 2), -ENOENT);
    assert_int_equal(probe(e, 2), -ENOENT);
    assert_false(find(e, 2));
}

static void
a_stored_chunk_is_not_stored_again(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    uint64_t before = used(e);
    assert_int_equal(put(e, 1), -EEXIST);
    assert_int_equal(used(e), before);
}

static void
a_restart_finds_chunks_with_an_index_and_a_probe_without(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    reopen_over(e, "", NULL);
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", NULL);
    assert_false(find(e, 1));
    assert_int_equal(probe(e, 1), 0);
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), 0);
}

static void
spaces_with_a_layout_tag_are_in_the_directory_kvtier(void **state)
{
    struct env *e = *state;
    char path[600];

    strcpy(e->space.text, "m@1@0@@uint8@kvt%0123456789abcdef");
    e->space.opaque = true;
    assert_int_equal(kvt__store_set_tags(e->store, &e->space, ""), 0);
    assert_int_equal(put(e, 0xab), 0);
    snprintf(path, sizeof path, "%s/kvtier/m@1@0@ab@uint8@kvt%%0123456789abcdef.data",
             e->dir.path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(get(e, 0xab), 0);
}

/* ------------------------------------------------------------------ damage */

/* The first GET reports the corrupt chunk; afterwards file and entry are deleted. */
static void
check_damaged(struct env *e, unsigned i)
{
    uint64_t before = used(e);
    int warnings = n_warnings;

    assert_int_equal(get(e, i), -EBADMSG);
    assert_int_equal(n_warnings, warnings + 1);
    assert_false(file_there(e, i));
    assert_false(find(e, i));
    assert_int_equal(used(e), before - TAKEN);
    assert_int_equal(get(e, i), -ENOENT);
    assert_int_equal(n_warnings, warnings + 1);
    assert_int_equal(put(e, i), 0);
    assert_int_equal(get(e, i), 0);
}

static void
a_damaged_file_is_reported_once_and_removed(void **state)
{
    static const off_t places[] = { 0, 28, 2000, 28 + BYTES - 1, 28 + BYTES,
                                    28 + BYTES + 30, 28 + BYTES + 63 };
    struct env *e = *state;
    char path[600];

    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        assert_int_equal(put(e, i), 0);
        path_of(e, i, path, sizeof path);
        flip_byte(path, places[i]);
        check_damaged(e, i);
    }
}

static void
a_truncated_file_is_reported_once_and_removed(void **state)
{
    static const off_t sizes[] = { 0, 1, 27, 28, 64, 3000, BYTES, BYTES + 28,
                                   BYTES + 64, BYTES + 91 };
    struct env *e = *state;
    char path[600];

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(put(e, i), 0);
        path_of(e, i, path, sizeof path);
        assert_int_equal(truncate(path, sizes[i]), 0);
        if (sizes[i] != BYTES + 28) {
            check_damaged(e, i);
        } else if (temp_dir_has_attributes(&e->dir)) { /* equal in length to a file of LMCache */
            assert_int_equal(get(e, i), -ENOENT);
            assert_int_equal(probe(e, i), -ENOENT);
        }
    }
}

static void
a_deleted_file_is_a_miss_and_forgotten(void **state)
{
    struct env *e = *state;
    char path[600];

    assert_int_equal(put(e, 1), 0);
    path_of(e, 1, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    assert_true(find(e, 1));
    assert_int_equal(get(e, 1), -ENOENT);
    assert_false(find(e, 1));
    assert_int_equal(used(e), 0);
    assert_int_equal(n_warnings, 0);
}

/* Chunks 1 and 2 share a hash, and so a file. */
static void
a_later_chunk_replaces_the_chunk_of_equal_name(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key second = key_of(e, 2);
    struct request r;

    second.hash.bits[0] = 1;
    assert_int_equal(put(e, 1), 0);
    request_init(&r, e, KVT__TIER_PUT, 2);
    r.req.hash.bits[0] = 1;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    assert_int_equal(get(e, 1), -ENOENT);
    assert_false(find(e, 1));
    assert_true(file_there(e, 1));
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_true(kvt__store_find(e->store, &second, KVT__ANYWHERE));
    memset(r.req.slot.payload, 0, BYTES);
    r.req.op = KVT__TIER_GET;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    assert_true(request_holds(&r, 2));
    assert_int_equal(used(e), TAKEN);
    assert_int_equal(totals_of(e).n_entries, 1);
    assert_int_equal(n_warnings, 0);
    free(r.memory);
}

/* Chunks of equal hashes and different tags are two chunks. */
static void
tags_are_a_part_of_the_name(void **state)
{
    struct env *e = *state, tagged = *e;
    char path[600];

    tagged.space.own_tag = strlen(tagged.space.text);
    assert_int_equal(kvt__store_set_tags(e->store, &tagged.space, "user%a"), 0);
    assert_int_equal(put(&tagged, 1), 0);
    snprintf(path, sizeof path, "%s/test-SEP-model@1@0@1@bfloat16@user%%a.data",
             e->dir.path);
    assert_int_equal(access(path, F_OK), 0);
    assert_false(find(e, 1));
    assert_int_equal(probe(e, 1), -ENOENT);
    assert_true(find(&tagged, 1));
    assert_int_equal(get(&tagged, 1), 0);
    assert_int_equal(put(e, 1), 0);
    assert_int_equal(get(e, 1), 0);
    assert_int_equal(get(&tagged, 1), 0);
    assert_int_equal(used(e), 2 * TAKEN);
}

/* ------------------------------------------------------------- other programs */

static void
files_of_lmcache_are_served_unverified(void **state)
{
    struct env *e = *state;
    bool verified;

    for (unsigned i = 0; i < 2; i++) {
        write_foreign(e, i, i ? &shape_of_all : NULL, BYTES);
        assert_false(find(e, i));
        assert_int_equal(probe(e, i), 0);
        assert_true(find(e, i));
        assert_int_equal(get_verified(e, i, &verified), 0);
        assert_false(verified);
    }
    write_foreign(e, 3, &shape_of_all, BYTES - 4);
    assert_int_equal(probe(e, 3), -ENOENT);
    write_foreign(e, 4, NULL, BYTES - 28);
    assert_int_equal(probe(e, 4), -ENOENT);
    assert_true(file_there(e, 3) && file_there(e, 4));
}

static void
refuse_unverified_loads_only_chunks_with_a_checksum(void **state)
{
    static const char *const settings[] = { "refuse_unverified=true", NULL };
    struct env *e = *state;
    bool verified;

    write_foreign(e, 1, &shape_of_all, BYTES);
    write_foreign(e, 2, &shape_of_all, BYTES);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(put(e, 3), 0);
    reopen_over(e, "", settings);
    assert_false(find(e, 1)); /* the index still has the chunk, and a load refuses the chunk */
    assert_int_equal(get_verified(e, 1, &verified), -ENOENT);
    assert_int_equal(probe(e, 2), -ENOENT);
    assert_int_equal(get(e, 3), 0);
    assert_true(file_there(e, 1) && file_there(e, 2));
}

/* ------------------------------------------------------------------ failures */

static void
a_failed_write_leaves_nothing_and_costs_nothing(void **state)
{
    struct env *e = *state;

    reopen_over(e, "fault://write_error=1/", NULL);
    assert_int_equal(put(e, 1), -EIO);
    reopen_over(e, "fault://enospc=1/", NULL);
    assert_int_equal(put(e, 1), -ENOSPC);
    assert_false(find(e, 1));
    assert_int_equal(used(e), 0);
    reopen_over(e, "", NULL);
    assert_int_equal(put(e, 1), 0);
}

static void
a_failed_read_forgets_nothing(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 1), 0);
    reopen_over(e, "fault://read_error=1/", NULL);
    assert_int_equal(get(e, 1), -EIO);
    reopen_over(e, "fault://short_read=1/", NULL);
    assert_int_equal(get(e, 1), -EIO);
    assert_true(find(e, 1));
    reopen_over(e, "", NULL);
    assert_int_equal(get(e, 1), 0);
}

static void
flipped_bits_are_caught_on_both_ways(void **state)
{
    struct env *e = *state;

    reopen_over(e, "fault://write_corrupt=1/", NULL);
    assert_int_equal(put(e, 1), 0);
    reopen_over(e, "", NULL);
    assert_int_equal(get(e, 1), -EBADMSG);
    assert_int_equal(put(e, 2), 0);
    reopen_over(e, "fault://bit_flip=1/", NULL);
    assert_int_equal(get(e, 2), -EBADMSG);
    assert_false(find(e, 2));
}

static void
a_chunk_of_the_null_tier_is_a_miss(void **state)
{
    struct env *e = *state;

    kvt__store_close(e->store);
    e->store = open_store(e, "remote_url=null://", NULL, NULL);
    assert_int_equal(put(e, 1), 0);
    assert_true(find(e, 1));
    assert_int_equal(used(e), BYTES);
    assert_int_equal(get(e, 1), -ENOENT);
    assert_false(find(e, 1));
    assert_int_equal(used(e), 0);
}

/* ------------------------------------------------------------------- executor */

#define N_JOBS 60u

/* Each chunk is put, got and probed at once, several times over. */
static void
requests_on_many_threads_end_once_each(void **state)
{
    struct env *e = *state;
    struct request *requests = calloc(N_JOBS * 3, sizeof *requests);

    assert_non_null(requests);
    for (unsigned i = 0; i < N_JOBS * 3; i++)
        request_init(&requests[i], e, (enum kvt__tier_op_kind)(i % 3), i / 3 % 20);
    run_at_once(e, NULL, 4, requests, N_JOBS * 3);
    for (unsigned i = 0; i < N_JOBS * 3; i++) {
        const struct kvt__store_req *req = &requests[i].req;

        if (req->op == KVT__TIER_PUT)
            assert_true(!req->error.code || req->error.code == -EEXIST);
        else if (req->op == KVT__TIER_GET && !req->error.code)
            assert_true(request_holds(&requests[i], i / 3 % 20));
        else
            assert_true(!req->error.code || req->error.code == -ENOENT);
        free(requests[i].memory);
    }
    free(requests);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(get(e, i), 0);
    assert_int_equal(used(e), 20 * TAKEN);
}

/* ------------------------------------------------------------------- opening */

static void
without_any_tier_the_open_fails(void **state)
{
    struct kvt_config *config = config_with(NULL);
    struct kvt_store *store = NULL;

    (void)state;
    assert_int_equal(kvt_store_open(config, &store), -EINVAL);
    assert_non_null(strstr(kvt__why(), "remote_url"));
    kvt_config_free(config);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

static const struct kvt__tier_ops *usual_ops;
static const struct env *evicting;

/* An eviction of another process deletes the file after the first probe. */
static int
run_and_evict(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    int err = usual_ops->run(tier, op);
    char path[600];

    path_of(evicting, 5, path, sizeof path);
    if (op->kind == KVT__TIER_PROBE)
        (void)unlink(path);
    return err;
}

static void
a_file_evicted_after_its_probe_enters_no_index(void **state)
{
    struct env *e = *state;

    assert_int_equal(put(e, 5), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", NULL);
    struct kvt__tier *tier = e->store->levels[0].tier;
    struct kvt__tier_ops ops = *tier->ops;
    usual_ops = tier->ops;
    evicting = e;
    ops.run = run_and_evict;
    tier->ops = &ops;
    assert_int_equal(probe(e, 5), -ENOENT);
    tier->ops = usual_ops;
    assert_false(find(e, 5));
    assert_int_equal(put(e, 5), 0);
    assert_int_equal(get(e, 5), 0);
}

/* ---------------------------------------------------------------- by key */

static int
run_by_key(struct env *e, struct request *r, enum kvt__tier_op_kind op)
{
    r->req.op = op;
    r->req.by_key = "test/model@1@0@5@bfloat16";
    r->req.id_of_key = true;
    kvt__store_run(e->store, &r->req);
    return r->req.error.code;
}

/* The store of this test has no executor. */
static void
a_request_by_key_takes_any_memory(void **state)
{
    struct env *e = *state;
    struct request r;

    assert_int_equal(put(e, 5), 0);
    request_init(&r, e, KVT__TIER_GET, 5);
    r.req.slot.payload++; /* the rooms of the memory are behind the payload */
    r.req.slot.bytes += 7;
    assert_int_equal(run_by_key(e, &r, KVT__TIER_GET), 0);
    assert_true(request_holds(&r, 5));
    assert_true(r.req.verified);
    assert_int_equal(r.req.found.payload_bytes, BYTES);
    assert_int_equal(r.req.found.tokens, 256);
    assert_int_equal(run_by_key(e, &r, KVT__TIER_PROBE), 0);
    assert_int_equal(run_by_key(e, &r, KVT__TIER_REMOVE), 0);
    assert_false(file_there(e, 5));
    assert_int_equal(totals_of(e).n_entries, 0);
    assert_int_equal(run_by_key(e, &r, KVT__TIER_REMOVE), -ENOENT);
    free(r.memory);
}

static void
an_object_deleted_between_probe_and_read_is_a_miss(void **state)
{
    struct env *e = *state;
    struct kvt__tier *tier = e->store->levels[0].tier;
    struct kvt__tier_ops ops = *tier->ops;
    struct request r;

    assert_int_equal(put(e, 5), 0);
    request_init(&r, e, KVT__TIER_GET, 5);
    usual_ops = tier->ops;
    evicting = e;
    ops.run = run_and_evict;
    tier->ops = &ops;
    assert_int_equal(run_by_key(e, &r, KVT__TIER_GET), -ENOENT);
    tier->ops = usual_ops;
    assert_int_equal(r.req.found.payload_bytes, 0);
    assert_string_not_equal(r.req.error.why, "");
    free(r.memory);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stored_chunk_is_found_and_read),
        TEST(a_stored_chunk_is_not_stored_again),
        TEST(a_restart_finds_chunks_with_an_index_and_a_probe_without),
        TEST(spaces_with_a_layout_tag_are_in_the_directory_kvtier),
        TEST(a_damaged_file_is_reported_once_and_removed),
        TEST(a_truncated_file_is_reported_once_and_removed),
        TEST(a_deleted_file_is_a_miss_and_forgotten),
        TEST(a_later_chunk_replaces_the_chunk_of_equal_name),
        TEST(tags_are_a_part_of_the_name),
        TEST(files_of_lmcache_are_served_unverified),
        TEST(refuse_unverified_loads_only_chunks_with_a_checksum),
        TEST(a_failed_write_leaves_nothing_and_costs_nothing),
        TEST(a_request_by_key_takes_any_memory),
        TEST(an_object_deleted_between_probe_and_read_is_a_miss),
        TEST(a_failed_read_forgets_nothing),
        TEST(flipped_bits_are_caught_on_both_ways),
        TEST(a_chunk_of_the_null_tier_is_a_miss),
        TEST(requests_on_many_threads_end_once_each),
        cmocka_unit_test(without_any_tier_the_open_fails),
        TEST(a_file_evicted_after_its_probe_enters_no_index),
    };

    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
