/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call of the library has failed with, and how far something is: for programs
 * besides kvtier too. */
#include <errno.h>
#include <inttypes.h>
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
        return CLI_NO;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTSUP:
        return CLI_USAGE;
    default:
        return CLI_ENVIRONMENT;
    }
}

int
cli_fail(int err)
{
    fprintf(stderr, "kvtier: %s\n", kvt_last_error());
    return cli_code(err);
}

void
cli_progress(const char *what, uint64_t done, uint64_t total)
{
    static time_t shown;
    time_t now = time(NULL);

    if (!isatty(2) || (now == shown && done != total))
        return;
    shown = now;
    if (total)
        fprintf(stderr, "\r%s %" PRIu64 " of %" PRIu64 " (%" PRIu64 " %%) ", what, done,
                total, done * 100 / total);
    else
        fprintf(stderr, "\r%s %" PRIu64 " ", what, done);
}

void
cli_progress_end(void)
{
    if (isatty(2))
        fprintf(stderr, "\r%60s\r", "");
}
