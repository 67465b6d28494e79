/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C (Castagnoli, RFC 3720 section 12.1), the checksum of all kvtier formats.  Any thread.
 * The CRC of zero bytes is 0. */
#ifndef KVT_BASE_CRC32C_H
#define KVT_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Return the CRC of a || b: crc is the CRC of a, and b is the n bytes at bytes. */
uint32_t kvt__crc32c(uint32_t crc, const void *bytes, size_t n);

/* Return the same value as kvt__crc32c(), faster for bytes that are not in this core's caches, for
 * instance after direct I/O. */
uint32_t kvt__crc32c_cold(uint32_t crc, const void *bytes, size_t n);

/* Return the CRC of a || b from the CRCs of a and b; b has b_bytes bytes. */
uint32_t kvt__crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes);

/* Arithmetic modulo the polynomial, bit-reflected as the CRC: bit 31 is x^0.  Return a * b, and
 * x^(8 * bytes).  kvt__crc32c_join() is crc_a * x^(8 * b_bytes) ^ crc_b. */
uint32_t kvt__crc32c_times(uint32_t a, uint32_t b);
uint32_t kvt__crc32c_power(uint64_t bytes);

#endif
