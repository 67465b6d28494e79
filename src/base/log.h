/* SPDX-License-Identifier: Apache-2.0
 *
 * The log, for operators.  Any thread.  A line never contains a token, a prompt or a secret. */
#ifndef KVT_BASE_LOG_H
#define KVT_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kvtier.h"

/* Log a line; the text has no newline.  Blocks while another thread logs. */
void kvt__log(enum kvt_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Return true if lines of the level are logged.  For callers whose arguments cost time. */
bool kvt__log_is_enabled(enum kvt_log_level level);

/* Log a line at most once in this process, for each use of the macro. */
#define KVT__LOG_ONCE(level, ...)                                              \
    do {                                                                       \
        static atomic_flag logged_ = ATOMIC_FLAG_INIT;                           \
        if (!atomic_flag_test_and_set(&logged_))                                 \
            kvt__log(level, __VA_ARGS__);                                      \
    } while (0)

#endif
