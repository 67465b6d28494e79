/* SPDX-License-Identifier: Apache-2.0
 *
 * A tier of files in a temporary directory, one chunk of the tier, and the result of a listing. */
#ifndef KVT_FILE_TEST_H
#define KVT_FILE_TEST_H

#include "files.h"
#include "tier-test.h"

struct fixture {
    struct temp_dir dir;
    struct kvt__tier *tier;
    struct chunk c;
    char path[1024]; /* path of the file of chunk c */
};

/* Open the tier and describe the chunk.  kind: for example "fs"; name: of the chunk's file. */
static inline void
open_fixture(struct fixture *f, const char *kind, bool header, const char *name)
{
    char url[512];

    temp_dir_make(&f->dir);
    snprintf(url, sizeof url, "%s://%s", kind, f->dir.path);
    f->tier = open_tier(url, header);
    chunk_init(&f->c, "org/model", -0x1234);
    snprintf(f->path, sizeof f->path, "%s/%s", f->dir.path, name);
}

static inline int
teardown(void **state)
{
    struct fixture *f = *state;

    f->tier->ops->close(f->tier);
    temp_dir_remove(&f->dir);
    return 0;
}

static inline off_t
size_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

struct names {
    size_t n;
    uint64_t bytes; /* bytes of the last chunk */
    char last[KVT__KEY_TEXT_MAX + 1];
};

static inline void
take_name(void *ctx, const char *key, bool opaque, uint64_t stored_bytes,
          int64_t mtime_ns, bool expires)
{
    struct names *names = ctx;

    (void)opaque;
    (void)mtime_ns;
    (void)expires;
    names->n++;
    names->bytes = stored_bytes;
    snprintf(names->last, sizeof names->last, "%s", key);
}

/* Write files of one byte with these names into the tier's directory. */
static inline void
write_others(const struct fixture *f, const char *const *others, size_t n)
{
    char path[512];

    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir.path, others[i]);
        write_file(path, "x", 1);
    }
}

/* Put the fixture's chunk.  A listing must return this chunk, with the key `listed`, and no other
 * file. */
static inline void
expect_only_listed(struct fixture *f, const char *listed)
{
    struct names names = { 0 };

    assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_string_equal(names.last, listed);
}

#endif
