/* SPDX-License-Identifier: Apache-2.0
 *
 * Keep a stream busy, as a model that computes would.  The work is a kernel that should fill all
 * multiprocessors for about 20 microseconds.  If the driver cannot load a kernel from PTX text
 * (HIP), the work is copies in device memory.  A thread queues a batch while the device works on
 * another batch, and sleeps in between. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

#define THREADS 256u
#define BLOCKS_EACH 8u /* thread blocks for each multiprocessor: fills all thread slots */
#define ITERATIONS 256u
#define LAUNCHES 16 /* kernels of a batch */
#define COPIES 8    /* copies of a batch */

/* PTX: eight multiply-adds in each turn.  The condition for the store at the end is never true. */
static const char text[] =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry busy(.param .u64 out, .param .u32 turns)\n"
    "{\n"
    "    .reg .pred %more, %never;\n"
    "    .reg .b32 %left, %thread;\n"
    "    .reg .b64 %at;\n"
    "    .reg .f32 %x<8>, %y;\n"
    "    ld.param.u64 %at, [out];\n"
    "    cvta.to.global.u64 %at, %at;\n"
    "    ld.param.u32 %left, [turns];\n"
    "    mov.u32 %thread, %tid.x;\n"
    "    cvt.rn.f32.u32 %y, %thread;\n"
    "    mov.f32 %x0, %y; mov.f32 %x1, %y; mov.f32 %x2, %y; mov.f32 %x3, %y;\n"
    "    mov.f32 %x4, %y; mov.f32 %x5, %y; mov.f32 %x6, %y; mov.f32 %x7, %y;\n"
    "again:\n"
    "    fma.rn.f32 %x0, %x0, %x0, %x1; fma.rn.f32 %x1, %x1, %x1, %x2;\n"
    "    fma.rn.f32 %x2, %x2, %x2, %x3; fma.rn.f32 %x3, %x3, %x3, %x4;\n"
    "    fma.rn.f32 %x4, %x4, %x4, %x5; fma.rn.f32 %x5, %x5, %x5, %x6;\n"
    "    fma.rn.f32 %x6, %x6, %x6, %x7; fma.rn.f32 %x7, %x7, %x7, %x0;\n"
    "    sub.u32 %left, %left, 1;\n"
    "    setp.ne.u32 %more, %left, 0;\n"
    "    @%more bra again;\n"
    "    setp.lt.f32 %never, %x7, 0fBF800000;\n"
    "    @%never st.global.f32 [%at], %x7;\n"
    "    ret;\n"
    "}\n";

struct busy {
    const struct machine *m;
    void *module, *kernel; /* NULL: copies */
    unsigned n_blocks;
    unsigned char *memory; /* 2 * bytes of device memory; for kernels the unused output */
    size_t bytes;
    void *stream, *ended[2];
    pthread_t thread;
    bool runs;
    atomic_bool stop;
    atomic_size_t n_batches;
    atomic_int error;
};

/* ---------------------------------------------------------------------------- the work */

static int
put_batch(struct busy *b)
{
    const struct kvt__driver *d = &b->m->d;
    uint64_t out = (uintptr_t)b->memory;
    uint32_t turns = ITERATIONS;
    void *params[] = { &out, &turns };
    int error = 0;

    for (int i = 0; !error && i < (b->kernel ? LAUNCHES : COPIES); i++)
        error = b->kernel ? d->launch(b->kernel, b->n_blocks, 1, 1, THREADS, 1, 1, 0,
                                      b->stream, params, NULL)
                          : kvt__driver_copy(d, b->memory + b->bytes, b->memory, b->bytes,
                                             b->stream);
    return error;
}

static void *
keep_busy(void *arg)
{
    struct busy *b = arg;
    const struct kvt__driver *d = &b->m->d;
    struct kvt__context context = b->m->context; /* each thread enters its own copy */
    int error = kvt__context_enter(d, &context);
    bool entered = !error;

    for (int i = 0; !error && !atomic_load(&b->stop); i ^= 1) {
        error = put_batch(b);
        if (!error)
            error = d->event_record(b->ended[i], b->stream);
        if (!error && atomic_fetch_add(&b->n_batches, 1))
            error = d->event_sync(b->ended[!i]); /* wait for the previous batch */
    }
    int late = entered ? d->stream_sync(b->stream) : 0;
    atomic_store(&b->error, error ? error : late);
    if (entered)
        kvt__context_leave(d, &context);
    return NULL;
}

/* ------------------------------------------------------------------------- begin, end */

static void
find_kernel(struct busy *b)
{
    const struct kvt__driver *d = &b->m->d;
    int major, minor, n;

    if (d->kind != KVT__GPU_CUDA || !d->kernels ||
        kvt__driver_capability(d, b->m->context.device, &major, &minor, &n))
        return;
    b->n_blocks = (unsigned)n * BLOCKS_EACH;
    if (d->module_load(&b->module, text))
        b->module = NULL;
    else if (d->module_function(&b->kernel, b->module, "busy"))
        b->kernel = NULL;
}

static int
prepare(struct busy *b, bool quick)
{
    const struct kvt__driver *d = &b->m->d;
    const unsigned flags = KVT__EVENT_BLOCKS | KVT__EVENT_NO_TIME;

    find_kernel(b);
    b->bytes = b->kernel ? 4096 : (size_t)(quick ? 1 : 64) << 20;
    int code = machine_alloc(b->m, 2 * b->bytes, &b->memory);
    if (code)
        return code;
    int error = d->stream_create(&b->stream, KVT__STREAM_ALONE, 0);
    if (error)
        b->stream = NULL;
    for (int i = 0; !error && i < 2; i++) {
        error = d->event_create(&b->ended[i], flags);
        if (error)
            b->ended[i] = NULL;
    }
    return error ? machine_fail(b->m, error, "prepare the busy stream") : 0;
}

int
busy_begin(const struct machine *m, bool quick, struct busy **out)
{
    struct busy *b = calloc(1, sizeof *b);

    if (!b) {
        fprintf(stderr, "kvtier-bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    *out = b;
    b->m = m;
    int code = prepare(b, quick);
    if (code)
        return code;
    b->runs = !pthread_create(&b->thread, NULL, keep_busy, b);
    if (b->runs)
        return 0;
    fprintf(stderr, "kvtier-bench: start a thread of the busy stream\n");
    return CLI_ENVIRONMENT;
}

const char *
busy_kind(const struct busy *busy)
{
    return busy->kernel ? "kernels" : "copies";
}

int
busy_end(struct busy *b)
{
    int code = 0;

    if (!b)
        return 0;
    const struct kvt__driver *d = &b->m->d;
    atomic_store(&b->stop, true);
    if (b->runs)
        pthread_join(b->thread, NULL);
    int error = atomic_load(&b->error);
    if (error)
        code = machine_fail(b->m, error, "run work in the busy stream");
    for (int i = 0; i < 2; i++)
        if (b->ended[i])
            d->event_destroy(b->ended[i]);
    if (b->stream)
        d->stream_destroy(b->stream);
    if (b->module)
        d->module_unload(b->module);
    machine_free(b->m, b->memory);
    free(b);
    return code;
}
