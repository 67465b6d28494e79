/* SPDX-License-Identifier: Apache-2.0
 *
 * The S3 tier's own parts.  Threads: the HTTP client's, on which all operations run; one
 * for keys; one that cleans, where max_remote_size is set.  What changes after open says
 * what guards it; all locks are leaves. */
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
#define KVT__S3_RANGED ((uint64_t)64 << 20) /* larger ones are read in ranges */

/* Where requests go.  Never changed, and kept until the tier closes. */
struct s3_where {
    struct s3_where *next;
    struct kvt__s3_address address;
    struct kvt__http_origin *origin;
};

/* ------------------------------------------------------------------ keyring.c */

#define KVT__S3_LAST_S 5 /* before keys expire they are not used any more */

/* The keys to sign with, and who waits for some. */
struct s3_keyring {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool ready, has_thread, wanted;
    atomic_bool stop;
    struct kvt__http *http; /* for the chain's services; NULL: requests are unsigned */
    struct kvt__s3_chain *chain;
    struct kvt__s3_keys *base;    /* of the chain */
    struct kvt__s3_keys *session; /* of S3 Express, made with them */
    int64_t base_usable_s, session_usable_s; /* wall clock: until then */
    int64_t base_refresh_s, session_refresh_s; /* from then on better ones are asked for */
    int failed;                   /* the last time; 0: it did not */
    int64_t failed_ns;            /* when, monotonic */
    char why[1024];               /* and why */
    bool doubting;                /* keys are renewed because of a doubt */
    int64_t doubted_ns;           /* monotonic: the last doubt; 0: none so far */
    bool said_read_only;
    struct s3_call *waiting;
};

/* Give a call a reference to the keys.  0; 1: no usable keys, kvt__s3_call_has_keys() follows
 * on the thread of refresh.c, perhaps before the return; -errno with a sentence. */
int kvt__s3_keyring_give(struct s3_tier *t, struct s3_call *call, struct kvt__s3_keys **out);

/* The store does not take these any more. */
void kvt__s3_keyring_reject(struct s3_tier *t, const struct kvt__s3_keys *keys);

/* The store refused these without a reason.  Renew them, at most once a minute: other
 * calls use them meanwhile, and afterwards if no newer keys are available.  Return false if
 * they were renewed within the last minute. */
bool kvt__s3_keyring_doubt(struct s3_tier *t, const struct kvt__s3_keys *keys);

/* Return the keys to sign with, or NULL if there are no usable keys.  Under the lock. */
struct kvt__s3_keys *kvt__s3_keyring_usable(const struct s3_tier *t);

/* The error of calls that wait for keys while the tier closes: -ECANCELED with a sentence. */
int kvt__s3_keyring_stopped(void);

/* ------------------------------------------------------------------ refresh.c */

#define KVT__S3_KEYS_AGAIN_NS (2 * KVT__NS_PER_S) /* after a failure */

int kvt__s3_keyring_open(struct s3_tier *t, const struct kvt_config *config);
void kvt__s3_keyring_stop(struct s3_tier *t);
void kvt__s3_keyring_close(struct s3_tier *t);

/* ----------------------------------------------------------------- settings.c */

/* Maximum requests in flight of a process: the least of the settings that limit them. */
int64_t kvt__s3_max_requests(const struct kvt_config *config);

/* --------------------------------------------------------------------- pace.c */

/* The rate of requests.  A budget of retries, so that an outage does not multiply the load;
 * a limit on concurrent stores, lowered when the server slows down, so that stores do not
 * delay loads; the delay before a hedge (a second GET of a late response), and a token
 * bucket for hedges, so that a slow server does not get every GET twice. */
struct s3_pace {
    pthread_mutex_t lock;
    double tokens;        /* for repetitions */
    double stores_limit;  /* at a time */
    double stores_most;
    unsigned stores;      /* at a time now */
    int64_t slowed_ns;
    struct s3_call *first_waiting, **last_waiting;
    double first_byte_ns, deviation_ns; /* of answers to reads, smoothed */
    bool has_read;        /* first_byte_ns is of an answer */
    int hedge_tokens;     /* a successful read adds a token, a hedge takes many */
};

void kvt__s3_pace_init(struct s3_pace *pace, unsigned max_requests);
void kvt__s3_pace_fini(struct s3_pace *pace);

/* Whether a repetition is within the budget, and when: a time from now. */
bool kvt__s3_may_repeat(struct s3_pace *pace, const struct s3_call *call, int64_t *in_ns);

/* Whether a call that stores may go now; else it waits for kvt__s3_stored(). */
bool kvt__s3_may_store(struct s3_pace *pace, struct s3_call *call);

/* A call that stores has ended.  Returns the list of those whose turn has come. */
struct s3_call *kvt__s3_stored(struct s3_pace *pace);

/* What an answer says of the store: it is good, or asks to slow down. */
void kvt__s3_went_well(struct s3_pace *pace, const struct s3_call *call);
void kvt__s3_slow_down(struct s3_pace *pace);

