/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodings for URLs and headers: percent-encoding by the rules of SigV4, base64, hex.  Errors have
 * no sentence.  Any thread. */
#ifndef KVT_TIER_S3_ENCODE_H
#define KVT_TIER_S3_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Percent-encode n bytes, except A-Z a-z 0-9 - . _ ~ (and '/', if keep_slash), and add a NUL.
 * Return the length without the NUL, or -ENAMETOOLONG. */
int kvt__s3_encode(const char *in, size_t n, bool keep_slash, char *out, size_t room);

/* Decode n bytes of percent-encoded text in place, without adding a NUL.  Return the new length, or
 * -EINVAL: a '%' without two hex digits, or a NUL. */
int kvt__s3_decode(char *text, size_t n);

/* Write lower-case hex digits and a NUL; out has 2 * n + 1 bytes. */
void kvt__s3_hex(const uint8_t *in, size_t n, char *out);

/* Write base64 and a NUL; out has 4 * ((n + 2) / 3) + 1 bytes. */
void kvt__s3_base64(const uint8_t *in, size_t n, char *out);

/* Decode n bytes of base64.  Return the number of bytes, at most room, or -EINVAL. */
int kvt__s3_unbase64(const char *in, size_t n, uint8_t *out, size_t room);

#endif
