/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the host.  Pages are allocated before the first access, so a full file system
 * is an error and not a signal.  A process killed between an allocation and the new size
 * leaves pages that the next growth finds allocated. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "mem/available.h"
#include "mem/claim.h"
#include "share/private.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define RETRY_NS KVT__NS_PER_S

static int
allocate(int fd, uint64_t at, uint64_t bytes)
{
    int err;

    do
        err = posix_fallocate(fd, (off_t)at, (off_t)bytes);
    while (err == EINTR);
    return -err;
}

/* Raise a number that only grows. */
static void
raise_to(uint32_t *at, uint32_t n)
{
    uint32_t old = SH_LOAD(at);

    while (old < n && !SH_SWAP(at, &old, n))
        ;
}

int
kvt__sh_grow_entries(struct kvt__share *s, uint32_t entry)
{
    uint32_t n = SH_LOAD(&s->header->n_slot_of);
    uint64_t more = kvt__round_up((uint64_t)entry + 1, SH_STEP_ENTRIES);

    if (entry < n)
        return 0;
    more = more < s->max_entries ? more : s->max_entries;
    if (entry >= more || allocate(s->records_fd, s->parts.slot_of + n * sizeof *s->slot_of,
                                  (more - n) * sizeof *s->slot_of))
        return kvt__fail(ENOSPC, "%s: no memory for the records of chunks", s->key);
    raise_to(&s->header->n_slot_of, (uint32_t)more);
    return 0;
}

int
kvt__sh_allocate_slots(struct kvt__share *s, uint32_t segment, uint32_t pages)
{
    uint64_t n = sh_n_slots(pages, s->segment_bytes);
    uint64_t first = (uint64_t)segment * s->segment_slots;

    if (!allocate(s->records_fd, s->parts.slots + first * sizeof *s->slots,
                  n * sizeof *s->slots))
        return 0;
    return kvt__fail(ENOSPC, "%s: no memory for the records of slots", s->key);
}

int
kvt__sh_new_segment(struct kvt__share *s, uint32_t pages)
{
    for (uint32_t i = 0; i < s->n_segments; i++) {
        uint64_t word = SH_LOAD(&s->segments[i].word);

        if (sh_pages(word) || word & SH_DRAINING)
            continue;
        int err = kvt__sh_allocate_slots(s, i, pages);
        if (err)
            return err;
        if (SH_SWAP(&s->segments[i].word, &word, sh_segment_word(word, pages)))
            return (int)i;
    }
    return -ENOSPC;
}

/* ------------------------------------------------------------------- limits */

/* PyTorch and NCCL need the tmpfs too. */
static int
check_tmpfs(const struct kvt__share *s, const struct statfs *fs, uint64_t bytes)
{
    uint64_t size = (uint64_t)fs->f_blocks * (uint64_t)fs->f_bsize;
    uint64_t left = (uint64_t)fs->f_bavail * (uint64_t)fs->f_bsize;
    uint64_t keep = size / 10 > UINT64_C(1) << 30 ? size / 10 : UINT64_C(1) << 30;
    keep = s->keep_bytes ? s->keep_bytes : keep;
    if (left >= keep && left - keep >= bytes)
        return 0;
    return kvt__fail(ENOSPC, "%s: %" PRIu64 " MiB of shared memory wanted, %" PRIu64 " MiB of "
                     "%s free, %" PRIu64 " MiB of them stay free; set it lower, or the size "
                     "of the tmpfs higher.", s->key, bytes >> 20, left >> 20, s->dir,
                     keep >> 20);
}

int
kvt__sh_check_room(const struct kvt__share *s, uint64_t bytes)
{
    struct kvt__mem_claim claim;
    struct statfs fs;
    int err = fstatfs(s->payload_dir_fd, &fs)
        ? kvt__fail(errno, "%s: look at the file system", s->key) : 0;

    if (!err && fs.f_type == HUGETLBFS_MAGIC)
        return bytes <= kvt__huge_free_bytes() ? 0
             : kvt__fail(ENOMEM, "%s: %" PRIu64 " MiB of huge pages wanted, %" PRIu64 " MiB "
                         "free; set it lower, or vm.nr_hugepages higher.", s->key,
                         bytes >> 20, kvt__huge_free_bytes() >> 20);
    if (!err && fs.f_type == TMPFS_MAGIC && fs.f_blocks)
        err = check_tmpfs(s, &fs, bytes);
    if (!err)
        err = kvt__mem_claim(s->dir, s->key, bytes, &claim);
    if (!err)
        kvt__mem_claim_end(&claim);
    return err;
}

