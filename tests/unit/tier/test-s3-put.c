/* SPDX-License-Identifier: Apache-2.0
 *
 * PUT of objects: over an existing object, at servers without some features, and the headers
 * of a PUT. */
#include "s3-test.h"

#define BYTES ((size_t)50 << 10)

static unsigned
n_puts(void)
{
    return s3_count(&server, "operations", "PutObject");
}

static void
count_name(void *ctx, const char *key, bool opaque, uint64_t bytes,
           int64_t modified_ns)
{
    (void)ctx;
    (void)key;
    (void)opaque;
    (void)bytes;
    (void)modified_ns;
}

/* --------------------------------------------------------------- existing objects */

static void
an_existing_chunk_is_not_stored_again(void **state)
{
    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    assert_good(put(1, BYTES, 1));
    assert_int_equal(s3_count(&server, "statuses", "200"), 2); /* one PUT, one HEAD */
    assert_int_equal(s3_count(&server, "statuses", "412"), 1);
    assert_good(get(1, BYTES, 1));
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

/* The object is stored, but the response is lost: the repeated PUT finds the object, which
 * is this process's own and counts. */
static void
a_response_that_is_lost_is_no_second_object(void **state)
{
    (void)state;
    open_s3("max_remote_size=1");
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"content_length\": 5, "
             "\"close\": true}}");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(n_puts(), 2);
    assert_int_equal(s3_count(&server, "statuses", "412"), 1);
    assert_int_equal(counted(KVT__N_s3_repetitions), 1);
    assert_int_equal(atomic_load(&s3_of(tier)->cleaner.stored_bytes), BYTES);
    assert_good(get(1, BYTES, 1));
    assert_good(put(1, BYTES, 1)); /* the object may be another process's: not counted */
    assert_int_equal(atomic_load(&s3_of(tier)->cleaner.stored_bytes), BYTES);
}

/* PUT a chunk and return the description of the replaced object. */
static void
put_over(const struct chunk *c, size_t bytes, uint64_t seed, struct kvt__found *replaced)
{
    struct kvt__slot slot = slot_new(bytes, 0);
    struct kvt__tier_op op = { .kind = KVT__TIER_PUT, .object = &c->object, .slot = slot };

    slot_fill(&slot, seed);
    op.crc = kvt__crc32c(0, slot.payload, bytes);
    assert_good(kvt__tier_wait(tier, &op));
    *replaced = op.found;
    slot_free(&slot, 0);
}

static void
another_chunk_with_the_name_is_overwritten_and_reported(void **state)
{
    struct kvt__found replaced;
    struct chunk c;

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    chunk_init(&c, "model", 1);
    struct kvt__id was = c.object.id;
    c.object.id.b[0] ^= 1;
    put_over(&c, BYTES, 2, &replaced);
    assert_true(replaced.has_id && kvt__id_equal(&replaced.id, &was));
    assert_good(get(1, BYTES, 2));
}

/* LMCache's objects have no identity. */
static void
an_object_without_identity_is_overwritten(void **state)
{
    struct kvt__found replaced;
    struct chunk c;

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"HEAD\"}, "
             "\"do\": {\"headers\": {\"x-amz-meta-kvtier\": null}}}");
    chunk_init(&c, "model", 1);
    put_over(&c, BYTES, 2, &replaced);
    assert_false(replaced.has_id);
    assert_good(get(1, BYTES, 2));
}

static void
an_overwrite_sends_no_head(void **state)
{
    struct kvt__slot slot = slot_new(BYTES, 0);
    struct chunk c;

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    chunk_init(&c, "model", 1);
    slot_fill(&slot, 2);
    struct kvt__tier_op op = { .kind = KVT__TIER_PUT, .object = &c.object, .slot = slot,
                               .overwrite = true, .crc = crc_of(BYTES, 2) };
    assert_good(kvt__tier_wait(tier, &op));
    slot_free(&slot, 0);
    assert_int_equal(s3_count(&server, "methods", "HEAD"), 0);
    assert_good(get(1, BYTES, 2));
}

/* Another host deletes the object between the refused PUT and the HEAD. */
static void
a_chunk_deleted_meanwhile_is_stored(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "[{\"match\": {\"method\": \"PUT\"}, "
             "\"do\": {\"status\": 412, \"code\": \"PreconditionFailed\"}},"
             "{\"match\": {\"method\": \"HEAD\"}, \"do\": {\"status\": 404}}]");
    assert_good(put(1, BYTES, 1));
    assert_good(get(1, BYTES, 1));
    assert_int_equal(n_puts(), 2);
}