/* After how long without an answer a read is to be asked for on a second connection, and
 * whether this one may. */
int64_t kvt__s3_hedge_ns(struct s3_pace *pace);
bool kvt__s3_may_hedge(struct s3_pace *pace);

/* ------------------------------------------------------------------ damaged.c */

/* Names whose objects were found damaged: they are overwritten when they are next
 * stored.  The last ones are known. */
#define KVT__S3_DAMAGED 256
struct s3_damaged {
    pthread_mutex_t lock;
    uint64_t names[KVT__S3_DAMAGED];
    unsigned next;
};

void kvt__s3_is_damaged(struct s3_damaged *d, const char *name);
/* Whether it was; it is not any more. */
bool kvt__s3_was_damaged(struct s3_damaged *d, const char *name);

/* -------------------------------------------------------------------- clean.c */

/* Keeps max_remote_size: a thread that counts what lies under our prefix, some time after
 * this process has stored something, and deletes the oldest when it is too much. */
struct s3_cleaner {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stop;
    uint64_t limit;           /* bytes; 0: none, nothing is ever counted */
    _Atomic uint64_t wrote;   /* by this process, and not counted yet */
    int64_t soonest_ns, latest_ns; /* from one count to the next, if something is stored */
    size_t most_old;          /* names in memory; what is more goes the next time */

    /* The thread's own. */
    int64_t due_ns[2];        /* monotonic: when much was stored, and when little was */
    uint64_t counted;         /* the last time */
    bool knows_conditions;    /* the store does what If-None-Match asks for */
    bool deletes_one_by_one;  /* it knows no DeleteObjects */
    int64_t said_ns;          /* when a failure was last told; 0: never */
};

int kvt__s3_cleaner_open(struct s3_tier *t, const struct kvt_config *config);
void kvt__s3_cleaner_stop(struct s3_tier *t);
void kvt__s3_cleaner_close(struct s3_tier *t);

/* An object was stored.  Any thread. */
void kvt__s3_wrote(struct s3_tier *t, uint64_t bytes);

/* ------------------------------------------------------------------ headers.c */

#define KVT__S3_EXTRA_HEADERS 8

/* A header of s3_headers. */
struct s3_header {
    struct kvt__s3_pair pair;
    bool is_signed, only_put;
};

/* Read the setting.  0 or -errno with a sentence, which has no value. */
int kvt__s3_headers_open(struct s3_tier *t, const struct kvt_config *config);
void kvt__s3_headers_close(struct s3_tier *t);

/* ----------------------------------------------------------------------- s3.c */

struct s3_tier {
    struct kvt__tier tier;
    struct kvt__counters *counters; /* or NULL */
    struct kvt__http *http;
    struct s3_where *_Atomic where; /* the bucket's place, an element of places */
    struct s3_where *places;
    pthread_mutex_t where_lock;     /* of places, and for replacing where */
    struct s3_keyring keyring;
    struct s3_pace pace;
    struct s3_damaged damaged;
    struct s3_cleaner cleaner;
    _Atomic int64_t clock_s;        /* the server's time less ours */
    atomic_bool stopping;
    atomic_bool no_conditions;      /* the store knows no If-None-Match */
    atomic_bool no_checksums;       /* nor x-amz-checksum-* */
    atomic_bool no_ranges;
    atomic_bool careful;            /* wait for 100 before the next large body */
    atomic_bool said_collision;
    int index_fd;

    /* Settings. */
    int64_t read_ns, write_ns;      /* how long an operation may take */
    uint64_t range_bytes;           /* of the ranges of a large object */
    bool is_unsigned, request_payer;
    bool tells;                     /* who opened it tells what operations answer */
    char *sse, *sse_key, *storage_class; /* or NULL */
    struct s3_header headers[KVT__S3_EXTRA_HEADERS];
    size_t n_headers;
    char *header_texts[KVT__S3_EXTRA_HEADERS]; /* headers point into these; or NULL */
};

static inline void
kvt__s3_count(const struct s3_tier *t, enum kvt__counter which)
{
    if (t->counters)
        kvt__count(t->counters, which, 1);
}

static inline const struct kvt__s3_address *
kvt__s3_place_of(const struct s3_tier *t)
{
    return &atomic_load(&t->where)->address;
}

/* Return the server's wall clock in seconds, as far as the tier knows it. */
static inline int64_t
kvt__s3_now_s(const struct s3_tier *t)
{
    return (int64_t)time(NULL) + atomic_load(&t->clock_s);
}

/* -------------------------------------------------------------------- place.c */

/* Set the bucket's place.  0 or -errno with a sentence. */
int kvt__s3_place_set(struct s3_tier *t, const struct kvt__s3_address *address);

/* Send all calls to a host or region named by a response from `was`; NULL or "": keep
 * was's host or region.  0 or -errno with a sentence. */
