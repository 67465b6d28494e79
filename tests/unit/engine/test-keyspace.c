/* SPDX-License-Identifier: Apache-2.0
 *
 * The description that the digest of each rank and group covers (docs/formats.md), so that chunks
 * of another version are found, and the shape in the header of a chunk. */
#include "engine-test.h"

#include "engine/private.h"

/* Open rank 1 of 2 and compare its descriptions with wanted, which has only the fields that differ
 * between the tests. */
static void
check(const struct kvt_group *groups, const struct kvt__space_desc *wanted, uint32_t n)
{
    struct opening opening = { .groups = groups, .n_groups = n, .world_size = 2, .rank = 1 };
    uint8_t digest[KVT__SHA256_BYTES];
    struct fixture f;
    char text[64];

    fixture_init(&f);
    f.engine = must_open(&f, &opening);
    for (uint32_t i = 0; i < 2 * n; i++) {
        const struct kvt__keyspace *k = kvt__keyspace(f.engine, i / n, i % n);
        struct kvt__space_desc desc = wanted[i % n];

        desc.model = "test/model";
        desc.kv_dtype = "bfloat16";
        desc.serde = "naive";
        desc.chunk_tokens = CHUNK;
        desc.n_layers = N_LAYERS;
        desc.group = i % n;
        /* All ranks share the description of a replicated group. */
        desc.world_size = groups[i % n].replicated ? 1 : 2;
        desc.rank = groups[i % n].replicated ? 0 : i / n;
        kvt__space_digest(&desc, digest);
        assert_memory_equal(k->digest, digest, sizeof digest);
        snprintf(text, sizeof text, "test/model@%u@%u@@bfloat16", desc.world_size,
                 desc.rank);
        assert_memory_equal(k->space.text, text, strlen(text));
        assert_int_equal(k->space.text[strlen(text)], k->space.opaque ? '@' : '\0');
    }
    fixture_fini(&f);
}

static void
the_digest_of_opaque_groups(void **state)
{
    static const struct kvt__space_desc wanted[] = {
        { .kind = "full", .block_tokens = BLOCK, .block_bytes = BLOCK_BYTES,
          .format = "opaque", .layout = "test", .layers = "0,1,2" },
        { .kind = "sliding", .window_tokens = 100, .block_tokens = BLOCK,
          .block_bytes = BLOCK_BYTES, .format = "opaque", .layout = "test",
          .layers = "3,4,5" },
    };
    struct kvt_group groups[] = { opaque_group(), opaque_group() };

    (void)state;
    groups[0].window_tokens = 7; /* without a meaning in a full group */
    groups[1].kind = KVT_GROUP_SLIDING;
    groups[1].window_tokens = 100;
    groups[1].layers = "3,4,5";
    check(groups, wanted, 2);
}

static void
the_digest_of_groups_in_the_form_of_lmcache(void **state)
{
    static const struct kvt__space_desc mla = {
        .kind = "full", .n_heads = 1, .head_bytes = BLOCK_BYTES / BLOCK,
        .format = "kv_mla", .layout = "", .layers = "0,1,2" };
    static const struct kvt__space_desc heads = {
        .kind = "full", .n_heads = 4, .head_bytes = 16,
        .format = "kv_2ltd", .layout = "", .layers = "0,1,2" };
    struct kvt_group group = plain_group();

    (void)state;
    check(&group, &mla, 1);
    group.replicated = 1;
    check(&group, &mla, 1);
    group = plain_group();
    group.format = KVT_FORMAT_2LTD;
    group.n_heads = 4;
    group.head_bytes = 16;
    check(&group, &heads, 1);
}

/* The shape in LMCache's header: format, dtype and number of heads times their size. */
static struct kvt__shape
shape_of(const struct kvt_engine *engine, uint32_t n_tokens)
{
    struct kvt_chunk chunk = { .n_tokens = n_tokens };
    struct kvt__store_req req = { 0 };

    kvt__fill_request(engine, 0, 0, &kvt__keyspace(engine, 0, 0)->space, &chunk, &req);
    return req.shape;
}

