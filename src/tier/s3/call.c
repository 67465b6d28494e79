/* SPDX-License-Identifier: Apache-2.0
 *
 * From the first attempt of a call to its end. */
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

/* ----------------------------------------------------------------------- the end */

static void attempt(struct s3_call *call);

/* Calls whose turn has come, of this thread.  One that ends at once gives the next its
 * turn: in a loop, for they may be many. */
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

/* With keys that are usable now. */
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

/* -------------------------------------------------------------------- and again */

static void
fail(struct s3_call *call, int err)
{
    kvt__s3_tell(call, err);
    end(call, err);
}

/* Who cannot even be connected to will hardly be there in a second. */
static bool
had_enough(const struct s3_call *call)
{
    switch (call->http.status) {
    case -ECONNREFUSED:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -EADDRNOTAVAIL:
    case -ENOENT: /* no such name */
        return call->n_attempts >= UNREACHABLE_ATTEMPTS;
    default:
        return call->n_attempts >= MAX_ATTEMPTS;
    }
}

/* Once more, after a while; or the end with err, if that is not to be. */
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

/* False: there is none. */
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

/* Follow a redirect: a temporary redirect moves this call, any other redirect all calls.
 * Return false for a forbidden place and for a second redirect of a call. */
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
    snprintf(e->message, sizeof e->message, "%s", kvt__why()); /* says more than theirs */
    return false;
}

/* Do what the answer asks for, and ask again at once.  False: that was done before, or
 * cannot be done. */
static bool
mend(struct s3_call *call, enum s3_verdict verdict)
{
    struct s3_tier *t = call->tier;

    switch (verdict) {
    case S3_OTHER_KEYS:
        if (call->asked_keys || t->is_unsigned)
            return false;
        call->asked_keys = true; /* or who called does it */
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
    if (call->body_bytes > KVT__S3_BODY_MAX) /* not all of it into a refusal again */
        atomic_store(&t->careful, verdict != S3_GOOD);
    /* A timeout lowers the limit on stores, as SlowDown does. */
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

/* ------------------------------------------------------------------------ waiting */

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
