/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots in the region of a 3FS tier: the tier transfers a slot of the region without a copy,
 * and a slot of other memory with a copy.  Transfers of the two kinds do not wait for each
 * other. */
#include <dlfcn.h>

#include "fakes/gpu/gpu.h"
#include "hf3fs-client.h"
#include "index-dir.h"
#include "servers/usrbiod-server.h"
#include "tier-test.h"

#include "base/clock.h"
#include "tier/hf3fs/hf3fs.h"

#define MIB ((size_t)1 << 20)
#define REGION (100 * MIB)
#define CHUNK (9 * MIB + 4711)

static struct usrbiod usrbiod;
static struct kvt__counters counters;
static struct kvt__tier *tier;
static unsigned n_dirs;
static const char *cuda; /* path of the fake library */

static uint64_t
counted(enum kvt__counter which)
{
    return kvt__counter_value(&counters, which);
}

/* The tier writes headers, so the address of a payload is 28 modulo 4096. */
static void
open_3fs(bool transfers, const char *io_depth)
{
    const char *const settings[] = { "save_chunk_meta=true", "hf3fs_iov_size=104857600",
                                     io_depth, NULL };
    struct kvt_config *config = config_with(settings);
    char url[512];

    if (!usrbiod.pid)
        assert_true(usrbiod_run(&usrbiod, NULL));
    snprintf(url, sizeof url, "hf3fs://%s/%u", usrbiod.mount, n_dirs++);
    counters = (struct kvt__counters){ 0 };
    struct kvt__tier_params params = { .config = config, .url = url, .counters = &counters,
                                       .name = "remote_url", .local_ranks = 1,
                                       .transfers = transfers };
    if (kvt__tier_open(&params, &tier))
        fail_msg("%s: %s", url, kvt__why());
    kvt_config_free(config);
}

static int
setup(void **state)
{
    (void)state;
    open_3fs(false, NULL);
    return 0;
}

static int
setup_worker(void **state)
{
    (void)state;
    open_3fs(true, NULL);
    return 0;
}

/* Open a tier whose daemon puts one I/O into a job, so that no I/O delays another I/O. */
static int
setup_single(void **state)
{
    (void)state;
    open_3fs(false, "hf3fs_io_depth=-1");
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    if (usrbiod.pid) {
        usrbiod_command(&usrbiod, "clear");
        usrbiod_command(&usrbiod, "release");
    }
    index_dir_remove(tier->ops->private_dir(tier));
    tier->ops->close(tier);
    return 0;
}

static struct kvt__slot
lent(size_t bytes)
{
    struct kvt__slot slot = { 0 };

    assert_true(tier->ops->acquire_slot(tier, KVT__PRIO_STORE, bytes, &slot));
    assert_int_equal((uintptr_t)slot.payload % 4096, tier->phase);
    return slot;
}

/* A process without transfers makes the rings at the first transfer. */
static void
make_region(void)
{
    struct chunk c;

    chunk_init(&c, "first", 0);
    assert_int_equal(put_bytes(tier, &c.object, 1000, 0), 0);
    counters = (struct kvt__counters){ 0 };
}

static void
put(struct kvt__slot *slot, uint64_t seed)
{
    struct chunk c;

    chunk_init(&c, "model", (int64_t)seed);
    slot_fill(slot, seed);
    assert_int_equal(kvt__tier_put(tier, &c.object, slot,
                                   kvt__crc32c(0, slot->payload, slot->bytes)), 0);
}

static void
get(struct kvt__slot *slot, uint64_t seed)
{
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", (int64_t)seed);
    memset(slot->payload, 0x11, slot->bytes);
    assert_int_equal(kvt__tier_get(tier, &c.object, slot, &found), 0);
    assert_true(found.has_read_crc && found.read_crc == found.crc);
    assert_true(slot_holds(slot, seed));
}

/* A transfer with I/Os that the daemon holds. */
struct stuck {
    struct kvt__tier_op op;
    struct chunk chunk;
    _Atomic int answered;
    int err;
};

static void
answered(struct kvt__tier_op *op)
{
    struct stuck *s = (struct stuck *)op;

    s->err = op->error.code;
    s->answered = 1;
}

static void
start(struct stuck *s, enum kvt__tier_op_kind kind, const struct kvt__slot *slot,
      uint64_t seed)
{
    *s = (struct stuck){ 0 };
    chunk_init(&s->chunk, "model", (int64_t)seed);
    s->op = (struct kvt__tier_op){ .kind = kind, .prio = KVT__PRIO_LOAD,
                                   .object = &s->chunk.object, .slot = *slot,
                                   .on_done = answered };
    if (kind == KVT__TIER_PUT) {
        slot_fill(slot, seed);
        s->op.crc = kvt__crc32c(0, slot->payload, slot->bytes);
    }
    tier->ops->submit(tier, &s->op);
}

static void
get_stuck(struct stuck *s, const struct kvt__slot *slot, uint64_t seed)
{
    usrbiod_command(&usrbiod, "fault read stuck");
    start(s, KVT__TIER_GET, slot, seed);
    while (!usrbiod_count(&usrbiod, "in_flight"))
        usleep(1000);
}

