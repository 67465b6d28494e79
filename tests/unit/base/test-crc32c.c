/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C against the examples of RFC 3720, B.4, and against one bit at a time. */
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"

#include "base/crc32c.h"

static void
examples_of_rfc_3720(void **state)
{
    static const unsigned char read_command[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,    0, 0, 0,
        0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
        0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0,    0, 0, 0,
    };
    unsigned char bytes[32];

    (void)state;
    memset(bytes, 0, 32);
    assert_int_equal(kvt__crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(kvt__crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(kvt__crc32c(0, bytes, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)(31 - i);
    assert_int_equal(kvt__crc32c(0, bytes, 32), 0x113fdb5c);
    assert_int_equal(kvt__crc32c(0, read_command, 48), 0xd9963a56);
    assert_int_equal(kvt__crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(kvt__crc32c(0, NULL, 0), 0);
}

static uint32_t
one_bit_at_a_time(const unsigned char *bytes, size_t n)
{
    uint32_t crc = UINT32_MAX;

    while (n--) {
        crc ^= *bytes++;
        for (int i = 0; i < 8; i++)
            crc = (crc >> 1) ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

#define N 9000

static const unsigned char *
some_bytes(void)
{
    static unsigned char bytes[N];
    uint32_t v = 1;

    for (size_t i = 0; i < N; i++) {
        v = v * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(v >> 24);
    }
    return bytes;
}

static void
any_length_at_any_alignment(void **state)
{
    const unsigned char *bytes = some_bytes();

    (void)state;
    for (size_t at = 0; at < 20; at++)
        for (size_t n = 0; n < 600; n += n < 40 ? 1 : 53)
            assert_int_equal(kvt__crc32c(0, bytes + at, n),
                             one_bit_at_a_time(bytes + at, n));
}

static void
the_checksum_of_cold_bytes_is_equal(void **state)
{
    const unsigned char *bytes = some_bytes();

    (void)state;
    assert_int_equal(kvt__crc32c_cold(7, NULL, 0), 7);
    for (size_t at = 0; at < 70; at += 23)
        for (size_t n = 1; n <= N - at; n += n % 2048 < 8 || n % 2048 > 2040 ? 1 : 13)
            assert_int_equal(kvt__crc32c_cold(7, bytes + at, n),
                             kvt__crc32c(7, bytes + at, n));
}

static void
continued_and_joined_checksums_equal_the_whole(void **state)
{
    const unsigned char *bytes = some_bytes();
    uint32_t whole = kvt__crc32c(0, bytes, N);

    (void)state;
    for (size_t cut = 0; cut <= N; cut += cut < 70 || cut > N - 70 ? 1 : 97) {
        uint32_t a = kvt__crc32c(0, bytes, cut);
        uint32_t b = kvt__crc32c(0, bytes + cut, N - cut);

        assert_int_equal(kvt__crc32c(a, bytes + cut, N - cut), whole);
        assert_int_equal(kvt__crc32c_join(a, b, N - cut), whole);
    }
}

static void
joins_of_great_lengths_agree(void **state)
{
    const size_t n = (size_t)5 << 20;
    unsigned char *zeros = calloc(1, n);
    uint32_t a = kvt__crc32c(0, "abc", 3);

    (void)state;
    assert_non_null(zeros);
    assert_int_equal(kvt__crc32c_join(a, kvt__crc32c(0, zeros, n), n),
                     kvt__crc32c(a, zeros, n));
    /* (a || b) || c is a || (b || c), also for lengths larger than any memory */
    uint32_t left = kvt__crc32c_join(kvt__crc32c_join(a, 5, UINT64_C(1) << 40), 6,
                                     UINT64_C(3) << 41);
    uint32_t right = kvt__crc32c_join(a, kvt__crc32c_join(5, 6, UINT64_C(3) << 41),
                                      (UINT64_C(1) << 40) + (UINT64_C(3) << 41));
    assert_int_equal(left, right);
    free(zeros);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_of_rfc_3720),
        cmocka_unit_test(any_length_at_any_alignment),
        cmocka_unit_test(the_checksum_of_cold_bytes_is_equal),
        cmocka_unit_test(continued_and_joined_checksums_equal_the_whole),
        cmocka_unit_test(joins_of_great_lengths_agree),
    };

    return cmocka_run_group_tests_name("base crc32c", tests, NULL, NULL);
}
