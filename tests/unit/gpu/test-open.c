/* SPDX-License-Identifier: Apache-2.0
 *
 * Open a GPU: requirements, source of the kernels; and the results of copies when functions of the
 * driver fail. */
#include "unit/gpu/fake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/log.h"

static char **arguments;

static void
without_a_driver_there_is_no_gpu(void **state)
{
    struct kvt__gpu *gpu;

    (void)state;
    fake_kind = strcmp(arguments[1], "hip") == 0 ? KVT__GPU_HIP : KVT__GPU_CUDA;
    assert_int_equal(fake_try(NULL, 0, &gpu), -ENODEV);
    assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); /* not loaded by kvtier */
    fake_load(arguments);
}

static void
without_a_context_there_is_no_gpu(void **state)
{
    struct kvt__gpu *gpu;

    (void)state;
    if (fake_kind == KVT__GPU_HIP)
        skip(); /* HIP has no contexts */
    fake->active = -1;
    assert_int_equal(fake_try(NULL, 0, &gpu), -ENODEV);
    fake->active = 0; /* only another device has a context */
    assert_int_equal(fake_try(NULL, 0, &gpu), -ENODEV);
    assert_int_equal(fake->n_retained, 0);
    fake->active = 1;
}

static void
expect_nothing_left(void)
{
    assert_int_equal(fake->n_alive, 0);
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(fake->n_current, 0);
    assert_int_equal(fake->n_misused, 0);
}

static void
open_and_close(const char *copies, const char *description)
{
    struct kvt__gpu *gpu = fake_open(copies, 0);

    if (!strstr(kvt__gpu_describe(gpu), description))
        fail_msg("%s", kvt__gpu_describe(gpu));
    kvt__gpu_close(gpu);
    expect_nothing_left();
}

/* Find the only file in the cache. */
static void
find_cached(char path[512])
{
    char directory[128];

    snprintf(directory, sizeof directory, "%s/kvtier-%lu", cache,
             (unsigned long)geteuid());
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    *path = '\0';
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        assert_int_equal(*path, '\0');
        snprintf(path, 512, "%s/%s", directory, e->d_name);
    }
    closedir(dir);
    assert_int_not_equal(*path, '\0');
}

static void
kernels_are_compiled_once(void **state)
{
    (void)state;
    open_and_close("kernel", "(fake 1), kernels");
    assert_int_equal(compiler->n_compiled, 1);
    open_and_close("kernel", "(fake 1), kernels");
    assert_int_equal(compiler->n_compiled, 1);
}

static void
a_damaged_cache_is_made_anew(void **state)
{
    static const off_t places[] = { 0, 31, 32, 50 };
    char path[512], byte;

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int before = compiler->n_compiled;

        find_cached(path);
        int fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, places[i]), 1);
        byte = (char)~byte;
        assert_int_equal(pwrite(fd, &byte, 1, places[i]), 1);
        close(fd);
        open_and_close("kernel", "kernels");
        assert_int_equal(compiler->n_compiled, before + 1);
    }
    int before = compiler->n_compiled;
    assert_int_equal(truncate(path, 40), 0);
    open_and_close("kernel", "kernels");
    assert_int_equal(truncate(path, 0), 0);
    open_and_close("kernel", "kernels");
    assert_int_equal(compiler->n_compiled, before + 2);
    open_and_close("kernel", "kernels");
    assert_int_equal(compiler->n_compiled, before + 2);
}

static void
the_copy_method_is_measured_or_forced(void **state)
{
    (void)state;
    fake->n_launched = 0;
    open_and_close("batch", "batch copies");
    assert_int_equal(fake->n_launched, 0);
    open_and_close(NULL, "fake 1");
    assert_true(fake->n_launched > 0);
}

static void
kernels_that_do_not_run_are_replaced_by_copies(void **state)
{
    (void)state;
    fake->fail_on(fake_kind == KVT__GPU_HIP ? "hipModuleLaunchKernel" : "cuLaunchKernel", 0, 719,
                  false);
    open_and_close(NULL, "batch copies");
    fake->fail_on(NULL, 0, 0, false);
}

static void
kernels_that_do_not_compile_are_replaced_by_copies(void **state)
{
    struct kvt__gpu *gpu;
    char path[512];

    (void)state;
    find_cached(path);
    assert_int_equal(unlink(path), 0);
    compiler->error = 6;
    assert_int_equal(fake_try("kernel", 0, &gpu), -EIO);
    assert_non_null(strstr(kvt__why(), "error: fake"));
    expect_nothing_left();
    open_and_close(NULL, "batch copies: ");
    compiler->error = 0;
}

/* ------------------------------------------------------------------- errors */