/* Return true if a mount has huge pages by its option huge=. */
static bool
mount_has_huge(const char *line, dev_t device)
{
    unsigned major, minor;
    const char *at = strstr(line, "huge=");

    return sscanf(line, "%*d %*d %u:%u", &major, &minor) == 2 &&
           makedev(major, minor) == device && at && strncmp(at, "huge=never", 10) != 0;
}

static bool
has_huge_pages(dev_t device)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    bool found = false;
    char line[4096];

    while (f && !found && fgets(line, sizeof line, f))
        found = mount_has_huge(line, device);
    if (f)
        fclose(f);
    return found;
}

int
kvt__sh_check_dirs(const struct kvt__share *s)
{
    struct statfs fs, payload;
    struct stat st;

    if (fstatfs(s->dir_fd, &fs) || fstatfs(s->payload_dir_fd, &payload) ||
        fstat(s->payload_dir_fd, &st))
        return kvt__fail(errno, "%s: look at the file system", s->key);
    bool is_huge = payload.f_type == HUGETLBFS_MAGIC;
    if (fs.f_type != TMPFS_MAGIC || (payload.f_type != TMPFS_MAGIC && !is_huge))
        return kvt__fail(ENOTSUP, "%s: %s is no tmpfs.", s->key, s->dir);
    if (s->huge_pages && !is_huge && !has_huge_pages(st.st_dev))
        return kvt__fail(ENOTSUP, "%s: the directory of shared memory has no huge pages; use "
                         "a hugetlbfs, or mount the tmpfs with huge=.", s->key);
    return 0;
}

/* ------------------------------------------------------------------- payload */

/* Map pages that have memory already. */
static void
populate(const struct kvt__share *s, uint32_t segment, uint64_t from, uint64_t to)
{
    if (from < to)
        (void)madvise(s->payload + segment * s->segment_bytes + from, to - from,
                      MADV_POPULATE_WRITE);
}

static int
extend(struct kvt__share *s, uint32_t segment)
{
    struct sh_segment *g = &s->segments[segment];
    uint64_t made = SH_LOAD(&g->made_bytes), slot = sh_pages(SH_LOAD(&g->word)) * SH_PAGE;
    uint64_t step = slot > SH_STEP_BYTES ? slot : SH_STEP_BYTES;

    if (made >= s->segment_bytes) /* another thread was first */
        return 0;
    if (s->huge_pages)
        step = kvt__round_up(step, kvt__huge_page_bytes());
    step = step < s->segment_bytes - made ? step : s->segment_bytes - made;
    int err = kvt__sh_check_room(s, step);
    if (err)
        return err;
    err = allocate(s->payload_fd, segment * s->segment_bytes + made, step);
    if (err)
        return kvt__fail(-err, "%s: allocate shared memory", s->key);
    populate(s, segment, made, made + step);
    (void)SH_SWAP(&g->made_bytes, &made, made + step);
    SH_STORE(&g->has_free, 1);
    return 0;
}

int
kvt__sh_extend(struct kvt__share *s, uint32_t segment)
{
    pthread_mutex_lock(&s->growth);
    int err = kvt__now_ns() < s->retry_ns ? -ENOSPC : extend(s, segment);
    if (err && s->retry_ns < kvt__now_ns()) {
        KVT__LOG_ONCE(KVT_LOG_WARN, "%s: shared memory does not grow to its limit: %s", s->key,
                      kvt__why());
        s->retry_ns = kvt__now_ns() + RETRY_NS;
    }
    pthread_mutex_unlock(&s->growth);
    return err;
}

void
kvt__sh_give_back(struct kvt__share *s, uint32_t segment)
{
    struct sh_segment *g = &s->segments[segment];
    uint64_t word = SH_LOAD(&g->word);

    SH_STORE(&g->made_bytes, 0);
    (void)fallocate(s->payload_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)(segment * s->segment_bytes), (off_t)s->segment_bytes);
    SH_STORE(&g->word, sh_segment_word(word, 0));
}

void
kvt__share_segments(struct kvt__share *s, bool (*fn)(void *ctx, void *at, uint64_t bytes),
                    void *ctx)
{
    if (!sh_usable(s))
        return;
    pthread_mutex_lock(&s->growth);
    s->has_reported = true;
    pthread_mutex_unlock(&s->growth);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        if (s->reported[i] || SH_LOAD(&s->segments[i].made_bytes) != s->segment_bytes)
            continue;
        populate(s, i, 0, s->segment_bytes);
        s->reported[i] = fn(ctx, s->payload + i * s->segment_bytes, s->segment_bytes);
    }
}
