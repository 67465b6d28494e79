/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka, after the headers that cmocka.h requires, and a wait for the wall clock. */
#ifndef KVT_TEST_H
#define KVT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

/* Wait until kvt__wall_ns(), the coarse clock of recency, returns another time. */
static inline void
wait_for_tick(void)
{
    int64_t now = kvt__wall_ns();

    while (kvt__wall_ns() == now)
        continue;
}

#endif
