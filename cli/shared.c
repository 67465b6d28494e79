/* SPDX-License-Identifier: Apache-2.0 */
#include "shared.h"

#include <errno.h>
#include <string.h>

#include "common.h"

/* Settings that remove all storage from a configuration.  The first four settings configure
 * storage; the last two settings refer to configured storage. */
static const char *const no_storage[] = {
    "remote_url=", "remote_storage_plugins=", "local_disk=", "gds_path=",
    "retrieve_locations=", "store_location=",
};

#define N_OFF (sizeof no_storage / sizeof *no_storage)

int
cli_shared_open(const struct kvt_config_sources *sources, struct kvt_store **out)
{
    const char *settings[CLI_MAX_SETTINGS + N_OFF + 1] = { NULL };
    struct kvt_config_sources own = *sources;
    struct kvt_config *config;
    size_t n = 0;

    while (sources->settings && sources->settings[n] && n < CLI_MAX_SETTINGS) {
        settings[n] = sources->settings[n];
        n++;
    }
    memcpy(settings + n, no_storage, sizeof no_storage);
    own.settings = settings;
    cli_set_log(KVT_LOG_ERROR); /* hide warnings about repeated settings */
    int err = kvt_config_open(&own, &config);
    cli_set_log(KVT_LOG_DEFAULT);
    if (err)
        return err;
    err = kvt_store_open(config, out);
    kvt_config_free(config);
    return err == -EINVAL ? -ENOTSUP : err;
}

void
cli_shared_info(const struct kvt_store *store, struct kvt_tier_info *out)
{
    const struct kvt_tier_info nothing = KVT_INIT(struct kvt_tier_info);

    *out = nothing;
    for (size_t i = 0; !kvt_store_tier(store, i, out); i++)
        if (!strcmp(out->tier, "shared_cpu"))
            return;
    *out = nothing;
}
