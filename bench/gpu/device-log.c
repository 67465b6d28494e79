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
on_log_line(void *ctx, enum kvt_log_level level, const char *line)
{
    struct device_log *log = ctx;

    pthread_mutex_lock(&lock);
    if (begins(line, "CUDA device ") || begins(line, "HIP device "))
        snprintf(log->device, sizeof log->device, "%s", line);
    else if (begins(line, "gds_path: "))
        snprintf(log->data_path, sizeof log->data_path, "%s", line + strlen("gds_path: "));
    if (level <= KVT_LOG_WARN)
        fprintf(stderr, "kvtier: %s\n", line);
    pthread_mutex_unlock(&lock);
}

void
device_log_start(struct device_log *log)
{
    *log = (struct device_log){ 0 };
    kvt_set_log(on_log_line, log, KVT_LOG_INFO);
}
