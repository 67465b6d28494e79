/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading objects: corrupt objects, objects of another length, archived objects, and large objects
 * in ranges.  get() fails the test for wrong bytes, and for any written byte outside the slot. */
#include "s3-test.h"

#define BYTES ((size_t)50 << 10)

/* Read into a slot of this size and return the result; no byte of the slot may change. */
static int
get_nothing(size_t bytes, bool may_be_shorter)
{
    struct kvt__slot slot = slot_new(bytes, 0);
    struct chunk c;

    chunk_init(&c, "model", 1);
    struct kvt__tier_op op = { .kind = KVT__TIER_GET, .object = &c.object, .slot = slot,
                               .may_be_shorter = may_be_shorter };
    int err = kvt__tier_wait(tier, &op);
    assert_true(guards_are_whole(&slot));
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(slot.payload[i], 0x5a);
    slot_free(&slot, 0);
    return err;
}

/* -------------------------------------------------------------- corrupt objects */

static void
damage_at_any_position_is_found(void **state)
{
    static const char *const damages[] = {
        "{\"corrupt_at\": 0}", "{\"corrupt_at\": 51199}", "{\"corrupt_at\": 20000}",
        "{\"headers\": {\"x-amz-checksum-crc32c\": \"AAAAAA==\"}}",
    };
    char fault[256];

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        snprintf(fault, sizeof fault, "{\"match\": {\"method\": \"GET\"}, \"do\": %s}",
                 damages[i]);
        s3_fault(&server, fault);
        assert_fails(get(1, BYTES, 1), EBADMSG, "model", "checksum is wrong");
        assert_good(get(1, BYTES, 1));
    }
}

/* Objects of LMCache have no checksum except the store's own. */
static void
an_object_without_identity_is_checked_by_the_servers_checksum(void **state)
{
    struct kvt__found found;
    struct chunk c;
    bool same;

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    chunk_init(&c, "model", 1);
    s3_fault(&server, "[{\"match\": {\"method\": \"GET\"}, \"do\": {\"corrupt_at\": 7, "
             "\"headers\": {\"x-amz-meta-kvtier\": null}}},"
             "{\"match\": {\"method\": \"GET\"}, "
             "\"do\": {\"headers\": {\"x-amz-meta-kvtier\": null}}}]");
    assert_int_equal(get_bytes(tier, &c.object, BYTES, 1, &found, &same), -EBADMSG);
    assert_good(get_bytes(tier, &c.object, BYTES, 1, &found, &same));
    assert_true(same);
    assert_false(found.has_id);
}

/* An opaque object without an identity is not a chunk, because LMCache has no opaque objects. */
static void
an_opaque_object_without_identity_is_damaged(void **state)
{
    struct kvt__found found;
    struct chunk c;
    bool same;

    (void)state;
    open_s3(NULL);
    chunk_init(&c, "model", 1);
    c.object.opaque = true;
    assert_good(put_bytes(tier, &c.object, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, "
             "\"do\": {\"headers\": {\"x-amz-meta-kvtier\": null}}}");
    assert_int_equal(get_bytes(tier, &c.object, BYTES, 1, &found, &same), -EBADMSG);
    assert_good(get_bytes(tier, &c.object, BYTES, 1, &found, &same));
    assert_true(same);
}

/* Only kvtier writes this header, so the object is not from LMCache: the bytes may belong to
 * any weights. */
static void
an_object_with_an_unreadable_identity_is_damaged(void **state)
{
    struct kvt__trailer of_another_length = { .payload_bytes = BYTES - 1,
                                              .crc = crc_of(BYTES, 1) };
    unsigned char bytes[KVT__TRAILER_BYTES];
    char fitting[128], fault[512];
    const char *const texts[] = { "", "AAAA", "*", "S1ZU", fitting };
    struct kvt__found found;
    struct chunk c;

    (void)state;
    open_s3(NULL);
    chunk_init(&c, "model", 1);
    of_another_length.id = c.object.id;
    kvt__trailer_put(&of_another_length, bytes);
    kvt__s3_base64(bytes, sizeof bytes, fitting);
    assert_good(put(1, BYTES, 1));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        snprintf(fault, sizeof fault, "{\"count\": 2, \"do\": {\"headers\": "
                 "{\"x-amz-meta-kvtier\": \"%s\"}}}", texts[i]);
        s3_fault(&server, fault);
        assert_fails(get_nothing(BYTES, false), EBADMSG, "x-amz-meta-kvtier");
        assert_good(kvt__tier_probe(tier, &c.object, &found));
        assert_false(found.has_id);
        assert_good(get(1, BYTES, 1));
    }
    s3_forget(&server);
    assert_good(put(1, BYTES, 1)); /* replaces the corrupt object */
    assert_string_equal(s3_header(&server, "PutObject", "if-none-match"), "");
}

