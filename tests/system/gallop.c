/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups over a bucket that another host filled: the number of requests of a lookup, and
 * promises of prompts with missing chunks. */
#include "servers/s3-server.h"
#include "system/system-test.h"

#include "base/clock.h"
#include "engine/seq.h"

#define MAX_CHUNKS 1000u
#define MAX_RANKS 8u
#define BATCH 16u /* chunks of a struct io */

static struct s3_server server;
static int32_t tokens[MAX_CHUNKS * CHUNK];

struct world {
    struct fixture f; /* engine: the one under test, or the scheduler */
    struct kvt_engine *workers[MAX_RANKS];
    unsigned char *memory[MAX_RANKS]; /* blocks of the workers */
    const struct kvt_group *groups;
    uint32_t n_groups;
    char instance[64];
};

static int
setup(void **state)
{
    static unsigned number;
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    s3_server_reset(&server);
    fixture_init(&w->f);
    snprintf(w->instance, sizeof w->instance, "gallop-%d-%u", (int)getpid(), number++);
    *state = w;
    return 0;
}

static void
close_workers(struct world *w)
{
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        kvt_engine_close(w->workers[r]);
        w->workers[r] = NULL;
        free(w->memory[r]);
        w->memory[r] = NULL;
    }
}

static int
teardown(void **state)
{
    struct world *w = *state;

    close_workers(w);
    fixture_fini(&w->f);
    s3_remove_index_of(&server, "127.0.0.1", server.port, S3_BUCKET);
    s3_remove_index_of(&server, "localhost", server.port, S3_BUCKET);
    free(w);
    return 0;
}

/* An engine of a world of n_ranks.  host: NULL: without storage. */
static struct kvt_engine *
open_rank(struct world *w, const char *host, uint32_t role, uint32_t rank, uint32_t n_ranks)
{
    char remote[256] = "remote_url=";
    const char *settings[] = { remote, "local_cpu=true", "disable_tls=true",
                               "aws_access_key_id=" S3_ACCESS,
                               "aws_secret_access_key=" S3_SECRET, S3_PATIENT,
                               role == KVT_ROLE_SCHEDULER ? "max_local_cpu_size=1"
                                                          : "max_local_cpu_size=0.02",
                               NULL };
    struct opening opening = { .role = role, .settings = settings, .groups = w->groups,
                               .n_groups = w->n_groups, .world_size = n_ranks,
                               .rank = rank, .instance = w->instance };

    if (host)
        snprintf(remote, sizeof remote, "remote_url=s3://%s:%u/" S3_BUCKET "/%s", host,
                 server.port, server.prefix);
    struct kvt_engine *engine = must_open(&w->f, &opening);
    for (uint32_t g = 0; role & KVT_ROLE_WORKER && g < (w->groups ? w->n_groups : 1); g++)
        set_view(engine, g, w->memory[rank]);
    return engine;
}

static void
open_worker(struct world *w, const char *host, uint32_t rank, uint32_t n_ranks)
{
    w->memory[rank] = calloc((size_t)N_LAYERS * N_BLOCKS, BLOCK_BYTES);
    assert_non_null(w->memory[rank]);
    w->workers[rank] = open_rank(w, host, KVT_ROLE_WORKER, rank, n_ranks);
}

/* The fixture as a worker's. */
static struct fixture
rank_of(const struct world *w, uint32_t rank)
{
    struct fixture f = w->f;

    f.engine = w->workers[rank];
    f.memory = w->memory[rank];
    return f;
}

static struct kvt_seq *
seq_of(struct kvt_engine *engine, uint32_t n_chunks)
{
    struct kvt_seq *seq = NULL;

    assert_int_equal(kvt_seq_new(engine, tokens, n_chunks * CHUNK, NULL, &seq), 0);
    return seq;
}

