/* SPDX-License-Identifier: Apache-2.0
 *
 * What cmocka.h wants included before it. */
#ifndef KVT_TEST_H
#define KVT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
