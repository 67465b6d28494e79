/* SPDX-License-Identifier: Apache-2.0
 *
 * The mapping of a table: parts, header, and memory for more entries.  The file is sparse and
 * has the final size from the start.  A table grows by fallocate() of pages, so a full file
 * system is an error and not a SIGBUS. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "table/private.h"

uint64_t
kvt__tb_max_entries(const struct kvt__table_params *params)
{
    uint64_t n = params->max_entries ? params->max_entries : TB_MAX_ENTRIES;

    n = n > TB_MIN_HEADS ? n : TB_MIN_HEADS;
    return n < TB_MAX_ENTRIES ? n : TB_MAX_ENTRIES;
}

void
kvt__tb_set_parts(struct kvt__table *t, void *map, uint64_t max_entries, bool wide_hashes,
                  uint64_t area_bytes)
{
    struct tb_parts p = tb_parts(max_entries, wide_hashes);
    char *base = map;

    assert(max_entries >= TB_MIN_HEADS && max_entries <= TB_MAX_ENTRIES);
    t->header = map;
    t->owners = (struct tb_owner *)(base + p.owners);
    t->claims = (struct tb_claim *)(base + p.claims);
    t->spaces = (struct tb_space *)(base + p.spaces);
    t->heads = (uint32_t *)(base + p.heads);
    t->hot = (struct tb_hot *)(base + p.hot);
    t->cold = (struct tb_cold *)(base + p.cold);
    t->wide = wide_hashes ? (struct tb_wide *)(base + p.wide) : NULL;
    t->map_bytes = p.end;
    t->max_entries = max_entries;
    t->area_bytes = area_bytes;
    t->area = area_bytes ? base + tb_area_at(p.end) : NULL;
}

int
kvt__tb_map(struct kvt__table *t, uint64_t max_entries, bool wide_hashes, uint64_t area_bytes)
{
    size_t bytes = tb_file_bytes(tb_parts(max_entries, wide_hashes).end, area_bytes);
    int flags = t->map_fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

    assert(!t->header);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, t->map_fd, 0);

    if (p == MAP_FAILED)
        return kvt__fail(errno, "index: map %zu bytes", bytes);
    madvise(p, bytes, MADV_DONTFORK);
    kvt__tb_set_parts(t, p, max_entries, wide_hashes, area_bytes);
    if (t->area)
        madvise(t->area, area_bytes, MADV_HUGEPAGE); /* a hint only */
    return 0;
}

void
kvt__tb_unmap(struct kvt__table *t)
{
    if (t->header)
        munmap(t->header, tb_file_bytes(t->map_bytes, t->area_bytes));
    kvt__lock_file_close(t->map_fd);
    t->header = NULL;
    t->map_fd = -1;
}

int
kvt__tb_init(struct kvt__table *t, const struct kvt__table_params *params,
             const uint64_t number[2], const char *store)
{
    struct tb_header *h = t->header;
    int err = t->area && params->make_area ? params->make_area(params->area_ctx, t) : 0;

    if (err)
        return err;
    for (uint32_t i = 0; i < TB_MIN_HEADS; i++)
        t->heads[i] = TB_END | i;
    *h = (struct tb_header){ .version = TB_VERSION, .use = TB_IN_USE,
                             .max_entries = t->max_entries,
                             .wide_hashes = params->wide_hashes,
                             .of_memory = params->of_memory,
                             .number = { number[0], number[1] },
                             .area_bytes = params->area_bytes,
                             .area_version = params->area_version,
                             .free = TB_NONE, .n_heads = TB_MIN_HEADS };
    if (getrandom(&h->hash_key, sizeof h->hash_key, GRND_NONBLOCK) != sizeof h->hash_key)
        h->hash_key = (uint64_t)kvt__wall_ns();
    if (strlen(store) < sizeof h->dir)
        strcpy(h->dir, store);
    memcpy(h->magic, TB_MAGIC, sizeof h->magic);
    return 0;
}

#define PIECE_BYTES ((off_t)1 << 20) /* a signal makes a tmpfs undo the whole call */

/* posix_fallocate() is unsuitable: if the file system does not support the call, the C library
 * writes zeros, which overwrite concurrent writes of other processes into the mapping. */
