/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a call, from the first attempt to the end. */
#include "tier/s3/call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tier/s3/answer.h"
#include "tier/s3/s3.h"

#define MAX_ATTEMPTS 20
#define UNREACHABLE_ATTEMPTS 4

/* --------------------------------------------------------------------------- end */

static void attempt(struct s3_call *call);

/* Calls of this thread that have received a store slot and are ready to start.  A call that ends at
 * once passes the slot to the next call.  The loop in give_turns() starts these calls without
 * recursion, because the queue may be long. */
static _Thread_local struct {
    struct s3_call *first;
    bool busy;
} turns;

static void
give_turns(struct s3_call *call)
{
    while (call) {
        struct s3_call *next = call->next;

        call->next = turns.first;
        turns.first = call;
        call = next;
    }
    if (turns.busy)
        return;
    turns.busy = true;
    while ((call = turns.first)) {
        turns.first = call->next;
        call->in_turn = true;
        attempt(call);
    }
    turns.busy = false;
}

static void
end(struct s3_call *call, int err)
{
    struct s3_tier *t = call->tier;
    struct s3_call *next = NULL;
    char why[512];

    snprintf(why, sizeof why, "%s", err ? kvt__why() : "");
    free(call->error_body);
    call->error_body = NULL;
    if (!call->use_keys)
        kvt__s3_keys_unref(call->keys);
    call->keys = NULL;
    if (call->in_turn)
        next = kvt__s3_stored(&t->pace);
    call->in_turn = false;
    give_turns(next);
    if (err)
        kvt__set_why(why);
    call->ended(call, err);
}

/* ---------------------------------------------------------------------- attempts */

static void was_done(struct kvt__http_request *http);

/* Get keys and send an attempt, or queue the call in the keyring. */
static void
attempt(struct s3_call *call)
{
    if (call->tier->is_unsigned || call->use_keys) {
        call->keys = call->use_keys;
        kvt__s3_send(call, 0, was_done);
    } else {
        struct kvt__s3_keys *keys;

        kvt__s3_keys_unref(call->keys);
        call->keys = NULL;
        int err = kvt__s3_keyring_give(call->tier, call, &keys);
        if (err <= 0)
            kvt__s3_call_has_keys(call, keys, err);
    }
}

void
kvt__s3_call_has_keys(struct s3_call *call, struct kvt__s3_keys *keys, int err)
{
    if (err) {
        end(call, err);
        return;
    }
    call->keys = keys;
    kvt__s3_send(call, 0, was_done);
}

void
kvt__s3_call(struct s3_call *call)
{
    struct s3_tier *t = call->tier;

    if (atomic_load(&t->stopping)) {
        (void)kvt__fail(ECANCELED, "S3: the store is being closed.");
        end(call, -ECANCELED);
        return;
    }
    if (call->stores && !kvt__s3_may_store(&t->pace, call))
        return;
    if (call->stores)
        call->in_turn = true;
    attempt(call);
}

/* ---------------------------------------------------------------------- retries */

static void
fail(struct s3_call *call, int err)
{
    kvt__s3_tell(call, err);
    end(call, err);
}

/* Return true if the call has used all attempts.  After a failed connect fewer attempts are
 * allowed: an unreachable host rarely recovers within seconds. */
static bool
had_enough(const struct s3_call *call)
{
    switch (call->http.status) {
    case -ECONNREFUSED:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -EADDRNOTAVAIL:
    case -ENOENT: /* unknown host name */
        return call->n_attempts >= UNREACHABLE_ATTEMPTS;
    default:
        return call->n_attempts >= MAX_ATTEMPTS;
    }
}

/* Retry after a delay.  If no retry is allowed, end the call with err. */
static void
repeat(struct s3_call *call, int err)
{
    struct s3_tier *t = call->tier;
    int64_t in_ns;

    bool may = !atomic_load(&t->stopping) && !had_enough(call) &&
               kvt__s3_may_repeat(&t->pace, call, &in_ns) &&
               kvt__now_ns() + in_ns < call->deadline_ns;
    if (may)
        kvt__s3_send(call, in_ns, was_done);
    else
        fail(call, err);
}

/* Remove a header.  Return false if the call has no such header. */
static bool
drop_header(struct s3_call *call, const char *name)
{
    for (size_t i = 0; i < call->n_headers; i++) {
        if (strcmp(call->headers[i].name, name))
            continue;
        call->headers[i] = call->headers[--call->n_headers];
        return true;
    }
    return false;
}

