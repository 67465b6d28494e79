/* SPDX-License-Identifier: Apache-2.0
 *
 * Percent-encoding for signatures, and hex and base64 for headers. */
#include "kvt-test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/encode.h"

#define N_ROWS(table) (sizeof table / sizeof *table)

static const struct {
    const char *text, *path, *query;
} encoded[] = {
    { "", "", "" },
    { "a b", "a%20b", "a%20b" },
    { "a+b", "a%2Bb", "a%2Bb" },
    { "a=b&c", "a%3Db%26c", "a%3Db%26c" },
    { "a/b", "a/b", "a%2Fb" },
    { "a//b/./c", "a//b/./c", "a%2F%2Fb%2F.%2Fc" },
    { "\xc3\xa9", "%C3%A9", "%C3%A9" },
    { "\xe6\x97\xa5", "%E6%97%A5", "%E6%97%A5" },
    { "~._-", "~._-", "~._-" },
    { "!'()*", "%21%27%28%29%2A", "%21%27%28%29%2A" },
    { "$,;:@", "%24%2C%3B%3A%40", "%24%2C%3B%3A%40" },
    { "?#", "%3F%23", "%3F%23" },
    { "%41", "%2541", "%2541" },
    { "\x01\x7f\xff", "%01%7F%FF", "%01%7F%FF" },
    { "AZaz09", "AZaz09", "AZaz09" },
};

static void
all_but_a_few_characters_are_encoded(void **state)
{
    (void)state;
    char out[64];

    for (size_t i = 0; i < N_ROWS(encoded); i++) {
        const char *text = encoded[i].text;
        int n = kvt__s3_encode(text, strlen(text), true, out, sizeof out);
        assert_int_equal(n, strlen(encoded[i].path));
        assert_string_equal(out, encoded[i].path);
        n = kvt__s3_encode(text, strlen(text), false, out, sizeof out);
        assert_int_equal(n, strlen(encoded[i].query));
        assert_string_equal(out, encoded[i].query);
    }
}

static void
encoded_text_decodes_in_place(void **state)
{
    (void)state;
    char text[64];

    for (size_t i = 0; i < N_ROWS(encoded); i++) {
        strcpy(text, encoded[i].query);
        int n = kvt__s3_decode(text, strlen(text));
        assert_int_equal(n, strlen(encoded[i].text));
        assert_memory_equal(text, encoded[i].text, (size_t)n);
    }
    strcpy(text, "%c3%A9+/");
    assert_int_equal(kvt__s3_decode(text, strlen(text)), 4);
    assert_memory_equal(text, "\xc3\xa9+/", 4);
}

static void
an_invalid_encoding_is_einval(void **state)
{
    (void)state;
    static const char *const bad[] = { "%",   "a%",   "%4",  "a%4", "%4g",
                                       "%g4", "%%41", "%00", "a%0" };
    char text[16];

    for (size_t i = 0; i < N_ROWS(bad); i++) {
        strcpy(text, bad[i]);
        assert_int_equal(kvt__s3_decode(text, strlen(text)), -EINVAL);
    }
    assert_int_equal(kvt__s3_decode((char[]){ 'a', '\0', 'b' }, 3), -EINVAL);
    /* Text behind the n bytes is ignored. */
    strcpy(text, "%41");
    assert_int_equal(kvt__s3_decode(text, 2), -EINVAL);
}

/* The buffer has exactly this size, so that a sanitizer reports an access behind the end. */
static void
encoding_stays_in_its_buffer(void **state)
{
    (void)state;
    const char text[] = "a b/\xc3\xa9", expected[] = "a%20b/%C3%A9";

    for (size_t room = 0; room <= sizeof expected; room++) {
        char *out = malloc(room ? room : 1);
        assert_non_null(out);
        int n = kvt__s3_encode(text, strlen(text), true, out, room);
        assert_int_equal(n, room < sizeof expected ? -ENAMETOOLONG : (int)strlen(expected));
        if (n >= 0)
            assert_string_equal(out, expected);
        free(out);
    }
}

static void
hex_is_in_lower_case(void **state)
{
    (void)state;
    char out[9];

    kvt__s3_hex((const uint8_t[]){ 0x00, 0x0f, 0xa5, 0xff }, 4, out);
    assert_string_equal(out, "000fa5ff");
    kvt__s3_hex(NULL, 0, out);
    assert_string_equal(out, "");
}

