/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events and kernels of the simulated GPU.  A stream is a thread with a queue.  Recording
 * an event puts a mark into a queue; a wait for the event waits for the event's last mark.  One
 * lock guards everything; queued work runs without the lock. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-c.h"

#define MAX_PARAMS 5
#define MAX_PITCH INT32_MAX /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

static void test_lose(int error);
static void test_fail(const char *failing, int after, int error, bool once);
static void *test_stream(void);
static void test_end_stream(void *stream);
static void test_call(void *stream, void (*function)(void *), void *arg);
static void test_wait(void *stream);

struct fake_gpu core = {
    .active = -1, .lose = test_lose, .fail_on = test_fail,
    .alloc = core_test_alloc, .free = core_test_free,
    .pinned = core_test_pinned, .unpin = core_test_unpin,
    .stream = test_stream, .end_stream = test_end_stream, .call = test_call,
    .wait = test_wait,
};

pthread_mutex_t core_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Thread_local int current = -1;

__attribute__((visibility("default"))) struct fake_gpu *fake_gpu(void);

struct fake_gpu *
fake_gpu(void)
{
    return &core;
}

int
core_n_devices(void)
{
    const char *text = getenv("GPU_FAKE");
    int n = text ? atoi(text) : 2;

    return n < MAX_DEVICES ? n : MAX_DEVICES;
}

int
core_device(void)
{
    return current;
}

void
core_set_device(int device)
{
    current = device;
}

int
core_retain(int device)
{
    const char *lost = getenv("GPU_LOST");

    if (lost && atoi(lost) == device)
        return UNAVAILABLE;
    pthread_mutex_lock(&core_lock);
    core.n_retained++;
    if (core.active < 0)
        core.active = device;
    pthread_mutex_unlock(&core_lock);
    return 0;
}

int
core_enter(const char *function, int device)
{
    int error = 0;

    pthread_mutex_lock(&core_lock);
    if (core.failing && strcmp(core.failing, function) == 0 && core.after-- <= 0) {
        error = core.error;
        core.failing = core.once ? NULL : core.failing;
    }
    if (!error && device >= 0 && current != device)
        error = INVALID_CONTEXT;
    if (!error && device >= 0 && core.broken)
        error = core.broken;
    pthread_mutex_unlock(&core_lock);
    return error;
}

void
core_count(int *counter, int n)
{
    pthread_mutex_lock(&core_lock);
    *counter += n;
    pthread_mutex_unlock(&core_lock);
}

/* ------------------------------------------------------------------ streams */

/* A place in a queue, which queues and threads can wait for. */
struct mark {
    int n_holders;
    bool reached;
};

struct op {
    struct op *next;
    void (*run)(struct op *op);
    struct mark *mark;
    void (*function)(void *);
    void *arg;
    char *to;
    const char *from;
    int value;
    size_t to_pitch, from_pitch, width, height;
    kernel_c *kernel;
    unsigned n_blocks;
    union {
        uint64_t bytes[MAX_PARAMS];
    } params;
};

struct stream {
    pthread_t thread;
    pthread_cond_t more;
    struct op *first;
    struct op **last;
    int device;
    bool busy;
    bool stop;
};

struct event {
    struct mark *mark; /* NULL: never recorded */
};

static struct stream *default_stream;

static void
release(struct mark *mark)
{
    if (mark && --mark->n_holders == 0)
        free(mark);
}

static void *
serve(void *arg)
{
    struct stream *s = arg;

    pthread_mutex_lock(&core_lock);
    while (!s->stop || s->first) {
        struct op *op = s->first;

        if (!op) {
            pthread_cond_wait(&s->more, &core_lock);
            continue;
        }
        s->first = op->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&core_lock);
        op->run(op);
        free(op);
        pthread_mutex_lock(&core_lock);
        s->busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&core_lock);
    return NULL;
}

static struct stream *
new_stream(void)
{
    struct stream *s = calloc(1, sizeof *s);

    s->last = &s->first;
    s->device = current;
    pthread_cond_init(&s->more, NULL);
    if (pthread_create(&s->thread, NULL, serve, s))
        abort();
    return s;
}

