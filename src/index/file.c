/* SPDX-License-Identifier: Apache-2.0
 *
 * The file `index`: made whole under another name and renamed, checked before
 * it is mapped, never resized.  The caller holds the lock.
 *
 * A file that another program truncates while it is mapped ends the process
 * with SIGBUS; it is private to the user, and nothing of kvtier does that. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "index/table.h"

#define NEW_NAME "index.new"

static int
hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void
kvt__ix_boot_id(uint8_t out[16])
{
    char text[64];
    unsigned n = 0;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = read(fd, text, sizeof text); /* -1 without the file */

    if (fd >= 0)
        close(fd);
    memset(out, 0, 16);
    for (ssize_t i = 0; i < got && n < 32; i++) {
        int digit = hex_digit(text[i]);
        if (digit < 0)
            continue;
        out[n / 2] = (uint8_t)(out[n / 2] << 4 | digit);
        n++;
    }
}

static uint64_t
round_entries(uint64_t wanted)
{
    uint64_t n = IX_MIN_ENTRIES;

    while (n < wanted && n < IX_MAX_ENTRIES)
        n <<= 1;
    return n;
}

/* id: NULL: of a table of this process alone. */
static void
fill_header(struct ix_header *h, uint64_t n_entries, bool wide_hashes,
            const uint64_t id[2])
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, IX_MAGIC, sizeof h->magic);
    h->version = IX_VERSION;
    h->header_bytes = IX_HEADER_BYTES;
    h->n_entries = n_entries;
    h->n_owners = IX_N_OWNERS;
    h->n_spaces = IX_N_SPACES;
    kvt__ix_boot_id(h->boot_id);
    h->state = IX_IN_USE;
    h->wide_hashes = wide_hashes;
    if (id)
        memcpy(h->file_id, id, sizeof h->file_id);
}

static bool
header_ok(const struct ix_header *h, off_t file_bytes)
{
    uint64_t n = h->n_entries;

    return !memcmp(h->magic, IX_MAGIC, sizeof h->magic)
           && h->version == IX_VERSION && h->header_bytes == IX_HEADER_BYTES
           && h->n_owners == IX_N_OWNERS && h->n_spaces == IX_N_SPACES
           && h->state == IX_IN_USE && h->wide_hashes <= 1 && n >= IX_MIN_ENTRIES
           && n <= IX_MAX_ENTRIES && !(n & (n - 1))
           && (uint64_t)file_bytes == ix_map_bytes(n, h->wide_hashes);
}

/* Those that have a file open which is no longer the directory's learn it, if
 * the file is one of ours: the words up to state are alike in all versions. */
static void
mark_replaced(int fd)
{
    static const uint32_t replaced = IX_REPLACED;
    char magic[sizeof IX_MAGIC - 1];
    ssize_t n = pread(fd, magic, sizeof magic, 0);

    if (n == sizeof magic && !memcmp(magic, IX_MAGIC, sizeof magic))
        n = pwrite(fd, &replaced, sizeof replaced,
                   offsetof(struct ix_header, state));
    (void)n; /* nobody could do anything about it */
}

static int
map_fd(struct kvt__index *ix, int fd, uint64_t n_entries, bool wide_hashes)
{
    size_t bytes = ix_map_bytes(n_entries, wide_hashes);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (p == MAP_FAILED)
        return kvt__fail(errno, "index: map %zu bytes", bytes);
    madvise(p, bytes, MADV_DONTFORK);
    ix->map = p;
    ix->n_entries = n_entries;
    ix->rests = wide_hashes ? (struct ix_hash_rest *)&ix->map->entries[n_entries] : NULL;
    ix->group_mask = n_entries / IX_GROUP - 1;
    return 0;
}

