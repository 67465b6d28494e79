/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 (FIPS 180-4), with low overhead for short inputs.  Any thread. */
#ifndef KVT_BASE_SHA256_H
#define KVT_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define KVT__SHA256_BYTES 32

/* Memory for OpenSSL's low-level context: the EVP layer costs more time than the hash of a
 * chunk's tokens. */
struct kvt__sha256 {
    uint32_t state[28];
};

void kvt__sha256_init(struct kvt__sha256 *s);
void kvt__sha256_add(struct kvt__sha256 *s, const void *bytes, size_t n);
void kvt__sha256_end(struct kvt__sha256 *s, uint8_t out[KVT__SHA256_BYTES]);

/* Return the first eight bytes of the digest of a text, in the byte order of the host. */
uint64_t kvt__sha256_word(const char *text);

#endif
