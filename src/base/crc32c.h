/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C (Castagnoli, RFC 3720 section 12.1), the one checksum of kvtier.
 * Any thread.  The CRC of nothing is 0. */
#ifndef KVT_BASE_CRC32C_H
#define KVT_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* CRC of a || b, where crc is that of a and b is the n bytes at bytes. */
uint32_t kvt__crc32c(uint32_t crc, const void *bytes, size_t n);

/* The same for bytes that are hardly in this core's caches, as after direct I/O. */
uint32_t kvt__crc32c_cold(uint32_t crc, const void *bytes, size_t n);

/* CRC of a || b from those of a and of b, b being b_bytes long. */
uint32_t kvt__crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes);

#endif
