/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies through host memory are no failure: kvtier's own copies are at least as fast as the
 * libraries' compat modes.  Only a configuration that requires direct transfers (use_gds: true, or
 * gds_backend: hipfile) gets an error if direct transfers do not work. */
#include "tier/gds/choose.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "conf/conf.h"
#include "tier/files/files.h"

#define BOUNCE "bytes go through host memory"

void
kvt__gds_read_preference(const struct kvt_config *config, struct kvt__gds_preference *out)
{
    bool hipfile = !strcmp(config->gds_backend, "hipfile");

    *out = (struct kvt__gds_preference){ .kind = hipfile ? KVT__GDS_HIPFILE
                                                         : KVT__GDS_CUFILE };
    if (!strcmp(config->gds_backend, "mufile"))
        snprintf(out->why_not_direct, sizeof out->why_not_direct,
                 "kvtier does not use muFile");
    else if (!config->use_gds)
        snprintf(out->why_not_direct, sizeof out->why_not_direct, "use_gds is false");
    else
        out->direct = true;
    if (!out->direct)
        return;
    if (kvt__config_is_set(config, use_gds))
        snprintf(out->required_by, sizeof out->required_by, "use_gds is true (%s)",
                 kvt__config_origin(config, use_gds));
    else if (hipfile && kvt__config_is_set(config, gds_backend))
        snprintf(out->required_by, sizeof out->required_by, "gds_backend is hipfile (%s)",
                 kvt__config_origin(config, gds_backend));
}

/* Format the text of a choice.  Return 0. */
static int set_text(struct kvt__gds_choice *choice, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int
set_text(struct kvt__gds_choice *choice, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(choice->text, sizeof choice->text, fmt, ap);
    va_end(ap);
    return 0;
}

/* Choose copies through host memory because a layer failed; -ENODEV if direct transfers are
 * required.  why: a sentence that ends with a full stop. */
static int
refuse(const struct kvt__gds_preference *want, const char *path, enum kvt__gds_layer layer,
       const char *why, struct kvt__gds_choice *out)
{
    if (!*want->required_by)
        return set_text(out, "%s: " BOUNCE "; direct transfers lack %s: %s", path,
                        kvt__gds_layer_name(layer), why);
    size_t n = strlen(why);
    while (n && why[n - 1] == '.')
        n--;
    kvt__fail(ENODEV, "%s, and %s is missing for %s: %.*s.", want->required_by,
              kvt__gds_layer_name(layer), path, (int)n, why);
    set_text(out, "%s", kvt__why());
    return -ENODEV;
}

/* Choose by the result of a probe.  by: the beginning of the message, "GPU 3 reaches it directly"
 * or "it is reached directly". */
static int
decide(const struct kvt__gds_preference *want, const char *path, const char *by,
       const struct kvt__gds_finding *f, struct kvt__gds_choice *out)
{
    *out = (struct kvt__gds_choice){ 0 };
    if (f->layer)
        return refuse(want, path, f->layer, f->text, out);
    out->direct = true;
    out->p2pdma = f->p2pdma;
    return set_text(out, "%s: %s by %s%s (%s).", path, by, f->library,
                    f->p2pdma ? " and P2PDMA" : "",
                    f->cached ? "found earlier since this host was started"
                              : "1 MiB was written and read back");
}

int
kvt__gds_choose(const struct kvt__gds_preference *want,
                const struct kvt__gds_probe_params *params, int ordinal, const char *path,
                struct kvt__gds_choice *out)
{
    struct kvt__gds_finding f;
    char by[48];

    *out = (struct kvt__gds_choice){ 0 };
    if (!want->direct)
        return set_text(out, "%s: " BOUNCE ": %s.", path, want->why_not_direct);
    if (ordinal < 0)
        return refuse(want, path, KVT__GDS_GPU, "the KV of this process is on no GPU.", out);
    (void)!kvt__gds_probe(params, want->kind, ordinal, path, &f); /* f contains the error */
    snprintf(by, sizeof by, "GPU %d reaches it directly", ordinal);
    return decide(want, path, by, &f, out);
}

/* ------------------------------------------------------------------------- doctor */

struct report_context {
    const struct kvt__gds_preference *want;
    const char *path;
    const struct kvt__reporter *to;
};

static void
on_probed(void *ctx, int ordinal, const struct kvt__gds_finding *f)
{
    const struct report_context *l = ctx;
    struct kvt__gds_choice choice;
    char about[16] = "gds";

    if (f->n_gpus)
        snprintf(about, sizeof about, "GPU %d", ordinal);
    int err = decide(l->want, l->path, "it is reached directly", f, &choice);
    kvt__report(l->to, about, err, "%s", choice.text);
}

void
kvt__gds_check(const struct kvt_config *config, const struct kvt__gds_probe_params *params,
               const char *list, const struct kvt__reporter *to)
{
    struct kvt__gds_probe_params fresh = *params;
    struct kvt__gds_choice choice;
    struct kvt__gds_preference want;
    struct report_context context = { &want, NULL, to };
    char dir[PATH_MAX];
    const char *path;
    struct stat st;
    size_t n;

    fresh.no_cache = true;
    kvt__gds_read_preference(config, &want);
    while (kvt__next_path(&list, &path, &n)) {
        snprintf(dir, sizeof dir, "%.*s", (int)n, path);
        if (config->use_gds && stat(dir, &st) && errno == ENOENT) {
            kvt__report(to, "gds", 0, "%s does not exist yet: create it and run this again "
                        "to see whether a GPU reaches it directly.", dir);
            continue;
        }
        context.path = dir;
        if (want.direct) {
            kvt__gds_probe_all(&fresh, want.kind, dir, on_probed, &context);
            continue;
        }
        int err = kvt__gds_choose(&want, params, -1, dir, &choice);
        kvt__report(to, "gds", err, "%s", choice.text);
    }
}
