/* SPDX-License-Identifier: Apache-2.0
 *
 * The format of times in S3, STS and credential_process.  Any thread. */
#include <time.h>

#include "tier/s3/xml.h"

/* Return the value of n digits, or -1 if a character is not a digit. */
static int
digits(const char *text, int n)
{
    int value = 0;

    for (int i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        value = value * 10 + text[i] - '0';
    }
    return value;
}

/* Parse an optional fraction such as ".456", of any length.  Return the position after the
 * fraction. */
static const char *
fraction(const char *text, int64_t *ns)
{
    int64_t unit = 100000000;

    *ns = 0;
    if (*text != '.' || digits(text + 1, 1) < 0)
        return text;
    for (text++; *text >= '0' && *text <= '9'; text++, unit /= 10)
        *ns += (*text - '0') * unit;
    return text;
}

/* Parse Z, +HH:MM or +HHMM.  Return seconds east of UTC, or INT64_MIN: not such an offset. */
static int64_t
offset(const char *text)
{
    if (text[0] == 'Z' && !text[1])
        return 0;
    if (text[0] != '+' && text[0] != '-')
        return INT64_MIN;
    int hours = digits(text + 1, 2);
    if (hours < 0)
        return INT64_MIN;
    const char *rest = text + 3 + (text[3] == ':');
    int minutes = digits(rest, 2);
    if (hours > 23 || minutes < 0 || minutes > 59 || rest[2])
        return INT64_MIN;
    return (text[0] == '-' ? -60 : 60) * (int64_t)(hours * 60 + minutes);
}

int64_t
kvt__s3_time(const char *text, int64_t *fraction_ns)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd";
    int64_t ns;

    for (size_t i = 0; form[i]; i++)
        if (form[i] == 'd' ? digits(text + i, 1) < 0 : text[i] != form[i])
            return INT64_MIN;
    struct tm tm = { .tm_year = digits(text, 4) - 1900, .tm_mon = digits(text + 5, 2) - 1,
                     .tm_mday = digits(text + 8, 2), .tm_hour = digits(text + 11, 2),
                     .tm_min = digits(text + 14, 2), .tm_sec = digits(text + 17, 2) };
    struct tm normal = tm;
    int64_t time_s = timegm(&normal);
    int64_t east_s = offset(fraction(text + sizeof form - 1, &ns));
    if (east_s == INT64_MIN || normal.tm_mon != tm.tm_mon || normal.tm_mday != tm.tm_mday ||
        normal.tm_hour != tm.tm_hour || normal.tm_min != tm.tm_min ||
        normal.tm_sec != tm.tm_sec)
        return INT64_MIN;
    if (fraction_ns)
        *fraction_ns = ns;
    return time_s - east_s;
}
