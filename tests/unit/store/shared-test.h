/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over shared host memory in a directory of the test on /dev/shm. */
#ifndef KVT_SHARED_TEST_H
#define KVT_SHARED_TEST_H

#include "store-test.h"

struct shared {
    struct env e; /* first */
    char path[300];
    const char *settings[8];
};

/* cmocka's setup: no store is open. */
static inline int
shared_setup(void **state)
{
    static struct shared s;

    s = (struct shared){ 0 };
    env_init(&s.e);
    temp_dir_remove(&s.e.dir);
    temp_dir_make_in_memory(&s.e.dir);
    snprintf(s.path, sizeof s.path, "shared_cpu_path=%s", s.e.dir.path);
    s.settings[0] = s.path;
    s.settings[1] = "max_shared_cpu_size=0.0625";
    *state = &s;
    return 0;
}

static inline int
shared_teardown(void **state)
{
    struct shared *s = *state;

    temp_dir_remove(&s->e.dir);
    return 0;
}

#define SHARED_TEST(f) cmocka_unit_test_setup_teardown(f, shared_setup, shared_teardown)

/* Open a store.  more: a setting or NULL.  Return NULL with a sentence after an error. */
static inline struct kvt__store *
open_shared(struct shared *s, const char *more)
{
    const char *settings[] = { more, s->settings[0], s->settings[1], s->settings[2], NULL };
    struct kvt_config *config = config_with(settings + !more);
    struct kvt__tier_params params = { .config = config, .counters = &s->e.counters,
                                       .transfers = true };
    struct kvt__store *store = NULL;

    if (kvt__store_open(&params, &store))
        store = NULL;
    kvt_config_free(config);
    if (store)
        assert_int_equal(kvt__store_set_tags(store, &s->e.space, ""), 0);
    return store;
}

/* Store a chunk when the memory has been allocated. */
static inline void
put_soon(struct shared *s, unsigned i)
{
    int err;

    for (unsigned ms = 0; (err = put(&s->e, i)) == -ENOSPC && ms < 60 * 1000; ms++)
        usleep(1000);
    assert_int_equal(err, 0);
}

/* Open a store, and store chunk 1. */
static inline void
open_with_chunk_1(struct shared *s)
{
    s->e.store = open_shared(s, NULL);
    assert_non_null(s->e.store);
    put_soon(s, 1);
}

#endif
