/* SPDX-License-Identifier: Apache-2.0
 *
 * Delays and hangs of fault:// that end when the test calls let_go(), not after a time.  The
 * program is linked with --wrap=clock_nanosleep, which only the fault tier calls. */
#ifndef KVT_SYSTEM_HELD_H
#define KVT_SYSTEM_HELD_H

#include <pthread.h>
#include <time.h>

#include "kvt-test.h"

enum held_mode {
    HELD_OFF, /* the fault tier sleeps for the time of its settings */
    HELD,     /* the fault tier waits until let_go() */
    LET_GO,   /* the fault tier does not sleep */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum held_mode mode;
    unsigned n; /* operations that wait */
    unsigned n_arrived, n_freed; /* since hold(): operations that have waited; the first of them,
                                  * which wait no longer */
} held = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

int __real_clock_nanosleep(clockid_t clock, int flags, const struct timespec *at,
                           struct timespec *left);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *at,
                           struct timespec *left);

int
__wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *at,
                       struct timespec *left)
{
    pthread_mutex_lock(&held.lock);
    enum held_mode mode = held.mode;
    if (mode == HELD) {
        unsigned number = held.n_arrived++;

        held.n++;
        pthread_cond_broadcast(&held.changed);
        while (held.mode == HELD && number >= held.n_freed)
            pthread_cond_wait(&held.changed, &held.lock);
        held.n--;
        pthread_cond_broadcast(&held.changed);
    }
    pthread_mutex_unlock(&held.lock);
    return mode == HELD_OFF ? __real_clock_nanosleep(clock, flags, at, left) : 0;
}

static inline void
set_held(enum held_mode mode)
{
    pthread_mutex_lock(&held.lock);
    held.mode = mode;
    held.n_arrived = held.n_freed = 0;
    pthread_cond_broadcast(&held.changed);
    pthread_mutex_unlock(&held.lock);
}

/* Let every delay and hang from now on last until let_go(). */
static inline void
hold(void)
{
    set_held(HELD);
}

/* Wait until n operations are held. */
static inline void
wait_until_n_held(unsigned n)
{
    pthread_mutex_lock(&held.lock);
    while (held.n < n)
        pthread_cond_wait(&held.changed, &held.lock);
    pthread_mutex_unlock(&held.lock);
}

static inline void
wait_until_held(void)
{
    wait_until_n_held(1);
}

/* Let the operation that waits longest continue.  No other operation begins meanwhile. */
static inline void
let_oldest_go(void)
{
    pthread_mutex_lock(&held.lock);
    unsigned n = held.n;
    held.n_freed++;
    pthread_cond_broadcast(&held.changed);
    while (held.n == n)
        pthread_cond_wait(&held.changed, &held.lock);
    pthread_mutex_unlock(&held.lock);
}

static inline void
let_go(void)
{
    set_held(LET_GO);
}

#endif
