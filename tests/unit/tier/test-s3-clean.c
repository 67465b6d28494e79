/* SPDX-License-Identifier: Apache-2.0
 *
 * max_remote_size on S3: which objects are deleted, and with which requests. */
#include "s3-clean-test.h"

static void
below_the_limit_nothing_is_deleted(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 10);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_int_equal(n_done("DeleteObjects"), 0);
    close_cleaner(t);
}

static void
above_the_limit_one_request_deletes_the_oldest(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 30);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_int_equal(n_done("DeleteObjects"), 1);
    assert_int_equal(n_done("HeadObject"), 0);
    assert_string_not_equal(s3_header(&server, "DeleteObjects", "content-md5"), "");
    assert_int_equal(counted(KVT__N_evicted_chunks), 20);
    assert_int_equal(counted(KVT__N_evicted_bytes), 20 * EACH);
    assert_int_equal(warned.n, 0);
    seed_chunks(10, 5);
    create_seeds();
    expect_clean(t, 0); /* this listing also chooses */
    assert_int_equal(n_youngest(), 10);
    close_cleaner(t);
}

static void
foreign_objects_are_neither_counted_nor_deleted(void **state)
{
    static const char *const foreign[] = {
        "notes.txt", "sub/org_m@1@0@7@half", "org_m@1@0@7@half.tmp", "x@1@0", "a<&>'\"",
        "kvtier/notes", "kvtier/deep/org_m@1@0@7@half",
        " org_m@1@0@7@half", "org_m@1@0@7@half ", "kvtier/ org_m@1@0@7@half" };
    struct s3_tier *t = open_cleaner();

    (void)state;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        seed(foreign[i], 5000, 100000);
    seed_at("", "org_m@1@0@7@half", 5000, 100000);
    seed_at("other/", "org_m@1@0@7@half", 5000, 100000);
    char sibling[80];
    snprintf(sibling, sizeof sibling, "%s-2/", server.prefix);
    seed_at(sibling, "org_m@1@0@7@half", 5000, 100000);
    seed("kvtier/org_m@1@0@99@half@kvt%0123456789abcdef", EACH, 90000);
    seed("it's<a>&\"model@1@0@98@half", EACH, 90000);
    seed_chunks(0, 11);
    create_seeds();
    expect_clean(t, 0);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        assert_true(is_there(foreign[i]));
    assert_true(is_there_at("", "org_m@1@0@7@half"));
    assert_true(is_there_at("other/", "org_m@1@0@7@half"));
    assert_true(is_there_at(sibling, "org_m@1@0@7@half"));
    assert_false(is_there("kvtier/org_m@1@0@99@half@kvt%0123456789abcdef"));
    assert_false(is_there("it's<a>&\"model@1@0@98@half"));
    assert_int_equal(n_youngest(), 10);
    close_cleaner(t);
}

static void
many_pages_are_deleted_in_batches(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 2510);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_int_equal(n_done("DeleteObjects"), 3);
    close_cleaner(t);
}

static void
max_victims_limits_each_round_of_deletions(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    t->cleaner.max_victims = 7;
    seed_chunks(0, 30);
    create_seeds();
    expect_clean(t, 1);
    assert_int_equal(n_youngest(), 23);
    expect_clean(t, 1);
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    close_cleaner(t);
}

/* The listings of a directory bucket have no order, and requests have no MD5. */
static void
a_directory_bucket_is_cleaned_too(void **state)
{
    (void)state;
    bucket = S3_EXPRESS_BUCKET;
    struct s3_tier *t = open_cleaner();
    seed_chunks(0, 1100);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_int_equal(n_done("DeleteObjects"), 2);
    assert_string_equal(s3_header(&server, "DeleteObjects", "content-md5"), "");
    assert_string_not_equal(s3_header(&server, "DeleteObjects", "x-amz-checksum-crc32c"),
                            "");
    close_cleaner(t);
}

static void
the_oldest_of_many_are_chosen(void **state)
{
    struct s3_oldest o = { .max = 100 };
    char name[32];

    (void)state;
    kvt__s3_oldest_sort(&o);
    for (uint64_t i = 0; i < 5000; i++) {
        uint64_t at = i * 2654435761u % 5000 / 2; /* two objects with each time */

        snprintf(name, sizeof name, "%05llu", (unsigned long long)i);
        assert_int_equal(kvt__s3_oldest_add(&o, name, 1, (int64_t)at), 0);
    }
    kvt__s3_oldest_sort(&o);
    assert_int_equal(o.n, 100);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(o.victims[i].modified_ns, i / 2);
    kvt__s3_oldest_free(&o);
}

static void
after_failed_deletions_younger_objects_are_deleted(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 14);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, \"count\": null, "
             "\"do\": {\"delete_errors\": {\"@[cd]@half\": \"AccessDenied\"}}}");
    expect_clean(t, 0);
    assert_false(has_chunk(13)); /* key @e@ */
    assert_true(has_chunk(12));
    assert_true(has_chunk(11));
    assert_false(has_chunk(10)); /* key @b@ */
    assert_false(has_chunk(9));  /* instead of c */
    assert_false(has_chunk(8));  /* instead of d */
    assert_true(has_chunk(7));
    assert_int_equal(counted(KVT__N_evicted_chunks), 4);
    assert_int_equal(counted(KVT__N_remove_failed), 2);
    expect_warning("2 of 6 chunks could not be removed: AccessDenied");
    expect_warning("s3:DeleteObject");
    seed_chunks(8, 2);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(counted(KVT__N_evicted_chunks), 6);
    assert_int_equal(warned.n, 1);
    close_cleaner(t);
}

