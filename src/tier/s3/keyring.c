/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys for signatures.  A call gets the current keys here, or is queued until the thread of
 * refresh.c has new keys. */
#include <errno.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

#define DOUBT_NS (60 * KVT__NS_PER_S) /* minimum time between two refreshes because of a doubt */

struct kvt__s3_keys *
kvt__s3_keyring_usable(const struct s3_tier *t)
{
    const struct s3_keyring *k = &t->keyring;

    if (kvt__s3_address_of(t)->express)
        return k->session && kvt__s3_now_s(t) < k->session_usable_s ? k->session : NULL;
    return k->base && kvt__s3_now_s(t) < k->base_usable_s ? k->base : NULL;
}

int
kvt__s3_keyring_stopped(void)
{
    return kvt__fail(ECANCELED, "S3: the store is being closed.");
}

int
kvt__s3_keyring_acquire(struct s3_tier *t, struct s3_call *call, struct kvt__s3_keys **out)
{
    struct s3_keyring *k = &t->keyring;
    int err = 0;

    pthread_mutex_lock(&k->lock);
    struct kvt__s3_keys *keys = kvt__s3_keyring_usable(t);
    if (keys && !(call->wants_new_keys && k->is_doubted)) {
        keys = kvt__s3_keys_ref(keys);
    } else if (k->stop) {
        err = kvt__s3_keyring_stopped();
    } else if (!keys && k->last_err && kvt__now_ns() - k->failed_ns < KVT__S3_REFRESH_DELAY_NS) {
        kvt__set_why(k->why);
        err = k->last_err;
    } else {
        keys = NULL;
        call->next = k->waiting;
        k->waiting = call;
        k->refresh_wanted = true;
        pthread_cond_signal(&k->changed);
        err = 1;
    }
    pthread_mutex_unlock(&k->lock);
    *out = err ? NULL : keys;
    return err;
}

void
kvt__s3_keyring_reject(struct s3_tier *t, const struct kvt__s3_keys *keys)
{
    struct s3_keyring *k = &t->keyring;

    pthread_mutex_lock(&k->lock);
    if (keys == k->session)
        k->session_usable_s = k->session_refresh_s = 0;
    else if (keys == k->base)
        k->base_usable_s = k->base_refresh_s = 0;
    pthread_mutex_unlock(&k->lock);
}

bool
kvt__s3_keyring_doubt(struct s3_tier *t, const struct kvt__s3_keys *keys)
{
    struct s3_keyring *k = &t->keyring;
    int64_t now = kvt__now_ns();

    pthread_mutex_lock(&k->lock);
    bool replaced = keys != k->base && keys != k->session;
    bool may = replaced || k->is_doubted || !k->doubted_ns ||
               now - k->doubted_ns >= DOUBT_NS;
    if (may && !replaced && !k->is_doubted) {
        k->is_doubted = true;
        k->doubted_ns = now;
    }
    pthread_mutex_unlock(&k->lock);
    return may;
}
