/* SPDX-License-Identifier: Apache-2.0
 *
 * Identities against the values of another program, which was written from docs/formats.md. */
#include "kvt-test.h"

#include <stdio.h>
#include <string.h>

#include "key/key.h"

#define N_ROWS(table) (sizeof table / sizeof *table)

static const struct kvt__space_desc desc = {
    .model = "meta-llama/Llama-3.1-8B",
    .kv_dtype = "bfloat16",
    .world_size = 2,
    .rank = 1,
    .serde = "naive",
    .chunk_tokens = 256,
    .group = 0,
    .kind = "full",
    .window_tokens = 0,
    .n_layers = 32,
    .n_heads = 8,
    .head_bytes = 256,
    .block_tokens = 16,
    .block_bytes = 65536,
    .format = "opaque",
    .layout = "cpu-attn v1",
    .layers = "model.layers.0.self_attn.attn,model.layers.1.self_attn.attn",
};

static void
assert_hex(const uint8_t *bytes, size_t n, const char *want)
{
    char text[2 * KVT__SHA256_BYTES + 1];

    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, want);
}

static void
space_digest_is_that_of_the_text(void **state)
{
    (void)state;
    uint8_t digest[KVT__SHA256_BYTES];

    kvt__space_digest(&desc, digest);
    assert_hex(digest, sizeof digest,
               "8b79e57300daa9ec30006fcf404f1f1e"
               "233d5ff9a72b3d7606e38c90aa3aa916");
    assert_true(kvt__layout_fingerprint(&desc) == UINT64_C(0x039abc87eaf0eead));
}

static void
text_in_a_space_is_percent_encoded(void **state)
{
    (void)state;
    struct kvt__space_desc odd = desc;
    uint8_t digest[KVT__SHA256_BYTES];

    odd.model = "a%b\nc";
    odd.layout = "";
    odd.layers = "%\n";
    odd.block_bytes = (UINT64_C(1) << 63) + 1;
    odd.world_size = UINT32_MAX;
    kvt__space_digest(&odd, digest);
    assert_hex(digest, sizeof digest,
               "993690654e9039f38939d037b779276d"
               "d060804efd21df88dd3b3b4710c29060");
    assert_true(kvt__layout_fingerprint(&odd) == UINT64_C(0x5f88492ffbfaf19c));
}

static void
value_cannot_pass_for_the_next_line(void **state)
{
    (void)state;
    struct kvt__space_desc a = desc, b = desc;
    uint8_t of_a[KVT__SHA256_BYTES], of_b[KVT__SHA256_BYTES];

    a.model = "m\nkv_dtype=x";
    a.kv_dtype = "";
    b.model = "m";
    b.kv_dtype = "x\nkv_dtype=";
    kvt__space_digest(&a, of_a);
    kvt__space_digest(&b, of_b);
    assert_memory_not_equal(of_a, of_b, sizeof of_a);
    a.model = "m%0A";
    b.model = "m\n";
    a.kv_dtype = b.kv_dtype = "";
    kvt__space_digest(&a, of_a);
    kvt__space_digest(&b, of_b);
    assert_memory_not_equal(of_a, of_b, sizeof of_a);
}

/* Copy desc and change field number i.  *in_layout: the field belongs to the layout.  Return false
 * if i is too large. */
static bool
change(size_t i, struct kvt__space_desc *out, bool *in_layout)
{
    struct kvt__space_desc *d = out;
    const char **const texts[] = {
        &d->model, &d->kv_dtype, &d->serde,
        &d->kind,  &d->format,   &d->layout, &d->layers,
    };
    uint32_t *const numbers[] = {
        &d->world_size, &d->rank,     &d->chunk_tokens, &d->group,
        &d->window_tokens, &d->n_layers, &d->n_heads,   &d->head_bytes,
        &d->block_tokens,
    };

    *d = desc;
    *in_layout = false;
    if (i < N_ROWS(texts)) {
        *texts[i] = "changed";
        *in_layout = i >= 3;
        return true;
    }
    i -= N_ROWS(texts);
    if (i < N_ROWS(numbers)) {
        ++*numbers[i];
        *in_layout = i >= 2;
        return true;
    }
    i -= N_ROWS(numbers);
    d->block_bytes += UINT64_C(1) << 32;
    *in_layout = true;
    return !i;
}

