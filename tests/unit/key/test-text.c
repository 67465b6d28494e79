/* SPDX-License-Identifier: Apache-2.0
 *
 * Key text: the parts of valid texts, and the messages for invalid texts. */
#include "kvt-test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "key/key.h"

#define WIDE "0b5d4d3030c6d68d0cf06ea3ed8a9c46c8d743dc1cb95658ddf08c63a57c9816"
#define WIDE_BITS UINT64_C(0x0b5d4d3030c6d68d), UINT64_C(0x0cf06ea3ed8a9c46), \
                  UINT64_C(0xc8d743dc1cb95658), UINT64_C(0xddf08c63a57c9816)
#define ALL(...) {.bits = {__VA_ARGS__}, .form = KVT__HASH_WIDE}
#define SIGNED(v) {.bits = {(uint64_t)(v)}}
#define UNSIGNED(v) {.bits = {(uint64_t)(v)}, .form = KVT__HASH_UNSIGNED}
#define N_ROWS(table) (sizeof table / sizeof *table)

static const struct {
    const char *text;
    struct kvt__key_parts parts;
} good[] = {
    {"minio_probe@1@0@3039@bfloat16",
     {"minio_probe", 1, 0, SIGNED(0x3039), "bfloat16", -1, ""}},
    {"meta-llama/Llama-3.1-8B@1@0@1a540024b49d3bfe@bfloat16@lora%sql-v2",
     {"meta-llama/Llama-3.1-8B", 1, 0, SIGNED(1897141500678847486),
      "bfloat16", -1, "lora%sql-v2"}},
    {"m@8@7@-13ca95e4793f0be@half",
     {"m", 8, 7, SIGNED(-89132315033465022), "half", -1, ""}},
    {"m@8@7@-5@half@0", {"m", 8, 7, SIGNED(-5), "half", 0, ""}},
    {"m@1@0@0@float@31@a%b@c%d",
     {"m", 1, 0, SIGNED(0), "float", 31, "a%b@c%d"}},
    {"m@1@0@1@int8@a%@%b@c%d%e",
     {"m", 1, 0, SIGNED(1), "int8", -1, "a%@%b@c%d%e"}},
    {"m@1@0@1@bool@9223372036854775807",
     {"m", 1, 0, SIGNED(1), "bool", INT64_MAX, ""}},
    {"m@1@0@1@bool@7@12%3", {"m", 1, 0, SIGNED(1), "bool", 7, "12%3"}},
    {"m@4294967295@4294967295@7fffffffffffffff@fp8_e4m3fn",
     {"m", UINT32_MAX, UINT32_MAX, SIGNED(INT64_MAX), "fp8_e4m3fn", -1, ""}},
    {"m@1@0@-8000000000000000@uint8",
     {"m", 1, 0, SIGNED(INT64_MIN), "uint8", -1, ""}},
    {"m@1@0@8000000000000000@uint8",
     {"m", 1, 0, UNSIGNED(INT64_MIN), "uint8", -1, ""}},
    {"m@1@0@ffffffffffffffff@fp8_e5m2fnuz",
     {"m", 1, 0, UNSIGNED(-1), "fp8_e5m2fnuz", -1, ""}},
    {"m@1@0@b26d794ec2397cf@double",
     {"m", 1, 0, SIGNED(0xb26d794ec2397cf), "double", -1, ""}},
    {"m@1@0@" WIDE "@bfloat16@3",
     {"m", 1, 0, ALL(WIDE_BITS), "bfloat16", 3, ""}},
    {"a model with blanks@1@0@1@int64",
     {"a model with blanks", 1, 0, SIGNED(1), "int64", -1, ""}},
};

static const char *const malformed[] = {
    "",
    " \t\n",
    "m",
    "m@1@0@1",
    "@@@@",
    "@1@0@1@half",
    "m@@0@1@half",
    "m@1@@1@half",
    "m@1@0@@half",
    "m@1@0@1@",
    "m@-1@0@1@half",
    "m@+1@0@1@half",
    "m@ 1@0@1@half",
    "m@01@0@1@half",
    "m@1x@0@1@half",
    "m@4294967296@0@1@half",
    "m@1@4294967296@1@half",
    "m@1@99999999999999999999999@1@half",
    "m@1@0@-@half",
    "m@1@0@-0@half",
    "m@1@0@01@half",
    "m@1@0@-01@half",
    "m@1@0@--1@half",
    "m@1@0@+1@half",
    "m@1@0@0x1@half",
    "m@1@0@A@half",
    "m@1@0@1g@half",
    "m@1@0@1 @half",
    "m@1@0@1_0@half",
    "m@1@0@-8000000000000001@half",
    "m@1@0@-ffffffffffffffff@half",
    "m@1@0@10000000000000000@half",
    "m@1@0@-" WIDE "@half",
    "m@1@0@" WIDE "0@half",
    "m@1@0@0b5d4d3030c6d68d0cf06ea3ed8a9c46@half",
    "m@1@0@1@Half",
    "m@1@0@1@float16",
    "m@1@0@1@halfhalfhalfhalfhalfhalfhalf",
    "vllm@m@1@0@1@half",
    "m@1@0@1@half@",
    "m@1@0@1@half@tag",
    "m@1@0@1@half@a%b@",
    "m@1@0@1@half@a%b@tag",
    "m@1@0@1@half@a%b@3",
    "m@1@0@1@half@3@4",
    "m@1@0@1@half@-1",
    "m@1@0@1@half@03",
    "m@1@0@1@half@9223372036854775808",
    "m@1@0@1@half@3@",
    "m@1@0@1@half@@a%b",
};

