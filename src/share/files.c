/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a memory, in the user's directory of a tmpfs that other users cannot enter:
 * `lock` and `table` of the table, `users` for locks, and two files named after the number
 * of the table: the records, and the payload, which may be in another file system.  A
 * process killed while it makes the files leaves records without the magic number, which
 * the next opener makes again. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/private-dir.h"
#include "mem/available.h"
#include "share/private.h"

#define NAME_MAX_BYTES 64

static void
name_of(const struct kvt__share *s, const char *what, char out[NAME_MAX_BYTES])
{
    uint64_t number[2];

    kvt__table_number(s->table, number);
    snprintf(out, NAME_MAX_BYTES, "%s-%016" PRIx64 "%016" PRIx64, what, number[0], number[1]);
}

int
kvt__sh_lock(const struct kvt__share *s, short type, off_t byte)
{
    struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };

    if (!fcntl(s->lock_fd, F_OFD_SETLK, &fl))
        return 0;
    return errno == EACCES || errno == EINTR ? -EAGAIN : -errno;
}

/* Open the directory `share` in the user's directory. */
static int
open_dir(const char *parent, bool makes)
{
    int base = kvt__private_dir_open(parent);

    if (base < 0)
        return base;
    if (makes && mkdirat(base, "share", 0700) && errno != EEXIST) {
        int err = kvt__fail(errno, "shared memory: make a directory in %s", parent);

        close(base);
        return err;
    }
    int fd = openat(base, "share", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int err = fd < 0 ? errno : 0;
    close(base);
    return err ? kvt__fail(err, "shared memory: open its directory in %s", parent) : fd;
}

int
kvt__sh_open_dirs(struct kvt__share *s, const struct kvt__share_params *params)
{
    s->dir_fd = open_dir(s->dir, params->writer);
    if (s->dir_fd < 0)
        return s->dir_fd;
    s->payload_dir_fd = open_dir(params->payload_dir ? params->payload_dir : s->dir,
                                 params->writer);
    if (s->payload_dir_fd < 0)
        return s->payload_dir_fd;
    s->lock_fd = kvt__lock_file_open(s->dir_fd, "users",
                                     O_RDWR | (params->writer ? O_CREAT : 0), 0600);
    return s->lock_fd < 0 ? kvt__fail(-s->lock_fd, "shared memory: open its lock file") : 0;
}

/* ----------------------------------------------------------------- geometry */

static struct sh_parts
parts_of(const struct kvt__share *s)
{
    struct sh_parts p = { .segments = SH_PAGE };

    p.pins = p.segments + SH_N_SEGMENTS * sizeof(struct sh_segment);
    p.slot_of = p.pins + kvt__round_up(KVT__TABLE_OWNERS * sizeof(struct sh_pins), SH_PAGE);
    p.slots = p.slot_of + kvt__round_up(s->max_entries * sizeof(uint32_t), SH_PAGE);
    p.end = p.slots + (uint64_t)s->n_segments * s->segment_slots * sizeof(struct sh_slot);
    return p;
}

/* Set the geometry of the handle.  False: the numbers are impossible. */
static bool
set_geometry(struct kvt__share *s, const struct sh_header *h)
{
    s->limit_bytes = h->limit_bytes;
    s->segment_bytes = h->segment_bytes;
    s->n_segments = h->n_segments;
    s->max_entries = h->max_entries;
    if (!s->segment_bytes || s->segment_bytes % SH_PAGE || !s->n_segments ||
        s->n_segments > SH_N_SEGMENTS || s->limit_bytes > SH_MAX_LIMIT ||
        s->segment_bytes > s->limit_bytes / s->n_segments ||
        s->segment_bytes / SH_PAGE > 0xffffff || s->max_entries > UINT64_C(1) << 25)
        return false;
    s->segment_slots = (uint32_t)(s->segment_bytes / SH_PAGE);
    s->parts = parts_of(s);
    return true;
}

/* Segments are a multiple of the usual slot, so that none has a rest.  A small limit has
 * small segments. */
static int
choose_geometry(struct kvt__share *s, const struct kvt__share_params *params)
{
    uint64_t limit = params->limit_bytes, bytes = limit / SH_N_SEGMENTS;
    uint64_t slot = kvt__round_up(params->chunk_bytes, SH_PAGE);
    uint64_t least = limit / 8 < SH_SEGMENT_BYTES ? limit / 8 : SH_SEGMENT_BYTES;
    uint64_t grain = s->huge_pages ? kvt__huge_page_bytes() : slot ? slot : SH_PAGE;

    bytes = bytes > least ? bytes : least;
    bytes = bytes > slot ? bytes : slot;
    bytes = (bytes + grain - 1) / grain * grain;
    if (limit > SH_MAX_LIMIT || !bytes || bytes > limit)
        return kvt__fail(EINVAL, "%s: %" PRIu64 " bytes of shared memory are %s.", s->key,
                         limit, limit > SH_MAX_LIMIT ? "too many" : "less than a chunk");
    struct sh_header h = { .limit_bytes = limit, .segment_bytes = bytes };
    uint64_t n = limit / bytes, entries = limit / SH_PAGE;
    h.n_segments = (uint32_t)(n < SH_N_SEGMENTS ? n : SH_N_SEGMENTS);
    h.max_entries = entries < 1024 ? 1024
                  : entries < UINT64_C(1) << 25 ? entries : UINT64_C(1) << 25;
    return set_geometry(s, &h) ? 0
         : kvt__fail(EINVAL, "%s: the size of shared memory is impossible", s->key);
}

/* ------------------------------------------------------------------ mappings */

static void *
map_file(int fd, uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_DONTFORK);
    return p;
}

