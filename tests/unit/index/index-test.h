/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the index share: a directory, handles, and entries of which
 * every field follows from the identity, so that a torn one shows. */
#ifndef KVT_INDEX_TEST_H
#define KVT_INDEX_TEST_H

#include "kvt-test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "index/table.h"

struct dir {
    char path[256];
    int fd;
};

static int n_warnings;

static inline void
count_warning(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    if (level <= KVT_LOG_WARN)
        n_warnings++;
}

static inline int
make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");
    struct dir *d = calloc(1, sizeof *d);

    if (!d)
        return -1;
    snprintf(d->path, sizeof d->path, "%s/kvt-index-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(d->path))
        return -1;
    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    n_warnings = 0;
    kvt_set_log(count_warning, NULL, KVT_LOG_DEBUG);
    *state = d;
    return d->fd < 0 ? -1 : 0;
}

static inline int
remove_dir(void **state)
{
    struct dir *d = *state;

    unlinkat(d->fd, "index", 0);
    unlinkat(d->fd, "index", AT_REMOVEDIR);
    unlinkat(d->fd, "index.new", 0);
    unlinkat(d->fd, "lock", 0);
    close(d->fd);
    rmdir(d->path);
    free(d);
    return 0;
}

#define INDEX_TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

static inline struct kvt__index *
open_with(const struct dir *d, uint64_t limit, bool writer)
{
    struct kvt__index_params p = { .dirfd = d ? d->fd : -1, .n_entries = 1024,
                                   .limit_bytes = limit, .writer = writer };
    struct kvt__index *ix;

    return kvt__index_open(&p, &ix) ? NULL : ix;
}

static inline struct kvt__index *
open_writer(const struct dir *d)
{
    return open_with(d, 0, true);
}

static inline uint64_t
mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Identity number i, whose groups in a table of 1024 are a and b. */
static inline struct kvt__id
id_in(uint64_t i, uint64_t a, uint64_t b)
{
    uint64_t w[2] = { mix(i) << 7 | a, mix(~i) << 7 | b };
    struct kvt__id id;

    memcpy(id.b, w, sizeof w);
    return id;
}

static inline struct kvt__id
id_of(uint64_t i)
{
    return id_in(i, mix(i) >> 57, mix(i + 1000000) >> 57);
}

static inline struct kvt__index_entry
entry_of(const struct kvt__id *id)
{
    uint64_t w[2];

    memcpy(w, id->b, sizeof w);
    uint64_t x = mix(w[0] ^ w[1]);
    return (struct kvt__index_entry){
        .id = *id,
        .hash = { { x }, x & 1 ? KVT__HASH_UNSIGNED : KVT__HASH_SIGNED },
        .bytes = 1 + (x >> 8 & 0xff),
        .space = (uint32_t)(x >> 16) % IX_N_SPACES,
        .path = (uint32_t)(x >> 32) & 127,
        .tokens = (uint32_t)(x >> 40),
        .flags = x >> 5 & 1 ? KVT__INDEX_UNREAD : 0,
    };
}

static inline bool
same_hash(const struct kvt__hash *a, const struct kvt__hash *b)
{
    return !memcmp(a->bits, b->bits, sizeof a->bits) && a->form == b->form;
}

static inline bool
entry_is_whole(const struct kvt__index_entry *e)
{
    struct kvt__index_entry want = entry_of(&e->id);

    return same_hash(&e->hash, &want.hash)
           && e->bytes == want.bytes && e->space == want.space
           && e->path == want.path && e->tokens == want.tokens
           && e->flags == want.flags;
}

/* Reserve and claim.  0 or the error, the reservation given back. */
static inline int
claim(struct kvt__index *ix, const struct kvt__id *id,
      struct kvt__index_claim *c)
{
    struct kvt__index_entry e = entry_of(id);
    int rc = kvt__index_reserve(ix, e.bytes);

    if (rc)
        return rc;
    rc = kvt__index_claim(ix, &e, NULL, c);
    if (rc)
        kvt__index_unreserve(ix, e.bytes);
    return rc;
}

static inline int
put(struct kvt__index *ix, const struct kvt__id *id)
{
    struct kvt__index_claim c;
    int rc = claim(ix, id, &c);

    if (!rc)
        kvt__index_publish(ix, &c);
    return rc;
}

static inline int
drop(struct kvt__index *ix, const struct kvt__id *id)
{
    struct kvt__index_claim c;
    int rc = kvt__index_evict(ix, id, false, NULL, &c);

    if (!rc)
        kvt__index_removed(ix, &c);
    return rc;
}

/* At rest: every ready entry whole and found, the numbers as they add up. */
struct audit {
    struct kvt__index *ix;
    uint64_t n, n_unread, bytes;
    bool bad;
};

static inline bool
audit_entry(void *ctx, const struct kvt__index_entry *e)
{
    struct audit *a = ctx;
    struct kvt__index_entry found;

    a->n++;
    a->n_unread += e->flags & KVT__INDEX_UNREAD;
    a->bytes += e->bytes;
    if (!entry_is_whole(e) || !kvt__index_find(a->ix, &e->id, &found))
        a->bad = true;
    return true;
}

struct copies {
    const struct kvt__id *id;
    size_t n;
};

static inline bool
copies_count(void *ctx, const struct kvt__index_entry *e)
{
    struct copies *c = ctx;

    c->n += kvt__id_equal(&e->id, c->id);
    return true;
}

/* How often an identity is ready. */
static inline size_t
copies(const struct kvt__index *ix, const struct kvt__id *id)
{
    struct copies c = { .id = id };

    kvt__index_each(ix, copies_count, &c);
    return c.n;
}

static inline bool
adds_up(struct kvt__index *ix, uint64_t other_bytes)
{
    struct audit a = { .ix = ix };
    struct kvt__index_totals t;

    kvt__index_each(ix, audit_entry, &a);
    kvt__index_get_totals(ix, &t);
    if (a.bad || t.n_ready != a.n || t.n_unread != a.n_unread
        || t.used_bytes != a.bytes + other_bytes)
        fprintf(stderr, "totals: ready %llu/%llu unread %llu/%llu "
                "used %llu/%llu%s\n",
                (unsigned long long)t.n_ready, (unsigned long long)a.n,
                (unsigned long long)t.n_unread, (unsigned long long)a.n_unread,
                (unsigned long long)t.used_bytes,
                (unsigned long long)(a.bytes + other_bytes),
                a.bad ? " bad entry" : "");
    return !a.bad && t.n_ready == a.n && t.n_unread == a.n_unread
           && t.used_bytes == a.bytes + other_bytes;
}

/* Size of the file of a table of 1024 entries. */
#define FILE_BYTES (sizeof(struct ix_map) + 1024 * sizeof(struct ix_entry))

static inline void
poke(const struct dir *d, off_t at, const void *bytes, size_t n)
{
    int fd = openat(d->fd, "index", O_RDWR);

    assert_int_equal(pwrite(fd, bytes, n, at), n);
    close(fd);
}

static inline ino_t
inode(const struct dir *d)
{
    struct stat st;

    assert_int_equal(fstatat(d->fd, "index", &st, 0), 0);
    return st.st_ino;
}

static inline void
put_one_and_close(const struct dir *d)
{
    struct kvt__index *ix = open_writer(d);
    struct kvt__id id = id_of(1);

    assert_int_equal(put(ix, &id), 0);
    kvt__index_set_scanned(ix, true);
    kvt__index_close(ix);
}

#endif
