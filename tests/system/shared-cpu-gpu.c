/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines with KV on a device share host memory: the mapping is pinned in each worker, and a
 * hit of another engine's chunk goes to the device right from the mapping.  In host memory
 * the test runs without the pins. */
#include "system/system-test.h"

/* Wait until the driver has pinned the pools and the mappings of n workers. */
static void
wait_for_pins(int n)
{
    for (unsigned i = 0; on_device() && rig.fake &&
                         __atomic_load_n(&rig.fake->n_registered, __ATOMIC_ACQUIRE) != 2 * n;
         i++) {
        assert_true(i < 60 * 1000);
        usleep(1000);
    }
}

static void
a_hit_is_copied_from_the_mapping_to_the_device(void **state)
{
    struct temp_dir shm;
    char path[300];
    const char *const settings[] = { "max_shared_cpu_size=0.125", "max_local_cpu_size=0.0625",
                                     path, "remote_url=", NULL };
    struct fixture *f = *state, other = *f;

    temp_dir_make_in_memory(&shm);
    snprintf(path, sizeof path, "shared_cpu_path=%s", shm.path);
    fixture_open(f, settings);
    other.memory = device_alloc((size_t)N_LAYERS * N_BLOCKS * BLOCK_BYTES);
    fixture_open(&other, settings);
    wait_for_pins(2);
    write_chunks(f, 0, N_CHUNKS);
    int n_pageable = on_device() && rig.fake ? rig.fake->n_pageable : 0;
    assert_int_equal(load_prompt(&other).loaded, N_CHUNKS);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    if (on_device() && rig.fake)
        assert_int_equal(rig.fake->n_pageable, n_pageable);
    kvt_engine_close(other.engine);
    kvt_engine_close(f->engine);
    f->engine = NULL;
    wait_for_pins(0);
    device_free(other.memory);
    temp_dir_remove(&shm);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_hit_is_copied_from_the_mapping_to_the_device,
                                        fixture_setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
