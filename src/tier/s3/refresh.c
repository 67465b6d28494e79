/* SPDX-License-Identifier: Apache-2.0
 *
 * The refresh of keys.  Before the present keys expire, a thread gets new keys from the chain, and
 * new sessions for S3 Express; calls use the old keys meanwhile.  Calls that wait for keys resume
 * after the refresh: one refresh serves many calls. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/thread.h"
#include "conf/conf.h"
#include "tier/s3/s3.h"

#define BASE_EARLY_S 300   /* start of a refresh before expiry, in seconds */
#define SESSION_EARLY_S 60
#define EXPIRED_S 60       /* use of keys that were already expired at receipt, in seconds */
#define SESSION_BYTES 16384

/* Set the time of the next refresh and the end of use of new keys.  Both times are before expiry;
 * short-lived keys have shorter margins.  Keys that have already expired by the server's clock are
 * used for EXPIRED_S: the server's Date may be wrong, and only the response to a request corrects
 * the clock. */
static void
plan_refresh(const struct kvt__s3_keys *keys, int64_t now, int64_t early, int64_t *refresh,
             int64_t *usable)
{
    int64_t life = keys->expires_s - now;

    if (keys->expires_s == INT64_MAX) {
        *refresh = *usable = INT64_MAX;
        return;
    }
    if (life <= 0) {
        *refresh = *usable = now + EXPIRED_S;
        return;
    }
    *refresh = keys->expires_s - (early < life / 3 ? early : life / 3);
    *usable = keys->expires_s - (KVT__S3_EXPIRY_MARGIN_S < life / 10 ? KVT__S3_EXPIRY_MARGIN_S
                                                                     : life / 10);
}

/* ------------------------------------------------------------------------ sessions */

struct session_call {
    struct s3_call call;
    char body[SESSION_BYTES];
};

static int
on_session_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct session_call *s = (struct session_call *)call;

    (void)head;
    call->http.into = (unsigned char *)s->body;
    call->http.room = sizeof s->body;
    return 0;
}

/* Read the session from the response.  A response with status 200 but without Credentials is an
 * error. */
static int
read_session(struct session_call *s, struct kvt__s3_keys **out)
{
    struct kvt__s3_xml_credentials c;
    int err = kvt__s3_read_credentials(s->body, s->call.http.received_bytes, &c);

    if (err)
        return err;
    *out = kvt__s3_keys_new(c.access, c.secret, c.token, c.expires_s,
                            "S3 Express session");
    return *out ? 0 : kvt__fail(ENOMEM, "S3 Express session");
}

/* Send CreateSession with a mode.  *stale: set to true if the store rejected base. */
static int
make_session_with_mode(struct s3_tier *t, const char *mode, struct kvt__s3_keys *base,
                       struct kvt__s3_keys **out, bool *stale)
{
    struct session_call *s = kvt__secret_alloc(sizeof *s);

    *stale = false;
    if (!s)
        return kvt__fail(ENOMEM, "S3 Express session");
    s->call = (struct s3_call){
        .tier = t, .method = "GET", .prio = KVT__PRIO_LOOKUP, .use_keys = base,
        .timeout_ns = t->read_ns, .on_head = on_session_head };
    kvt__s3_add_query(&s->call, "session", "");
    kvt__s3_add_header(&s->call, "x-amz-create-session-mode", mode);
    kvt__s3_add_encryption(&s->call);
    int err = kvt__s3_call_wait(&s->call);
    *stale = s->call.keys_rejected;
    if (!err)
        err = read_session(s, out);
    kvt__secret_free(s);
    return err;
}

/* Make a read-write session.  If the keys lack the permission to write, make a read-only
 * session. */
static int
make_session(struct s3_tier *t, struct kvt__s3_keys *base, struct kvt__s3_keys **out,
             bool *stale)
{
    int err = make_session_with_mode(t, "ReadWrite", base, out, stale);

    if (err != -EACCES || *stale)
        return err;
    err = make_session_with_mode(t, "ReadOnly", base, out, stale);
    if (!err && !t->keyring.warned_read_only) {
        t->keyring.warned_read_only = true;
        kvt__log(KVT_LOG_WARN, "S3: the keys lack permission for write sessions, so nothing "
                 "is stored. They need s3express:CreateSession with ReadWrite.");
    }
    return err;
}

