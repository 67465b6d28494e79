/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: one request to the S3 API, with all retries.  A call is retried until the response is
 * final or the deadline has passed.  call.c decides on retries, delays, keys and redirects.
 *
 * Functions do not block, except kvt__s3_call_wait().  Callbacks run on threads of the HTTP client
 * or of the keyring, or inside kvt__s3_call(); callbacks must not block. */
#ifndef KVT_TIER_S3_CALL_H
#define KVT_TIER_S3_CALL_H

#include "http/http.h"
#include "tier/s3/sign.h"
#include "tier/s3/xml.h"

struct s3_tier;
struct s3_target;

#define KVT__S3_CALL_HEADERS 14
#define KVT__S3_CALL_QUERY 6

struct s3_call {
    struct kvt__http_request http; /* first member: kvt__s3_call_of() casts */
    struct s3_tier *tier;

    /* Set by the caller.  Memory behind these fields must stay valid until `on_end` is called. */
    const char *method;
    const char *name;       /* object's key, encoded, without the prefix; NULL: the bucket */
    struct kvt__s3_pair query[KVT__S3_CALL_QUERY];
    size_t n_query;
    struct kvt__s3_pair headers[KVT__S3_CALL_HEADERS];
    size_t n_headers;
    const void *body;
    size_t body_bytes;
    enum kvt__prio prio;
    /* Maximum duration, from the first attempt.  The wait for a store slot or for keys before the
     * first attempt does not count. */
    int64_t timeout_ns;
    bool can_hedge;         /* the call may send the request twice if the response is late */
    bool is_store;          /* the call needs a store slot (struct s3_pace) */
    bool conditional;       /* if the store does not implement If-None-Match, the call fails; false:
                             * the call retries without If-None-Match */
    struct kvt__s3_keys *use_keys; /* borrowed; NULL: the keyring's keys */
    /* Called with the head of a successful response (kvt__s3_is_good()).  To receive the body, set
     * http.into and http.room; otherwise the body is discarded.  Return 0, or -errno with a
     * sentence, which ends the call.  NULL: discard the body. */
    int (*on_head)(struct s3_call *call, const struct kvt__http_head *head);
    /* n bytes were written to http.into + at.  NULL: not needed. */
    void (*on_received)(struct s3_call *call, size_t at, size_t n);
    /* Called once, at the end of the call; the caller may free the call.  err: 0; -ENOENT: the
     * object does not exist; -EEXIST: If-None-Match found an object; -EACCES, -EIO ...; with the
     * sentence in kvt__why(). */
    void (*on_end)(struct s3_call *call, int err);

    /* Error document of the last response. */
    struct kvt__s3_error error;

    /* Internal to call.c and attempt.c. */
    struct s3_target *target;
    struct s3_target *redirect_target; /* target of a temporary redirect; or NULL */
    struct kvt__s3_keys *keys;
    struct s3_call *next;   /* next in a list of waiting calls */
    int64_t deadline_ns;
    unsigned n_attempts;
    /* Remedies already applied; each is applied once. */
    bool keys_rejected, has_moved, has_set_clock;
    bool redirect_failed;   /* error.message is this tier's, not the store's */
    bool wants_new_keys;    /* wait for refreshed keys; do not use the current keys */
    bool has_store_slot;    /* the call has acquired a store slot */
    int head_err;           /* error of on_head(); 0: none */
    int64_t retry_after_ns;
    int64_t date_s;         /* Date of the last response; 0: no Date */
    char request_id[64];
    char redirect_region[64]; /* x-amz-bucket-region of a redirect */
    char redirect_host[288]; /* Location of a redirect, cut after scheme, host and port */
    char *error_body;
    struct s3_waiter *waiter;
};

/* Maximum bytes of an error document; a longer document is not read. */
#define KVT__S3_BODY_MAX 16384

/* Start the call.  on_end may run before the return. */
void kvt__s3_call(struct s3_call *call);

/* Start the call and wait for the end.  `on_end` is overwritten.  Must not run on a thread of the
 * HTTP client.  Return the err that `on_end` would receive, with the sentence in kvt__why(). */
int kvt__s3_call_wait(struct s3_call *call);

/* Send one attempt, in_ns nanoseconds from now.  on_done runs on a thread of the HTTP client; call
 * then contains the response, which kvt__s3_judge() has not judged yet. */
void kvt__s3_send(struct s3_call *call, int64_t in_ns,
                  void (*on_done)(struct kvt__http_request *http));

/* Resume a call that waited for keys.  keys: a reference, passed to the call.  err: 0, or -errno
 * with the sentence in kvt__why(): the keyring has no keys, and the call ends. */
void kvt__s3_call_resume(struct s3_call *call, struct kvt__s3_keys *keys, int err);

static inline struct s3_call *
kvt__s3_call_of(struct kvt__http_request *http)
{
    return (struct s3_call *)http;
}

static inline void
kvt__s3_add_header(struct s3_call *call, const char *name, const char *value)
{
    if (value && *value)
        call->headers[call->n_headers++] = (struct kvt__s3_pair){ name, value };
}

static inline void
kvt__s3_add_query(struct s3_call *call, const char *name, const char *value)
{
    call->query[call->n_query++] = (struct kvt__s3_pair){ name, value };
}

#endif
