/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies that a test can wait for, and a gate that blocks a stream. */
#ifndef KVT_TEST_PENDING_COPY_H
#define KVT_TEST_PENDING_COPY_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "kvt-test.h"

#include "gpu/device.h"

/* One copy and the result of the copy. */
struct pending_copy {
    struct kvt__gpu_copy copy; /* first */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int n_done;
    int err;
    uint32_t crc;
};

static inline void
on_pending_copy_done(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct pending_copy *a = (void *)copy;

    pthread_mutex_lock(&a->lock);
    a->n_done++;
    a->err = err;
    a->crc = crc;
    pthread_cond_signal(&a->ended);
    pthread_mutex_unlock(&a->lock);
}

static inline void
pending_copy_init(struct pending_copy *a, const struct kvt__view *view,
                  const int32_t *blocks, uint32_t n_tokens, bool on_device,
                  unsigned char *chunk)
{
    *a = (struct pending_copy){ .copy = {
        .view = view, .blocks = blocks, .n_tokens = n_tokens, .sums = true,
        .on_device = on_device, .chunk = chunk, .on_done = on_pending_copy_done } };
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->ended, NULL);
}

static inline int
pending_copy_wait(struct pending_copy *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->n_done)
        pthread_cond_wait(&a->ended, &a->lock);
    pthread_mutex_unlock(&a->lock);
    return a->err;
}

/* A gate: gate_pass(), called on a stream, blocks the stream until gate_open(). */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
    bool forced; /* passed after GATE_SECONDS: the test's thread waits for the stream, a bug */
};

#define GATE { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false }
#define GATE_SECONDS 60

static inline void
gate_pass(void *arg)
{
    struct gate *g = arg;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GATE_SECONDS;
    pthread_mutex_lock(&g->lock);
    while (!g->open && !g->forced)
        g->forced = pthread_cond_timedwait(&g->opened, &g->lock, &until) == ETIMEDOUT;
    pthread_mutex_unlock(&g->lock);
}

static inline void
gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->opened);
    bool forced = g->forced;
    pthread_mutex_unlock(&g->lock);
    assert_false(forced);
}

#endif
