/* SPDX-License-Identifier: Apache-2.0
 *
 * A handle in a forked child.  Every call reports that the handle belongs to another process,
 * closing the handle is harmless, and the parent is not affected. */
#include "system/system-test.h"

struct shared {
    struct fixture f;
    struct kvt_seq *seq;
    struct kvt_load *load; /* in flight */
    struct io io;
};

static void
use_in_child(void *arg)
{
    struct shared *s = arg;
    struct kvt_engine *e = s->f.engine;
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    struct kvt_seq *seq = NULL;
    struct kvt_load *load = NULL;
    uint64_t hit, values[64];

    assert_int_equal(kvt_engine_lookup(e, s->seq, 0, N_TOKENS, &hit), -ESTALE);
    assert_non_null(strstr(kvt_last_error(), "fork"));
    assert_int_equal(kvt_engine_store(e, &s->io.io, 1), -ESTALE);
    assert_int_equal(kvt_engine_load(e, &s->io.io, 1, 0, &load), -ESTALE);
    assert_int_equal(kvt_engine_flush(e, -1), -ESTALE);
    assert_int_equal(kvt_engine_reset(e, NULL), -ESTALE);
    assert_int_equal(kvt_engine_set_view(e, 0, &view), -ESTALE);
    assert_int_equal(kvt_seq_new(e, s->f.tokens, 10, NULL, &seq), -ESTALE);
    assert_int_equal(kvt_engine_poll(e, &load, 1), 0);
    kvt_engine_release(e, s->seq);
    kvt_engine_counters(e, values, 64);
    kvt_load_cancel(s->load);
    kvt_engine_close(e);
    kvt_engine_close(e);
}

static void
calls_on_the_parents_engine_fail_in_a_child(void **state)
{
    static struct shared s;

    (void)state;
    fixture_init(&s.f);
    fixture_open(&s.f, NULL);
    write_chunks(&s.f, 0, 8);
    s.seq = new_seq(&s.f, N_TOKENS);
    assert_int_equal(lookup(&s.f, s.seq, 0, N_TOKENS), 8 * CHUNK);
    make_io(&s.io, s.seq, 0, 0, 8, 1);
    for (unsigned i = 0; i < rounds(50); i++) {
        wipe(&s.f);
        assert_int_equal(kvt_engine_load(s.f.engine, &s.io.io, 1, i, &s.load), 0);
        pid_t child = start_child(use_in_child, &s);
        struct pollfd fd = { .fd = kvt_engine_eventfd(s.f.engine), .events = POLLIN };
        struct kvt_load *done;
        while (!kvt_engine_poll(s.f.engine, &done, 1))
            poll(&fd, 1, 1000);
        assert_ptr_equal(done, s.load);
        for (uint32_t c = 0; c < 8; c++) {
            assert_int_equal(kvt_load_status(done, 0, c), 0);
            assert_true(chunk_is_right(&s.f, &s.io, c));
        }
        kvt_load_free(done);
        assert_int_equal(end_child(child), 0);
    }
    kvt_engine_release(s.f.engine, s.seq);
    kvt_seq_free(s.seq);
    write_chunks(&s.f, 8, 2);
    assert_int_equal(load_prompt(&s.f).loaded, N_CHUNKS);
    fixture_fini(&s.f);
}

static int
stop_listing(void *ctx, const struct kvt_listed *listed)
{
    (void)ctx;
    (void)listed;
    return 1;
}

static void
use_store_in_child(void *arg)
{
    struct kvt_store *store = arg;
    struct kvt_op op = KVT_INIT(struct kvt_op), *ops[] = { &op };

    op.kind = KVT_OP_STAT;
    op.key = "m@1@0@1@bfloat16";
    assert_int_equal(kvt_store_run(store, &op), -ESTALE);
    assert_non_null(strstr(kvt_last_error(), "fork"));
    assert_int_equal(kvt_store_submit(store, ops, 1), -ESTALE);
    assert_int_equal(kvt_store_list(store, "", stop_listing, NULL), -ESTALE);
    kvt_store_close(store);
}

static void
calls_on_the_parents_store_fail_in_a_child(void **state)
{
    struct temp_dir dir;
    struct kvt_store *store;

    (void)state;
    temp_dir_make(&dir);
    struct kvt_config *config = open_config(dir.path, NULL);
    assert_int_equal(kvt_store_open(config, &store), 0);
    kvt_config_free(config);
    assert_int_equal(end_child(start_child(use_store_in_child, store)), 0);
    kvt_store_close(store);
    temp_dir_remove(&dir);
}

/* The child can open an engine on the same directory. */
static void
open_in_child(void *arg)
{
    struct fixture *f = arg;

    kvt_engine_close(f->engine);
    fixture_open(f, NULL);
    assert_int_equal(load_prompt(f).loaded, 8);
    write_chunks(f, 8, 2);
    kvt_engine_close(f->engine);
}

static void
a_child_can_open_an_engine(void **state)
{
    struct fixture f;

    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* the thread sanitizer does not follow threads of a forked child */
#endif
    fixture_init(&f);
    fixture_open(&f, NULL);
    write_chunks(&f, 0, 8);
    assert_int_equal(end_child(start_child(open_in_child, &f)), 0);
    assert_int_equal(load_prompt(&f).loaded, N_CHUNKS);
    fixture_fini(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_on_the_parents_engine_fail_in_a_child),
        cmocka_unit_test(calls_on_the_parents_store_fail_in_a_child),
        cmocka_unit_test(a_child_can_open_an_engine),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
