/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 by libcrypto's low-level functions.  OpenSSL 3 deprecates these functions because they
 * do not support engines, but they are faster than the EVP layer. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

#include <string.h>

#include <openssl/sha.h>

_Static_assert(sizeof(SHA256_CTX) <= sizeof(struct kvt__sha256),
               "the context must hold OpenSSL's");

void
kvt__sha256_init(struct kvt__sha256 *s)
{
    SHA256_Init((SHA256_CTX *)s);
}

void
kvt__sha256_add(struct kvt__sha256 *s, const void *bytes, size_t n)
{
    SHA256_Update((SHA256_CTX *)s, bytes, n);
}

void
kvt__sha256_end(struct kvt__sha256 *s, uint8_t out[KVT__SHA256_BYTES])
{
    SHA256_Final(out, (SHA256_CTX *)s);
}

uint64_t
kvt__sha256_word(const char *text)
{
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;
    uint64_t word;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, text, strlen(text));
    kvt__sha256_end(&sha, digest);
    memcpy(&word, digest, sizeof word);
    return word;
}