/* Follow a redirect.  A temporary redirect moves only this call, a permanent redirect moves all
 * calls.  Return false for a forbidden target, and for the second redirect of a call. */
static bool
move(struct s3_call *call)
{
    struct kvt__s3_error *e = &call->error;
    const char *host = *e->endpoint ? e->endpoint : call->told_host;
    const char *region = *e->region ? e->region : call->told_region;
    int status = call->http.http_status;

    if (call->moved)
        return false;
    call->moved = true;
    int err = status == 302 || status == 307
        ? kvt__s3_visit(call->tier, call->where, host, region, &call->visited)
        : kvt__s3_move(call->tier, call->where, host, region);
    if (!err)
        return true;
    /* More precise than the store's message. */
    snprintf(e->message, sizeof e->message, "%s", kvt__why());
    return false;
}

/* Apply the remedy for a verdict.  Return true: the caller retries at once.  Return false: the
 * remedy was already applied, or does not exist. */
static bool
mend(struct s3_call *call, enum s3_verdict verdict)
{
    struct s3_tier *t = call->tier;

    switch (verdict) {
    case S3_OTHER_KEYS:
        if (call->asked_keys || t->is_unsigned)
            return false;
        call->asked_keys = true; /* with use_keys, the caller refreshes the keys */
        if (call->use_keys)
            return false;
        kvt__s3_keyring_reject(t, call->keys);
        return true;
    case S3_DOUBTED_KEYS:
        if (call->asked_keys || t->is_unsigned)
            return false;
        call->asked_keys = call->wants_new_keys = true;
        return !call->use_keys && kvt__s3_keyring_doubt(t, call->keys);
    case S3_OTHER_CLOCK:
        if (call->set_clock || !call->date_s)
            return false;
        call->set_clock = true;
        atomic_store(&t->clock_s, call->date_s - (int64_t)time(NULL));
        return true;
    case S3_OTHER_PLACE:
        return move(call);
    case S3_NO_CONDITIONS:
        atomic_store(&t->no_conditions, true);
        return !call->conditional && drop_header(call, "if-none-match");
    case S3_NO_CHECKSUMS:
        atomic_store(&t->no_checksums, true);
        return drop_header(call, "x-amz-checksum-crc32c");
    default:
        return false;
    }
}

static void
was_done(struct kvt__http_request *http)
{
    struct s3_call *call = kvt__s3_call_of(http);
    struct s3_tier *t = call->tier;
    int err;
    enum s3_verdict verdict = kvt__s3_judge(call, &err);

    if (http->hedged)
        kvt__s3_count(t, KVT__N_s3_hedges);
    /* After a failure, send the next large body only when the store has accepted the head. */
    if (call->body_bytes > KVT__S3_BODY_MAX)
        atomic_store(&t->careful, verdict != S3_GOOD);
    /* A timeout also shows an overloaded server. */
    if (verdict == S3_SLOW_DOWN || http->status == -ETIMEDOUT)
        kvt__s3_slow_down(&t->pace);
    if (verdict == S3_GOOD || verdict == S3_SETTLED)
        kvt__s3_went_well(&t->pace, call);
    if (verdict == S3_GOOD)
        end(call, 0);
    else if (verdict == S3_SLOW_DOWN || verdict == S3_REPEAT)
        repeat(call, err);
    else if (mend(call, verdict))
        attempt(call);
    else
        fail(call, err);
}

/* ------------------------------------------------------------ waiting for the end */

struct s3_waiter {
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool done;
    int err;
    char why[512];
};

static void
wake(struct s3_call *call, int err)
{
    struct s3_waiter *w = call->waiter;

    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->err = err;
    snprintf(w->why, sizeof w->why, "%s", err ? kvt__why() : "");
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}

int
kvt__s3_call_wait(struct s3_call *call)
{
    struct s3_waiter w = { .lock = PTHREAD_MUTEX_INITIALIZER,
                        .over = PTHREAD_COND_INITIALIZER };

    call->ended = wake;
    call->waiter = &w;
    kvt__s3_call(call);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.over, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.over);
    pthread_mutex_destroy(&w.lock);
    if (w.err)
        kvt__set_why(w.why);
    return w.err;
}
