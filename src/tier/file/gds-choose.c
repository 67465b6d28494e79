/* SPDX-License-Identifier: Apache-2.0
 *
 * Through host memory is no failure: our own bounce is at least as good as the libraries'
 * compat modes.  Only who demands a direct way (use_gds: true, or hipFile by name) is told
 * that there is none instead of being served another. */
#include "tier/file/gds-choose.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "conf/conf.h"
#include "tier/file/file.h"

#define BOUNCE "bytes go through host memory"

static bool
is_hipfile(const struct kvt_config *config)
{
    return !strcmp(config->gds_backend, "hipfile");
}

/* The setting that demands it, with its place; false: none does. */
static bool
demand(const struct kvt_config *config, char *out, size_t size)
{
    if (kvt__config_is_set(config, use_gds) && config->use_gds)
        snprintf(out, size, "use_gds is true (%s)", kvt__config_origin(config, use_gds));
    else if (kvt__config_is_set(config, gds_backend) && is_hipfile(config))
        snprintf(out, size, "gds_backend is hipfile (%s)",
                 kvt__config_origin(config, gds_backend));
    else
        return false;
    return true;
}

static int say(struct kvt__gds_choice *choice, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int
say(struct kvt__gds_choice *choice, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(choice->text, sizeof choice->text, fmt, ap);
    va_end(ap);
    return 0;
}

/* It cannot be: an error for who demands it.  why: a sentence with its full stop. */
static int
refuse(const struct kvt_config *config, const char *path, enum kvt__gds_layer layer,
       const char *why, struct kvt__gds_choice *out)
{
    char wanted[200];

    if (!demand(config, wanted, sizeof wanted))
        return say(out, "%s: " BOUNCE "; missing for a direct way: %s: %s", path,
                   kvt__gds_layer_name(layer), why);
    size_t n = strlen(why);
    while (n && why[n - 1] == '.')
        n--;
    kvt__fail(ENODEV, "%s, and %s is missing for %s: %.*s.", wanted,
              kvt__gds_layer_name(layer), path, (int)n, why);
    say(out, "%s", kvt__why());
    return -ENODEV;
}

int
kvt__gds_choose(const struct kvt_config *config, const struct kvt__gds_probe *how,
                int ordinal, const char *path, struct kvt__gds_choice *out)
{
    struct kvt__gds_finding f;

    *out = (struct kvt__gds_choice){ .kind = is_hipfile(config) ? KVT__GDS_HIPFILE
                                                                : KVT__GDS_CUFILE };
    if (!strcmp(config->gds_backend, "mufile"))
        return say(out, "%s: " BOUNCE ": kvtier does not use muFile.", path);
    if (!config->use_gds)
        return say(out, "%s: " BOUNCE ": use_gds is false.", path);
    if (ordinal < 0)
        return refuse(config, path, KVT__GDS_GPU, "this process keeps its KV on none.",
                      out);
    if (kvt__gds_probe(how, out->kind, ordinal, path, &f))
        return refuse(config, path, f.layer, f.text, out);
    out->direct = true;
    out->p2pdma = f.p2pdma;
    return say(out, "%s: GPU %d reaches it directly by %s%s (%s).", path, ordinal,
               f.library, f.p2pdma ? " and P2PDMA" : "",
               f.kept ? "found earlier since this host was started"
                      : "1 MiB was written and read back");
}

void
kvt__gds_look(const struct kvt_config *config, const struct kvt__gds_probe *how,
              const char *list, kvt__tier_look_fn fn, void *ctx)
{
    struct kvt__gds_probe again = *how;
    struct kvt__gds_choice choice;
    char dir[PATH_MAX], text[PATH_MAX + 128];
    const char *path;
    struct stat st;
    size_t n;

    again.again = true;
    while (kvt__next_path(&list, &path, &n)) {
        snprintf(dir, sizeof dir, "%.*s", (int)n, path);
        if (config->use_gds && stat(dir, &st) && errno == ENOENT) {
            snprintf(text, sizeof text, "%s is not there yet: make it and ask again to see "
                     "whether a GPU reaches it directly.", dir);
            fn(ctx, "gds", 0, text);
            continue;
        }
        int err = kvt__gds_choose(config, &again, 0, dir, &choice);
        fn(ctx, "gds", err, choice.text);
    }
}