/* ------------------------------------------------------------------------- length */

static void
an_object_of_another_length_is_refused_before_its_first_byte(void **state)
{
    static const size_t others[] = { BYTES - 1, BYTES + 1, BYTES / 2, 2 * BYTES, 1 };
    struct kvt__found found;
    struct chunk c;

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    chunk_init(&c, "model", 1);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct kvt__slot slot = slot_new(others[i], 0);

        assert_int_equal(kvt__tier_get(tier, &c.object, &slot, &found), -EBADMSG);
        assert_int_equal(found.payload_bytes, BYTES);
        assert_true(guards_are_whole(&slot));
        for (size_t b = 0; b < others[i]; b++)
            assert_int_equal(slot.payload[b], 0x5a);
        slot_free(&slot, 0);
    }
}

static void
more_bytes_than_announced_do_no_harm(void **state)
{
    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": "
             "{\"content_length\": 51200, \"extra\": 9000}}");
    assert_good(get(1, BYTES, 1));
    assert_good(get(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"chunked\": true, "
             "\"headers\": {\"Content-Length\": null}}}");
    assert_int_equal(get(1, BYTES, 1), -EBADMSG);
}

/* As kvt_store does: the slot is larger than the chunk. */
static void
a_shorter_object_is_read_if_allowed(void **state)
{
    struct kvt__slot slot = slot_new(2 * BYTES, 0);
    struct chunk c;

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    chunk_init(&c, "model", 1);
    struct kvt__tier_op op = { .kind = KVT__TIER_GET, .object = &c.object, .slot = slot,
                               .may_be_shorter = true };
    assert_good(kvt__tier_wait(tier, &op));
    assert_int_equal(op.found.payload_bytes, BYTES);
    for (size_t i = BYTES; i < 2 * BYTES; i++)
        assert_int_equal(slot.payload[i], 0x5a);
    slot.bytes = BYTES;
    assert_true(slot_holds(&slot, 1));
    op.slot.bytes = BYTES - 1;
    assert_int_equal(kvt__tier_wait(tier, &op), -EMSGSIZE);
    assert_int_equal(op.found.payload_bytes, BYTES);
    slot_free(&slot, 0);
}

/* ------------------------------------------------------------------------- status */

/* A 204 has no body even with a Content-Length; an unrequested 206 is a part of an
 * object. */
static void
only_status_200_brings_an_object(void **state)
{
    static const char *const answers[] = {
        "{\"status\": 204, \"headers\": {\"Content-Length\": \"5000\"}}",
        "{\"status\": 201, \"body\": \"12345\"}", "{\"status\": 202, \"body\": \"12345\"}",
        "{\"status\": 203, \"body\": \"12345\"}",
        "{\"status\": 206, \"body\": \"12345\", \"headers\": "
        "{\"Content-Range\": \"bytes 0-4/5\"}}",
        "{\"status\": 226, \"body\": \"12345\"}" };
    char fault[256], status[8];

    (void)state;
    open_s3(NULL);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        size_t bytes = i ? 5 : 5000;

        snprintf(status, sizeof status, "%.3s", strstr(answers[i], ": ") + 2);
        snprintf(fault, sizeof fault, "{\"count\": 3, \"do\": %s}", answers[i]);
        s3_fault(&server, fault);
        assert_fails(get_nothing(bytes, false), EIO, "status ", status, "GET model");
        assert_fails(get_nothing(bytes + 9, true), EIO, "status ", status, "GET model");
        assert_fails(probe(1), EIO, "status ", status, "HEAD model");
        s3_no_faults(&server);
    }
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

/* --------------------------------------------------------------------- archived */

static void
an_archived_object_is_a_miss(void **state)
{
    (void)state;
    open_s3("s3_storage_class=GLACIER");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(get(1, BYTES, 1), -ENOENT);
    assert_int_equal(probe(1), -ENOENT);
    s3_fault(&server, "{\"match\": {\"method\": \"HEAD\"}, \"do\": {\"headers\": "
             "{\"x-amz-restore\": \"ongoing-request=\\\"false\\\", "
             "expiry-date=\\\"x\\\"\"}}}");
    assert_int_equal(probe(1), 0); /* the archived object was restored */
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(damage_at_any_position_is_found),
        S3_TEST(an_object_without_identity_is_checked_by_the_servers_checksum),
        S3_TEST(an_opaque_object_without_identity_is_damaged),
        S3_TEST(an_object_with_an_unreadable_identity_is_damaged),
        S3_TEST(an_object_of_another_length_is_refused_before_its_first_byte),
        S3_TEST(more_bytes_than_announced_do_no_harm),
        S3_TEST(a_shorter_object_is_read_if_allowed),
        S3_TEST(only_status_200_brings_an_object),
        S3_TEST(an_archived_object_is_a_miss),
    };

    return s3_test_main("s3 loads", tests, NULL);
}