static void
every_field_of_the_space_counts(void **state)
{
    (void)state;
    uint8_t digests[32][KVT__SHA256_BYTES];
    struct kvt__space_desc changed;
    bool in_layout;
    size_t n = 0;

    kvt__space_digest(&desc, digests[n++]);
    for (size_t i = 0; change(i, &changed, &in_layout); i++) {
        assert_true(n < N_ROWS(digests));
        kvt__space_digest(&changed, digests[n++]);
        bool other = kvt__layout_fingerprint(&changed) !=
                     kvt__layout_fingerprint(&desc);
        assert_int_equal(other, in_layout);
    }
    assert_int_equal(n, 1 + 17);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(digests[i], digests[k], sizeof digests[i]);
}

static void
assert_prefix(const struct kvt__prefix *prefix, const char *want,
              const char *want_id)
{
    uint8_t space[KVT__SHA256_BYTES];
    struct kvt__id id;

    kvt__space_digest(&desc, space);
    kvt__id_make(space, prefix, &id);
    assert_hex(prefix->b, sizeof prefix->b, want);
    assert_hex(id.b, sizeof id.b, want_id);
}

/* Return the start of the prefix of a request without tags, adapter and salt. */
static struct kvt__prefix
plain_root(void)
{
    struct kvt__weights weights;
    struct kvt__prefix prefix;

    kvt__weights_named(&weights, "rev-1");
    kvt__prefix_start(&prefix, &weights, "", "", "");
    return prefix;
}

static void
prefix_and_identity_equal_the_formula(void **state)
{
    (void)state;
    static const int32_t first[] = {0, 1, 2, 3};
    static const int32_t second[] = {-1, INT32_MIN, INT32_MAX, 70000};
    static const int32_t third[] = {9, 8, 7, 6};
    static const uint8_t extra[] = {5, 0, 0, 0, 0, 0, 0, 0, 1,   0,   0,   0,  3,
                                    0, 0, 0, 5, 0, 0, 0, 'i', 'm', 'g', '-', '1'};
    struct kvt__prefix prefix;

    prefix = plain_root();
    assert_hex(prefix.b, sizeof prefix.b, "bbeda4f063a8e5705bd6088ed49f8532");
    kvt__prefix_add(&prefix, first, 4, NULL, 0);
    assert_prefix(&prefix, "fdbc3ccafac754faeeeaed0c7a6249f0",
                  "46ded0693d2c6a77f85b9c30c1e45b13");
    kvt__prefix_add(&prefix, second, 4, NULL, 0);
    assert_prefix(&prefix, "bd5d909b745564cbb40142acebe14c2d",
                  "83c093f62e8a4f8b7b2de994a868cbf2");
    kvt__prefix_add(&prefix, third, 4, extra, sizeof extra);
    assert_prefix(&prefix, "f6c10a71119e12c0525f2b6d8545a60d",
                  "645022710f5f1b345b6172905a9e121e");
}

static void
weights_tags_adapter_and_salt_change_the_root(void **state)
{
    (void)state;
    static const struct {
        const char *fingerprint, *tags, *lora, *salt;
    } roots[] = {
        { "", "", "", "" },   { "x", "", "", "" }, { "", "x", "", "" },
        { "", "", "x", "" },  { "", "", "", "x" }, { "ab", "c", "", "" },
        { "a", "bc", "", "" }, { "", "ab", "c", "" }, { "", "a", "bc", "" },
        { "", "", "ab", "c" }, { "", "", "a", "bc" },
    };
    struct kvt__prefix all[N_ROWS(roots)];
    struct kvt__weights weights;
    struct kvt__prefix prefix;

    kvt__weights_named(&weights, "");
    assert_hex(weights.b, sizeof weights.b, "fcb5f40df9be6bae66c1d77a6c159688");
    kvt__weights_named(&weights, "rev-1");
    assert_hex(weights.b, sizeof weights.b, "3e659f3920562c9114920fdce594ab33");
    kvt__prefix_start(&prefix, &weights, "lora%sql-v2", "sql-v2", "tenant 7");
    assert_hex(prefix.b, sizeof prefix.b, "21c32f29ccb9d42cb39d83ce0dffadbb");
    for (size_t i = 0; i < N_ROWS(roots); i++) {
        kvt__weights_named(&weights, roots[i].fingerprint);
        kvt__prefix_start(&all[i], &weights, roots[i].tags, roots[i].lora, roots[i].salt);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(all[i].b, all[k].b, sizeof all[i].b);
    }
}

