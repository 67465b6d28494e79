/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots in the memory of a fake GPU. */
#ifndef KVT_GDS_DEVICE_TEST_H
#define KVT_GDS_DEVICE_TEST_H

#include "gds-fakes.h"
#include "tier-test.h"

#include "gpu/device.h"

#define MIB ((size_t)1 << 20)

static inline struct kvt__gpu *
open_gpu(int ordinal)
{
    struct kvt__gpu_params params = { .kind = is_hip ? KVT__GPU_HIP : KVT__GPU_CUDA,
                                      .ordinal = ordinal, .copies = "batch",
                                      .cache = keep.path };
    struct kvt__gpu *gpu = NULL;

    gpu_fake->active = ordinal;
    if (kvt__gpu_open(&params, &gpu))
        fail_msg("%s", kvt__why());
    return gpu;
}

/* Close the GPU; no memory and no request may be left. */
static inline void
close_gpu(struct kvt__gpu *gpu)
{
    kvt__gpu_close(gpu);
    assert_int_equal(gpu_fake->n_alive, 0);
    assert_int_equal(gpu_fake->n_current, 0);
    expect_gds_at_rest();
    assert_int_equal(gds->n_dead, 0);
}

/* A slot in the GPU's memory. */
static inline struct kvt__slot
lent_by(struct kvt__tier *tier, size_t bytes)
{
    struct kvt__slot slot;

    assert_true(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, bytes, &slot));
    assert_true(kvt__slot_on_device(&slot));
    return slot;
}

static inline int
put_slot(struct kvt__tier *tier, const struct chunk *c, const struct kvt__slot *slot)
{
    return kvt__tier_put(tier, &c->object, slot,
                         kvt__crc32c(0, slot->payload, slot->bytes));
}

#endif
