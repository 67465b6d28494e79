/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines for people.  Any thread.  Never a token, a prompt or a secret. */
#ifndef KVT_BASE_LOG_H
#define KVT_BASE_LOG_H

#include <stdatomic.h>

#include "kvtier.h"

/* One line, without newline. */
void kvt__log(enum kvt_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Log at most once a process for each place in the source. */
#define KVT__LOG_ONCE(level, ...)                                              \
    do {                                                                       \
        static atomic_flag said_ = ATOMIC_FLAG_INIT;                           \
        if (!atomic_flag_test_and_set(&said_))                                 \
            kvt__log(level, __VA_ARGS__);                                      \
    } while (0)

#endif