/* -------------------------------------------------------------------------- refresh */

static bool
is_base_due(const struct s3_tier *t)
{
    const struct s3_keyring *k = &t->keyring;

    return !k->base || kvt__s3_now_s(t) >= k->base_refresh_s ||
           (k->is_doubted && !kvt__s3_address_of(t)->express);
}

static bool
is_session_due(const struct s3_tier *t)
{
    const struct s3_keyring *k = &t->keyring;

    return kvt__s3_address_of(t)->express &&
           (!k->session || kvt__s3_now_s(t) >= k->session_refresh_s || k->is_doubted);
}

/* Replace base with keys from the chain; the caller does not hold the lock.  0 or -errno with a
 * sentence. */
static int
refresh_base(struct s3_tier *t)
{
    struct s3_keyring *k = &t->keyring;
    struct kvt__s3_keys *base = NULL;
    int err = kvt__s3_chain_get_keys(k->chain, &base);

    if (err)
        return err;
    pthread_mutex_lock(&k->lock);
    kvt__s3_keys_unref(k->base);
    k->base = base;
    plan_refresh(base, kvt__s3_now_s(t), BASE_EARLY_S, &k->base_refresh_s, &k->base_usable_s);
    pthread_mutex_unlock(&k->lock);
    if (base->expires_s == INT64_MAX)
        kvt__log(KVT_LOG_DEBUG, "S3: the keys come from: %s", base->source);
    else
        kvt__log(KVT_LOG_DEBUG, "S3: the keys come from: %s; they expire in %lld s",
                 base->source, (long long)(base->expires_s - kvt__s3_now_s(t)));
    return 0;
}

/* Replace the session if the session is due; the caller does not hold the lock.  *stale: set to
 * true if the store rejected base.  0 or -errno with a sentence. */
static int
refresh_session(struct s3_tier *t, bool *stale)
{
    struct s3_keyring *k = &t->keyring;
    struct kvt__s3_keys *session = NULL, *base = NULL;

    *stale = false;
    pthread_mutex_lock(&k->lock);
    if (k->base && is_session_due(t))
        base = kvt__s3_keys_ref(k->base);
    pthread_mutex_unlock(&k->lock);
    if (!base)
        return 0;
    int err = make_session(t, base, &session, stale);
    kvt__s3_keys_unref(base);
    if (err)
        return err;
    pthread_mutex_lock(&k->lock);
    kvt__s3_keys_unref(k->session);
    k->session = session;
    plan_refresh(session, kvt__s3_now_s(t), SESSION_EARLY_S, &k->session_refresh_s,
                 &k->session_usable_s);
    pthread_mutex_unlock(&k->lock);
    return 0;
}

/* Refresh all due keys.  If the store rejects base during CreateSession, refresh base too: keys may
 * be replaced before they expire. */
static int
refresh_due(struct s3_tier *t, bool base_due)
{
    bool stale;
    int err = base_due ? refresh_base(t) : 0;
    int session_err = refresh_session(t, &stale);

    if (stale && !base_due) {
        err = refresh_base(t);
        session_err = err ? 0 : refresh_session(t, &stale);
    }
    return err ? err : session_err;
}

/* Note the result of a refresh, and resume all waiting calls, with keys or with the error. */
static void
finish_refresh(struct s3_tier *t, int err)
{
    struct s3_keyring *k = &t->keyring;

    pthread_mutex_lock(&k->lock);
    struct s3_call *waiting = k->waiting;
    struct kvt__s3_keys *keys = kvt__s3_keyring_usable(t);
    if (!keys && !err)
        err = kvt__fail(ENOKEY, "S3: the new keys have already expired.");
    /* Log only if no operation reports the error: while old keys remain usable, or if the tier's
     * opener does not report errors. */
    bool log = err && !k->last_err && !k->stop && (keys || !t->caller_reports);
    k->last_err = err;
    k->failed_ns = err ? kvt__now_ns() : 0;
    snprintf(k->why, sizeof k->why, "%s", err ? kvt__why() : "");
    k->waiting = NULL;
    k->refresh_wanted = k->is_doubted = false;
    if (keys)
        keys = kvt__s3_keys_ref(keys);
    pthread_mutex_unlock(&k->lock);

    if (log)
        kvt__log(KVT_LOG_ERROR, "S3: %s", k->why);
    while (waiting) {
        struct s3_call *call = waiting;

        waiting = call->next;
        if (!keys)
            kvt__set_why(k->why);
        kvt__s3_call_resume(call, keys ? kvt__s3_keys_ref(keys) : NULL,
                            keys ? 0 : err);
    }
    kvt__s3_keys_unref(keys);
}