static void
assert_same_parts(const struct kvt__key_parts *a, const struct kvt__key_parts *b)
{
    assert_string_equal(a->model, b->model);
    assert_int_equal(a->world_size, b->world_size);
    assert_int_equal(a->worker_id, b->worker_id);
    assert_memory_equal(a->hash.bits, b->hash.bits, sizeof a->hash.bits);
    assert_int_equal(a->hash.form, b->hash.form);
    assert_string_equal(a->dtype, b->dtype);
    assert_true(a->layer == b->layer);
    assert_string_equal(a->tags, b->tags);
}

static void
good_text_parses(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS(good); i++) {
        struct kvt__key_parts parts;
        assert_int_equal(kvt__key_parse(good[i].text, &parts), 0);
        assert_same_parts(&parts, &good[i].parts);
    }
}

static void
malformed_text_is_einval_with_a_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS(malformed); i++) {
        struct kvt__key_parts parts;
        kvt__set_why("");
        if (kvt__key_parse(malformed[i], &parts) != -EINVAL)
            fail_msg("'%s' was taken", malformed[i]);
        assert_non_null(strstr(kvt__why(), "key text '"));
    }
}

static void
blanks_around_key_text_are_dropped(void **state)
{
    (void)state;
    struct kvt__key_parts parts;

    assert_int_equal(kvt__key_parse(" \t\r\n m@1@0@5@half@a%b \v\f\n", &parts), 0);
    assert_string_equal(parts.model, "m");
    assert_string_equal(parts.tags, "a%b");
    assert_int_equal(kvt__key_parse("\nm@1@0@5@half\n", &parts), 0);
    assert_string_equal(parts.dtype, "half");
}

static void
model_and_tags_of_the_greatest_length_fit(void **state)
{
    (void)state;
    char text[KVT__KEY_TEXT_MAX + 200];
    struct kvt__key_parts parts;
    int n;

    memset(text, 'm', KVT__KEY_MODEL_MAX);
    n = KVT__KEY_MODEL_MAX +
        snprintf(text + KVT__KEY_MODEL_MAX, 400,
                 "@4294967295@4294967295@" WIDE
                 "@fp8_e4m3fnuz@9223372036854775807@t%%");
    memset(text + n, 'v', 253);
    text[n + 253] = '\0';
    assert_int_equal(kvt__key_parse(text, &parts), 0);
    assert_int_equal(strlen(parts.tags), 255);

    strcpy(text + n + 253, "v");
    assert_int_equal(kvt__key_parse(text, &parts), -EINVAL);
    memset(text, 'm', KVT__KEY_MODEL_MAX + 1);
    strcpy(text + KVT__KEY_MODEL_MAX + 1, "@1@0@1@half");
    assert_int_equal(kvt__key_parse(text, &parts), -EINVAL);
    assert_int_equal(kvt__key_parse(text + 1, &parts), 0);
}

static void
hash_text_of_64_bits_has_no_padding_and_a_sign(void **state)
{
    (void)state;
    static const struct {
        struct kvt__hash hash;
        const char *text;
    } rows[] = {
        {SIGNED(0), "0"},
        {SIGNED(-5), "-5"},
        {UNSIGNED(-5), "fffffffffffffffb"},
        {UNSIGNED(0x3039), "3039"},
        {SIGNED(-89132315033465022), "-13ca95e4793f0be"},
        {SIGNED(1897141500678847486), "1a540024b49d3bfe"},
        {SIGNED(INT64_MIN), "-8000000000000000"},
        {UNSIGNED(INT64_MIN), "8000000000000000"},
        {SIGNED(INT64_MAX), "7fffffffffffffff"},
        {UNSIGNED(0xb26d794ec2397cf), "b26d794ec2397cf"},
        {ALL(WIDE_BITS), WIDE},
        {ALL(0, 0, 0, 1),
         "0000000000000000000000000000000000000000000000000000000000000001"},
    };
    char text[KVT__HASH_DIGITS + 1];

    for (size_t i = 0; i < N_ROWS(rows); i++) {
        kvt__hash_text(&rows[i].hash, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void
only_the_dtypes_of_lmcache_are_known(void **state)
{
    (void)state;
    static const char *const known[] = {
        "half",  "bfloat16", "float", "double",     "int8",         "uint8",
        "int16", "int32",    "int64", "bool",       "fp8_e4m3fn",
        "fp8_e4m3fnuz",      "fp8_e5m2",            "fp8_e5m2fnuz",
    };

    for (size_t i = 0; i < N_ROWS(known); i++)
        assert_true(kvt__key_dtype_known(known[i]));
    assert_false(kvt__key_dtype_known(""));
    assert_false(kvt__key_dtype_known("float16"));
    assert_false(kvt__key_dtype_known("fp8_e4m3"));
    assert_false(kvt__key_dtype_known("int"));
}

static void
only_the_tag_kvt_is_kvtiers_own(void **state)
{
    (void)state;
    assert_int_equal(kvt__key_check_tags("lora%x", 100), 0);
    assert_int_equal(kvt__key_check_tags("kvt%x", 100), -EINVAL);
    assert_true(kvt__key_has_tags("m@1@0@@half@lora%x"));
    assert_true(kvt__key_has_tags("m@1@0@@half@kvt%1@lora%x"));
    assert_false(kvt__key_has_tags("m@1@0@@half@kvt%1"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_text_parses),
        cmocka_unit_test(malformed_text_is_einval_with_a_message),
        cmocka_unit_test(blanks_around_key_text_are_dropped),
        cmocka_unit_test(model_and_tags_of_the_greatest_length_fit),
        cmocka_unit_test(hash_text_of_64_bits_has_no_padding_and_a_sign),
        cmocka_unit_test(only_the_dtypes_of_lmcache_are_known),
        cmocka_unit_test(only_the_tag_kvt_is_kvtiers_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
