/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunk hashes against values from CPython and from hand-made CBOR. */
#include "kvt-test.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "key/key.h"

#define N_ROWS(table) (sizeof table / sizeof *table)

/* The hashes of tokens 0, 1, 2... in chunks of chunk_tokens. */
struct vector {
    enum kvt__hash_kind kind;
    const char *seed; /* NULL: the root of LMCache without vLLM, 0 */
    const char *root;
    size_t chunk_tokens;
    size_t n_chunks;
    const char *chunks[4]; /* in the form of key text */
};

static const struct vector vectors[] = {
    {KVT__HASH_BUILTIN, "0", "49bc192c478bfc2e", 4, 4,
     {"-13ca95e4793f0be", "-18a850cb1ebd618e", "1a540024b49d3bfe",
      "5c530a29cdc5880c"}},
    {KVT__HASH_BUILTIN, "42", "c06a5630ef176cb", 4, 4,
     {"6f8a6a1adc08dcfa", "4fde92bfe2e5acc5", "66846221fdc8629e",
      "409195cb3ae2c818"}},
    {KVT__HASH_BUILTIN, "12345", "-3d08092e43349a4e", 4, 1,
     {"43ea8e337f89cc82"}},
    {KVT__HASH_BUILTIN, NULL, "0", 4, 4,
     {"1abacd733b54a8ac", "-6c4f18f9b2e02e86", "-14ebd813703563eb",
      "-1b34c242c8307818"}},
    {KVT__HASH_BUILTIN, "0", "49bc192c478bfc2e", 256, 2,
     {"5f05dec65811b7cc", "-adc333b9eaa0e45"}},
    {KVT__HASH_SHA256_CBOR, "0", "4e1195df020de59e", 4, 4,
     {"e1b5899bb7db4bea", "ec342acc6eb7fa96", "983858e3dbc25c18",
      "52a9ac2563406e1b"}},
    {KVT__HASH_SHA256_CBOR, "42", "9fa6eb003f14425e", 4, 4,
     {"ce5ba2a2463f8d83", "d15e20742cf4ae2c", "7a9af41aec31e2f7",
      "b26d794ec2397cf"}},
    {KVT__HASH_SHA256_CBOR, "0", "4e1195df020de59e", 256, 2,
     {"b8a960cfcc69e7a5", "cc309e143d545625"}},
    {KVT__HASH_SHA256_CBOR_WIDE, "0",
     "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e", 4, 4,
     {"6f84d0fc39e6472d3fac6bb2327b48361a25888d3240588c663652d2068a62b5",
      "1379d3347900f21aa92d7e23bf24c5dd891c742ed07e36c989d8081f68792bf9",
      "dda224dade32389d87be652e514f4c4811c79ace65ea61fa709f63d0d1a3bc4b",
      "0b5d4d3030c6d68d0cf06ea3ed8a9c46c8d743dc1cb95658ddf08c63a57c9816"}},
    {KVT__HASH_SHA256_CBOR_WIDE_NONE, "0",
     "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e", 4, 4,
     {"8d4c7c828f1611f485f1ebfc2b19f0fe1c90d0a71d00cd90948a1fa5e8c9e91f",
      "ed6fa5d37a067707ede9aff44aa2819ab639263ca4ca66e8d36d02ffac952d33",
      "1b7047f472ffe29f9649139ce64bf3c05228f5a99bb7792568bb68f2d7410c30",
      "bc3ffb7fd0c74a14baed79d7009a7ee5d0cfc21a4a0aa1c342754a915e780a0a"}},
};

typedef uint64_t hash_bits[KVT__HASH_WORDS];

static void
assert_hash(const hash_bits bits, enum kvt__hash_kind kind, const char *want)
{
    struct kvt__hash hash = {.form = kvt__hash_form(kind)};
    char text[KVT__HASH_DIGITS + 1];

    memcpy(hash.bits, bits, sizeof hash.bits);
    kvt__hash_text(&hash, text);
    assert_string_equal(text, want);
}