int
kvt__tb_allocate_bytes(const struct kvt__table *t, off_t at, off_t bytes)
{
    off_t end = at + bytes;

    while (t->map_fd >= 0 && at < end) {
        off_t piece = end - at < PIECE_BYTES ? end - at : PIECE_BYTES;

        if (!fallocate(t->map_fd, 0, at, piece))
            at += piece;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

/* Map pages that have memory into this process, so that a transaction has no page fault.  Always
 * returns 0, for each_part(). */
static int
populate(const struct kvt__table *t, off_t at, off_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    size_t first = (size_t)at & ~(size_t)(TB_PAGE - 1);

    (void)madvise((char *)t->header + first, tb_page_up((size_t)(at + bytes)) - first,
                  MADV_POPULATE_WRITE);
#else
    (void)t, (void)at, (void)bytes;
#endif
    return 0;
}

/* Call fn for the bytes of the entries [from, to) in each part with a record for each entry,
 * until fn returns an error.  Returns the error, or 0. */
static int
each_part(const struct kvt__table *t,
          int (*fn)(const struct kvt__table *t, off_t at, off_t bytes), uint64_t from,
          uint64_t to)
{
    const struct {
        const void *at;
        size_t size;
    } parts[] = { { t->heads, sizeof *t->heads }, { t->hot, sizeof *t->hot },
                  { t->cold, sizeof *t->cold }, { t->wide, sizeof *t->wide } };
    int err = 0;

    for (int i = 0; i < 4 && parts[i].at && !err; i++)
        err = fn(t, (const char *)parts[i].at - (const char *)t->header +
                    (off_t)(from * parts[i].size), (off_t)((to - from) * parts[i].size));
    return err;
}

void
kvt__tb_populate(struct kvt__table *t)
{
    uint32_t n = TB_LOAD(&t->header->n_made);

    n = n < t->max_entries ? n : (uint32_t)t->max_entries;
    if (t->map_fd < 0 || n <= t->n_mapped)
        return;
    (void)each_part(t, populate, t->n_mapped, n);
    t->n_mapped = n;
}

/* Return true if the file may grow by these bytes.  PyTorch and NCCL need /dev/shm too, so a
 * table takes at most half of the memory that would be free without the table's file.  The rule
 * applies to a tmpfs only, and not to the area.  own: present bytes of the file without the
 * area. */
static bool
has_room(const struct kvt__table *t, uint64_t own, uint64_t bytes)
{
    struct statfs fs;
    struct stat st;

    if (t->map_fd < 0 || fstatfs(t->map_fd, &fs) || fstat(t->map_fd, &st) ||
        fs.f_type != TMPFS_MAGIC || !fs.f_blocks)
        return true;
    uint64_t all = (uint64_t)st.st_blocks * 512;
    uint64_t left = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    return own + bytes <= (all + left) / 2;
}

static uint64_t
entry_bytes(const struct kvt__table *t)
{
    return sizeof *t->heads + sizeof *t->hot + sizeof *t->cold +
           (t->wide ? sizeof *t->wide : 0);
}

/* Return the bytes of a table without entries. */
static size_t
base_bytes(const struct kvt__table *t)
{
    return (size_t)((char *)t->heads - (char *)t->header) + TB_MIN_HEADS * sizeof *t->heads;
}

int
kvt__tb_allocate(struct kvt__table *t, uint64_t n_made)
{
    size_t base = base_bytes(t);
    struct stat st;

    if (fstat(t->map_fd, &st))
        return kvt__fail(errno, "index: read the size of the table's file");
    uint64_t own = (uint64_t)st.st_blocks * 512;
    if (own < base && !has_room(t, own, base))
        return kvt__fail(ENOSPC, "index: the table needs %zu bytes, and a table may use at most "
                         "half of the free memory", base);
    int err = kvt__tb_allocate_bytes(t, 0, (off_t)base);
    if (!err && n_made)
        err = each_part(t, kvt__tb_allocate_bytes, 0, n_made);
    if (err)
        return kvt__fail(-err, "index: allocate the table");
    (void)populate(t, 0, (off_t)base);
    return 0;
}

int
kvt__tb_grow(struct kvt__table *t, uint32_t n)
{
    struct tb_change c = { .table = t };
    uint64_t more = n + TB_STEP_ENTRIES < t->max_entries ? n + TB_STEP_ENTRIES
                                                         : t->max_entries;

    assert(tb_is_writer(t) && pthread_mutex_trylock(&t->mutex) == EBUSY);
    if (TB_LOAD(&t->header->n_made) != n) /* another thread has grown the table */
        return 0;
    if (n >= more)
        return -EFBIG;
    if (!has_room(t, base_bytes(t) + n * entry_bytes(t), (more - n) * entry_bytes(t)) ||
        each_part(t, kvt__tb_allocate_bytes, n, more))
        return -ENOSPC;
    int err = kvt__tb_lock(t, t->lock_wait_ns);
    if (err)
        return err;
    if (TB_LOAD(&t->header->n_made) < more) {
        tb_set32(&c, &t->header->n_made, (uint32_t)more);
        kvt__tb_commit(&c);
    }
    kvt__tb_unlock(t);
    kvt__tb_populate(t);
    return 0;
}

void
kvt__tb_warn_full(struct kvt__table *t)
{
    char link[64], file[TB_DIR_MAX] = "";
    struct statfs fs;

    if (__atomic_exchange_n(&t->warned_full, true, __ATOMIC_RELAXED))
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", t->map_fd);
    if (readlink(link, file, sizeof file - 1) < 0)
        file[0] = '\0';
    bool in_tmpfs = !fstatfs(t->map_fd, &fs) && fs.f_type == TMPFS_MAGIC;
    kvt__log(KVT_LOG_WARN, "the index %s has room for %u chunks, so older chunks are evicted "
             "before the limit is reached: %s.", file, TB_LOAD(&t->header->n_made),
             in_tmpfs ? "an index uses at most half of the free memory of a tmpfs. Enlarge the "
                        "tmpfs (mount -o remount,size=SIZE /dev/shm; docker run --shm-size)"
                      : "the file system of the index is full");
}
