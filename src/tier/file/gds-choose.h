/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a directory of gds_path is reached directly by a GPU or through host memory, and
 * why: one answer for who opens it and for kvtier doctor.  Any thread; blocks for as long
 * as gpu/gds/probe.h says. */
#ifndef KVT_TIER_FILE_GDS_CHOOSE_H
#define KVT_TIER_FILE_GDS_CHOOSE_H

#include "gpu/gds/probe.h"
#include "tier/tier.h"

struct kvt__gds_choice {
    bool direct; /* by kvt__gds_driver_open(kind, p2pdma) */
    enum kvt__gds_kind kind;
    bool p2pdma;
    char text[768]; /* the line that says what was chosen and why */
};

/* ordinal: the device's number; below 0: this process uses none.  0; or -ENODEV with a
 * sentence that names the missing layer: the configuration asks for direct transfers and
 * they cannot be had. */
int kvt__gds_choose(const struct kvt_config *config, const struct kvt__gds_probe *how,
                    int ordinal, const char *path, struct kvt__gds_choice *out);

/* Tell it of each directory of a comma list and the first GPU, asked anew. */
void kvt__gds_look(const struct kvt_config *config, const struct kvt__gds_probe *how,
                   const char *list, kvt__tier_look_fn fn, void *ctx);

#endif
