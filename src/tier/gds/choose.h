/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a directory of gds_path is reached directly by a GPU or through host memory, and
 * why: one answer for who opens it and for kvtier doctor.  Any thread; blocks for as long
 * as gpu/gds/probe.h says. */
#ifndef KVT_TIER_GDS_CHOOSE_H
#define KVT_TIER_GDS_CHOOSE_H

#include "gpu/gds/probe.h"
#include "tier/tier.h"

/* What a configuration wants of it. */
struct kvt__gds_wish {
    enum kvt__gds_kind kind;
    bool direct;        /* where it can be had */
    char why_not[48];   /* if it does not */
    char demanded[200]; /* the setting that takes nothing else, with its place; "": none */
};

void kvt__gds_wish(const struct kvt_config *config, struct kvt__gds_wish *out);

struct kvt__gds_choice {
    bool direct; /* by kvt__gds_driver_open(wish->kind, p2pdma) */
    bool p2pdma;
    char text[768]; /* the line that says what was chosen and why */
};

/* ordinal: the device's number; below 0: this process keeps its KV on none.  0; or -ENODEV
 * with a sentence that names the missing layer: direct transfers are demanded and cannot be
 * had. */
int kvt__gds_choose(const struct kvt__gds_wish *wish, const struct kvt__gds_probe *how,
                    int ordinal, const char *path, struct kvt__gds_choice *out);

/* Tell it of each directory of a comma list and each GPU ("GPU 3"), asked anew; what is of
 * no GPU is about "gds". */
void kvt__gds_look(const struct kvt_config *config, const struct kvt__gds_probe *how,
                   const char *list, kvt__tier_look_fn fn, void *ctx);

#endif