static void
start(struct kvt__hash_chain *chain, const struct vector *v)
{
    if (v->seed)
        assert_int_equal(kvt__hash_start(chain, v->kind, v->seed), 0);
    else
        *chain = (struct kvt__hash_chain){.kind = v->kind};
    assert_hash(chain->prev, v->kind, v->root);
}

static void
known_chains_come_out(void **state)
{
    (void)state;
    int32_t tokens[512];

    for (int32_t i = 0; i < 512; i++)
        tokens[i] = i;
    for (size_t i = 0; i < N_ROWS(vectors); i++) {
        const struct vector *v = &vectors[i];
        struct kvt__hash_chain chain;
        hash_bits out[4];
        start(&chain, v);
        kvt__hash_chunks(&chain, tokens, v->chunk_tokens, v->n_chunks, out);
        for (size_t k = 0; k < v->n_chunks; k++)
            assert_hash(out[k], v->kind, v->chunks[k]);
        assert_memory_equal(chain.prev, out[v->n_chunks - 1], sizeof chain.prev);
    }
}

static void
hashes_with_decimal_seeds_equal_known_values(void **state)
{
    (void)state;
    static const struct {
        const char *seed;
        int64_t root;
        int64_t first;
    } rows[] = {
        {"0", 5313149338359954478, -89132315033465022},
        {"42", 866561823186450123, 8037353148589333754},
        {"12345", -4397775130427955790, 4893880296925678722},
    };
    static const int32_t tokens[] = {0, 1, 2, 3};

    for (size_t i = 0; i < N_ROWS(rows); i++) {
        struct kvt__hash_chain chain;
        hash_bits out;
        assert_int_equal(
            kvt__hash_start(&chain, KVT__HASH_BUILTIN, rows[i].seed), 0);
        assert_true((int64_t)chain.prev[0] == rows[i].root);
        kvt__hash_chunks(&chain, tokens, 4, 1, &out);
        assert_true((int64_t)out[0] == rows[i].first);
    }
}

/* Python's hash(-1) equals hash(-2); with SHA-256, -1 and -2 have different hashes. */
static const int32_t edges[] = {
    -1,     -2,    0,      1,      23,     24,     255,       256,
    65535,  65536, 70000,  -24,    -25,    -256,   -257,      -65536,
    -65537, 10,    127999, 128000, 152063, -12345, INT32_MAX, INT32_MIN,
};

static void
negative_and_large_tokens_hash_as_in_python(void **state)
{
    (void)state;
    static const char *const builtin[] = {
        "-f4993f0ab4860c4",
        "-72868d4cf97b533",
        "-4f90899ec881635f",
        "195d9d6219b955d6",
        "2793b7bfe9d8e07b",
        "2149fc43e81154aa",
    };
    static const char *const cbor[] = {
        "2848aa77ba99834e",
        "cd228433a3cc0cfb",
        "55ff419c89995ecd",
        "c9a2d1366a79a289",
        "d3cea1def0b7f925",
        "5b4645ed17fadf2c",
    };
    struct kvt__hash_chain chain;
    hash_bits out[6];

    assert_int_equal(kvt__hash_start(&chain, KVT__HASH_BUILTIN, "7"), 0);
    kvt__hash_chunks(&chain, edges, 4, 6, out);
    for (size_t i = 0; i < 6; i++)
        assert_hash(out[i], KVT__HASH_BUILTIN, builtin[i]);
    assert_int_equal(kvt__hash_start(&chain, KVT__HASH_SHA256_CBOR, "7"), 0);
    kvt__hash_chunks(&chain, edges, 4, 6, out);
    for (size_t i = 0; i < 6; i++)
        assert_hash(out[i], KVT__HASH_SHA256_CBOR, cbor[i]);
}

static void
builtin_takes_minus_one_for_minus_two(void **state)
{
    (void)state;
    static const int32_t one[] = {-1}, two[] = {-2};
    struct kvt__hash_chain a, b;
    hash_bits of_a, of_b;

    for (int kind = KVT__HASH_BUILTIN; kind <= KVT__HASH_SHA256_CBOR_WIDE_NONE; kind++) {
        a = (struct kvt__hash_chain){.kind = kind};
        b = (struct kvt__hash_chain){.kind = kind};
        kvt__hash_chunks(&a, one, 1, 1, &of_a);
        kvt__hash_chunks(&b, two, 1, 1, &of_b);
        assert_int_equal(of_a[0] == of_b[0], kind == KVT__HASH_BUILTIN);
    }
}

