/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C: ISA-L does the bytes; joining two CRCs is multiplication by a power
 * of x modulo the polynomial, bit-reflected as the CRC itself. */
#include "base/crc32c.h"

#include <isa-l/crc.h>

/* What is asked for ahead.  The CPU's own prefetching ends with each page, and the
 * checksum alone is several times as fast as memory. */
#define AHEAD ((size_t)2048)
#define LINE 64

#define POLY UINT32_C(0x82f63b78)

uint32_t
kvt__crc32c(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    while (n) {
        int step = n > (1u << 30) ? 1 << 30 : (int)n; /* ISA-L counts in int */

        crc = ~crc32_iscsi((unsigned char *)p, step, ~crc);
        p += step;
        n -= (size_t)step;
    }
    return crc;
}

uint32_t
kvt__crc32c_cold(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    while (n) {
        size_t step = n < AHEAD ? n : AHEAD;
        size_t next = n - step < AHEAD ? n - step : AHEAD;

        for (size_t i = 0; i < next; i += LINE)
            __builtin_prefetch(p + step + i);
        crc = kvt__crc32c(crc, p, step);
        p += step;
        n -= step;
    }
    return crc;
}

/* a * b modulo the polynomial; bit 31 is x^0. */
static uint32_t
mul(uint32_t a, uint32_t b)
{
    uint32_t r = 0;

    for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
        if (a & bit)
            r ^= b;
        b = (b >> 1) ^ (b & 1 ? POLY : 0);
    }
    return r;
}

uint32_t
kvt__crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes)
{
    uint32_t power = UINT32_C(1) << 31;  /* x^0 */
    uint32_t square = UINT32_C(1) << 23; /* x^8: one byte */

    for (; b_bytes; b_bytes >>= 1) {
        if (b_bytes & 1)
            power = mul(power, square);
        square = mul(square, square);
    }
    return mul(power, crc_a) ^ crc_b;
}
