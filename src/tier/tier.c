/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of tiers, made from the one in meson.build. */
#include "tier/tier.h"

#include <errno.h>
#include <string.h>

#include "tier-list.h"

#define KVT_TIER(kind) extern const struct kvt__tier_ops kvt__tier_##kind;
KVT_TIERS
#undef KVT_TIER

#define KVT_TIER(kind) &kvt__tier_##kind,
static const struct kvt__tier_ops *const tiers[] = { KVT_TIERS NULL };
#undef KVT_TIER

static bool
serves(const struct kvt__tier_ops *ops, const char *scheme, size_t n)
{
    for (const char *word = ops->schemes; *word;) {
        size_t len = strcspn(word, " ");

        if (len == n && !strncmp(word, scheme, n))
            return true;
        word += len;
        word += strspn(word, " ");
    }
    return false;
}

int
kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__tier_params with_rest = *params;
    const char *url = params->url, *rest = strstr(url, "://");

    if (!rest)
        return kvt__fail(EINVAL, "%s: '%s' is no URL; write SCHEME://..., for "
                         "example fs:///var/cache/kvtier.", params->name, url);
    with_rest.rest = rest + 3;
    for (size_t i = 0; tiers[i]; i++)
        if (serves(tiers[i], url, (size_t)(rest - url)))
            return tiers[i]->open(&with_rest, out);
    return kvt__fail(ENODEV, "%s: this kvtier has no tier for '%.*s://'; a directory is "
                     "fs:///DIRECTORY.", params->name, (int)(rest - url), url);
}
