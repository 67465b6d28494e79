/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine with N_RANKS workers in N_STAGES stages: the workers and the scheduler are engines of
 * this program.  A test defines both numbers before the include. */
#ifndef KVT_TEST_WORLD_H
#define KVT_TEST_WORLD_H

#include "system/system-test.h"

#define PER_STAGE (N_RANKS / N_STAGES)

static const char *const storage_only[] = { NULL };
static const char *const both[] = { "local_cpu=true", NULL };
static const char *const memory_only[] = { "remote_url=", "local_cpu=true", NULL };

struct world {
    struct fixture scheduler;
    struct fixture ranks[N_RANKS]; /* each with separate blocks */
    char instance[64];
    struct kvt_group groups[N_STAGES]; /* the group in each stage */
};

/* Make a world without engines. */
static inline struct world *
new_world(void)
{
    static unsigned number;
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    fixture_init(&w->scheduler);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        w->ranks[r] = w->scheduler;
        w->ranks[r].memory = calloc((size_t)N_LAYERS * N_BLOCKS, BLOCK_BYTES);
        assert_non_null(w->ranks[r].memory);
    }
    snprintf(w->instance, sizeof w->instance, "world-%d-%u", getpid(), number++);
    for (uint32_t s = 0; s < N_STAGES; s++)
        w->groups[s] = opaque_group();
    return w;
}

static inline void
close_engine(struct fixture *f)
{
    kvt_engine_close(f->engine);
    f->engine = NULL;
}

static inline void
close_world(struct world *w)
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        close_engine(&w->ranks[r]);
    close_engine(&w->scheduler);
}

/* cmocka's teardown. */
static inline int
free_world(void **state)
{
    struct world *w = *state;

    close_world(w);
    for (uint32_t r = 0; r < N_RANKS; r++)
        free(w->ranks[r].memory);
    fixture_fini(&w->scheduler);
    free(w);
    return 0;
}

static inline struct kvt_engine *
open_in_world(const struct world *w, uint32_t role, uint32_t rank, const char *const *settings)
{
    struct opening opening = { .role = role, .settings = settings, .n_groups = 1, .rank = rank,
                               .world_size = N_RANKS, .n_stages = N_STAGES,
                               .groups = &w->groups[rank / PER_STAGE],
                               .instance = w->instance };

    return must_open(&w->scheduler, &opening);
}

static inline void
open_rank(struct world *w, uint32_t r, const char *const *settings)
{
    w->ranks[r].engine = open_in_world(w, KVT_ROLE_WORKER, r, settings);
    set_view(w->ranks[r].engine, 0, w->ranks[r].memory);
}

static inline void
open_workers(struct world *w, const char *const *settings)
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        open_rank(w, r, settings);
}

static inline void
open_world(struct world *w, const char *const *settings)
{
    open_workers(w, settings);
    w->scheduler.engine = open_in_world(w, KVT_ROLE_SCHEDULER, 0, settings);
}

#endif