/* Some stores send errors without a usable key. */
static void
an_error_without_a_key_counts_for_all_objects(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 14);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, \"count\": null, "
             "\"do\": {\"status\": 200, \"body\": \"<DeleteResult><Error>"
             "<Code>InternalError</Code></Error></DeleteResult>\"}}");
    expect_clean(t, -EIO);
    assert_int_equal(n_youngest(), 14);
    assert_int_equal(counted(KVT__N_evicted_chunks), 0);
    close_cleaner(t);
}

static void
many_failed_deletions_end_the_round(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 1500);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, \"count\": null, "
             "\"do\": {\"delete_errors\": {\".\": \"AccessDenied\"}}}");
    expect_clean(t, -EACCES);
    assert_int_equal(n_done("DeleteObjects"), 1); /* the 1000 oldest objects */
    assert_int_equal(n_youngest(), 1500);
    close_cleaner(t);
}

static void
a_missing_permission_to_delete_or_list_is_reported(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 14);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, "
             "\"do\": {\"status\": 403, \"code\": \"AccessDenied\"}}");
    expect_clean(t, -EACCES);
    assert_non_null(strstr(kvt__why(), "s3:DeleteObject"));
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, \"count\": 4, "
             "\"do\": {\"delete_errors\": {\".\": \"AccessDenied\"}}}");
    expect_clean(t, -EACCES);
    assert_non_null(strstr(kvt__why(), "s3:DeleteObject"));
    s3_fault(&server, "{\"match\": {\"operation\": \"ListObjectsV2\"}, "
             "\"do\": {\"status\": 403, \"code\": \"AccessDenied\"}}");
    expect_clean(t, -EACCES);
    assert_non_null(strstr(kvt__why(), "s3:ListBucket"));
    assert_int_equal(n_youngest(), 14);
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    close_cleaner(t);
}

static void
without_DeleteObjects_objects_are_deleted_one_by_one(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 14);
    seed("a+b=c<&>m@1@0@98@half", EACH, 90000);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, \"count\": null, "
             "\"do\": {\"status\": 501, \"code\": \"NotImplemented\"}}");
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_false(is_there("a+b=c<&>m@1@0@98@half"));
    assert_int_equal(n_done("DeleteObjects"), 1);
    seed_chunks(10, 2);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_int_equal(n_done("DeleteObjects"), 1);
    seed_chunks(10, 5);
    create_seeds();
    s3_forget(&server);
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObject$\", \"key\": \"half\"}, "
             "\"count\": null, \"do\": {\"status\": 403, \"code\": \"AccessDenied\"}}");
    expect_clean(t, -EACCES);
    /* The first failure ends the deletions. */
    assert_int_equal(s3_count(&server, "statuses", "403"), 1);
    close_cleaner(t);
}

/* A store sends this response to a key that XML cannot contain. */
static void
after_a_rejected_DeleteObjects_each_object_has_a_request(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 14);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, "
             "\"do\": {\"status\": 400, \"code\": \"MalformedXML\"}}");
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    seed_chunks(10, 2);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_done("DeleteObjects"), 2);
    close_cleaner(t);
}

static void
temporary_failures_of_a_round_are_retried(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 14);
    create_seeds();
    s3_fault(&server, "[{\"match\": {\"operation\": \"ListObjectsV2\"}, \"skip\": 3, "
             "\"do\": {\"status\": 503, \"code\": \"SlowDown\"}}, "
             "{\"match\": {\"operation\": \"DeleteObjects\"}, \"do\": {\"reset\": true}}]");
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    close_cleaner(t);
}

/* ---------------------------------------------------------------------- the thread */

static pthread_t cleaner;
static unsigned n_started, n_joined;

int __real_kvt__thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
                             void *arg);
int __wrap_kvt__thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
                             void *arg);
int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);

int
__wrap_kvt__thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
                         void *arg)
{
    int err = __real_kvt__thread_start(thread, name, run, arg);

    if (!err && !strcmp(name, "kvt-s3-clean")) {
        cleaner = *thread;
        n_started++;
    }
    return err;
}

int
__wrap_pthread_join(pthread_t thread, void **result)
{
    n_joined += n_started && pthread_equal(thread, cleaner);
    return __real_pthread_join(thread, result);
}

static void
a_close_waits_for_the_thread(void **state)
{
    (void)state;
    n_started = n_joined = 0;
    struct s3_tier *t = open_cleaner();
    assert_int_equal(n_started, 1);
    close_cleaner(t);
    assert_int_equal(n_joined, 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CLEAN(below_the_limit_nothing_is_deleted),
        CLEAN(above_the_limit_one_request_deletes_the_oldest),
        CLEAN(foreign_objects_are_neither_counted_nor_deleted),
        CLEAN(many_pages_are_deleted_in_batches),
        CLEAN(max_victims_limits_each_round_of_deletions),
        CLEAN(a_directory_bucket_is_cleaned_too),
        CLEAN(the_oldest_of_many_are_chosen),
        CLEAN(after_failed_deletions_younger_objects_are_deleted),
        CLEAN(an_error_without_a_key_counts_for_all_objects),
        CLEAN(many_failed_deletions_end_the_round),
        CLEAN(a_missing_permission_to_delete_or_list_is_reported),
        CLEAN(without_DeleteObjects_objects_are_deleted_one_by_one),
        CLEAN(after_a_rejected_DeleteObjects_each_object_has_a_request),
        CLEAN(temporary_failures_of_a_round_are_retried),
        CLEAN(a_close_waits_for_the_thread),
    };

    return clean_test_main("s3 clean", tests);
}
