/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads of requests, signed with AWS Signature Version 4 (docs/s3.md, Signing).  What is
 * signed is what is sent: one function writes both. */
#ifndef KVT_TIER_S3_SIGN_H
#define KVT_TIER_S3_SIGN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest DATE/REGION/SERVICE/aws4_request, and its NUL. */
#define KVT__S3_SCOPE_ROOM 128

/* Keys to sign with, made by kvt__s3_keys_new().  Any thread: what a caller sees never
 * changes. */
struct kvt__s3_keys {
    atomic_int refs;
    void *memory;       /* of the texts and signing.key: kvt__secret_alloc() */
    char *access;       /* text */
    char *secret;
    char *token;        /* NULL: none */
    int64_t expires_s;  /* wall clock; INT64_MAX: never */
    const char *source; /* where they come from, for messages; on the heap */

    struct {
        pthread_mutex_t lock;
        char scope[KVT__S3_SCOPE_ROOM]; /* what key is for; "": nothing */
        uint8_t *key; /* 32 bytes */
    } signing; /* the key that was last derived from secret */
};

/* Copies of the texts; token may be NULL.  NULL: no memory. */
struct kvt__s3_keys *
kvt__s3_keys_new(const char *access, const char *secret, const char *token,
                 int64_t expires_s, const char *source);
struct kvt__s3_keys *kvt__s3_keys_ref(struct kvt__s3_keys *keys);
/* The last one wipes them.  NULL is allowed. */
void kvt__s3_keys_unref(struct kvt__s3_keys *keys);

struct kvt__s3_pair {
    const char *name;  /* of a header: in lower case */
    const char *value; /* unencoded; "" is sent as NAME=, NULL is left out */
};

struct kvt__s3_head {
    const char *method;
    const char *host;  /* as it is sent: with the port unless it is the scheme's own */
    const char *path;  /* encoded, begins with '/' */
    const struct kvt__s3_pair *query; /* in any order; encoded and sorted here */
    size_t n_query;
    const struct kvt__s3_pair *headers; /* in any order, all are signed; not host,
                                         * x-amz-date, x-amz-content-sha256, tokens */
    size_t n_headers;
    const struct kvt__s3_pair *plain; /* sent after them, not signed */
    size_t n_plain;
    int64_t content_length;   /* -1: no such header.  Not signed */
    bool expect_continue;     /* the header Expect.  Not signed */
    const char *payload_hash; /* NULL: UNSIGNED-PAYLOAD */

    struct kvt__s3_keys *keys; /* NULL: not signed, and no header x-amz- is added */
    const char *region, *service;    /* s3, s3express, sts */
    bool session;    /* the token is that of an S3 Express session */
    int64_t time_s;  /* wall clock */
};

#define KVT__S3_MAX_HEADERS 24
#define KVT__S3_MAX_QUERY 16

/* Write the whole head, to the empty line and a NUL.  Its length; -EMSGSIZE: no room, or
 * too many headers or parameters; -EINVAL: something has control characters (the values
 * of the query may); with a sentence, which has no secret. */
int kvt__s3_write_head(const struct kvt__s3_head *head, char *out, size_t room);

/* The canonical request that kvt__s3_write_head() signs, for tests and messages. */
int kvt__s3_canonical(const struct kvt__s3_head *head, char *out, size_t room);

#endif