/* Store a group's chunks first .. end - 1, as another host. */
static void
store_range(const struct fixture *f, uint32_t group, uint32_t first, uint32_t end)
{
    struct kvt_seq *seq = seq_of(f->engine, end);

    for (uint32_t c = first; c < end; c += BATCH) {
        struct io io;

        make_io(&io, seq, group, c, end - c < BATCH ? end - c : BATCH, 1);
        fill_io(f, &io);
        store_and_flush(f, &io.io, 1);
    }
    kvt_seq_free(seq);
}

/* Another prompt. */
static void
set_prompt(uint32_t prompt)
{
    for (uint32_t i = 0; i < MAX_CHUNKS * CHUNK; i++)
        tokens[i] = (int32_t)((i + prompt * 7919u) * 2654435761u % 32000);
}

static unsigned
max_calls(unsigned n)
{
    unsigned log2 = 0;

    while (1u << log2 < n)
        log2++;
    return 2 * log2 + 4;
}

/* ------------------------------------------------------------------ requests */

/* Look up n chunks until the search has ended; the number of chunks to read. */
static size_t
gallop(struct world *w, uint32_t n)
{
    struct kvt_seq *seq = seq_of(w->f.engine, n);
    uint64_t hit;
    size_t found = 0;
    int err;

    while ((err = kvt_engine_lookup(w->f.engine, seq, 0, n * CHUNK, &hit)) == -EAGAIN &&
           seq->promise.is_searching)
        usleep(200);
    if (err)
        assert_int_equal(err, -EAGAIN);
    else
        assert_int_equal(hit, 0); /* nothing was read */
    found = err ? seq->promise.n : 0;
    kvt_engine_release(w->f.engine, seq);
    kvt_seq_free(seq);
    return found;
}

static void
count_calls(struct world *w, uint32_t n, uint32_t n_ranks)
{
    const uint32_t hits[] = { 0, 1, n / 2, n - 1, n };
    uint32_t stored = 0;

    set_prompt(n);
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
        if (stored < hits[i]) {
            open_worker(w, "localhost", 0, n_ranks);
            struct fixture other = rank_of(w, 0);
            store_range(&other, 0, stored, hits[i]);
            stored = hits[i];
            close_workers(w);
        }
        for (uint32_t r = 0; r < n_ranks; r++) /* a promise is read into their memory */
            open_worker(w, NULL, r, n_ranks);
        w->f.engine = open_rank(w, "127.0.0.1", KVT_ROLE_SCHEDULER, 0, n_ranks);
        s3_forget(&server);
        assert_int_equal(gallop(w, n), stored);
        unsigned calls = s3_n_requests(&server);
        if (calls > max_calls(n))
            fail_msg("%u calls for %u of %u chunks, %u ranks", calls, stored, n, n_ranks);
        kvt_engine_close(w->f.engine);
        w->f.engine = NULL;
        close_workers(w);
        s3_remove_index_of(&server, "127.0.0.1", server.port, S3_BUCKET);
    }
}

static void
a_lookup_makes_few_calls(void **state)
{
    static const uint32_t lengths[] = { 1, 7, 100, 1000 };

    for (size_t i = 0; i < 4; i++)
        count_calls(*state, lengths[i], 1);
}

static void
a_lookup_for_many_ranks_makes_no_more(void **state)
{
    static const uint32_t lengths[] = { 1, 7, 100, 1000 };

    for (size_t i = 0; i < 4; i++)
        count_calls(*state, lengths[i], MAX_RANKS);
}

/* -------------------------------------------------------------- missing chunks */

/* Have the workers prefetch the chunks that the scheduler wants; return the final promise. */
static uint32_t
promise(struct world *w, struct kvt_seq *seq, uint32_t n_ranks)
{
    struct kvt_chunk_range ranges[4];
    uint64_t hit = 0;
    int err;

    while ((err = kvt_engine_lookup(w->f.engine, seq, 0, N_TOKENS, &hit)) == -EAGAIN) {
        size_t n = kvt_engine_wanted(w->f.engine, seq, ranges);

        for (size_t i = 0; i < n; i++) {
            struct io io;

            make_io(&io, seq, ranges[i].group, ranges[i].first_chunk, ranges[i].n_chunks, 1);
            io.io.blocks = NULL;
            io.io.n_blocks = 0;
            for (uint32_t r = 0; r < n_ranks; r++)
                assert_int_equal(kvt_engine_prefetch(w->workers[r], &io.io, 1), 0);
        }
        usleep(200);
    }
    assert_int_equal(err, 0);
    return (uint32_t)(hit / CHUNK);
}