static void
wait_for(const struct stuck *s)
{
    while (!s->answered)
        usleep(500);
}

/* Wait until the number of I/Os in flight stays equal. */
static void
wait_until_full(void)
{
    double before, now = usrbiod_count(&usrbiod, "in_flight");

    do {
        before = now;
        usleep(100000);
        now = usrbiod_count(&usrbiod, "in_flight");
    } while (now > before);
}

/* -------------------------------------------------------------------------- tests */

static void
no_slot_is_lent_before_the_first_transfer(void **state)
{
    struct kvt__slot slot;

    (void)state;
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, CHUNK, &slot));
}

static void
a_worker_makes_the_rings_before_its_first_transfer(void **state)
{
    struct kvt__slot slot;

    (void)state;
    while (!tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, CHUNK, &slot))
        usleep(1000); /* the test's time limit ends this */
    kvt__pool_release(NULL, &slot);
}

static void
bytes_of_the_region_are_not_copied(void **state)
{
    (void)state;
    make_region();
    struct kvt__slot slot = lent(CHUNK);
    put(&slot, 1);
    get(&slot, 1);
    assert_true(counted(KVT__N_hf3fs_bytes) > 2 * CHUNK);
    assert_int_equal(counted(KVT__N_hf3fs_copied_bytes), 0);
    kvt__pool_release(NULL, &slot);
    assert_null(slot.payload);
}

static void
bytes_of_other_memory_are_copied_once(void **state)
{
    (void)state;
    struct kvt__slot slot = slot_new(CHUNK, tier->phase);
    put(&slot, 1);
    get(&slot, 1);
    assert_true(counted(KVT__N_hf3fs_bytes) > 2 * CHUNK);
    assert_int_equal(counted(KVT__N_hf3fs_copied_bytes), counted(KVT__N_hf3fs_bytes));
    slot_free(&slot, tier->phase);
}

/* Take slots until the tier has no more for this priority.  Return the number. */
static size_t
lend_all(enum kvt__prio prio, struct kvt__slot slots[16])
{
    size_t n = 0;

    while (n < 16 && tier->ops->acquire_slot(tier, prio, CHUNK, &slots[n]))
        n++;
    return n;
}

static void
release(struct kvt__slot *slots, size_t n)
{
    while (n)
        kvt__pool_release(NULL, &slots[--n]);
}

/* While stores have their half, the tier transfers other memory too, also a chunk larger than
 * the free part. */
static void
stores_leave_half_of_the_region(void **state)
{
    struct kvt__slot slots[16], more, other;

    (void)state;
    make_region();
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_STORE, REGION / 2 + 1, &more));
    size_t n = lend_all(KVT__PRIO_STORE, slots);
    assert_int_equal(n, 5);
    for (size_t i = 0; i < n; i++)
        put(&slots[i], i);
    other = slot_new(REGION + CHUNK, tier->phase);
    put(&other, 9);
    get(&other, 9);
    slot_free(&other, tier->phase);
    for (size_t i = 0; i < n; i++)
        assert_true(slot_holds(&slots[i], i));
    release(slots, n);
}

/* The transfer of other memory waits, and gets the next room. */
static void
loads_may_use_all_memory_until_stores_need_room(void **state)
{
    struct kvt__slot slots[16], more, other;
    struct stuck s = { 0 };

    (void)state;
    make_region();
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, REGION + 1, &more));
    assert_false(tier->ops->acquire_slot(tier, KVT__PRIO_LOAD, SIZE_MAX - 4096, &more));
    size_t n = lend_all(KVT__PRIO_LOAD, slots);
    assert_int_equal(n, 11);
    put(&slots[0], 7);
    other = slot_new(3 * CHUNK, tier->phase);
    start(&s, KVT__TIER_PUT, &other, 8);
    usleep(50000); /* the transfer waits; without this wait the test is weaker */
    kvt__pool_release(NULL, &slots[--n]);
    wait_for(&s);
    assert_int_equal(s.err, 0);
    get(&other, 8);
    slot_free(&other, tier->phase);
    release(slots, n);
}

/* Reads into other memory wait for room until the read into the slot has ended. */
static void
a_slot_does_not_wait_for_requests_for_its_memory(void **state)
{
    struct kvt__slot slots[3], other[12];
    struct stuck reads[12];

    (void)state;
    make_region();
    for (size_t i = 0; i < 3; i++) {
        slots[i] = lent(CHUNK);
        put(&slots[i], i);
    }
    for (size_t i = 0; i < 12; i++) { /* more than fit into the region */
        other[i] = slot_new(CHUNK, tier->phase);
        get_stuck(&reads[i], &other[i], i % 3);
    }
    wait_until_full();
    usrbiod_command(&usrbiod, "clear");
    for (size_t i = 0; i < 3; i++)
        get(&slots[i], i);
    usrbiod_command(&usrbiod, "release");
    for (size_t i = 0; i < 12; i++) {
        wait_for(&reads[i]);
        assert_true(slot_holds(&other[i], i % 3));
        slot_free(&other[i], tier->phase);
    }
    for (size_t i = 0; i < 3; i++)
        kvt__pool_release(NULL, &slots[i]);
}

