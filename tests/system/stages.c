/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipeline parallelism: the ranks of a stage hold the KV of the stage's layers, and a hit needs the
 * chunks of all stages.  Four workers in two stages and the scheduler are five engines of this
 * program. */
#define N_RANKS 4u
#define N_STAGES 2u
#include "system/world.h"

/* Give the first stage n of the three layers, and the second stage the other layers. */
static void
set_layers(struct world *w, uint32_t n)
{
    for (uint32_t s = 0; s < N_STAGES; s++) {
        w->groups[s].n_layers = s ? N_LAYERS - n : n;
        w->groups[s].layers = s ? (n == 1 ? "1,2" : "2") : (n == 1 ? "0" : "0,1");
    }
}

static int
setup(void **state)
{
    struct world *w = new_world();

    set_layers(w, 1);
    *state = w;
    return 0;
}

/* Replicated groups have equal bytes on the ranks of a stage; other groups on no two ranks. */
static uint32_t
seed_of(const struct world *w, uint32_t r)
{
    return 50 + (w->groups[0].replicated ? r / PER_STAGE : r);
}

static void
write_rank(const struct world *w, uint32_t r, size_t first, uint32_t n)
{
    const struct fixture *f = &w->ranks[r];
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, first, n, 1 + (int32_t)first * (int32_t)CHUNK_BLOCKS);
    for (uint32_t b = 0; b < n * CHUNK_BLOCKS; b++)
        fill_block(f, (uint32_t)io.blocks[b], seed_of(w, r));
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
}

static void
write_all(const struct world *w)
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        write_rank(w, r, 0, N_CHUNKS);
}

/* Let all workers read the chunks that a lookup waits for. */
static void
prefetch_wanted(const struct world *w, struct kvt_seq *seq)
{
    struct kvt_chunk_range range;
    struct io io;

    if (!kvt_engine_wanted(w->scheduler.engine, seq, &range))
        return;
    make_io(&io, seq, range.group, range.first_chunk, range.n_chunks, 1);
    io.io.blocks = NULL;
    io.io.n_blocks = 0;
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(kvt_engine_prefetch(w->ranks[r].engine, &io.io, 1), 0);
}

/* Return the number of chunks that the scheduler promises. */
static size_t
promised(const struct world *w)
{
    struct kvt_seq *seq = new_seq(&w->scheduler, N_TOKENS);
    uint64_t hit;
    int err;

    while ((err = kvt_engine_lookup(w->scheduler.engine, seq, 0, N_TOKENS, &hit)) == -EAGAIN) {
        prefetch_wanted(w, seq);
        usleep(200);
    }
    assert_int_equal(err, 0);
    kvt_engine_release(w->scheduler.engine, seq);
    kvt_seq_free(seq);
    return (size_t)(hit / CHUNK);
}

/* Return true if the layers of the rank's stage hold the bytes of a block, and the load has not
 * changed the other layers. */
static bool
block_is_right(const struct world *w, uint32_t r, uint32_t block)
{
    unsigned char want[BLOCK_BYTES];

    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        make_block(want, layer, block, seed_of(w, r));
        if (layer >= w->groups[r / PER_STAGE].n_layers)
            memset(want, 0xee, sizeof want);
        if (memcmp(block_at(&w->ranks[r], layer, block), want, sizeof want))
            return false;
    }
    return true;
}

/* Return how many of the prompt's chunks a rank loads; all of them have the right bytes. */
static uint32_t
load_rank(const struct world *w, uint32_t r)
{
    const struct fixture *f = &w->ranks[r];
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint32_t loaded = 0;
    struct io io;

    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    wipe(f);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        if (kvt_load_status(load, 0, c))
            continue;
        for (uint32_t b = 0; b < CHUNK_BLOCKS; b++)
            assert_true(block_is_right(w, r, 1 + c * CHUNK_BLOCKS + b));
        loaded++;
    }
    kvt_load_free(load);
    kvt_seq_free(seq);
    return loaded;
}

static void
assert_all_load(const struct world *w)
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(load_rank(w, r), N_CHUNKS);
}

