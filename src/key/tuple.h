/* SPDX-License-Identifier: Apache-2.0
 *
 * CPython's tuple hash, for many tuples of tokens at once.  Any thread. */
#ifndef KVT_KEY_TUPLE_H
#define KVT_KEY_TUPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CPython's constants: acc = rotate(acc + item * TUPLE_ITEM, TUPLE_ROTATION) * TUPLE_MIX. */
#define TUPLE_ITEM UINT64_C(14029467366897019727)
#define TUPLE_ROTATION 31
#define TUPLE_MIX UINT64_C(11400714785074694791)

#define TUPLES 32 /* chunks of a call of kvt__tuples_add() */

/* Mix the n tokens of each of TUPLES contiguous chunks into acc.  Return false, without a change,
 * if the processor lacks AVX-512 or n is not a multiple of 16. */
bool kvt__tuples_add(const int32_t *tokens, size_t n, uint64_t acc[TUPLES]);

#endif
