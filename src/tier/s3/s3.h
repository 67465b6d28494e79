/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal declarations of the S3 tier.
 *
 * Threads: operations run on the threads of the HTTP client.  One thread refreshes the keys.  If
 * max_remote_size is set, one thread deletes old objects.  A field that changes after open is
 * atomic, or a comment names the lock of the field.  No lock is held while another lock is
 * acquired. */
#ifndef KVT_TIER_S3_S3_H
#define KVT_TIER_S3_S3_H

#include <pthread.h>
#include <time.h>

#include "tier/s3/address.h"
#include "tier/s3/call.h"
#include "tier/s3/credentials.h"
#include "tier/tier.h"
#include "tier/trailer.h"

#define KVT__S3_META "x-amz-meta-kvtier"
#define KVT__S3_META_MODEL "x-amz-meta-kvtier-model"
#define KVT__S3_KEY_MAX 1024 /* bytes of an object's key */
#define KVT__S3_NAME_ROOM (3 * KVT__S3_KEY_MAX + 1)
#define KVT__S3_RANGES_ABOVE ((uint64_t)64 << 20) /* a GET above this size uses ranges */

/* A target of requests.  Never changed after creation; freed when the tier closes. */
struct s3_target {
    struct s3_target *next;
    struct kvt__s3_address address;
    struct kvt__http_origin *origin;
};

/* ------------------------------------------------------------------ keyring.c */

#define KVT__S3_EXPIRY_MARGIN_S 5 /* seconds before expiry, in which keys are no longer used */

/* The keys for signatures, and the calls that wait for keys.  lock guards refresh_wanted, base and
 * all fields after base, except warned_read_only, which only the refresh thread uses.  Only the
 * refresh thread replaces keys. */
struct s3_keyring {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool is_open, has_thread;
    bool refresh_wanted;          /* the refresh thread must request new keys now */
    atomic_bool stop;
    struct kvt__http *http; /* client for the chain's services; NULL: requests are unsigned */
    struct kvt__s3_chain *chain;
    struct kvt__s3_keys *base;    /* keys from the chain */
    struct kvt__s3_keys *session; /* S3 Express session, made with base */
    int64_t base_usable_s, session_usable_s; /* end of use; wall clock */
    int64_t base_refresh_s, session_refresh_s; /* time of the next refresh; wall clock */
    int last_err;                 /* -errno of the last refresh; 0: success */
    int64_t failed_ns;            /* time of that failure; monotonic */
    char why[1024];               /* message of that failure */
    bool is_doubted;              /* a refresh was requested by kvt__s3_keyring_doubt() */
    int64_t doubted_ns;           /* time of the last doubt, monotonic; 0: none so far */
    bool warned_read_only;
    struct s3_call *waiting;      /* calls that wait for keys, linked by next */
};

/* Set *out to a reference to the current keys; the call releases the reference.  Return
 * 0; 1: no usable keys: the call is queued, and kvt__s3_call_resume() follows on the thread of
 * refresh.c, possibly before this function returns; -errno with a sentence. */
int kvt__s3_keyring_acquire(struct s3_tier *t, struct s3_call *call, struct kvt__s3_keys **out);

/* Stop use of keys that the store has rejected.  The next call that asks for keys starts a
 * refresh. */
void kvt__s3_keyring_reject(struct s3_tier *t, const struct kvt__s3_keys *keys);

/* Request a refresh of keys that the store has rejected without a reason, at most once a minute.
 * Other calls use the old keys during the refresh, and after a failed refresh.  Return false if the
 * last such refresh was requested less than a minute ago: the caller must not retry. */
bool kvt__s3_keyring_doubt(struct s3_tier *t, const struct kvt__s3_keys *keys);

/* Return the keys for signatures (the session for S3 Express), or NULL if no keys are usable.  The
 * caller holds the lock, and adds a reference to keep the keys. */
struct kvt__s3_keys *kvt__s3_keyring_usable(const struct s3_tier *t);

