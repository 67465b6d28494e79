/* SPDX-License-Identifier: Apache-2.0
 *
 * A group whose KV is equal on every rank: one rank stores, all ranks load.  Two workers and the
 * scheduler are three engines of this program. */
#include "base/clock.h"

#define N_RANKS 2u
#define N_STAGES 1u
#include "system/world.h"

#define SMALL "max_local_cpu_size=0.0005" /* room for 12 chunks to stay */

static const char *const small_memory[] = { "remote_url=", "local_cpu=true", SMALL, NULL };

static int
setup(void **state)
{
    struct world *w = new_world();

    w->groups[0].replicated = 1;
    *state = w;
    return 0;
}

static void
reopen_rank(struct world *w, uint32_t r, const char *const *settings)
{
    close_engine(&w->ranks[r]);
    open_rank(w, r, settings);
}

static void
set_prompt(struct world *w, uint32_t prompt)
{
    set_tokens(&w->scheduler, prompt);
    for (uint32_t r = 0; r < N_RANKS; r++)
        set_tokens(&w->ranks[r], prompt);
}

/* How many chunks the scheduler promises; the lease stays until the caller frees. */
static size_t
promise(struct world *w, struct kvt_seq **seq)
{
    *seq = new_seq(&w->scheduler, N_TOKENS);
    return (size_t)(lookup(&w->scheduler, *seq, 0, N_TOKENS) / CHUNK);
}

static void
end_promise(struct world *w, struct kvt_seq *seq)
{
    kvt_engine_release(w->scheduler.engine, seq);
    kvt_seq_free(seq);
}

static size_t
promised(struct world *w)
{
    struct kvt_seq *seq;
    size_t n = promise(w, &seq);

    end_promise(w, seq);
    return n;
}

/* Return how many of the first n chunks a rank loads with the right bytes. */
static uint32_t
load_rank(struct world *w, uint32_t r, uint32_t n)
{
    const struct fixture *f = &w->ranks[r];
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint32_t loaded = 0;
    struct io io;

    make_io(&io, seq, 0, 0, n, 1);
    wipe(f);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < n; c++) {
        if (kvt_load_status(load, 0, c))
            continue;
        assert_true(chunk_is_right(f, &io, c));
        loaded++;
    }
    kvt_load_free(load);
    kvt_seq_free(seq);
    return loaded;
}

/* Both load everything. */
static void
assert_all_load(struct world *w)
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(load_rank(w, r, N_CHUNKS), N_CHUNKS);
}

static void
write_all(struct world *w)
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        write_chunks(&w->ranks[r], 0, N_CHUNKS);
}

/* Store four chunks of a prompt.  The clock of recency has a coarse resolution. */
static void
write_prompt(struct world *w, uint32_t r, uint32_t prompt)
{
    int64_t begun = kvt__wall_ns();

    while (kvt__wall_ns() - begun < 4096)
        continue;
    set_prompt(w, prompt);
    write_chunks(&w->ranks[r], 0, 4);
}

static void
assert_named(const struct world *w, const char *name)
{
    struct usage usage = usage_of(&w->scheduler);

    if (!strstr(usage.last, name))
        fail_msg("%s is not named %s", usage.last, name);
}

static void
equal_chunks_of_two_ranks_are_written_once(void **state)
{
    struct world *w = *state;

    open_world(w, storage_only);
    write_all(w);
    assert_int_equal(usage_of(&w->scheduler).n_files, N_CHUNKS);
    assert_named(w, "model@1@0@");
    assert_int_equal(counter(&w->ranks[0], "store_chunks"), N_CHUNKS);
    assert_int_equal(counter(&w->ranks[1], "store_chunks"), 0);
    assert_int_equal(counter(&w->ranks[1], "store_failed"), 0);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
}

static void
each_rank_keeps_its_own_copy_in_memory(void **state)
{
    struct world *w = *state;

    open_world(w, both);
    write_all(w);
    assert_int_equal(usage_of(&w->scheduler).n_files, N_CHUNKS);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        assert_int_equal(counter(&w->ranks[r], "store_chunks"), N_CHUNKS);
        assert_int_equal(counter(&w->ranks[r], "memory_hits"), N_CHUNKS);
        assert_int_equal(counter(&w->ranks[r], "load_bytes"), 0);
    }
}