/* A failed read waits for the I/Os in the daemon, and not for room. */
static void
a_read_that_failed_leaves_room_to_others(void **state)
{
    size_t phase = tier->phase;
    struct kvt__slot large = slot_new(REGION + 20 * MIB, phase);
    struct kvt__slot other = slot_new(CHUNK, phase);
    struct stuck read;

    (void)state;
    make_region();
    put(&other, 1);
    put(&large, 2);
    usrbiod_command(&usrbiod, "fault read result=-EREMOTEIO name=@2@");
    usrbiod_command(&usrbiod, "fault read stuck name=@2@ from=67108864"); /* not the first I/O */
    start(&read, KVT__TIER_GET, &large, 2);
    while (!usrbiod_count(&usrbiod, "stuck"))
        usleep(1000);
    get(&other, 1);
    assert_int_equal(read.answered, 0);
    usrbiod_command(&usrbiod, "clear"); /* an I/O that the daemon takes later is not stuck */
    usrbiod_command(&usrbiod, "release");
    wait_for(&read);
    assert_int_equal(read.err, -EREMOTEIO);
    slot_free(&other, phase);
    slot_free(&large, phase);
}

/* The old daemon may still write into the slot after the restart. */
static void
a_read_interrupted_by_a_restart_gets_another_slot(void **state)
{
    struct stuck s;

    (void)state;
    make_region();
    struct kvt__slot slot = lent(CHUNK);
    put(&slot, 1);
    get_stuck(&s, &slot, 1);
    usrbiod_kill(&usrbiod);
    assert_true(usrbiod_run(&usrbiod, NULL));
    wait_for(&s);
    assert_int_equal(s.err, -ECONNABORTED);
    kvt__pool_release(NULL, &slot);
    slot = slot_new(CHUNK, tier->phase);
    get(&slot, 1);
    slot_free(&slot, tier->phase);
}

/* A slot filled before the restart is stored after the restart. */
static void
a_slot_of_a_closed_region_is_copied(void **state)
{
    (void)state;
    make_region();
    struct kvt__slot slot = lent(CHUNK);
    usrbiod_kill(&usrbiod);
    assert_true(usrbiod_run(&usrbiod, NULL));
    put(&slot, 1);
    assert_int_equal(counted(KVT__N_hf3fs_copied_bytes), counted(KVT__N_hf3fs_bytes));
    kvt__pool_release(NULL, &slot);
    slot = lent(CHUNK);
    get(&slot, 1);
    assert_true(counted(KVT__N_hf3fs_copied_bytes) < counted(KVT__N_hf3fs_bytes));
    kvt__pool_release(NULL, &slot);
    assert_int_equal((int)usrbiod_count(&usrbiod, "iovs"), 1);
}

/* A GPU then copies from and to the region's slots. */
static void
the_region_is_pinned_where_a_gpu_is_used(void **state)
{
    void *handle = dlopen(cuda, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        fail_msg("%s", dlerror());
    fake_gpu_fn *find = (fake_gpu_fn *)(uintptr_t)dlsym(handle, "fake_gpu");
    assert_non_null(find);
    struct fake_gpu *fake = find();
    fake->active = 0;
    make_region();
    struct kvt__slot slot = lent(CHUNK);
    assert_int_equal(fake->n_registered, 1);
    assert_int_equal(fake->bytes, REGION);
    assert_true(slot.payload > (unsigned char *)fake->at &&
                slot.payload + slot.bytes < (unsigned char *)fake->at + REGION);
    kvt__pool_release(NULL, &slot);
    teardown(state);
    assert_int_equal(fake->n_registered, 0);
    assert_int_equal(fake->n_retained, 0);
    setup(state);
    fake->active = -1;
    dlclose(handle);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(no_slot_is_lent_before_the_first_transfer),
        cmocka_unit_test_setup_teardown(a_worker_makes_the_rings_before_its_first_transfer,
                                        setup_worker, teardown),
        TEST(bytes_of_the_region_are_not_copied),
        TEST(bytes_of_other_memory_are_copied_once),
        TEST(stores_leave_half_of_the_region),
        TEST(loads_may_use_all_memory_until_stores_need_room),
        TEST(a_slot_does_not_wait_for_requests_for_its_memory),
        cmocka_unit_test_setup_teardown(a_read_that_failed_leaves_room_to_others, setup_single,
                                        teardown),
        TEST(a_read_interrupted_by_a_restart_gets_another_slot),
        TEST(a_slot_of_a_closed_region_is_copied),
        TEST(the_region_is_pinned_where_a_gpu_is_used),
        cmocka_unit_test(only_the_selected_client_was_used),
    };

    cuda = argc > 1 ? argv[1] : "";
    hf3fs_watch_log();
    kvt__hf3fs_max_wait_ns = 60 * KVT__NS_PER_S; /* long enough for a busy machine */
    return usrbiod_run_tests(&usrbiod, "slots of 3FS", tests,
                             sizeof tests / sizeof *tests, NULL, NULL);
}
