/* SPDX-License-Identifier: Apache-2.0
 *
 * Client of one 3FS mount: moves bytes between memory and files of the mount.  The client shares
 * a staging region with the mount's daemon, and sends I/Os to the daemon through a few rings.  A
 * process has at most one client for each mount; all openers of the mount share this client.
 *
 * After a restart of the daemon, transfers in flight fail with -ESTALE, and the client replaces
 * region and rings.  The caller must then open its files again. */
#ifndef KVT_USRBIO_CLIENT_H
#define KVT_USRBIO_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/counters.h"
#include "io/exec.h"
#include "mem/pool.h"
#include "usrbio/usrbio.h"

struct kvt__usrbio_client;

struct kvt__usrbio_params {
    const struct kvt__usrbio_api *api;
    const char *mount_point;
    uint64_t iov_bytes; /* bytes of the staging region */
    uint32_t entries;   /* I/Os in flight in one ring, at most */
    int io_depth;       /* 0: kvtier chooses; above 0: the daemon takes full groups of this size,
                         * and other rings take the remaining I/Os; below 0: the daemon takes at
                         * most -io_depth I/Os at a time */
    int node;           /* memory node of the region and the rings; -1: any */
    uint32_t n_pairs;   /* pairs of rings: a ring for reads and a ring for writes */
};

/* Open the process's client of params->mount_point; the first opener makes region, rings and
 * threads.  If the client exists with other parameters, the existing parameters stay in force and
 * a warning is logged.  The function copies the mount point.
 *
 * Returns 0, or -errno with a sentence.  Each opener calls stop() and then close().  Blocks, until
 * the daemon has mapped the region. */
int kvt__usrbio_client_open(const struct kvt__usrbio_params *params,
                            struct kvt__usrbio_client **out);

/* Stop the client for this opener; call once.  After the last opener has called stop(), transfers
 * in flight end soon, and new transfers end at once, with -ECANCELED. */
void kvt__usrbio_client_stop(struct kvt__usrbio_client *client);

/* Close the client for this opener.  The opener has called stop(), has no transfer in flight and
 * has released all slots.  The last close() frees the client.  Blocks. */
void kvt__usrbio_client_close(struct kvt__usrbio_client *client);

/* Acquire a slot in the staging region.  phase: the address of the payload modulo 4096.  bytes: of
 * the payload.  The caller releases the slot, by slot->source, before close().
 *
 * A store gets a slot only if all slots then take at most half of the region.  While a transfer
 * waits for room in the region, no slot is acquired.  After a restart of the daemon, the former
 * daemon may still write to a slot that a failed read used: do not read into such a slot again.
 *
 * Never blocks.  Returns false if no slot is free now. */
bool kvt__usrbio_client_acquire(struct kvt__usrbio_client *client, enum kvt__prio prio,
                                size_t phase, size_t bytes, struct kvt__slot *out);

/* The first `bytes` bytes of a file in the mount, and the memory that a transfer reads or
 * writes. */
struct kvt__usrbio_extent {
    int fd;     /* open for the direction of the transfer */
    bool reads; /* true: from the file to memory */
    unsigned char *at; /* the memory; a slot of kvt__usrbio_client_acquire() saves a copy */
    size_t bytes;
    struct kvt__counters *counters; /* NULL: no counters */
    /* Reads: called on the calling thread for each piece that has arrived, in the order of the
     * file and without gaps.  Not called for writes. */
    void (*on_piece)(void *ctx, const unsigned char *piece, size_t n);
    void *ctx;
};

/* Transfer the extent.  Blocks; any thread.  After the return, the extent is no longer in use,
 * except as kvt__usrbio_client_acquire() says.
 *
 * Errors have no sentence, since only the caller knows the name of the file:
 *   -ESTALE     the daemon was restarted: open the file again
 *   -ENOTCONN   no daemon serves the mount
 *   -ENOSPC     /dev/shm has no room for the region
 *   -ECANCELED  the client is stopped
 *   -EIO        the file is shorter than the extent, or the daemon's response is invalid
 *   other       the daemon's error, or the error of making the region */
int kvt__usrbio_move(struct kvt__usrbio_client *client,
                     const struct kvt__usrbio_extent *extent);

#endif
