/* SPDX-License-Identifier: Apache-2.0
 *
 * Corrupt and foreign objects under the names of encoded chunks are never served. */
#include "encoded-test.h"

static void
change_byte(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    unsigned char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void
a_corrupt_encoded_chunk_is_removed_and_never_served(void **state)
{
    struct env *e = *state;
    char path[600];

    reopen(e, lossless);
    encoded_path(e, 1, "lossless", path);
    assert_int_equal(put_kv(e, 1), 0);
    off_t size = size_of(path);
    for (off_t at = 0; at < size; at += 61) {
        assert_true(put_kv(e, 1) == (at ? 0 : -EEXIST));
        change_byte(path, at);
        int err = get_kv(e, 1);
        assert_true(err == -EBADMSG || (!err && at < KVT__FS_HEADER_BYTES) || err == -ENOENT);
        if (!err)
            assert_int_equal(unlink(path), 0), assert_int_equal(get_kv(e, 1), -ENOENT);
        assert_false(is_encoded(e, 1, "lossless"));
        assert_false(find_kv(e, 1));
        assert_int_equal(used(e), 0);
    }
}

/* Store bytes under the name and the identity of chunk i, with a right checksum. */
static void
put_object(struct env *e, unsigned i, const unsigned char *bytes, size_t n)
{
    struct kvt__level *level = &e->store->levels[0];
    struct request r;

    init_kv(&r, e, KVT__TIER_PUT, i);
    r.req.store = e->store;
    r.req.object = (struct kvt__object){ .key = r.req.key, .hash = r.req.hash, .id = r.req.id,
                                         .tokens = 256, .is_full = true };
    assert_int_equal(kvt__level_describe(level, &r.req), 0);
    r.req.object.shape = (struct kvt__shape){ .format = 4, .dtype = 6, .dims = { (uint32_t)n } };
    r.req.slot.bytes = n;
    memcpy(r.req.slot.payload, bytes, n);
    assert_int_equal(kvt__tier_put(level->tier, &r.req.object, &r.req.slot,
                                   kvt__crc32c(0, bytes, n)), 0);
    free(r.memory);
}

static void
a_frame_with_a_right_checksum_is_served_only_if_it_is_the_chunk(void **state)
{
    static const char *const whys[9] = {
        [1] = "the chunk is encoded as kv8.", [2] = "the decoded chunk has another length.",
        [3] = "the encoded chunk is another chunk." };
    unsigned char chunk[BYTES], frame[4 * BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    fill_kv(chunk, 1);
    struct kvt__id id = id_of(1), other = id_of(2);
    uint32_t crc = kvt__crc32c(0, chunk, BYTES);
    struct kvt__chunk_shape half = layout;
    half.row = half.n = layout.n / 2;
    for (int fault = 0; fault < 9; fault++) {
        enum kvt__serde serde = fault == 1 ? KVT__SERDE_KV8 : KVT__SERDE_LOSSLESS;
        size_t n = kvt__frame_encode(serde, fault == 2 ? &half : &layout, fault == 3 ? &other : &id,
                                     chunk, fault == 4 ? crc + 1 : crc, frame);

        assert_true(n > 100 && n < BYTES);
        if (fault == 5) /* bytes of the frame */
            kvt__put_le64(frame + 16, n - 1);
        if (fault == 6) /* bytes of a plane */
            kvt__put_le32(frame + 80, kvt__get_le32(frame + 80) + 1);
        if (fault == 7) /* another number of planes */
            kvt__put_le32(frame + 76, 4);
        for (size_t i = 100; fault == 8 && i < n; i++)
            frame[i] = (unsigned char)(i * 37);
        put_object(e, 1, frame, n);
        assert_int_equal(probe_kv(e, 1), 0);
        assert_int_equal(get_kv(e, 1), fault ? -EBADMSG : 0);
        if (whys[fault])
            assert_non_null(strstr(last_why, whys[fault]));
        assert_true(is_encoded(e, 1, "lossless") == !fault);
        assert_true(find_kv(e, 1) == !fault);
    }
}

static void
a_chunk_of_a_newer_version_is_a_miss_and_stays(void **state)
{
    unsigned char chunk[BYTES], frame[4 * BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    fill_kv(chunk, 1);
    struct kvt__id id = id_of(1);
    for (int at = 8; at <= 24; at += 16) { /* version, then codec */
        size_t n = kvt__frame_encode(KVT__SERDE_LOSSLESS, &layout, &id, chunk,
                                     kvt__crc32c(0, chunk, BYTES), frame);

        frame[at] = 99;
        put_object(e, 1, frame, n);
        assert_int_equal(probe_kv(e, 1), 0);
        assert_int_equal(get_kv(e, 1), -ENOENT);
        assert_true(is_encoded(e, 1, "lossless"));
        assert_false(find_kv(e, 1));
        assert_int_equal(n_warnings, 0);
    }
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(get_kv(e, 1), 0);
}

static bool
is_never_wanted(const struct kvt__store_req *req)
{
    (void)req;
    return false;
}

static void
a_load_that_is_not_wanted_any_more_is_not_decoded(void **state)
{
    struct env *e = *state;
    struct request r;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 2), 0);
    reopen(e, naive);
    assert_int_equal(put_kv(e, 2), 0);
    reopen(e, (const char *const[]){ ROOMY, "remote_serde=kv8", "codec_threads=1", NULL });
    /* The storage has the chunk in two encodings. */
    init_kv(&r, e, KVT__TIER_GET, 2);
    r.req.is_wanted = is_never_wanted;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, -ECANCELED);
    free(r.memory);
    assert_true(is_encoded(e, 2, "kv8") && file_there(e, 2));
    assert_true(find_kv(e, 2));
    assert_int_equal(put_kv(e, 3), 0); /* the gate is free */
}

static void
a_file_of_another_program_is_no_encoded_chunk(void **state)
{
    unsigned char bytes[BYTES];
    struct env *e = *state;
    char path[600];

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    encoded_path(e, 2, "lossless", path);
    fill_kv(bytes, 2);
    write_file(path, bytes, BYTES);
    assert_true(probe_kv(e, 2));
    assert_true(get_kv(e, 2));
    encoded_path(e, 1, "lossless", path);
    assert_int_equal(unlink(path), 0);
    write_file(path, bytes, 100);
    assert_int_equal(get_kv(e, 1), -EBADMSG);
    assert_false(find_kv(e, 1));
}

static void
an_object_as_large_as_the_chunk_is_no_encoded_chunk(void **state)
{
    unsigned char bytes[BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    fill_noise(bytes, 1);
    put_object(e, 1, bytes, BYTES);
    assert_int_equal(probe_kv(e, 1), -ENOENT);
    assert_int_equal(get_kv(e, 1), -EBADMSG);
    assert_non_null(strstr(last_why, "the object is not smaller than the chunk"));
    assert_false(is_encoded(e, 1, "lossless"));
    check_counted(e, 0, 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_corrupt_encoded_chunk_is_removed_and_never_served),
        TEST(a_frame_with_a_right_checksum_is_served_only_if_it_is_the_chunk),
        TEST(a_chunk_of_a_newer_version_is_a_miss_and_stays),
        TEST(a_load_that_is_not_wanted_any_more_is_not_decoded),
        TEST(a_file_of_another_program_is_no_encoded_chunk),
        TEST(an_object_as_large_as_the_chunk_is_no_encoded_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
