/* SPDX-License-Identifier: Apache-2.0
 *
 * kvt_engine_media(): a medium holds a chunk while every rank has the chunk there. */
#include <pthread.h>

#include "engine-test.h"
#include "engine/private.h"

#define N_CHUNKS (N_TOKENS / CHUNK)
#define BOTH (KVT_MEDIUM_MEMORY | KVT_MEDIUM_STORAGE)

static const char *const with_memory[] = { "local_cpu=true", NULL };

/* Ask for chunks 0 .. N_CHUNKS - 1 of a sequence. */
static void
ask(struct kvt_engine *engine, const struct kvt_seq *seq, const char *tags, uint8_t *out)
{
    struct kvt_chunk chunks[N_CHUNKS];
    struct kvt_group_io io = { .n_chunks = N_CHUNKS, .chunks = chunks, .tags = tags };

    assert_int_equal(kvt_seq_chunks(seq, 0, N_CHUNKS, chunks), 0);
    memset(out, 0xff, N_CHUNKS);
    if (kvt_engine_media(engine, &io, out))
        fail_msg("%s", kvt_last_error());
}

/* Check that the first n chunks of the prompt are in these media, and no other chunk is in a
 * medium. */
static void
check_media(const struct fixture *f, size_t n, uint8_t media)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint8_t got[N_CHUNKS];

    ask(f->engine, seq, NULL, got);
    for (size_t i = 0; i < N_CHUNKS; i++)
        assert_int_equal(got[i], i < n ? media : 0);
    kvt_seq_free(seq);
}

static void
a_stored_chunk_is_in_memory_and_storage_and_after_a_restart_in_storage(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, with_memory);
    check_media(f, 0, 0);
    store_prefix(f, 4);
    check_media(f, 4, BOTH);
    reopen(f, with_memory);
    check_media(f, 4, KVT_MEDIUM_STORAGE);
}

static void
memory_that_keeps_no_stored_chunk_does_not_count(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, NULL);
    store_prefix(f, 4);
    check_media(f, 4, KVT_MEDIUM_STORAGE);
}

static void
memory_for_prefetches_does_not_count(void **state)
{
    struct fixture *f = *state;
    struct io io;

    fixture_open_shared(f, NULL);
    store_prefix(f, 2);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 0, 2, 1);
    io.io.blocks = NULL;
    io.io.n_blocks = 0;
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), 0);
    while (counter(f, "prefetch_chunks") < 2)
        usleep(200);
    check_media(f, 2, KVT_MEDIUM_SHARED_STORAGE);
    kvt_seq_free(seq);
}

static void
a_lossy_store_finds_its_own_chunks(void **state)
{
    struct fixture *f = *state;
    static const char *const settings[] = { "local_cpu=true", "remote_serde=kv8", NULL };

    fixture_open(f, settings);
    store_prefix(f, 4);
    check_media(f, 4, BOTH);
}

static void
a_call_takes_any_number_of_chunks(void **state)
{
    struct fixture *f = *state;
    struct kvt_chunk chunks[100];
    struct kvt_group_io io = { .n_chunks = 100, .chunks = chunks };
    uint8_t got[100];

    fixture_open(f, with_memory);
    store_prefix(f, 1);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(kvt_seq_chunks(seq, i % 2, 1, &chunks[i]), 0);
    assert_int_equal(kvt_engine_media(f->engine, &io, got), 0);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(got[i], i % 2 ? 0 : BOTH);
    kvt_seq_free(seq);
}

static void
storage_of_several_hosts_is_a_medium_of_its_own(void **state)
{
    struct fixture *f = *state;

    fixture_open_shared(f, "local_cpu=true");
    store_prefix(f, 4);
    check_media(f, 4, KVT_MEDIUM_MEMORY | KVT_MEDIUM_SHARED_STORAGE);
}

static void
an_object_of_unknown_identity_does_not_count(void **state)
{
    struct fixture *f = *state;
    struct kvt__store_req req = { 0 };
    struct kvt_chunk chunk;

    fixture_open_shared(f, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_seq_chunks(seq, 0, 1, &chunk), 0);
    kvt__fill_request(f->engine, 0, 0, &kvt__keyspace(f->engine, 0, 0)->space, &chunk, &req);
    kvt__store_enter_unread(f->engine->store, &req);
    struct kvt__chunk_key key = kvt__request_key(&req);
    assert_true(kvt__store_find(f->engine->store, &key, KVT__READ_FIRST));
    check_media(f, 0, 0);
    kvt_seq_free(seq);
}

static void
storage_that_lookups_leave_out_does_not_count(void **state)
{
    struct fixture *f = *state;
    static const char *const settings[] = {
        "local_cpu=true", "retrieve_locations=[\"LocalCPUBackend\"]", NULL };

    fixture_open(f, settings);
    store_prefix(f, 4);
    check_media(f, 4, KVT_MEDIUM_MEMORY);
}

static void
evictions_from_memory_leave_the_chunks_in_storage(void **state)
{
    struct fixture *f = *state;
    static const char *const settings[] = { "local_cpu=true", "max_local_cpu_size=0.0005",
                                            NULL };

    fixture_open(f, settings);
    store_prefix(f, N_CHUNKS);
    struct kvt_seq *first = new_seq(f, N_TOKENS);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        f->tokens[i] ^= 1;
    store_prefix(f, N_CHUNKS);
    uint8_t got[N_CHUNKS];
    size_t n = 0;
    ask(f->engine, first, NULL, got);
    for (size_t i = 0; i < N_CHUNKS; i++) {
        assert_true(got[i] & KVT_MEDIUM_STORAGE);
        n += got[i] & KVT_MEDIUM_MEMORY;
    }
    assert_true(n < N_CHUNKS); /* room for 12 of 20 chunks */
    kvt_seq_free(first);
}

