/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines over a bucket.  An engine finds the chunks of another engine without knowing them in
 * advance; promised chunks are verified; deleted and damaged chunks shorten the hit. */
#include "servers/s3-server.h"
#include "system/system-test.h"

static struct s3_server server;

/* Return the bucket's settings with another spelling of the host, which selects another index. */
static void
settings_at(const char *host, const char *memory, const char **out, char text[3][256])
{
    static const char *const patient[] = { S3_PATIENT };
    size_t n = 0;

    snprintf(text[0], 256, "remote_url=s3://%s:%u/" S3_BUCKET "/%s", host, server.port,
             server.prefix);
    snprintf(text[1], 256, "local_cpu=%s", memory);
    out[n++] = text[0];
    out[n++] = text[1];
    out[n++] = "disable_tls=true";
    out[n++] = "aws_access_key_id=" S3_ACCESS;
    out[n++] = "aws_secret_access_key=" S3_SECRET;
    out[n++] = "lookup_timeout_ms=600000"; /* no lookup times out during a test */
    for (size_t i = 0; i < sizeof patient / sizeof *patient; i++)
        out[n++] = patient[i];
    out[n] = NULL;
}

static void
open_at(struct fixture *f, const char *host, const char *memory)
{
    const char *settings[16];
    char text[3][256];

    settings_at(host, memory, settings, text);
    fixture_open(f, settings);
}

/* Open an engine with short timeouts. */
static void
open_hasty(struct fixture *f)
{
    const char *settings[16];
    char text[3][256];

    settings_at("127.0.0.1", "true", settings, text);
    for (size_t i = 0; settings[i]; i++)
        if (!strncmp(settings[i], "blocking", 8))
            settings[i] = "blocking_timeout_secs=1";
    fixture_open(f, settings);
}

static void
close_engine(struct fixture *f)
{
    kvt_engine_close(f->engine);
    f->engine = NULL;
}