/* A new file, whole, under its own name.  A descriptor or -errno. */
static int
make_file(int dirfd, int lock_fd, uint64_t n_entries, bool wide_hashes)
{
    size_t bytes = ix_map_bytes(n_entries, wide_hashes);
    struct ix_header header;
    uint64_t id[2];
    int err;

    unlinkat(dirfd, NEW_NAME, 0); /* of one that died here */
    int fd = openat(dirfd, NEW_NAME,
                    O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return kvt__fail(errno, "index: make a file");
    do
        err = posix_fallocate(fd, 0, (off_t)bytes);
    while (err == EINTR);
    if (err) {
        err = kvt__fail(err, "index: allocate a file of %zu bytes", bytes);
        goto fail;
    }
    if (getrandom(id, sizeof id, 0) != sizeof id) {
        err = kvt__fail(errno, "index: a random id");
        goto fail;
    }
    fill_header(&header, n_entries, wide_hashes, id);
    ssize_t n = pwrite(fd, &header, sizeof header, 0);
    if (n != sizeof header) {
        err = kvt__fail(n < 0 ? errno : EIO, "index: write a file");
        goto fail;
    }
    /* From now on, handles of other indexes are not current. */
    err = kvt__ix_lock_set_id(lock_fd, id);
    if (err)
        goto fail;
    if (renameat(dirfd, NEW_NAME, dirfd, "index")) {
        err = kvt__fail(errno, "index: rename a file");
        goto fail;
    }
    return fd;
fail:
    unlinkat(dirfd, NEW_NAME, 0);
    close(fd);
    return err;
}

/* Return true if the file was made under this lock file.  A lock file made anew lacks the
 * locks of the processes with an open index. */
static bool
is_of_lock(const struct ix_header *h, int lock_fd)
{
    uint64_t id[2];

    return !kvt__ix_lock_get_id(lock_fd, id) && !memcmp(h->file_id, id, sizeof id);
}

/* The size of a good file, else 0; *wide_hashes: wanted, and then whether it has room
 * for them; *other_version: the file is another version's. */
static uint64_t
check_file(int fd, int lock_fd, bool *wide_hashes, bool *other_version)
{
    struct ix_header header;
    struct stat st;

    if (fstat(fd, &st) || !S_ISREG(st.st_mode)
        || pread(fd, &header, sizeof header, 0) != sizeof header)
        return 0;
    *other_version = !memcmp(header.magic, IX_MAGIC, sizeof header.magic)
                     && header.version != IX_VERSION && header.state == IX_IN_USE;
    if (!header_ok(&header, st.st_size) || !is_of_lock(&header, lock_fd)
        || (*wide_hashes && !header.wide_hashes))
        return 0;
    *wide_hashes = header.wide_hashes;
    return header.n_entries;
}

int
kvt__ix_map_file(struct kvt__index *ix, const struct kvt__index_params *params,
                 bool *made)
{
    int old = openat(params->dirfd, "index",
                     O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool wide = params->wide_hashes, other_version = false;
    int fd = old;
    int rc;

    *made = false;
    if (old < 0 && errno != ENOENT && errno != ELOOP)
        return kvt__fail(errno, "index: open its file");
    uint64_t n = old < 0 ? 0 : check_file(old, ix->lock_fd, &wide, &other_version);
    if (other_version && params->keep_version) {
        close(old);
        return kvt__fail(ESTALE, "index: another version of kvtier has replaced it");
    }
    if (!n) {
        *made = true;
        n = round_entries(params->n_entries);
        fd = make_file(params->dirfd, ix->lock_fd, n, wide);
        if (fd >= 0 && old >= 0)
            mark_replaced(old);
    }
    rc = fd < 0 ? fd : map_fd(ix, fd, n, wide);
    if (old >= 0 && old != fd)
        close(old);
    if (fd >= 0)
        close(fd);
    return rc;
}

int
kvt__ix_map_private(struct kvt__index *ix, const struct kvt__index_params *params)
{
    int rc = map_fd(ix, -1, round_entries(params->n_entries), params->wide_hashes);

    if (!rc)
        fill_header(&ix->map->header, ix->n_entries, params->wide_hashes, NULL);
    return rc;
}

void
kvt__ix_unmap(struct kvt__index *ix)
{
    munmap(ix->map, ix_map_bytes(ix->n_entries, ix->rests != NULL));
}
