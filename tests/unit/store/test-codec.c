/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoded chunks: stored smaller under names of their own, read back whole or not at all, beside
 * chunks in other encodings. */
#include "encoded-test.h"
#include "wrapped-frame.h"

static struct kvt__table *pauses_writes; /* index whose writes the next encoder pauses */

size_t
__wrap_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                         const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                         unsigned char *out)
{
    if (pauses_writes)
        assert_true(kvt__table_pause(pauses_writes, KVT__PAUSE_WRITES, 60 * KVT__NS_PER_S));
    pauses_writes = NULL;
    return __real_kvt__frame_encode(serde, shape, id, chunk, crc, out);
}

/* ----------------------------------------------------------------------- lossless */

static void
an_encoded_chunk_is_smaller_and_comes_back(void **state)
{
    struct env *e = *state;
    char path[600];

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    encoded_path(e, 1, "lossless", path);
    assert_true(size_of(path) < (off_t)BYTES * 9 / 10);
    assert_false(file_there(e, 1));
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    assert_int_equal(put_kv(e, 1), -EEXIST);
    check_counted(e, 1, 0);
}

static void
an_opaque_chunk_has_the_encoding_in_its_tag(void **state)
{
    struct env *e = *state;
    char path[600];

    strcpy(e->space.text, "m@1@0@@uint8@kvt%0123456789abcdef");
    e->space.opaque = true;
    reopen(e, lossless);
    assert_int_equal(put_kv(e, 0xab), 0);
    snprintf(path, sizeof path, "%s/kvtier/m@1@0@ab@uint8@kvt%%0123456789abcdef-lossless.data",
             e->dir.path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(get_kv(e, 0xab), 0);
}

static void
a_restart_finds_encoded_chunks_with_an_index_and_by_a_probe(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, lossless);
    assert_int_equal(get_kv(e, 1), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", lossless);
    assert_int_equal(get_kv(e, 1), -ENOENT);
    assert_int_equal(probe_kv(e, 1), 0);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    check_counted(e, 1, 0);
}

static void
a_listing_counts_encoded_chunks(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put_kv(e, i), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", lossless);
    for (size_t i = 0; i < e->store->n_storages; i++)
        kvt__level_list(&e->store->levels[i]);
    check_counted(e, 5, 5);
    assert_int_equal(probe_kv(e, 3), 0);
    assert_int_equal(get_kv(e, 3), 0);
    check_counted(e, 5, 4);
}

static void
a_chunk_that_does_not_shrink_is_stored_naive(void **state)
{
    unsigned char expected[BYTES], actual[BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_bytes(e, 1, fill_noise), 0);
    assert_true(file_there(e, 1));
    assert_false(is_encoded(e, 1, "lossless"));
    fill_noise(expected, 1);
    assert_int_equal(get_bytes(e, 1, actual), 0);
    assert_memory_equal(actual, expected, BYTES);
    assert_int_equal(put_bytes(e, 1, fill_noise), -EEXIST);
    check_counted(e, 1, 0);
}

static void
a_chunk_of_unknown_layout_is_stored_naive(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put(e, 1), 0);
    assert_true(file_there(e, 1));
    assert_int_equal(get(e, 1), 0);
}

static void
a_chunk_with_a_layout_of_another_size_is_stored_naive(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    for (unsigned i = 0; i < 3; i++) {
        struct request r;

        init_kv(&r, e, KVT__TIER_PUT, i);
        fill_kv(r.req.slot.payload, i);
        r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
        if (i == 0) /* twice the bytes */
            r.req.layout.row *= 2, r.req.layout.n *= 2;
        if (i == 1) /* half the bytes */
            r.req.layout.packing = KVT__PACKING_NONE, r.req.layout.n_planes = 1;
        if (i == 2) /* the right bytes, but rows of no elements */
            r.req.layout.row = 0;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, 0);
        free(r.memory);
        assert_true(file_there(e, i));
        assert_int_equal(get_kv(e, i), 0);
    }
}

static void
an_overwritten_chunk_stays_in_one_encoding(void **state)
{
    struct env *e = *state;
    struct request r;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    init_kv(&r, e, KVT__TIER_PUT, 1);
    fill_kv(r.req.slot.payload, 1);
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    r.req.overwrite = true;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    assert_true(is_encoded(e, 1, "lossless"));
    assert_false(file_there(e, 1));
    check_counted(e, 1, 0);
}

static void
a_chunk_in_the_memory_of_a_gpu_is_neither_encoded_nor_decoded(void **state)
{
    struct kvt__slot_source device = { .on_device = true };
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    for (unsigned i = 1; i < 3; i++) {
        struct request r;

        init_kv(&r, e, i == 1 ? KVT__TIER_GET : KVT__TIER_PUT, i);
        r.req.slot.source = &device;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, i == 1 ? -ENOENT : -EEXIST);
        free(r.memory);
    }
    assert_int_equal(get_kv(e, 1), 0);
    check_counted(e, 1, 0);
}