/* Wait until a refresh is due or wanted, or the tier closes; the caller holds the lock. */
static void
wait_locked(struct s3_tier *t)
{
    struct s3_keyring *k = &t->keyring;

    while (!k->stop && !k->refresh_wanted) {
        int64_t due = k->base_refresh_s, left;

        if (kvt__s3_address_of(t)->express && k->session_refresh_s < due)
            due = k->session_refresh_s;
        left = due - kvt__s3_now_s(t);
        if (k->base && left <= 0 && kvt__now_ns() - k->failed_ns >= KVT__S3_REFRESH_DELAY_NS)
            return;
        /* The wall clock may be changed, so check the time again now and then. */
        int64_t until = kvt__now_ns() + (k->base && left <= 2 ? KVT__NS_PER_S / 2
                                                              : 30 * KVT__NS_PER_S);
        struct timespec at = kvt__timespec(until);
        pthread_cond_timedwait(&k->changed, &k->lock, &at);
    }
}

static void *
keyring_main(void *arg)
{
    struct s3_tier *t = arg;
    struct s3_keyring *k = &t->keyring;

    pthread_mutex_lock(&k->lock);
    for (;;) {
        wait_locked(t);
        if (k->stop)
            break;
        bool base_due = is_base_due(t);
        pthread_mutex_unlock(&k->lock);
        finish_refresh(t, refresh_due(t, base_due));
        pthread_mutex_lock(&k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* --------------------------------------------------------------------------- opening */

static const char *
or_null(const char *text)
{
    return text && *text ? text : NULL;
}

int
kvt__s3_keyring_open(struct s3_tier *t, const struct kvt_config *config)
{
    struct s3_keyring *k = &t->keyring;

    pthread_mutex_init(&k->lock, NULL);
    kvt__cond_init(&k->changed);
    k->is_open = true;
    if (t->is_unsigned)
        return 0;
    k->refresh_wanted = true; /* the first operation finds keys ready */
    int err = kvt__s3_open_key_client(config->environment,
                                      config->s3_connect_timeout_ms * KVT__NS_PER_MS,
                                      &k->http);
    if (err)
        return err;
    bool both = or_null(config->aws_access_key_id) &&
                or_null(config->aws_secret_access_key);
    struct kvt__s3_chain_params params = {
        .environment = config->environment, .http = k->http,
        .profile = or_null(config->s3_profile),
        .access = both ? config->aws_access_key_id : NULL,
        .secret = both ? config->aws_secret_access_key : NULL,
        .token = both ? or_null(config->aws_session_token) : NULL,
        .region = kvt__s3_address_of(t)->region, .stop = &k->stop };
    err = kvt__s3_chain_open(&params, &k->chain);
    if (!err)
        err = kvt__thread_start(&k->thread, "kvt-s3-keys", keyring_main, t);
    k->has_thread = !err;
    return err;
}

void
kvt__s3_keyring_stop(struct s3_tier *t)
{
    struct s3_keyring *k = &t->keyring;

    if (!k->is_open)
        return;
    pthread_mutex_lock(&k->lock);
    struct s3_call *waiting = k->waiting;
    k->waiting = NULL;
    atomic_store(&k->stop, true);
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    if (k->http)
        kvt__http_stop(k->http);
    while (waiting) { /* a source of keys may block for long, so do not wait for the thread */
        struct s3_call *call = waiting;

        waiting = call->next;
        kvt__s3_call_resume(call, NULL, kvt__s3_keyring_stopped());
    }
}

void
kvt__s3_keyring_close(struct s3_tier *t)
{
    struct s3_keyring *k = &t->keyring;

    if (!k->is_open)
        return;
    kvt__s3_keyring_stop(t);
    if (k->has_thread)
        pthread_join(k->thread, NULL);
    kvt__s3_chain_close(k->chain);
    kvt__http_close(k->http);
    kvt__s3_keys_unref(k->session);
    kvt__s3_keys_unref(k->base);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
}
