/* SPDX-License-Identifier: Apache-2.0
 *
 * KV in the memory of a GPU, and files of gds_path, over fakes of CUDA and cuFile.  No byte of a
 * chunk passes through host memory. */
#include "engine-test.h"
#include "gds-fakes.h"

static char gds_path[300];
static const char *settings[] = { "remote_url=", gds_path, "gpu_copies=batch", NULL };

static int
setup(void **state)
{
    static struct fixture f;

    gds_set("");
    fixture_init(&f);
    snprintf(gds_path, sizeof gds_path, "gds_path=%s", f.dir.path);
    fixture_open_plain(&f, settings);
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    fixture_fini(*state);
    expect_gds_at_rest();
    assert_int_equal(gds->count, 0);
    return 0;
}

/* Load n chunks to blocks 33 ... and return the load. */
static struct kvt_load *
load(struct fixture *f, uint32_t n)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    assert_int_equal(lookup(f, seq, 0, N_TOKENS), n * CHUNK);
    make_io(&io, seq, 0, 0, n, 33);
    struct kvt_load *done = load_and_wait(f, &io.io, 1);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return done;
}

static void
chunks_are_stored_and_loaded_directly(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 8);
    assert_int_equal(counter(f, "store_chunks"), 8);
    assert_true(gds->n_moves >= 8);
    kvt_engine_close(f->engine); /* another engine finds the stored chunks */
    fixture_open_plain(f, settings);
    int before = gds->n_moves;
    struct kvt_load *done = load(f, 8);
    for (uint32_t b = 0; b < 16; b++)
        assert_true(block_holds(f, 33 + b, 1 + b, 0));
    assert_true(gds->n_moves >= before + 8);
    assert_int_equal(counter(f, "unverified_chunks"), 0);
    assert_int_equal(counter(f, "gds_direct_bytes"), counter(f, "load_bytes"));
    kvt_load_free(done);
}

/* The checksum that the device computes of the read bytes differs from the stored checksum. */
static void
bytes_damaged_in_transit_are_not_loaded(void **state)
{
    struct fixture *f = *state;

    gds_set("damage=1");
    store_prefix(f, 2);
    struct kvt_load *done = load(f, 2);
    assert_int_equal(kvt_load_status(done, 0, 0), -EBADMSG);
    assert_false(block_holds(f, 33, 1, 0));
    kvt_load_free(done);
}

static void
a_library_that_fails_is_a_miss(void **state)
{
    struct fixture *f = *state;

    store_prefix(f, 2);
    gds_set("read=5");
    struct kvt_load *done = load(f, 2);
    assert_int_equal(kvt_load_status(done, 0, 0), -EIO);
    kvt_load_free(done);
}

/* The tier then allocates no memory of the GPU. */
static void
chunks_kept_in_host_memory_are_copied_through_host_memory(void **state)
{
    struct fixture *f = *state;
    const char *stay[] = { "remote_url=", gds_path, "local_cpu=true", NULL };

    kvt_engine_close(f->engine);
    assert_int_equal(gds->n_buffers, 0);
    fixture_open_plain(f, stay);
    assert_int_equal(gds->n_buffers, 0);
    int before = gds->n_moves;
    store_prefix(f, 2);
    assert_int_equal(gds->n_moves, before);
    struct kvt_load *done = load(f, 2);
    assert_int_equal(kvt_load_status(done, 0, 1), 0);
    assert_true(block_holds(f, 33, 1, 0));
    kvt_load_free(done);
}

/* The driver fails every call for a while, as after an error of a kernel. */
static void
chunks_that_the_device_cannot_copy_are_counted(void **state)
{
    struct fixture *f = *state;
    const char *stay[] = { "remote_url=", gds_path, "local_cpu=true", NULL };

    kvt_engine_close(f->engine);
    fixture_open_plain(f, stay);
    gpu_fake->lose(719);
    store_prefix(f, 2);
    gpu_fake->lose(0);
    assert_int_equal(counter(f, "store_failed"), 2);
    assert_int_equal(counter(f, "store_chunks"), 0);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
    store_prefix(f, 2);
    assert_int_equal(counter(f, "store_failed"), 2);
    struct kvt_load *done = load(f, 2);
    assert_true(block_holds(f, 33, 1, 0));
    kvt_load_free(done);
}

/* kvt_engine_set_view() reports that a required data path is missing. */
static void
use_gds_true_is_refused_for_host_memory(void **state)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    struct fixture *f = *state;
    struct kvt_group group = plain_group();
    const char *demanding[] = { "remote_url=", gds_path, "use_gds=true", NULL };
    void *base[N_LAYERS] = { f->memory, f->memory, f->memory };
    struct kvt_engine *engine = open_engine(f, KVT_ROLE_BOTH, &group, 1, demanding);

    view.base = base;
    view.n_kv = 1;
    view.n_blocks = N_BLOCKS;
    assert_int_equal(kvt_engine_set_view(engine, 0, &view), -ENODEV);
    assert_non_null(strstr(kvt_last_error(), "use_gds is true (argument), and the GPU"));
    kvt_engine_close(engine);
}

/* A refused view leaves no GPU object and no pinned memory, and another call can succeed. */
static void
a_view_that_is_refused_leaves_nothing_of_the_gpu(void **state)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    struct fixture *f = *state;
    struct kvt_group group = plain_group();
    const char *required[] = { "remote_url=", gds_path, "use_gds=true", "gpu_copies=batch",
                               NULL };
    void *base[N_LAYERS];

    kvt_engine_close(f->engine);
    int n_alive = gpu_fake->n_alive, n_retained = gpu_fake->n_retained;
    int n_registered = gpu_fake->n_registered;
    f->engine = open_engine(f, KVT_ROLE_BOTH, &group, 1, required);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        base[layer] = block_at(f, layer, 0);
    view.base = base;
    view.n_kv = 1;
    view.n_blocks = N_BLOCKS;
    view.memory = device_memory();
    gds_set("buffer=5030");
    assert_int_equal(kvt_engine_set_view(f->engine, 0, &view), -EIO);
    assert_int_equal(gpu_fake->n_alive, n_alive);
    assert_int_equal(gpu_fake->n_retained, n_retained);
    assert_int_equal(gpu_fake->n_registered, n_registered);
    gds_set("");
    set_view(f->engine, 0, f->memory);
    store_prefix(f, 2);
    kvt_load_free(load(f, 2));
    assert_true(block_holds(f, 33, 1, 0));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(chunks_are_stored_and_loaded_directly),
        TEST(bytes_damaged_in_transit_are_not_loaded),
        TEST(a_library_that_fails_is_a_miss),
        TEST(chunks_kept_in_host_memory_are_copied_through_host_memory),
        TEST(chunks_that_the_device_cannot_copy_are_counted),
        TEST(use_gds_true_is_refused_for_host_memory),
        TEST(a_view_that_is_refused_leaves_nothing_of_the_gpu),
    };

    if (!load_fakes(argc, argv))
        return 77;
    setenv("KVTIER_TEST_DRIVER", argv[3], 1);
    behave_well();
    int failed = cmocka_run_group_tests_name("engine, gds, device", tests, NULL, NULL);
    forget_fakes();
    return failed;
}
