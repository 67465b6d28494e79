/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C of device memory: by a kernel, else by the CPU through a bounce buffer.  The calling
 * thread waits. */
#include <pthread.h>
#include <stdbool.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "gpu/private.h"

struct sum {
    struct kvt__gpu_copy copy; /* first */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    int err;
    uint32_t crc;
};

static void
on_sum_done(struct kvt__gpu_copy *copy, int err, uint32_t crc)
{
    struct sum *s = (void *)copy;

    pthread_mutex_lock(&s->lock);
    s->done = true;
    s->err = err;
    s->crc = crc;
    pthread_cond_signal(&s->ended);
    pthread_mutex_unlock(&s->lock);
}

static int
submit(struct kvt__gpu *gpu, struct kvt__gpu_copy *const *list)
{
    struct kvt__gpu_entered entered;
    int err = kvt__gpu_enter(gpu, &entered);

    if (err)
        return err;
    err = kvt__lane_copy(gpu->lanes[KVT__LANE_SUM], list, 1);
    kvt__gpu_leave(gpu, &entered);
    return err;
}

/* A copy without a view only sums the chunk. */
static int
sum_by_kernel(struct kvt__gpu *gpu, const unsigned char *at, size_t bytes, uint32_t *crc)
{
    struct kvt__gpu_copy *list[1];
    struct sum s = { .copy = { .sums = true, .on_device = true,
                               .chunk = (unsigned char *)at, /* never written */
                               .on_done = on_sum_done, .own.bytes = bytes } };

    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.ended, NULL);
    list[0] = &s.copy;
    int err = submit(gpu, list);
    pthread_mutex_lock(&s.lock);
    while (!err && !s.done)
        pthread_cond_wait(&s.ended, &s.lock);
    pthread_mutex_unlock(&s.lock);
    pthread_mutex_destroy(&s.lock);
    pthread_cond_destroy(&s.ended);
    if (!err && s.err)
        err = kvt__fail(-s.err, "sum the GPU's memory");
    *crc = s.crc;
    return err;
}

static int
sum_by_bounce(struct kvt__gpu *gpu, const unsigned char *at, size_t bytes, uint32_t *crc)
{
    struct kvt__gpu_entered entered;
    int err = kvt__gpu_enter(gpu, &entered);

    if (err)
        return err;
    err = kvt__bounce_sum(gpu, at, bytes, crc);
    kvt__gpu_leave(gpu, &entered);
    return err;
}

int
kvt__gpu_sum(struct kvt__gpu *gpu, const unsigned char *at, size_t bytes, uint32_t *crc)
{
    const size_t most = (size_t)1 << 30;
    uint32_t part;
    int err = 0;

    if (!gpu->by_kernels)
        return sum_by_bounce(gpu, at, bytes, crc);
    *crc = 0;
    for (size_t n; !err && bytes; bytes -= n, at += n) {
        n = bytes < most ? bytes : most;
        err = sum_by_kernel(gpu, at, n, &part);
        *crc = kvt__crc32c_join(*crc, part, n);
    }
    return err;
}
