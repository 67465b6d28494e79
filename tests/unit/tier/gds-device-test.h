/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU whose driver and whose library for direct transfers are fakes: what a program is
 * told of them, and slots in its memory.  As arguments it gets the helper, the fakes that
 * the helper finds, and a driver and a library of the same vendor for itself. */
#ifndef KVT_GDS_DEVICE_TEST_H
#define KVT_GDS_DEVICE_TEST_H

#include <dlfcn.h>

#include "fakes/cufile/gds.h"
#include "fakes/gpu/gpu.h"
#include "tier-test.h"

#include "gpu/device.h"
#include "tier/file/file.h"

#define MIB ((size_t)1 << 20)

static struct temp_dir keep;
static struct fake_gpu *fake;
static struct gds_fake *gds;
static gds_fake_set_fn *gds_set;
static const char *fakes;
static bool is_hip;

/* What the helper finds, and what this process's own library answers. */
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

static inline struct kvt__gpu *
open_gpu(int ordinal)
{
    struct kvt__gpu_params params = { .kind = is_hip ? KVT__GPU_HIP : KVT__GPU_CUDA,
                                      .ordinal = ordinal, .copies = "batch",
                                      .cache = keep.path };
    struct kvt__gpu *gpu = NULL;

    fake->active = ordinal;
    if (kvt__gpu_open(&params, &gpu))
        fail_msg("%s", kvt__why());
    return gpu;
}

/* Nothing of it is left over. */
static inline void
close_gpu(struct kvt__gpu *gpu)
{
    kvt__gpu_close(gpu);
    assert_int_equal(fake->n_alive, 0);
    assert_int_equal(fake->n_current, 0);
    assert_int_equal(gds->n_files, 0);
    assert_int_equal(gds->n_buffers, 0);
    assert_int_equal(gds->n_dead, 0);
    assert_int_equal(gds->n_bare, 0);
    assert_int_equal(gds->in_flight, 0);
}

/* A slot in the GPU's memory. */
static inline struct kvt__slot
lent_by(struct kvt__tier *tier, size_t bytes)
{
    struct kvt__slot slot;

    assert_true(tier->ops->lend(tier, KVT__PRIO_LOAD, bytes, &slot));
    assert_true(kvt__slot_on_device(&slot));
    return slot;
}

static inline int
put_slot(struct kvt__tier *tier, const struct chunk *c, const struct kvt__slot *slot)
{
    return tier->ops->put(tier, &c->object, slot,
                          kvt__crc32c(0, slot->payload, slot->bytes));
}

/* ------------------------------------------------------------------------ programs */

static inline void *
open_library(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);

    if (!handle)
        fail_msg("%s", dlerror());
    return handle;
}

/* Whether the helper can be started here; if not that is told. */
static inline bool
find_helper(const char *helper, const char *fakes_of_helper)
{
    if (!gds_probe_runs(helper)) {
        printf("skipped: %s cannot be started here\n", helper);
        return false;
    }
    fakes = fakes_of_helper;
    temp_dir_make(&keep);
    kvt__file_gds_probe = (struct kvt__gds_probe){ helper, keep.path, 60000, true };
    return true;
}

/* A driver and a library of the same vendor. */
static inline void
use_fakes(const char *driver_path, const char *library_path)
{
    void *driver = open_library(driver_path), *library = open_library(library_path);

    is_hip = !strstr(driver_path, "libcuda");
    fake = ((fake_gpu_fn *)(uintptr_t)dlsym(driver, "fake_gpu"))();
    gds = ((gds_fake_fn *)(uintptr_t)dlsym(library, GDS_FAKE))();
    gds_set = (gds_fake_set_fn *)(uintptr_t)dlsym(library, GDS_FAKE_SET);
    if (!is_hip) /* which answers only where a context is current */
        gds->context = (int (*)(int *, int *))(uintptr_t)
            dlsym(driver, "cuCtxGetStreamPriorityRange");
}

/* What the arguments name.  False: it cannot be used here. */
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
