/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels compile with NVIDIA's compilers for current GPUs, and use no memory for spilled
 * registers.  scripts/cuda-env fetches the compilers. */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"

#include "gpu/abi.h"
#include "gpu/compile.h"

/* The compilers leave memory behind. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *
__asan_default_options(void)
{
    return "detect_leaks=0";
}

static char directory[2048];

/* With a sanitizer, dlopen() does not search the directory of the calling library. */
static void
load_builtins(const char *library)
{
    char pattern[4096];
    glob_t found;

    snprintf(pattern, sizeof pattern, "%s/%.*s/libnvrtc-builtins.so.*", directory,
             (int)(strrchr(library, '/') - library), library);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_non_null(dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL));
    globfree(&found);
}

static void *
function_of(void *handle, const char *name)
{
    void *function = dlsym(handle, name);

    assert_non_null(function);
    return function;
}

static void
find(struct kvt__compiler *c, const char *library)
{
    char path[4096];

    load_builtins(library);
    snprintf(path, sizeof path, "%s/%s", directory, library);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
#define COMPILER(member, nvrtc, hiprtc)                                                    \
    *(void **)&c->member = function_of(handle, #nvrtc);
#include "gpu/functions.def"
}

/* Check the lines that ptxas prints for each kernel: "... 0 bytes spill stores, 0 bytes spill
 * loads" and "Used 64 registers, ...". */
static void
check_log(const char *log)
{
    int n_kernels = 0;

    for (const char *at = log; (at = strstr(at, "bytes stack frame")) != NULL; at++) {
        const char *line = at;

        while (line > log && line[-1] != '\n')
            line--;
        if (!strstr(line, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"))
            fail_msg("%.200s", line);
        n_kernels++;
    }
    for (const char *at = log; (at = strstr(at, "Used ")) != NULL; at++)
        assert_in_range(atoi(at + 5), 1, 64); /* two thread blocks fit on a multiprocessor */
    assert_int_equal(n_kernels, 6);
}

static void
compile(const struct kvt__compiler *c, const char *architecture)
{
    char option[64];
    const char *const options[] = { option, "--ptxas-options=-v" };
    void *program;
    size_t n = 0;

    snprintf(option, sizeof option, "--gpu-architecture=%s", architecture);
    assert_int_equal(c->create(&program, kvt__kernel_source, "kernels.c", 0, NULL, NULL),
                     0);
    int error = c->compile(program, 2, options);
    assert_int_equal(c->log_size(program, &n), 0);
    char *log = calloc(1, n + 1);
    assert_int_equal(c->log(program, log), 0);
    if (error)
        fail_msg("%s: %s", architecture, log);
    check_log(log);
    free(log);
    assert_int_equal(c->image_size(program, &n), 0);
    assert_true(n > 1000);
    c->destroy(&program);
}

static void
compile_all(const char *library)
{
    static const char *const architectures[] = { "sm_80", "sm_86", "sm_89", "sm_90",
                                                 "sm_100" };
    struct kvt__compiler c;

    find(&c, library);
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        compile(&c, architectures[i]);
}

static void
kernels_compile_with_cuda_12(void **state)
{
    (void)state;
    compile_all("12/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
}

static void
kernels_compile_with_cuda_13(void **state)
{
    (void)state;
    compile_all("13/nvidia/cu13/lib/libnvrtc.so.13");
}

/* Get the compilers' directory from the script.  False: the compilers are not installed. */
static bool
find_compilers(const char *script)
{
    char command[1024];

    snprintf(command, sizeof command, "'%s' --check 2>/dev/null", script);
    FILE *out = popen(command, "r");
    bool found = out && fgets(directory, sizeof directory, out);
    if (out && pclose(out) != 0)
        found = false;
    directory[strcspn(directory, "\n")] = '\0';
    return found;
}

/* Return false if the compilers were built for another kind of CPU; the test is then skipped. */
static bool
loads(void)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/12/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", directory);
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        printf("skipped: NVIDIA's compilers cannot be loaded here: %s\n", dlerror());
    return library;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compile_with_cuda_12),
        cmocka_unit_test(kernels_compile_with_cuda_13),
    };

    if (argc < 2 || !find_compilers(argv[1])) {
        puts("NVIDIA's compilers are not there: scripts/cuda-env fetches them.");
        return 77;
    }
    if (!loads())
        return 77;
    return cmocka_run_group_tests_name("NVRTC", tests, NULL, NULL);
}