/* Return -ECANCELED, with the sentence for calls that wait for keys while the tier closes. */
int kvt__s3_keyring_stopped(void);

/* ------------------------------------------------------------------ refresh.c */

/* Minimum delay between a failed refresh and the next refresh. */
#define KVT__S3_REFRESH_DELAY_NS (2 * KVT__NS_PER_S)

/* Start the refresh thread, unless requests are unsigned.  0 or -errno with a sentence; after an
 * error the caller still calls close. */
int kvt__s3_keyring_open(struct s3_tier *t, const struct kvt_config *config);
/* End all waiting calls with -ECANCELED and stop the refresh thread, without waiting for the
 * thread. */
void kvt__s3_keyring_stop(struct s3_tier *t);
/* Stop, join the thread, and free the keys.  Allowed on a keyring that was never opened. */
void kvt__s3_keyring_close(struct s3_tier *t);

/* ----------------------------------------------------------------- settings.c */

/* Return the maximum number of requests in flight of a process: the smallest of the settings that
 * limit this number, or 64 if all are unset. */
int64_t kvt__s3_max_requests(const struct kvt_config *config);

/* --------------------------------------------------------------------- pace.c */

/* The pace, the limits on the rate of requests; lock guards all other fields.
 *
 *   retries  a budget, so that an outage does not multiply the load
 *   stores   a limit on concurrent stores, lowered when the server slows down, so that stores do
 *            not delay loads; a store slot is one of these stores
 *   hedges   the delay before a hedge (a second GET after a late response), and a token bucket, so
 *            that a slow server does not receive every GET twice */
struct s3_pace {
    pthread_mutex_t lock;
    double retry_tokens;  /* budget of retries */
    double stores_limit;  /* limit on concurrent stores */
    double max_stores_limit;
    unsigned n_stores;    /* concurrent stores now */
    int64_t reduced_ns;   /* monotonic time of the last reduction of stores_limit */
    struct s3_call *first_waiting, **last_waiting; /* calls that wait for a store slot */
    double first_byte_ns, deviation_ns; /* smoothed time to first byte of reads */
    bool has_read;        /* first_byte_ns was measured; before: a default */
    int hedge_tokens;     /* a successful read adds a token, a hedge takes READS_PER_HEDGE */
};

/* max_requests: initial and maximum limit on concurrent stores. */
void kvt__s3_pace_init(struct s3_pace *pace, unsigned max_requests);
void kvt__s3_pace_fini(struct s3_pace *pace);

/* Take a retry from the budget.  Return false if the budget is used up.  *in_ns: the delay before
 * the retry. */
bool kvt__s3_acquire_retry(struct s3_pace *pace, const struct s3_call *call, int64_t *in_ns);

/* Acquire a store slot for the call.  Return false if all slots are in use: the call is queued, and
 * a later kvt__s3_release_store_slot() returns the call. */
bool kvt__s3_acquire_store_slot(struct s3_pace *pace, struct s3_call *call);

/* Release the slot of a store that has ended.  Return the queued calls that receive a slot, as a
 * list linked by next; the caller starts each call. */
struct s3_call *kvt__s3_release_store_slot(struct s3_pace *pace);

/* Note a successful response: add to the budget of retries and to the limit on stores, and measure
 * the time to first byte. */
void kvt__s3_note_success(struct s3_pace *pace, const struct s3_call *call);
/* Note an overloaded server: halve the limit on stores. */
void kvt__s3_note_overload(struct s3_pace *pace);

/* Return the delay without a response after which a read is sent on a second connection. */
int64_t kvt__s3_hedge_ns(struct s3_pace *pace);
/* Take a hedge from the token bucket.  Return false if the bucket has too few tokens. */
bool kvt__s3_acquire_hedge(struct s3_pace *pace);

/* ------------------------------------------------------------------ corrupt.c */

/* Hashes of the names of corrupt objects.  The next PUT of a listed name overwrites the object.  A
 * ring: a new name replaces the oldest name. */
