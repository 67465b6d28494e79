/* SPDX-License-Identifier: Apache-2.0
 *
 * kvt__sha256_many() returns the digests of kvt__sha256. */
#include "kvt-test.h"

#include <stdlib.h>
#include <string.h>

#include "key/sha256-many.h"

static void
expect(const uint8_t *head, size_t n_head, const uint8_t *text, size_t n,
       const uint8_t got[KVT__SHA256_BYTES])
{
    uint8_t want[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, head, n_head);
    kvt__sha256_add(&sha, text, n);
    kvt__sha256_end(&sha, want);
    assert_memory_equal(got, want, sizeof want);
}

/* The sum of the widest lanes, a pair and a single message. */
#define COUNT (KVT__SHA256_LANES_MAX + 3)

static void
every_length_of_head_and_text_is_right(void **state)
{
    (void)state;
    uint8_t head[KVT__SHA256_MANY_HEAD_MAX], out[COUNT][KVT__SHA256_BYTES];

    for (size_t i = 0; i < sizeof head; i++)
        head[i] = (uint8_t)(i * 7 + 3);
    for (size_t n = 0; n < 200; n++) {
        uint8_t *texts = malloc(COUNT * n + 1);
        assert_non_null(texts);
        for (size_t i = 0; i < COUNT * n; i++)
            texts[i] = (uint8_t)((i * 13 + n) ^ i >> 8);
        for (size_t n_head = 0; n_head <= sizeof head; n_head++) {
            kvt__sha256_many(head, n_head, texts, n, COUNT, out);
            for (size_t i = 0; i < COUNT; i++)
                expect(head, n_head, texts + i * n, n, out[i]);
        }
        free(texts);
    }
}

static void
every_count_is_right(void **state)
{
    (void)state;
    uint8_t texts[2 * COUNT][100], out[2 * COUNT + 1][KVT__SHA256_BYTES];

    for (size_t i = 0; i < sizeof texts; i++)
        texts[i / 100][i % 100] = (uint8_t)(i * 31 + 5);
    for (size_t count = 0; count <= 2 * COUNT; count++) {
        memset(out, 0xee, sizeof out);
        kvt__sha256_many("h", 1, texts, 100, count, out);
        for (size_t i = 0; i < count; i++)
            expect((const uint8_t *)"h", 1, texts[i], 100, out[i]);
        assert_int_equal(out[count][0], 0xee);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_of_head_and_text_is_right),
        cmocka_unit_test(every_count_is_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