int
core_stream_create(void **stream)
{
    *stream = new_stream();
    core_count(&core.n_alive, 1);
    return 0;
}

static void
end_stream(struct stream *s)
{
    pthread_mutex_lock(&core_lock);
    s->stop = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&core_lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->more);
    free(s);
}

int
core_stream_destroy(void *stream)
{
    if (!stream)
        return INVALID_HANDLE;
    end_stream(stream);
    core_count(&core.n_alive, -1);
    return 0;
}

__attribute__((destructor)) static void
end_default(void)
{
    if (default_stream)
        end_stream(default_stream);
}

static struct stream *
stream_of(void *stream)
{
    pthread_mutex_lock(&core_lock);
    if (!stream && !default_stream)
        default_stream = new_stream();
    pthread_mutex_unlock(&core_lock);
    return stream ? stream : default_stream;
}

static void
put(void *stream, struct op op)
{
    struct stream *s = stream_of(stream);
    struct op *new = malloc(sizeof *new);

    *new = op;
    new->next = NULL;
    pthread_mutex_lock(&core_lock);
    *s->last = new;
    s->last = &new->next;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&core_lock);
}

int
core_stream_sync(void *stream)
{
    struct stream *s = stream_of(stream);

    pthread_mutex_lock(&core_lock);
    while (s->first || s->busy)
        pthread_cond_wait(&changed, &core_lock);
    int error = core.broken;
    pthread_mutex_unlock(&core_lock);
    return error;
}

/* ------------------------------------------------------------------- events */

int
core_event_create(void **event)
{
    *event = calloc(1, sizeof(struct event));
    core_count(&core.n_alive, 1);
    return 0;
}

int
core_event_destroy(void *event)
{
    struct event *e = event;

    pthread_mutex_lock(&core_lock);
    release(e->mark);
    core.n_alive--;
    pthread_mutex_unlock(&core_lock);
    free(e);
    return 0;
}

static void
run_mark(struct op *op)
{
    pthread_mutex_lock(&core_lock);
    op->mark->reached = true;
    release(op->mark);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&core_lock);
}

static void
run_wait(struct op *op)
{
    pthread_mutex_lock(&core_lock);
    while (!op->mark->reached)
        pthread_cond_wait(&changed, &core_lock);
    release(op->mark);
    pthread_mutex_unlock(&core_lock);
}

int
core_event_record(void *event, void *stream)
{
    struct mark *mark = calloc(1, sizeof *mark);
    struct event *e = event;

    mark->n_holders = 2; /* the event and the queue */
    pthread_mutex_lock(&core_lock);
    release(e->mark);
    e->mark = mark;
    pthread_mutex_unlock(&core_lock);
    put(stream, (struct op){ .run = run_mark, .mark = mark });
    return 0;
}

static struct mark *
mark_of(struct event *e)
{
    pthread_mutex_lock(&core_lock);
    struct mark *mark = e->mark;
    if (mark)
        mark->n_holders++;
    pthread_mutex_unlock(&core_lock);
    return mark;
}

int
core_stream_wait(void *stream, void *event)
{
    struct mark *mark = mark_of(event);

    if (mark)
        put(stream, (struct op){ .run = run_wait, .mark = mark });
    return 0;
}

int
core_event_sync(void *event)
{
    struct op op = { .mark = mark_of(event) };

    if (op.mark)
        run_wait(&op);
    pthread_mutex_lock(&core_lock);
    int error = core.broken;
    pthread_mutex_unlock(&core_lock);
    return error;
}

/* --------------------------------------------------------------------- work */

static bool
is_broken(void)
{
    pthread_mutex_lock(&core_lock);
    bool broken = core.broken;
    pthread_mutex_unlock(&core_lock);
    return broken;
}

static void
run_call(struct op *op)
{
    op->function(op->arg);
}

int
core_call(void *stream, void (*function)(void *), void *arg)
{
    put(stream, (struct op){ .run = run_call, .function = function, .arg = arg });
    return 0;
}

