/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads of requests, signed with AWS Signature Version 4 (docs/s3.md, Signing).  What is
 * signed is what is sent: one function writes both. */
#ifndef KVT_TIER_S3_SIGN_H
#define KVT_TIER_S3_SIGN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keys to sign with.  Never changed once they are shared; any thread. */
struct kvt__s3_keys {
    atomic_int refs;
    char *access;       /* text, on the heap */
    char *secret;
    char *token;        /* NULL: none */
    int64_t expires_s;  /* wall clock; INT64_MAX: never */
    const char *source; /* where they come from, for messages */
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
    const char *value; /* unencoded; NULL: leave it out */
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
    int64_t content_length;   /* -1: no such header.  Not signed */
    bool expect_continue;     /* the header Expect.  Not signed */
    const char *payload_hash; /* NULL: UNSIGNED-PAYLOAD */

    const struct kvt__s3_keys *keys; /* NULL: not signed */
    const char *region, *service;    /* s3, s3express, sts */
    bool session;    /* the token is that of an S3 Express session */
    int64_t time_s;  /* wall clock */
};

#define KVT__S3_MAX_HEADERS 24
#define KVT__S3_MAX_QUERY 16

/* Write the whole head, to the empty line.  Its length; -EMSGSIZE: no room or too many
 * headers; -EINVAL: a value has control characters; with a sentence, which has no
 * secret. */
int kvt__s3_write_head(const struct kvt__s3_head *head, char *out, size_t room);

/* The canonical request that kvt__s3_write_head() signs, for tests and messages. */
int kvt__s3_canonical(const struct kvt__s3_head *head, char *out, size_t room);

#endif