static void
a_rank_without_its_copy_reads_the_first_ranks_object(void **state)
{
    struct world *w = *state;
    struct kvt_seq *seq;

    open_world(w, both);
    write_all(w);
    reopen_rank(w, 1, both);
    assert_int_equal(promise(w, &seq), N_CHUNKS);
    assert_all_load(w);
    assert_int_equal(counter(&w->ranks[0], "load_bytes"), 0);
    assert_int_equal(counter(&w->ranks[1], "memory_hits"), 0);
    end_promise(w, seq);
    assert_int_equal(load_rank(w, 1, N_CHUNKS), N_CHUNKS);
    assert_int_equal(counter(&w->ranks[1], "memory_hits"), N_CHUNKS);
}

static void
another_rank_than_the_first_writes_nothing(void **state)
{
    struct world *w = *state;

    open_world(w, both);
    write_chunks(&w->ranks[1], 0, N_CHUNKS);
    assert_int_equal(usage_of(&w->scheduler).n_files, 0);
    assert_int_equal(counter(&w->ranks[1], "store_chunks"), N_CHUNKS); /* in memory */
    assert_int_equal(promised(w), 0);
    write_chunks(&w->ranks[0], 0, 3);
    assert_int_equal(usage_of(&w->scheduler).n_files, 3);
    assert_int_equal(promised(w), 3);
}

static void
without_storage_every_rank_must_hold_the_chunk(void **state)
{
    struct world *w = *state;

    open_world(w, memory_only);
    write_chunks(&w->ranks[0], 0, N_CHUNKS);
    assert_int_equal(promised(w), 0);
    write_chunks(&w->ranks[1], 0, 6);
    assert_int_equal(promised(w), 6);
    write_chunks(&w->ranks[1], 6, N_CHUNKS - 6);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
    reopen_rank(w, 0, memory_only);
    assert_int_equal(promised(w), 0);
}

/* Other prompts evict the first prompt's chunks from one rank's memory. */
static void
a_chunk_evicted_by_one_rank_is_a_miss(void **state)
{
    struct world *w = *state;

    open_world(w, small_memory);
    for (uint32_t r = 0; r < N_RANKS; r++)
        write_chunks(&w->ranks[r], 0, 4);
    assert_int_equal(promised(w), 4);
    for (uint32_t prompt = 1; prompt < 6; prompt++)
        write_prompt(w, 1, prompt);
    set_prompt(w, 0);
    assert_int_equal(promised(w), 0);
    assert_int_equal(load_rank(w, 0, 4), 4);
    assert_int_equal(load_rank(w, 1, 4), 0);
}

static void
a_leased_chunk_stays_in_every_ranks_memory(void **state)
{
    struct world *w = *state;
    struct kvt_seq *seq;

    open_world(w, small_memory);
    for (uint32_t r = 0; r < N_RANKS; r++)
        write_chunks(&w->ranks[r], 0, 4);
    assert_int_equal(promise(w, &seq), 4);
    for (uint32_t prompt = 1; prompt < 10; prompt++)
        for (uint32_t r = 0; r < N_RANKS; r++)
            write_prompt(w, r, prompt);
    set_prompt(w, 0);
    for (uint32_t r = 0; r < N_RANKS; r++)
        assert_int_equal(load_rank(w, r, 4), 4);
    end_promise(w, seq);
    for (uint32_t prompt = 1; prompt < 10; prompt++)
        write_prompt(w, 0, prompt + 10);
    set_prompt(w, 0);
    assert_int_equal(load_rank(w, 0, 4), 0); /* the lease is back */
}

static void
a_reset_takes_every_ranks_copy(void **state)
{
    static const char *const *const settings[] = { memory_only, both };
    struct world *w = *state;

    for (size_t i = 0; i < 2; i++) {
        open_world(w, settings[i]);
        write_all(w);
        assert_int_equal(promised(w), N_CHUNKS);
        assert_int_equal(kvt_engine_reset(w->scheduler.engine, "new"), 0);
        assert_int_equal(promised(w), 0);
        for (uint32_t r = 0; r < N_RANKS; r++) { /* here ranks make sequences too */
            assert_int_equal(load_rank(w, r, N_CHUNKS), N_CHUNKS);
            assert_int_equal(kvt_engine_reset(w->ranks[r].engine, "new"), 0);
            assert_int_equal(load_rank(w, r, N_CHUNKS), 0);
        }
        write_all(w);
        assert_int_equal(promised(w), N_CHUNKS);
        assert_all_load(w);
        close_world(w);
    }
}

