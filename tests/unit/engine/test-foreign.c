/* SPDX-License-Identifier: Apache-2.0
 *
 * LMCache replaces kvtier's files: the chunks of LMCache have equal names and no identity.  kvtier
 * serves such a chunk only if the name determines the chunk completely. */
#include "engine-test.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#include "files.h"
#include "tier/gds/layout.h"

#define N_CHUNKS 3u
#define CHUNK_BYTES (N_LAYERS * CHUNK / BLOCK * BLOCK_BYTES)
#define HIDDEN (BLOCK_BYTES / BLOCK / 2) /* bfloat16 */

static const char *const ahead[] = { "local_cpu=true", "enable_async_loading=true",
                                     "lookup_timeout_ms=60000", NULL };

static void
reopen_plain(struct fixture *f, const char *const *settings)
{
    kvt_engine_close(f->engine);
    fixture_open_plain(f, settings);
}

static struct kvt_seq *
seq_of(const struct fixture *f, const struct kvt_seq_extra *extra)
{
    struct kvt_seq *seq = NULL;

    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, extra, &seq), 0);
    return seq;
}

static void
store(const struct fixture *f, const struct kvt_seq_extra *extra)
{
    struct kvt_seq *seq = seq_of(f, extra);
    struct io io;

    for (uint32_t b = 1; b <= 2 * N_CHUNKS; b++)
        fill_block(f, b, 0);
    make_io(&io, seq, 0, 0, N_CHUNKS, 1);
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
}

/* Input of the callback of nftw(): replace each file by a file of another program with other bytes
 * and a header with this shape.  NULL: keep the files. */
static const struct kvt__shape *rewritten_as;
static size_t n_files;

static int
visit(const char *path, const struct stat *st, int type, struct FTW *at)
{
    bool gds = strstr(path, ".safetensors") && !strstr(path, ".metadata");
    unsigned char file[KVT__GDS_HEADER_BYTES + CHUNK_BYTES] = { 0 };
    size_t header = gds ? KVT__GDS_HEADER_BYTES : KVT__FS_HEADER_BYTES;

    (void)st;
    (void)at;
    if (type != FTW_F || (!gds && !strstr(path, ".data")))
        return 0;
    n_files++;
    if (!rewritten_as)
        return 0;
    if (gds)
        kvt__gds_header_put(rewritten_as, CHUNK_BYTES, NULL, file);
    else
        kvt__fs_header_put(rewritten_as, CHUNK_BYTES, file);
    assert_int_equal(unlink(path), 0); /* LMCache renames a new file over the old file */
    write_file(path, file, header + CHUNK_BYTES);
    return 0;
}

/* Return the number of chunk files.  Replace all files by files with this shape; NULL: keep the
 * files. */
static size_t
each_file(const struct fixture *f, const struct kvt__shape *shape)
{
    rewritten_as = shape;
    n_files = 0;
    assert_int_equal(nftw(f->dir.path, visit, 8, FTW_PHYS), 0);
    return n_files;
}

static const struct kvt__shape right = { 6, 3, { 1, N_LAYERS, CHUNK, HIDDEN } };

static uint64_t
hit_of(const struct fixture *f, const struct kvt_seq_extra *extra)
{
    struct kvt_seq *seq = seq_of(f, extra);
    uint64_t hit = lookup(f, seq, 0, N_TOKENS);

    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return hit;
}

/* Load each chunk on its own, to block 30 and later.  Return the status, equal for all chunks. */
static int
load(const struct fixture *f, const struct kvt_seq_extra *extra)
{
    struct kvt_seq *seq = seq_of(f, extra);
    struct kvt_group_io ios[N_CHUNKS];
    struct io io[N_CHUNKS];

    for (uint32_t b = 30; b < 30 + 2 * N_CHUNKS; b++)
        fill_block(f, b, 99);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        make_io(&io[c], seq, 0, c, 1, 30 + 2 * (int32_t)c);
        ios[c] = io[c].io;
    }
    struct kvt_load *l = load_and_wait(f, ios, N_CHUNKS);
    int status = kvt_load_status(l, 0, 0);
    for (uint32_t c = 1; c < N_CHUNKS; c++)
        assert_int_equal(kvt_load_status(l, c, 0), status);
    kvt_load_free(l);
    kvt_seq_free(seq);
    return status;
}

