/* SPDX-License-Identifier: Apache-2.0
 *
 * The 3FS client of a test program: HF3FS_CLIENT selects the client, as for users, and
 * config_with() passes the variable on.  The tier logs the selected client.  The program compares
 * the log with the variable, because the tests also pass with the other client. */
#ifndef KVT_HF3FS_CLIENT_H
#define KVT_HF3FS_CLIENT_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

static atomic_uint hf3fs_right_clients, hf3fs_wrong_clients;

static inline void
on_hf3fs_log(void *ctx, enum kvt_log_level level, const char *line)
{
    const char *wanted = !strcmp(hf3fs_client(), "library") ? " by the site's library"
                                                            : " by kvtier's own client";

    (void)ctx;
    if (strstr(line, ": 3FS at "))
        atomic_fetch_add(strstr(line, wanted) ? &hf3fs_right_clients
                                              : &hf3fs_wrong_clients, 1);
    if (level <= KVT_LOG_ERROR)
        fprintf(stderr, "%s\n", line);
}

/* Count the clients that tiers log, and print errors. */
static inline void
hf3fs_watch_log(void)
{
    kvt_set_log(on_hf3fs_log, NULL, KVT_LOG_INFO);
}

/* The last test of a program. */
static inline void
only_the_selected_client_was_used(void **state)
{
    (void)state;
    assert_true(hf3fs_right_clients > 0);
    assert_int_equal(hf3fs_wrong_clients, 0);
}

#endif
