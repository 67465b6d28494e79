/* SPDX-License-Identifier: Apache-2.0
 *
 * The error sentence of each thread. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kvtier.h"

static _Thread_local char why[KVT__WHY_BYTES];

int
kvt__fail(int err, const char *fmt, ...)
{
    char text[sizeof why];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len >= sizeof text)
        len = sizeof text - 1;
    if (len && text[len - 1] == '.')
        memcpy(why, text, len + 1);
    else
        snprintf(why, sizeof why, "%.*s: %s", (int)len, text, strerror(err));
    return -err;
}

const char *
kvt__why(void)
{
    return why;
}

void
kvt__set_why(const char *text)
{
    snprintf(why, sizeof why, "%s", text);
}

void
kvt__error_set(struct kvt__error *error, int err)
{
    error->code = err;
    if (err)
        memcpy(error->why, why, strlen(why) + 1);
}

int
kvt__error_raise(const struct kvt__error *error)
{
    if (error->code)
        memcpy(why, error->why, strlen(error->why) + 1);
    return error->code;
}

const char *
kvt_last_error(void)
{
    return why;
}
