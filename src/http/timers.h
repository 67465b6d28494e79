/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers of a thread of the client, in a heap.  A request or a connection embeds a timer, so
 * setting a timer allocates nothing.  The thread (thread.c) clears and runs the timers that are
 * due; only this thread may set or clear the timers. */
#ifndef KVT_HTTP_TIMERS_H
#define KVT_HTTP_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct kvt__http_timer {
    int64_t at_ns; /* monotonic */
    void (*run)(struct kvt__http_timer *timer);
    struct kvt__http_timer *child, *next, *prev; /* prev of a first child: the parent */
    bool set;
};

struct kvt__http_timers {
    struct kvt__http_timer *first; /* the earliest; NULL: none */
};

/* Set the timer to at_ns.  If the timer is set already, change the time. */
void kvt__http_timer_set(struct kvt__http_timers *timers, struct kvt__http_timer *timer,
                         int64_t at_ns);

/* Clear the timer.  A timer that is not set stays unchanged. */
void kvt__http_timer_clear(struct kvt__http_timers *timers, struct kvt__http_timer *timer);

#endif
