/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU with a fake driver and a fake library for direct transfers.  Arguments of the test program:
 * the helper program, the directory of the fakes for the helper, and a driver and a library of one
 * vendor for the test program itself. */
#ifndef KVT_GDS_FAKES_H
#define KVT_GDS_FAKES_H

#include <dlfcn.h>

#include "fakes/cufile/gds.h"
#include "fakes/gpu/gpu.h"
#include "kvt-test.h"
#include "temp-dir.h"

#include "tier/gds/gds.h"

static struct temp_dir keep;
static struct fake_gpu *gpu_fake;
static struct gds_fake *gds;
static gds_fake_set_fn *gds_set;
static const char *fakes;
static bool is_hip;

/* Select the fakes for the helper (a folder in `fakes`), and set the switches of this process's
 * library. */
static inline void
behave(const char *helpers, const char *switches)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", fakes, helpers);
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("GPU_FAKE", "2", 1);
    gds_set(switches);
}

static inline void
behave_well(void)
{
    behave(is_hip ? "hipfile" : "cufile", "");
}

/* Assert that no file, buffer or transfer of the library is left, and that no call was wrong. */
static inline void
expect_gds_at_rest(void)
{
    assert_int_equal(gds->n_files, 0);
    assert_int_equal(gds->n_buffers, 0);
    assert_int_equal(gds->n_bare, 0);
    assert_int_equal(gds->n_overlaps, 0);
    assert_int_equal(gds->in_flight, 0);
}

static inline void *
open_library(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);

    if (!handle)
        fail_msg("%s", dlerror());
    return handle;
}

/* Return true if the helper can be started; otherwise print why the test is skipped. */
static inline bool
find_helper(const char *helper, const char *fakes_of_helper)
{
    if (!gds_probe_runs(helper)) {
        printf("skipped: %s cannot be started here\n", helper);
        return false;
    }
    fakes = fakes_of_helper;
    temp_dir_make(&keep);
    kvt__gds_tier_probe = (struct kvt__gds_probe_params){ helper, keep.path, 60000, true };
    return true;
}

/* Load a driver and a library of one vendor. */
static inline void
use_fakes(const char *driver_path, const char *library_path)
{
    void *driver = open_library(driver_path), *library = open_library(library_path);

    is_hip = !strstr(driver_path, "libcuda");
    gpu_fake = ((fake_gpu_fn *)(uintptr_t)dlsym(driver, "fake_gpu"))();
    gds = ((gds_fake_fn *)(uintptr_t)dlsym(library, GDS_FAKE))();
    gds_set = (gds_fake_set_fn *)(uintptr_t)dlsym(library, GDS_FAKE_SET);
    if (!is_hip) /* this function fails without a current context */
        gds->context = (int (*)(int *, int *))(uintptr_t)
            dlsym(driver, "cuCtxGetStreamPriorityRange");
}

/* Load the fakes that the arguments name.  False: the helper cannot be started here. */
static inline bool
load_fakes(int argc, char **argv)
{
    if (argc < 5)
        fail_msg("four arguments are missing");
    if (!find_helper(argv[1], argv[2]))
        return false;
    use_fakes(argv[3], argv[4]);
    return true;
}

static inline void
forget_fakes(void)
{
    temp_dir_remove(&keep);
}

#endif