/* Long chunks are encoded in pieces.  The expected hashes are from the formula in Python. */
static void
chunk_longer_than_a_piece_hashes_as_in_python(void **state)
{
    (void)state;
    int32_t tokens[1500];
    struct kvt__hash_chain chain;
    hash_bits out;

    for (int32_t i = 0; i < 1500; i++)
        tokens[i] = i * 97 - 70000;
    assert_int_equal(kvt__hash_start(&chain, KVT__HASH_SHA256_CBOR, "0"), 0);
    kvt__hash_chunks(&chain, tokens, 1500, 1, &out);
    assert_hash(out, KVT__HASH_SHA256_CBOR, "62cd98c00038efe");
    assert_int_equal(kvt__hash_start(&chain, KVT__HASH_BUILTIN, "0"), 0);
    kvt__hash_chunks(&chain, tokens, 1500, 1, &out);
    assert_hash(out, KVT__HASH_BUILTIN, "-137bbd8011a5e02d");
}

/* The exact bytes to hash: the previous hash needs all 64 bits, and tokens have every length. */
static void
cbor_is_canonical(void **state)
{
    (void)state;
    static const uint8_t text[] = {
        0x83, 0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x84, 0x01,
        0x18, 0x18, 0x19, 0x01, 0x00, 0x1a, 0x00, 0x01, 0x11, 0x70, 0x80,
    };
    static const int32_t tokens[] = {1, 24, 256, 70000};
    struct kvt__hash_chain chain = {KVT__HASH_SHA256_CBOR, {UINT64_MAX}};
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    hash_bits out;
    uint64_t want = 0;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, text, sizeof text);
    kvt__sha256_end(&sha, digest);
    for (size_t i = 0; i < 8; i++)
        want = want << 8 | digest[i];
    kvt__hash_chunks(&chain, tokens, 4, 1, &out);
    assert_true(out[0] == want);
}

/* Number of chunks that uses all code paths for several chunks at once. */
#define MANY 75

static void
assert_many_are_the_same(const int32_t *tokens, size_t chunk_tokens, size_t n,
                         enum kvt__hash_kind kind)
{
    struct kvt__hash_chain all, single;
    hash_bits out[MANY], one;

    all = (struct kvt__hash_chain){.kind = kind};
    single = (struct kvt__hash_chain){.kind = kind};
    kvt__hash_chunks(&all, tokens, chunk_tokens, n, out);
    for (size_t i = 0; i < n; i++) {
        kvt__hash_chunks(&single, tokens + chunk_tokens * i, chunk_tokens, 1, &one);
        assert_memory_equal(one, out[i], sizeof one);
    }
    assert_memory_equal(all.prev, single.prev, sizeof all.prev);
}

static void
many_chunks_hash_like_one_at_a_time(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 5, 16, 48};
    static int32_t tokens[MANY * 48];

    for (int32_t i = 0; i < MANY * 48; i++)
        tokens[i] = i % 5 ? (int32_t)((uint32_t)i * 1000003u) : -1 - i % 2;
    tokens[17] = INT32_MIN;
    tokens[18] = INT32_MAX;
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        for (size_t n = 0; n <= MANY; n++) {
            assert_many_are_the_same(tokens, sizes[size], n, KVT__HASH_BUILTIN);
            assert_many_are_the_same(tokens, sizes[size], n, KVT__HASH_SHA256_CBOR);
        }
}

static void
without_a_seed_the_root_is_fixed(void **state)
{
    (void)state;
    struct kvt__hash_chain none, zero;

    assert_int_equal(kvt__hash_start(&none, KVT__HASH_BUILTIN, NULL), 0);
    assert_int_equal(kvt__hash_start(&zero, KVT__HASH_BUILTIN, "0"), 0);
    assert_true(none.prev[0] == zero.prev[0]);
    assert_int_equal(kvt__hash_start(&none, KVT__HASH_SHA256_CBOR, NULL), 0);
    assert_hash(none.prev, KVT__HASH_SHA256_CBOR, "9bd96a485ad84efd");
}

