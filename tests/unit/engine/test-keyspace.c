/* SPDX-License-Identifier: Apache-2.0
 *
 * What the digest of each rank and group describes (docs/formats.md): chunks that another
 * version has stored stay found. */
#include "engine-test.h"

#include "engine/private.h"

/* Open the second of two ranks and compare.  wanted has no more than differs between the tests. */
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
        /* All ranks have the same of a replicated group. */
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_digest_of_opaque_groups),
        cmocka_unit_test(the_digest_of_groups_in_the_form_of_lmcache),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests_name("engine keyspace", tests, NULL, NULL);
}