/* The driver's functions that opening and copying call, by both vendors' names. */
static const char *const functions[][2] = {
    { "cuDeviceGet", "hipDeviceGet" },
    { "cuDevicePrimaryCtxGetState", "hipDevicePrimaryCtxGetState" },
    { "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain" },
    { "cuDeviceGetAttribute", "hipDeviceGetAttribute" },
    { "cuDeviceGetName", "hipDeviceGetName" },
    { "cuMemAlloc_v2", "hipMalloc" },
    { "cuMemHostAlloc", "hipHostMalloc" },
    { "cuCtxGetStreamPriorityRange", "hipDeviceGetStreamPriorityRange" },
    { "cuStreamCreateWithPriority", "hipStreamCreateWithPriority" },
    { "cuEventCreate", "hipEventCreateWithFlags" },
    { "cuModuleLoadData", "hipModuleLoadData" },
    { "cuModuleGetFunction", "hipModuleGetFunction" },
#define N_ONLY_OPENING 12
    { "cuCtxPushCurrent_v2", "hipSetDevice" },
    { "cuEventRecord", "hipEventRecord" },
    { "cuEventSynchronize", "hipEventSynchronize" },
    { "cuStreamWaitEvent", "hipStreamWaitEvent" },
    { "cuStreamSynchronize", "hipStreamSynchronize" },
    { "cuMemcpyAsync", "hipMemcpyAsync" },
    { "cuMemcpy2DAsync_v2", "hipMemcpy2DAsync" },
    { "cuMemcpyBatchAsync_v2", "hipMemcpyAsync" },
    { "cuLaunchKernel", "hipModuleLaunchKernel" },
};

static const char *
function(size_t i)
{
    return functions[i][fake_kind == KVT__GPU_HIP];
}

#define N_FUNCTIONS (sizeof functions / sizeof *functions)

static void
an_error_of_any_function_leaves_nothing_open(void **state)
{
    struct kvt__gpu *gpu;

    (void)state;
    for (size_t i = 0; i < N_FUNCTIONS; i++) {
        for (int after = 0; after < 9; after += 1 + after / 2) {
            /* Fail once: with permanent errors no context could be entered or left. */
            fake->fail_on(function(i), after, 2, true);
            int err = fake_try(after == 2 ? NULL : "kernel", 1, &gpu);
            fake->fail_on(NULL, 0, 0, false);
            if (err)
                assert_true(err == -ENOMEM || err == -EIO || err == -ENODEV);
            else
                kvt__gpu_close(gpu);
            expect_nothing_left();
        }
    }
}

static const char *method;

/* Copy one large and two small chunks: done is called once for each chunk, or, if the submit
 * fails, for none. */
static void
copy_three(struct kvt__gpu *gpu, struct paged *p, unsigned char *chunks, bool gather)
{
    static const int32_t blocks[] = { 0, 2, 4, 6, 8 };
    static const uint32_t n_tokens[] = { 320, 10, 64 };
    struct kvt__gpu_copy *list[3];
    struct pending_copy pending[3];

    for (size_t i = 0; i < 3; i++) {
        pending_copy_init(&pending[i], &p->view, blocks, n_tokens[i], false, chunks);
        list[i] = &pending[i].copy;
        chunks += kvt__chunk_bytes(&p->view, n_tokens[i]);
    }
    int err = gather ? kvt__gpu_gather(gpu, NULL, list, 3)
                     : kvt__gpu_after(gpu, NULL) ? -EIO : kvt__gpu_scatter(gpu, list, 3);
    for (size_t i = 0; i < 3; i++) {
        if (err == 0)
            assert_true(pending_copy_wait(&pending[i]) == 0 || pending[i].err == -EIO ||
                        pending[i].err == -ENOMEM);
        assert_int_equal(pending[i].n_done, err == 0);
    }
}

static void
a_driver_error_ends_the_affected_copies(void **state)
{
    struct paged p = strided(2, 1, 4, 128, 64);

    (void)state;
    paged_alloc = fake->alloc;
    paged_free = fake->free;
    lay_out(&p, "lkbht", 0, false);
    unsigned char *chunks = fake->pinned(2 * kvt__chunk_bytes(&p.view, 320));
    struct kvt__gpu *gpu = fake_open(method, 1);
    for (size_t i = N_ONLY_OPENING; i < N_FUNCTIONS; i++) {
        for (int after = 0; after < 16; after = 2 * after + 1) {
            fake->fail_on(function(i), after, 719, false);
            copy_three(gpu, &p, chunks, true);
            copy_three(gpu, &p, chunks, false);
            fake->fail_on(NULL, 0, 0, false);
        }
    }
    copy_three(gpu, &p, chunks, true); /* works again */
    kvt__gpu_close(gpu);
    fake->unpin(chunks);
    fake->free(p.memory);
    expect_nothing_left();
}

