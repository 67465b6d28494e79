/* SPDX-License-Identifier: Apache-2.0
 *
 * A tier of gds_path with one chunk in the format of kvtier or of LMCache. */
#ifndef KVT_GDS_TEST_H
#define KVT_GDS_TEST_H

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "file-test.h"
#include "tier/gds/gds.h"

#define FILE_OF_C "-4/66/org%2Fmodel%401%400%40-1234%40bfloat16.kvcache.safetensors"

static inline int
setup(void **state)
{
    static struct fixture f;

    open_fixture(&f, "gds", true, FILE_OF_C);
    *state = &f;
    return 0;
}

static inline const char *
metadata_path(const struct fixture *f)
{
    static char path[1100];

    snprintf(path, sizeof path, "%s.metadata", f->path);
    return path;
}

static inline bool
exists(const char *path)
{
    return !access(path, F_OK);
}

static inline void
read_start(const char *path, unsigned char out[KVT__GDS_HEADER_BYTES])
{
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    assert_int_equal(read(fd, out, KVT__GDS_HEADER_BYTES), KVT__GDS_HEADER_BYTES);
    close(fd);
}

/* Set the modification time of a file to this number of seconds ago. */
static inline void
make_old(const char *path, time_t seconds)
{
    struct timespec times[2] = { { time(NULL) - seconds, 0 }, { time(NULL) - seconds, 0 } };

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Write a chunk in LMCache's format to the fixture's path; the bytes follow from seed. */
static inline void
write_lmcaches(const struct fixture *f, const struct kvt__shape *shape, size_t bytes,
               uint64_t seed, bool with_metadata)
{
    struct kvt__slot slot = slot_new(bytes, 0);
    unsigned char *start = slot.payload - KVT__GDS_HEADER_BYTES;
    char dir[600];

    slot_fill(&slot, seed);
    kvt__gds_header_put(shape, bytes, NULL, start);
    snprintf(dir, sizeof dir, "%s/-4", f->dir.path);
    mkdir(dir, 0755);
    snprintf(dir, sizeof dir, "%s/-4/66", f->dir.path);
    mkdir(dir, 0755);
    write_file(f->path, start, KVT__GDS_HEADER_BYTES + bytes);
    if (with_metadata)
        write_file(metadata_path(f), start, KVT__GDS_HEADER_BYTES);
    slot_free(&slot, 0);
}

static const struct kvt__shape bytes_5000 = { 4, 6, { 5000 } };

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

#endif
