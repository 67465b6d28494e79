/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of the files of fs://, and files of LMCache and of the other header setting. */
#include <fcntl.h>

#include "fs-test.h"
#include "tier/layout/layout.h"

static size_t
read_file(const char *path, unsigned char *out, size_t size)
{
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    ssize_t n = read(fd, out, size);
    assert_true(n >= 0);
    close(fd);
    return (size_t)n;
}

/* 2 x 32 x 256 x 1024 bfloat16 in KV_2LTD, 33554432 bytes. */
static const unsigned char golden[28] = {
    0x00, 0x00, 0x00, 0x02, 0x01, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    0x00, 0x04, 0x00, 0x00,
};

static void
header_has_the_bytes_of_lmcache(void **state)
{
    static const struct kvt__shape shape = { 1, 3, { 2, 32, 256, 1024 } };
    unsigned char out[KVT__FS_HEADER_BYTES];

    (void)state;
    kvt__fs_header_put(&shape, 33554432, out);
    assert_memory_equal(out, golden, sizeof golden);
    assert_int_equal(kvt__fs_header_get(golden), 33554432);
    /* The length is a signed number of 32 bits. */
    assert_int_equal(kvt__fs_header_get((const unsigned char[28]){ 255, 255, 255, 127 }),
                     INT32_MAX);
    assert_int_equal(kvt__fs_header_get((const unsigned char[28]){ 0, 0, 0, 128 }), -1);
}

static void
file_with_header_is_header_payload_trailer(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[28 + 1000 + 64 + 1], payload[1000];

    fill(payload, sizeof payload, 1);
    for (int whole = 0; whole < 2; whole++) {
        f->c.object.is_full = whole;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        assert_int_equal(read_file(f->path, bytes, sizeof bytes), 28 + 1000 + 64);
        assert_int_equal(kvt__get_le32(bytes), 1000);
        assert_memory_equal(bytes + 4, golden + 4, 24);
        assert_memory_equal(bytes + 28, payload, 1000);
        assert_memory_equal(bytes + 1028, "KVTTRLR1", 8);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 12), crc_of(1000, 1));
        assert_int_equal(kvt__get_le64(bytes + 1028 + 16), 1000);
        assert_memory_equal(bytes + 1028 + 24, f->c.object.id.b, 16);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 40), 256);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 44), 28);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 60),
                         kvt__crc32c(0, bytes + 1028, 60));
    }
}

static void
whole_file_without_header_is_payload_trailer(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[1000 + 64 + 1], payload[1000];

    fill(payload, sizeof payload, 1);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(read_file(f->path, bytes, sizeof bytes), 1064);
    assert_memory_equal(bytes, payload, 1000);
    assert_memory_equal(bytes + 1000, "KVTTRLR1", 8);
    assert_int_equal(kvt__get_le32(bytes + 1000 + 44), 0);
}

static void
sizes_are_exact_with_direct_io_too(void **state)
{
    static const size_t sizes[] = { 1, 4096, 256 << 10, (256 << 10) - 1,
                                    (256 << 10) + 4096 - 92, 1 << 20 };
    struct fixture *f = *state;
    bool header = f->tier->phase == 28;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(put_bytes(f->tier, &f->c.object, sizes[i], 1), 0);
        assert_int_equal(size_of(f->path), sizes[i] + 64 + (header ? 28 : 0));
    }
}

static void
opaque_chunks_are_in_the_directory_kvtier(void **state)
{
    struct fixture *f = *state;
    char path[512];

    f->c.object.opaque = true;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(access(f->path, F_OK), -1);
    snprintf(path, sizeof path, "%s/kvtier/org-SEP-model@1@0@-1234@bfloat16.data",
             f->dir.path);
    assert_true(size_of(path) > 1000);
}

static void
files_of_lmcache_are_read_with_and_without_header(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[28 + 5000];
    struct kvt__found found;
    bool same;

    for (int header = 0; header < 2; header++) {
        memcpy(bytes, golden, 28);
        kvt__put_le32(bytes, 5000);
        fill(bytes + 28, 5000, 9);
        write_file(f->path, bytes + (header ? 0 : 28), header ? 5028 : 5000);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 9, &found, &same), 0);
        assert_true(same);
        assert_false(found.has_id);
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
        assert_false(found.has_id);
        assert_int_equal(found.payload_bytes, 5000);
        assert_int_equal(unlink(f->path), 0);
    }
}

static void
files_written_under_the_other_header_setting_are_read(void **state)
{
    struct fixture *f = *state;
    bool header = f->tier->phase == 28;
    struct kvt__found found;
    char url[512];
    bool same;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    struct kvt__tier *other = open_tier(url, !header);
    assert_int_equal(put_bytes(other, &f->c.object, 300 << 10, 2), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 300 << 10, 2, &found, &same), 0);
    assert_true(same && found.has_id);
    other->ops->close(other);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_has_the_bytes_of_lmcache),
        HEADER(file_with_header_is_header_payload_trailer),
        BARE(whole_file_without_header_is_payload_trailer),
        HEADER(sizes_are_exact_with_direct_io_too),
        BARE(sizes_are_exact_with_direct_io_too),
        HEADER(opaque_chunks_are_in_the_directory_kvtier),
        HEADER(files_of_lmcache_are_read_with_and_without_header),
        BARE(files_of_lmcache_are_read_with_and_without_header),
        HEADER(files_written_under_the_other_header_setting_are_read),
        BARE(files_written_under_the_other_header_setting_are_read),
    };

    return cmocka_run_group_tests_name("tier file bytes", tests, NULL, NULL);
}