static void
a_world_of_another_size_finds_the_chunk(void **state)
{
    struct world *w = *state;
    struct kvt_group group = opaque_group();

    open_world(w, storage_only);
    write_chunks(&w->ranks[0], 0, N_CHUNKS);
    kvt_engine_close(w->scheduler.engine);
    w->scheduler.engine = open_engine(&w->scheduler, KVT_ROLE_BOTH, &group, 1,
                                      storage_only);
    set_view(w->scheduler.engine, 0, w->scheduler.memory);
    assert_int_equal(load_prompt(&w->scheduler).loaded, N_CHUNKS);
}

/* Probes of the tiers find files that are not in the index. */
static void
one_probe_finds_the_object_for_all_ranks(void **state)
{
    struct world *w = *state;

    open_world(w, storage_only);
    write_all(w);
    (void)read_index(&w->scheduler, true);
    close_world(w);
    lose_index(w->scheduler.dir.path);
    w->scheduler.engine = open_in_world(w, KVT_ROLE_SCHEDULER, 0, storage_only);
    assert_int_equal(promised(w), N_CHUNKS);
    for (uint32_t r = 0; r < N_RANKS; r++)
        open_rank(w, r, storage_only);
    assert_all_load(w);
}

static void
the_settings_select_the_rank_in_keys(void **state)
{
    static const char *const as_first[] = { "save_only_first_rank=false", NULL };
    static const char *const own[] = {
        "save_only_first_rank=false", "remote_enable_mla_worker_id_as0=false", NULL };
    struct world *w = *state;

    open_world(w, as_first);
    write_all(w);
    assert_int_equal(usage_of(&w->scheduler).n_files, N_CHUNKS);
    assert_named(w, "model@2@0@");
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
    close_world(w);
    open_world(w, own);
    write_chunks(&w->ranks[0], 0, N_CHUNKS); /* found under the first rank's name */
    assert_int_equal(promised(w), 0);
    write_chunks(&w->ranks[1], 0, N_CHUNKS);
    assert_int_equal(usage_of(&w->scheduler).n_files, 2 * N_CHUNKS);
    assert_int_equal(promised(w), N_CHUNKS);
    assert_all_load(w);
}

/* The first rank of another host writes to a disk that no other host can read. */
static void
on_every_host_the_first_rank_writes_local_disk(void **state)
{
    struct world *w = *state;
    char disk[400];
    const char *settings[] = { "remote_url=", disk, "max_local_disk_size=0.01", NULL };
    struct opening opening = { .role = KVT_ROLE_WORKER, .settings = settings,
                               .groups = w->groups, .n_groups = 1,
                               .world_size = N_RANKS, .rank = 1, .local_ranks = 1 };

    snprintf(disk, sizeof disk, "local_disk=%s", w->scheduler.dir.path);
    w->ranks[1].engine = must_open(&w->scheduler, &opening);
    set_view(w->ranks[1].engine, 0, w->ranks[1].memory);
    write_chunks(&w->ranks[1], 0, N_CHUNKS);
    assert_int_equal(counter(&w->ranks[1], "store_chunks"), N_CHUNKS);
    assert_int_equal(load_rank(w, 1, N_CHUNKS), N_CHUNKS);
    assert_named(w, "model@1@0@");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, free_world)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(equal_chunks_of_two_ranks_are_written_once),
        TEST(each_rank_keeps_its_own_copy_in_memory),
        TEST(a_rank_without_its_copy_reads_the_first_ranks_object),
        TEST(another_rank_than_the_first_writes_nothing),
        TEST(without_storage_every_rank_must_hold_the_chunk),
        TEST(a_chunk_evicted_by_one_rank_is_a_miss),
        TEST(a_leased_chunk_stays_in_every_ranks_memory),
        TEST(a_reset_takes_every_ranks_copy),
        TEST(a_world_of_another_size_finds_the_chunk),
        TEST(one_probe_finds_the_object_for_all_ranks),
        TEST(the_settings_select_the_rank_in_keys),
        TEST(on_every_host_the_first_rank_writes_local_disk),
    };

    return cmocka_run_group_tests_name("replicated groups", tests, NULL, NULL);
}
