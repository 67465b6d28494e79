/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: bytes of the index's file.  An input is a list of patches of a
 * good file, { place: 3 bytes, n: 1 byte, n bytes }; those with n >= 128 are
 * made while handles have it open, with n - 128 bytes.  A patch at the last
 * place sets the file's size instead, before it is opened. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "index/table.h"

#define N_ENTRIES 1024
#define FILE_BYTES (sizeof(struct ix_map) + \
                    N_ENTRIES * (sizeof(struct ix_entry) + sizeof(struct ix_hash_rest)))
#define SIZE_AT 0xffffff

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/tmp/kvt-fuzz-index-XXXXXX";
static int dirfd_ = -1;
static uint8_t good[FILE_BYTES];

static void
clean_up(void)
{
    unlinkat(dirfd_, "index", 0);
    unlinkat(dirfd_, "lock", 0);
    rmdir(path);
}

static struct kvt__index *
open_index(bool writer)
{
    struct kvt__index_params p = { .dirfd = dirfd_, .n_entries = N_ENTRIES,
                                   .limit_bytes = 1000, .writer = writer,
                                   .wide_hashes = true };
    struct kvt__index *ix;

    return kvt__index_open(&p, &ix) ? NULL : ix;
}

static struct kvt__id
id_of(unsigned i)
{
    struct kvt__id id = { { (uint8_t)(i & 1) } };

    id.b[8] = (uint8_t)(i & 3);
    id.b[15] = (uint8_t)i;
    return id;
}

/* A file with entries in all states, and its bytes. */
static void
begin(void)
{
    if (!mkdtemp(path))
        abort();
    dirfd_ = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    atexit(clean_up);
    struct kvt__index *ix = open_index(true);
    kvt__ix_space(ix, "model@1@0@@bfloat16");
    for (unsigned i = 0; i < 12; i++) {
        struct kvt__index_entry e = { .id = id_of(i), .bytes = i,
                                      .hash.form = i & 1 ? KVT__HASH_WIDE : 0 };
        struct kvt__index_claim c;
        kvt__index_reserve(ix, e.bytes);
        kvt__index_claim(ix, &e, NULL, &c);
        if (i % 4)
            kvt__index_publish(ix, &c);
        if (i % 4 == 3)
            kvt__index_evict(ix, &e.id, false, NULL, &c);
    }
    int fd = openat(dirfd_, "index", O_RDONLY);
    if (read(fd, good, sizeof good) != sizeof good)
        abort();
    close(fd);
    kvt__index_close(ix);
}

static void
patch(int fd, const uint8_t *data, size_t size, bool live)
{
    while (size >= 4) {
        size_t at = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16;
        size_t n = data[3] & 127;
        bool is_live = data[3] >> 7;
        if (n > size - 4)
            n = size - 4;
        if (at == SIZE_AT && !live && !is_live) {
            if (ftruncate(fd, (off_t)(FILE_BYTES + n) - 64))
                abort();
        } else if (is_live == live && at < FILE_BYTES) {
            size_t room = FILE_BYTES - at;
            if (pwrite(fd, data + 4, n < room ? n : room, (off_t)at) < 0)
                abort();
        }
        data += 4 + n;
        size -= 4 + n;
    }
}

/* Without the file's id in `lock` every file would be replaced. */
static void
pair_with_lock(int fd)
{
    uint64_t id[2] = { 0 };
    int lock_fd = openat(dirfd_, "lock", O_RDWR | O_CLOEXEC);

    if (lock_fd < 0 || pread(fd, id, sizeof id, offsetof(struct ix_header, file_id)) < 0 ||
        pwrite(lock_fd, id, sizeof id, 8192) != sizeof id)
        abort();
    close(lock_fd);
}

static bool
check(void *ctx, const struct kvt__index_entry *e)
{
    (void)ctx;
    if (!ix_space_in_range(e->space) || e->path >= IX_MAX_PATHS
        || e->bytes >= IX_MAX_BYTES)
        abort();
    return true;
}

static void
use(struct kvt__index *ix)
{
    struct kvt__index_entry out[4];
    struct kvt__index_totals t;
    struct kvt__index_claim c;
    char text[512];

    for (unsigned i = 0; i < 20; i++) {
        struct kvt__index_entry e = { .id = id_of(i), .bytes = 1,
                                      .hash.form = i & 1 ? KVT__HASH_WIDE : 0 };
        kvt__index_find(ix, &e.id, out);
        kvt__index_lease(ix, &e.id, kvt__now_ns() + 1, out);
        kvt__index_unlease(ix, &e.id);
        if (!kvt__index_reserve(ix, 1) && !kvt__index_claim(ix, &e, NULL, &c))
            kvt__index_publish(ix, &c);
        if (!kvt__index_evict(ix, &e.id, i & 1, out, &c))
            kvt__index_removed(ix, &c);
        kvt__index_space_text(ix, i, text, sizeof text);
    }
    kvt__ix_space(ix, "another");
    kvt__index_first(ix, NULL, out, 4);
    kvt__index_each(ix, check, NULL);
    kvt__index_recover(ix);
    kvt__index_get_totals(ix, &t);
    if (t.n_ready > t.n_entries || t.n_unread > t.n_ready)
        abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (dirfd_ < 0)
        begin();
    unlinkat(dirfd_, "index", 0);
    int fd = openat(dirfd_, "index", O_RDWR | O_CREAT, 0600);
    if (pwrite(fd, good, sizeof good, 0) != sizeof good)
        abort();
    patch(fd, data, size, false);
    pair_with_lock(fd);

    struct kvt__index *a = open_index(true), *r = open_index(false);
    if (!kvt__index_is_shared(a) || !kvt__index_is_shared(r))
        abort();
    patch(fd, data, size, true);
    use(a);
    use(r);
    kvt__index_close(a);
    kvt__index_close(r);
    close(fd);
    return 0;
}
