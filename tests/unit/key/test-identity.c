/* SPDX-License-Identifier: Apache-2.0
 *
 * Identities against values made from docs/formats.md by another program. */
#include "kvt-test.h"

#include <stdio.h>
#include <string.h>

#include "key/key.h"

#define N_ROWS(table) (sizeof table / sizeof *table)

static const struct kvt__space_desc desc = {
    .model = "meta-llama/Llama-3.1-8B",
    .fingerprint = "rev-1",
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
    .tags = "lora%sql-v2",
    .epoch = 3,
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
               "bb66304c3909a636c98113942a9bb067"
               "26edb6f49ac0f8bb8f6fa21c7ad361e2");
    assert_true(kvt__layout_fingerprint(&desc) == UINT64_C(0x039abc87eaf0eead));
}

static void
text_in_a_space_is_percent_encoded(void **state)
{
    (void)state;
    struct kvt__space_desc odd = desc;
    uint8_t digest[KVT__SHA256_BYTES];

    odd.model = "a%b\nc";
    odd.fingerprint = "";
    odd.layout = "";
    odd.layers = "%\n";
    odd.tags = "";
    odd.epoch = UINT64_MAX;
    odd.block_bytes = (UINT64_C(1) << 63) + 1;
    odd.world_size = UINT32_MAX;
    kvt__space_digest(&odd, digest);
    assert_hex(digest, sizeof digest,
               "b85417e090d3f118e88218652476165f"
               "e93b79a9d452d31c466c0de344b4e07a");
    assert_true(kvt__layout_fingerprint(&odd) == UINT64_C(0x5f88492ffbfaf19c));
}

static void
value_cannot_pass_for_the_next_line(void **state)
{
    (void)state;
    struct kvt__space_desc a = desc, b = desc;
    uint8_t of_a[KVT__SHA256_BYTES], of_b[KVT__SHA256_BYTES];

    a.model = "m\nfingerprint=x";
    a.fingerprint = "";
    b.model = "m";
    b.fingerprint = "x\nfingerprint=";
    kvt__space_digest(&a, of_a);
    kvt__space_digest(&b, of_b);
    assert_memory_not_equal(of_a, of_b, sizeof of_a);
    a.model = "m%0A";
    b.model = "m\n";
    a.fingerprint = b.fingerprint = "";
    kvt__space_digest(&a, of_a);
    kvt__space_digest(&b, of_b);
    assert_memory_not_equal(of_a, of_b, sizeof of_a);
}

/* desc with field number i changed; whether it belongs to the layout.  False
 * after the last. */
static bool
change(size_t i, struct kvt__space_desc *out, bool *in_layout)
{
    struct kvt__space_desc *d = out;
    const char **const texts[] = {
        &d->model, &d->fingerprint, &d->kv_dtype, &d->serde, &d->tags,
        &d->kind,  &d->format,      &d->layout,   &d->layers,
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
        *in_layout = i >= 5;
        return true;
    }
    i -= N_ROWS(texts);
    if (i < N_ROWS(numbers)) {
        ++*numbers[i];
        *in_layout = i >= 2;
        return true;
    }
    i -= N_ROWS(numbers);
    if (i == 0) {
        d->block_bytes += UINT64_C(1) << 32;
        *in_layout = true;
    } else if (i == 1) {
        d->epoch += UINT64_C(1) << 32;
    }
    return i < 2;
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
    assert_int_equal(n, 1 + 20);
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

static void
prefix_and_identity_are_those_of_the_formula(void **state)
{
    (void)state;
    static const int32_t first[] = {0, 1, 2, 3};
    static const int32_t second[] = {-1, INT32_MIN, INT32_MAX, 70000};
    static const int32_t third[] = {9, 8, 7, 6};
    static const uint8_t extra[] = {5, 0, 0, 0, 0, 0, 0, 0, 1,   0,   0,   0,  3,
                                    0, 0, 0, 5, 0, 0, 0, 'i', 'm', 'g', '-', '1'};
    struct kvt__prefix prefix;

    kvt__prefix_start(&prefix, "", "");
    assert_hex(prefix.b, sizeof prefix.b, "b304050c3447c09a6e2c814208dfb875");
    kvt__prefix_add(&prefix, first, 4, NULL, 0);
    assert_prefix(&prefix, "96842289fa643dc69300a9b8e68725d3",
                  "a2852bcac8e9eaf0bb8eb608e70e3405");
    kvt__prefix_add(&prefix, second, 4, NULL, 0);
    assert_prefix(&prefix, "3d9e80370ad1e2e38a44c7a7a7f0d700",
                  "0b0413b8bbe51fb7ca351d9dc29ecddb");
    kvt__prefix_add(&prefix, third, 4, extra, sizeof extra);
    assert_prefix(&prefix, "fa68c825fc7702b012075832194d16e3",
                  "c976d2fd9e7d66a198138551e53bcfc2");
}

static void
adapter_and_salt_change_the_root(void **state)
{
    (void)state;
    struct kvt__prefix a, b;

    kvt__prefix_start(&a, "sql-v2", "tenant 7");
    assert_hex(a.b, sizeof a.b, "274665765986f30e7a72d84d85dadeda");
    kvt__prefix_start(&a, "ab", "c");
    kvt__prefix_start(&b, "a", "bc");
    assert_memory_not_equal(a.b, b.b, sizeof a.b);
    kvt__prefix_start(&a, "x", "");
    kvt__prefix_start(&b, "", "x");
    assert_memory_not_equal(a.b, b.b, sizeof a.b);
}

static void
known_chunks_of_256_come_out(void **state)
{
    (void)state;
    static const char *const want[][2] = {
        {"f706095dcb0f26d519ed7692938d5fad", "62f279ab27471802a0059fc93b409de8"},
        {"db51e8c575b156b5a431f569b5719ea3", "96c478dfbf1a32f7cd7af19ea61bd0e4"},
        {"a5155a6085c645b9160071d730a7c19e", "2b467778ead1cddf0099ad81bab7f312"},
    };
    struct kvt__prefix prefix, all[3];
    int32_t tokens[768];

    for (int32_t i = 0; i < 768; i++)
        tokens[i] = i;
    kvt__prefix_start(&prefix, "", "");
    kvt__prefix_add_chunks(&prefix, tokens, 256, 3, all);
    for (size_t i = 0; i < 3; i++)
        assert_prefix(&all[i], want[i][0], want[i][1]);
    assert_memory_equal(prefix.b, all[2].b, sizeof prefix.b);
}

/* Enough chunks for all ways to hash several at once. */
#define MANY 70

static void
many_chunks_are_the_same_as_one_at_a_time(void **state)
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
            kvt__prefix_start(&all, "l", "s");
            kvt__prefix_start(&single, "l", "s");
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

    kvt__prefix_start(&a, "", "");
    b = c = a;
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
        cmocka_unit_test(prefix_and_identity_are_those_of_the_formula),
        cmocka_unit_test(adapter_and_salt_change_the_root),
        cmocka_unit_test(known_chunks_of_256_come_out),
        cmocka_unit_test(many_chunks_are_the_same_as_one_at_a_time),
        cmocka_unit_test(tokens_and_extra_do_not_pass_for_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
