/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka, with what it wants included before it, and a wait for the wall clock. */
#ifndef KVT_TEST_H
#define KVT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

/* The wall clock that recency comes from ticks coarsely: wait for another time. */
static inline void
wait_for_tick(void)
{
    int64_t now = kvt__wall_ns();

    while (kvt__wall_ns() == now)
        continue;
}

#endif
