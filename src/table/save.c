/* SPDX-License-Identifier: Apache-2.0
 *
 * The writing of the file `snapshot`: the READY entries with their recency.  Other threads and
 * processes may change the table meanwhile; the fields of each written entry are from one
 * instant. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "table/private.h"
#include "table/snapshot.h"

#define BUFFER_BYTES ((size_t)1 << 20)

struct writer {
    const struct kvt__table *table;
    int fd;
    int err;
    uint32_t crc;                    /* CRC32C of the bytes put */
    size_t n;                        /* bytes in the buffer */
    uint64_t n_written;              /* bytes in the file */
    uint64_t max_bytes;              /* RLIMIT_FSIZE: a write beyond the limit kills the process */
    uint64_t n_entries;
    uint64_t digests[TB_N_SPACES];   /* digest of each written text of a space */
    char buffer[BUFFER_BYTES];
};

static void
flush(struct writer *w)
{
    if (!w->err && w->n_written + w->n > w->max_bytes)
        w->err = -EFBIG;
    for (size_t done = 0; !w->err && done < w->n;) {
        ssize_t n = write(w->fd, w->buffer + done, w->n - done);

        if (n < 0 && errno != EINTR)
            w->err = -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    w->n_written += w->n;
    w->n = 0;
}

static void
put(struct writer *w, const void *bytes, size_t n)
{
    assert(n <= BUFFER_BYTES);
    if (w->n + n > BUFFER_BYTES)
        flush(w);
    memcpy(w->buffer + w->n, bytes, n);
    w->crc = kvt__crc32c(w->crc, bytes, n);
    w->n += n;
}

/* Return true if the entry is unchanged: then the entry's space still has the text that was
 * read. */
static bool
is_unchanged(const struct writer *w, const struct kvt__record *r)
{
    return TB_LOAD(&w->table->hot[r->entry].word) == r->word;
}

/* Write the text of the entry's space unless the text is written already.  False: the entry has
 * changed, and the caller leaves out the entry. */
static bool
put_space(struct writer *w, const struct kvt__record *r)
{
    char text[TB_TEXT_WORDS * 8] = "";

    if (r->space >= TB_N_SPACES)
        return is_unchanged(w, r);
    uint64_t digest = TB_LOAD(&w->table->spaces[r->space].digest);
    if (digest == w->digests[r->space])
        return is_unchanged(w, r);
    if (kvt__table_space_text(w->table, r->space, text, sizeof text) ||
        !is_unchanged(w, r) || kvt__table_digest(text) != digest)
        return false;
    size_t n = strlen(text);
    uint64_t head = SN_SPACE | (uint64_t)n << 8 | (uint64_t)r->space << 32;
    memset(text + n, 0, sizeof text - n);
    put(w, &head, sizeof head);
    put(w, text, (n + 7) & ~(size_t)7);
    w->digests[r->space] = digest;
    return true;
}

static bool
put_entry(void *ctx, const struct kvt__record *r)
{
    struct writer *w = ctx;
    struct sn_entry e = { .head = SN_ENTRY | (uint64_t)r->flags << 8 |
                                  (uint64_t)r->space << 32,
                          .packed = tb_pack(r->bytes, r->hash.form,
                                            tb_expiry_from_ns(r->expires_ns, kvt__wall_ns())),
                          .recency = (uint64_t)r->recency_ns | r->n_uses,
                          .hash = r->hash.bits[0] };

    if (!put_space(w, r))
        return true;
    memcpy(e.id, r->id.b, sizeof e.id);
    put(w, &e, sizeof e);
    if (r->hash.form == KVT__HASH_WIDE)
        put(w, &r->hash.bits[1], sizeof r->hash.bits - sizeof r->hash.bits[0]);
    w->n_entries++;
    return !w->err;
}

static int
write_all(struct writer *w)
{
    struct sn_header h = { .of_memory = w->table->of_memory };

    memcpy(h.magic, SN_MAGIC, sizeof h.magic);
    put(w, &h, sizeof h);
    kvt__table_each(w->table, put_entry, w);
    struct sn_end end = { SN_END | (uint64_t)w->crc << 32, w->n_entries };
    put(w, &end, sizeof end);
    flush(w);
    if (!w->err && fsync(w->fd))
        w->err = -errno;
    if (!w->err && !tb_is_usable(w->table))
        w->err = -ESTALE;
    return w->err;
}

static int
write_file(struct kvt__table *t, int dirfd)
{
    struct writer *w = calloc(1, sizeof *w);
    struct rlimit limit;

    if (!w)
        return kvt__fail(ENOMEM, "index: snapshot");
    w->table = t;
    w->max_bytes = getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY
        ? UINT64_MAX : limit.rlim_cur;
    w->fd = openat(dirfd, SN_NEW_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC |
                   O_NOFOLLOW | O_NONBLOCK, 0600);
    int err = w->fd < 0 ? -errno : write_all(w);
    if (w->fd >= 0 && close(w->fd) && !err)
        err = -errno;
    free(w);
    if (!err && renameat(dirfd, SN_NEW_NAME, dirfd, SN_NAME))
        err = -errno;
    if (err)
        unlinkat(dirfd, SN_NEW_NAME, 0);
    return err ? kvt__fail(-err, "index: write a snapshot") : 0;
}

/* Return true if an entry has changed since the last snapshot, and reset header->touched.
 * n_changes: the number of the lock's last acquisition, which the new snapshot covers. */
static bool
has_changed(struct kvt__table *t, uint32_t *n_changes)
{
    struct tb_header *h = t->header;

    *n_changes = TB_LOAD(&h->lock) >> TB_LOCK_NUMBER_SHIFT;
    bool touched = __atomic_exchange_n(&h->touched, 0, __ATOMIC_SEQ_CST);
    return touched || *n_changes != TB_LOAD(&h->snapshot_acquisition);
}

/* Return true if an earlier table wrote the file, and this table has not read the file yet. */
static bool
is_unread(const struct kvt__table *t, int dirfd)
{
    return TB_LOAD(&t->header->restored) != 1 && !faccessat(dirfd, SN_NAME, F_OK, 0);
}

/* Return true if the file is younger than age_s.  A file with a time in the future is not. */
static bool
is_younger(int dirfd, int64_t age_s)
{
    int64_t now_s = kvt__wall_ns() / KVT__NS_PER_S;
    struct stat st;

    return age_s > 0 && !fstatat(dirfd, SN_NAME, &st, AT_SYMLINK_NOFOLLOW) &&
           st.st_mtim.tv_sec <= now_s && now_s - st.st_mtim.tv_sec < age_s;
}

static int
save(struct kvt__table *t, int dirfd, int64_t min_age_s)
{
    uint32_t n_changes;

    if (is_unread(t, dirfd))
        return -EBUSY;
    if (is_younger(dirfd, min_age_s) || !has_changed(t, &n_changes))
        return -EALREADY;
    int err = write_file(t, dirfd);
    if (err)
        TB_STORE(&t->header->touched, 1);
    if (!err) {
        TB_STORE(&t->header->snapshot_acquisition, n_changes);
        TB_STORE(&t->header->restored, 1);
    }
    return err;
}

int
kvt__table_write_snapshot(struct kvt__table *t, int dirfd, int64_t min_age_s)
{
    if (!tb_is_usable(t))
        return -ESTALE;
    if (!tb_is_writer(t) || t->lock_fd < 0 || t->area)
        return -EINVAL;
    if (kvt__tb_is_locked(t->lock_fd, TB_LIST_BYTE, 1) ||
        kvt__tb_lock_byte(t->lock_fd, F_WRLCK, TB_SNAPSHOT_BYTE))
        return -EBUSY;
    int err = save(t, dirfd, min_age_s);
    kvt__tb_unlock_byte(t->lock_fd, TB_SNAPSHOT_BYTE);
    return err;
}