/* Roots of other seeds, from CPython. */
static void
seed_keys_the_hash_of_its_own_text(void **state)
{
    (void)state;
    static const struct {
        const char *seed;
        int64_t root;
    } rows[] = {
        {"1", -3509053104883717537},
        {"7", 4372514316192806101},
        {"007", -619829233496838461},
        {"1234567", 1110514558037174741},
        {"12345678", 1156688265350646103},
        {"4294967295", 8891781246207573802},
        {"0000004294967295", 1372710780306364223},
    };
    struct kvt__hash_chain chain;

    for (size_t i = 0; i < N_ROWS(rows); i++) {
        assert_int_equal(
            kvt__hash_start(&chain, KVT__HASH_BUILTIN, rows[i].seed), 0);
        assert_true((int64_t)chain.prev[0] == rows[i].root);
    }
}

static void
seed_that_names_no_root_is_einval_for_builtin(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "", "random", "-1", "+1", " 1", "1 ", "4294967296",
        "99999999999999999999999", "0x1", "1.0",
    };
    struct kvt__hash_chain chain;

    for (size_t i = 0; i < N_ROWS(seeds); i++) {
        assert_int_equal(
            kvt__hash_start(&chain, KVT__HASH_BUILTIN, seeds[i]), -EINVAL);
        assert_non_null(strstr(kvt__why(), "PYTHONHASHSEED"));
        assert_int_equal(
            kvt__hash_start(&chain, KVT__HASH_SHA256_CBOR, seeds[i]), 0);
    }
}

static void
multimodal_ids_replace_the_items_tokens(void **state)
{
    (void)state;
    static const int32_t want[] = {
        745123567,  1344425400, 1339761228, 710036011,  319229506,
        1044807482, 1930143302, 2027438964, 1311463829, 1665847807,
    };
    int32_t got[N_ROWS(want) + 1];

    for (size_t first = 0; first < N_ROWS(want); first++)
        for (size_t n = 0; n <= N_ROWS(want) - first; n++) {
            memset(got, 0x55, sizeof got);
            kvt__hash_mm_tokens("img-1", first, got, n);
            assert_memory_equal(got, want + first, n * sizeof *got);
            assert_int_equal(got[n], 0x55555555);
        }
}

static void
multimodal_ids_far_into_an_item_and_of_other_items_differ(void **state)
{
    (void)state;
    int32_t near[8], far[8], other[8];

    kvt__hash_mm_tokens("img-1", 0, near, 8);
    kvt__hash_mm_tokens("img-1", UINT64_C(8) << 32, far, 8);
    kvt__hash_mm_tokens("img-2", 0, other, 8);
    assert_memory_not_equal(near, far, sizeof near);
    assert_memory_not_equal(near, other, sizeof near);
    for (size_t i = 0; i < 8; i++)
        assert_true(near[i] >= 0 && far[i] >= 0 && other[i] >= 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_chains_come_out),
        cmocka_unit_test(hashes_with_decimal_seeds_equal_known_values),
        cmocka_unit_test(negative_and_large_tokens_hash_as_in_python),
        cmocka_unit_test(builtin_takes_minus_one_for_minus_two),
        cmocka_unit_test(chunk_longer_than_a_piece_hashes_as_in_python),
        cmocka_unit_test(cbor_is_canonical),
        cmocka_unit_test(many_chunks_hash_like_one_at_a_time),
        cmocka_unit_test(without_a_seed_the_root_is_fixed),
        cmocka_unit_test(seed_keys_the_hash_of_its_own_text),
        cmocka_unit_test(seed_that_names_no_root_is_einval_for_builtin),
        cmocka_unit_test(multimodal_ids_replace_the_items_tokens),
        cmocka_unit_test(multimodal_ids_far_into_an_item_and_of_other_items_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