static void
a_pause_that_begins_during_the_encoding_ends_the_put(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    pauses_writes = e->store->levels[0].index;
    assert_int_equal(put_kv(e, 1), -EIO); /* and no memory remains */
    check_counted(e, 0, 0);
    assert_true(kvt__table_resume(e->store->levels[0].index, KVT__PAUSE_WRITES));
    assert_int_equal(put_kv(e, 1), 0);
}

/* ------------------------------------------------------------------ other encodings */

static void
naive_chunks_stay_readable_and_are_not_stored_again(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, lossless);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    struct kvt__chunk_key key = key_of(e, 1);
    assert_true(kvt__store_touch(e->store, &key, 0));
    assert_int_equal(put_kv(e, 1), -EEXIST);
    assert_false(is_encoded(e, 1, "lossless"));
    assert_int_equal(put_kv(e, 2), 0);
    check_counted(e, 2, 0);
}

static void
encoded_chunks_are_read_only_if_accepted(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, naive);
    assert_false(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), -ENOENT);
    assert_int_equal(probe_kv(e, 1), -ENOENT);
    reopen(e, accepts_lossless);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    assert_int_equal(put_kv(e, 1), -EEXIST);
    assert_int_equal(put_kv(e, 2), 0);
    assert_true(file_there(e, 2));
}

/* ------------------------------------------------------------------- two storages */

/* Return the name of chunk i in a directory of a plug-in. */
static void
path_in(const struct env *e, const char *plugin, unsigned i, char path[600])
{
    snprintf(path, 600, "%s/%s/test-SEP-model@1@0@%x@bfloat16.data", e->dir.path, plugin, i);
}

static void
each_storage_gets_a_chunk_that_does_not_shrink(void **state)
{
    struct env *e = *state;
    char base[1024], path[600];

    kvt__store_close(e->store);
    snprintf(base, sizeof base, "extra_config={\"remote_storage_plugin.fs.a.base_path\": \"%s/a\", "
             "\"remote_storage_plugin.fs.b.base_path\": \"%s/b\"}", e->dir.path, e->dir.path);
    e->store = open_store(e, "remote_storage_plugins=[\"fs.a\", \"fs.b\"]", NULL,
                          (const char *const[]){ base, ROOMY, "remote_serde=lossless", NULL });
    assert_int_equal(e->store->n_storages, 2);
    assert_int_equal(put_bytes(e, 1, fill_noise), 0);
    path_in(e, "a", 1, path);
    assert_int_equal(access(path, F_OK), 0);
    path_in(e, "b", 1, path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(put_bytes(e, 1, fill_noise), -EEXIST);
}

static void
the_most_storages_have_levels_for_all_encodings(void **state)
{
    static const char *const names = "abcdefgh";
    struct env *e = *state;
    char base[8 * 400] = "extra_config={";
    size_t n = strlen(base);

    kvt__store_close(e->store);
    for (size_t i = 0; i < strlen(names); i++)
        n += (size_t)snprintf(base + n, sizeof base - n, "%s\"remote_storage_plugin.fs.%c.base_path"
                              "\": \"%s/%c\"", i ? ", " : "", names[i], e->dir.path, names[i]);
    snprintf(base + n, sizeof base - n, "}");
    e->store = open_store(e, "remote_storage_plugins=[\"fs.a\", \"fs.b\", \"fs.c\", \"fs.d\", "
                          "\"fs.e\", \"fs.f\", \"fs.g\", \"fs.h\"]", NULL,
                          (const char *const[]){ base, ROOMY, "remote_serde=lossless",
                          "accept_serde=[\"lossless\", \"kv8\", \"kv4\", \"cachegen\"]", NULL });
    assert_int_equal(e->store->n_storages, strlen(names));
    assert_int_equal(e->store->n_levels, KVT__MAX_LEVELS);
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(get_kv(e, 1), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_encoded_chunk_is_smaller_and_comes_back),
        TEST(an_opaque_chunk_has_the_encoding_in_its_tag),
        TEST(a_restart_finds_encoded_chunks_with_an_index_and_by_a_probe),
        TEST(a_listing_counts_encoded_chunks),
        TEST(a_chunk_that_does_not_shrink_is_stored_naive),
        TEST(a_chunk_of_unknown_layout_is_stored_naive),
        TEST(a_chunk_with_a_layout_of_another_size_is_stored_naive),
        TEST(an_overwritten_chunk_stays_in_one_encoding),
        TEST(a_chunk_in_the_memory_of_a_gpu_is_neither_encoded_nor_decoded),
        TEST(a_pause_that_begins_during_the_encoding_ends_the_put),
        TEST(naive_chunks_stay_readable_and_are_not_stored_again),
        TEST(encoded_chunks_are_read_only_if_accepted),
        TEST(each_storage_gets_a_chunk_that_does_not_shrink),
        TEST(the_most_storages_have_levels_for_all_encodings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
