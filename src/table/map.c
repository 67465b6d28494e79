/* SPDX-License-Identifier: Apache-2.0
 *
 * The mapping: its parts, its header, and memory for more entries.  The file is sparse and
 * has its final size from the start; a table grows by allocating pages of the file, so a
 * full file system is an error and not a signal. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"
#include "table/private.h"

void
kvt__tb_set_parts(struct kvt__table *t, void *map, uint64_t max_entries, bool wide_hashes)
{
    struct tb_parts p = tb_parts(max_entries, wide_hashes);
    char *base = map;

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
}

void
kvt__tb_fill_header(struct tb_header *h, const struct kvt__table_params *params,
                    uint64_t max_entries, const uint64_t number[2])
{
    *h = (struct tb_header){ .version = TB_VERSION, .use = TB_IN_USE,
                             .max_entries = max_entries,
                             .wide_hashes = params->wide_hashes,
                             .of_memory = params->of_memory,
                             .free = TB_NONE, .n_heads = TB_MIN_HEADS };
    if (getrandom(&h->hash_key, sizeof h->hash_key, GRND_NONBLOCK) != sizeof h->hash_key)
        h->hash_key = (uint64_t)kvt__wall_ns();
    if (number)
        memcpy(h->number, number, sizeof h->number);
    memcpy(h->magic, TB_MAGIC, sizeof h->magic);
}

/* Allocate the pages of entries [from, to) of one part. */
static int
allocate(const struct kvt__table *t, const void *part, size_t size, uint64_t from,
         uint64_t to)
{
    off_t base = (off_t)((const char *)part - (const char *)t->header);

    if (t->map_fd < 0)
        return 0;
    return fallocate(t->map_fd, 0, base + (off_t)(from * size), (off_t)((to - from) * size))
        ? -errno : 0;
}

/* Call fn for each part that has a record for each entry. */
static int
each_part(const struct kvt__table *t,
          int (*fn)(const struct kvt__table *t, const void *part, size_t size,
                    uint64_t from, uint64_t to), uint64_t from, uint64_t to)
{
    int err = fn(t, t->heads, sizeof *t->heads, from, to);

    if (!err)
        err = fn(t, t->hot, sizeof *t->hot, from, to);
    if (!err)
        err = fn(t, t->cold, sizeof *t->cold, from, to);
    if (!err && t->wide)
        err = fn(t, t->wide, sizeof *t->wide, from, to);
    return err;
}

/* Map pages that have memory already, so that a transaction has no page fault. */
static int
populate(const struct kvt__table *t, const void *part, size_t size, uint64_t from,
         uint64_t to)
{
#ifdef MADV_POPULATE_WRITE
    size_t base = (size_t)((const char *)part - (const char *)t->header);
    size_t first = (base + (size_t)from * size) & ~(size_t)(TB_PAGE - 1);
    size_t end = tb_page_up(base + (size_t)to * size);

    (void)madvise((char *)t->header + first, end - first, MADV_POPULATE_WRITE);
#else
    (void)t, (void)part, (void)size, (void)from, (void)to;
#endif
    return 0;
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

int
kvt__tb_grow(struct kvt__table *t)
{
    struct tb_change c = { .table = t };
    uint32_t n = TB_LOAD(&t->header->n_made);
    uint64_t more = n + TB_STEP_ENTRIES < t->max_entries ? n + TB_STEP_ENTRIES
                                                         : t->max_entries;
    int err = n < more ? each_part(t, allocate, n, more) : -ENOSPC;

    if (err)
        return -ENOSPC;
    err = kvt__tb_lock(t, TB_LOCK_WAIT_NS);
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
