/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes in URLs and headers: percent-encoding as SigV4 wants it, base64, hex. */
#ifndef KVT_TIER_S3_ENCODE_H
#define KVT_TIER_S3_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Percent-encode all but A-Z a-z 0-9 - . _ ~ (and '/', if keep_slash).  The length, ended
 * by NUL, or -ENAMETOOLONG. */
int kvt__s3_encode(const char *in, size_t n, bool keep_slash, char *out, size_t room);

/* The reverse, in place, of n bytes.  The new length, or -EINVAL: a '%' without two hex
 * digits, or a NUL. */
int kvt__s3_decode(char *text, size_t n);

/* out has room for 2 n + 1. */
void kvt__s3_hex(const uint8_t *in, size_t n, char *out);

/* out has room for 4 * ((n + 2) / 3) + 1. */
void kvt__s3_base64(const uint8_t *in, size_t n, char *out);

/* The number of bytes, at most room, or -EINVAL. */
int kvt__s3_unbase64(const char *in, size_t n, uint8_t *out, size_t room);

#endif