#define KVT__S3_CORRUPT 256
struct s3_corrupt {
    pthread_mutex_t lock;
    uint64_t names[KVT__S3_CORRUPT];
    unsigned next;
};

/* Add the name of a corrupt object. */
void kvt__s3_corrupt_add(struct s3_corrupt *d, const char *name);
/* Remove a name.  Return true if the name was listed. */
bool kvt__s3_corrupt_remove(struct s3_corrupt *d, const char *name);

/* -------------------------------------------------------------------- clean.c */

/* The enforcement of max_remote_size.  After this process has stored objects, a thread adds up the
 * sizes of all objects under the prefix, and deletes the oldest objects if the sum exceeds the
 * limit.  lock guards stop. */
struct s3_cleaner {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stop;
    uint64_t limit;           /* max_remote_size in bytes; 0: no limit and no thread */
    _Atomic uint64_t stored_bytes; /* bytes that this process has stored since the last round */
    /* Time between rounds, after many and after few stored bytes. */
    int64_t short_interval_ns, long_interval_ns;
    size_t max_victims;       /* maximum number of objects chosen per round */

    /* Only used by the thread. */
    int64_t due_ns[2]; /* monotonic times of the next round: [0] many, [1] few bytes were stored */
    uint64_t last_total;      /* sum of all sizes in the last round */
    bool has_verified_conditions; /* a test has proved that the store obeys If-None-Match */
    bool no_delete_objects;   /* the store does not implement DeleteObjects */
    int64_t warned_ns;        /* time of the last warning, monotonic; 0: none so far */
};

/* Start the thread if max_remote_size is set.  0 or -errno with a sentence. */
int kvt__s3_cleaner_open(struct s3_tier *t, const struct kvt_config *config);
/* Ask the thread to end, without waiting for the thread. */
void kvt__s3_cleaner_stop(struct s3_tier *t);
/* Stop and join the thread. */
void kvt__s3_cleaner_close(struct s3_tier *t);

/* Note that this process has stored an object of `bytes` bytes.  Any thread. */
void kvt__s3_note_stored(struct s3_tier *t, uint64_t bytes);

/* ------------------------------------------------------------------ headers.c */

#define KVT__S3_EXTRA_HEADERS 8

/* A header from the setting s3_headers.  only_put: sent with PUT requests only. */
struct s3_header {
    struct kvt__s3_pair pair;
    bool is_signed, only_put;
};

/* Read the setting s3_headers.  0 or -errno with a sentence, which never contains a header's
 * value. */
int kvt__s3_headers_open(struct s3_tier *t, const struct kvt_config *config);
/* Free the texts of the headers. */
void kvt__s3_headers_close(struct s3_tier *t);

/* ----------------------------------------------------------------------- s3.c */

struct s3_tier {
    struct kvt__tier tier;
    struct kvt__counters *counters; /* NULL: nothing is counted */
    struct kvt__http *http;
    struct s3_target *_Atomic target; /* current target of requests, an element of targets */
    struct s3_target *targets;
    pthread_mutex_t targets_lock;   /* guards targets, and changes of target */
    struct s3_keyring keyring;
    struct s3_pace pace;
    struct s3_corrupt corrupt;
    struct s3_cleaner cleaner;
    _Atomic int64_t clock_s;        /* the server's wall clock minus this host's */
    atomic_bool stopping;
    atomic_bool no_conditions;      /* the store does not implement If-None-Match */
    atomic_bool no_checksums;       /* the store does not implement x-amz-checksum-* */
    atomic_bool no_ranges;
    atomic_bool expect_continue;    /* the next large PUT waits for 100 Continue */
    atomic_bool warned_collision;
    int index_fd;
    char *index_of; /* the text that identifies the index: configured host, bucket and prefix */

