/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-temporal copies, with each instruction set of this CPU. */
#include <string.h>

#include "kvt-test.h"

#include "base/crc32c.h"
#include "gpu/nt-copy.h"

#define LONGEST 40000
#define GUARD 64

static unsigned char source[LONGEST + 64];
static unsigned char target[LONGEST + 64 + 2 * GUARD] __attribute__((aligned(64)));
static unsigned char want[sizeof target];

static void
check_copy(size_t to, size_t from, size_t n)
{
    memset(target, 0xa5, sizeof target);
    memset(want, 0xa5, sizeof want);
    memcpy(want + GUARD + to, source + from, n);
    kvt__nt_copy(target + GUARD + to, source + from, n);
    kvt__nt_fence();
    if (memcmp(target, want, sizeof target))
        fail_msg("%zu bytes from %zu to %zu", n, from, to);

    uint32_t before = (uint32_t)(to * 2654435761u + n);
    memset(target, 0xa5, sizeof target);
    uint32_t crc = kvt__nt_copy_sum(target + GUARD + to, source + from, n, before);
    kvt__nt_fence();
    if (memcmp(target, want, sizeof target) ||
        crc != kvt__crc32c(before, source + from, n))
        fail_msg("%zu bytes from %zu to %zu, summed", n, from, to);
}

static void
all_sizes_and_alignments_are_copied_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t i = 0; kvt__nt_code_at(i); i++) {
        if (!kvt__nt_code_at(i)->usable())
            continue;
        kvt__nt_code_use(kvt__nt_code_at(i));
        for (size_t n = 0; n <= 300; n++)
            for (size_t to = 0; to < 64; to++)
                check_copy(to, (to * 5 + n) % 64, n);
        for (size_t n = 960; n <= LONGEST; n += n < 5000 ? 31 : 4999)
            for (size_t to = 0; to < 64; to += 7)
                check_copy(to, (to * 5 + n) % 64, n);
    }
}

static void
every_processor_has_a_usable_set(void **state)
{
    size_t i = 0;

    (void)state;
    while (kvt__nt_code_at(i + 1))
        i++;
    assert_true(kvt__nt_code_at(i)->usable());
    kvt__nt_code_use(NULL);
    check_copy(0, 0, 256); /* chooses a set */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_and_alignments_are_copied_exactly),
        cmocka_unit_test(every_processor_has_a_usable_set),
    };

    return cmocka_run_group_tests_name("gpu stream", tests, NULL, NULL);
}
