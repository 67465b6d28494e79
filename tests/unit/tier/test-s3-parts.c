/* SPDX-License-Identifier: Apache-2.0
 *
 * Large objects, read in ranges and stored in parts. */
#include "s3-test.h"

#define MIB ((size_t)1 << 20)
#define RANGED (66 * MIB + 5) /* read in ranges */
#define PART ((size_t)256 << 10) /* the server takes smaller ones only as the last */
#define STORED (2 * PART + PART / 2 + 5)

/* ---------------------------------------------------------------------- ranges */

#define SMALL_PARTS "s3_part_size=16777216"
#define GETS "\"match\": {\"operation\": \"GetObject\"}"

static unsigned
n_gets(void)
{
    return s3_count(&server, "operations", "GetObject");
}

static char large_prefix[64];

/* Chunk 1, RANGED bytes, which all tests of ranges read. */
static int
store_large(void **state)
{
    s3_setup(state);
    open_s3("blocking_timeout_secs=60");
    assert_good(put(1, RANGED, 1));
    strcpy(large_prefix, server.prefix);
    return s3_teardown(state);
}

static void
open_with_large(void)
{
    strcpy(server.prefix, large_prefix);
    open_s3(SMALL_PARTS, "blocking_timeout_secs=60");
}

static void
a_large_object_comes_in_ranges(void **state)
{
    (void)state;
    open_with_large();
    assert_good(get(1, RANGED, 1)); /* which looks at the checksum of all of them */
    assert_int_equal(n_gets(), 5);
    assert_int_equal(s3_count(&server, "statuses", "206"), 5);
    assert_int_equal(get(2, RANGED, 2), -ENOENT);
}

static void
a_range_that_fails_is_asked_for_again_alone(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "[{" GETS ", \"skip\": 1, \"do\": {\"reset_at\": 1000000}},"
             "{" GETS ", \"skip\": 1, \"do\": {\"status\": 503, \"code\": \"SlowDown\"}}]");
    assert_good(get(1, RANGED, 1));
    assert_int_equal(n_gets(), 7);
    assert_int_equal(counted(KVT__N_s3_repetitions), 2);
}

static void
a_damaged_range_is_found(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"skip\": 2, \"do\": {\"corrupt_at\": 77}}");
    assert_fails(get(1, RANGED, 1), EBADMSG, "checksum is wrong");
    assert_good(put(1, RANGED, 1));
    assert_int_equal(s3_count(&server, "operations", "PutObject"), 1);
    assert_good(get(1, RANGED, 1));
}

static void
a_store_without_ranges_is_asked_for_all_at_once(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"count\": 5, \"do\": {\"status\": 200, "
             "\"body\": \"all of it\"}}");
    assert_good(get(1, RANGED, 1));
    assert_int_equal(n_gets(), 6);
    s3_forget(&server);
    assert_good(get(1, RANGED, 1)); /* it is known now */
    assert_int_equal(n_gets(), 1);
}

static void
an_object_that_is_replaced_between_ranges_is_no_mixture(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"skip\": 3, \"do\": {\"headers\": "
             "{\"ETag\": \"\\\"x\\\"\"}}}");
    assert_fails(get(1, RANGED, 1), EIO, "was replaced while it was read");
    assert_good(get(1, RANGED, 1));
}

static void
a_range_of_another_size_is_refused(void **state)
{
    static const char *const ranges[] = {
        "bytes 0-16777215/69206022", "bytes 1-16777216/69206021", "bytes */69206021",
        "bytes 0-16777214/69206021", "x", "" };
    char fault[256];

    (void)state;
    open_with_large();
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        snprintf(fault, sizeof fault, "{" GETS ", \"do\": {\"headers\": "
                 "{\"Content-Range\": \"%s\"}}}", ranges[i]);
        s3_fault(&server, fault);
        assert_fails(get(1, RANGED, 1), EBADMSG, "another size");
    }
    assert_int_equal(get(1, RANGED + 1, 1), -EBADMSG);
    assert_int_equal(get(1, RANGED - 1, 1), -EBADMSG);
    assert_int_equal(get(1, 100 * MIB, 1), -EBADMSG); /* some ranges are behind its end */
}

static void
a_range_that_fails_for_good_fails_it_all(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"skip\": 2, \"do\": {\"status\": 403}}");
    assert_fails(get(1, RANGED, 1), EACCES, "403 AccessDenied");
    assert_int_equal(n_gets(), 5);
}

/* ------------------------------------------------------------------------ parts */

#define PARTS "\"match\": {\"operation\": \"UploadPart\"}"
#define ENDS "\"match\": {\"operation\": \"CompleteMultipartUpload\"}"

static void
open_for_parts(void)
{
    open_s3("s3_sse=AES256", "s3_part_size=1");
    /* Stores take none that is smaller. */
    assert_int_equal(s3_of(tier)->part_bytes, 5 * MIB);
    s3_of(tier)->part_bytes = s3_of(tier)->put_most = PART;
}

