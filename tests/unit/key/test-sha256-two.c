/* SPDX-License-Identifier: Apache-2.0
 *
 * Two SHA-256 at once give what two of them give one after the other. */
#include "kvt-test.h"

#include <stdlib.h>
#include <string.h>

#include "key/sha256-two.h"

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

static void
every_length_of_head_and_text_is_right(void **state)
{
    (void)state;
    uint8_t head[KVT__SHA256_TWO_HEAD_MAX], out[2][KVT__SHA256_BYTES];

    for (size_t i = 0; i < sizeof head; i++)
        head[i] = (uint8_t)(i * 7 + 3);
    for (size_t n = 0; n < 200; n++) {
        uint8_t *a = malloc(n + 1), *b = malloc(n + 1);
        assert_non_null(a);
        assert_non_null(b);
        for (size_t i = 0; i < n; i++) {
            a[i] = (uint8_t)(i * 13 + n);
            b[i] = (uint8_t)(i * 31 + 5);
        }
        for (size_t n_head = 0; n_head <= sizeof head; n_head++) {
            kvt__sha256_two(head, n_head, a, b, n, out[0], out[1]);
            expect(head, n_head, a, n, out[0]);
            expect(head, n_head, b, n, out[1]);
        }
        free(a);
        free(b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_of_head_and_text_is_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
