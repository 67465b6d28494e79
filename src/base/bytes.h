/* SPDX-License-Identifier: Apache-2.0
 *
 * Little-endian numbers in files and messages, rounding, and hexadecimal digits.  Addresses need no
 * alignment. */
#ifndef KVT_BASE_BYTES_H
#define KVT_BASE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void
kvt__put_le32(void *at, uint32_t v)
{
    v = htole32(v);
    memcpy(at, &v, sizeof v);
}

static inline void
kvt__put_le64(void *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, sizeof v);
}

static inline uint32_t
kvt__get_le32(const void *at)
{
    uint32_t v;

    memcpy(&v, at, sizeof v);
    return le32toh(v);
}

static inline uint64_t
kvt__get_le64(const void *at)
{
    uint64_t v;

    memcpy(&v, at, sizeof v);
    return le64toh(v);
}

/* Round v up to a multiple of align, a power of two.  The result must fit in 64 bits. */
static inline uint64_t
kvt__round_up(uint64_t v, uint64_t align)
{
    return (v + align - 1) & ~(align - 1);
}

/* Return the value of a hexadecimal digit of either case, in any locale; -1: c is not a digit. */
static inline int
kvt__hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
