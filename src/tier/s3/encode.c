/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes in URLs and headers.  Any thread. */
#include "tier/s3/encode.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"

static const char upper_digits[] = "0123456789ABCDEF";
static const char lower_digits[] = "0123456789abcdef";
static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* isalnum() is unsuitable: the result depends on the locale. */
static bool
is_unreserved(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           c == '-' || c == '.' || c == '_' || c == '~';
}

int
kvt__s3_encode(const char *in, size_t n, bool keep_slash, char *out, size_t room)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)in[i];
        bool plain = is_unreserved(c) || (c == '/' && keep_slash);

        /* Room for the NUL is included. */
        if (room - at < (plain ? 2 : 4))
            return -ENAMETOOLONG;
        if (plain) {
            out[at++] = (char)c;
        } else {
            out[at++] = '%';
            out[at++] = upper_digits[c >> 4];
            out[at++] = upper_digits[c & 15];
        }
    }
    if (at == room)
        return -ENAMETOOLONG;
    out[at] = '\0';
    return (int)at;
}

int
kvt__s3_decode(char *text, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];

        if (c == '%') {
            int high = n - i > 2 ? kvt__hex_digit(text[i + 1]) : -1;
            int low = high >= 0 ? kvt__hex_digit(text[i + 2]) : -1;
            if (low < 0)
                return -EINVAL;
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (!c)
            return -EINVAL;
        text[at++] = c;
    }
    return (int)at;
}

void
kvt__s3_hex(const uint8_t *in, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = lower_digits[in[i] >> 4];
        out[2 * i + 1] = lower_digits[in[i] & 15];
    }
    out[2 * n] = '\0';
}

void
kvt__s3_base64(const uint8_t *in, size_t n, char *out)
{
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t bits = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                        (left > 2 ? in[i + 2] : 0);

        *out++ = base64_digits[bits >> 18];
        *out++ = base64_digits[bits >> 12 & 63];
        *out++ = '=';
        *out++ = '=';
        if (left > 1)
            out[-2] = base64_digits[bits >> 6 & 63];
        if (left > 2)
            out[-1] = base64_digits[bits & 63];
    }
    *out = '\0';
}

int
kvt__s3_unbase64(const char *in, size_t n, uint8_t *out, size_t room)
{
    size_t digits = n, at = 0;
    uint32_t bits = 0;

    while (digits && n - digits < 2 && in[digits - 1] == '=')
        digits--;
    if (n % 4 || digits / 4 * 3 + digits % 4 * 3 / 4 > room)
        return -EINVAL;
    for (size_t i = 0; i < digits; i++) {
        const char *digit = in[i] ? strchr(base64_digits, in[i]) : NULL;

        if (!digit)
            return -EINVAL;
        bits = bits << 6 | (uint32_t)(digit - base64_digits);
        /* The second, third and fourth digit of a group each complete a byte. */
        if (i % 4)
            out[at++] = (uint8_t)(bits >> (6 - i % 4 * 2));
    }
    /* The unused bits of the last digit must be 0, so that each value has only one text. */
    if (digits % 4 && bits & ((1u << (6 - (digits - 1) % 4 * 2)) - 1))
        return -EINVAL;
    return (int)at;
}
