/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of claims, kvtier-<uid>/pools: records of 8 bytes, one for each claim.  The
 * owner of a record holds an open-file-description lock on the record's first byte, so a
 * record without a lock is free.  A byte behind the records is locked while a process adds
 * up the claims and enters a claim. */
#include "mem/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/private-dir.h"
#include "kvtier.h"

#define N_RECORDS 256
#define RECORD_BYTES sizeof(uint64_t)
#define SUM_BYTE (N_RECORDS * (off_t)RECORD_BYTES)
#define WAIT_NS (5 * KVT__NS_PER_S)

static off_t
place_of(unsigned record)
{
    return (off_t)(record * RECORD_BYTES);
}

/* Set or release a lock.  Return 0 or -errno. */
static int
set_lock(int fd, short type, off_t byte)
{
    struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte,
                        .l_len = 1 };

    return fcntl(fd, F_OFD_SETLK, &fl) ? -errno : 0;
}

/* Lock the byte for sums, for at most WAIT_NS.  Return 0, or -errno with a sentence. */
static int
lock_sum(int fd)
{
    static const struct timespec pause = { 0, KVT__NS_PER_MS };
    int64_t end = kvt__now_ns() + WAIT_NS;
    int err;

    while ((err = set_lock(fd, F_WRLCK, SUM_BYTE)) && kvt__now_ns() < end)
        nanosleep(&pause, NULL);
    return err ? kvt__fail(-err, "lock the file of memory claims") : 0;
}

/* Add up the claims of other processes, and lock a free record.  Return 0, or -errno with a
 * sentence. */
static int
take_record(int fd, unsigned *record, uint64_t *others)
{
    uint64_t bytes[N_RECORDS] = { 0 };
    bool found = false;

    *others = 0;
    if (pread(fd, bytes, sizeof bytes, 0) < 0)
        return kvt__fail(errno, "read the file of memory claims");
    for (unsigned i = 0; i < N_RECORDS; i++) {
        if (found && !bytes[i])
            continue;
        bool is_free = !set_lock(fd, F_WRLCK, place_of(i));

        if (is_free && !found) {
            *record = i;
            found = true;
        } else if (is_free) {
            set_lock(fd, F_UNLCK, place_of(i));
        } else if (__builtin_add_overflow(*others, bytes[i], others)) {
            *others = UINT64_MAX;
        }
    }
    return found ? 0 : kvt__fail(EUSERS, "%d processes claim memory", N_RECORDS);
}

static int
open_file(const char *parent)
{
    int dir = kvt__private_dir_open(parent);

    if (dir < 0)
        return dir;
    int fd = kvt__lock_file_open(dir, "pools", O_RDWR | O_CREAT, 0600);
    close(dir);
    return fd < 0 ? kvt__fail(-fd, "open the file of memory claims") : fd;
}

/* Compare the wanted bytes with the available memory minus the claims of other processes.  Return
 * 0, or -ENOMEM with a sentence. */
static int
check_available(const char *key, uint64_t bytes, uint64_t others)
{
    uint64_t available = kvt_memory_available();

    available = available > others ? available - others : 0;
    if (bytes <= available)
        return 0;
    return kvt__fail(ENOMEM, "%s: %" PRIu64 " MiB asked, %" PRIu64 " MiB of memory "
                     "available, less the %" PRIu64 " MiB that other workers have "
                     "claimed; set it lower.", key, bytes >> 20, available >> 20,
                     others >> 20);
}

int
kvt__mem_claim(const char *parent, const char *key, uint64_t bytes,
               struct kvt__mem_claim *out)
{
    uint64_t others = 0;
    unsigned record = 0;
    int fd = open_file(parent);
    int err = fd < 0 ? fd : lock_sum(fd);

    *out = (struct kvt__mem_claim){ .fd = -1 };
    if (!err)
        err = take_record(fd, &record, &others);
    if (err) {
        kvt__log(KVT_LOG_WARN, "%s: other workers' memory is not counted: %s", key,
                 kvt__why());
        kvt__lock_file_close(fd);
        return check_available(key, bytes, 0);
    }
    err = check_available(key, bytes, others);
    if (err) {
        kvt__lock_file_close(fd); /* ends the locks too */
        return err;
    }
    *out = (struct kvt__mem_claim){ fd, record };
    kvt__mem_claim_set(out, bytes);
    set_lock(fd, F_UNLCK, SUM_BYTE);
    return 0;
}

void
kvt__mem_claim_set(const struct kvt__mem_claim *claim, uint64_t bytes)
{
    ssize_t n = claim->fd < 0 ? 0 : pwrite(claim->fd, &bytes, sizeof bytes,
                                           place_of(claim->record));

    (void)n; /* a claim left too high ends with the close of the file */
}

void
kvt__mem_claim_end(struct kvt__mem_claim *claim)
{
    kvt__mem_claim_set(claim, 0);
    kvt__lock_file_close(claim->fd);
    claim->fd = -1;
}
