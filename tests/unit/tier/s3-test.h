/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiers over the S3 server for tests, each with a prefix of its own. */
#ifndef KVT_S3_TEST_H
#define KVT_S3_TEST_H

#include "servers/s3-server.h"
#include "tier-test.h"

#define S3_MAX_SETTINGS 24

static inline bool
s3_is_set(const char *const *settings, const char *setting)
{
    size_t n = strcspn(setting, "=") + 1;

    while (settings && *settings)
        if (!strncmp(*settings++, setting, n))
            return true;
    return false;
}

/* Plain HTTP with the server's keys, but for what more says.  Name for messages:
 * remote_url. */
static inline int
s3_try_open(const char *url, const char *const *more, struct kvt__counters *counters,
            struct kvt__tier **out)
{
    static const char *const ours[] = {
        "disable_tls=true", "s3_region=us-east-1", "aws_access_key_id=" S3_ACCESS,
        "aws_secret_access_key=" S3_SECRET };
    const char *settings[S3_MAX_SETTINGS + 5] = { NULL };
    size_t n = 0;

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!s3_is_set(more, ours[i]))
            settings[n++] = ours[i];
    for (; more && *more; more++)
        if (!strchr(*more, '=') || strchr(*more, '=')[1]) /* "NAME=": not at all */
            settings[n++] = *more;
    struct kvt_config *config = config_with(settings);
    struct kvt__tier_params params = { .config = config, .url = url, .name = "remote_url",
                                       .local_ranks = 1, .counters = counters };
    int err = kvt__tier_open(&params, out);
    kvt_config_free(config);
    return err;
}

/* In path style, below the test's prefix. */
static inline void
s3_url(const struct s3_server *s, char *url, size_t room)
{
    snprintf(url, room, "s3://127.0.0.1:%u/" S3_BUCKET "/%s", s->port, s->prefix);
}

static inline struct kvt__tier *
s3_open_with(const struct s3_server *s, const char *const *more,
             struct kvt__counters *counters)
{
    struct kvt__tier *tier = NULL;
    char url[256];

    s3_url(s, url, sizeof url);
    if (s3_try_open(url, more, counters, &tier))
        fail_msg("%s: %s", url, kvt__why());
    return tier;
}

/* With the directory of its index, which it would leave for good. */
static inline void
s3_close(struct kvt__tier *tier)
{
    s3_remove_index(tier->ops->private_dir(tier));
    tier->ops->close(tier);
}

#endif
