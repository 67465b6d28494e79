/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests by key text over tiers whose object names contain less than a key: only operations with
 * KVT_OP_LISTED, and VERIFY, accept a key of a listing for another key of the object. */
#include "by-key-test.h"

#define KEY "org/my_m-del@1@0@5@bfloat16"
#define OTHER "org/other@1@0@6@bfloat16"

static void
a_stat_returns_the_size(void **state)
{
    (void)state;
    open_disk(NULL);
    for (size_t w = 0; w < N_WAYS; w++) {
        assert_int_equal(ways[w](KVT_OP_STAT, 0, KEY), -ENOENT);
        assert_int_equal(op.found_bytes, 0);
        assert_int_equal(ways[w](KVT_OP_PUT, 0, KEY), 0);
        assert_int_equal(ways[w](KVT_OP_STAT, 0, KEY), 0);
        assert_int_equal(op.found_bytes, strlen(BYTES));
        assert_int_equal(ways[w](KVT_OP_DELETE, 0, KEY), 0);
    }
}

/* ------------------------------------------------------------------------- keys */

static int
take_key(void *ctx, const struct kvt_listed *listed)
{
    snprintf(ctx, 128, "%s", listed->key);
    return 0;
}

static void
check_prefix(const char *prefix, const char *listed)
{
    char told[128] = "";

    assert_int_equal(kvt_store_list(store, prefix, take_key, told), 0);
    assert_string_equal(told, listed);
}

/* other: a key with a '/' and an equal object name; no listing reports this key. */
static void
check_keys(const char *listed, const char *other)
{
    char told[128] = "";

    for (size_t i = 0; i < N_WAYS; i++) {
        assert_int_equal(ways[i](KVT_OP_PUT, 0, KEY), 0);
        assert_int_equal(kvt_store_list(store, "", take_key, told), 0);
        assert_string_equal(told, listed);
        check_prefix(listed, listed);
        check_prefix("o", listed);
        check_prefix("oo", "");
        check_prefix("o\n", ""); /* the tier cannot filter by this byte */
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        expect_bytes(ways[i](KVT_OP_GET, KVT_OP_LISTED, KEY));
        expect_bytes(ways[i](KVT_OP_GET, KVT_OP_LISTED, listed));
        expect_refused(ways[i](KVT_OP_GET, 0, listed), EBADMSG, "another key");
        expect_refused(ways[i](KVT_OP_GET, KVT_OP_LISTED, other), EBADMSG, "another key");
        assert_int_equal(ways[i](KVT_OP_VERIFY, 0, listed), 0);
        expect_refused(ways[i](KVT_OP_VERIFY, 0, other), EBADMSG, "another key");
        assert_int_equal(ways[i](KVT_OP_STAT, 0, listed), 0);
        assert_int_equal(ways[i](KVT_OP_DELETE, 0, listed), 0);
        expect_refused(ways[i](KVT_OP_GET, 0, KEY), ENOENT, KEY);
    }
}

static void
a_listed_key_is_taken_from_local_disk(void **state)
{
    (void)state;
    open_disk(NULL);
    check_keys("org-my_m-del@1@0@5@bfloat16", "org-my_m/del@1@0@5@bfloat16");
}

static void
a_listed_key_is_taken_from_s3(void **state)
{
    (void)state;
    open_s3(S3_BUCKET, NULL);
    check_keys("org_my_m-del@1@0@5@bfloat16", "org/my/m-del@1@0@5@bfloat16");
}

static void
a_renamed_file_without_an_encoded_slash_is_refused(void **state)
{
    static const char renamed[] = "model@1@0@6@bfloat16";
    char from[400], to[400];

    (void)state;
    open_disk(NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, "model@1@0@5@bfloat16"), 0);
    snprintf(from, sizeof from, "%s/model@1@0@5@bfloat16.pt", dir.path);
    snprintf(to, sizeof to, "%s/%s.pt", dir.path, renamed);
    assert_int_equal(rename(from, to), 0);
    for (size_t i = 0; i < N_WAYS; i++) {
        expect_refused(ways[i](KVT_OP_GET, KVT_OP_LISTED, renamed), EBADMSG,
                       "another key");
        expect_refused(ways[i](KVT_OP_VERIFY, 0, renamed), EBADMSG, "another key");
    }
}

/* LMCache wrote over a file of kvtier in place. */
static void
an_unreadable_file_is_deleted(void **state)
{
    char path[400];

    (void)state;
    if (!temp_dir_has_attributes(&dir))
        skip(); /* the file then looks like a file of LMCache */
    open_disk(NULL);
    snprintf(path, sizeof path, "%s/model@1@0@5@bfloat16.pt", dir.path);
    for (size_t w = 0; w < N_WAYS; w++) {
        assert_int_equal(ways[w](KVT_OP_PUT, 0, "model@1@0@5@bfloat16"), 0);
        assert_int_equal(truncate(path, (off_t)strlen(BYTES)), 0);
        assert_int_equal(ways[w](KVT_OP_GET, 0, "model@1@0@5@bfloat16"), -ENOENT);
        assert_int_equal(ways[w](KVT_OP_DELETE, 0, "model@1@0@5@bfloat16"), 0);
        assert_int_equal(access(path, F_OK), -1);
    }
}

/* ------------------------------------------------------------------------ copies */

