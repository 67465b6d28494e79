/* SPDX-License-Identifier: Apache-2.0
 *
 * Encode key text as names, decode names, and choose a directory of a comma list. */
#include "kvt-test.h"

#include <errno.h>
#include <string.h>

#include "key/key.h"

#define LLAMA "Llama-3.1-8B@1@0@1a540024b49d3bfe@bfloat16@lora%sql-v2"
#define SIGNED(v) {.bits = {(uint64_t)(v)}}
#define N_ROWS(table) (sizeof table / sizeof *table)

static const struct {
    enum kvt__key_encoding how;
    const char *text;
    const char *name;
} names[] = {
    {KVT__KEY_FS, "meta-llama/" LLAMA, "meta-llama-SEP-" LLAMA},
    {KVT__KEY_DISK, "meta-llama/" LLAMA, "meta-llama-" LLAMA},
    {KVT__KEY_S3, "meta-llama/" LLAMA, "meta-llama_" LLAMA},
    {KVT__KEY_PERCENT, "meta-llama/" LLAMA,
     "meta-llama%2FLlama-3.1-8B%401%400%401a540024b49d3bfe%40bfloat16"
     "%40lora%25sql-v2"},
    {KVT__KEY_FS, "/", "-SEP-"},
    {KVT__KEY_FS, "../..//x", "..-SEP-..-SEP--SEP-x"},
    {KVT__KEY_DISK, "../../x", "..-..-x"},
    {KVT__KEY_S3, "//", "__"},
    {KVT__KEY_FS, "-S/EP-", "-S-SEP-EP-"},
    {KVT__KEY_PERCENT, "a b\n\xc3\xa9~_.-\x7f", "a%20b%0A%C3%A9~_.-%7F"},
};

static void
names_are_spelled_as_lmcache_does(void **state)
{
    (void)state;
    char name[512];

    for (size_t i = 0; i < N_ROWS(names); i++) {
        int n = kvt__key_encode(names[i].text, names[i].how, name, sizeof name);
        assert_int_equal(n, strlen(names[i].name));
        assert_string_equal(name, names[i].name);
    }
}

static void
fs_and_percent_names_decode_again(void **state)
{
    (void)state;
    char text[512];

    for (size_t i = 0; i < N_ROWS(names); i++) {
        int n = kvt__key_decode(names[i].name, names[i].how, text, sizeof text);
        if (names[i].how == KVT__KEY_DISK || names[i].how == KVT__KEY_S3) {
            assert_int_equal(n, -ENOTSUP);
            continue;
        }
        assert_int_equal(n, strlen(names[i].text));
        assert_string_equal(text, names[i].text);
    }
}

static void
names_that_mean_a_directory_are_einval(void **state)
{
    (void)state;
    static const char *const directories[] = {"", ".", ".."};
    char out[16];

    for (size_t i = 0; i < N_ROWS(directories); i++) {
        for (int how = KVT__KEY_FS; how <= KVT__KEY_PERCENT; how++)
            assert_int_equal(kvt__key_encode(directories[i], how, out, 16),
                             -EINVAL);
        assert_int_equal(kvt__key_decode(directories[i], KVT__KEY_FS, out, 16),
                         -EINVAL);
        assert_int_equal(
            kvt__key_decode(directories[i], KVT__KEY_PERCENT, out, 16), -EINVAL);
    }
}

static void
names_that_are_never_made_do_not_decode(void **state)
{
    (void)state;
    static const char *const strange[] = {
        "a/b", "a@b", "%", "a%2", "a%", "%2f", "%zz", "%00", "%41", "%-1", "a b",
    };
    char out[64];

    for (size_t i = 0; i < N_ROWS(strange); i++)
        assert_int_equal(
            kvt__key_decode(strange[i], KVT__KEY_PERCENT, out, sizeof out),
            -EINVAL);
    assert_int_equal(kvt__key_decode("a/b", KVT__KEY_FS, out, sizeof out),
                     -EINVAL);
}

