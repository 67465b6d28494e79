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
#include "base/log.h"
#include "tier/s3/s3.h"
#include "tier/s3/verdict.h"

#define MAX_ATTEMPTS 20
#define UNREACHABLE_ATTEMPTS 4

/* --------------------------------------------------------------------------- end */

static void begin_attempt(struct s3_call *call);

/* Calls of this thread that have received a store slot and are ready to start.  A call that ends at
 * once passes the slot to the next call.  The loop in start_ready() starts these calls without
 * recursion, because the queue may be long. */
static _Thread_local struct {
    struct s3_call *first;
    bool busy;
} ready;

static void
start_ready(struct s3_call *call)
{
    while (call) {
        struct s3_call *next = call->next;

        call->next = ready.first;
        ready.first = call;
        call = next;
    }
    if (ready.busy)
        return;
    ready.busy = true;
    while ((call = ready.first)) {
        ready.first = call->next;
        call->has_store_slot = true;
        begin_attempt(call);
    }
    ready.busy = false;
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
    if (call->has_store_slot)
        next = kvt__s3_release_store_slot(&t->pace);
    call->has_store_slot = false;
    start_ready(next);
    if (err)
        kvt__set_why(why);
    call->on_end(call, err);
}

/* ---------------------------------------------------------------------- attempts */

static void on_attempt_done(struct kvt__http_request *http);

/* Get keys and send an attempt, or queue the call in the keyring. */
static void
begin_attempt(struct s3_call *call)
{
    if (call->tier->is_unsigned || call->use_keys) {
        call->keys = call->use_keys;
        kvt__s3_send(call, 0, on_attempt_done);
    } else {
        struct kvt__s3_keys *keys;

        kvt__s3_keys_unref(call->keys);
        call->keys = NULL;
        int err = kvt__s3_keyring_acquire(call->tier, call, &keys);
        if (err <= 0)
            kvt__s3_call_resume(call, keys, err);
    }
}

void
kvt__s3_call_resume(struct s3_call *call, struct kvt__s3_keys *keys, int err)
{
    if (err) {
        end(call, err);
        return;
    }
    call->keys = keys;
    kvt__s3_send(call, 0, on_attempt_done);
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
    if (call->is_store && !kvt__s3_acquire_store_slot(&t->pace, call))
        return;
    if (call->is_store)
        call->has_store_slot = true;
    begin_attempt(call);
}

/* ---------------------------------------------------------------------- retries */

static void
fail(struct s3_call *call, int err)
{
    kvt__s3_set_call_why(call, err);
    kvt__log(KVT_LOG_TRACE, "S3: %s", kvt__why());
    end(call, err);
}

/* Return true if the call has used all attempts.  After a failed connect fewer attempts are
 * allowed: an unreachable host rarely recovers within seconds. */
static bool
has_used_attempts(const struct s3_call *call)
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

