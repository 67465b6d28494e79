/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate of requests: retries, concurrent stores, hedges. */
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

/* The budget of retries: a retry costs RETRY_COST, a successful response adds SUCCESS_GAIN, up to
 * MAX_RETRY_TOKENS. */
#define MAX_RETRY_TOKENS 500.0
#define RETRY_COST 5.0
#define SUCCESS_GAIN 1.0

#define FIRST_DELAY_NS (100 * KVT__NS_PER_MS)
#define MAX_DELAY_NS (5 * KVT__NS_PER_S)
/* Minimum time between reductions, so that responses to simultaneous requests count once. */
#define MIN_REDUCTION_NS (500 * KVT__NS_PER_MS)

#define MIN_HEDGE_NS (50 * KVT__NS_PER_MS)
#define READS_PER_HEDGE 20 /* successful reads per hedge */
/* Maximum number of hedges in a row, after any number of successful reads. */
#define MAX_HEDGES 8

void
kvt__s3_pace_init(struct s3_pace *pace, unsigned max_requests)
{
    *pace = (struct s3_pace){ .retry_tokens = MAX_RETRY_TOKENS, .stores_limit = max_requests,
                              .max_stores_limit = max_requests,
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
retry_delay(const struct s3_call *call)
{
    int64_t limit = FIRST_DELAY_NS;

    for (unsigned i = 1; i < call->n_attempts && limit < MAX_DELAY_NS; i++)
        limit *= 2;
    if (limit > MAX_DELAY_NS)
        limit = MAX_DELAY_NS;
    int64_t delay = (int64_t)((double)limit * random_share());
    if (call->is_store)
        delay *= 2;
    return delay > call->retry_after_ns ? delay : call->retry_after_ns;
}

bool
kvt__s3_acquire_retry(struct s3_pace *pace, const struct s3_call *call, int64_t *in_ns)
{
    pthread_mutex_lock(&pace->lock);
    bool may = pace->retry_tokens >= RETRY_COST;
    if (may)
        pace->retry_tokens -= RETRY_COST;
    pthread_mutex_unlock(&pace->lock);
    *in_ns = retry_delay(call);
    return may;
}

/* ------------------------------------------------------------------------ stores */

bool
kvt__s3_acquire_store_slot(struct s3_pace *pace, struct s3_call *call)
{
    pthread_mutex_lock(&pace->lock);
    bool may = pace->n_stores < pace->stores_limit && !pace->first_waiting;
    if (may) {
        pace->n_stores++;
    } else {
        call->next = NULL;
        *pace->last_waiting = call;
        pace->last_waiting = &call->next;
    }
    pthread_mutex_unlock(&pace->lock);
    return may;
}

struct s3_call *
kvt__s3_release_store_slot(struct s3_pace *pace)
{
    struct s3_call *first, **last = &first;

    pthread_mutex_lock(&pace->lock);
    pace->n_stores--;
    while (pace->first_waiting && pace->n_stores < pace->stores_limit) {
        *last = pace->first_waiting;
        last = &(*last)->next;
        pace->first_waiting = *last;
        pace->n_stores++;
    }
    if (!pace->first_waiting)
        pace->last_waiting = &pace->first_waiting;
    *last = NULL;
    pthread_mutex_unlock(&pace->lock);
    return first;
}

void
kvt__s3_note_overload(struct s3_pace *pace)
{
    int64_t now = kvt__now_ns();

    pthread_mutex_lock(&pace->lock);
    if (now - pace->reduced_ns >= MIN_REDUCTION_NS) {
        /* Without stores in flight, the limit does not show the server's capacity. */
        bool is_idle = !pace->n_stores;
        double at = !is_idle && pace->n_stores < pace->stores_limit ? pace->n_stores
                                                                    : pace->stores_limit;

        pace->reduced_ns = now;
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

    if (pace->hedge_tokens < MAX_HEDGES * READS_PER_HEDGE)
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
kvt__s3_note_success(struct s3_pace *pace, const struct s3_call *call)
{
    pthread_mutex_lock(&pace->lock);
    if (pace->retry_tokens + SUCCESS_GAIN <= MAX_RETRY_TOKENS)
        pace->retry_tokens += SUCCESS_GAIN;
    if (call->is_store && pace->stores_limit < pace->max_stores_limit)
        pace->stores_limit += 1 / pace->stores_limit;
    if (pace->stores_limit > pace->max_stores_limit)
        pace->stores_limit = pace->max_stores_limit;
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
kvt__s3_acquire_hedge(struct s3_pace *pace)
{
    pthread_mutex_lock(&pace->lock);
    bool may = pace->hedge_tokens >= READS_PER_HEDGE;
    if (may)
        pace->hedge_tokens -= READS_PER_HEDGE;
    pthread_mutex_unlock(&pace->lock);
    return may;
}
