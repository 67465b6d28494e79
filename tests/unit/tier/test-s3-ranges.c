/* SPDX-License-Identifier: Apache-2.0
 *
 * GET of large objects in ranges. */
#include "s3-test.h"

#define MIB ((size_t)1 << 20)
#define RANGED (66 * MIB + 5) /* bytes of an object that needs ranges */

#define SMALL_PARTS "s3_part_size=16777216"
#define GETS "\"match\": {\"operation\": \"GetObject\"}"

static unsigned
n_gets(void)
{
    return s3_count(&server, "operations", "GetObject");
}

static char large_prefix[64];

/* Store chunk 1 of RANGED bytes, for all tests of ranges. */
static int
store_large(void **state)
{
    s3_setup(state);
    open_s3(NULL);
    assert_good(put(1, RANGED, 1));
    strcpy(large_prefix, server.prefix);
    return s3_teardown(state);
}

static void
open_with_large(void)
{
    strcpy(server.prefix, large_prefix);
    open_s3(SMALL_PARTS);
}

static void
a_large_object_comes_in_ranges(void **state)
{
    (void)state;
    open_with_large();
    assert_good(get(1, RANGED, 1)); /* the tier verifies the checksum over all ranges */
    assert_int_equal(n_gets(), 5);
    assert_int_equal(s3_count(&server, "statuses", "206"), 5);
    assert_int_equal(get(2, RANGED, 2), -ENOENT);
}

static void
only_a_failed_range_is_requested_again(void **state)
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
a_store_without_ranges_gets_one_request(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"count\": 5, \"do\": {\"status\": 200, "
             "\"body\": \"all of it\"}}");
    assert_good(get(1, RANGED, 1));
    assert_int_equal(n_gets(), 6);
    s3_forget(&server);
    assert_good(get(1, RANGED, 1)); /* the tier now knows that the server sends no ranges */
    assert_int_equal(n_gets(), 1);
}

static void
an_object_replaced_between_ranges_is_an_error(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"skip\": 3, \"do\": {\"headers\": "
             "{\"ETag\": \"\\\"x\\\"\"}}}");
    assert_fails(get(1, RANGED, 1), EIO, "was replaced during the read");
    assert_good(get(1, RANGED, 1));
}

/* Each of these ranges in the first response is an error. */
static void
a_range_of_another_size_is_refused(void **state)
{
    static const char *const ranges[] = {
        "bytes 0-16777215/69206022", "bytes 1-16777215/69206021", "bytes */69206021",
        "bytes 0-16777214/69206021", "bytes 0-16777216/69206021", "bytes 0-16777215/*",
        "x", "" };
    char fault[256];

    (void)state;
    open_with_large();
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        snprintf(fault, sizeof fault, "{\"match\": {\"range\": \"=0-\"}, \"do\": "
                 "{\"headers\": {\"Content-Range\": \"%s\"}}}", ranges[i]);
        s3_fault(&server, fault);
        assert_fails(get(1, RANGED, 1), EBADMSG, "does not have the chunk's");
    }
    assert_int_equal(get(1, RANGED + 1, 1), -EBADMSG);
    assert_int_equal(get(1, RANGED - 1, 1), -EBADMSG);
    assert_int_equal(get(1, 100 * MIB, 1), -EBADMSG); /* some ranges begin after the object's end */
}

static void
a_failed_range_fails_the_read(void **state)
{
    (void)state;
    open_with_large();
    s3_fault(&server, "{" GETS ", \"skip\": 2, \"do\": {\"status\": 403}}");
    assert_fails(get(1, RANGED, 1), EACCES, "403 AccessDenied");
    assert_int_equal(n_gets(), 5);
}

/* ------------------------------------------------------------------ too large */

/* A PUT has a largest size; the tier refuses before reading the payload. */
static void
an_object_that_no_put_can_have_is_refused(void **state)
{
    unsigned char payload[1];
    struct chunk c;

    (void)state;
    open_s3("s3_part_size=1");
    assert_int_equal(s3_of(tier)->range_bytes, 5 * MIB);
    chunk_init(&c, "model", 1);
    struct kvt__tier_op op = { .kind = KVT__TIER_PUT, .object = &c.object,
                               .slot = { .payload = payload,
                                         .bytes = ((size_t)5 << 30) + 1 } };
    assert_fails(kvt__tier_wait(tier, &op), EFBIG, "model", "5368709121", "5 GiB");
    assert_int_equal(s3_n_requests(&server), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(a_large_object_comes_in_ranges),
        S3_TEST(only_a_failed_range_is_requested_again),
        S3_TEST(a_damaged_range_is_found),
        S3_TEST(a_store_without_ranges_gets_one_request),
        S3_TEST(an_object_replaced_between_ranges_is_an_error),
        S3_TEST(a_range_of_another_size_is_refused),
        S3_TEST(a_failed_range_fails_the_read),
        S3_TEST(an_object_that_no_put_can_have_is_refused),
    };

    return s3_test_main_with(store_large, "s3 ranges", tests, NULL);
}
