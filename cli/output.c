/* SPDX-License-Identifier: Apache-2.0
 *
 * Exit codes, errors, JSON and progress.  The programs in bench/ use this file too. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

int
cli_code(int status)
{
    switch (-status) {
    case 0:
        return CLI_DONE;
    case ENOENT:
    case EBADMSG:
        return CLI_NEGATIVE;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTSUP:
        return CLI_USAGE;
    default:
        return CLI_ENVIRONMENT;
    }
}

json_t *
cli_json_text(const char *text)
{
    json_t *string = json_string(text);
    char *ascii = string ? NULL : strdup(text);

    for (char *c = ascii; c && *c; c++)
        if (*c & 0x80)
            *c = '?';
    string = ascii ? json_string(ascii) : string;
    free(ascii);
    return string ? string : json_null();
}

void
cli_print_text(FILE *out, const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            fprintf(out, "\\x%02x", (unsigned char)*text);
        else
            putc(*text, out);
    putc('\n', out);
}

void
cli_print_json(json_t *object)
{
    json_dumpf(object, stdout, 0);
    printf("\n");
    json_decref(object);
}

static bool uses_json;

void
cli_use_json(void)
{
    uses_json = true;
}

int
cli_error(int code, const char *fmt, ...)
{
    char *text;
    va_list ap;

    va_start(ap, fmt);
    bool ok = vasprintf(&text, fmt, ap) >= 0;
    va_end(ap);
    if (!ok)
        return code;
    if (!uses_json) {
        fprintf(stderr, "kvtier: ");
        cli_print_text(stderr, text);
    } else {
        cli_print_json(json_pack("{s:o}", "error", cli_json_text(text)));
    }
    free(text);
    return code;
}

int
cli_fail(int err)
{
    return cli_error(cli_code(err), "%s", kvt_last_error());
}

void
cli_progress(const char *label, uint64_t done, uint64_t total)
{
    static time_t shown;
    time_t now = time(NULL);

    if (!isatty(2) || (now == shown && done != total))
        return;
    shown = now;
    if (total)
        fprintf(stderr, "\r%s %" PRIu64 " of %" PRIu64 " (%" PRIu64 " %%) ", label, done,
                total, done * 100 / total);
    else
        fprintf(stderr, "\r%s %" PRIu64 " ", label, done);
}

void
cli_progress_end(void)
{
    if (isatty(2))
        fprintf(stderr, "\r%60s\r", "");
}
