/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of the settings of shared host memory.  After the check, shared_cpu is true if and
 * only if shared memory is on.  If shared memory is on, max_shared_cpu_size is the size, and
 * shared_cpu_path is not NULL. */
#include <stdio.h>

#include "conf/read.h"

#define MIN_GIB 0.0625 /* 64 MiB */
#define MAX_GIB 16384 /* as in settings.def */

static void
warn_without_effect(struct kvt__reading *r, enum kvt__param_at at)
{
    const struct kvt_config *c = r->config;
    const char *key = kvt__params[at].name;
    char why[320] = "";

    if (kvt__config_is_set(c, shared_cpu))
        snprintf(why, sizeof why, " (%s)", kvt__config_origin(c, shared_cpu));
    kvt__note(r, KVT__WARNING, key, c->origin[at],
              "%s (%s) has no effect: shared_cpu is false%s.", key, c->origin[at], why);
}

static void
check_size(struct kvt__reading *r, const char *key, double gib, const char *origin)
{
    if (gib < MIN_GIB)
        kvt__note(r, KVT__ERROR, key, origin,
                  "%s is %.4g GiB (%s), and shared host memory needs at least 0.0625 GiB "
                  "(64 MiB): set max_shared_cpu_size to at least 0.0625.", key, gib, origin);
    if (gib > MAX_GIB)
        kvt__note(r, KVT__ERROR, key, origin,
                  "%s is %.15g GiB (%s), and shared host memory has at most 16384 GiB: set "
                  "max_shared_cpu_size to at most 16384.", key, gib, origin);
}

void
kvt__check_shared_cpu(struct kvt__reading *r)
{
    struct kvt_config *c = r->config;
    bool has_size = c->max_shared_cpu_size > 0;

    if (has_size && !kvt__config_is_set(c, shared_cpu)) {
        c->shared_cpu = true;
        c->origin[KVT__AT_shared_cpu] = kvt__config_origin(c, max_shared_cpu_size);
    }
    if (!c->shared_cpu) {
        c->shared_cpu_path = NULL;
        if (has_size)
            warn_without_effect(r, KVT__AT_max_shared_cpu_size);
        if (c->shared_cpu_ttl)
            warn_without_effect(r, KVT__AT_shared_cpu_ttl);
    } else if (has_size) {
        check_size(r, "max_shared_cpu_size", c->max_shared_cpu_size,
                   kvt__config_origin(c, max_shared_cpu_size));
    } else {
        c->max_shared_cpu_size = c->max_local_cpu_size;
        c->origin[KVT__AT_max_shared_cpu_size] =
            kvt__arena_printf(&c->memory, "max_local_cpu_size, %s",
                              kvt__config_origin(c, max_local_cpu_size));
        check_size(r, "max_local_cpu_size", c->max_local_cpu_size,
                   kvt__config_origin(c, max_local_cpu_size));
    }
}