/* Load chunks first .. n - 1 of a group on a rank: all are in host memory, and right. */
static void
assert_loads(const struct world *w, uint32_t rank, uint32_t group, uint32_t first,
             uint32_t n)
{
    struct fixture f = rank_of(w, rank);
    struct kvt_seq *seq = seq_of(f.engine, N_CHUNKS);
    uint64_t hits = counter(&f, "memory_hits");
    struct io io;

    wipe(&f);
    make_io(&io, seq, group, first, n - first, 1);
    struct kvt_load *load = load_and_wait(&f, &io.io, 1);
    for (uint32_t c = 0; c < n - first; c++)
        assert_true(!kvt_load_status(load, 0, c) && chunk_is_right(&f, &io, c));
    assert_int_equal(counter(&f, "memory_hits"), hits + n - first);
    kvt_load_free(load);
    kvt_seq_free(seq);
}

static void
open_world(struct world *w, const char *host, uint32_t n_ranks)
{
    for (uint32_t r = 0; r < n_ranks; r++)
        open_worker(w, host, r, n_ranks);
    w->f.engine = open_rank(w, host, KVT_ROLE_SCHEDULER, 0, n_ranks);
}

static void
close_world(struct world *w)
{
    kvt_engine_close(w->f.engine);
    w->f.engine = NULL;
    close_workers(w);
}

/* Store all chunks of a prompt except one chunk of a rank, then look the prompt up.  Assert that
 * all promised chunks are in the memory of every rank. */
static void
assert_hole_shortens(struct world *w, uint32_t n_ranks, uint32_t rank, uint32_t hole)
{
    set_prompt(hole);
    open_world(w, "localhost", n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct fixture f = rank_of(w, r);

        store_range(&f, 0, 0, r == rank ? hole : N_CHUNKS);
        if (r == rank && hole < N_CHUNKS)
            store_range(&f, 0, hole + 1, N_CHUNKS);
    }
    close_world(w);
    open_world(w, "127.0.0.1", n_ranks);
    s3_forget(&server);
    struct kvt_seq *seq = seq_of(w->f.engine, N_CHUNKS);
    assert_int_equal(promise(w, seq, n_ranks), hole);
    assert_in_range(s3_n_objects(&server, "HeadObject"), 1, max_calls(N_CHUNKS));
    for (uint32_t r = 0; hole && r < n_ranks; r++)
        assert_loads(w, r, 0, 0, hole);
    kvt_engine_release(w->f.engine, seq);
    kvt_seq_free(seq);
    /* The missing chunk is stored: no entry of the index stands in the way. */
    struct fixture f = rank_of(w, rank);
    if (hole < N_CHUNKS)
        store_range(&f, 0, hole, hole + 1);
    seq = seq_of(w->f.engine, N_CHUNKS);
    assert_int_equal(promise(w, seq, n_ranks), N_CHUNKS);
    for (uint32_t r = 0; r < n_ranks; r++)
        assert_loads(w, r, 0, 0, N_CHUNKS);
    kvt_engine_release(w->f.engine, seq);
    kvt_seq_free(seq);
    close_world(w);
}

static void
a_missing_chunk_shortens_the_promise(void **state)
{
    for (uint32_t hole = 0; hole <= N_CHUNKS; hole++)
        assert_hole_shortens(*state, 1, 0, hole);
}

/* The lookup asks for no object of that rank. */
static void
a_chunk_absent_in_one_rank_shortens_the_hit(void **state)
{
    assert_hole_shortens(*state, MAX_RANKS, 5, 4);
    assert_hole_shortens(*state, MAX_RANKS, 7, N_CHUNKS - 1);
    assert_hole_shortens(*state, MAX_RANKS, 1, N_CHUNKS);
}