/* Return the number of files of a rank in a world, and their largest size. */
static size_t
n_files(const struct world *w, uint32_t world_size, uint32_t rank, off_t *size)
{
    char dir[300], name[64], path[1024];
    struct dirent *e;
    struct stat st;
    size_t n = 0;

    snprintf(dir, sizeof dir, "%s/kvtier", w->scheduler.dir.path);
    snprintf(name, sizeof name, "model@%u@%u@", world_size, rank);
    DIR *d = opendir(dir);
    assert_non_null(d);
    *size = 0;
    while ((e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (!strstr(e->d_name, name) || stat(path, &st))
            continue;
        *size = st.st_size > *size ? st.st_size : *size;
        n++;
    }
    closedir(d);
    return n;
}

/* Delete the files of a rank in a world, from the chunks' storage and not from the index. */
static void
delete_files(const struct world *w, uint32_t world_size, uint32_t rank)
{
    char dir[300], name[64], path[1024];
    struct dirent *e;

    snprintf(dir, sizeof dir, "%s/kvtier", w->scheduler.dir.path);
    snprintf(name, sizeof name, "model@%u@%u@", world_size, rank);
    DIR *d = opendir(dir);
    assert_non_null(d);
    while ((e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, name))
            assert_int_equal(unlink(path), 0);
    }
    closedir(d);
}

static void
a_hit_needs_the_chunk_of_every_stage(void **state)
{
    static const char *const *const settings[] = { storage_only, memory_only, both };
    struct world *w = *state;

    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        set_tokens(&w->scheduler, (uint32_t)i);
        for (uint32_t r = 0; r < N_RANKS; r++)
            set_tokens(&w->ranks[r], (uint32_t)i);
        open_world(w, settings[i]);
        write_rank(w, 0, 0, N_CHUNKS);
        write_rank(w, 1, 0, N_CHUNKS);
        assert_int_equal(promised(w), 0);
        write_rank(w, 2, 0, N_CHUNKS);
        assert_int_equal(promised(w), 0);
        write_rank(w, 3, 0, 6);
        assert_int_equal(promised(w), 6);
        write_rank(w, 3, 6, N_CHUNKS - 6);
        assert_int_equal(promised(w), N_CHUNKS);
        assert_all_load(w);
        close_world(w);
    }
}

static void
each_rank_stores_the_layers_of_its_stage(void **state)
{
    struct world *w = *state;
    off_t size[N_RANKS];

    open_world(w, storage_only);
    write_all(w);
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(n_files(w, N_RANKS, r, &size[r]), N_CHUNKS);
    assert_int_equal(size[2] - size[0], CHUNK_BLOCKS * BLOCK_BYTES);
    close_world(w);
    open_world(w, storage_only);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
}

static void
a_lost_chunk_of_a_stage_is_a_miss(void **state)
{
    struct world *w = *state;

    for (uint32_t r = 0; r < N_RANKS; r++) {
        open_world(w, storage_only);
        write_all(w);
        assert_int_equal(promised(w), N_CHUNKS);
        delete_files(w, N_RANKS, r);
        assert_int_equal(load_rank(w, r), 0);
        assert_int_equal(promised(w), 0);
        close_world(w);
    }
}

static void
stages_with_other_layers_share_no_chunk(void **state)
{
    struct world *w = *state;

    open_world(w, storage_only);
    write_all(w);
    close_world(w);
    set_layers(w, 2);
    open_world(w, storage_only);
    assert_int_equal(promised(w), 0);
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(load_rank(w, r), 0);
    write_all(w);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
}

/* The second stage has as many layers as before, and other layers. */
static void
a_stage_with_as_many_other_layers_shares_no_chunk(void **state)
{
    struct world *w = *state;

    open_world(w, storage_only);
    write_all(w);
    close_world(w);
    w->groups[1].layers = "2,3";
    open_world(w, storage_only);
    assert_int_equal(promised(w), 0);
    assert_int_equal(load_rank(w, 1), N_CHUNKS);
    assert_int_equal(load_rank(w, 2), 0);
}

/* Open a world of a replicated group, and write all chunks. */
static void
open_replicated(struct world *w, const char *const *settings)
{
    for (uint32_t s = 0; s < N_STAGES; s++)
        w->groups[s].replicated = 1;
    open_world(w, settings);
    write_all(w);
}

static void
a_stage_stores_a_replicated_chunk_once(void **state)
{
    static const char *const as_first[] = { "save_only_first_rank=false", NULL };
    static const char *const *const settings[] = { storage_only, as_first };
    struct world *w = *state;

    for (uint32_t i = 0; i < 2; i++) {
        uint32_t world_size = i ? N_RANKS : N_STAGES;
        off_t size[N_STAGES];

        open_replicated(w, settings[i]);
        for (uint32_t s = 0; s < N_STAGES; s++)
            assert_int_equal(n_files(w, world_size, i ? s * PER_STAGE : s, &size[s]), N_CHUNKS);
        assert_int_equal(size[1] - size[0], CHUNK_BLOCKS * BLOCK_BYTES);
        assert_int_equal(promised(w), N_CHUNKS);
        assert_all_load(w);
        delete_files(w, world_size, i ? PER_STAGE : 1);
        assert_int_equal(load_rank(w, 0), N_CHUNKS);
        assert_int_equal(load_rank(w, 3), 0);
        assert_int_equal(promised(w), 0);
        write_rank(w, 3, 0, 1); /* only the stage's first rank writes */
        assert_int_equal(promised(w), 0);
        close_world(w);
    }
    assert_int_equal(usage_of(&w->scheduler).n_files, 2 * N_CHUNKS);
}