static int
delete(void *ctx, const struct kvt_listed *listed)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);

    op.kind = KVT_OP_DELETE;
    op.key = listed->key;
    return kvt_store_run(ctx, &op);
}

static void
a_chunk_deleted_by_another_process_is_in_memory_only(void **state)
{
    struct fixture *f = *state;
    struct kvt_config *config = open_config(f->dir.path, with_memory);
    struct kvt_store *store;

    fixture_open(f, with_memory);
    store_prefix(f, 4);
    assert_int_equal(kvt_store_open(config, &store), 0);
    assert_int_equal(kvt_store_list(store, "", delete, store), 0);
    check_media(f, 4, KVT_MEDIUM_MEMORY);
    kvt_store_close(store);
    kvt_config_free(config);
}

static void
chunks_of_tags_are_found_with_the_tags_only(void **state)
{
    struct fixture *f = *state;
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq;
    struct io io;
    uint8_t got[N_CHUNKS];

    fixture_open(f, with_memory);
    extra.tags = "user%a";
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq), 0);
    make_io(&io, seq, 0, 0, 1, 1);
    io.io.tags = extra.tags;
    store_and_flush(f, &io.io, 1);
    ask(f->engine, seq, extra.tags, got);
    assert_int_equal(got[0], BOTH);
    ask(f->engine, seq, "user%b", got);
    assert_int_equal(got[0], KVT_MEDIUM_MEMORY); /* the identity alone is the name there */
    kvt_seq_free(seq);
    check_media(f, 0, 0);
}

static void
new_weights_have_no_chunks_and_the_old_chunks_stay(void **state)
{
    struct fixture *f = *state;
    uint8_t got[N_CHUNKS];

    fixture_open(f, with_memory);
    store_prefix(f, 4);
    struct kvt_seq *old = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_engine_reset(f->engine, NULL), 0);
    check_media(f, 0, 0);
    ask(f->engine, old, NULL, got);
    assert_int_equal(got[3], BOTH);
    kvt_seq_free(old);
}

static void
wrong_arguments_are_refused(void **state)
{
    struct fixture *f = *state;
    struct kvt_group_io io = { .group = 1 };

    fixture_open(f, NULL);
    assert_int_equal(kvt_engine_media(f->engine, &io, NULL), -EINVAL);
    io = (struct kvt_group_io){ .tags = "no value" };
    assert_int_equal(kvt_engine_media(f->engine, &io, NULL), -EINVAL);
}

/* ----------------------------------------------------------------------- ranks */

static void
a_chunk_counts_once_all_ranks_have_the_chunk(void **state)
{
    struct fixture *f = *state;
    char instance[64];
    struct io io;

    snprintf(instance, sizeof instance, "media-%d", (int)getpid());
    struct kvt_engine *workers[2] = { open_of_two(f, KVT_ROLE_WORKER, 0, with_memory, instance),
                                      open_of_two(f, KVT_ROLE_WORKER, 1, with_memory, instance) };
    f->engine = open_of_two(f, KVT_ROLE_SCHEDULER, 0, with_memory, instance);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    make_io(&io, seq, 0, 0, 3, 1);
    store_by(workers[1], &io.io, 1);
    check_media(f, 0, 0);
    store_by(workers[0], &io.io, 1);
    check_media(f, 3, BOTH);
    kvt_engine_close(workers[1]);
    check_media(f, 3, KVT_MEDIUM_STORAGE);
    kvt_engine_close(workers[0]);
    kvt_seq_free(seq);
}

/* -------------------------------------------------------------------- threads */

struct watch {
    const struct fixture *f;
    _Atomic int stop;
};

/* Ask until the caller stops the thread.  No medium loses a chunk: nothing is evicted. */
static void *
watch(void *ctx)
{
    struct watch *w = ctx;
    struct kvt_seq *seq = new_seq(w->f, N_TOKENS);
    uint8_t before[N_CHUNKS] = { 0 }, now[N_CHUNKS];

    while (!w->stop) {
        ask(w->f->engine, seq, NULL, now);
        for (size_t i = 0; i < N_CHUNKS; i++)
            assert_int_equal(before[i] & ~now[i], 0);
        memcpy(before, now, sizeof before);
    }
    kvt_seq_free(seq);
    return NULL;
}

static void
calls_during_stores_lose_no_chunk(void **state)
{
    struct fixture *f = *state;
    struct watch w = { .f = f };
    pthread_t thread;

    fixture_open(f, with_memory);
    assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
    for (uint32_t n = 1; n <= N_CHUNKS; n++)
        store_prefix(f, n);
    w.stop = 1;
    pthread_join(thread, NULL);
    check_media(f, N_CHUNKS, BOTH);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stored_chunk_is_in_memory_and_storage_and_after_a_restart_in_storage),
        TEST(memory_that_keeps_no_stored_chunk_does_not_count),
        TEST(memory_for_prefetches_does_not_count),
        TEST(a_lossy_store_finds_its_own_chunks),
        TEST(a_call_takes_any_number_of_chunks),
        TEST(storage_of_several_hosts_is_a_medium_of_its_own),
        TEST(an_object_of_unknown_identity_does_not_count),
        TEST(storage_that_lookups_leave_out_does_not_count),
        TEST(evictions_from_memory_leave_the_chunks_in_storage),
        TEST(a_chunk_deleted_by_another_process_is_in_memory_only),
        TEST(chunks_of_tags_are_found_with_the_tags_only),
        TEST(new_weights_have_no_chunks_and_the_old_chunks_stay),
        TEST(wrong_arguments_are_refused),
        TEST(a_chunk_counts_once_all_ranks_have_the_chunk),
        TEST(calls_during_stores_lose_no_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