    /* Settings. */
    int64_t read_ns, write_ns;      /* maximum duration of an operation */
    uint64_t range_bytes;           /* size of the ranges of a large object */
    bool is_unsigned, request_payer;
    bool caller_reports;            /* the opener of the tier reports the results of operations */
    char *sse, *sse_key, *storage_class; /* NULL: unset */
    struct s3_header headers[KVT__S3_EXTRA_HEADERS];
    size_t n_headers;
    char *header_texts[KVT__S3_EXTRA_HEADERS]; /* text of the pairs in headers; NULL: unused */
};

static inline void
kvt__s3_count(const struct s3_tier *t, enum kvt__counter which)
{
    if (t->counters)
        kvt__count(t->counters, which, 1);
}

static inline const struct kvt__s3_address *
kvt__s3_address_of(const struct s3_tier *t)
{
    return &atomic_load(&t->target)->address;
}

/* Return the server's wall clock in seconds: this host's clock, corrected by the Date of a response
 * that reported a large difference. */
static inline int64_t
kvt__s3_now_s(const struct s3_tier *t)
{
    return (int64_t)time(NULL) + atomic_load(&t->clock_s);
}

/* ------------------------------------------------------------------ targets.c */

/* Set the bucket's first target.  0 or -errno with a sentence.  Only before the first request. */
int kvt__s3_target_set(struct s3_tier *t, const struct kvt__s3_address *address);

/* After a redirect, change the target of all later calls.  was: the target that sent the
 * redirect; host, region: from the redirect; NULL or "": as in `was`.  If another call has
 * already changed the target, do nothing.  0 or -errno with a sentence.  Any thread. */
int kvt__s3_target_move(struct s3_tier *t, const struct s3_target *was, const char *host,
                        const char *region);

/* Find or add the target of a redirect for a single call, in *out; other calls keep their target.
 * Parameters, errors and threads: as for kvt__s3_target_move(). */
int kvt__s3_target_visit(struct s3_tier *t, const struct s3_target *was, const char *host,
                         const char *region, struct s3_target **out);

#define KVT__S3_TARGET_TEXT 1024

/* Write a description of a target, a part of a sentence, for messages. */
void kvt__s3_target_text(const struct s3_target *target, char out[KVT__S3_TARGET_TEXT]);

/* Free all targets.  The caller has closed the HTTP client. */
void kvt__s3_targets_free(struct s3_tier *t);

/* -------------------------------------------------------------------- op.c ... */

/* One operation of the tier, made of one or several calls.  On the heap; kvt__s3_op_end() frees the
 * operation. */
struct s3_op {
    struct s3_call call;
    struct s3_tier *tier;
    struct kvt__tier_op *op;
    struct kvt__id id;
    bool opaque;
    /* true: the caller named the object by key text.  A listing writes '_' for '/' in key text, so
     * the model in the text may differ from the stored model. */
    bool by_key;
    uint32_t crc;            /* GET: CRC32C of the bytes received so far */
    bool has_server_crc;
    uint32_t server_crc;
    unsigned n_rounds;       /* number of PUT requests so far */
    struct s3_ranges *ranges; /* state of a GET in ranges; else NULL */
    char meta[4 * ((KVT__TRAILER_BYTES + 2) / 3) + 1];
    char checksum[12];
    char model[3 * KVT__KEY_MODEL_MAX + 1]; /* encoded; "": no model */
    char name[];             /* encoded, without the prefix */
};

/* Implement kvt__tier_ops.submit. */
void kvt__s3_submit(struct kvt__tier *tier, struct kvt__tier_op *op);

/* End and free the operation.  err: 0, or -errno with the sentence in kvt__why(). */
void kvt__s3_op_end(struct s3_op *o, int err);

/* Add the headers of s3_sse to a call: to a PUT, or in S3 Express to CreateSession, because a PUT
 * to S3 Express must not have these headers. */
static inline void
kvt__s3_add_encryption(struct s3_call *call)
{
    const struct s3_tier *t = call->tier;

    kvt__s3_add_header(call, "x-amz-server-side-encryption", t->sse);
    kvt__s3_add_header(call, "x-amz-server-side-encryption-aws-kms-key-id", t->sse_key);
}

