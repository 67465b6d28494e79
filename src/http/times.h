/* SPDX-License-Identifier: Apache-2.0
 *
 * Things to do at a time: a heap whose nodes are part of what they are about, so that
 * setting one allocates nothing.  One thread. */
#ifndef KVT_HTTP_TIMES_H
#define KVT_HTTP_TIMES_H

#include <stdbool.h>
#include <stdint.h>

struct kvt__http_time {
    int64_t at_ns; /* monotonic */
    void (*run)(struct kvt__http_time *time);
    struct kvt__http_time *child, *next, *prev; /* prev: or the parent */
    bool set;
};

struct kvt__http_times {
    struct kvt__http_time *first; /* the earliest; NULL: none */
};

/* Set it, or set it to another time. */
void kvt__http_time_set(struct kvt__http_times *times, struct kvt__http_time *time,
                        int64_t at_ns);

/* Does nothing to one that is not set. */
void kvt__http_time_clear(struct kvt__http_times *times, struct kvt__http_time *time);

#endif
