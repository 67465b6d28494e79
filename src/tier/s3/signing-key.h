/* SPDX-License-Identifier: Apache-2.0
 *
 * From a secret to the key that signs a day's requests.  Any thread. */
#ifndef KVT_TIER_S3_SIGNING_KEY_H
#define KVT_TIER_S3_SIGNING_KEY_H

#include "base/sha256.h"
#include "tier/s3/sign.h"

/* HMAC-SHA256 (RFC 2104). */
void kvt__s3_hmac(const void *key, size_t key_bytes, const void *message, size_t n,
                  uint8_t out[KVT__SHA256_BYTES]);

/* The day is YYYYMMDD; scope is the text of the three, shorter than KVT__S3_SCOPE_ROOM.
 * The caller wipes the key. */
void kvt__s3_signing_key(struct kvt__s3_keys *keys, const char *day, const char *region,
                         const char *service, const char *scope,
                         uint8_t out[KVT__SHA256_BYTES]);

#endif