static void
a_sum_reports_an_error_of_the_driver(void **state)
{
    bool hip = fake_kind == KVT__GPU_HIP, kernels = strcmp(method, "kernel") == 0;
    struct kvt__gpu *gpu = fake_open(method, 1);
    unsigned char *at;
    uint32_t crc;

    (void)state;
    assert_int_equal(kvt__gpu_alloc(gpu, 4 << 20, &at), 0);
    fake->fail_on(kernels ? hip ? "hipModuleLaunchKernel" : "cuLaunchKernel"
                          : hip ? "hipEventSynchronize" : "cuEventSynchronize", 0, 719, true);
    assert_int_equal(kvt__gpu_sum(gpu, at, 4 << 20, &crc), -EIO);
    assert_int_equal(kvt__gpu_sum(gpu, at, 4 << 20, &crc), 0);
    kvt__gpu_close(gpu);
    expect_nothing_left();
}

/* Scatters that the driver fails to order give their structures back. */
static void
scatters_without_order_leave_nothing_allocated(void **state)
{
    static const int32_t blocks[] = { 0 };
    struct paged p = strided(2, 1, 4, 128, 64);
    struct pending_copy a;
    struct kvt__gpu_copy *list[] = { &a.copy };

    (void)state;
    if (strcmp(method, "kernel") == 0)
        skip(); /* an error after the submit ends the copy instead */
    lay_out(&p, "lkbht", 0, false);
    struct kvt__gpu *gpu = fake_open(method, 1);
    unsigned char *chunk = fake->pinned(kvt__chunk_bytes(&p.view, 10));
    int n_alive = fake->n_alive;

    assert_int_equal(kvt__gpu_after(gpu, NULL), 0);
    fake->fail_on(fake_kind == KVT__GPU_HIP ? "hipStreamWaitEvent" : "cuStreamWaitEvent", 0, 719,
                  false);
    for (int i = 0; i < 40; i++) {
        pending_copy_init(&a, &p.view, blocks, 10, false, chunk);
        assert_int_equal(kvt__gpu_scatter(gpu, list, 1), -EIO);
    }
    fake->fail_on(NULL, 0, 0, false);
    assert_int_equal(fake->n_alive, n_alive);
    assert_int_equal(kvt__gpu_scatter(gpu, list, 1), 0);
    assert_int_equal(pending_copy_wait(&a), 0);
    assert_int_equal(a.n_done, 1);
    kvt__gpu_close(gpu);
    fake->unpin(chunk);
    fake->free(p.memory);
    expect_nothing_left();
}

/* Gather behind a blocked stream until the driver fails to allocate the structures for one more
 * copy.  Return the number of copies that were submitted. */
static int
gather_until_full(struct kvt__gpu *gpu, void *stream, struct pending_copy *pending, int max)
{
    for (int n = 0; n < max; n++) {
        struct kvt__gpu_copy *list[] = { &pending[n].copy };
        int err = kvt__gpu_gather(gpu, stream, list, 1);

        if (err) {
            assert_int_equal(err, -ENOMEM);
            return n;
        }
    }
    return max;
}

static void
a_failed_allocation_leaves_nothing(struct kvt__gpu *gpu, struct paged *p, const char *failing,
                                   int after)
{
    enum { MAX_N = 40 };
    static const int32_t blocks[] = { 0 };
    unsigned char *chunk = fake->pinned(kvt__chunk_bytes(&p->view, 10));
    struct pending_copy pending[MAX_N];
    struct gate gate = GATE;
    void *stream = fake->stream();

    for (int i = 0; i < MAX_N; i++)
        pending_copy_init(&pending[i], &p->view, blocks, 10, false, chunk);
    fake->call(stream, gate_pass, &gate);
    int n_alive = fake->n_alive;
    fake->fail_on(failing, after, 2, false);
    int n = gather_until_full(gpu, stream, pending, MAX_N);
    assert_in_range(n, 1, MAX_N - 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gather_until_full(gpu, stream, &pending[n], 1), 0);
    assert_int_equal(fake->n_alive, n_alive);
    fake->fail_on(NULL, 0, 0, false);
    n += gather_until_full(gpu, stream, &pending[n], 1);
    gate_open(&gate);
    for (int i = 0; i < n; i++)
        assert_int_equal(pending_copy_wait(&pending[i]), 0);
    assert_int_equal(pending[n].n_done, 0);
    fake->end_stream(stream);
    fake->unpin(chunk);
}

