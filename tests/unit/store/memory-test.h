/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over a directory with chunks in host memory. */
#ifndef KVT_MEMORY_TEST_H
#define KVT_MEMORY_TEST_H

#include "store-test.h"

#include "mem/pool.h"

#define N_CHUNKS 8u /* chunks that fit in the host memory */

struct memory {
    struct env e;
    struct kvt__pool *pool;
};

/* Add host memory to the store of an environment. */
static inline void
add_memory(struct env *e, struct kvt__memory_params params)
{
    struct kvt_config *config = config_with(NULL);

    params.config = config;
    params.n_ranks = 1;
    params.object_bytes = BYTES;
    if (kvt__store_add_memory(e->store, &params))
        fail_msg("%s", kvt__why());
    kvt_config_free(config);
}

/* Return the parameters of a worker of an engine.  instance NULL: no other process sees the
 * memory. */
static inline struct kvt__memory_params
worker_memory(const struct memory *m, const char *instance)
{
    return (struct kvt__memory_params){
        .pool = m->pool, .instance = instance,
        .limit_bytes = N_CHUNKS * kvt__pool_footprint(m->pool, BYTES) };
}

static inline void
open_memory_pool(struct memory *m)
{
    struct kvt__pool_params params = { .bytes = 1 << 20, .key = "test" };

    if (kvt__pool_open(&params, &m->pool))
        fail_msg("%s", kvt__why());
    kvt__pool_wait_populated(m->pool, params.bytes);
}

/* cmocka's setup: a store, and host memory for N_CHUNKS chunks. */
static inline int
memory_setup(void **state)
{
    static struct memory m;

    env_init(&m.e);
    m.e.store = open_over(&m.e, "", NULL);
    open_memory_pool(&m);
    add_memory(&m.e, worker_memory(&m, NULL));
    *state = &m;
    return 0;
}

/* All slots are back after the store is closed. */
static inline int
memory_teardown(void **state)
{
    struct memory *m = *state;

    env_fini(&m->e);
    assert_int_equal(kvt__pool_used(m->pool), 0);
    kvt__pool_close(m->pool);
    return 0;
}

#define MEMORY_TEST(fn) cmocka_unit_test_setup_teardown(fn, memory_setup, memory_teardown)

#endif