static bool
blocks_hold(const struct fixture *f, uint32_t from, uint32_t seed)
{
    for (uint32_t b = 0; b < 2 * N_CHUNKS; b++)
        if (!block_holds(f, 30 + b, from + b, seed))
            return false;
    return true;
}

static void
a_foreign_chunk_with_a_matching_name_is_a_hit(void **state)
{
    struct fixture *f = *state;

    fixture_open_plain(f, NULL);
    store(f, NULL);
    assert_int_equal(each_file(f, &right), N_CHUNKS);
    assert_int_equal(hit_of(f, NULL), N_CHUNKS * CHUNK);
    assert_int_equal(load(f, NULL), 0);
    assert_int_equal(counter(f, "unverified_chunks"), N_CHUNKS);
}

/* Expect a miss, which the index then knows.  The file stays until a store replaces the file. */
static void
expect_no_foreign(struct fixture *f, const struct kvt_seq_extra *extra)
{
    store(f, extra);
    assert_int_equal(hit_of(f, extra), N_CHUNKS * CHUNK);
    assert_int_equal(load(f, extra), 0);
    assert_int_equal(each_file(f, &right), N_CHUNKS);
    assert_int_equal(load(f, extra), -ENOENT);
    assert_true(blocks_hold(f, 30, 99));
    assert_int_equal(counter(f, "unverified_chunks"), 0);
    assert_int_equal(counter(f, "load_corrupt"), 0);
    assert_int_equal(hit_of(f, extra), 0);
    assert_int_equal(each_file(f, NULL), N_CHUNKS);
    store(f, extra);
    assert_int_equal(hit_of(f, extra), N_CHUNKS * CHUNK);
    assert_int_equal(load(f, extra), 0);
    assert_true(blocks_hold(f, 1, 0));
}

/* Shapes of another model with equal chunk sizes and equal names. */
static const struct kvt__shape others[] = {
    { 6, 3, { 1, CHUNK, N_LAYERS, HIDDEN } },
    { 6, 3, { 1, 2 * N_LAYERS, CHUNK, HIDDEN / 2 } },
    { 1, 3, { 2, N_LAYERS, CHUNK, HIDDEN / 2 } },
    { 1, 3, { 1, N_LAYERS, CHUNK, HIDDEN } },
    { 6, 2, { 1, N_LAYERS, CHUNK, HIDDEN } }, /* half */
    { 4, 6, { CHUNK_BYTES } },
};

/* Expect misses, also after a search has found the files.  Each file stays until a store replaces
 * the file. */
static void
expect_no_other_shape(struct fixture *f, const char *const *settings)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fixture_open_plain(f, settings);
        store(f, NULL);
        assert_int_equal(each_file(f, &others[i]), N_CHUNKS);
        assert_int_equal(load(f, NULL), -ENOENT);
        assert_true(blocks_hold(f, 30, 99));
        assert_int_equal(hit_of(f, NULL), 0);
        assert_int_equal(counter(f, "load_missing"), N_CHUNKS);
        assert_int_equal(counter(f, "load_corrupt"), 0);
        assert_int_equal(each_file(f, &right), N_CHUNKS);
        assert_int_equal(hit_of(f, NULL), N_CHUNKS * CHUNK);
        assert_int_equal(load(f, NULL), 0);
        assert_int_equal(counter(f, "unverified_chunks"), N_CHUNKS);
        store(f, NULL);
        kvt_engine_close(f->engine);
    }
    fixture_open_plain(f, settings);
}

static void
a_foreign_fs_chunk_of_another_shape_is_a_miss(void **state)
{
    expect_no_other_shape(*state, NULL);
}

static void
a_foreign_gds_chunk_of_another_shape_is_a_miss(void **state)
{
    struct fixture *f = *state;
    char path[300];

    snprintf(path, sizeof path, "gds_path=%s", f->dir.path);
    expect_no_other_shape(f, (const char *const[]){ "remote_url=", path, NULL });
}

static void
a_foreign_chunk_of_an_adapter_is_a_miss(void **state)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;

    extra.lora = "adapter";
    fixture_open_plain(f, NULL);
    expect_no_foreign(f, &extra);
}

static void
a_foreign_chunk_with_a_salt_is_a_miss(void **state)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;

    extra.cache_salt = "tenant";
    fixture_open_plain(f, NULL);
    expect_no_foreign(f, &extra);
}

