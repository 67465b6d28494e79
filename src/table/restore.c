/* SPDX-License-Identifier: Apache-2.0
 *
 * The reading of the file `snapshot`.  The file may be garbage, so the file is read twice: the
 * first pass checks all records and the checksum, the second pass enters the entries. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "table/private.h"
#include "table/snapshot.h"

#define BUFFER_BYTES ((size_t)1 << 20)

struct reader {
    struct kvt__table *table;
    bool enters;                   /* the second pass */
    int fd;
    uint32_t crc;                  /* CRC32C of the bytes taken */
    uint64_t n_entries;
    int64_t n_entered;
    size_t at, n;                  /* first byte not taken, and end, of the buffer */
    uint64_t digests[TB_N_SPACES]; /* 0: no record of the space yet */
    char texts[TB_N_SPACES][TB_TEXT_WORDS * 8];
    char buffer[BUFFER_BYTES];
};

/* Move the bytes not taken to the start of the buffer, and read more bytes.  False: the end of
 * the file, or an error. */
static bool
fill(struct reader *r)
{
    ssize_t n;

    memmove(r->buffer, r->buffer + r->at, r->n - r->at);
    r->n -= r->at;
    r->at = 0;
    do
        n = read(r->fd, r->buffer + r->n, BUFFER_BYTES - r->n);
    while (n < 0 && errno == EINTR);
    r->n += n > 0 ? (size_t)n : 0;
    return n > 0;
}

/* Take n bytes of the file; n is far below the size of the buffer.  False: the file is too
 * short. */
static bool
take(struct reader *r, void *out, size_t n)
{
    assert(n < BUFFER_BYTES && r->at <= r->n);
    while (r->n - r->at < n)
        if (!fill(r))
            return false;
    memcpy(out, r->buffer + r->at, n);
    r->crc = kvt__crc32c(r->crc, out, n);
    r->at += n;
    return true;
}

static bool
take_space(struct reader *r, uint64_t head)
{
    size_t n = (size_t)(head >> 8 & 0xffff), number = (size_t)(head >> 32);
    char text[TB_TEXT_WORDS * 8 + 8] = "";

    if (!n || n > KVT__TABLE_TEXT_MAX || number >= TB_N_SPACES ||
        !take(r, text, (n + 7) & ~(size_t)7) || strlen(text) != n)
        return false;
    memcpy(r->texts[number], text, n + 1);
    r->digests[number] = kvt__table_digest(text);
    return true;
}

/* Take an entry, and enter the entry in the second pass.  0; -EBADMSG; an error of
 * kvt__tb_enter_saved(). */
static int
take_entry(struct reader *r, uint64_t head)
{
    struct sn_entry e;
    struct kvt__name name = { 0 };
    uint32_t space = (uint32_t)(head >> 32), flags = (uint32_t)(head >> 8) & 0xff;

    if (!take(r, &e.id, sizeof e - sizeof e.head))
        return -EBADMSG;
    name.hash.form = (enum kvt__hash_form)(e.packed >> 62);
    name.hash.bits[0] = e.hash;
    if (name.hash.form > KVT__HASH_WIDE ||
        flags & ~(KVT__TABLE_UNREAD | KVT__TABLE_FOREIGN) ||
        (space < TB_N_SPACES ? !r->digests[space] : space != TB_NO_SPACE) ||
        (name.hash.form == KVT__HASH_WIDE &&
         !take(r, &name.hash.bits[1], sizeof name.hash.bits - sizeof name.hash.bits[0])))
        return -EBADMSG;
    name.digest = space < TB_N_SPACES ? r->digests[space] : 0;
    struct kvt__record record = {
        .bytes = tb_bytes(e.packed), .flags = flags,
        .expires_ns = tb_expires_ns(tb_expiry(e.packed), kvt__wall_ns()) };
    memcpy(record.id.b, e.id, sizeof e.id);
    r->n_entries++;
    return !r->enters ? 0
         : kvt__tb_enter_saved(r->table, &name, &record, e.recency,
                               space < TB_N_SPACES ? r->texts[space] : NULL, &r->n_entered);
}

/* Return true if the end record has the right number of entries and checksum, and no byte
 * follows. */
static bool
is_end(struct reader *r, uint64_t head, uint32_t crc)
{
    uint64_t n;
    char more;

    return take(r, &n, sizeof n) && n == r->n_entries && head >> 32 == crc &&
           !(head & 0xffffff00) && !take(r, &more, 1);
}

/* Read all records of the file.  0; -EBADMSG; an error of kvt__tb_enter_saved(). */
static int
parse(struct reader *r)
{
    struct sn_header h;
    uint64_t head;

    if (!take(r, &h, sizeof h) || memcmp(h.magic, SN_MAGIC, sizeof h.magic) ||
        h.of_memory != r->table->of_memory)
        return -EBADMSG;
    for (;;) {
        uint32_t crc = r->crc;
        int err = 0;

        if (!take(r, &head, sizeof head))
            return -EBADMSG;
        switch (head & 0xff) {
        case SN_SPACE:
            err = take_space(r, head) ? 0 : -EBADMSG;
            break;
        case SN_ENTRY:
            err = take_entry(r, head);
            break;
        case SN_END:
            return is_end(r, head, crc) ? 0 : -EBADMSG;
        default:
            err = -EBADMSG;
        }
        if (err)
            return err;
    }
}

static int
read_file(struct reader *r, int dirfd)
{
    struct stat st;
    int err = 0;

    r->fd = openat(dirfd, SN_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (r->fd < 0)
        return errno == ENOENT ? -ENOENT : kvt__fail(errno, "index: open the snapshot");
    if (fstat(r->fd, &st) || !S_ISREG(st.st_mode))
        err = -EBADMSG;
    for (int i = 0; i < 2 && !err; i++) {
        r->enters = i == 1;
        r->crc = 0;
        r->n_entries = 0;
        r->at = r->n = 0;
        memset(r->digests, 0, sizeof r->digests);
        err = lseek(r->fd, 0, SEEK_SET) ? -errno : parse(r);
    }
    close(r->fd);
    return err == -EBADMSG ? kvt__fail(EBADMSG, "index: the snapshot is corrupt") : err;
}

int64_t
kvt__table_read_snapshot(struct kvt__table *t, int dirfd)
{
    struct reader *r;

    int err = kvt__tb_check_restore(t);

    if (err)
        return err;
    if (TB_LOAD(&t->header->restored) == 1)
        return 0;
    r = calloc(1, sizeof *r);
    if (!r)
        return kvt__fail(ENOMEM, "index: snapshot");
    r->table = t;
    err = read_file(r, dirfd);
    int64_t n = r->n_entered;
    if (err != -ESTALE && err != -ETIMEDOUT)
        TB_STORE(&t->header->restored, 1);
    free(r);
    return err ? err : n;
}
