/* SPDX-License-Identifier: Apache-2.0
 *
 * Indexes of version 3: the file `index` of the store's directory.  If `lock` names the index,
 * the maker of a table renames the file, and the lister reads the renamed file once; otherwise
 * the maker deletes the file.  Every byte of the file may be garbage. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "table/private.h"

#define V3_NAME "index"
#define V3_KEPT_NAME "index.v3"
#define V3_MAGIC "KVTINDEX"
#define V3_IN_USE 1u
#define V3_N_SPACES 4096u
#define V3_MAX_ENTRIES (UINT64_C(1) << 26)
#define V3_READY 2u
#define V3_WIDE 4u
#define V3_EXPECTED 8u /* a process expected the object, and no process has seen the object */
#define V3_N_READ 4096u /* entries of one read */

struct v3_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t n_entries;
    uint32_t n_owners, n_spaces;
    uint8_t boot_id[16];
    uint32_t state, scanned, recount, wide_hashes;
    uint64_t numbers[6];
    uint64_t file_id[2];
};

struct v3_space {
    uint32_t state, pad;
    uint64_t digest;
    uint32_t n_bytes, pad2;
    char text[TB_TEXT_WORDS * 8];
    uint64_t pad3;
};

struct v3_entry {
    uint64_t word, id[2], hash, packed, tokens_flags, recency, lease;
};

_Static_assert(offsetof(struct v3_header, file_id) == 112, "header");
_Static_assert(sizeof(struct v3_space) == 512, "space");

static bool
read_header(int fd, struct v3_header *h)
{
    struct stat st;

    return !fstat(fd, &st) && S_ISREG(st.st_mode) && pread(fd, h, sizeof *h, 0) == sizeof *h &&
           !memcmp(h->magic, V3_MAGIC, sizeof h->magic) && h->version == 3 &&
           h->state == V3_IN_USE && h->n_spaces == V3_N_SPACES && h->n_owners == 64 &&
           h->header_bytes == TB_PAGE && h->n_entries <= V3_MAX_ENTRIES && h->wide_hashes <= 1;
}

void
kvt__tb_keep_v3(int dirfd, int lock_fd)
{
    int fd = openat(dirfd, V3_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    uint64_t number[2];
    struct v3_header h;

    if (fd < 0)
        return;
    bool keeps = read_header(fd, &h) &&
                 pread(lock_fd, number, sizeof number, TB_LOCATION_AT) == sizeof number &&
                 !memcmp(number, h.file_id, sizeof number);
    close(fd);
    if (!keeps || renameat(dirfd, V3_NAME, dirfd, V3_KEPT_NAME))
        unlinkat(dirfd, V3_NAME, 0);
}

struct v3_reader {
    struct kvt__table *table;
    int fd;
    struct v3_header header;
    struct v3_space spaces[V3_N_SPACES];
    uint64_t digests[V3_N_SPACES]; /* 0: the space has no valid text */
    struct v3_entry entries[V3_N_READ];
    struct tb_wide wide[V3_N_READ];
    int64_t n_entered;
};

static bool
read_spaces(struct v3_reader *r)
{
    if (pread(r->fd, r->spaces, sizeof r->spaces, TB_PAGE + 64 * 64) !=
        (ssize_t)sizeof r->spaces)
        return false;
    for (unsigned i = 0; i < V3_N_SPACES; i++) {
        struct v3_space *s = &r->spaces[i];

        if (s->state < 2 || !s->n_bytes || s->n_bytes > KVT__TABLE_TEXT_MAX)
            continue;
        s->text[s->n_bytes] = '\0';
        if (strlen(s->text) == s->n_bytes)
            r->digests[i] = kvt__table_digest(s->text);
    }
    return true;
}

/* Return the form of an entry's hash.  A hash below 2^63 has equal key text in both forms, and
 * then the name of the chunk has the form SIGNED. */
static enum kvt__hash_form
form_of(const struct v3_entry *e, uint64_t flags)
{
    if (flags & V3_WIDE)
        return KVT__HASH_WIDE;
    return e->packed >> 63 && e->hash >> 63 ? KVT__HASH_UNSIGNED : KVT__HASH_SIGNED;
}

/* Enter one entry.  0, or an error that ends the reading. */
static int
enter(struct v3_reader *r, const struct v3_entry *e, const struct tb_wide *wide)
{
    uint32_t space = (uint32_t)(e->packed >> 40 & 0xffff);
    uint64_t flags = e->tokens_flags >> 32;

    if ((e->word & 15) != V3_READY || space >= V3_N_SPACES || !r->digests[space] ||
        flags & V3_EXPECTED || (flags & V3_WIDE && !r->header.wide_hashes))
        return 0;
    struct kvt__name name = { .digest = r->digests[space],
                              .hash = { .bits = { e->hash }, .form = form_of(e, flags) } };
    if (flags & V3_WIDE)
        memcpy(&name.hash.bits[1], wide->bits, sizeof wide->bits);
    struct kvt__record record = { .bytes = e->packed & (TB_MAX_BYTES - 1),
                                  .flags = (uint32_t)flags & (KVT__TABLE_UNREAD |
                                                              KVT__TABLE_FOREIGN) };
    if (!(record.flags & KVT__TABLE_UNREAD)) /* an unread entry has no real identity */
        memcpy(record.id.b, e->id, sizeof e->id);
    return kvt__tb_enter_saved(r->table, &name, &record, e->recency, r->spaces[space].text,
                               &r->n_entered);
}

/* Enter all entries of the file.  A short file ends the reading without an error. */
static int
read_entries(struct v3_reader *r)
{
    off_t base = TB_PAGE + 64 * 64 + (off_t)sizeof r->spaces;
    off_t wide = base + (off_t)(r->header.n_entries * sizeof *r->entries);
    int err = 0;

    for (uint64_t at = 0; at < r->header.n_entries && !err; at += V3_N_READ) {
        uint64_t n = r->header.n_entries - at < V3_N_READ ? r->header.n_entries - at
                                                          : V3_N_READ;
        ssize_t bytes = (ssize_t)(n * sizeof *r->entries);
        ssize_t wide_bytes = (ssize_t)(n * sizeof *r->wide);

        if (pread(r->fd, r->entries, (size_t)bytes, base + (off_t)at * 64) != bytes ||
            (r->header.wide_hashes &&
             pread(r->fd, r->wide, (size_t)wide_bytes, wide + (off_t)at * 24) != wide_bytes))
            break;
        for (uint64_t i = 0; i < n && !err; i++)
            err = enter(r, &r->entries[i], &r->wide[i]);
    }
    return err;
}

int64_t
kvt__table_read_v3(struct kvt__table *t, int dirfd)
{
    int err = kvt__tb_check_restore(t);

    if (err)
        return err;
    int fd = openat(dirfd, V3_KEPT_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? -ENOENT : kvt__fail(errno, "index: open version 3");
    struct v3_reader *r = calloc(1, sizeof *r);
    if (!r) {
        close(fd);
        return kvt__fail(ENOMEM, "index: version 3");
    }
    r->table = t;
    r->fd = fd;
    if (read_header(fd, &r->header) && read_spaces(r))
        err = read_entries(r);
    int64_t n = err ? err : r->n_entered;
    free(r);
    close(fd);
    if (!err)
        unlinkat(dirfd, V3_KEPT_NAME, 0);
    return n;
}