#define BYTES(...) { __VA_ARGS__ }, sizeof((uint8_t[]){ __VA_ARGS__ })
#define ROOM 16

/* Values of x-amz-checksum-crc32c, x-amz-checksum-crc64nvme and Content-MD5, and the values of RFC
 * 4648. */
static const struct {
    uint8_t bytes[ROOM];
    size_t n;
    const char *text;
} base64[] = {
    { BYTES(0, 0, 0, 0), "AAAAAA==" },
    { BYTES(0xe3, 0x06, 0x92, 0x83), "4waSgw==" },
    { BYTES(0x8a, 0x91, 0x36, 0xaa), "ipE2qg==" },
    { BYTES(0x43, 0x6f, 0xe2, 0x40), "Q2/iQA==" },
    { BYTES(0, 0, 0, 0, 0, 0, 0, 0), "AAAAAAAAAAA=" },
    { BYTES(0xae, 0x8b, 0x14, 0x86, 0x0a, 0x79, 0x98, 0x88), "rosUhgp5mIg=" },
    { BYTES(0xcf, 0x34, 0x73, 0x43, 0x4d, 0x4e, 0xcf, 0x3b), "zzRzQ01Ozzs=" },
    { BYTES(0x38, 0xb0, 0xef, 0x50, 0x41, 0x9e, 0x0b, 0x4c), "OLDvUEGeC0w=" },
    { BYTES(0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04, 0xe9, 0x80, 0x09, 0x98, 0xec,
            0xf8, 0x42, 0x7e), "1B2M2Y8AsgTpgAmY7PhCfg==" },
    { BYTES('f'), "Zg==" },
    { BYTES('f', 'o'), "Zm8=" },
    { BYTES('f', 'o', 'o'), "Zm9v" },
    { BYTES('f', 'o', 'o', 'b'), "Zm9vYg==" },
    { BYTES(0xfb, 0xff, 0xfe), "+//+" },
};

static void
base64_equals_checksum_headers(void **state)
{
    (void)state;
    char text[32];

    for (size_t i = 0; i < N_ROWS(base64); i++) {
        kvt__s3_base64(base64[i].bytes, base64[i].n, text);
        assert_string_equal(text, base64[i].text);
    }
    kvt__s3_base64(NULL, 0, text);
    assert_string_equal(text, "");
}

static void
base64_reads_back(void **state)
{
    (void)state;

    for (size_t i = 0; i < N_ROWS(base64); i++)
        for (size_t room = 0; room <= ROOM; room++) {
            uint8_t *out = malloc(room ? room : 1);
            assert_non_null(out);
            int n = kvt__s3_unbase64(base64[i].text, strlen(base64[i].text), out, room);
            assert_int_equal(n, room < base64[i].n ? -EINVAL : (int)base64[i].n);
            if (n >= 0)
                assert_memory_equal(out, base64[i].bytes, (size_t)n);
            free(out);
        }
    assert_int_equal(kvt__s3_unbase64("", 0, NULL, 0), 0);
}

static void
invalid_base64_is_einval(void **state)
{
    (void)state;
    /* The last two have unused bits that are not 0. */
    static const char *const bad[] = { "Zg",       "Zg=",  "Z===", "====",    "=Zg=",
                                       "Zg==Zg==", "Zm9-", "Zm9 ", "Zm9v\n", "Zh==",
                                       "Zm9=" };
    uint8_t out[ROOM];

    for (size_t i = 0; i < N_ROWS(bad); i++)
        assert_int_equal(kvt__s3_unbase64(bad[i], strlen(bad[i]), out, sizeof out),
                         -EINVAL);
    assert_int_equal(kvt__s3_unbase64("Zm9\0", 4, out, sizeof out), -EINVAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_but_a_few_characters_are_encoded),
        cmocka_unit_test(encoded_text_decodes_in_place),
        cmocka_unit_test(an_invalid_encoding_is_einval),
        cmocka_unit_test(encoding_stays_in_its_buffer),
        cmocka_unit_test(hex_is_in_lower_case),
        cmocka_unit_test(base64_equals_checksum_headers),
        cmocka_unit_test(base64_reads_back),
        cmocka_unit_test(invalid_base64_is_einval),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