static int
map_both(struct kvt__share *s)
{
    char *records = map_file(s->records_fd, s->parts.end);
    uint64_t bytes = s->n_segments * s->segment_bytes;

    if (!records)
        return kvt__fail(errno, "%s: map the records of shared memory", s->key);
    s->header = (struct sh_header *)records;
    s->segments = (struct sh_segment *)(records + s->parts.segments);
    s->pins = (struct sh_pins *)(records + s->parts.pins);
    s->slot_of = (uint32_t *)(records + s->parts.slot_of);
    s->slots = (struct sh_slot *)(records + s->parts.slots);
    s->payload = map_file(s->payload_fd, bytes);
    if (!s->payload)
        return kvt__fail(errno, "%s: map %" PRIu64 " MiB of shared memory", s->key,
                         bytes >> 20);
    madvise(s->payload, bytes, MADV_HUGEPAGE); /* a hint only */
    return 0;
}

void
kvt__sh_unmap(struct kvt__share *s)
{
    if (s->payload)
        munmap(s->payload, s->n_segments * s->segment_bytes);
    if (s->header)
        munmap(s->header, s->parts.end);
    kvt__lock_file_close(s->records_fd);
    kvt__lock_file_close(s->payload_fd);
    s->header = NULL;
    s->payload = NULL;
    s->records_fd = s->payload_fd = -1;
}

/* Open a file of exactly this size.  -ENOENT: there is no such file. */
static int
open_sized(int dir, const char *name, uint64_t bytes)
{
    int fd = kvt__lock_file_open(dir, name, O_RDWR, 0);
    struct stat st;

    if (fd < 0)
        return fd == -ENOENT ? fd : kvt__fail(-fd, "shared memory: open a file");
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && (!bytes || (uint64_t)st.st_size == bytes))
        return fd;
    kvt__lock_file_close(fd);
    return -ENOENT;
}

static int
map_existing(struct kvt__share *s)
{
    char name[NAME_MAX_BYTES];
    struct sh_header h;
    struct stat st;

    name_of(s, "records", name);
    s->records_fd = open_sized(s->dir_fd, name, 0);
    if (s->records_fd < 0)
        return s->records_fd;
    if (fstat(s->records_fd, &st) || pread(s->records_fd, &h, sizeof h, 0) != sizeof h ||
        memcmp(h.magic, SH_MAGIC, sizeof h.magic) || h.version != SH_VERSION ||
        !set_geometry(s, &h) || (uint64_t)st.st_size != s->parts.end)
        return -ENOENT;
    name_of(s, "payload", name);
    s->payload_fd = open_sized(s->payload_dir_fd, name, s->n_segments * s->segment_bytes);
    if (s->payload_fd < 0)
        return s->payload_fd == -ENOENT ? -EXDEV : s->payload_fd;
    return map_both(s);
}

int
kvt__sh_map(struct kvt__share *s)
{
    int err = map_existing(s);

    if (err)
        kvt__sh_unmap(s);
    return err;
}

/* ftruncate() beyond the limit kills the process. */
static int
make_file(const struct kvt__share *s, int dir, const char *what, uint64_t bytes)
{
    struct rlimit limit;
    char name[NAME_MAX_BYTES];

    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return kvt__fail(EFBIG, "%s: RLIMIT_FSIZE is below the %" PRIu64 " MiB of shared "
                         "memory", s->key, bytes >> 20);
    name_of(s, what, name);
    int fd = kvt__lock_file_open(dir, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return kvt__fail(-fd, "%s: make a file of shared memory", s->key);
    if (!ftruncate(fd, (off_t)bytes))
        return fd;
    int err = kvt__fail(errno, "%s: make a file of %" PRIu64 " MiB", s->key, bytes >> 20);
    kvt__lock_file_close(fd);
    return err;
}

static int
make(struct kvt__share *s, const struct kvt__share_params *params)
{
    int err = choose_geometry(s, params);

    if (!err)
        err = kvt__sh_check_room(s, s->limit_bytes);
    if (err)
        return err;
    s->payload_fd = make_file(s, s->payload_dir_fd, "payload",
                              s->n_segments * s->segment_bytes);
    if (s->payload_fd < 0)
        return s->payload_fd;
    s->records_fd = make_file(s, s->dir_fd, "records", s->parts.end);
    if (s->records_fd < 0)
        return s->records_fd;
    err = posix_fallocate(s->records_fd, 0, (off_t)s->parts.slot_of);
    if (err)
        return kvt__fail(err, "%s: allocate the records of shared memory", s->key);
    err = map_both(s);
    if (err)
        return err;
    *s->header = (struct sh_header){ .version = SH_VERSION, .n_segments = s->n_segments,
                                     .limit_bytes = s->limit_bytes,
                                     .segment_bytes = s->segment_bytes,
                                     .max_entries = s->max_entries,
                                     .used_ns = (uint64_t)kvt__wall_ns() };
    memcpy(s->header->magic, SH_MAGIC, sizeof s->header->magic);
    return 0;
}

int
kvt__sh_make(struct kvt__share *s, const struct kvt__share_params *params)
{
    int err = make(s, params);

    if (err)
        kvt__sh_unmap(s);
    return err;
}

static void
remove_others(int dir_fd, const char *what, const char *own)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (!dir && fd >= 0)
        close(fd);
    while (dir && (entry = readdir(dir)))
        if (!strncmp(entry->d_name, what, strlen(what)) && strcmp(entry->d_name, own) != 0)
            unlinkat(dir_fd, entry->d_name, 0);
    if (dir)
        closedir(dir);
}

void
kvt__sh_remove_others(struct kvt__share *s)
{
    char name[NAME_MAX_BYTES];

    name_of(s, "records", name);
    remove_others(s->dir_fd, "records-", name);
    name_of(s, "payload", name);
    remove_others(s->payload_dir_fd, "payload-", name);
}