static unsigned
n_uploads(void)
{
    json_t *all = s3_ask(&server, "GET", "/objects", "");
    unsigned n = (unsigned)json_integer_value(
        json_object_get(json_object_get(all, S3_BUCKET), "uploads"));

    json_decref(all);
    return n;
}

static void
what_one_put_cannot_have_goes_in_parts(void **state)
{
    struct kvt__found found;
    struct chunk c;
    bool same;

    (void)state;
    open_for_parts();
    assert_good(put(1, STORED, 1));
    assert_int_equal(s3_count(&server, "operations", "UploadPart"), 3);
    assert_int_equal(s3_count(&server, "operations", "PutObject"), 0);
    assert_string_equal(s3_header(&server, "CreateMultipartUpload",
                                  "x-amz-server-side-encryption"), "AES256");
    assert_int_equal(n_uploads(), 0);
    chunk_init(&c, "model", 1);
    assert_good(get_bytes(tier, &c.object, STORED, 1, &found, &same));
    assert_true(same && found.has_id);
    assert_true(kvt__id_equal(&found.id, &c.object.id));
    assert_int_equal(found.crc, crc_of(STORED, 1));
}

static void
a_part_that_fails_is_sent_again_alone(void **state)
{
    (void)state;
    open_for_parts();
    s3_fault(&server, "[{" PARTS ", \"skip\": 1, \"do\": {\"status\": 503, \"code\": "
             "\"SlowDown\"}}, {" PARTS ", \"do\": {\"reset\": true}}]");
    assert_good(put(1, STORED, 1));
    assert_in_range(s3_count(&server, "operations", "UploadPart"), 4, 6);
    assert_good(get(1, STORED, 1));
}

static void
a_part_that_fails_for_good_leaves_nothing(void **state)
{
    (void)state;
    open_for_parts();
    s3_fault(&server, "{" PARTS ", \"skip\": 1, \"do\": {\"status\": 403}}");
    assert_fails(put(1, STORED, 1), EACCES, "403 AccessDenied", "PUT model");
    assert_int_equal(s3_count(&server, "operations", "AbortMultipartUpload"), 1);
    assert_int_equal(n_uploads(), 0);
    assert_int_equal(get(1, STORED, 1), -ENOENT);
}

static void
an_error_that_comes_with_200_is_one(void **state)
{
    (void)state;
    open_for_parts();
    s3_fault(&server, "{" ENDS ", \"do\": {\"status\": 200, \"code\": \"InternalError\"}}");
    assert_fails(put(1, STORED, 1), EIO, "InternalError", "request ");
    assert_int_equal(n_uploads(), 0);
    assert_int_equal(get(1, STORED, 1), -ENOENT);
    s3_fault(&server, "{" ENDS ", \"do\": {\"status\": 500}}");
    assert_good(put(1, STORED, 1)); /* that is tried again */
    assert_good(get(1, STORED, 1));
}

static void
an_upload_that_cannot_begin_fails(void **state)
{
    static const char *const answers[] = { "", "<html>", "<a><UploadId/></a>", "<a/>" };
    char fault[256];

    (void)state;
    open_for_parts();
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        snprintf(fault, sizeof fault, "{\"match\": {\"operation\": \"CreateMultipart\"}, "
                 "\"do\": {\"status\": 200, \"body\": \"%s\"}}", answers[i]);
        s3_fault(&server, fault);
        assert_true(put(1, STORED, 1) < 0);
        assert_true(*kvt__why());
    }
    s3_fault(&server, "{\"match\": {\"operation\": \"CreateMultipart\"}, "
             "\"do\": {\"status\": 501, \"code\": \"NotImplemented\"}}");
    assert_fails(put(1, STORED, 1), EIO, "501 NotImplemented", "POST model");
    assert_int_equal(s3_count(&server, "operations", "UploadPart"), 0);
}

static void
a_part_without_etag_fails_it_all(void **state)
{
    (void)state;
    open_for_parts();
    s3_fault(&server, "{" PARTS ", \"do\": {\"headers\": {\"ETag\": null}}}");
    assert_fails(put(1, STORED, 1), EIO, "without an ETag");
    assert_int_equal(n_uploads(), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(a_large_object_comes_in_ranges),
        S3_TEST(a_range_that_fails_is_asked_for_again_alone),
        S3_TEST(a_damaged_range_is_found),
        S3_TEST(a_store_without_ranges_is_asked_for_all_at_once),
        S3_TEST(an_object_that_is_replaced_between_ranges_is_no_mixture),
        S3_TEST(a_range_of_another_size_is_refused),
        S3_TEST(a_range_that_fails_for_good_fails_it_all),
        S3_TEST(what_one_put_cannot_have_goes_in_parts),
        S3_TEST(a_part_that_fails_is_sent_again_alone),
        S3_TEST(a_part_that_fails_for_good_leaves_nothing),
        S3_TEST(an_error_that_comes_with_200_is_one),
        S3_TEST(an_upload_that_cannot_begin_fails),
        S3_TEST(a_part_without_etag_fails_it_all),
    };

    return s3_test_main_with(store_large, "s3 parts", tests, "--min-part", "262144");
}