static void
be_silent(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static int
setup(void **state)
{
    static struct fixture f;

    s3_server_reset(&server);
    f = (struct fixture){ 0 };
    fixture_init(&f);
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    fixture_fini(*state);
    s3_remove_index_of(&server, "127.0.0.1", server.port, S3_BUCKET);
    s3_remove_index_of(&server, "localhost", server.port, S3_BUCKET);
    return 0;
}

static unsigned
n_objects(const char *operation)
{
    return s3_n_objects(&server, operation);
}

/* Store chunks with the index of another host. */
static void
store_elsewhere(struct fixture *f, uint32_t n)
{
    open_at(f, "localhost", "false");
    write_chunks(f, 0, n);
    close_engine(f);
    s3_forget(&server);
}

/* ------------------------------------------------------------------------ finding */

static void
chunks_of_another_host_are_found_and_loaded(void **state)
{
    struct fixture *f = *state;
    uint64_t hit = 1;

    store_elsewhere(f, N_CHUNKS);
    open_at(f, "127.0.0.1", "true");
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    /* Every promised chunk is in memory and verified. */
    assert_in_range(n_objects("HeadObject"), 1, N_CHUNKS - 1);
    assert_int_equal(n_objects("GetObject"), N_CHUNKS);
    assert_comes_to(f, "prefetch_chunks", N_CHUNKS);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    struct outcome got = load_prompt(f);
    assert_int_equal(got.promised, N_CHUNKS);
    assert_int_equal(got.loaded, N_CHUNKS);
    assert_int_equal(counter(f, "memory_hits"), N_CHUNKS);
    assert_int_equal(n_objects("GetObject"), N_CHUNKS);
}

static void
without_memory_chunks_are_loaded_from_the_bucket(void **state)
{
    struct fixture *f = *state;

    store_elsewhere(f, N_CHUNKS);
    open_at(f, "127.0.0.1", "false");
    struct outcome got = load_prompt(f);
    assert_int_equal(got.promised, N_CHUNKS);
    assert_int_equal(got.loaded, N_CHUNKS);
    assert_int_equal(n_objects("GetObject"), N_CHUNKS);
}

/* The index keeps the results of lookups, also for other processes. */
static void
a_found_object_is_not_probed_again(void **state)
{
    struct fixture *f = *state;

    store_elsewhere(f, N_CHUNKS);
    open_at(f, "127.0.0.1", "false");
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    close_engine(f);
    s3_forget(&server);
    open_at(f, "127.0.0.1", "false");
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    assert_int_equal(n_objects("HeadObject"), 0);
    write_chunks(f, 0, N_CHUNKS);
    assert_int_equal(n_objects("PutObject"), 0);
    assert_int_equal(counter(f, "store_known"), N_CHUNKS);
}

static void
an_absent_prompt_needs_few_probes(void **state)
{
    struct fixture *f = *state;

    open_at(f, "127.0.0.1", "true");
    assert_int_equal(load_prompt(f).promised, 0);
    /* The first may be answered before the second is sent. */
    assert_in_range(n_objects("HeadObject"), 1, 2);
    assert_int_equal(n_objects("GetObject"), 0);
}

static void
asking_stops_at_the_first_miss(void **state)
{
    struct fixture *f = *state;

    store_elsewhere(f, 1);
    open_at(f, "127.0.0.1", "true");
    assert_int_equal(load_prompt(f).loaded, 1);
    assert_in_range(n_objects("HeadObject"), 2, 5);
    assert_int_equal(n_objects("GetObject"), 1);
}

/* The lookup finds chunks 1, 2 and 4, and the next response does not come. */
static void
chunks_are_read_during_the_search(void **state)
{
    struct fixture *f = *state;
    uint64_t hit;

    store_elsewhere(f, N_CHUNKS);
    s3_fault(&server, "{\"match\": {\"method\": \"HEAD\"}, \"skip\": 3, \"count\": null, "
             "\"do\": {\"delay_ms\": 600000}}");
    open_at(f, "127.0.0.1", "true");
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    do {
        assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
        usleep(200);
    } while (counter(f, "prefetch_chunks") < 4);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_int_equal(counter(f, "prefetch_chunks"), 4);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    close_engine(f);
}

static void
a_chunk_in_the_bucket_is_not_overwritten(void **state)
{
    struct fixture *f = *state;

    store_elsewhere(f, N_CHUNKS);
    open_at(f, "127.0.0.1", "false"); /* with an empty index */
    write_chunks(f, 0, N_CHUNKS);
    assert_int_equal(s3_count(&server, "statuses", "412"), N_CHUNKS);
    assert_int_equal(counter(f, "store_failed"), 0);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
}

/* ------------------------------------------------------------- deleted, damaged */

struct keys {
    char text[N_CHUNKS][512];
    size_t n;
};

static int
take_key(void *ctx, const struct kvt_listed *listed)
{
    struct keys *keys = ctx;

    snprintf(keys->text[keys->n++], sizeof keys->text[0], "%s", listed->key);
    return keys->n == N_CHUNKS;
}

/* Another host deletes n of the chunks. */
static void
delete_elsewhere(size_t n)
{
    const char *settings[16];
    char text[3][256];
    struct kvt_store *store;
    struct keys keys = { .n = 0 };

    settings_at("localhost", "false", settings, text);
    struct kvt_config *config = config_with(settings);
    assert_int_equal(kvt_store_open(config, &store), 0);
    kvt_config_free(config);
    assert_int_equal(kvt_store_list(store, "", take_key, &keys), 0);
    assert_true(keys.n >= n);
    for (size_t i = 0; i < n; i++) {
        struct kvt_op op = KVT_INIT(struct kvt_op);

        op.kind = KVT_OP_DELETE;
        op.key = keys.text[i];
        if (kvt_store_run(store, &op))
            fail_msg("%s", op.why);
    }
    kvt_store_close(store);
}

static void
chunks_deleted_by_others_are_no_hit(void **state)
{
    struct fixture *f = *state;

    open_at(f, "127.0.0.1", "false");
    write_chunks(f, 0, N_CHUNKS);
    close_engine(f);
    delete_elsewhere(3);
    open_at(f, "127.0.0.1", "true"); /* with an index of all chunks */
    struct outcome got = load_prompt(f);
    assert_true(got.promised < N_CHUNKS);
    assert_int_equal(got.loaded, got.promised);
    assert_int_equal(counter(f, "load_missing"), 0);
    /* A missed chunk is stored again.  Chunks behind the first miss may be noticed one lookup
     * later. */
    for (int i = 0; i < 3 && got.loaded < N_CHUNKS; i++) {
        write_chunks(f, 0, N_CHUNKS);
        got = load_prompt(f);
    }
    assert_int_equal(got.loaded, N_CHUNKS);
}

static void
deleted_chunks_in_memory_stay_a_hit(void **state)
{
    struct fixture *f = *state;

    open_at(f, "127.0.0.1", "true");
    write_chunks(f, 0, N_CHUNKS);
    delete_elsewhere(N_CHUNKS);
    s3_forget(&server);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    assert_int_equal(n_objects("GetObject"), 0);
}

/* As in all of LMCache's examples. */
static void
without_local_cpu_chunks_deleted_by_others_are_no_hit(void **state)
{
    struct fixture *f = *state;

    open_at(f, "127.0.0.1", "false");
    write_chunks(f, 0, N_CHUNKS);
    delete_elsewhere(N_CHUNKS);
    assert_int_equal(load_prompt(f).promised, 0);
    assert_int_equal(counter(f, "load_missing"), 0);
}

static const char *const damages[] = {
    "{\"corrupt_at\": 777}", "{\"status\": 200, \"body\": \"not a chunk\"}",
    "{\"headers\": {\"x-amz-checksum-crc32c\": \"AAAAAA==\"}}" };

static void
a_damaged_object_is_no_hit_and_is_stored_again(void **state)
{
    char fault[1024], key[512];
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        s3_server_reset(&server);
        open_at(f, "127.0.0.1", "false");
        write_chunks(f, 0, N_CHUNKS);
        close_engine(f);
        s3_key(&server, "PutObject", 4, key, sizeof key);
        snprintf(fault, sizeof fault, "{\"match\": {\"method\": \"GET\", \"key\": "
                 "\"%s\"}, \"count\": null, \"do\": %s}", key, damages[i]);
        s3_fault(&server, fault);
        s3_forget(&server);
        open_at(f, "127.0.0.1", "true");
        struct outcome got = load_prompt(f);
        assert_true(got.promised < N_CHUNKS);
        assert_int_equal(got.loaded, got.promised);
        s3_no_faults(&server);
        write_chunks(f, 0, N_CHUNKS);
        assert_int_equal(n_objects("PutObject"), 1);
        close_engine(f);
        open_at(f, "127.0.0.1", "true");
        assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
        close_engine(f);
        s3_remove_index_of(&server, "127.0.0.1", server.port, S3_BUCKET);
    }
}

