/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory is pinned if the process uses a GPU, and is left alone otherwise. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fakes/gpu/gpu.h"
#include "kvt-test.h"

#include "base/log.h"
#include "gpu/pin.h"
#include "kvtier.h"

static const char *library;
static struct fake_gpu *fake;
static char memory[8192];
static char last_log_line[512];

static void
on_log_line(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    snprintf(last_log_line, sizeof last_log_line, "%s", line);
}

/* Load the driver without creating a context, as PyTorch does at first. */
static void
load(void)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        fail_msg("%s", dlerror());
    fake_gpu_fn *find = (fake_gpu_fn *)(uintptr_t)dlsym(handle, "fake_gpu");
    assert_non_null(find);
    fake = find();
}

static void
without_cuda_nothing_is_pinned(void **state)
{
    struct kvt__pin pin;

    (void)state;
    assert_false(kvt__pin(&pin, memory, sizeof memory));
    kvt__unpin(&pin);
    assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); /* not loaded by kvtier */
}

static void
without_a_context_none_is_made(void **state)
{
    struct kvt__pin pin;

    (void)state;
    load();
    assert_false(kvt__pin(&pin, memory, sizeof memory));
    assert_int_equal(fake->n_retained, 0);
    kvt__unpin(&pin);
}

static void
the_current_context_pins_memory_for_all_contexts(void **state)
{
    struct kvt__pin pin;

    (void)state;
    fake->active = 1;
    assert_true(kvt__pin(&pin, memory, sizeof memory));
    assert_int_equal(fake->n_registered, 1);
    assert_ptr_equal(fake->at, memory);
    assert_int_equal(fake->bytes, sizeof memory);
    assert_int_equal(fake->flags, 1); /* CU_MEMHOSTREGISTER_PORTABLE */
    kvt__unpin(&pin);
    assert_int_equal(fake->n_registered, 0);
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(fake->n_current, 0);
}

static void
a_failure_is_logged_and_leaves_nothing(void **state)
{
    struct kvt__pin pin;

    (void)state;
    fake->fails = 2;
    assert_false(kvt__pin(&pin, memory, sizeof memory));
    assert_non_null(strstr(last_log_line, "CUDA_ERROR_OUT_OF_MEMORY"));
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(fake->n_current, 0);
    fake->fails = 0;
}

static void
a_destroyed_context_does_no_harm(void **state)
{
    struct kvt__pin pin;

    (void)state;
    assert_true(kvt__pin(&pin, memory, sizeof memory));
    fake->active = -1;
    kvt__unpin(&pin);
    assert_int_equal(fake->n_retained, 0);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_cuda_nothing_is_pinned),
        cmocka_unit_test(without_a_context_none_is_made),
        cmocka_unit_test(the_current_context_pins_memory_for_all_contexts),
        cmocka_unit_test(a_failure_is_logged_and_leaves_nothing),
        cmocka_unit_test(a_destroyed_context_does_no_harm),
    };

    library = argc > 1 ? argv[1] : "";
    kvt_set_log(on_log_line, NULL, KVT_LOG_WARN);
    return cmocka_run_group_tests_name("pinned memory", tests, NULL, NULL);
}
