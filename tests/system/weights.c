/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines of equal description and different weights, in turn and side by side.  Each
 * weights have a number, and the bytes of a chunk depend on the number. */
#include "system/system-test.h"

/* Another engine of the same description over the same directory. */
static struct fixture
second_engine(const struct fixture *f, const char *const *settings)
{
    struct fixture other = *f;

    fixture_open(&other, settings);
    return other;
}

static void
a_restart_with_the_old_weights_finds_their_chunks(void **state)
{
    struct fixture *f = *state;

    store_weights(f, 5, 1);
    reset_weights(f);
    assert_int_equal(load_weights(f, 2), 0);
    store_weights(f, 7, 2);
    assert_int_equal(load_weights(f, 2), 7);
    reopen(f, NULL);
    assert_int_equal(load_weights(f, 1), 5);
    reset_weights(f);
    assert_int_equal(load_weights(f, 3), 0);
}

static void
a_reset_does_not_affect_another_engine(void **state)
{
    struct fixture *f = *state;
    struct fixture other = second_engine(f, NULL);

    store_weights(f, 5, 1);
    assert_int_equal(load_weights(&other, 1), 5);
    reset_weights(f);
    assert_int_equal(load_weights(f, 2), 0);
    assert_int_equal(load_weights(&other, 1), 5);
    store_weights(f, 7, 2);
    store_weights(&other, 6, 1);
    assert_int_equal(load_weights(f, 2), 7);
    assert_int_equal(load_weights(&other, 1), 6);
    set_tokens(f, 1);
    set_tokens(&other, 1);
    store_weights(&other, 3, 1);
    assert_int_equal(load_weights(f, 2), 0);
    kvt_engine_close(other.engine);
}

/* Link the chunks of a directory into another directory, replacing files of equal names. */
static void
share_files(const struct fixture *from, const struct fixture *to)
{
    char path[300], have[600], want[600];
    struct dirent *e;

    snprintf(path, sizeof path, "%s/kvtier", from->dir.path);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(have, sizeof have, "%s/%s", path, e->d_name);
        snprintf(want, sizeof want, "%s/kvtier/%s", to->dir.path, e->d_name);
        unlink(want);
        assert_int_equal(link(have, want), 0);
    }
    closedir(d);
}

/* Each host has a private index over shared files. */
static void
two_hosts_that_were_both_reset_share_nothing(void **state)
{
    struct fixture *f = *state;
    struct fixture other = *f;

    temp_dir_make(&other.dir);
    fixture_open(&other, NULL);
    store_weights(f, 3, 0);
    share_files(f, &other);
    assert_int_equal(load_weights(&other, 0), 3);
    reset_weights(f);
    reset_weights(&other);
    store_weights(f, 5, 1);
    share_files(f, &other);
    assert_int_equal(load_weights(&other, 2), 0);
    store_weights(&other, 4, 2);
    share_files(&other, f);
    assert_int_equal(load_weights(f, 1), 5);
    assert_int_equal(load_weights(&other, 2), 4);
    kvt_engine_close(other.engine);
    temp_dir_remove(&other.dir);
}

/* Named weights have LMCache's names: the index promises a file replaced by another host. */
static void
a_file_that_another_host_replaced_is_a_miss(void **state)
{
    static const char *const second[] = { "model_fingerprint=second", NULL };
    struct fixture *f = *state, other = *f;
    struct io io;

    temp_dir_make(&other.dir);
    fixture_open(&other, second);
    store_weights(f, 3, 1);
    store_weights(&other, 3, 2);
    share_files(&other, f);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 3 * CHUNK);
    wipe(f);
    make_io(&io, seq, 0, 0, 3, 1);
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    assert_int_equal(kvt_load_status(load, 0, 0), -ENOENT);
    for (uint32_t b = 1; b <= 6; b++)
        assert_false(block_holds(f, b, b, 2));
    kvt_load_free(load);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    kvt_engine_close(other.engine);
    temp_dir_remove(&other.dir);
}

