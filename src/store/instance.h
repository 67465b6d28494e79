/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories of host memory: where the index of a worker's memory lies, so that the
 * scheduler of the worker's engine finds the index. */
#ifndef KVT_STORE_INSTANCE_H
#define KVT_STORE_INSTANCE_H

#include <stdbool.h>
#include <stdint.h>

/* A directory of one worker in memory, private to the user. */
struct kvt__instance {
    int dirfd;
    int worker_fd; /* held by the one worker; -1 */
    char name[32];
};

/* Open or make the directory of a rank of the engine that instance names, after
 * removing those of engines that are gone.  worker: whether it is that rank's
 * worker.  0; -EBUSY another process is; -errno with a sentence. */
int kvt__instance_open(const char *instance, uint32_t rank, bool worker,
                       struct kvt__instance *out);

/* The last one removes the directory.  Nothing when it was never opened. */
void kvt__instance_close(struct kvt__instance *instance);

#endif
