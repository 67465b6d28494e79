/* SPDX-License-Identifier: Apache-2.0
 *
 * Configurations from settings and variables of the test.  The user's configuration file is never
 * read. */
#ifndef KVT_TEST_CONFIG_H
#define KVT_TEST_CONFIG_H

#include <stdio.h>
#include <stdlib.h>

#include "kvt-test.h"
#include "kvtier.h"

/* Return the client of 3FS that this program tests: "own" or "library". */
static inline const char *
hf3fs_client(void)
{
    const char *client = getenv("HF3FS_CLIENT");

    return client ? client : "own";
}

/* Return a configuration.  environment: variables; NULL: the variables of the process.  The caller
 * frees the configuration. */
static inline struct kvt_config *
config_from(const char *const *environment, const char *const *settings)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config = NULL;

    sources.file = "/dev/null";
    sources.environment = environment;
    sources.settings = settings;
    if (kvt_config_open(&sources, &config))
        fail_msg("%s", kvt_last_error());
    return config;
}

/* Return $KVTIER_TEST_SERDE, the encoding of the chunks of a variant of this program; NULL: the
 * program's own settings. */
static inline const char *
test_serde(void)
{
    return getenv("KVTIER_TEST_SERDE");
}

static inline struct kvt_config *
config_with(const char *const *settings)
{
    char client[64], serde[3][64];
    const char *environment[] = { client, NULL, NULL, NULL, NULL };
    static const char *const names[] = { "REMOTE", "DISK", "GDS" };

    snprintf(client, sizeof client, "HF3FS_CLIENT=%s", hf3fs_client());
    for (size_t i = 0; test_serde() && i < 3; i++) {
        snprintf(serde[i], sizeof serde[i], "LMCACHE_%s_SERDE=%s", names[i], test_serde());
        environment[i + 1] = serde[i];
    }
    return config_from(environment, settings);
}

#endif
