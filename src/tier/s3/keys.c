/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys, shared by reference, and the signing key.  The derivation of a signing key needs four
 * HMACs, as much time as a signature.  So each set of keys caches the last signing key, which
 * changes once a day. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/secret.h"
#include "tier/s3/signing-key.h"

#define BLOCK_BYTES 64

static void
free_keys(struct kvt__s3_keys *keys)
{
    kvt__secret_free(keys->memory);
    free((char *)keys->source);
    pthread_mutex_destroy(&keys->signing.lock);
    explicit_bzero(keys, sizeof *keys);
    free(keys);
}

struct kvt__s3_keys *
kvt__s3_keys_new(const char *access, const char *secret, const char *token,
                 int64_t expires_s, const char *source)
{
    struct kvt__s3_keys *keys = calloc(1, sizeof *keys);
    size_t n_access = strlen(access) + 1, n_secret = strlen(secret) + 1;
    size_t n_token = token ? strlen(token) + 1 : 0;

    if (!keys)
        return NULL;
    atomic_init(&keys->refs, 1);
    pthread_mutex_init(&keys->signing.lock, NULL);
    keys->memory = kvt__secret_alloc(KVT__SHA256_BYTES + n_access + n_secret + n_token);
    keys->source = strdup(source);
    keys->expires_s = expires_s;
    if (!keys->memory || !keys->source) {
        free_keys(keys);
        return NULL;
    }
    keys->signing.key = keys->memory;
    keys->access = memcpy((char *)keys->memory + KVT__SHA256_BYTES, access, n_access);
    keys->secret = memcpy(keys->access + n_access, secret, n_secret);
    keys->token = token ? memcpy(keys->secret + n_secret, token, n_token) : NULL;
    return keys;
}

struct kvt__s3_keys *
kvt__s3_keys_ref(struct kvt__s3_keys *keys)
{
    atomic_fetch_add_explicit(&keys->refs, 1, memory_order_relaxed);
    return keys;
}

void
kvt__s3_keys_unref(struct kvt__s3_keys *keys)
{
    if (keys && atomic_fetch_sub_explicit(&keys->refs, 1, memory_order_acq_rel) == 1)
        free_keys(keys);
}

void
kvt__s3_hmac(const void *key, size_t key_bytes, const void *message, size_t n,
             uint8_t out[KVT__SHA256_BYTES])
{
    uint8_t pad[BLOCK_BYTES] = { 0 };
    struct kvt__sha256 s;

    if (key_bytes > sizeof pad) {
        kvt__sha256_init(&s);
        kvt__sha256_add(&s, key, key_bytes);
        kvt__sha256_end(&s, pad);
    } else {
        memcpy(pad, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36;
    kvt__sha256_init(&s);
    kvt__sha256_add(&s, pad, sizeof pad);
    kvt__sha256_add(&s, message, n);
    kvt__sha256_end(&s, out);
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    kvt__sha256_init(&s);
    kvt__sha256_add(&s, pad, sizeof pad);
    kvt__sha256_add(&s, out, KVT__SHA256_BYTES);
    kvt__sha256_end(&s, out);
    explicit_bzero(pad, sizeof pad);
    explicit_bzero(&s, sizeof s);
}

static void
derive(const char *secret, const char *const parts[4], uint8_t key[KVT__SHA256_BYTES])
{
    struct kvt__sha256 s;
    uint8_t first[BLOCK_BYTES] = "AWS4";
    size_t n = strlen(secret);

    /* The first HMAC key is "AWS4" and the secret.  HMAC replaces a key longer than a block of the
     * hash by the key's hash. */
    if (n <= sizeof first - 4) {
        memcpy(first + 4, secret, n);
        n += 4;
    } else {
        kvt__sha256_init(&s);
        kvt__sha256_add(&s, "AWS4", 4);
        kvt__sha256_add(&s, secret, n);
        kvt__sha256_end(&s, first);
        explicit_bzero(&s, sizeof s);
        n = KVT__SHA256_BYTES;
    }
    kvt__s3_hmac(first, n, parts[0], strlen(parts[0]), key);
    for (int i = 1; i < 4; i++)
        kvt__s3_hmac(key, KVT__SHA256_BYTES, parts[i], strlen(parts[i]), key);
    explicit_bzero(first, sizeof first);
}

void
kvt__s3_signing_key(struct kvt__s3_keys *keys, const char *day, const char *region,
                    const char *service, const char *scope,
                    uint8_t out[KVT__SHA256_BYTES])
{
    const char *const parts[4] = { day, region, service, "aws4_request" };
    size_t n = strlen(scope);

    assert(n < sizeof keys->signing.scope);
    pthread_mutex_lock(&keys->signing.lock);
    if (strcmp(keys->signing.scope, scope)) {
        derive(keys->secret, parts, keys->signing.key);
        memcpy(keys->signing.scope, scope, n + 1);
    }
    memcpy(out, keys->signing.key, KVT__SHA256_BYTES);
    pthread_mutex_unlock(&keys->signing.lock);
}
