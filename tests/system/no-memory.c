/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of a round trip fails once.  The call with the failed allocation reports
 * the failure, nothing leaks or crashes, and the next round trip succeeds.  Linked with --wrap
 * for the allocating functions. */
#include <stdatomic.h>

#include "system/system-test.h"

static atomic_long countdown; /* the allocation that decrements to 0 fails */

static bool
fails(void)
{
    return atomic_fetch_sub(&countdown, 1) == 1;
}

/* The original functions, as named by --wrap. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);

void *
__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *
__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *
__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

char *
__wrap_strndup(const char *text, size_t n)
{
    return fails() ? NULL : __real_strndup(text, n);
}

int
__wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return fails() ? ENOMEM : __real_posix_memalign(out, align, n);
}

/* ------------------------------------------------------------------ round trip */

struct trip {
    struct fixture f;
    const char *const *settings;
    uint32_t n_tokens; /* of the prompt */
    uint32_t n_chunks; /* chunks to store; the prompt's last chunk may be partial */
    bool prefetch;
    struct kvt_config *config;
    struct kvt_seq *seq;
    struct kvt_load *load;
    struct io io;
};

static int
open_all(struct trip *t)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_engine_params params = KVT_INIT(struct kvt_engine_params);
    struct kvt_model model = KVT_INIT(struct kvt_model);
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    struct kvt_group group = opaque_group();
    const char *no_environment[] = { NULL };
    void *base[N_LAYERS];
    char url[300];
    const char *settings[10] = { url, "max_local_cpu_size=0.001", "chunk_size=64",
                                 "lookup_timeout_ms=600000", "blocking_timeout_secs=600" };

    snprintf(url, sizeof url, "remote_url=fs://%s", t->f.dir.path);
    for (size_t i = 0; t->settings[i]; i++)
        settings[5 + i] = t->settings[i];
    sources.file = "/dev/null";
    sources.environment = no_environment;
    sources.settings = settings;
    int err = kvt_config_open(&sources, &t->config);
    if (err)
        return err;
    model.name = "test/model";
    model.kv_dtype = "bfloat16";
    model.world_size = 1;
    params.config = t->config;
    params.role = KVT_ROLE_BOTH;
    params.n_groups = 1;
    params.groups = &group;
    params.model = &model;
    err = kvt_engine_open(&params, &t->f.engine);
    if (err)
        return err;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        base[layer] = block_at(&t->f, layer, 0);
    view.base = base;
    view.n_kv = 1;
    view.n_blocks = N_BLOCKS;
    view.block_stride = BLOCK_BYTES;
    view.null_block = 0;
    return kvt_engine_set_view(t->f.engine, 0, &view);
}

/* Make a sequence with a multimodal item in the second chunk. */
static int
make_seq(struct trip *t)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_mm_item item = { .id = "picture", .first_token = 70, .n_tokens = 20 };

    extra.mm = &item;
    extra.n_mm = 1;
    extra.tags = "tenant%one";
    int err = kvt_seq_new(t->f.engine, t->f.tokens, 100, &extra, &t->seq);
    return err ? err : kvt_seq_append(t->seq, t->f.tokens + 100, t->n_tokens - 100);
}

/* Fill the io, as make_io() does; return the error if a partial chunk cannot be described. */
static int
describe_io(struct trip *t)
{
    uint32_t n = t->n_chunks, n_blocks = 0;
    int err = kvt_seq_chunks(t->seq, 0, n, t->io.chunks);

    if (err)
        return err;
    for (uint32_t c = 0; c < n; c++)
        n_blocks += (t->io.chunks[c].n_tokens + BLOCK - 1) / BLOCK;
    for (uint32_t b = 0; b < n_blocks; b++)
        t->io.blocks[b] = (int32_t)b + 1;
    t->io.io = (struct kvt_group_io){ .n_chunks = n, .chunks = t->io.chunks,
                                      .blocks = t->io.blocks, .n_blocks = n_blocks };
    return 0;
}

static int
store_all(struct trip *t)
{
    int err = describe_io(t);

    if (err)
        return err;
    t->io.io.tags = "tenant%one";
    fill_io(&t->f, &t->io);
    err = kvt_engine_store(t->f.engine, &t->io.io, 1);
    return err ? err : kvt_engine_flush(t->f.engine, -1);
}

/* Prefetch all chunks.  No event reports the end of a prefetch, and a load need not wait. */
static int
prefetch_all(struct trip *t)
{
    struct kvt_group_io io = t->io.io;

    io.blocks = NULL;
    io.n_blocks = 0;
    return kvt_engine_prefetch(t->f.engine, &io, 1);
}

static int
load_all(struct trip *t)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(t->f.engine), .events = POLLIN };
    struct kvt_load *done = NULL;
    uint64_t hit;
    int err;

    while ((err = kvt_engine_lookup(t->f.engine, t->seq, 0, t->n_tokens, &hit)) == -EAGAIN)
        usleep(100);
    if (!err && t->prefetch)
        err = prefetch_all(t);
    if (err)
        return err;
    wipe(&t->f);
    err = kvt_engine_load(t->f.engine, &t->io.io, 1, 0, &t->load);
    if (err)
        return err;
    while (!kvt_engine_poll(t->f.engine, &done, 1))
        poll(&fd, 1, 1000);
    for (uint32_t c = 0; c < t->n_chunks; c++) {
        int status = kvt_load_status(done, 0, c);

        if (!status && !chunk_is_right(&t->f, &t->io, c))
            fail_msg("chunk %u was loaded with wrong bytes", c);
        if (status && !err)
            err = status;
    }
    return err;
}

