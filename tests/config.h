/* SPDX-License-Identifier: Apache-2.0
 *
 * A configuration of settings alone: nothing of the user's. */
#ifndef KVT_TEST_CONFIG_H
#define KVT_TEST_CONFIG_H

#include "kvt-test.h"
#include "kvtier.h"

static inline struct kvt_config *
config_with(const char *const *settings)
{
    static const char *const no_environment[] = { NULL };
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config = NULL;

    sources.file = "/dev/null";
    sources.environment = no_environment;
    sources.settings = settings;
    if (kvt_config_open(&sources, &config))
        fail_msg("%s", kvt_last_error());
    return config;
}

#endif
