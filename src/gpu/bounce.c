/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C of device memory on the CPU.  The bytes are copied to host memory in pieces; the CPU sums
 * one piece while the device copies the next piece. */
#include <errno.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "gpu/private.h"

#define PIECE ((size_t)1 << 20)

struct kvt__bounce {
    pthread_mutex_t lock;
    void *stream;
    void *arrived[2];      /* events: the copies of both pieces */
    unsigned char *buffer; /* pinned host memory for two pieces */
};

int
kvt__bounce_open(struct kvt__gpu *gpu, struct kvt__bounce **out)
{
    const struct kvt__driver *d = &gpu->driver;
    struct kvt__bounce *b = calloc(1, sizeof *b);
    void *buffer = NULL;

    if (!b)
        return kvt__fail(ENOMEM, "a bounce buffer for the GPU");
    pthread_mutex_init(&b->lock, NULL);
    int error = d->stream_create(&b->stream, KVT__STREAM_ALONE, 0);
    for (int i = 0; !error && i < 2; i++)
        error = d->event_create(&b->arrived[i], KVT__EVENT_BLOCKS | KVT__EVENT_NO_TIME);
    if (!error)
        error = d->host_alloc(&buffer, 2 * PIECE, KVT__HOST_PORTABLE);
    b->buffer = buffer;
    if (!error) {
        *out = b;
        return 0;
    }
    kvt__bounce_close(gpu, b, true);
    return kvt__gpu_fail(gpu, error, "The GPU's driver cannot create a stream, or allocate "
                         "pinned memory");
}

static void
free_objects(const struct kvt__driver *d, struct kvt__bounce *b)
{
    if (b->buffer)
        d->host_free(b->buffer);
    for (int i = 0; i < 2; i++)
        if (b->arrived[i])
            d->event_destroy(b->arrived[i]);
    if (b->stream)
        d->stream_destroy(b->stream);
}

void
kvt__bounce_close(struct kvt__gpu *gpu, struct kvt__bounce *b, bool entered)
{
    if (!b)
        return;
    if (entered)
        free_objects(&gpu->driver, b);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/* Queue the copy of n bytes into piece i of the buffer. */
static int
copy_piece(const struct kvt__driver *d, struct kvt__bounce *b, size_t i,
           const unsigned char *at, size_t n)
{
    int error = kvt__driver_copy(d, b->buffer + i * PIECE, at, n, b->stream);

    return error ? error : d->event_record(b->arrived[i], b->stream);
}

int
kvt__bounce_sum(struct kvt__gpu *gpu, const unsigned char *at, uint64_t bytes,
                uint32_t *crc)
{
    const struct kvt__driver *d = &gpu->driver;
    struct kvt__bounce *b = gpu->bounce;
    size_t i = 0, n = bytes < PIECE ? bytes : PIECE, next;
    int error;

    *crc = 0;
    pthread_mutex_lock(&b->lock);
    error = n ? copy_piece(d, b, i, at, n) : 0;
    for (; !error && n; i = 1 - i, n = next) {
        at += n;
        bytes -= n;
        next = bytes < PIECE ? bytes : PIECE;
        if (next)
            error = copy_piece(d, b, 1 - i, at, next);
        if (!error)
            error = d->event_sync(b->arrived[i]);
        if (!error)
            *crc = kvt__crc32c(*crc, b->buffer + i * PIECE, n);
    }
    if (error)
        d->stream_sync(b->stream); /* after this no copy writes into the buffer */
    pthread_mutex_unlock(&b->lock);
    return error ? kvt__gpu_fail(gpu, error, "The GPU's memory cannot be read") : 0;
}