/* An LMCache with the same bucket stores the same tokens; an adapter wrote the objects. */
static void
objects_overwritten_by_others_are_no_hit(void **state)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct fixture *f = *state;
    const char *settings[16];
    char text[3][256], key[512], object[1024];
    struct kvt_seq *seq;
    struct io io;

    extra.lora = "adapter";
    for (int over = 0; over < 2; over++) {
        settings_at("127.0.0.1", over ? "true" : "false", settings, text);
        fixture_open_plain(f, settings);
        assert_int_equal(kvt_seq_new(f->engine, f->tokens, CHUNK, &extra, &seq), 0);
        make_io(&io, seq, 0, 0, 1, 1);
        if (over) {
            s3_key(&server, "PutObject", 0, key, sizeof key);
            snprintf(object, sizeof object, "{\"bucket\": \"" S3_BUCKET "\", \"objects\": "
                     "[{\"key\": \"%s\", \"size\": %u, \"age_s\": 0}]}", key,
                     N_LAYERS * CHUNK_BLOCKS * BLOCK_BYTES);
            s3_request(&server, "POST", "/objects", object);
            assert_int_equal(lookup(f, seq, 0, CHUNK), 0);
            assert_int_equal(n_objects("GetObject"), 1);
        }
        fill_io(f, &io);
        store_and_flush(f, &io.io, 1);
        assert_int_equal(lookup(f, seq, 0, CHUNK), CHUNK);
        kvt_engine_release(f->engine, seq);
        kvt_seq_free(seq);
        close_engine(f);
    }
}

