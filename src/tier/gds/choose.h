/* SPDX-License-Identifier: Apache-2.0
 *
 * Choose the data path of a directory of gds_path: direct transfers with a GPU, or copies through
 * host memory.  The tier and kvtier doctor use this choice.  Any thread; blocks as long as a probe
 * (gpu/gds/probe.h). */
#ifndef KVT_TIER_GDS_CHOOSE_H
#define KVT_TIER_GDS_CHOOSE_H

#include "gpu/gds/probe.h"
#include "tier/tier.h"

/* The data path that a configuration requests. */
struct kvt__gds_preference {
    enum kvt__gds_kind kind;
    bool direct;             /* use direct transfers where they work */
    char why_not_direct[48]; /* the reason if `direct` is false */
    char required_by[200];   /* the setting that requires direct transfers, and its origin, for
                              * messages; "": copies through host memory are allowed */
};

/* Read the preference from the configuration. */
void kvt__gds_read_preference(const struct kvt_config *config,
                              struct kvt__gds_preference *out);

/* The chosen data path of a directory. */
struct kvt__gds_choice {
    bool direct;    /* true: call kvt__gds_driver_open(want->kind, p2pdma); false: copies through
                     * host memory */
    bool p2pdma;
    char text[768]; /* a log line: the choice and the reason */
};

/* Choose the data path of the directory `path`.  ordinal: the GPU's number; negative: the KV of
 * this process is on no GPU.  0; -ENODEV with a sentence that names the failed layer: direct
 * transfers are required and do not work.  out->text is valid in both cases. */
int kvt__gds_choose(const struct kvt__gds_preference *want,
                    const struct kvt__gds_probe_params *params, int ordinal,
                    const char *path, struct kvt__gds_choice *out);

/* Probe each directory of a comma-separated list with each GPU, without cached results, and
 * report each result.  Subject of the report: "GPU 3", or "gds" for a result that concerns no
 * single GPU. */
void kvt__gds_check(const struct kvt_config *config,
                    const struct kvt__gds_probe_params *params, const char *list,
                    const struct kvt__reporter *to);

#endif