int kvt__s3_move(struct s3_tier *t, const struct s3_where *was, const char *host,
                 const char *region);

/* Find such a place for a single call; all other calls keep their place. */
int kvt__s3_visit(struct s3_tier *t, const struct s3_where *was, const char *host,
                  const char *region, struct s3_where **out);

void kvt__s3_places_free(struct s3_tier *t);

/* -------------------------------------------------------------------- op.c ... */

/* One operation of the tier: a call or several. */
struct s3_op {
    struct s3_call call;
    struct s3_tier *tier;
    struct kvt__tier_op *op;
    struct kvt__id id;
    bool opaque;
    bool by_key;             /* asked for by a key text, which a listing may have told:
                              * then '_' may stand for '/' */
    uint32_t crc;            /* GET: of what came so far */
    bool has_server_crc;
    uint32_t server_crc;
    unsigned n_rounds;       /* PUT: how often it was decided anew */
    struct s3_ranges *ranges; /* of a GET in ranges */
    char meta[4 * ((KVT__TRAILER_BYTES + 2) / 3) + 1];
    char checksum[12];
    char model[3 * KVT__KEY_MODEL_MAX + 1]; /* encoded */
    char name[];             /* encoded */
};

void kvt__s3_submit(struct kvt__tier *tier, struct kvt__tier_op *op);

/* The operation is over; err with its sentence in kvt__why(). */
void kvt__s3_end(struct s3_op *o, int err);

/* Add the headers of s3_sse: to a PUT, or to CreateSession in S3 Express, because a PUT of
 * S3 Express must not have these headers. */
static inline void
kvt__s3_add_encryption(struct s3_call *call)
{
    const struct s3_tier *t = call->tier;

    kvt__s3_add_header(call, "x-amz-server-side-encryption", t->sse);
    kvt__s3_add_header(call, "x-amz-server-side-encryption-aws-kms-key-id", t->sse_key);
}

/* A new call for the operation's object. */
void kvt__s3_op_call(struct s3_op *o, const char *method);

void kvt__s3_put(struct s3_op *o);
/* Read an object with one call. */
void kvt__s3_get(struct s3_op *o);
void kvt__s3_probe(struct s3_op *o);
void kvt__s3_remove(struct s3_op *o);

/* Read a large object in ranges, several at once.  Ends with kvt__s3_end() or, if the store
 * supports no ranges, with kvt__s3_get(). */
void kvt__s3_get_ranges(struct s3_op *o);

/* Look at the object without its bytes, then call then(o, err). */
void kvt__s3_look(struct s3_op *o, void (*then)(struct s3_call *call, int err));

/* Read the object's description from the response's head.  -EBADMSG for a GET: the object is
 * corrupt, because the identity is unreadable, or missing although the chunk is opaque.
 * Objects of LMCache have no identity and are never opaque. */
int kvt__s3_found(struct s3_op *o, const struct kvt__http_head *head,
                  uint64_t payload_bytes, struct kvt__found *found);

/* Note in o->op->found the number of bytes a GET wrote to the slot.  -EIO with a
 * sentence: the response announced another number. */
int kvt__s3_received(struct s3_op *o, uint64_t announced, uint64_t received);

/* Whether what was found is of another model, whose name becomes the same; said and
 * counted. */
void kvt__s3_look_for_collision(struct s3_op *o, const struct kvt__http_head *head);

/* ---------------------------------------------------------------------- name.c */

/* The key of an object in the bucket, behind all prefixes: "kvtier/" in front of opaque
 * ones.  The length or -errno with a sentence. */
int kvt__s3_name(const struct s3_tier *t, const struct kvt__object *object, char *out,
                 size_t room);

/* In front of opaque chunks: LMCache never lists there. */
#define KVT__S3_OPAQUE "kvtier/"

/* The key text that an object's key (behind all prefixes) tells.  0 or -errno: it is
 * none of ours. */
int kvt__s3_key_of(const char *name, char *out, size_t room, bool *opaque);

/* ---------------------------------------------------------------------- list.c */

/* All objects whose keys begin with our prefix and under, in pages; fn is told their keys
 * behind our prefix.  Threads that may wait. */
struct s3_walk;
typedef void (*kvt__s3_walk_fn)(void *ctx, const struct kvt__s3_listed *listed);

/* NULL: no memory, with a sentence. */
struct s3_walk *kvt__s3_walk_begin(struct s3_tier *t, const char *under,
                                   kvt__s3_walk_fn fn, void *ctx);
/* The next page.  1: there are more; 0: that was the last one; -errno with a sentence. */
int kvt__s3_walk_page(struct s3_walk *walk);
/* The store's clock at that page, in seconds; 0: not told. */
int64_t kvt__s3_walk_date(const struct s3_walk *walk);
/* NULL is allowed. */
void kvt__s3_walk_end(struct s3_walk *walk);

int kvt__s3_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn,
                 void *ctx);

#endif
