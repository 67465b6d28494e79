/* SPDX-License-Identifier: Apache-2.0
 *
 * Probe several GPUs in parallel, with a thread for each probe, because a probe blocks. */
#include "base/thread.h"
#include "gpu/gds/probe.h"

struct asking {
    const struct kvt__gds_probe *how;
    enum kvt__gds_kind kind;
    int ordinal;
    const char *path;
    struct kvt__gds_finding found;
    pthread_t thread;
    bool threaded;
};

static void *
ask(void *arg)
{
    struct asking *a = arg;

    /* found.text has the sentence; kvt__why() of this thread is not used. */
    (void)!kvt__gds_probe(a->how, a->kind, a->ordinal, a->path, &a->found);
    return NULL;
}

void
kvt__gds_probe_all(const struct kvt__gds_probe *how, enum kvt__gds_kind kind,
                   const char *path, kvt__gds_probed_fn fn, void *ctx)
{
    struct asking all[KVT__GDS_MAX_GPUS];

    all[0] = (struct asking){ .how = how, .kind = kind, .path = path };
    ask(&all[0]);
    fn(ctx, 0, &all[0].found);
    int n = all[0].found.n_gpus;
    if (n > KVT__GDS_MAX_GPUS)
        n = KVT__GDS_MAX_GPUS;
    for (int i = 1; i < n; i++) {
        all[i] = (struct asking){ .how = how, .kind = kind, .path = path, .ordinal = i };
        all[i].threaded = !kvt__thread_start(&all[i].thread, "kvt-gds", ask, &all[i]);
    }
    for (int i = 1; i < n; i++) {
        if (all[i].threaded)
            pthread_join(all[i].thread, NULL);
        else
            ask(&all[i]);
        fn(ctx, i, &all[i].found);
    }
}
