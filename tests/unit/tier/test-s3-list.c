/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings of a bucket: pages, encodings, and foreign objects. */
#include "s3-test.h"

#define N_OBJECTS 2100u /* two full pages and part of a third page */
#define BUCKET "list"

/* The names received from list(). */
static struct {
    unsigned n, n_opaque, n_odd; /* odd: a name other than "m@1@0@HASH@bfloat16", or a size other
                                  * than 1 byte */
    bool seen[N_OBJECTS];
} listed;

static void
on_listed(void *ctx, const char *key, bool opaque, uint64_t bytes, int64_t mtime_ns, bool expires)
{
    struct kvt__key_parts parts;
    uint64_t i = UINT64_MAX;

    (void)ctx;
    if (!kvt__key_parse(key, &parts))
        i = parts.hash.bits[0];
    assert_false(expires);
    listed.n++;
    listed.n_opaque += opaque;
    if (i < N_OBJECTS && bytes == 1 && mtime_ns > 0 && !listed.seen[i])
        listed.seen[i] = true;
    else
        listed.n_odd++;
}

static void
list_prefix(const char *prefix, unsigned n)
{
    memset(&listed, 0, sizeof listed);
    assert_good(tier->ops->list(tier, prefix, on_listed, NULL));
    assert_int_equal(listed.n, n);
    assert_int_equal(listed.n_odd, 0);
}

static void
list_all(unsigned n)
{
    list_prefix("", n);
}

static void
store(unsigned n)
{
    static struct async all[N_OBJECTS];
    sem_t over;

    sem_init(&over, 0, 0);
    for (unsigned i = 0; i < n; i++)
        async_start(&all[i], KVT__TIER_PUT, i, 1, &over);
    assert_int_equal(async_wait(all, n, &over, 0), n);
    sem_destroy(&over);
}

static void
open_at(const char *bucket, const char *const *more)
{
    char url[256];

    snprintf(url, sizeof url, "s3://127.0.0.1:%u/%s", server.port, bucket);
    assert_good(s3_try_open(url, more, &counters, &tier));
}

static void
all_pages_are_listed_also_without_a_prefix(void **state)
{
    static const char *const more[] = { "blocking_timeout_secs=100", NULL };

    (void)state;
    open_at(BUCKET, more);
    store(N_OBJECTS);
    s3_forget(&server);
    list_all(N_OBJECTS);
    assert_int_equal(s3_count(&server, "operations", "ListObjectsV2"), 3);
    s3_config(&server, "{\"chunked\": true}");
    list_all(N_OBJECTS);
}

static void
the_store_filters_by_the_prefix(void **state)
{
    struct chunk c;

    (void)state;
    open_s3(NULL);
    store(40);
    chunk_init(&c, "model", 41);
    c.object.opaque = true;
    assert_good(put_bytes(tier, &c.object, 1, 1));
    s3_forget(&server);
    list_prefix("model@", 41); /* names that begin with the prefix, and names of opaque chunks */
    assert_int_equal(s3_count(&server, "operations", "ListObjectsV2"), 2);
    list_prefix("kv", 1);
    assert_int_equal(s3_count(&server, "operations", "ListObjectsV2"), 3);
    list_prefix("model@1@0@1", 17); /* 1 and 10 to 1f */
    list_prefix("model@1@0@10@bfloat16", 1);
    list_prefix("mode\n", 41);
    list_prefix("other", 0);
}

/* Directory buckets list in no order, and accept only prefixes that end with '/'. */
static void
an_unsorted_list_is_taken(void **state)
{
    const char *settings[] = { "s3_enable_s3express=true", NULL, NULL };
    char prefix[128];

    (void)state;
    snprintf(prefix, sizeof prefix, "s3_file_prefix=%s", server.prefix);
    settings[1] = prefix;
    open_at(S3_EXPRESS_BUCKET, settings);
    store(50);
    list_all(50);
    list_prefix("other", 50);
}

