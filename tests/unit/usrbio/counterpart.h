/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's side of rings, simulated by a thread: a plain directory with 3fs-virt, a
 * semaphore, and jobs that read and write files.  The thread shares the client's own mapping of a
 * ring, so the thread sanitizer observes both sides.  The offsets are literals, independent of
 * the client's definitions. */
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
    atomic_int done; /* finished I/Os */
};

struct counterpart {
    char path[128];
    char sem_name[64];
    sem_t *submit;
    pthread_t thread;
    pthread_mutex_t lock; /* guards rings, memory, fd and idle */
    struct served_ring rings[MAX_RINGS];
    const struct kvt__hf3fs_iov *memory;
    int fd; /* the file of all inodes */
    _Atomic uint64_t inode;

    /* Behaviour; set while no I/O is in flight. */
    atomic_int job_size;  /* I/Os of a job, at most; 0: a random number */
    atomic_bool shuffled; /* jobs run in random order */
    bool idle;            /* no I/Os are taken; counterpart_idle() sets this field */
    atomic_bool silent;   /* no posts for completions */
    atomic_int result;    /* result of all I/Os, -errno; 0: the real results */
    atomic_int short_by;  /* bytes that every I/O moves too few */
    atomic_int wrong;     /* completions to send for slots without an I/O in flight */
    atomic_bool stop;
};

void counterpart_start(struct counterpart *c);
void counterpart_stop(struct counterpart *c);

/* Simulate a restart of the daemon: the new daemon has another semaphore and knows no memory and
 * no rings. */
void counterpart_restart(struct counterpart *c);

/* Stop taking I/Os, or resume at the next post.  No I/O is taken after a return with `idle`. */
void counterpart_idle(struct counterpart *c, bool idle);

/* Serve a new ring, after iorcreate4(): a real daemon learns of the ring in symlink().  Or end
 * the service. */
void counterpart_serve(struct counterpart *c, const struct kvt__hf3fs_ior *ior);
void counterpart_forget(struct counterpart *c, const struct kvt__hf3fs_ior *ior);

/* Count the links in 3fs-virt/iovs, except submit-ios.  The last name is in name[256]. */
int counterpart_links(const struct counterpart *c, char *name);

#endif