static void
known_chunks_of_256_come_out(void **state)
{
    (void)state;
    static const char *const want[][2] = {
        {"fe387f1d6d0b5575fcfb1287749403dc", "fa90efad864bd4e2c5729e42163925b4"},
        {"10a40a26390007628c15bd7846f41a40", "0fc342dd49d16414af33e5b60be92d1a"},
        {"457540d9e8109b0b0cbc5a629d990cdf", "25ac8d63ee6c3bf0e1e676b6560465ff"},
    };
    struct kvt__prefix prefix, all[3];
    int32_t tokens[768];

    for (int32_t i = 0; i < 768; i++)
        tokens[i] = i;
    prefix = plain_root();
    kvt__prefix_add_chunks(&prefix, tokens, 256, 3, all);
    for (size_t i = 0; i < 3; i++)
        assert_prefix(&all[i], want[i][0], want[i][1]);
    assert_memory_equal(prefix.b, all[2].b, sizeof prefix.b);
}

/* Number of chunks that uses all code paths for several chunks at once. */
#define MANY 70

static void
many_chunks_hash_like_one_at_a_time(void **state)
{
    (void)state;
    uint8_t space[KVT__SHA256_BYTES];
    static int32_t tokens[MANY * 21];

    kvt__space_digest(&desc, space);
    for (int32_t i = 0; i < MANY * 21; i++)
        tokens[i] = (int32_t)((uint32_t)i * 1000003u);
    for (size_t chunk = 1; chunk <= 21; chunk += 5)
        for (size_t n = 0; n <= MANY; n++) {
            struct kvt__prefix all, single, out[MANY];
            struct kvt__id ids[MANY], id;
            all = single = plain_root();
            kvt__prefix_add_chunks(&all, tokens, chunk, n, out);
            kvt__id_make_n(space, out, n, ids);
            for (size_t i = 0; i < n; i++) {
                kvt__prefix_add(&single, tokens + i * chunk, chunk, NULL, 0);
                kvt__id_make(space, &single, &id);
                assert_memory_equal(single.b, out[i].b, sizeof single.b);
                assert_true(kvt__id_equal(&id, &ids[i]));
            }
            assert_memory_equal(all.b, single.b, sizeof all.b);
        }
}

static void
tokens_and_extra_do_not_pass_for_each_other(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 2};
    struct kvt__prefix a, b, c;

    a = b = c = plain_root();
    kvt__prefix_add(&a, tokens, 2, NULL, 0);
    kvt__prefix_add(&b, tokens, 1, tokens + 1, sizeof *tokens);
    kvt__prefix_add(&c, tokens, 1, NULL, 0);
    kvt__prefix_add(&c, tokens + 1, 1, NULL, 0);
    assert_memory_not_equal(a.b, b.b, sizeof a.b);
    assert_memory_not_equal(a.b, c.b, sizeof a.b);
    assert_memory_not_equal(b.b, c.b, sizeof b.b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(space_digest_is_that_of_the_text),
        cmocka_unit_test(text_in_a_space_is_percent_encoded),
        cmocka_unit_test(value_cannot_pass_for_the_next_line),
        cmocka_unit_test(every_field_of_the_space_counts),
        cmocka_unit_test(prefix_and_identity_equal_the_formula),
        cmocka_unit_test(weights_tags_adapter_and_salt_change_the_root),
        cmocka_unit_test(known_chunks_of_256_come_out),
        cmocka_unit_test(many_chunks_hash_like_one_at_a_time),
        cmocka_unit_test(tokens_and_extra_do_not_pass_for_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