static void
a_prefix_with_special_characters_works(void **state)
{
    char prefix[128];
    const char *settings[] = { prefix, NULL };

    (void)state;
    snprintf(prefix, sizeof prefix, "s3_file_prefix=%s/a b+c=d&e%%41é/~'x", server.prefix);
    open_at(S3_BUCKET, settings);
    store(3);
    list_all(3);
    assert_good(get(1, 1, 1));
}

static void
foreign_objects_are_skipped(void **state)
{
    static const char *const names[] = {
        "readme.txt", "dir/m@1@0@5@bfloat16", "kvtier/x/y", "m@1@0@zz@bfloat16", "a b" };
    struct chunk c;

    (void)state;
    open_s3(NULL);
    store(2);
    chunk_init(&c, "model", 2);
    c.object.opaque = true;
    assert_good(put_bytes(tier, &c.object, 1, 1));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kvt__object object = { .key = names[i], .is_name = true };

        assert_good(put_bytes(tier, &object, 1, 1));
    }
    list_all(3);
    assert_int_equal(listed.n_opaque, 1);
}

/* Another store's prefix begins with this store's prefix. */
static void
another_prefix_is_not_listed(void **state)
{
    struct kvt__tier *ours;

    (void)state;
    open_s3(NULL);
    store(2);
    ours = tier;
    strcat(server.prefix, "x");
    open_s3(NULL);
    store(4);
    list_all(4);
    s3_close(tier);
    tier = ours;
    list_all(2);
}

/* --------------------------------------------------------------------- failures */

#define PAGE "\"match\": {\"operation\": \"ListObjectsV2\"}"

static void
a_failed_page_is_requested_again(void **state)
{
    (void)state;
    open_s3(NULL);
    store(3);
    s3_fault(&server, "[{" PAGE ", \"do\": {\"status\": 503, \"code\": \"SlowDown\"}},"
             "{" PAGE ", \"do\": {\"close_at\": 100}}]");
    list_all(3);
}

static void
a_page_that_cannot_be_read_fails(void **state)
{
    static const char *const pages[] = {
        "{\"status\": 200, \"body\": \"\"}", "{\"status\": 200, \"body\": \"<html>\"}",
        "{\"status\": 200, \"body\": \"<ListBucketResult><IsTruncated>true\"}" };
    char fault[512];

    (void)state;
    open_s3(NULL);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        snprintf(fault, sizeof fault, "{" PAGE ", \"do\": %s}", pages[i]);
        s3_fault(&server, fault);
        assert_int_equal(tier->ops->list(tier, "", on_listed, NULL), -EBADMSG);
    }
    s3_fault(&server, "{" PAGE ", \"do\": {\"status\": 403}}");
    assert_fails(tier->ops->list(tier, "", on_listed, NULL), EACCES, "403 AccessDenied", "GET /");
}

/* Without the error, the listing would never end. */
static void
a_list_that_repeats_a_page_fails(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{" PAGE ", \"count\": null, \"do\": {\"status\": 200, \"body\": "
             "\"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>"
             "again</NextContinuationToken></ListBucketResult>\"}}");
    assert_fails(tier->ops->list(tier, "", on_listed, NULL), EBADMSG, "list");
    assert_in_range(s3_n_requests(&server), 2, 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(all_pages_are_listed_also_without_a_prefix),
        S3_TEST(the_store_filters_by_the_prefix),
        S3_TEST(an_unsorted_list_is_taken),
        S3_TEST(a_prefix_with_special_characters_works),
        S3_TEST(foreign_objects_are_skipped),
        S3_TEST(another_prefix_is_not_listed),
        S3_TEST(a_failed_page_is_requested_again),
        S3_TEST(a_page_that_cannot_be_read_fails),
        S3_TEST(a_list_that_repeats_a_page_fails),
    };

    return s3_test_main("s3 listings", tests, "--bucket", S3_BUCKET, "--bucket", BUCKET,
                        "--bucket", S3_EXPRESS_BUCKET);
}
