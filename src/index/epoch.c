/* SPDX-License-Identifier: Apache-2.0
 *
 * Epochs outlive the table: a space that is made anew, after its file was lost or
 * replaced, begins where it was, or what was stored before a reset would be hits
 * again.  Kept in the file `lock`, which is never replaced: records { digest of the
 * space's text, epoch } of those that were ever reset.  The caller holds the lock. */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sha256.h"
#include "index/table.h"

#define MAX_RECORDS 65536

struct record {
    uint64_t text; /* the first 8 bytes of its SHA-256 */
    uint64_t epoch;
};

static uint64_t
digest_of(const char *text)
{
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    uint64_t first;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, text, strlen(text));
    kvt__sha256_end(&sha, digest);
    memcpy(&first, digest, sizeof first);
    return first;
}

/* Where the record of a text is or could be, with its epoch, 0 if there is none.
 * -1: nowhere. */
static off_t
find(const struct kvt__index *ix, uint64_t text, uint64_t *epoch)
{
    struct record r;
    off_t at = 0;

    *epoch = 0;
    for (int i = 0; i < MAX_RECORDS; i++, at += (off_t)sizeof r) {
        ssize_t n = pread(ix->lock_fd, &r, sizeof r, at);

        if (n < 0)
            return -1;
        if (n < (ssize_t)sizeof r)
            return at;
        if (r.text == text) {
            *epoch = r.epoch;
            return at;
        }
    }
    errno = EFBIG;
    return -1;
}

uint64_t
kvt__ix_kept_epoch(const struct kvt__index *ix, const char *text)
{
    uint64_t epoch = 0;

    if (ix->lock_fd >= 0)
        find(ix, digest_of(text), &epoch);
    return epoch;
}

int
kvt__ix_keep_epoch(const struct kvt__index *ix, const char *text, uint64_t epoch)
{
    struct record r = { digest_of(text), epoch };
    uint64_t old;

    if (ix->lock_fd < 0)
        return 0;
    off_t at = find(ix, r.text, &old);
    ssize_t n = at < 0 ? -1 : pwrite(ix->lock_fd, &r, sizeof r, at);
    return n == (ssize_t)sizeof r
        ? 0 : kvt__fail(n < 0 ? errno : EIO, "index: write to its lock file");
}