/* A reset may come between a scheduler's plan and the worker's save. */
static void
a_save_that_was_planned_before_a_reset_keeps_its_weights(void **state)
{
    struct fixture *f = *state;
    struct kvt_group group = opaque_group();
    struct fixture scheduler = *f;

    scheduler.engine = open_engine(f, KVT_ROLE_SCHEDULER, &group, 1, NULL);
    struct kvt_seq *before = new_seq(&scheduler, N_TOKENS);
    reset_weights(&scheduler);
    store_seeded(f, before, NULL, 0, 5, 1);
    struct kvt_seq *after = new_seq(&scheduler, N_TOKENS);
    assert_int_equal(lookup(&scheduler, after, 0, N_TOKENS), 0);
    assert_int_equal(lookup(&scheduler, before, 0, N_TOKENS), 5 * CHUNK);
    assert_int_equal(load_weights(f, 1), 5);
    store_seeded(f, after, NULL, 0, 4, 2);
    assert_int_equal(lookup(&scheduler, after, 0, N_TOKENS), 4 * CHUNK);
    assert_int_equal(load_seeded_hit(f, after, NULL, 2), 4);
    assert_int_equal(load_seeded_hit(f, before, NULL, 1), 5);
    kvt_seq_free(before);
    kvt_seq_free(after);
    kvt_engine_close(scheduler.engine);
}

static void
a_name_for_the_new_weights_lets_others_share_them(void **state)
{
    static const char *const second[] = { "model_fingerprint=second", NULL };
    static const char *const third[] = { "model_fingerprint=third", NULL };
    struct fixture *f = *state;
    struct fixture other = second_engine(f, second), third_one = second_engine(f, third);

    assert_int_equal(kvt_engine_reset(f->engine, "second"), 0);
    store_weights(f, 5, 2);
    assert_int_equal(load_weights(&other, 2), 5);
    assert_int_equal(load_weights(&third_one, 3), 0);
    store_weights(&other, 7, 2);
    assert_int_equal(load_weights(f, 2), 7);
    assert_int_equal(kvt_engine_reset(f->engine, "third"), 0);
    assert_int_equal(load_weights(f, 3), 0);
    kvt_engine_close(other.engine);
    kvt_engine_close(third_one.engine);
}

static void
a_reset_includes_chunks_with_tags(void **state)
{
    struct fixture *f = *state;

    store_tagged(f, "user%a", 3, 1);
    assert_int_equal(load_tagged(f, "user%a", 1), 3);
    reset_weights(f);
    assert_int_equal(load_tagged(f, "user%a", 2), 0);
}

/* The other host's index lacks the chunks: the lookup finds the file by name and tags. */
static void
another_host_finds_chunks_by_their_tags(void **state)
{
    struct fixture *f = *state, other = *f;

    temp_dir_make(&other.dir);
    fixture_open(&other, NULL);
    read_index(&other, true);
    store_weights(&other, 1, 0); /* makes the directory */
    store_tagged(f, "user%a", 3, 1);
    share_files(f, &other);
    assert_int_equal(load_tagged(&other, "user%b", 1), 0);
    assert_int_equal(load_tagged(&other, "user%a", 1), 3);
    kvt_engine_close(other.engine);
    temp_dir_remove(&other.dir);
}

/* Another process deleted the index during the engine's life. */
static void
a_reset_works_after_the_index_was_replaced(void **state)
{
    struct kvt_chunk before[2], after[2];
    struct fixture *f = *state;

    store_weights(f, 5, 1);
    lose_index(f->dir.path);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_seq_chunks(seq, 0, 2, before), 0);
    kvt_seq_free(seq);
    reset_weights(f);
    seq = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_seq_chunks(seq, 0, 2, after), 0);
    kvt_seq_free(seq);
    for (int c = 0; c < 2; c++) {
        assert_memory_not_equal(before[c].prefix, after[c].prefix, 16);
        assert_int_equal(before[c].flags, 0);
        assert_int_equal(after[c].flags, KVT_CHUNK_OWN);
    }
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup_open, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(a_restart_with_the_old_weights_finds_their_chunks),
        T(a_reset_does_not_affect_another_engine),
        T(two_hosts_that_were_both_reset_share_nothing),
        T(a_file_that_another_host_replaced_is_a_miss),
        T(a_save_that_was_planned_before_a_reset_keeps_its_weights),
        T(a_name_for_the_new_weights_lets_others_share_them),
        T(a_reset_includes_chunks_with_tags),
        T(another_host_finds_chunks_by_their_tags),
        T(a_reset_works_after_the_index_was_replaced),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
