/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks between the memory of a GPU and files of gds_path, with no way through the host's,
 * over fakes of CUDA and cuFile. */
#include "gds-device-test.h"

#define REGION (4 * MIB)

static struct temp_dir dirs[2];
static struct kvt__gpu *gpu;
static struct kvt__tier *tier;

static int
try_use(const char *setting)
{
    char url[600];

    snprintf(url, sizeof url, "gds://%s,%s", dirs[0].path, dirs[1].path);
    assert_int_equal(try_open_for(url, true, setting, 1, &tier), 0);
    return tier->ops->use_gpu(tier, gpu, REGION);
}

static int
setup(void **state)
{
    (void)state;
    temp_dir_make(&dirs[0]);
    temp_dir_make(&dirs[1]);
    behave_well();
    tier = NULL;
    gpu = open_gpu(1);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    if (tier)
        tier->ops->close(tier);
    close_gpu(gpu);
    temp_dir_remove(&dirs[0]);
    temp_dir_remove(&dirs[1]);
    return 0;
}

static struct kvt__slot
lent(size_t bytes)
{
    return lent_by(tier, bytes);
}

static int
put(const struct chunk *c, const struct kvt__slot *slot)
{
    return put_slot(tier, c, slot);
}

static void
chunks_pass_between_gpu_and_files(void **state)
{
    struct kvt__found found;
    struct chunk c;

    (void)state;
    assert_int_equal(try_use(NULL), 0);
    chunk_init(&c, "model", 7);
    struct kvt__slot from = lent(MIB), to = lent(MIB), host = slot_new(MIB, 0);
    slot_fill(&from, 7);
    int before = gds->n_moves;
    assert_int_equal(put(&c, &from), 0);
    assert_int_equal(kvt__tier_get(tier, &c.object, &to, &found), 0);
    assert_true(gds->n_moves >= before + 2);
    assert_true(slot_holds(&to, 7));
    assert_true(found.has_id && found.has_read_crc);
    assert_int_equal(found.read_crc, found.crc);
    /* The same file as any other. */
    assert_int_equal(kvt__tier_get(tier, &c.object, &host, &found), 0);
    assert_true(slot_holds(&host, 7));
    slot_free(&host, 0);
    kvt__pool_release(NULL, &from);
    kvt__pool_release(NULL, &to);
}

static void
a_worker_writes_where_its_device_does(void **state)
{
    struct chunk c;
    struct stat st;
    char path[600];

    (void)state;
    assert_int_equal(try_use(NULL), 0); /* device 1 of two directories: the second */
    chunk_init(&c, "model", 1234);
    struct kvt__slot slot = lent(MIB);
    slot_fill(&slot, 1);
    assert_int_equal(put(&c, &slot), 0);
    kvt__pool_release(NULL, &slot);
    snprintf(path, sizeof path, "%s/12/34", dirs[1].path);
    assert_int_equal(stat(path, &st), 0);
    snprintf(path, sizeof path, "%s/12", dirs[0].path);
    assert_int_equal(stat(path, &st), -1);
}

static void
stores_leave_half_to_loads(void **state)
{
    struct kvt__slot slots[5];
    size_t n = 0;

    (void)state;
    assert_int_equal(try_use(NULL), 0);
    /* No whole units. */
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, 5000, &slots[0]));
    while (tier->ops->acquire_slot(tier, KVT__PRIO_STORE, MIB, &slots[n]))
        n++;
    assert_int_equal(n, 2);
    while (n < 5 && tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, MIB, &slots[n]))
        n++;
    assert_int_equal(n, 4);
    while (n--)
        kvt__pool_release(NULL, &slots[n]);
}

static void
a_large_chunk_is_stored_alone(void **state)
{
    struct kvt__slot slot, other;

    (void)state;
    assert_int_equal(try_use(NULL), 0);
    assert_true(tier->ops->acquire_slot(tier, KVT__PRIO_STORE, 4 * MIB, &slot)); /* all there is */
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_STORE, MIB, &other));
    kvt__pool_release(NULL, &slot);
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_STORE, 5 * MIB, &slot));
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, 5 * MIB, &slot));
}

static void
a_transfer_that_fails_leaves_nothing(void **state)
{
    struct kvt__found found;
    struct chunk c;

    (void)state;
    assert_int_equal(try_use(NULL), 0);
    chunk_init(&c, "model", 9);
    struct kvt__slot slot = lent(MIB);
    slot_fill(&slot, 9);
    gds_set("write=5");
    assert_int_equal(put(&c, &slot), -EIO);
    assert_int_equal(kvt__tier_probe(tier, &c.object, &found), -ENOENT);
    gds_set("");
    assert_int_equal(put(&c, &slot), 0);
    gds_set("short=1");
    assert_int_equal(kvt__tier_get(tier, &c.object, &slot, &found), -EIO);
    gds_set("read=5");
    assert_int_equal(kvt__tier_get(tier, &c.object, &slot, &found), -EIO);
    gds_set("damage=1");
    assert_int_equal(put(&c, &slot), 0);
    assert_int_equal(kvt__tier_get(tier, &c.object, &slot, &found), 0);
    assert_int_not_equal(found.read_crc, found.crc); /* which the store then sees */
    kvt__pool_release(NULL, &slot);
}

static void
without_direct_transfers_host_memory_is_used(void **state)
{
    struct kvt__slot slot;

    (void)state;
    behave("none", "");
    assert_int_equal(try_use(NULL), 0);
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, MIB, &slot));
    tier->ops->close(tier);
    assert_int_equal(try_use("use_gds=true"), -ENODEV);
    assert_non_null(strstr(kvt__why(), "use_gds is true (argument), and the GPU is missing "
                                       "for"));
    tier->ops->close(tier);
    behave("cufile", "");
    assert_int_equal(try_use("gds_backend=hipfile"), -ENODEV);
    assert_non_null(strstr(kvt__why(), "memory of CUDA"));
}

static void
without_room_on_the_gpu_the_setting_is_named(void **state)
{
    struct kvt__slot slot;

    (void)state;
    gpu_fake->fail_on("cuMemAlloc_v2", 0, 2, false);
    assert_int_equal(try_use("use_gds=true"), -ENOMEM);
    assert_non_null(strstr(kvt__why(), "--gpu-memory-utilization"));
    tier->ops->close(tier);
    assert_int_equal(try_use(NULL), 0);
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, MIB, &slot));
    gpu_fake->fail_on(NULL, 0, 0, false);
}

static void
an_engine_without_a_gpu_gets_an_error(void **state)
{
    char url[600];

    (void)state;
    snprintf(url, sizeof url, "gds://%s", dirs[0].path);
    assert_int_equal(try_open_for(url, true, "use_gds=true", 1, &tier), 0);
    assert_int_equal(tier->ops->use_gpu(tier, NULL, REGION), -ENODEV);
    assert_non_null(strstr(kvt__why(), "the KV of this process is on no GPU"));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(chunks_pass_between_gpu_and_files),
        TEST(a_worker_writes_where_its_device_does),
        TEST(stores_leave_half_to_loads),
        TEST(a_large_chunk_is_stored_alone),
        TEST(a_transfer_that_fails_leaves_nothing),
        TEST(without_direct_transfers_host_memory_is_used),
        TEST(without_room_on_the_gpu_the_setting_is_named),
        TEST(an_engine_without_a_gpu_gets_an_error),
    };

    if (!load_fakes(argc, argv))
        return 77;
    int failed = cmocka_run_group_tests_name("gds, device", tests, NULL, NULL);
    forget_fakes();
    return failed;
}
