/* SPDX-License-Identifier: Apache-2.0
 *
 * A fixture over fs://, with LMCache's header in each file or without. */
#ifndef KVT_FS_TEST_H
#define KVT_FS_TEST_H

#include "file-test.h"

#define FILE_NAME "org-SEP-model@1@0@-1234@bfloat16.data"

static inline int
setup_header(void **state)
{
    static struct fixture f;

    open_fixture(&f, "fs", true, FILE_NAME);
    *state = &f;
    return 0;
}

static inline int
setup_bare(void **state)
{
    static struct fixture f;

    open_fixture(&f, "fs", false, FILE_NAME);
    *state = &f;
    return 0;
}

#define HEADER(fn) cmocka_unit_test_setup_teardown(fn, setup_header, teardown)
#define BARE(fn) cmocka_unit_test_setup_teardown(fn, setup_bare, teardown)

/* Write the first n bytes that follow from seed to out. */
static inline void
fill(unsigned char *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        out[i] = byte_at(seed, i);
}

#endif
