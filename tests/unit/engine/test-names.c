/* SPDX-License-Identifier: Apache-2.0
 *
 * The names of chunks by pre_caching_hash_algorithm and lmcache_release.  Stored chunks are found
 * after a change of the settings. */
#include "engine-test.h"

#include <dirent.h>
#include <inttypes.h>

#define BUILTIN "pre_caching_hash_algorithm=builtin"
#define SHA256 "pre_caching_hash_algorithm=sha256_cbor"

static const char *const builtin[] = { BUILTIN, NULL };
static const char *const newest[] = { SHA256, NULL };
static const char *const wide[] = { SHA256, "lmcache_release=0.4.3", NULL };
static const char *const wide_none[] = { SHA256, "lmcache_release=0.3.14", NULL };

/* Return the number of chunks of the hit.  All loaded bytes must equal the stored bytes. */
static uint64_t
found_chunks(struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint32_t n = (uint32_t)(lookup(f, seq, 0, N_TOKENS - 1) / CHUNK);
    struct io io;

    if (n) {
        make_io(&io, seq, 0, 0, n, 30);
        struct kvt_load *load = load_and_wait(f, &io.io, 1);

        for (uint32_t c = 0; c < n; c++)
            assert_int_equal(kvt_load_status(load, 0, c), 0);
        for (uint32_t b = 0; b < 2 * n; b++)
            assert_true(block_holds(f, 30 + b, 1 + b, 0));
        kvt_load_free(load);
    }
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return n;
}

/* Call fn with the name of each chunk file.  Return the number of files. */
static size_t
each_file(const struct fixture *f, void (*fn)(void *ctx, const char *name), void *ctx)
{
    char path[300];
    struct dirent *entry;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/kvtier", f->dir.path);
    DIR *d = opendir(path);
    while (d && (entry = readdir(d))) {
        if (!strstr(entry->d_name, ".data"))
            continue;
        if (fn)
            fn(ctx, entry->d_name);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

struct wanted {
    char text[80]; /* part of a name */
    size_t n;
};

static void
count_wanted(void *ctx, const char *name)
{
    struct wanted *w = ctx;

    w->n += strstr(name, w->text) != NULL;
}

static void
check_names(struct fixture *f, const char *const *settings)
{
    struct wanted w = { "", 0 };
    struct kvt_chunk chunk;

    fixture_open(f, settings);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    store_prefix(f, 2);
    assert_int_equal(kvt_seq_chunks(seq, 1, 1, &chunk), 0);
    snprintf(w.text, sizeof w.text, "@%016" PRIx64 "%016" PRIx64 "%016" PRIx64
             "%016" PRIx64 "@", chunk.name_hash[0], chunk.name_hash[1],
             chunk.name_hash[2], chunk.name_hash[3]);
    kvt_seq_free(seq);
    assert_int_equal(each_file(f, count_wanted, &w), 2);
    assert_int_equal(w.n, 1);
    assert_int_equal(found_chunks(f), 2);
    reopen(f, settings);
    assert_int_equal(found_chunks(f), 2);
}

static void
files_have_all_digits_of_0_4_1(void **state)
{
    check_names(*state, wide);
}

static void
files_have_all_digits_of_0_3_13(void **state)
{
    check_names(*state, wide_none);
}

static void
long_names_are_evicted_with_their_files(void **state)
{
    static const char *const small[] = { SHA256, "lmcache_release=0.4.5",
                                         "max_remote_size=0.0001", NULL };
    struct fixture *f = *state;

    fixture_open(f, small); /* room for three */
    for (uint32_t n = 1; n <= 10; n++)
        store_prefix(f, n); /* adds a chunk */
    /* The listing of the new index may enter a file just after its eviction.  The entry without a
     * file is evicted too, so the sum can exceed the stored chunks. */
    assert_true(counter(f, "evicted_chunks") + each_file(f, NULL, NULL) >=
                counter(f, "store_chunks"));
    assert_in_range(each_file(f, NULL, NULL), 1, 3);
}

static void
long_names_stay_in_host_memory_too(void **state)
{
    static const char *const memory[] = { SHA256, "lmcache_release=0.4.1",
                                          "local_cpu=true", "remote_url=", NULL };
    struct fixture *f = *state;

    fixture_open(f, memory);
    store_prefix(f, 5);
    assert_int_equal(found_chunks(f), 5);
}

static void
long_names_are_found_without_an_index(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, wide);
    store_prefix(f, 3);
    kvt_engine_close(f->engine);
    lose_index(f->dir.path);
    fixture_open(f, wide);
    assert_int_equal(found_chunks(f), 3);
}

/* A chunk keeps the name of the chunk hash with which the chunk was stored. */
static void
check_hashes(struct fixture *f, const char *const *before, const char *const *after)
{
    fixture_open(f, before);
    store_prefix(f, 4);
    reopen(f, after);
    assert_int_equal(found_chunks(f), 0);
    store_prefix(f, 4);
    assert_int_equal(each_file(f, NULL, NULL), 8);
    assert_int_equal(found_chunks(f), 4);
    reopen(f, before);
    assert_int_equal(found_chunks(f), 4);
}

static void
chunks_stored_with_another_hash_are_a_miss(void **state)
{
    check_hashes(*state, builtin, newest);
}

static void
a_change_from_long_to_short_names_is_a_miss(void **state)
{
    check_hashes(*state, wide, newest);
}

/* kvtier replaces the index by an index with room for wide hashes. */
static void
after_a_change_to_long_names_chunks_are_stored_again(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, newest);
    store_prefix(f, 4);
    reopen(f, wide);
    assert_int_equal(found_chunks(f), 0);
    store_prefix(f, 4);
    assert_int_equal(found_chunks(f), 4);
    reopen(f, newest); /* both settings use one index */
    assert_int_equal(found_chunks(f), 4);
}

#define T(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(files_have_all_digits_of_0_4_1),
        T(files_have_all_digits_of_0_3_13),
        T(long_names_are_evicted_with_their_files),
        T(long_names_stay_in_host_memory_too),
        T(long_names_are_found_without_an_index),
        T(chunks_stored_with_another_hash_are_a_miss),
        T(a_change_from_long_to_short_names_is_a_miss),
        T(after_a_change_to_long_names_chunks_are_stored_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
