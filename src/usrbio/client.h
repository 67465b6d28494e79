/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving bytes between memory and files of one 3FS mount: a staging region that the
 * mount's daemon reads and writes, and a few rings through which it is told what.  All
 * clients of a mount in this process are one.
 *
 * When the daemon is restarted, what was under way fails with -ESTALE, and a new region
 * with new rings takes the place of the old one; files must then be opened again. */
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
    uint64_t iov_bytes; /* of the staging region */
    uint32_t entries;   /* I/Os under way in one ring, at most */
    int io_depth;       /* 0: as we think best; above 0: the daemon takes full groups of
                         * so many, and what is no full group goes another way; below
                         * 0: it takes at most -io_depth at a time */
    int node;           /* memory node of the region; -1: any */
    uint32_t n_pairs;   /* of rings: one to read and one to write */
};

/* Find the process's client of that mount, or make one: region, rings and threads.
 * Clients with other parameters than the first one's share its region, and a line of the
 * log says so.  Blocks.  0 or -errno with a sentence. */
int kvt__usrbio_client_open(const struct kvt__usrbio_params *params,
                            struct kvt__usrbio_client **out);

/* What is under way ends soon and what begins from now on at once, with -ECANCELED: as
 * soon as all that have opened it say so. */
void kvt__usrbio_client_stop(struct kvt__usrbio_client *client);

/* Stopped, and nothing of the caller's is under way.  Blocks. */
void kvt__usrbio_client_close(struct kvt__usrbio_client *client);

/* A slot in the staging region, its payload at that address modulo 4096, to be released
 * before the client is closed.  For stores at most half of the region is lent; and none
 * while other memory waits for room there.  What was read into one while the daemon was
 * restarted may change still: it is not to be read into again.  Never blocks; false: there
 * is none now. */
bool kvt__usrbio_client_lend(struct kvt__usrbio_client *client, enum kvt__prio prio,
                             size_t phase, size_t bytes, struct kvt__slot *out);

/* The first bytes of a file of the mount, and where they go or come from. */
struct kvt__usrbio_extent {
    int fd;     /* open in that direction */
    bool reads; /* the file */
    unsigned char *at; /* in a slot that was lent they are not copied */
    size_t bytes;
    struct kvt__counters *counters; /* NULL: nothing is counted */
    /* Reads: called for each piece that is there, in order and without a gap. */
    void (*came)(void *ctx, const unsigned char *piece, size_t n);
    void *ctx;
};

/* Move it.  Blocks, on any thread; when it returns, nothing moves any more.  -ESTALE: the
 * daemon is another one now, open the file again; -ENOTCONN: there is none; -ECANCELED:
 * stopped; -EIO: the file is shorter; others as the daemon says.  Without a sentence: who
 * names the file makes it. */
int kvt__usrbio_move(struct kvt__usrbio_client *client,
                     const struct kvt__usrbio_extent *extent);

#endif