/* A lifecycle rule of the bucket archived the object: the object exists and is not readable. */
static void
an_archived_object_is_overwritten(void **state)
{
    struct kvt__found found;
    struct chunk c;

    (void)state;
    open_s3("s3_storage_class=GLACIER");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(probe(1), -ENOENT);
    assert_good(put(1, BYTES, 2));
    assert_int_equal(n_puts(), 3);
    s3_fault(&server, "{\"match\": {\"method\": \"HEAD\"}, "
             "\"do\": {\"headers\": {\"x-amz-storage-class\": null}}}");
    chunk_init(&c, "model", 1);
    assert_good(kvt__tier_probe(tier, &c.object, &found));
    assert_int_equal(found.crc, crc_of(BYTES, 2));
}

static void
a_put_gives_up_after_three_conflicts(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "[{\"match\": {\"method\": \"PUT\"}, \"count\": null, "
             "\"do\": {\"status\": 412, \"code\": \"PreconditionFailed\"}},"
             "{\"match\": {\"method\": \"HEAD\"}, \"count\": null, "
             "\"do\": {\"status\": 404}}]");
    assert_int_equal(put(1, BYTES, 1), -EBUSY);
    assert_int_equal(n_puts(), 3);
}

static void
a_race_of_writers_is_tried_again(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"count\": 2, \"do\": "
             "{\"status\": 409, \"code\": \"ConditionalRequestConflict\"}}");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(n_puts(), 3);
    assert_int_equal(counted(KVT__N_s3_repetitions), 2);
}

/* MinIO before 2023 responds 304. */
static void
status_304_means_an_existing_object(void **state)
{
    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"status\": 304}}");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(n_puts(), 2);
}

/* ----------------------------------------------------- stores without a feature */

static void
a_store_without_conditions_gets_none_again(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"status\": 501, "
             "\"code\": \"NotImplemented\"}}");
    assert_good(put(1, BYTES, 1));
    assert_string_equal(s3_header(&server, "PutObject", "if-none-match"), "");
    assert_string_not_equal(s3_header(&server, "PutObject", "x-amz-checksum-crc32c"), "");
    assert_good(put(2, BYTES, 2));
    assert_string_equal(s3_header(&server, "PutObject", "if-none-match"), "");
    assert_int_equal(n_puts(), 3);
    assert_good(put(2, BYTES, 2));
    assert_good(get(1, BYTES, 1));
    assert_good(get(2, BYTES, 2));
}

static void
a_store_without_checksums_gets_none(void **state)
{
    static const char *const faults[] = {
        "{\"match\": {\"method\": \"PUT\"}, \"count\": 2, \"do\": {\"status\": 501, "
        "\"code\": \"NotImplemented\"}}",
        "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"status\": 400, \"code\": "
        "\"InvalidRequest\", \"message\": \"Value for x-amz-checksum-crc32c header is "
        "invalid\"}}",
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        s3_setup(NULL);
        open_s3(NULL);
        s3_fault(&server, faults[i]);
        assert_good(put(1, BYTES, 1));
        assert_string_equal(s3_header(&server, "PutObject", "x-amz-checksum-crc32c"), "");
        unsigned n = n_puts();
        assert_good(put(2, BYTES, 2));
        assert_int_equal(n_puts(), n + 1);
        assert_good(get(2, BYTES, 2));
        s3_close(tier);
        tier = NULL;
    }
}

static void
an_error_without_a_header_to_blame_fails(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"count\": null, \"do\": {\"status\": 501, \"code\": "
             "\"NotImplemented\", \"message\": \"Not here\"}}");
    assert_fails(put(1, BYTES, 1), EIO, "501 NotImplemented", "Not here");
    assert_int_equal(n_puts(), 3);
}

/* --------------------------------------------------------------- corrupt objects */

static void
a_damaged_object_is_overwritten_by_the_next_put(void **state)
{
    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"corrupt_at\": 99}}");
    assert_fails(get(1, BYTES, 1), EBADMSG, "the checksum is wrong");
    assert_good(put(1, BYTES, 1));
    assert_string_equal(s3_header(&server, "PutObject", "if-none-match"), "");
    assert_int_equal(n_puts(), 2);
    assert_good(put(1, BYTES, 1)); /* the new object is good: no overwrite */
    assert_string_equal(s3_header(&server, "PutObject", "if-none-match"), "*");
    assert_good(get(1, BYTES, 1));
}

