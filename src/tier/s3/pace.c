/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate of requests: retries, concurrent stores, hedges. */
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

/* The budget of retries: a retry costs COST, a successful response adds GAIN, up to TOKENS. */
#define TOKENS 500.0
#define COST 5.0
#define GAIN 1.0

#define FIRST_WAIT_NS (100 * KVT__NS_PER_MS)
#define LONGEST_WAIT_NS (5 * KVT__NS_PER_S)
/* Minimum time between reductions, so that responses to simultaneous requests count once. */
#define SLOW_AGAIN_NS (500 * KVT__NS_PER_MS)

#define MIN_HEDGE_NS (50 * KVT__NS_PER_MS)
#define HEDGE_SHARE 20     /* successful reads per hedge */
/* Maximum number of hedges in a row, after any number of successful reads. */
#define MAX_HEDGE_TOKENS 8

void
kvt__s3_pace_init(struct s3_pace *pace, unsigned max_requests)
{
    *pace = (struct s3_pace){ .tokens = TOKENS, .stores_limit = max_requests,
                              .stores_most = max_requests,
                              .first_byte_ns = (double)KVT__NS_PER_S };
    pthread_mutex_init(&pace->lock, NULL);
    pace->last_waiting = &pace->first_waiting;
}

void
kvt__s3_pace_fini(struct s3_pace *pace)
{
    pthread_mutex_destroy(&pace->lock);
}

/* ----------------------------------------------------------------------- retries */

static double
random_share(void)
{
    uint32_t bits = 0;

    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) < 0)
        bits = (uint32_t)kvt__now_ns();
    return (double)bits / (double)UINT32_MAX;
}

/* Return the delay before a retry.  Full jitter: a random time up to a limit that doubles with each
 * attempt, so that clients that failed together do not retry together.  A store waits twice as long
 * as a load.  The delay is at least the response's Retry-After. */
static int64_t
wait_of(const struct s3_call *call)
{
    int64_t most = FIRST_WAIT_NS;

    for (unsigned i = 1; i < call->n_attempts && most < LONGEST_WAIT_NS; i++)
        most *= 2;
    if (most > LONGEST_WAIT_NS)
        most = LONGEST_WAIT_NS;
    int64_t wait = (int64_t)((double)most * random_share());
    if (call->is_store)
        wait *= 2;
    return wait > call->retry_after_ns ? wait : call->retry_after_ns;
}

bool
kvt__s3_may_repeat(struct s3_pace *pace, const struct s3_call *call, int64_t *in_ns)
{
    pthread_mutex_lock(&pace->lock);
    bool may = pace->tokens >= COST;
    if (may)
        pace->tokens -= COST;
    pthread_mutex_unlock(&pace->lock);
    *in_ns = wait_of(call);
    return may;
}

/* ------------------------------------------------------------------------ stores */

bool
kvt__s3_may_store(struct s3_pace *pace, struct s3_call *call)
{
    pthread_mutex_lock(&pace->lock);
    bool may = pace->stores < pace->stores_limit && !pace->first_waiting;
    if (may) {
        pace->stores++;
    } else {
        call->next = NULL;
        *pace->last_waiting = call;
        pace->last_waiting = &call->next;
    }
    pthread_mutex_unlock(&pace->lock);
    return may;
}

struct s3_call *
kvt__s3_stored(struct s3_pace *pace)
{
    struct s3_call *first, **last = &first;

    pthread_mutex_lock(&pace->lock);
    pace->stores--;
    while (pace->first_waiting && pace->stores < pace->stores_limit) {
        *last = pace->first_waiting;
        last = &(*last)->next;
        pace->first_waiting = *last;
        pace->stores++;
    }
    if (!pace->first_waiting)
        pace->last_waiting = &pace->first_waiting;
    *last = NULL;
    pthread_mutex_unlock(&pace->lock);
    return first;
}

void
kvt__s3_slow_down(struct s3_pace *pace)
{
    int64_t now = kvt__now_ns();

    pthread_mutex_lock(&pace->lock);
    if (now - pace->slowed_ns >= SLOW_AGAIN_NS) {
        /* Without stores in flight, the limit does not show the server's capacity. */
        bool is_idle = !pace->stores;
        double at = !is_idle && pace->stores < pace->stores_limit ? pace->stores
                                                                  : pace->stores_limit;

        pace->slowed_ns = now;
        pace->stores_limit = at / 2 > 1 ? at / 2 : 1;
    }
    pthread_mutex_unlock(&pace->lock);
}

/* ----------------------------------------------------------------------- responses */

/* Add a measured time to first byte; smoothed as TCP's round-trip time (RFC 6298, section 2). */
static void
note_first_byte(struct s3_pace *pace, double ns)
{
    double off = ns - pace->first_byte_ns;

    if (pace->hedge_tokens < MAX_HEDGE_TOKENS * HEDGE_SHARE)
        pace->hedge_tokens++;
    if (!pace->has_read) {
        pace->has_read = true;
        pace->first_byte_ns = ns;
        pace->deviation_ns = ns / 2;
        return;
    }
    pace->deviation_ns += ((off < 0 ? -off : off) - pace->deviation_ns) / 4;
    pace->first_byte_ns += off / 8;
}

void
kvt__s3_went_well(struct s3_pace *pace, const struct s3_call *call)
{
    pthread_mutex_lock(&pace->lock);
    if (pace->tokens + GAIN <= TOKENS)
        pace->tokens += GAIN;
    if (call->is_store && pace->stores_limit < pace->stores_most)
        pace->stores_limit += 1 / pace->stores_limit;
    if (pace->stores_limit > pace->stores_most)
        pace->stores_limit = pace->stores_most;
    if (call->can_hedge)
        note_first_byte(pace, (double)(call->http.first_byte_ns - call->http.sent_ns));
    pthread_mutex_unlock(&pace->lock);
}

int64_t
kvt__s3_hedge_ns(struct s3_pace *pace)
{
    pthread_mutex_lock(&pace->lock);
    int64_t after = (int64_t)(pace->first_byte_ns + 8 * pace->deviation_ns);
    pthread_mutex_unlock(&pace->lock);
    return after > MIN_HEDGE_NS ? after : MIN_HEDGE_NS;
}

bool
kvt__s3_may_hedge(struct s3_pace *pace)
{
    pthread_mutex_lock(&pace->lock);
    bool may = pace->hedge_tokens >= HEDGE_SHARE;
    if (may)
        pace->hedge_tokens -= HEDGE_SHARE;
    pthread_mutex_unlock(&pace->lock);
    return may;
}