/* Store the chunk of the last GET under the key as a copy. */
static int
put_copy(const char *key, uint32_t found)
{
    op.kind = KVT_OP_PUT;
    op.flags = KVT_OP_WITH_ID;
    op.key = key;
    op.bytes = strlen(BYTES);
    op.found = found;
    return kvt_store_run(store, &op);
}

static void
a_copy_has_identity_and_tokens_of_the_chunk(void **state)
{
    uint8_t id[16];

    (void)state;
    open_disk(NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    expect_bytes(run(KVT_OP_GET, 0, KEY));
    assert_int_equal(op.found, KVT_FOUND_CHECKED | KVT_FOUND_ID | KVT_FOUND_KEY_ID);
    op.id[0] ^= 1;
    op.tokens = 256;
    memcpy(id, op.id, sizeof id);
    assert_int_equal(put_copy(OTHER, KVT_FOUND_ID), 0);
    expect_bytes(run(KVT_OP_GET, 0, OTHER)); /* the identity of an engine: of any key */
    assert_int_equal(op.found, KVT_FOUND_CHECKED | KVT_FOUND_ID);
    assert_memory_equal(op.id, id, sizeof id);
    assert_int_equal(op.tokens, 256);
}

static void
a_copy_of_a_chunk_stored_by_key_is_bound_to_the_key(void **state)
{
    (void)state;
    open_disk(NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    expect_bytes(run(KVT_OP_GET, 0, KEY));
    assert_int_equal(put_copy(KEY, op.found), 0);
    expect_bytes(run(KVT_OP_GET, 0, KEY));
    assert_int_equal(put_copy(OTHER, op.found), 0);
    expect_refused(run(KVT_OP_GET, 0, OTHER), EBADMSG, "another key");
}

static void
a_copy_needs_an_identity(void **state)
{
    (void)state;
    open_disk(NULL);
    about(KVT_OP_PUT, 0, KEY);
    expect_refused(put_copy(KEY, KVT_FOUND_CHECKED), EINVAL, "KVT_OP_WITH_ID");
    expect_refused(run(KVT_OP_GET, KVT_OP_WITH_ID, KEY), EINVAL, "KVT_OP_WITH_ID");
    expect_refused(run(KVT_OP_GET, 0, KEY), ENOENT, KEY);
}

/* ------------------------------------------------------------------------ buckets */

static void
a_get_from_s3_is_one_request(void **state)
{
    (void)state;
    open_s3(S3_BUCKET, NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    for (size_t i = 0; i < N_WAYS; i++) {
        s3_forget(&server);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        expect_refused(ways[i](KVT_OP_GET, 0, OTHER), ENOENT, OTHER);
        assert_int_equal(s3_count(&server, "methods", "HEAD"), 0);
    }
    about(KVT_OP_GET, 0, KEY);
    op.bytes = 3;
    assert_int_equal(kvt_store_run(store, &op), -EMSGSIZE);
    assert_int_equal(op.found_bytes, strlen(BYTES));
}

static void
a_missing_bucket_is_no_missing_chunk(void **state)
{
    (void)state;
    open_s3("nowhere", NULL);
    for (size_t i = 0; i < N_WAYS; i++) {
        expect_refused(ways[i](KVT_OP_GET, 0, KEY), ENXIO, "no bucket 'nowhere' there");
        expect_refused(ways[i](KVT_OP_PUT, 0, KEY), ENXIO, "no bucket 'nowhere' there");
    }
    assert_int_equal(run(KVT_OP_STAT, 0, KEY), -ENOENT); /* HEAD cannot tell */
}

/* --------------------------------------------------------------- nowhere to be put */

static void
expect_no_put(const char *tiers)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        expect_refused(ways[i](KVT_OP_PUT, 0, KEY), EINVAL,
                       "store_location is LocalCPUBackend");
        expect_refused(op.status, EINVAL, tiers);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY)); /* the chunk was not removed */
    }
}

static void
a_put_refused_by_all_tiers_names_the_reason(void **state)
{
    (void)state;
    open_disk(NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    kvt_store_close(store);
    open_disk("store_location=LocalCPUBackend");
    expect_no_put("the tiers with storage are LocalDiskBackend (local_disk)");
    kvt_store_close(store);
    open_s3(S3_BUCKET, NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    kvt_store_close(store);
    open_s3(S3_BUCKET, "store_location=LocalCPUBackend");
    expect_no_put("the tiers with storage are RemoteBackend (s3)");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stat_returns_the_size),
        TEST(a_listed_key_is_taken_from_local_disk),
        TEST(a_listed_key_is_taken_from_s3),
        TEST(a_renamed_file_without_an_encoded_slash_is_refused),
        TEST(an_unreadable_file_is_deleted),
        TEST(a_copy_has_identity_and_tokens_of_the_chunk),
        TEST(a_copy_of_a_chunk_stored_by_key_is_bound_to_the_key),
        TEST(a_copy_needs_an_identity),
        TEST(a_get_from_s3_is_one_request),
        TEST(a_missing_bucket_is_no_missing_chunk),
        TEST(a_put_refused_by_all_tiers_names_the_reason),
    };

    if (!s3_server_start(&server, NULL)) {
        printf("skipped: needs python3\n");
        return 77;
    }
    int failed = cmocka_run_group_tests_name("store by key", tests, NULL, NULL);
    s3_server_stop(&server);
    return failed;
}
