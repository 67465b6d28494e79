/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing the settings of a fault URL.  Pure functions: any thread. */
#include "tier/fault/settings.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const struct {
    const char *key;
    double max;
    double fallback;
} faults[KVT__N_FAULTS] = {
#define F(key, max, fallback) { #key, max, fallback },
    KVT__FAULTS(F)
#undef F
};

static int
refuse(const char *name, const char *text, size_t n)
{
    static const char keys[] =
#define F(key, max, fallback) " " #key
        KVT__FAULTS(F);
#undef F

    return kvt__fail(EINVAL, "%s: fault:// does not take '%.*s'; write KEY=NUMBER "
                     "with a rate from 0 to 1, milliseconds up to 3600000, MB/s up to "
                     "1000000 or a seed; keys:%s.", name, (int)(n < 64 ? n : 64), text, keys);
}

/* A decimal number that fills the n bytes at text, or -1. */
static double
number(const char *text, size_t n)
{
    char digits[32], *end;

    if (!n || n >= sizeof digits || !isdigit((unsigned char)text[0]))
        return -1;
    memcpy(digits, text, n);
    digits[n] = '\0';
    if (digits[strspn(digits, "0123456789.")]) /* reject hexadecimal digits and exponents */
        return -1;
    double v = strtod(digits, &end);
    return *end ? -1 : v;
}

static int
parse_one(const char *name, const char *text, size_t n,
          double value[KVT__N_FAULTS])
{
    const char *equals = memchr(text, '=', n);
    size_t len = equals ? (size_t)(equals - text) : n;

    for (int i = 0; equals && i < KVT__N_FAULTS; i++) {
        if (strlen(faults[i].key) != len || strncmp(text, faults[i].key, len))
            continue;
        double v = number(equals + 1, n - len - 1);
        if (v < 0 || v > faults[i].max)
            break;
        value[i] = v;
        return 0;
    }
    return refuse(name, text, n);
}

int
kvt__faults_parse(const char *name, const char *text, size_t n,
                  double value[KVT__N_FAULTS])
{
    const char *end = text + n;

    for (int i = 0; i < KVT__N_FAULTS; i++)
        value[i] = faults[i].fallback;
    while (text < end) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma ? comma : end;
        int err = parse_one(name, text, (size_t)(stop - text), value);

        if (err)
            return err;
        text = comma ? comma + 1 : end;
    }
    return 0;
}
