/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories for the indexes of host memory: a directory of each worker, in which the
 * scheduler of the worker's engine finds the index.  Any thread. */
#ifndef KVT_STORE_INSTANCE_H
#define KVT_STORE_INSTANCE_H

#include <stdbool.h>
#include <stdint.h>

/* An open directory of a worker, on a tmpfs and private to the user. */
struct kvt__instance {
    int dirfd;     /* with a shared flock; -1: none */
    int worker_fd; /* file `worker` with an exclusive flock; -1 in other processes */
    char name[32]; /* of the directory; "": not open */
};

/* Open the directory of a rank of an engine; create the directory if it does not exist.  instance:
 * the engine's name.  worker: this process is the rank's worker; then first remove the directories
 * that killed engines left.  0; with a sentence -EBUSY: another process is the rank's worker; or
 * another -errno. */
int kvt__instance_open(const char *instance, uint32_t rank, bool worker,
                       struct kvt__instance *out);

/* Close the directory; the last user removes the directory.  No effect if the directory is
 * not open. */
void kvt__instance_close(struct kvt__instance *instance);

#endif
