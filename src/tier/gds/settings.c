/* SPDX-License-Identifier: Apache-2.0
 *
 * Check the settings of GDS together.  The old settings use_cufile and use_hipfile are aliases of
 * use_gds and gds_backend, and each of the old settings selects a library and turns GDS on or
 * off at the same time. */
#include <string.h>

#include "conf/read.h"

/* Return the value of an old setting at a level of the configuration: 1, 0, or -1 if the setting is
 * missing at this level. */
static int
old_switch(const struct kvt__reading *r, enum kvt__param_at at, enum kvt__source_level level)
{
    const struct kvt__node *node = r->old[at].node;

    return node && r->old[at].level == level && node->kind == KVT__SCALAR
        ? kvt__bool_word(node->text) : -1;
}

/* Report that two settings contradict each other. */
static void
contradiction(struct kvt__reading *r, const char *one, const char *one_origin,
              const char *other, const char *other_origin)
{
    kvt__note(r, KVT__ERROR, one, one_origin, "%s (%s) contradicts %s (%s): write one of "
              "them.", one, one_origin, other, other_origin);
}

/* Return true for use_cufile: false together with use_hipfile: true, which does not contradict and
 * does not turn GDS off. */
static bool
means_hipfile_instead(const struct kvt__reading *r, enum kvt__source_level level)
{
    return r->by_alias[KVT__AT_use_gds] && !old_switch(r, KVT__AT_use_gds, level) &&
           r->by_alias[KVT__AT_gds_backend] && !strcmp(r->config->gds_backend, "hipfile");
}

/* Report contradictions between settings of equal level.  Between levels, the higher level wins. */
static void
check_switches(struct kvt__reading *r)
{
    struct kvt_config *c = r->config;
    const enum kvt__source_level of_use = c->level[KVT__AT_use_gds];
    const enum kvt__source_level of_backend = c->level[KVT__AT_gds_backend];
    const struct kvt__node *cufile = r->old[KVT__AT_use_gds].node;
    const struct kvt__node *hipfile = r->old[KVT__AT_gds_backend].node;
    int says_cufile = old_switch(r, KVT__AT_use_gds, of_backend);
    int says_hipfile = old_switch(r, KVT__AT_gds_backend, of_use);

    if (of_use && means_hipfile_instead(r, of_use)) {
        c->use_gds = true;
        c->level[KVT__AT_use_gds] = KVT__FROM_DEFAULT;
    } else if (of_use && says_hipfile == 1 && !c->use_gds) {
        contradiction(r, "use_hipfile: true", hipfile->origin,
                      r->by_alias[KVT__AT_use_gds] ? "use_cufile: false" : "use_gds: false",
                      kvt__config_origin(c, use_gds));
    } else if (of_backend && says_cufile == 1 && strcmp(c->gds_backend, "cufile")) {
        bool old = r->by_alias[KVT__AT_gds_backend];

        contradiction(r, "use_cufile: true", cufile->origin,
                      old ? "use_hipfile: true" : !strcmp(c->gds_backend, "hipfile")
                          ? "gds_backend: hipfile" : "gds_backend: mufile",
                      kvt__config_origin(c, gds_backend));
    } else if (of_backend && old_switch(r, KVT__AT_gds_backend, of_backend) == 1 &&
               strcmp(c->gds_backend, "hipfile")) {
        contradiction(r, "use_hipfile: true", hipfile->origin,
                      !strcmp(c->gds_backend, "cufile") ? "gds_backend: cufile"
                                                        : "gds_backend: mufile",
                      kvt__config_origin(c, gds_backend));
    }
}

void
kvt__check_gds(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, gds_backend);

    check_switches(r);
    if (c->gds_path && !strcmp(c->gds_backend, "mufile"))
        kvt__note(r, KVT__WARNING, "gds_backend", origin,
                  "gds_backend is mufile (%s): kvtier has no mover for MUSA; files are "
                  "moved through host memory.", origin);
}