/* Initialize o->call for a request of this method to the operation's object. */
void kvt__s3_op_call(struct s3_op *o, const char *method);

/* Start an operation.  Each operation ends with kvt__s3_op_end(), possibly before the return. */
void kvt__s3_put(struct s3_op *o);
/* Read the whole object with one GET. */
void kvt__s3_get(struct s3_op *o);
void kvt__s3_probe(struct s3_op *o);
void kvt__s3_remove(struct s3_op *o);

/* Read a large object with several concurrent GETs of ranges.  If the store supports no ranges,
 * continue with kvt__s3_get(). */
void kvt__s3_get_ranges(struct s3_op *o);

/* Send a HEAD of the object; the description is in o->op->found when on_end(call, err) runs.  An
 * archived object: -ENOENT. */
void kvt__s3_head_object(struct s3_op *o, void (*on_end)(struct s3_call *call, int err));

/* Read the object's description from the head of a response into *found, and the server's checksum
 * into o.  Return 0, or -EBADMSG with a sentence, for a GET only: the stored identity is
 * unreadable, or is missing from an opaque chunk.  An object of LMCache has no identity and is
 * never opaque. */
int kvt__s3_read_description(struct s3_op *o, const struct kvt__http_head *head,
                             uint64_t payload_bytes, struct kvt__found *found);

/* Set the sizes in o->op->found to the number of bytes that a GET wrote to the slot.  0, or -EIO
 * with a sentence: the response announced another number. */
int kvt__s3_set_received(struct s3_op *o, uint64_t announced, uint64_t received);

/* Compare the model in the response with the operation's model.  If another model's chunk has the
 * object's name, count the collision, and log the first collision of the tier. */
void kvt__s3_check_collision(struct s3_op *o, const struct kvt__http_head *head);

/* ---------------------------------------------------------------------- name.c */

/* Write the object's key in the bucket, without the prefix, unencoded; the key of an opaque chunk
 * begins with "kvtier/".  Return the length, or -errno with a sentence: the key is too long or not
 * allowed. */
int kvt__s3_name(const struct s3_tier *t, const struct kvt__object *object, char *out,
                 size_t room);

/* Start of the keys of opaque chunks; LMCache never lists here. */
#define KVT__S3_OPAQUE_PREFIX "kvtier/"

/* Convert an object's key (without the prefix) to key text.  0, or -EINVAL: the object is not a
 * chunk. */
int kvt__s3_key_from_name(const char *name, char *out, size_t room, bool *opaque);

/* ---------------------------------------------------------------------- list.c */

/* A listing of all objects with keys that begin with the tier's prefix and `under`, page by page.
 * fn receives each key without the tier's prefix.  The calls block. */
struct s3_walk;
typedef void (*kvt__s3_walk_fn)(void *ctx, const struct kvt__s3_listed *listed);

/* Allocate a listing, without a request.  NULL: out of memory, with a sentence. */
struct s3_walk *kvt__s3_walk_begin(struct s3_tier *t, const char *under,
                                   kvt__s3_walk_fn fn, void *ctx);
/* Request the next page and call fn for each object.  Return 1: more pages follow; 0: this was the
 * last page; -errno with a sentence. */
int kvt__s3_walk_page(struct s3_walk *walk);
/* Return the Date of the last page's response, in seconds of wall clock; 0: no Date. */
int64_t kvt__s3_walk_date(const struct s3_walk *walk);
/* Free the listing.  NULL is allowed. */
void kvt__s3_walk_end(struct s3_walk *walk);

/* Implement kvt__tier_ops.list. */
int kvt__s3_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn,
                 void *ctx);

/* --------------------------------------------------------------------- check.c */

/* Implement kvt__tier_ops.check: open the tier, send each kind of request that an engine sends, and
 * close the tier.  Writes an object and deletes the object. */
void kvt__s3_check(const struct kvt__tier_ops *ops, const struct kvt__tier_params *params,
                   const struct kvt__reporter *to);

#endif