static void
copies_without_memory_leave_nothing_allocated(void **state)
{
    static const char *const names[][2] = { { "cuMemHostAlloc", "hipHostMalloc" },
                                            { "cuEventCreate", "hipEventCreateWithFlags" } };
    struct paged p = strided(2, 1, 4, 128, 64);

    (void)state;
    paged_alloc = fake->alloc;
    paged_free = fake->free;
    lay_out(&p, "lkbht", 0, false);
    for (int i = 0; i < 2; i++) {
        struct kvt__gpu *gpu = fake_open(method, 1);

        a_failed_allocation_leaves_nothing(gpu, &p, names[i][fake_kind == KVT__GPU_HIP], 3 * i);
        kvt__gpu_close(gpu);
    }
    fake->free(p.memory);
    expect_nothing_left();
}

static void
a_device_that_is_lost_ends_all_copies(void **state)
{
    struct paged p = strided(2, 1, 4, 128, 64);
    static const int32_t blocks[] = { 0, 2, 4, 6, 8 };
    struct gate gate = GATE;
    struct kvt__gpu_copy *list[1];
    struct pending_copy a, b;

    (void)state;
    lay_out(&p, "lkbht", 0, false);
    unsigned char *chunk = fake->pinned(kvt__chunk_bytes(&p.view, 320));
    struct kvt__gpu *gpu = fake_open(method, 1);
    void *stream = fake->stream();

    fake->call(stream, gate_pass, &gate);
    pending_copy_init(&a, &p.view, blocks, 320, false, chunk);
    list[0] = &a.copy;
    assert_int_equal(kvt__gpu_gather(gpu, stream, list, 1), 0);
    fake->lose(700);
    gate_open(&gate);
    assert_int_equal(pending_copy_wait(&a), -EIO);
    pending_copy_init(&b, &p.view, blocks, 320, false, chunk);
    list[0] = &b.copy;
    if (kvt__gpu_scatter(gpu, list, 1) == 0)
        assert_int_equal(pending_copy_wait(&b), -EIO);
    fake->lose(0); /* repair the device, so that the test can clean up */
    kvt__gpu_close(gpu);
    fake->end_stream(stream);
    fake->unpin(chunk);
    fake->free(p.memory);
    expect_nothing_left();
}

__attribute__((weak)) void __lsan_disable(void);
__attribute__((weak)) void __lsan_enable(void);

/* Close at the end of the process, after the driver has destroyed the context.  kvtier does not
 * free the driver's objects then. */
static void
a_device_closes_without_its_context(void **state)
{
    (void)state;
    if (__lsan_disable)
        __lsan_disable();
    struct kvt__gpu *gpu = fake_open(method, 0);
    if (__lsan_enable)
        __lsan_enable();
    fake->active = -1;
    kvt__gpu_close(gpu);
    assert_true(fake->n_alive > 0);
    fake->n_alive = fake->n_retained = 0;
}

static void
on_log_line(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest opening[] = {
        cmocka_unit_test(without_a_driver_there_is_no_gpu),
        cmocka_unit_test(without_a_context_there_is_no_gpu),
        cmocka_unit_test(kernels_are_compiled_once),
        cmocka_unit_test(a_damaged_cache_is_made_anew),
        cmocka_unit_test(the_copy_method_is_measured_or_forced),
        cmocka_unit_test(kernels_that_do_not_run_are_replaced_by_copies),
        cmocka_unit_test(kernels_that_do_not_compile_are_replaced_by_copies),
        cmocka_unit_test(an_error_of_any_function_leaves_nothing_open),
    };
    const struct CMUnitTest copying[] = {
        cmocka_unit_test(a_driver_error_ends_the_affected_copies),
        cmocka_unit_test(a_sum_reports_an_error_of_the_driver),
        cmocka_unit_test(scatters_without_order_leave_nothing_allocated),
        cmocka_unit_test(copies_without_memory_leave_nothing_allocated),
        cmocka_unit_test(a_device_that_is_lost_ends_all_copies),
    };
    const struct CMUnitTest ending[] = {
        cmocka_unit_test(a_device_closes_without_its_context),
    };
    int failed = 0;

    (void)argc;
    arguments = argv;
    kvt_set_log(on_log_line, NULL, KVT_LOG_WARN);
    if (fake_make_cache() < 0)
        return 1;
    failed += cmocka_run_group_tests_name("opening", opening, NULL, NULL);
    method = "kernel";
    failed += cmocka_run_group_tests_name("copying by kernels", copying, NULL, NULL);
    method = "batch";
    failed += cmocka_run_group_tests_name("copying without", copying, NULL, NULL);
    failed += cmocka_run_group_tests_name("ending", ending, NULL, NULL);
    fake_drop_cache();
    return failed;
}