/* ------------------------------------------------------------------- collisions */

static unsigned n_said;

static void
count_collisions(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    n_said += level == KVT_LOG_WARN && strstr(line, "two models have equal names");
}

static void
a_collision_of_names_is_counted_and_logged_once(void **state)
{
    struct kvt__found found;
    struct chunk a, b;
    bool same;

    (void)state;
    n_said = 0;
    kvt_set_log(count_collisions, NULL, KVT_LOG_INFO);
    open_s3(NULL);
    chunk_init(&a, "a/b", 1);
    chunk_init(&b, "a_b", 1);
    b.object.id.b[0] ^= 1;
    assert_good(put_bytes(tier, &a.object, BYTES, 1));
    assert_int_equal(counted(KVT__N_name_collisions), 0);
    assert_good(get_bytes(tier, &b.object, BYTES, 1, &found, &same));
    assert_true(found.has_id && kvt__id_equal(&found.id, &a.object.id)); /* the metadata of a */
    assert_int_equal(n_said, 1);
    assert_good(put_bytes(tier, &b.object, BYTES, 2));
    assert_good(get_bytes(tier, &b.object, BYTES, 2, &found, &same));
    assert_true(same);
    assert_int_equal(counted(KVT__N_name_collisions), 2);
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
    assert_int_equal(n_said, 1);
}

/* --------------------------------------------------------------------- headers */

static void
expect_header(const char *operation, const char *name, const char *value)
{
    assert_string_equal(s3_header(&server, operation, name), value);
    assert_int_equal(s3_signed(&server, operation, name), *value != '\0');
}

static void
encryption_class_and_payer_are_sent_and_signed(void **state)
{
    (void)state;
    open_s3("s3_sse=aws:kms", "s3_sse_kms_key_id=arn:aws:kms:us-east-1:1:key/a b",
            "s3_storage_class=STANDARD_IA", "s3_request_payer=true");
    assert_good(put(1, BYTES, 1));
    expect_header("PutObject", "x-amz-server-side-encryption", "aws:kms");
    expect_header("PutObject", "x-amz-server-side-encryption-aws-kms-key-id",
                  "arn:aws:kms:us-east-1:1:key/a b");
    expect_header("PutObject", "x-amz-storage-class", "STANDARD_IA");
    expect_header("PutObject", "x-amz-request-payer", "requester");
    assert_good(get(1, BYTES, 1));
    expect_header("GetObject", "x-amz-request-payer", "requester");
    expect_header("GetObject", "x-amz-server-side-encryption", "");
    assert_int_equal(probe(1), 0);
    expect_header("HeadObject", "x-amz-request-payer", "requester");
}

/* Headers of objects are sent with PUTs only, other headers with every request; only x-amz-* is
 * signed. */
static void
headers_of_the_user_are_sent(void **state)
{
    static const char *const all[] = { "PutObject", "GetObject", "HeadObject",
                                       "ListObjectsV2" };
    static const char owner[] = "x-amz-expected-bucket-owner";

    (void)state;
    open_s3("s3_headers=[\"X-Amz-Expected-Bucket-Owner: 1234\", \"x-amz-tagging: a=b&c=d \", "
            "\"X-Team:  Blue Sky\"]");
    assert_good(put(1, BYTES, 1));
    assert_good(get(1, BYTES, 1));
    assert_good(probe(1));
    assert_good(tier->ops->list(tier, "", count_name, NULL));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_string_equal(s3_header(&server, all[i], owner), "1234");
        assert_true(s3_signed(&server, all[i], owner));
        assert_string_equal(s3_header(&server, all[i], "x-team"), "Blue Sky");
        assert_false(s3_signed(&server, all[i], "x-team"));
        assert_string_equal(s3_header(&server, all[i], "x-amz-tagging"), i ? "" : "a=b&c=d");
    }
    assert_true(s3_signed(&server, "PutObject", "x-amz-tagging"));
}