static void
run_copy(struct op *op)
{
    core_show(op->to);
    core_show(op->from);
    for (size_t i = 0; !is_broken() && i < op->height; i++)
        memcpy(op->to + i * op->to_pitch, op->from + i * op->from_pitch, op->width);
    core_hide(op->from);
    core_hide(op->to);
}

int
core_copy(void *to, const void *from, size_t to_pitch, size_t from_pitch, size_t width,
          size_t height, void *stream)
{
    if (!width || !height || (height > 1 && (to_pitch < width || from_pitch < width)) ||
        to_pitch > MAX_PITCH || from_pitch > MAX_PITCH)
        return INVALID_VALUE;
    core_look(to, (height - 1) * to_pitch + width);
    core_look(from, (height - 1) * from_pitch + width);
    put(stream, (struct op){ .run = run_copy, .to = to, .from = from, .to_pitch = to_pitch,
                             .from_pitch = from_pitch, .width = width, .height = height });
    return 0;
}

static void
run_fill(struct op *op)
{
    core_show(op->to);
    if (!is_broken())
        memset(op->to, op->value, op->width);
    core_hide(op->to);
}

int
core_fill(void *at, int value, size_t n, void *stream)
{
    if (!n)
        return INVALID_VALUE;
    core_look(at, n);
    put(stream, (struct op){ .run = run_fill, .to = at, .value = value, .width = n });
    return 0;
}

/* ------------------------------------------------------------------ kernels */

int
core_module_load(void **module, const void *image)
{
    if (strncmp(image, FAKE_IMAGE, strlen(FAKE_IMAGE)) != 0)
        return INVALID_IMAGE;
    *module = malloc(1);
    core_count(&core.n_alive, 1);
    return 0;
}

int
core_module_unload(void *module)
{
    free(module);
    core_count(&core.n_alive, -1);
    return 0;
}

int
core_module_function(void **function, void *module, const char *name)
{
    (void)module;
    for (size_t i = 0; kernels_c[i].name; i++) {
        if (strcmp(kernels_c[i].name, name) == 0) {
            *function = (void *)(uintptr_t)&kernels_c[i];
            return 0;
        }
    }
    return NOT_FOUND;
}

/* Run the thread blocks from the last to the first: kernels must not rely on an order. */
static void
run_kernel(struct op *op)
{
    core_show(NULL);
    for (unsigned block = op->n_blocks; !is_broken() && block--;)
        op->kernel(block, op->n_blocks, op->params.bytes);
    core_hide(NULL);
}

int
core_launch(void *function, const unsigned grid[3], const unsigned block[3], void *stream,
            void **params)
{
    const struct kernel_c *kernel = function;
    struct op op = { .run = run_kernel, .kernel = kernel->run, .n_blocks = grid[0] };

    if (!grid[0] || grid[1] != 1 || grid[2] != 1 || block[0] != kernel->n_threads ||
        block[1] != 1 || block[2] != 1)
        return INVALID_VALUE;
    for (size_t i = 0; i < kernel->n_params; i++) {
        bool last = i + 1 == kernel->n_params; /* has 32 bits; the others are pointers */

        memcpy(&op.params.bytes[i], params[i], last ? sizeof(uint32_t) : sizeof(uint64_t));
    }
    core_count(&core.n_launched, 1);
    put(stream, op);
    return 0;
}

/* ---------------------------------------------------------------- for tests */

static void
test_fail(const char *failing, int after, int error, bool once)
{
    pthread_mutex_lock(&core_lock);
    core.failing = failing;
    core.after = after;
    core.error = error;
    core.once = once;
    pthread_mutex_unlock(&core_lock);
}

static void
test_lose(int error)
{
    pthread_mutex_lock(&core_lock);
    core.broken = error;
    pthread_mutex_unlock(&core_lock);
}

static void *
test_stream(void)
{
    void *stream;

    core_stream_create(&stream);
    return stream;
}

static void
test_end_stream(void *stream)
{
    core_stream_destroy(stream);
}

static void
test_call(void *stream, void (*function)(void *), void *arg)
{
    core_call(stream, function, arg);
}

static void
test_wait(void *stream)
{
    core_stream_sync(stream);
}