static void
the_shape_of_each_dtype(void **state)
{
    static const struct { char *name; uint32_t dtype, bytes; } dtypes[] = {
        { "half", 2, 2 }, { "bfloat16", 3, 2 }, { "float", 4, 4 }, { "double", 5, 8 },
        { "uint8", 6, 1 }, { "fp8_e4m3fn", 7, 1 }, { "fp8_e5m2", 8, 1 }, { "int4", 6, 1 },
    };
    struct kvt_group group = plain_group();
    struct opening opening = { .groups = &group, .n_groups = 1 };
    struct fixture f;

    (void)state;
    group.format = KVT_FORMAT_2LTD;
    group.n_heads = 4;
    group.head_bytes = 64;
    fixture_init(&f);
    f.engine = must_open(&f, &opening);
    char *own = f.engine->kv_dtype;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        const struct kvt__shape wanted = { .format = 1, .dtype = dtypes[i].dtype, .dims = {
            2, N_LAYERS, 48, 4 * 64 / dtypes[i].bytes } };

        f.engine->kv_dtype = dtypes[i].name;
        struct kvt__shape shape = shape_of(f.engine, 48);
        assert_memory_equal(&shape, &wanted, sizeof shape);
    }
    f.engine->kv_dtype = own;
    fixture_fini(&f);
}

static void
the_shape_of_opaque_chunks(void **state)
{
    const struct kvt__shape wanted = { .format = 4, .dtype = 6, .dims = {
        2 * N_LAYERS * BLOCK_BYTES } };
    struct opening opening = { 0 };
    struct fixture f;

    (void)state;
    fixture_init(&f);
    f.engine = must_open(&f, &opening);
    struct kvt__shape shape = shape_of(f.engine, 2 * BLOCK);
    assert_memory_equal(&shape, &wanted, sizeof shape);
    fixture_fini(&f);
}

/* LMCache's world size counts the ranks of all stages, and its shape the layers of the stage. */
static void
stages_have_the_names_and_the_shapes_of_lmcache(void **state)
{
    struct kvt_group groups[] = { plain_group(), plain_group() };
    struct opening opening = { .role = KVT_ROLE_SCHEDULER, .groups = groups, .n_groups = 1,
                               .world_size = 4, .n_stages = 2 };
    struct kvt_chunk chunk = { .n_tokens = CHUNK };
    struct fixture f;
    char text[64];

    (void)state;
    for (uint32_t s = 0; s < 2; s++) {
        groups[s].format = KVT_FORMAT_2LTD;
        groups[s].n_heads = 4;
        groups[s].head_bytes = 64;
        groups[s].n_layers = 1 + s;
        groups[s].layers = s ? "1,2" : "0";
    }
    fixture_init(&f);
    f.engine = must_open(&f, &opening);
    for (uint32_t rank = 0; rank < 4; rank++) {
        const struct kvt__space *space = &kvt__keyspace(f.engine, rank, 0)->space;
        struct kvt__store_req req = { 0 };

        snprintf(text, sizeof text, "test/model@4@%u@@bfloat16", rank);
        assert_string_equal(space->text, text);
        kvt__fill_request(f.engine, rank, 0, space, &chunk, &req);
        assert_int_equal(req.shape.dims[1], 1 + rank / 2);
        assert_int_equal(req.bytes, 2 * (1 + rank / 2) * CHUNK * 4 * 64);
    }
    fixture_fini(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_digest_of_opaque_groups),
        cmocka_unit_test(the_digest_of_groups_in_the_form_of_lmcache),
        cmocka_unit_test(the_shape_of_each_dtype),
        cmocka_unit_test(the_shape_of_opaque_chunks),
        cmocka_unit_test(stages_have_the_names_and_the_shapes_of_lmcache),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests_name("engine keyspace", tests, NULL, NULL);
}
