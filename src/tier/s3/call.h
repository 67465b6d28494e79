/* SPDX-License-Identifier: Apache-2.0
 *
 * One request to the S3 API, repeated until it is answered for good or its time is over:
 * what may be tried again, when, with which keys and at which host is decided here.
 * Nothing blocks; what a call is told happens on threads of the HTTP client or of the
 * keyring. */
#ifndef KVT_TIER_S3_CALL_H
#define KVT_TIER_S3_CALL_H

#include "http/http.h"
#include "tier/s3/sign.h"
#include "tier/s3/xml.h"

struct s3_tier;
struct s3_where;

#define KVT__S3_CALL_HEADERS 14
#define KVT__S3_CALL_QUERY 6

struct s3_call {
    struct kvt__http_request http; /* first: the client knows nothing else */
    struct s3_tier *tier;

    /* What the caller fills in and keeps until ended is called. */
    const char *method;
    const char *name;       /* of the object, encoded, behind all prefixes; NULL: the bucket
                             * is meant */
    struct kvt__s3_pair query[KVT__S3_CALL_QUERY];
    size_t n_query;
    struct kvt__s3_pair headers[KVT__S3_CALL_HEADERS];
    size_t n_headers;
    const void *body;
    size_t body_bytes;
    enum kvt__prio prio;
    int64_t within_ns;      /* it ends, from when its turn has come */
    bool hedged;            /* may be sent twice when the answer is late */
    bool stores;            /* waits its turn behind loads when the store is slow */
    bool conditional;       /* is not sent without its If-None-Match */
    struct kvt__s3_keys *use_keys; /* in place of the keyring's; NULL: those */
    /* The head of a good answer (kvt__s3_is_good()).  Sets http.into and http.room, unless nothing of
     * its body is wanted.  Not 0: it ends with that.  NULL: nothing of it is wanted. */
    int (*good)(struct s3_call *call, const struct kvt__http_head *head);
    void (*received)(struct s3_call *call, size_t at, size_t n); /* or NULL */
    /* Called once.  err: 0; -ENOENT: no such object; -EEXIST: If-None-Match found one;
     * -EACCES, -EIO, ...; its sentence is kvt__why(). */
    void (*ended)(struct s3_call *call, int err);

    /* The last answer, for who wants to know more. */
    struct kvt__s3_error error;

    /* The call's own. */
    struct s3_where *where;
    struct s3_where *visited; /* where a temporary redirect sent this call; or NULL */
    struct kvt__s3_keys *keys;
    struct s3_call *next;   /* in a list of those that wait */
    int64_t deadline_ns;
    unsigned n_attempts;
    bool asked_keys, moved, set_clock; /* were tried, once each */
    bool wants_new_keys;    /* the keyring's next keys, not those that it has now */
    bool in_turn;           /* counted by the pace of stores */
    int refused;            /* by good() */
    int64_t retry_after_ns;
    int64_t date_s;         /* of the server; 0: not told */
    char request_id[64];
    char told_region[64];   /* x-amz-bucket-region */
    char told_host[288];    /* of Location: scheme, host and port fit */
    char *error_body;
    struct s3_waiter *waiter;
};

#define KVT__S3_BODY_MAX 16384 /* of an error; more is not read */

/* Send it. */
void kvt__s3_call(struct s3_call *call);

/* Send it and wait; ended is not called.  Not on a thread of the client.  As ended's
 * err. */
int kvt__s3_call_wait(struct s3_call *call);

/* One attempt, at a time from now, which ends with done: then what was answered stands in
 * the call, and nobody has judged it yet. */
void kvt__s3_send(struct s3_call *call, int64_t in_ns,
                  void (*done)(struct kvt__http_request *http));

/* Go on with what waited for keys.  err: there are none, its sentence is kvt__why(). */
void kvt__s3_call_has_keys(struct s3_call *call, struct kvt__s3_keys *keys, int err);

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
