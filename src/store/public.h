/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of kvtier.h's store, inside the room. */
#ifndef KVT_STORE_PUBLIC_H
#define KVT_STORE_PUBLIC_H

#include <pthread.h>
#include <sys/types.h>

#include "kvtier.h"
#include "store/private.h"

/* lock guards the requests under way and those that are done. */
struct kvt_store {
    pid_t pid;
    struct kvt__counters counters;
    struct kvt__exec *exec;
    struct kvt__store *store;
    int64_t patience_ns;  /* of closing */
    atomic_bool stopping; /* nothing more is begun */

    pthread_mutex_t lock;
    pthread_cond_t idle;  /* on the monotonic clock */
    size_t n_under_way;
    struct kvt__task *first_done, **last_done;
    int eventfd;
};

/* A caller's request on its way. */
struct kvt__task {
    struct kvt__job job;
    struct kvt_store *store;
    struct kvt_op *op;
    struct kvt__task *next;

    /* direct.c's */
    struct kvt__object object;
    struct kvt__space space;
    size_t level;
    bool any;   /* a level had it, or has it now */
    int failed; /* why tells it */
    char why[320];
    struct kvt__tier_op tier_op;
    struct kvt__store_req req;
};

/* It is over; a sentence is in kvt__why().  Any thread. */
void kvt__task_end(struct kvt__task *task, int status);

/* What a request is about.  0 or -EINVAL. */
int kvt__op_object(const struct kvt__store *store, const struct kvt_op *op,
                   struct kvt__object *object, struct kvt__space *space);

/* Run it on the calling thread.  Blocks.  0 or -errno with a sentence. */
int kvt__op_run(struct kvt__store *store, struct kvt_op *op);

/* Is what was read what the key says?  0 or -EBADMSG with a sentence. */
int kvt__op_check(const struct kvt_op *op, const struct kvt__level *level,
                  const struct kvt__object *object, const struct kvt__found *found);

void kvt__op_tell(struct kvt_op *op, const struct kvt__found *found);

/* Whether a GET needs neither a look at the size first nor memory of its own, and that
 * GET, on the calling thread.  Larger ones want their size told, so that they are read in
 * parts. */
bool kvt__gets_straight(const struct kvt__level *level, const struct kvt_op *op);
int kvt__get_straight(struct kvt__level *level, const struct kvt__object *object,
                      struct kvt_op *op);

/* Whether no tier needs a thread that waits, or memory of its own. */
bool kvt__store_is_direct(const struct kvt__store *store);

/* Whether a request of it keeps no thread waiting.  Then kvt__direct() starts it and
 * kvt__task_end() ends it. */
bool kvt__op_is_direct(const struct kvt__store *store, const struct kvt_op *op);
void kvt__direct(struct kvt__task *task);

#endif
