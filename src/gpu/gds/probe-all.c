/* SPDX-License-Identifier: Apache-2.0
 *
 * Probe several GPUs in parallel, with a thread for each probe, because a probe blocks. */
#include "base/thread.h"
#include "gpu/gds/probe.h"

struct probe_thread {
    const struct kvt__gds_probe_params *params;
    enum kvt__gds_kind kind;
    int ordinal;
    const char *path;
    struct kvt__gds_finding found;
    pthread_t thread;
    bool threaded;
};

static void *
run_probe(void *arg)
{
    struct probe_thread *a = arg;

    /* found.text has the sentence; kvt__why() of this thread is not used. */
    (void)!kvt__gds_probe(a->params, a->kind, a->ordinal, a->path, &a->found);
    return NULL;
}

void
kvt__gds_probe_all(const struct kvt__gds_probe_params *params, enum kvt__gds_kind kind,
                   const char *path, kvt__gds_probed_fn fn, void *ctx)
{
    struct probe_thread all[KVT__GDS_MAX_GPUS];

    all[0] = (struct probe_thread){ .params = params, .kind = kind, .path = path };
    run_probe(&all[0]);
    fn(ctx, 0, &all[0].found);
    int n = all[0].found.n_gpus;
    if (n > KVT__GDS_MAX_GPUS)
        n = KVT__GDS_MAX_GPUS;
    for (int i = 1; i < n; i++) {
        all[i] = (struct probe_thread){ .params = params, .kind = kind, .path = path,
                                        .ordinal = i };
        all[i].threaded = !kvt__thread_start(&all[i].thread, "kvt-gds", run_probe, &all[i]);
    }
    for (int i = 1; i < n; i++) {
        if (all[i].threaded)
            pthread_join(all[i].thread, NULL);
        else
            run_probe(&all[i]);
        fn(ctx, i, &all[i].found);
    }
}
