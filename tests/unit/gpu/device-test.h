/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU for tests of copies, with equal KV in device memory and in host memory: the expected bytes
 * come from the copies of gpu/copy.h in host memory.
 *
 * Arguments of the program: the driver (tests/rig.h), and for a fake driver a fake compiler. */
#ifndef KVT_DEVICE_TEST_H
#define KVT_DEVICE_TEST_H

#include <errno.h>

#include "kvt-test.h"
#include "rig.h"
#include "temp-dir.h"
#include "unit/gpu/pending-copy.h"
#include "unit/gpu/paged.h"

#include "gpu/device.h"

static struct temp_dir cache;
static const char *method = "kernel";
static struct kvt__gpu *gpu;
static void *stream;

static inline int
try_gpu(size_t staging_bytes)
{
    const struct kvt__gpu_params params = {
        .kind = rig.kind, .ordinal = rig.ordinal, .staging_bytes = staging_bytes,
        .copies = method, .cache = cache.path };

    return kvt__gpu_open(&params, &gpu);
}

static inline void
open_with(size_t staging_bytes)
{
    if (try_gpu(staging_bytes))
        fail_msg("%s", kvt__why());
}

static inline int
open_gpu(void **state)
{
    (void)state;
    rig_watch();
    open_with(1); /* the minimum of staging memory: a chunk needs many parts */
    stream = rig_stream();
    return 0;
}

static inline int
close_gpu(void **state)
{
    (void)state;
    kvt__gpu_close(gpu);
    rig_end_stream(stream);
    assert_true(rig_is_at_rest());
    if (rig.fake)
        assert_int_equal(rig.fake->n_pageable, 0); /* no copy used pageable memory */
    return 0;
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, open_gpu, close_gpu)

/* ------------------------------------------------------------------------- KV */

/* A copy in device memory of a view and its KV in host memory. */
struct twin {
    struct kvt__view view;
    void *base[MAX_PLANES];
    unsigned char *memory;
};

static inline void
twin_make(struct twin *t, const struct paged *p)
{
    t->memory = rig_alloc(p->bytes);
    t->view = p->view;
    t->view.base = t->base;
    for (uint32_t i = 0; i < p->view.n_kv * p->view.n_layers; i++)
        t->base[i] = t->memory + ((unsigned char *)p->base[i] - p->memory);
    rig_put(t->memory, p->memory, p->bytes);
}

static inline void
twin_end(struct twin *t, struct paged *p)
{
    rig_free(t->memory);
    paged_free(p->memory);
}

/* ---------------------------------------------------------------------- copies */

static inline void
gather(struct pending_copy *a)
{
    struct kvt__gpu_copy *list[] = { &a->copy };

    assert_int_equal(kvt__gpu_gather(gpu, stream, list, 1), 0);
    assert_int_equal(pending_copy_wait(a), 0);
}

static inline void
scatter(struct pending_copy *a)
{
    struct kvt__gpu_copy *list[] = { &a->copy };

    assert_int_equal(kvt__gpu_scatter(gpu, list, 1), 0);
    assert_int_equal(pending_copy_wait(a), 0);
}

static inline bool
all_are(const unsigned char *at, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value)
            return false;
    return true;
}

/* ------------------------------------------------------------------------ main */

/* Return an error if the GPU has no kernels because no compiler is installed.  Fail if kernels are
 * required, or for another reason. */
static inline bool
lacks_kernels(bool demanded)
{
    int err = try_gpu(0);

    if (!err)
        kvt__gpu_close(gpu);
    else if (demanded || err != -ENOENT)
        fail_msg("%s", kvt__why());
    else
        print_message("kernels are not tried: %s\n", kvt__why());
    return err;
}

/* Run the tests with kernels, then with batch copies; $KVTIER_TEST_COPIES selects one of both. */
static inline int
run_both_ways(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    const char *only = getenv("KVTIER_TEST_COPIES");
    int failed = 0;

    if (argc < 2)
        return 1;
    rig_open_or_skip(argv[1]);
    if (argc > 2 && !dlopen(argv[2], RTLD_NOW | RTLD_LOCAL))
        fail_msg("%s", dlerror());
    temp_dir_make(&cache);
    rig_watch();
    if ((!only || strstr(only, method)) && !lacks_kernels(argc > 2))
        failed += _cmocka_run_group_tests(method, tests, n, NULL, NULL);
    method = "batch";
    if (!only || strstr(only, method))
        failed += _cmocka_run_group_tests(method, tests, n, NULL, NULL);
    temp_dir_remove(&cache);
    return failed;
}

#endif
