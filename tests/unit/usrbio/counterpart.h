/* SPDX-License-Identifier: Apache-2.0
 *
 * The other side of rings, played by a thread: a plain directory with 3fs-virt in it, a
 * semaphore, and jobs that read and write files.  It shares the client's own mapping of a
 * ring, so the thread sanitizer sees both sides.  Offsets here are written out, not taken
 * from the client. */
#ifndef KVT_TEST_USRBIO_COUNTERPART_H
#define KVT_TEST_USRBIO_COUNTERPART_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "usrbio/abi.h"

#define MAX_RINGS 4
#define MAX_SLOTS 1100

struct served_ring {
    unsigned char *base;
    int32_t n, proc_tail;
    atomic_int done; /* I/Os */
};

struct counterpart {
    char path[128];
    char sem_name[64];
    sem_t *submit;
    pthread_t thread;
    pthread_mutex_t lock; /* rings, memories, files, idle */
    struct served_ring rings[MAX_RINGS];
    const struct kvt__hf3fs_iov *memory;
    int fd; /* the file that every inode means */
    _Atomic uint64_t inode;

    /* How it behaves; set while nothing is in flight. */
    atomic_int job_size;  /* most I/Os of a job; 0: a random number */
    atomic_bool shuffled; /* jobs are done in another order */
    bool idle;            /* takes nothing; counterpart_idle() sets it */
    atomic_bool silent;   /* posts no completion */
    atomic_int result;    /* of all I/Os, -errno; 0: what they give */
    atomic_int short_by;  /* bytes that every I/O lacks */
    atomic_int wrong;     /* completions of slots that are not in flight, to be sent */
    atomic_bool stop;
};

void counterpart_start(struct counterpart *c);
void counterpart_stop(struct counterpart *c);

/* Another daemon takes over: another semaphore, and it knows of nothing. */
void counterpart_restart(struct counterpart *c);

/* Let the counterpart take nothing from now on, or go on at the next post. */
void counterpart_idle(struct counterpart *c, bool idle);

/* After iorcreate: it learns of the ring, as a daemon does in symlink(). */
void counterpart_serve(struct counterpart *c, const struct kvt__hf3fs_ior *ior);
void counterpart_forget(struct counterpart *c, const struct kvt__hf3fs_ior *ior);

/* Links in 3fs-virt/iovs but that of the semaphore; the last name in name[256]. */
int counterpart_links(const struct counterpart *c, char *name);

#endif