static void
invalid_headers_are_rejected_without_their_values(void **state)
{
    static const char *const bad[] = {
        "hidden", "[\": hidden\"]", "[\"a b: hidden\"]", "[\"a:\"]", "[\"a: \"]",
        "[\"a: hidden\\r\\nb: c\"]", "[\"a: hidden\\n\"]", "[\"a: hid\\tden\"]",
        "[\"Host: hidden\"]", "[\"Authorization: hidden\"]", "[\"x-amz-date: hidden\"]",
        "[\"Content-Length: 1\"]", "[\"If-None-Match: hidden\"]", "[\"Accept-Encoding: hidden\"]",
        "[\"Range: hidden\"]",
        "[\"x-amz-meta-kvtier-model: hidden\"]", "[\"x-amz-security-token: hidden\"]",
        "[\"a: hidden\", \"A: hidden\"]",
        "[\"a: 1\", \"b: 1\", \"c: 1\", \"d: 1\", \"e: 1\", \"f: 1\", \"g: 1\", "
        "\"h: 1\", \"i: 1\"]" };
    char setting[256], url[256];

    (void)state;
    s3_url(&server, url, sizeof url);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const settings[] = { setting, NULL };

        snprintf(setting, sizeof setting, "s3_headers=%s", bad[i]);
        assert_fails(s3_try_open(url, settings, &counters, &tier), EINVAL, "s3_headers: ");
        assert_null(strstr(kvt__why(), "hid"));
        assert_null(tier);
    }
}

static void
an_object_has_headers_that_describe_the_chunk(void **state)
{
    char expected[64];
    unsigned char crc[4];
    uint32_t value = crc_of(BYTES, 1);
    struct chunk c;

    (void)state;
    open_s3("s3_sse=AES256");
    chunk_init(&c, "org/model x", 1);
    assert_good(put_bytes(tier, &c.object, BYTES, 1));
    expect_header("PutObject", "x-amz-server-side-encryption", "AES256");
    expect_header("PutObject", "x-amz-meta-kvtier-model", "org/model%20x");
    expect_header("PutObject", "content-type", "application/octet-stream");
    for (int i = 0; i < 4; i++)
        crc[i] = (unsigned char)(value >> (24 - 8 * i));
    kvt__s3_base64(crc, 4, expected);
    expect_header("PutObject", "x-amz-checksum-crc32c", expected);
    assert_string_equal(s3_header(&server, "PutObject", "x-amz-content-sha256"),
                        "UNSIGNED-PAYLOAD");
}

static void
an_empty_object_is_stored(void **state)
{
    struct kvt__found found;
    struct chunk c;

    (void)state;
    open_s3(NULL);
    chunk_init(&c, "model", 1);
    struct kvt__tier_op op = { .kind = KVT__TIER_PUT, .object = &c.object };
    assert_good(kvt__tier_wait(tier, &op));
    assert_good(kvt__tier_probe(tier, &c.object, &found));
    assert_int_equal(found.payload_bytes, 0);
    op = (struct kvt__tier_op){ .kind = KVT__TIER_GET, .object = &c.object };
    assert_good(kvt__tier_wait(tier, &op));
    assert_true(op.found.has_id);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(an_existing_chunk_is_not_stored_again),
        S3_TEST(a_response_that_is_lost_is_no_second_object),
        S3_TEST(another_chunk_with_the_name_is_overwritten_and_reported),
        S3_TEST(an_object_without_identity_is_overwritten),
        S3_TEST(an_overwrite_sends_no_head),
        S3_TEST(a_chunk_deleted_meanwhile_is_stored),
        S3_TEST(an_archived_object_is_overwritten),
        S3_TEST(a_put_gives_up_after_three_conflicts),
        S3_TEST(a_race_of_writers_is_tried_again),
        S3_TEST(status_304_means_an_existing_object),
        S3_TEST(a_store_without_conditions_gets_none_again),
        S3_TEST(a_store_without_checksums_gets_none),
        S3_TEST(an_error_without_a_header_to_blame_fails),
        S3_TEST(a_damaged_object_is_overwritten_by_the_next_put),
        S3_TEST(a_collision_of_names_is_counted_and_logged_once),
        S3_TEST(encryption_class_and_payer_are_sent_and_signed),
        S3_TEST(headers_of_the_user_are_sent),
        S3_TEST(invalid_headers_are_rejected_without_their_values),
        S3_TEST(an_object_has_headers_that_describe_the_chunk),
        S3_TEST(an_empty_object_is_stored),
    };

    return s3_test_main("s3 stores", tests, NULL);
}
