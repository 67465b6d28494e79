/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated files of kvtier of any length are misses.  After a power failure, the length is
 * often a multiple of the file system's block. */
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "file-test.h"
#include "tier/gds/layout.h"

#define FS "org-SEP-model@1@0@-1234@bfloat16.data"
#define DISK "org-model@1@0@-1234@bfloat16.pt"
#define GDS "-4/66/org%2Fmodel%401%400%40-1234%40bfloat16.kvcache.safetensors"
#define MOST_BYTES ((size_t)3 * 4096 + KVT__GDS_HEADER_BYTES)

struct layout {
    const char *kind;
    bool header;
    const char *name;
    size_t header_bytes;
};

static const struct layout layouts[] = {
    { "fs", true, FS, KVT__FS_HEADER_BYTES },
    { "fs", false, FS, 0 },
    { "local_disk", true, DISK, 0 },
    { "gds", true, GDS, KVT__GDS_HEADER_BYTES },
};

/* Payloads, among them multiples of a block.  The last payload is the shape's product. */
static const size_t payloads[] = { 64, 4096, 5000, 8192 };
#define SHAPED ((size_t)8192)

struct damage {
    const struct layout *layout;
    struct fixture f;
    size_t payload;
};

/* Neither a get nor a probe of any length takes the file for a chunk. */
static void
expect_miss(struct damage *d, size_t length)
{
    static const size_t others[] = { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES,
        KVT__FS_HEADER_BYTES + KVT__TRAILER_BYTES, KVT__GDS_HEADER_BYTES };
    struct kvt__found found;
    bool same;

    int err = kvt__tier_probe(d->f.tier, &d->f.c.object, &found);
    if (!err && found.payload_bytes == d->payload)
        fail_msg("%s %d: a probe takes %zu bytes for a chunk of %zu", d->layout->kind,
                 d->layout->header, length, d->payload);
    err = get_bytes(d->f.tier, &d->f.c.object, d->payload, 1, &found, &same);
    if (err != -EBADMSG && err != -ENOENT)
        fail_msg("%s %d: %zu bytes for a chunk of %zu: %d", d->layout->kind,
                 d->layout->header, length, d->payload, err);
    /* A reader of another geometry has the same name and another length. */
    for (size_t i = 0; d->payload == SHAPED && i < sizeof others / sizeof *others; i++) {
        if (length <= others[i])
            continue;
        err = get_bytes(d->f.tier, &d->f.c.object, length - others[i], 1, &found, &same);
        if (!err && !found.has_id)
            fail_msg("%s %d: %zu bytes are a chunk of %zu", d->layout->kind,
                     d->layout->header, length, length - others[i]);
    }
}

/* Write the first length bytes back. */
static void
cut_to(const struct damage *d, size_t length)
{
    assert_int_equal(put_bytes(d->f.tier, &d->f.c.object, d->payload, 1), 0);
    assert_int_equal(truncate(d->f.path, (off_t)length), 0);
}

static void
cut_around(struct damage *d, size_t whole)
{
    const size_t boundaries[] = { 0, KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES,
        KVT__GDS_HEADER_BYTES, d->payload, d->payload + KVT__FS_HEADER_BYTES,
        d->payload + KVT__TRAILER_BYTES, d->payload + KVT__GDS_HEADER_BYTES,
        d->layout->header_bytes + d->payload, 4096, 8192, whole };
    size_t last = SIZE_MAX;

    for (size_t i = 0; i < sizeof boundaries / sizeof *boundaries; i++)
        for (int by = -2; by <= 2; by++) {
            size_t length = boundaries[i] + (size_t)by;

            if (length < whole && length != last) { /* below 0 wraps */
                cut_to(d, length);
                expect_miss(d, length);
            }
            last = length;
        }
}

static void
a_file_without_its_end_is_a_miss(void **state)
{
    (void)state;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        struct damage d = { .layout = &layouts[l] };

        open_fixture(&d.f, d.layout->kind, d.layout->header, d.layout->name);
        if (d.layout->header_bytes < 4096 && !temp_dir_has_attributes(&d.f.dir)) {
            teardown((void *[]){ &d.f });
            continue; /* then the file looks like a file of LMCache */
        }
        d.f.c.object.shape = (struct kvt__shape){ 1, 3, { 2, 2, 16, SHAPED / 128 } };
        for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
            d.payload = payloads[i];
            assert_int_equal(put_bytes(d.f.tier, &d.f.c.object, d.payload, 1), 0);
            cut_around(&d, (size_t)size_of(d.f.path));
        }
        teardown((void *[]){ &d.f });
    }
}

/* A file system that loses blocks in the middle leaves a good trailer at the end. */
static void
a_file_without_its_middle_is_a_miss(void **state)
{
    static const size_t gaps[] = { 1, 64, 4096 };
    static unsigned char bytes[MOST_BYTES];

    (void)state;
    for (size_t l = 0; l < 3; l++) { /* gds files have no trailer at the end */
        struct damage d = { .layout = &layouts[l], .payload = 5000 };

        open_fixture(&d.f, d.layout->kind, d.layout->header, d.layout->name);
        for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
            size_t at = d.layout->header_bytes + 100;

            assert_int_equal(put_bytes(d.f.tier, &d.f.c.object, d.payload, 1), 0);
            int fd = open(d.f.path, O_RDWR | O_CLOEXEC);
            size_t whole = (size_t)pread(fd, bytes, sizeof bytes, 0);
            size_t length = whole - gaps[i], rest = length - at;
            assert_int_equal(pwrite(fd, bytes + at + gaps[i], rest, (off_t)at), rest);
            assert_int_equal(ftruncate(fd, (off_t)length), 0);
            close(fd);
            expect_miss(&d, length);
        }
        teardown((void *[]){ &d.f });
    }
}

/* On a file system without attributes the length in the header decides, not the shape. */
static void
without_attributes_a_file_cut_to_its_payload_is_a_miss(void **state)
{
    struct damage d = { .layout = &layouts[0] };

    (void)state;
    open_fixture(&d.f, "fs", true, FS);
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        d.payload = payloads[i];
        cut_to(&d, d.payload);
        if (removexattr(d.f.path, KVT__XATTR_NAME) < 0)
            assert_int_equal(errno, ENOTSUP);
        expect_miss(&d, d.payload);
    }
    teardown((void *[]){ &d.f });
}

/* LMCache's files with header, which carry no identity. */
static void
a_file_of_lmcache_without_its_end_is_a_miss(void **state)
{
    const struct kvt__shape shape = { 1, 3, { 2, 2, 16, SHAPED / 128 } };
    unsigned char bytes[KVT__FS_HEADER_BYTES + SHAPED] = { 0 };
    struct damage d = { .layout = &layouts[0], .payload = SHAPED };

    (void)state;
    open_fixture(&d.f, "fs", true, FS);
    kvt__fs_header_put(&shape, SHAPED, bytes);
    for (size_t length = 0; length < sizeof bytes; length++) {
        if (length > 100 && length < SHAPED - 100 && length % 512)
            continue;
        write_file(d.f.path, bytes, length);
        expect_miss(&d, length);
    }
    teardown((void *[]){ &d.f });
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_its_end_is_a_miss),
        cmocka_unit_test(a_file_without_its_middle_is_a_miss),
        cmocka_unit_test(without_attributes_a_file_cut_to_its_payload_is_a_miss),
        cmocka_unit_test(a_file_of_lmcache_without_its_end_is_a_miss),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests_name("tier truncated", tests, NULL, NULL);
}