static int
run(struct trip *t)
{
    int err = open_all(t);

    if (!err)
        err = make_seq(t);
    if (!err)
        err = store_all(t);
    if (!err)
        err = load_all(t);
    return err;
}

static void
clean_up(struct trip *t)
{
    kvt_load_free(t->load);
    kvt_seq_free(t->seq);
    kvt_engine_close(t->f.engine);
    kvt_config_free(t->config);
    t->load = NULL;
    t->seq = NULL;
    t->f.engine = NULL;
    t->config = NULL;
}

static void
fail_each_once(struct trip t)
{
    long nth, left = -1;
    unsigned n_told = 0;

    fixture_init(&t.f);
    t.f.engine = NULL;
    for (nth = 1; left < 0; nth++) {
        atomic_store(&countdown, nth);
        int err = run(&t);
        left = atomic_exchange(&countdown, 0);
        /* The failure may have dropped a chunk; the load then reports a missing chunk. */
        if (err && err != -ENOMEM && err != -ENOENT && left <= 0)
            fail_msg("allocation %ld: %d, %s", nth, err, kvt_last_error());
        if (err && !strlen(kvt_last_error()))
            fail_msg("allocation %ld: %d without a sentence", nth, err);
        n_told += err == -ENOMEM;
        clean_up(&t);
        if (left > 0)
            break; /* there are fewer */
        left = -1;
    }
    print_message("%ld allocations, %u failures told\n", nth - 1, n_told);
    assert_true(n_told > 20);
    assert_int_equal(run(&t), 0);
    clean_up(&t);
    assert_int_equal(n_temporary_files(&t.f), 0);
    fixture_fini(&t.f);
}

static void
every_allocation_may_fail_once(void **state)
{
    static const char *const settings[] = { "local_cpu=false", NULL };

    (void)state;
    fail_each_once((struct trip){ .settings = settings, .n_tokens = N_TOKENS,
                                  .n_chunks = 4 });
}

static void
with_chunks_in_host_memory(void **state)
{
    static const char *const settings[] = { "local_cpu=true", NULL };

    (void)state;
    fail_each_once((struct trip){ .settings = settings, .n_tokens = N_TOKENS,
                                  .n_chunks = 4 });
}

/* Prefetches read from storage: store_location keeps stored chunks out of memory. */
static void
with_a_partial_chunk_and_prefetches(void **state)
{
    static const char *const settings[] = {
        "local_cpu=true", "save_unfull_chunk=true", "store_location=RemoteBackend", NULL };

    (void)state;
    fail_each_once((struct trip){ .settings = settings, .n_tokens = 4 * CHUNK - 5,
                                  .n_chunks = 4, .prefetch = true });
}

/* Append the tokens after the first 100; allocation number `nth` fails. */
static int
append_failing(struct trip *t, long nth)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_mm_item item = { .id = "picture", .first_token = 70, .n_tokens = 20 };

    extra.mm = &item;
    extra.n_mm = 1;
    assert_int_equal(kvt_seq_new(t->f.engine, t->f.tokens, 100, &extra, &t->seq), 0);
    atomic_store(&countdown, nth);
    int err = kvt_seq_append(t->seq, t->f.tokens + 100, N_TOKENS - 100);
    atomic_store(&countdown, 0);
    return err;
}

/* Otherwise chunks after the lost tokens would have the identity of other tokens. */
static void
a_sequence_that_lost_tokens_takes_no_more(void **state)
{
    static const char *const settings[] = { "local_cpu=false", NULL };
    struct trip t = { .settings = settings };
    struct kvt_chunk right[N_CHUNKS], got[N_CHUNKS];
    unsigned n_failed = 0;
    int err;

    (void)state;
    fixture_init(&t.f);
    assert_int_equal(open_all(&t), 0);
    assert_int_equal(append_failing(&t, 0), 0);
    assert_int_equal(kvt_seq_chunks(t.seq, 0, N_CHUNKS, right), 0);
    kvt_seq_free(t.seq);
    do {
        err = append_failing(&t, ++n_failed);
        if (err) {
            assert_int_equal(err, -ENOMEM);
            assert_int_equal(kvt_seq_append(t.seq, t.f.tokens, 2 * CHUNK), -ENOMEM);
        }
        size_t n = (size_t)kvt_seq_tokens(t.seq) / CHUNK;
        assert_int_equal(kvt_seq_chunks(t.seq, 0, n, got), 0);
        assert_memory_equal(got, right, n * sizeof *got);
        kvt_seq_free(t.seq);
    } while (err);
    assert_true(n_failed > 1);
    t.seq = NULL;
    clean_up(&t);
    fixture_fini(&t.f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail_once),
        cmocka_unit_test(with_chunks_in_host_memory),
        cmocka_unit_test(with_a_partial_chunk_and_prefetches),
        cmocka_unit_test(a_sequence_that_lost_tokens_takes_no_more),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