static void
replicated_chunks_in_memory_count_for_each_rank(void **state)
{
    struct world *w = *state;

    open_replicated(w, memory_only);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
    close_engine(&w->ranks[3]);
    assert_int_equal(promised(w), 0);
}

/* Repeat a lookup until the gallop has entered n objects in the index. */
static void
gallop(const struct world *w, size_t n)
{
    struct kvt_seq *seq = new_seq(&w->scheduler, N_TOKENS);
    uint64_t hit;

    while (index_totals(&w->scheduler).n_entries < n) {
        assert_int_equal(kvt_engine_lookup(w->scheduler.engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
        usleep(200);
    }
    assert_int_equal(index_totals(&w->scheduler).n_entries, n);
    kvt_engine_release(w->scheduler.engine, seq);
    kvt_seq_free(seq);
}

/* The scheduler's probes find files that are not in the index; with storage of several hosts, a
 * gallop.  No worker lists the directory. */
static void
a_search_of_the_tiers_finds_the_objects_of_all_stages(void **state)
{
    struct world *w = *state;
    char url[300];
    const char *const shared[] = { url, "local_cpu=true", NULL };

    snprintf(url, sizeof url, "remote_url=fault://shared=1/fs://%s", w->scheduler.dir.path);
    for (uint32_t replicated = 0; replicated < 2; replicated++) {
        for (uint32_t s = 0; s < N_STAGES; s++)
            w->groups[s].replicated = replicated;
        open_world(w, storage_only);
        write_all(w);
        close_world(w);
        lose_index(w->scheduler.dir.path);
        w->scheduler.engine = open_in_world(w, KVT_ROLE_SCHEDULER, 0, storage_only);
        assert_int_equal(promised(w), N_CHUNKS);
        close_world(w);
        lose_index(w->scheduler.dir.path);
        open_workers(w, memory_only);
        w->scheduler.engine = open_in_world(w, KVT_ROLE_SCHEDULER, 0, shared);
        gallop(w, N_CHUNKS * (replicated ? N_STAGES : N_RANKS));
        close_world(w);
    }
}

/* Storage of several hosts: the chunks of a hit are read into the host memory of every rank.  With
 * the small chunks of the first stage alone, the lookup would wait for chunks without room. */
static void
a_hit_fits_in_the_memory_of_the_largest_stage(void **state)
{
    struct world *w = *state;
    char url[300];
    const char *const small[] = { url, "local_cpu=true", "max_local_cpu_size=0.0002", NULL };

    snprintf(url, sizeof url, "remote_url=fault://shared=1/fs://%s", w->scheduler.dir.path);
    open_world(w, storage_only);
    write_all(w);
    close_world(w);
    open_world(w, small);
    size_t n = promised(w);
    assert_in_range(n, 1, N_CHUNKS - 1);
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(load_rank(w, r), N_CHUNKS);
}

static void
stages_that_differ_in_more_than_layers_are_refused(void **state)
{
    struct world *w = *state;
    struct opening opening = { .role = KVT_ROLE_SCHEDULER, .settings = storage_only,
                               .groups = w->groups, .n_groups = 1, .world_size = N_RANKS,
                               .n_stages = N_STAGES, .instance = w->instance };
    struct kvt_engine *engine;

    w->groups[1].block_bytes *= 2;
    assert_int_equal(try_open(w->scheduler.dir.path, &opening, &engine), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "stage 1"));
    w->groups[1].block_bytes /= 2;
    opening.world_size = 3;
    assert_int_equal(try_open(w->scheduler.dir.path, &opening, &engine), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "n_stages 2 does not divide world_size 3"));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, free_world)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_hit_needs_the_chunk_of_every_stage),
        TEST(each_rank_stores_the_layers_of_its_stage),
        TEST(a_lost_chunk_of_a_stage_is_a_miss),
        TEST(stages_with_other_layers_share_no_chunk),
        TEST(a_stage_with_as_many_other_layers_shares_no_chunk),
        TEST(a_stage_stores_a_replicated_chunk_once),
        TEST(replicated_chunks_in_memory_count_for_each_rank),
        TEST(a_search_of_the_tiers_finds_the_objects_of_all_stages),
        TEST(a_hit_fits_in_the_memory_of_the_largest_stage),
        TEST(stages_that_differ_in_more_than_layers_are_refused),
    };

    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