static void
a_foreign_chunk_after_a_reset_is_a_miss(void **state)
{
    struct fixture *f = *state;

    fixture_open_plain(f, NULL);
    assert_int_equal(kvt_engine_reset(f->engine, NULL), 0);
    expect_no_foreign(f, NULL);
}

/* The weights have a name, but a file of LMCache does not identify weights. */
static void
a_foreign_chunk_after_a_reset_to_named_weights_is_a_miss(void **state)
{
    struct fixture *f = *state;

    fixture_open_plain(f, NULL);
    assert_int_equal(kvt_engine_reset(f->engine, "new"), 0);
    expect_no_foreign(f, NULL);
}

/* The chunks keep their identities.  After the reset they are misses because they came to memory
 * from files without identity. */
static void
a_foreign_chunk_in_memory_from_before_a_reset_is_a_miss(void **state)
{
    static const char *const memory[] = { "local_cpu=true", "model_fingerprint=new", NULL };
    struct fixture *f = *state;

    fixture_open_plain(f, memory);
    store(f, NULL);
    assert_int_equal(each_file(f, &right), N_CHUNKS);
    reopen_plain(f, memory);
    assert_int_equal(hit_of(f, NULL), N_CHUNKS * CHUNK);
    assert_int_equal(load(f, NULL), 0);
    assert_int_equal(load(f, NULL), 0);
    assert_int_equal(counter(f, "memory_hits"), N_CHUNKS);
    assert_int_equal(counter(f, "unverified_chunks"), 2 * N_CHUNKS);
    assert_int_equal(kvt_engine_reset(f->engine, "new"), 0);
    assert_int_equal(load(f, NULL), -ENOENT);
    assert_true(blocks_hold(f, 30, 99));
}

static void
a_foreign_chunk_read_ahead_is_a_miss(void **state)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;

    extra.lora = "adapter";
    fixture_open_plain(f, NULL);
    store(f, &extra);
    each_file(f, &right);
    reopen_plain(f, ahead);
    assert_int_equal(hit_of(f, &extra), 0);
    assert_int_equal(counter(f, "prefetch_chunks"), 0);
}

/* LMCache's names have no group: a single file would be every group's chunk. */
static void
plain_names_with_two_groups_are_refused(void **state)
{
    const struct kvt_group groups[] = { plain_group(), plain_group() };
    struct opening o = { .groups = groups, .n_groups = 2 };
    struct fixture *f = *state;

    assert_int_equal(try_open(f->dir.path, &o, &f->engine), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "KVT_FORMAT_OPAQUE"));
}

/* A worker gets the chunks of a request, not the request. */
static void
each_chunk_has_the_own_flag(void **state)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;
    struct kvt_chunk chunks[4];

    fixture_open_plain(f, NULL);
    struct kvt_seq *seq = new_seq(f, 4 * CHUNK - 1);
    assert_int_equal(kvt_seq_chunks(seq, 0, 4, chunks), 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(chunks[i].flags, 0);
    kvt_seq_free(seq);
    extra.lora = "adapter";
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, 4 * CHUNK - 1, &extra, &seq), 0);
    assert_int_equal(kvt_seq_chunks(seq, 0, 4, chunks), 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(chunks[i].flags, KVT_CHUNK_OWN);
    kvt_seq_free(seq);
}

#define T(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_foreign_chunk_with_a_matching_name_is_a_hit),
        T(a_foreign_fs_chunk_of_another_shape_is_a_miss),
        T(a_foreign_gds_chunk_of_another_shape_is_a_miss),
        T(a_foreign_chunk_of_an_adapter_is_a_miss),
        T(a_foreign_chunk_with_a_salt_is_a_miss),
        T(a_foreign_chunk_after_a_reset_is_a_miss),
        T(a_foreign_chunk_after_a_reset_to_named_weights_is_a_miss),
        T(a_foreign_chunk_in_memory_from_before_a_reset_is_a_miss),
        T(a_foreign_chunk_read_ahead_is_a_miss),
        T(plain_names_with_two_groups_are_refused),
        T(each_chunk_has_the_own_flag),
    };

    return cmocka_run_group_tests_name("foreign chunks", tests, NULL, NULL);
}
