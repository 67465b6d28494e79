/* SPDX-License-Identifier: Apache-2.0
 *
 * Collect the log lines about device and data path. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gpu.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool
begins(const char *line, const char *with)
{
    return !strncmp(line, with, strlen(with));
}

static void
hear(void *ctx, enum kvt_log_level level, const char *line)
{
    struct told *told = ctx;

    pthread_mutex_lock(&lock);
    if (begins(line, "CUDA device ") || begins(line, "HIP device "))
        snprintf(told->device, sizeof told->device, "%s", line);
    else if (begins(line, "gds_path: "))
        snprintf(told->way, sizeof told->way, "%s", line + strlen("gds_path: "));
    if (level <= KVT_LOG_WARN)
        fprintf(stderr, "kvtier: %s\n", line);
    pthread_mutex_unlock(&lock);
}

void
told_listen(struct told *told)
{
    *told = (struct told){ 0 };
    kvt_set_log(hear, told, KVT_LOG_INFO);
}
