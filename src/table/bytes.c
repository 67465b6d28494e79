/* SPDX-License-Identifier: Apache-2.0
 *
 * The file `lock`: processes lock bytes of the file, and a record in the file names the
 * table. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "table/private.h"

static const struct timespec pause_of_wait = { 0, 2 * KVT__NS_PER_MS };

static int
set_lock(int lock_fd, short type, off_t byte)
{
    struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };

    return fcntl(lock_fd, F_OFD_SETLK, &fl) ? -errno : 0;
}

int
kvt__tb_lock_byte(int lock_fd, short type, off_t byte)
{
    int err = set_lock(lock_fd, type, byte);

    return err == -EACCES || err == -EINTR ? -EAGAIN : err;
}

void
kvt__tb_unlock_byte(int lock_fd, off_t byte)
{
    (void)set_lock(lock_fd, F_UNLCK, byte);
}

bool
kvt__tb_flock_shared(int fd)
{
    int64_t end = kvt__now_ns() + TB_OPEN_WAIT_NS;
    int err;

    while ((err = flock(fd, LOCK_SH | LOCK_NB)) && (errno == EWOULDBLOCK || errno == EINTR) &&
           kvt__now_ns() < end)
        nanosleep(&pause_of_wait, NULL);
    return !err;
}

/* The kernel releases the shared flock even if the exclusive flock is not granted. */
bool
kvt__tb_flock_exclusive(int fd)
{
    if (!flock(fd, LOCK_EX | LOCK_NB))
        return true;
    (void)kvt__tb_flock_shared(fd);
    return false;
}

int
kvt__tb_lock_byte_wait(int lock_fd, short type, off_t byte)
{
    int64_t end = kvt__now_ns() + TB_OPEN_WAIT_NS;
    int err;

    while ((err = kvt__tb_lock_byte(lock_fd, type, byte)) == -EAGAIN && kvt__now_ns() < end)
        nanosleep(&pause_of_wait, NULL);
    if (err == -EAGAIN)
        return kvt__fail(ETIMEDOUT, "index: another process holds the lock for too long");
    return err ? kvt__fail(-err, "index: lock the lock file") : 0;
}

bool
kvt__tb_is_locked(int lock_fd, off_t first, off_t n)
{
    struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first,
                        .l_len = n };

    /* If the system call fails, another handle may lock the byte.  A dead owner's claims then
     * stay a little longer, which is harmless. */
    return fcntl(lock_fd, F_OFD_GETLK, &fl) || fl.l_type != F_UNLCK;
}

/* F_OFD_GETLK ignores the locks of this handle, and this handle's owner lives. */
bool
kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner)
{
    assert(owner < TB_N_OWNERS);
    if (owner == t->owner)
        return true;
    return t->lock_fd >= 0 && kvt__tb_is_locked(t->lock_fd, TB_OWNER_BYTE + owner, 1);
}

bool
kvt__tb_lock_owner(const struct kvt__table *t, unsigned owner)
{
    assert(!tb_is_writer(t)); /* a handle has at most one owner's number */
    return t->lock_fd < 0 || !kvt__tb_lock_byte(t->lock_fd, F_WRLCK, TB_OWNER_BYTE + owner);
}

void
kvt__tb_unlock_owner(const struct kvt__table *t, unsigned owner)
{
    if (t->lock_fd >= 0)
        kvt__tb_unlock_byte(t->lock_fd, TB_OWNER_BYTE + owner);
}

/* All versions compute the same checksum, so that an opener finds the table of another
 * version. */
static uint32_t
crc_of(const struct tb_location *location)
{
    return kvt__crc32c(0, location, offsetof(struct tb_location, crc));
}

bool
kvt__tb_get_location(int lock_fd, struct tb_location *out)
{
    return pread(lock_fd, out, sizeof *out, TB_LOCATION_AT) == sizeof *out &&
           out->crc == crc_of(out);
}

int
kvt__tb_set_location(int lock_fd, struct tb_location *location)
{
    assert(location->where == TB_SHM || location->where == TB_DIR);
    location->crc = crc_of(location);
    ssize_t n = pwrite(lock_fd, location, sizeof *location, TB_LOCATION_AT);
    return n == sizeof *location ? 0
         : kvt__fail(n < 0 ? errno : EIO, "index: write to the lock file");
}

int
kvt__tb_boot_id(uint8_t out[16])
{
    char text[64];
    unsigned n = 0;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    memset(out, 0, 16);
    if (fd < 0)
        return tb_is_shortage(errno) ? kvt__fail(errno, "index: read the id of this boot") : 0;
    ssize_t got = read(fd, text, sizeof text);
    close(fd);
    for (ssize_t i = 0; i < got && n < 32; i++) {
        int digit = kvt__hex_digit(text[i]);

        if (digit >= 0) {
            out[n / 2] = (uint8_t)(out[n / 2] << 4 | digit);
            n++;
        }
    }
    return 0;
}