/* Return true if the call may be retried after a delay, and set the delay. */
static bool
may_retry(struct s3_call *call, int64_t *in_ns)
{
    struct s3_tier *t = call->tier;

    return !atomic_load(&t->stopping) && !has_used_attempts(call) &&
           kvt__s3_acquire_retry(&t->pace, call, in_ns) &&
           kvt__now_ns() + *in_ns < call->deadline_ns;
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
follow_redirect(struct s3_call *call)
{
    struct kvt__s3_error *e = &call->error;
    const char *host = *e->endpoint ? e->endpoint : call->redirect_host;
    const char *region = *e->region ? e->region : call->redirect_region;
    int status = call->http.http_status;

    if (call->has_moved)
        return false;
    call->has_moved = true;
    int err = status == 302 || status == 307
        ? kvt__s3_target_visit(call->tier, call->target, host, region, &call->redirect_target)
        : kvt__s3_target_move(call->tier, call->target, host, region);
    if (!err)
        return true;
    /* More precise than the store's message. */
    snprintf(e->message, sizeof e->message, "%s", kvt__why());
    call->redirect_failed = true;
    return false;
}

/* Apply the remedy for a verdict.  Return true: the caller retries at once.  Return false: the
 * remedy was already applied, or does not exist. */
static bool
apply_remedy(struct s3_call *call, enum s3_verdict verdict)
{
    struct s3_tier *t = call->tier;

    switch (verdict) {
    case S3_NEW_KEYS:
        if (call->keys_rejected || t->is_unsigned)
            return false;
        call->keys_rejected = true; /* with use_keys, the caller refreshes the keys */
        if (call->use_keys)
            return false;
        kvt__s3_keyring_reject(t, call->keys);
        return true;
    case S3_DOUBTED_KEYS:
        if (call->keys_rejected || t->is_unsigned)
            return false;
        call->keys_rejected = call->wants_new_keys = true;
        return !call->use_keys && kvt__s3_keyring_doubt(t, call->keys);
    case S3_SET_CLOCK:
        if (call->has_set_clock || !call->date_s)
            return false;
        call->has_set_clock = true;
        atomic_store(&t->clock_s, call->date_s - (int64_t)time(NULL));
        return true;
    case S3_REDIRECT:
        return follow_redirect(call);
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

/* Log the next attempt.  why: the sentence of the failed attempt. */
static void
log_retry(enum s3_verdict verdict, int64_t in_ns, const char *why)
{
    static const char *const attempts[] = {
        [S3_RETRY] = "", [S3_SLOW_DOWN] = ", with fewer stores at a time",
        [S3_NEW_KEYS] = ", with new keys", [S3_DOUBTED_KEYS] = ", with refreshed keys",
        [S3_SET_CLOCK] = ", with the store's time",
        [S3_REDIRECT] = ", at the target of the redirect",
        [S3_NO_CONDITIONS] = ", without If-None-Match",
        [S3_NO_CHECKSUMS] = ", without checksum" };

    kvt__log(KVT_LOG_DEBUG, "S3: next attempt in %.0f ms%s; the last attempt: %s",
             (double)in_ns / 1e6, attempts[verdict], why);
}

static void
succeed(struct s3_call *call)
{
    if (kvt__log_is_enabled(KVT_LOG_TRACE))
        kvt__log(KVT_LOG_TRACE, "S3: %s %s: status %d, %zu bytes after %.1f ms", call->method,
                 call->name ? call->name : "(bucket)", call->http.http_status,
                 call->http.received_bytes + call->body_bytes,
                 (double)(kvt__now_ns() - call->http.sent_ns) / 1e6);
    end(call, 0);
}

/* Start the next attempt if the verdict of the last attempt allows an attempt; else fail. */
static void
retry_or_fail(struct s3_call *call, enum s3_verdict verdict, int err)
{
    bool is_delayed = verdict == S3_SLOW_DOWN || verdict == S3_RETRY;
    char why[512] = "";
    int64_t in_ns = 0;

    if (kvt__log_is_enabled(KVT_LOG_DEBUG)) { /* before a redirect changes the host in the sentence */
        kvt__s3_set_call_why(call, err);
        snprintf(why, sizeof why, "%s", kvt__why());
    }
    if (is_delayed ? !may_retry(call, &in_ns) : !apply_remedy(call, verdict)) {
        fail(call, err);
        return;
    }
    log_retry(verdict, in_ns, why);
    if (is_delayed)
        kvt__s3_send(call, in_ns, on_attempt_done);
    else
        begin_attempt(call);
}

static void
on_attempt_done(struct kvt__http_request *http)
{
    struct s3_call *call = kvt__s3_call_of(http);
    struct s3_tier *t = call->tier;
    int err;
    enum s3_verdict verdict = kvt__s3_judge(call, &err);

    if (http->hedged)
        kvt__s3_count(t, KVT__N_s3_hedges);
    /* After a failure, send the next large body only when the store has accepted the head. */
    if (call->body_bytes > KVT__S3_BODY_MAX)
        atomic_store(&t->expect_continue, verdict != S3_GOOD);
    /* A timeout also shows an overloaded server. */
    if (verdict == S3_SLOW_DOWN || http->status == -ETIMEDOUT)
        kvt__s3_note_overload(&t->pace);
    if (verdict == S3_GOOD || verdict == S3_FINAL)
        kvt__s3_note_success(&t->pace, call);
    if (verdict == S3_GOOD)
        succeed(call);
    else
        retry_or_fail(call, verdict, err);
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

    call->on_end = wake;
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