/* If a chunk was damaged on the network, the engine fetches the chunk again at once. */
static void
bytes_damaged_in_transit_are_fetched_again(void **state)
{
    struct fixture *f = *state;
    char fault[256];

    open_at(f, "127.0.0.1", "false");
    write_chunks(f, 0, N_CHUNKS);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        close_engine(f);
        snprintf(fault, sizeof fault, "{\"match\": {\"method\": \"GET\"}, \"skip\": %zu, "
                 "\"do\": %s}", i, damages[i]);
        s3_fault(&server, fault);
        open_at(f, "127.0.0.1", "true");
        struct outcome got = load_prompt(f);
        assert_int_equal(got.promised, N_CHUNKS);
        assert_int_equal(got.loaded, N_CHUNKS);
        assert_comes_to(f, "prefetch_chunks", N_CHUNKS);
    }
}

/* ------------------------------------------------------------------------ outages */

/* Stores fail and loads find no chunk, but no call waits long or returns a wrong result. */
static void
an_outage_costs_hits_and_no_more(void **state)
{
    struct fixture *f = *state;

    store_elsewhere(f, N_CHUNKS);
    s3_fault(&server, "{\"count\": null, \"do\": {\"status\": 403}}");
    open_hasty(f);
    assert_int_equal(load_prompt(f).promised, 0);
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(counter(f, "store_failed"), N_CHUNKS);
    assert_true(counter(f, "tier_pauses") > 0);
    s3_forget(&server);
    set_tokens(f, 1);
    store_chunks(f, 0, N_CHUNKS); /* the engine pauses the tier */
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(n_objects("PutObject"), 0);
}

static void
an_engine_closes_while_the_store_does_not_answer(void **state)
{
    struct fixture *f = *state;

    open_hasty(f);
    s3_fault(&server, "{\"count\": null, \"do\": {\"delay_ms\": 600000}}");
    store_chunks(f, 0, N_CHUNKS);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    uint64_t hit;
    int err = kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit);
    assert_true(!err || err == -EAGAIN);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    close_engine(f);
}

/* The stores use all memory that they may use, and the bucket accepts none of them. */
static void
loads_do_not_wait_for_stores(void **state)
{
    struct fixture *f = *state;
    const char *settings[16];
    char text[3][256];

    settings_at("127.0.0.1", "true", settings, text);
    for (size_t i = 0; settings[i]; i++)
        if (!strncmp(settings[i], "blocking", 8))
            settings[i] = "blocking_timeout_secs=10";
        else if (!strncmp(settings[i], "lookup", 6))
            settings[i] = "max_local_cpu_size=0.004";
    fixture_open(f, settings);
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"count\": null, "
             "\"do\": {\"delay_ms\": 600000}}");
    for (uint32_t prompt = 0; prompt < 40; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, N_CHUNKS);
    }
    uint32_t n_loaded = 0;
    for (uint32_t prompt = 0; prompt < 40; prompt++) {
        set_tokens(f, prompt);
        struct outcome got = load_prompt(f);
        assert_int_equal(got.loaded, got.promised);
        n_loaded += got.loaded;
    }
    assert_true(n_loaded > 0);
    close_engine(f);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(chunks_of_another_host_are_found_and_loaded),
        T(without_memory_chunks_are_loaded_from_the_bucket),
        T(a_found_object_is_not_probed_again),
        T(an_absent_prompt_needs_few_probes),
        T(asking_stops_at_the_first_miss),
        T(chunks_are_read_during_the_search),
        T(a_chunk_in_the_bucket_is_not_overwritten),
        T(chunks_deleted_by_others_are_no_hit),
        T(deleted_chunks_in_memory_stay_a_hit),
        T(without_local_cpu_chunks_deleted_by_others_are_no_hit),
        T(a_damaged_object_is_no_hit_and_is_stored_again),
        T(objects_overwritten_by_others_are_no_hit),
        T(bytes_damaged_in_transit_are_fetched_again),
        T(an_outage_costs_hits_and_no_more),
        T(an_engine_closes_while_the_store_does_not_answer),
        T(loads_do_not_wait_for_stores),
    };

    kvt_set_log(be_silent, NULL, KVT_LOG_ERROR);
    if (!s3_server_start(&server, NULL)) {
        printf("skipped: needs python3\n");
        return SKIPPED;
    }
    int failed = cmocka_run_group_tests_name("S3 engine", tests, NULL, NULL);
    s3_server_stop(&server);
    return failed;
}