/* A full group and a group with a window of two chunks; only the given chunks are stored. */
static void
assert_windows(struct world *w, uint32_t full, uint32_t from, uint32_t end, uint32_t n)
{
    struct kvt_group groups[2] = { opaque_group(), opaque_group() };

    groups[1].kind = KVT_GROUP_SLIDING;
    groups[1].window_tokens = 100;
    groups[1].layers = "3,4,5";
    w->groups = groups;
    w->n_groups = 2;
    set_prompt(full * 100 + from * 10 + end);
    open_worker(w, "localhost", 0, 1);
    struct fixture f = rank_of(w, 0);
    store_range(&f, 0, 0, full);
    store_range(&f, 1, from, end);
    close_workers(w);
    open_world(w, "127.0.0.1", 1);
    s3_forget(&server);
    struct kvt_seq *seq = seq_of(w->f.engine, N_CHUNKS);
    assert_int_equal(promise(w, seq, 1), n);
    assert_in_range(s3_n_objects(&server, "HeadObject"), 1, max_calls(N_CHUNKS));
    if (n) {
        assert_loads(w, 0, 0, 0, n);
        assert_loads(w, 0, 1, n - 2, n);
    }
    kvt_engine_release(w->f.engine, seq);
    kvt_seq_free(seq);
    close_world(w);
    w->groups = NULL;
}

static void
the_windows_of_the_hit_are_read_too(void **state)
{
    assert_windows(*state, N_CHUNKS, N_CHUNKS - 2, N_CHUNKS, N_CHUNKS);
    assert_windows(*state, N_CHUNKS, 0, N_CHUNKS - 1, N_CHUNKS - 1); /* the last is missing */
    assert_windows(*state, 7, 5, 7, 7);
    assert_windows(*state, 7, 0, 5, 5);
    assert_windows(*state, 7, 0, 0, 0); /* no windows at all */
}

/* ----------------------------------------------------------- expected entries */

/* No worker can read the chunk into host memory, and the index does not contain the chunk. */
static void
an_expected_chunk_is_not_promised_unread(void **state)
{
    struct world *w = *state;
    struct kvt__store_req req = { 0 };

    set_prompt(0);
    open_world(w, "127.0.0.1", 1);
    struct kvt_seq *seq = seq_of(w->f.engine, 1);
    kvt__fill_request(w->f.engine, 0, 0, kvt__seq_space(seq, 0, 0), &seq->chunks[0], &req);
    struct kvt__chunk_key key = kvt__request_key(&req);
    kvt__store_enter_unread(w->f.engine->store, &req);
    assert_true(kvt__store_find(w->f.engine->store, &key, KVT__ANYWHERE));
    assert_false(kvt__store_find(w->f.engine->store, &key, KVT__GUARANTEED));
    assert_false(kvt__store_touch(w->f.engine->store, &key, 0));
    kvt_engine_close(w->workers[0]); /* the rank's memory is gone */
    w->workers[0] = NULL;
    kvt__store_refresh_liveness(w->f.engine->store);
    assert_false(kvt__store_find(w->f.engine->store, &key, KVT__ANYWHERE));
    assert_int_equal(kvt__store_lease(w->f.engine->store, &key, KVT__GUARANTEED,
                                      kvt__now_ns() + KVT__NS_PER_S,
                                      &(struct kvt__lease){ 0 }, &(int64_t){ 0 }), -1);
    kvt_seq_free(seq);
    close_world(w);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_lookup_makes_few_calls),
        T(a_lookup_for_many_ranks_makes_no_more),
        T(a_missing_chunk_shortens_the_promise),
        T(a_chunk_absent_in_one_rank_shortens_the_hit),
        T(the_windows_of_the_hit_are_read_too),
        T(an_expected_chunk_is_not_promised_unread),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    if (!s3_server_start(&server, NULL)) {
        printf("skipped: needs python3\n");
        return SKIPPED;
    }
    int failed = cmocka_run_group_tests_name("gallop", tests, NULL, NULL);
    s3_server_stop(&server);
    return failed;
}