static void
result_longer_than_the_buffer_is_enametoolong(void **state)
{
    (void)state;
    char out[8];

    for (size_t size = 0; size <= 7; size++) {
        memset(out, 'x', sizeof out);
        assert_int_equal(kvt__key_encode("a/b", KVT__KEY_FS, out, size),
                         -ENAMETOOLONG);
        assert_int_equal(out[size], 'x');
        assert_int_equal(kvt__key_decode("a-SEP-bcdefg", KVT__KEY_FS, out, size),
                         -ENAMETOOLONG);
        assert_int_equal(out[size], 'x');
    }
    assert_int_equal(kvt__key_encode("a/b", KVT__KEY_FS, out, 8), 7);
    assert_string_equal(out, "a-SEP-b");
    assert_int_equal(kvt__key_decode("a-SEP-bcdef", KVT__KEY_FS, out, 8), 7);
    assert_string_equal(out, "a/bcdef");
}

static void
directories_are_chosen_as_lmcache_does(void **state)
{
    (void)state;
    static const struct {
        struct kvt__hash hash;
        size_t sharder[3]; /* of 2, 3, 4 */
        size_t fs[3];
    } rows[] = {
        {SIGNED(0), {0, 0, 0}, {0, 0, 0}},
        {SIGNED(1), {1, 1, 1}, {1, 1, 1}},
        {SIGNED(1897141500678847486), {0, 2, 0}, {0, 1, 2}},
        {SIGNED(-89132315033465022), {0, 1, 2}, {0, 0, 2}},
        {SIGNED(5625442194607170974), {1, 0, 1}, {0, 2, 2}},
    };

    for (size_t i = 0; i < N_ROWS(rows); i++)
        for (size_t n = 2; n <= 4; n++) {
            assert_int_equal(kvt__key_sharder_path(&rows[i].hash, n),
                             rows[i].sharder[n - 2]);
            assert_int_equal(kvt__key_fs_path(&rows[i].hash, n),
                             rows[i].fs[n - 2]);
        }
    const struct kvt__hash all_ones = {.bits = {UINT64_MAX},
                                       .form = KVT__HASH_UNSIGNED};
    const struct kvt__hash minus_one = SIGNED(-1), least = SIGNED(INT64_MIN);
    assert_int_equal(kvt__key_fs_path(&all_ones, 4), 3);
    assert_int_equal(kvt__key_fs_path(&minus_one, 4), 1);
    assert_int_equal(kvt__key_fs_path(&least, 3), 2);
    assert_int_equal(kvt__key_fs_path(&minus_one, 1), 0);
}

/* Check all 64 bits of SplitMix64's finaliser, by a large number of directories. */
static void
sharder_mixes_all_bits(void **state)
{
    (void)state;
    static const struct {
        struct kvt__hash hash;
        uint64_t mix;
    } rows[] = {
        {SIGNED(1), UINT64_C(0x5692161d100b05e5)},
        {SIGNED(1897141500678847486), UINT64_C(0xec3f905740b25578)},
        {SIGNED(-89132315033465022), UINT64_C(0x3c398cb060ee1e32)},
        {SIGNED(5625442194607170974), UINT64_C(0xc97d529c50b19601)},
    };

    for (size_t i = 0; i < N_ROWS(rows); i++)
        assert_true(kvt__key_sharder_path(&rows[i].hash, SIZE_MAX) ==
                    (size_t)(rows[i].mix % SIZE_MAX));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_spelled_as_lmcache_does),
        cmocka_unit_test(fs_and_percent_names_decode_again),
        cmocka_unit_test(names_that_mean_a_directory_are_einval),
        cmocka_unit_test(names_that_are_never_made_do_not_decode),
        cmocka_unit_test(result_longer_than_the_buffer_is_enametoolong),
        cmocka_unit_test(directories_are_chosen_as_lmcache_does),
        cmocka_unit_test(sharder_mixes_all_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
