/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: arbitrary bytes as a configuration file, and as extra_config in a variable. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvtier.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
ignore(void *ctx, const struct kvt_config_problem *problem)
{
    (void)ctx;
    if (strlen(problem->text) == 0)
        abort();
}

static void
open_and_show(const struct kvt_config_sources *sources)
{
    struct kvt_config *config;

    if (kvt_config_check(sources, ignore, NULL) == 0) {
        /* A configuration that passes the check must open. */
        if (kvt_config_open(sources, &config))
            abort();
        char *json = kvt_config_json(config);
        if (!json)
            abort();
        kvt_free(json);
        kvt_config_free(config);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const nothing[] = { NULL };
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    char path[32], *variable = malloc(size + 32);
    int fd = memfd_create("yaml", MFD_CLOEXEC);

    if (fd < 0 || !variable || write(fd, data, size) != (ssize_t)size)
        abort();
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    sources.file = path;
    sources.environment = nothing;
    open_and_show(&sources);
    close(fd);

    static const char name[] = "LMCACHE_EXTRA_CONFIG=";
    memcpy(variable, name, sizeof name - 1);
    memcpy(variable + sizeof name - 1, data, size);
    variable[sizeof name - 1 + size] = 0;
    const char *const environment[] = { variable, NULL };
    sources.file = NULL;
    sources.environment = environment;
    open_and_show(&sources);
    free(variable);
    return 0;
}
