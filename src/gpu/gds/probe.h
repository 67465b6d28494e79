/* SPDX-License-Identifier: Apache-2.0
 *
 * Probe whether direct transfers work between a GPU and a directory: a helper program,
 * kvtier-gds-probe, writes and reads a small file.  A success and a hang are cached until the host
 * reboots.  All other failures are probed again each time, because an administrator can remove
 * their causes without a reboot.  Any thread. */
#ifndef KVT_GPU_GDS_PROBE_H
#define KVT_GPU_GDS_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gds/failure.h"

/* The result of a probe. */
struct kvt__gds_finding {
    enum kvt__gds_layer layer; /* the layer that failed; KVT__GDS_NO_LAYER: success */
    int code;                  /* the library's status code or an errno */
    bool p2pdma;               /* success needs p2pdma in kvt__gds_driver_open() */
    int n_gpus;                /* GPUs that the driver counts; 0: not counted before the
                                * failure, or the result is from the cache */
    bool cached;               /* the result is from the cache */
    char library[48];          /* "libcufile 1.20"; "": the driver was not opened */
    char file[256];            /* path of the library's file; "": the driver was not opened */
    char text[512];            /* a sentence: the cause and a remedy; "": success */
};

struct kvt__gds_probe_params {
    const char *helper;    /* path of the program; NULL: the program installed with kvtier */
    const char *cache_dir; /* parent of the private directory with cached results */
    int64_t timeout_ms;    /* limit for the helper's time, from its start */
    bool no_cache;         /* ignore cached results */
};
#define KVT__GDS_PROBE_DEFAULTS                                                            \
    ((struct kvt__gds_probe_params){ NULL, "/var/tmp", 10000, false })

/* Probe whether GPU number `ordinal` reaches files in an existing directory.  Blocks for at most
 * timeout_ms plus about 0.1 s.  0: direct transfers work; else -errno, with out->text as the
 * sentence and with a layer and a code (kvt__gds_failure()). */
int kvt__gds_probe(const struct kvt__gds_probe_params *params, enum kvt__gds_kind kind,
                   int ordinal, const char *path, struct kvt__gds_finding *out);

/* Probe each GPU and pass each result to fn, on the calling thread.  The function probes the first
 * GPU alone, then the other GPUs in parallel.  If the driver cannot count the GPUs, fn receives one
 * result, with n_gpus 0.  Blocks for at most twice the time of a probe. */
#define KVT__GDS_MAX_GPUS 64
typedef void (*kvt__gds_probed_fn)(void *ctx, int ordinal,
                                   const struct kvt__gds_finding *f);
void kvt__gds_probe_all(const struct kvt__gds_probe_params *params, enum kvt__gds_kind kind,
                        const char *path, kvt__gds_probed_fn fn, void *ctx);

/* Directory of the helper program: absolute, or relative to the directory of the kvtier library. */
extern const char kvt__gds_helper_dir[];

/* ------------------------------------------------------------------ probe-cache.c */

/* Write the cache key of a result to out: boot, GPU, block device of the path, library, and the
 * environment variables that select library and GPU.  False: no key could be made, so the
 * result cannot be cached. */
bool kvt__gds_cache_key(enum kvt__gds_kind kind, int ordinal, const char *path,
                        const char *file, char *out, size_t size);

/* Read a cached result.  False: no valid result is cached, or the library's file has changed since
 * then. */
bool kvt__gds_cache_read(const char *cache_dir, const char *key,
                         struct kvt__gds_finding *out);

/* Cache a result.  A failure is not reported: the next call probes again. */
void kvt__gds_cache_write(const char *cache_dir, const char *key,
                          const struct kvt__gds_finding *f);

#endif
