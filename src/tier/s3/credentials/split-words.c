/* SPDX-License-Identifier: Apache-2.0
 *
 * Splitting of a command line.  Quotes and backslashes have their meaning in a POSIX shell; all
 * other characters are literal. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/credentials/private.h"

static bool
is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Copy the text between double quotes; in points behind the first quote.  Return the position
 * behind the second quote, or NULL: missing. */
static const char *
copy_quoted(const char *in, char **out)
{
    for (; *in && *in != '"'; in++) {
        if (*in == '\\' && in[1] && strchr("\"\\$`", in[1]))
            in++;
        *(*out)++ = *in;
    }
    return *in ? in + 1 : NULL;
}

/* Copy a word, which must exist.  Return the position behind the word, or NULL: a quote is not
 * closed. */
static const char *
copy_word(const char *in, char **out)
{
    while (in && *in && !is_blank(*in)) {
        if (*in == '"') {
            in = copy_quoted(in + 1, out);
        } else if (*in == '\'') {
            const char *end = strchr(in + 1, '\'');

            for (in++; end && in < end; in++)
                *(*out)++ = *in;
            in = end ? end + 1 : NULL;
        } else {
            if (*in == '\\' && in[1])
                in++;
            *(*out)++ = *in++;
        }
    }
    if (in)
        *(*out)++ = '\0';
    return in;
}

int
kvt__s3_split_words(const char *line, char ***out)
{
    /* Each word except the last needs at least a byte and a blank. */
    size_t n = strlen(line), max = n / 2 + 2, n_words = 0;
    char **words = malloc(max * sizeof *words + n + 1);

    if (!words)
        return -ENOMEM;
    char *text = (char *)(words + max);
    for (;;) {
        while (is_blank(*line))
            line++;
        if (!*line)
            break;
        words[n_words++] = text;
        if (!(line = copy_word(line, &text))) {
            free(words);
            return -EINVAL;
        }
    }
    words[n_words] = NULL;
    if (!n_words) {
        free(words);
        return -ENOENT;
    }
    *out = words;
    return 0;
}
