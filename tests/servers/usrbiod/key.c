/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser of the names of links in 3fs-virt/iovs: "<uuid>", then parts that begin with a dot. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "usrbiod.h"

bool
key_id(const char *text, uint8_t id[static 16])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0, n = 0; i < 36; i++) {
        const char *digit;

        if (i == 8 || i == 13 || i == 18 || i == 23) {
            if (text[i] != '-')
                return false;
            continue;
        }
        digit = text[i] ? strchr(digits, tolower((unsigned char)text[i])) : NULL;
        if (!digit)
            return false;
        id[n / 2] = (uint8_t)(n % 2 ? id[n / 2] << 4 | (digit - digits) : digit - digits);
        n++;
    }
    return true;
}

/* Parse the text of a part after its letter, up to the next dot. */
static bool
number(const char *text, const char *end, int base, bool may_be_negative,
       long long max, long long *out)
{
    char digits[80], *stop;
    size_t n = (size_t)(end - text);

    if (!n || n >= sizeof digits || isspace((unsigned char)*text) || *text == '+' ||
        (*text == '-' && !may_be_negative))
        return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    errno = 0;
    *out = strtoll(digits, &stop, base);
    return !*stop && !errno && *out <= max && *out >= -max;
}

static bool
priority(const char *text, const char *end, int *out)
{
    size_t n = (size_t)(end - text);

    *out = n && *text == 'h' ? PRIO_HIGH : n && *text == 'l' ? PRIO_LOW : PRIO_NORMAL;
    return !n || (n == 1 && strchr("hln", *text));
}

/* Parse a part.  Return false if the part is invalid. */
static bool
part(struct key *key, const char *text, const char *end, bool *has_ring_words)
{
    long long n = 0;

    switch (*text++) {
    case 'b':
        if (!number(text, end, 10, false, LLONG_MAX, &n) || !n)
            return false;
        key->block_bytes = (size_t)n;
        return true;
    case 'r':
    case 'w':
        if (!number(text, end, 10, true, INT_MAX, &n))
            return false;
        key->is_ring = true;
        key->for_read = text[-1] == 'r';
        key->depth = (int)n;
        return true;
    case 't':
        *has_ring_words = number(text, end, 10, false, INT_MAX, &n);
        key->timeout_ms = (int)n;
        return *has_ring_words;
    case 'f':
        *has_ring_words = number(text, end, 2, false, LLONG_MAX, &n);
        key->flags = (uint64_t)n;
        return *has_ring_words;
    case 'p':
        *has_ring_words = priority(text, end, &key->priority);
        return *has_ring_words;
    default:
        return false;
    }
}

int
key_parse(const char *text, struct key *out)
{
    bool has_ring_words = false;

    *out = (struct key){ .priority = PRIO_NORMAL };
    if (!key_id(text, out->id) || (text[36] && text[36] != '.'))
        return EIO;
    for (const char *at = text + 36; *at;) {
        const char *end = at + 1 + strcspn(at + 1, ".");

        if (!part(out, at + 1, end, &has_ring_words))
            return EINVAL;
        at = end;
    }
    /* The behaviour of the real daemon is undefined for a ring without any of t, f and p. */
    return out->is_ring == has_ring_words ? 0 : EINVAL;
}
