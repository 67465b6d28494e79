/* SPDX-License-Identifier: Apache-2.0
 *
 * The derivation of a day's signing key from a secret key.  Any thread. */
#ifndef KVT_TIER_S3_SIGNING_KEY_H
#define KVT_TIER_S3_SIGNING_KEY_H

#include "base/sha256.h"
#include "tier/s3/sign.h"

/* Compute HMAC-SHA256 (RFC 2104) of n bytes of message. */
void kvt__s3_hmac(const void *key, size_t key_bytes, const void *message, size_t n,
                  uint8_t out[KVT__SHA256_BYTES]);

/* Derive the signing key, or copy the key of the last derivation if the scope is equal.  day:
 * YYYYMMDD.  scope: DAY/REGION/SERVICE/aws4_request, shorter than KVT__S3_SCOPE_ROOM.  The caller
 * wipes out. */
void kvt__s3_signing_key(struct kvt__s3_keys *keys, const char *day, const char *region,
                         const char *service, const char *scope,
                         uint8_t out[KVT__SHA256_BYTES]);

#endif
