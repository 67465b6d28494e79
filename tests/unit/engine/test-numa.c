/* SPDX-License-Identifier: Apache-2.0
 *
 * The NUMA node of an engine's pool. */
#include <sys/syscall.h>
#include <unistd.h>

#include "unit/engine/engine-test.h"

/* Open a worker, rank of two on this host, with these settings. */
static int
open_worker(const struct fixture *f, const char *const *settings, uint32_t rank,
            struct kvt_engine **out)
{
    struct opening opening = { .role = KVT_ROLE_WORKER, .settings = settings,
                               .world_size = 4, .rank = rank, .local_ranks = 2 };

    return try_open(f->dir.path, &opening, out);
}

static bool
preferred_memory_is_mapped(void)
{
    FILE *maps = fopen("/proc/self/numa_maps", "re");
    char line[1024];
    bool found = false;

    if (!maps)
        skip();
    while (fgets(line, sizeof line, maps))
        found = found || strstr(line, " prefer:0 ") || strstr(line, " prefer (many):0 ");
    fclose(maps);
    return found;
}

/* mbind() fails under qemu-user, and where a filter of system calls forbids mbind(). */
static void
skip_without_mbind(void)
{
    if (syscall(SYS_mbind, NULL, 0ul, 0, NULL, 0ul, 0u) < 0 &&
        (errno == ENOSYS || errno == EPERM))
        skip();
}

static void
the_mapping_sets_the_nodes_of_pools(void **state)
{
    static const char *const settings[] = {
        "numa_mode=manual", "gpu_to_numa_mapping={\"0\": 99, \"1\": 0}", NULL };
    struct fixture f;
    struct kvt_engine *engine;

    (void)state;
    skip_without_mbind();
    fixture_init(&f);
    assert_int_equal(open_worker(&f, settings, 3, &engine), 0); /* number 1 on this host */
    assert_true(preferred_memory_is_mapped());
    kvt_engine_close(engine);
    assert_false(preferred_memory_is_mapped());
    if (!access("/sys/devices/system/node/has_memory", R_OK)) {
        assert_int_equal(open_worker(&f, settings, 2, &engine), -EINVAL);
        assert_non_null(strstr(kvt_last_error(), "gpu_to_numa_mapping"));
        assert_non_null(strstr(kvt_last_error(), "no memory node 99; it has 0"));
    }
    f.engine = NULL;
    fixture_fini(&f);
}

static void
a_device_that_the_mapping_lacks_is_named(void **state)
{
    static const char *const settings[] = {
        "numa_mode=manual", "gpu_to_numa_mapping={\"0\": 0}", NULL };
    struct fixture f;
    struct kvt_engine *engine;

    (void)state;
    fixture_init(&f);
    assert_int_equal(open_worker(&f, settings, 1, &engine), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "has no device 1"));
    f.engine = NULL;
    fixture_fini(&f);
}

static void
numa_mode_auto_opens(void **state)
{
    static const char *const settings[] = { "numa_mode=auto", NULL };
    struct fixture f;

    (void)state;
    fixture_init(&f);
    assert_int_equal(open_worker(&f, settings, 0, &f.engine), 0);
    fixture_fini(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mapping_sets_the_nodes_of_pools),
        cmocka_unit_test(a_device_that_the_mapping_lacks_is_named),
        cmocka_unit_test(numa_mode_auto_opens),
    };

    return cmocka_run_group_tests_name("memory nodes of engines", tests, NULL, NULL);
}
