/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a request, signed with AWS Signature Version 4 (docs/s3.md, Signing).  The canonical
 * request and the head are written from the same prepared data, so the store receives exactly the
 * signed headers. */
#ifndef KVT_TIER_S3_SIGN_H
#define KVT_TIER_S3_SIGN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest scope, DATE/REGION/SERVICE/aws4_request, with the NUL. */
#define KVT__S3_SCOPE_ROOM 128

/* Keys for signatures, made by kvt__s3_keys_new() and shared by reference.  Any thread: the public
 * fields do not change. */
struct kvt__s3_keys {
    atomic_int refs;
    void *memory;       /* memory of the texts and of signing.key, from kvt__secret_alloc() */
    char *access;       /* access key id */
    char *secret;
    char *token;        /* session token; NULL: none */
    int64_t expires_s;  /* wall clock; INT64_MAX: never */
    const char *source; /* origin of the keys for messages; on the heap */

    struct {
        pthread_mutex_t lock;
        char scope[KVT__S3_SCOPE_ROOM]; /* scope of key; "": no key yet */
        uint8_t *key; /* 32 bytes */
    } signing; /* the last signing key derived from secret */
};

/* Make keys with copies of the texts, and one reference.  token: may be NULL.  NULL: out of
 * memory. */
struct kvt__s3_keys *
kvt__s3_keys_new(const char *access, const char *secret, const char *token,
                 int64_t expires_s, const char *source);
/* Add a reference.  Returns keys. */
struct kvt__s3_keys *kvt__s3_keys_ref(struct kvt__s3_keys *keys);
/* Release a reference; the last release wipes and frees the keys.  NULL is allowed. */
void kvt__s3_keys_unref(struct kvt__s3_keys *keys);

struct kvt__s3_pair {
    const char *name;  /* header names: lower case */
    const char *value; /* unencoded; "": sent as NAME=; NULL: not sent */
};

struct kvt__s3_head {
    const char *method;
    const char *host;  /* Host header: with the port, unless the port is the scheme's default */
    const char *path;  /* encoded, begins with '/' */
    const struct kvt__s3_pair *query; /* in any order; kvt__s3_write_head() encodes and sorts */
    size_t n_query;
    const struct kvt__s3_pair *headers; /* in any order, all signed; without host, x-amz-date,
                                         * x-amz-content-sha256 and tokens */
    size_t n_headers;
    const struct kvt__s3_pair *plain; /* headers after the signed headers, not signed */
    size_t n_plain;
    int64_t content_length;   /* not signed; -1: no such header */
    bool expect_continue;     /* send Expect: 100-continue; not signed */
    const char *payload_hash; /* SHA-256 of the body in hex; NULL: UNSIGNED-PAYLOAD */

    struct kvt__s3_keys *keys; /* NULL: no signature, and no x-amz- header is added */
    const char *region, *service;    /* service: s3, s3express or sts */
    bool session;    /* the keys' token is an S3 Express session token */
    int64_t time_s;  /* wall clock of the signature */
};

#define KVT__S3_MAX_HEADERS 24
#define KVT__S3_MAX_QUERY 16

/* Write the head, up to and including the empty line, and a NUL.  Return the length; -EMSGSIZE: out
 * is too small, or too many headers or parameters; -EINVAL: a text other than a query value has
 * control characters.  Errors have a sentence, which never contains a secret. */
int kvt__s3_write_head(const struct kvt__s3_head *head, char *out, size_t room);

/* Write the canonical request that kvt__s3_write_head() signs, for tests.  Return values: as for
 * kvt__s3_write_head(). */
int kvt__s3_canonical(const struct kvt__s3_head *head, char *out, size_t room);

#endif
