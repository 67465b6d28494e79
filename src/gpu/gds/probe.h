/* SPDX-License-Identifier: Apache-2.0
 *
 * What really works between a GPU and a directory, found by a small write and read in a
 * program of its own (kvtier-gds-probe), and kept for as long as this host is up.  What
 * can be mended while it is up is asked again each time: all failures but a hang. */
#ifndef KVT_GPU_GDS_PROBE_H
#define KVT_GPU_GDS_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gds/trouble.h"

struct kvt__gds_finding {
    enum kvt__gds_layer layer; /* what is missing; KVT__GDS_NO_LAYER: it works */
    int code;                  /* the library's or an errno */
    bool p2pdma;               /* kvt__gds_driver_open() has to ask for it */
    int n_gpus;                /* that the driver counts; 0: it got not so far, or it is
                                * from an earlier time */
    bool kept;                 /* from an earlier time */
    char library[48];          /* "libcufile 1.20"; "": it got not so far */
    char file[256];            /* the library's */
    char text[512];            /* a sentence: why it does not, and what to do */
};

/* Whether device number ordinal reaches files in a directory, which is there.  0: it
 * does; else -errno, and the finding's text as the sentence.  Blocks for 10 s at most. */
int kvt__gds_works(enum kvt__gds_kind kind, int ordinal, const char *path,
                   struct kvt__gds_finding *out);

/* The same in another way. */
struct kvt__gds_probe {
    const char *helper;     /* the program; NULL: that of this library */
    const char *keep;       /* where the private directory of findings lies */
    int64_t deadline_ms;
    bool again;             /* what was kept is not asked */
};
#define KVT__GDS_PROBE_USUAL ((struct kvt__gds_probe){ NULL, "/var/tmp", 10000, false })
int kvt__gds_probe(const struct kvt__gds_probe *how, enum kvt__gds_kind kind, int ordinal,
                   const char *path, struct kvt__gds_finding *out);

/* Tell a finding of each GPU that the driver counts, or one with n_gpus 0 and of no GPU if
 * it does not: of the first, which is asked by itself, and then of the others, which are
 * asked at the same time.  Blocks for twice the time. */
#define KVT__GDS_MAX_GPUS 64
typedef void (*kvt__gds_probed_fn)(void *ctx, int ordinal,
                                   const struct kvt__gds_finding *f);
void kvt__gds_probe_all(const struct kvt__gds_probe *how, enum kvt__gds_kind kind,
                        const char *path, kvt__gds_probed_fn fn, void *ctx);

/* Where the helper is installed: absolute, or as seen from the library's directory. */
extern const char kvt__gds_helper_dir[];

/* ------------------------------------------------------------------------- kept.c */

/* What a finding is about: this boot, the device of the path, the library and what chooses
 * it.  False: that cannot be told, so nothing is kept. */
bool kvt__gds_key(enum kvt__gds_kind kind, int ordinal, const char *path, const char *file,
                  char *out, size_t size);

/* A finding that was kept.  False: there is none, or it is damaged, or the library's file
 * is another one now. */
bool kvt__gds_recall(const char *keep, const char *key, struct kvt__gds_finding *out);

/* Where it cannot be kept it is found again. */
void kvt__gds_store(const char *keep, const char *key, const struct kvt__gds_finding *f);

/* A layer by its word.  False: there is none such. */
bool kvt__gds_layer_of(const char *word, enum kvt__gds_layer *out);

#endif
