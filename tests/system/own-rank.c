/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups by workers: each worker finds, leases and reads ahead the chunks of its own rank, by the
 * chunks of a scheduler's sequence.  The two workers are on two hosts with separate directories. */
#include "system/system-test.h"

#define N_RANKS 2u
#define SMALL "max_local_cpu_size=0.0005" /* room for 12 chunks to stay */
#define PARTIAL (2 * CHUNK + 40)

static const char *const storage_only[] = { NULL };
static const char *const memory_only[] = { "remote_url=", "local_cpu=true", NULL };
static const char *const small_memory[] = { "remote_url=", "local_cpu=true", SMALL, NULL };
static const char *const partial[] = { "save_unfull_chunk=true", NULL };

static int
setup(void **state)
{
    struct fixture *hosts = calloc(N_RANKS, sizeof *hosts);

    assert_non_null(hosts);
    for (uint32_t r = 0; r < N_RANKS; r++)
        fixture_init(&hosts[r]);
    *state = hosts;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *hosts = *state;

    for (uint32_t r = 0; r < N_RANKS; r++)
        fixture_fini(&hosts[r]);
    free(hosts);
    return 0;
}

static void
open_hosts(struct fixture *hosts, const char *const *settings, bool replicated)
{
    struct kvt_group group = opaque_group();

    group.replicated = replicated;
    for (uint32_t r = 0; r < N_RANKS; r++) {
        struct opening o = { .role = KVT_ROLE_WORKER, .settings = settings, .groups = &group,
                             .n_groups = 1, .world_size = N_RANKS, .rank = r,
                             .local_ranks = 1 };

        kvt_engine_close(hosts[r].engine);
        hosts[r].engine = must_open(&hosts[r], &o);
        set_view(hosts[r].engine, 0, hosts[r].memory);
    }
}

/* Return a sequence of a worker from the first n_tokens' chunks, as the scheduler sends them. */
static struct kvt_seq *
sent_seq(const struct fixture *f, size_t n_tokens, const char *tags)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    size_t n = (n_tokens + CHUNK - 1) / CHUNK;
    struct kvt_chunk chunks[N_CHUNKS];
    struct kvt_seq *own, *seq = NULL;

    extra.tags = tags;
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, n_tokens, &extra, &own), 0);
    assert_int_equal(kvt_seq_chunks(own, 0, n, chunks), 0);
    kvt_seq_free(own);
    if (kvt_seq_from_chunks(f->engine, chunks, n, tags, &seq))
        fail_msg("%s", kvt_last_error());
    return seq;
}

static void
end(const struct fixture *f, struct kvt_seq *seq)
{
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* Return the tokens that a worker finds. */
static uint64_t
found_tokens(const struct fixture *f, size_t n_tokens, const char *tags)
{
    struct kvt_seq *seq = sent_seq(f, n_tokens, tags);
    uint64_t hit = lookup(f, seq, 0, n_tokens);

    end(f, seq);
    return hit;
}

static size_t
found(const struct fixture *f)
{
    return found_tokens(f, N_TOKENS, NULL) / CHUNK;
}

static void
a_worker_finds_only_the_chunks_of_its_own_rank(void **state)
{
    static const char *const *const settings[] = { storage_only, memory_only };
    struct fixture *hosts = *state;

    for (size_t i = 0; i < 2; i++) {
        open_hosts(hosts, settings[i], false);
        write_chunks(&hosts[1], 0, N_CHUNKS);
        write_chunks(&hosts[0], 0, 3);
        assert_int_equal(found(&hosts[0]), 3);
        assert_int_equal(found(&hosts[1]), N_CHUNKS);
        assert_int_equal(counter(&hosts[0], "lookup_tokens"), 0); /* the scheduler counts */
        assert_int_equal(counter(&hosts[1], "lookup_tokens"), 0);
    }
}

/* Let each worker write the chunks of its rank, lose the index, and find the chunks by probes of
 * the storage `scheme`. */
static void
find_by_probes(struct fixture *hosts, const char *scheme, bool replicated)
{
    char url[400];
    const char *settings[] = { url, "max_remote_size=0", NULL }; /* no limit: no listing */

    for (uint32_t r = 0; r < N_RANKS; r++) {
        snprintf(url, sizeof url, "%s%s", scheme, hosts[r].dir.path);
        open_hosts(hosts, settings, replicated);
        write_chunks(&hosts[replicated ? 0 : r], 0, N_CHUNKS);
        kvt_engine_close(hosts[0].engine);
        kvt_engine_close(hosts[1].engine);
        hosts[0].engine = hosts[1].engine = NULL;
        lose_index(hosts[r].dir.path);
        open_hosts(hosts, settings, replicated);
        assert_int_equal(found(&hosts[r]), N_CHUNKS);
        assert_int_equal(found(&hosts[!r]), replicated ? N_CHUNKS : 0);
        assert_int_equal(load_prompt(&hosts[r]).loaded, N_CHUNKS);
    }
}

static void
a_probe_asks_only_for_the_objects_of_the_rank(void **state)
{
    find_by_probes(*state, "remote_url=fs://", false);
}

static void
a_probe_finds_a_replicated_chunk_for_any_rank(void **state)
{
    find_by_probes(*state, "remote_url=fs://", true);
}

static void
a_gallop_asks_only_for_the_objects_of_the_rank(void **state)
{
    find_by_probes(*state, "remote_url=fault://shared=1/fs://", false);
}

static void
a_worker_reads_ahead_from_shared_storage_without_a_request(void **state)
{
    struct fixture *hosts = *state;
    char url[400];

    for (uint32_t r = 0; r < N_RANKS; r++) {
        const char *settings[] = { url, NULL };

        snprintf(url, sizeof url, "remote_url=fault://shared=1/fs://%s", hosts[r].dir.path);
        open_hosts(hosts, settings, false);
        write_chunks(&hosts[r], 0, N_CHUNKS);
        struct kvt_seq *seq = sent_seq(&hosts[r], N_TOKENS, NULL);
        assert_int_equal(lookup(&hosts[r], seq, 0, N_TOKENS), N_TOKENS);
        assert_comes_to(&hosts[r], "prefetch_chunks", N_CHUNKS);
        uint8_t in_memory[N_CHUNKS];
        kvt_seq_in_memory(seq, 0, N_CHUNKS, in_memory);
        for (size_t i = 0; i < N_CHUNKS; i++)
            assert_int_equal(in_memory[i], 1);
        end(&hosts[r], seq);
    }
}

/* The first rank of each host writes the chunks of all ranks. */
static void
a_replicated_chunk_is_found_on_its_own_host_only(void **state)
{
    struct fixture *hosts = *state;
    char disk[400];
    const char *settings[] = { "remote_url=", disk, "max_local_disk_size=0.01", NULL };

    for (uint32_t r = 0; r < N_RANKS; r++) {
        snprintf(disk, sizeof disk, "local_disk=%s", hosts[r].dir.path);
        open_hosts(hosts, settings, true);
        write_chunks(&hosts[r], 0, N_CHUNKS);
        assert_int_equal(found(&hosts[r]), N_CHUNKS);
    }
    lose_index(hosts[0].dir.path);
    snprintf(disk, sizeof disk, "local_disk=%s", hosts[1].dir.path);
    open_hosts(hosts, settings, true);
    assert_int_equal(found(&hosts[1]), N_CHUNKS);
}

/* Store more chunks of other prompts than fit in memory. */
static void
crowd(struct fixture *f, uint32_t first_prompt)
{
    for (uint32_t i = 0; i < 50; i++) {
        set_tokens(f, first_prompt + i);
        write_chunks(f, 0, 4);
    }
    set_tokens(f, 0);
}

static void
a_lease_keeps_a_chunk_in_the_workers_memory(void **state)
{
    struct fixture *hosts = *state;
    struct fixture *f = &hosts[1];

    open_hosts(hosts, small_memory, false);
    write_chunks(f, 0, 4);
    struct kvt_seq *seq = sent_seq(f, N_TOKENS, NULL);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), 4 * CHUNK);
    crowd(f, 1);
    assert_int_equal(found(f), 4);
    end(f, seq);
    crowd(f, 100);
    assert_int_equal(found(f), 0);
}

static void
a_partial_chunk_and_tags_are_found(void **state)
{
    struct fixture *hosts = *state;
    struct fixture *f = &hosts[1];

    open_hosts(hosts, partial, false);
    store_tagged(f, "user%x", N_CHUNKS, 0);
    assert_int_equal(found_tokens(f, N_TOKENS, "user%x"), N_TOKENS);
    assert_int_equal(found_tokens(f, N_TOKENS, "user%y"), 0);
    struct kvt_seq *seq = NULL;
    assert_int_equal(kvt_seq_new(f->engine, f->tokens, PARTIAL, NULL, &seq), 0);
    store_seeded(f, seq, NULL, 0, 2, 1);
    assert_int_equal(found_tokens(f, PARTIAL, NULL), 2 * CHUNK);
    store_seeded(f, seq, NULL, 2, 1, 1);
    assert_int_equal(found_tokens(f, PARTIAL, NULL), PARTIAL);
    kvt_seq_free(seq);
}

static void
chunks_of_a_made_sequence_are_the_given_chunks(void **state)
{
    struct fixture *hosts = *state;
    struct kvt_chunk chunks[3], again[3];
    struct kvt_seq *own, *seq;

    open_hosts(hosts, storage_only, false);
    assert_int_equal(kvt_seq_new(hosts->engine, hosts->tokens, PARTIAL, NULL, &own), 0);
    assert_int_equal(kvt_seq_chunks(own, 0, 3, chunks), 0);
    kvt_seq_free(own);
    assert_int_equal(kvt_seq_from_chunks(hosts->engine, chunks, 3, NULL, &seq), 0);
    assert_int_equal(kvt_seq_tokens(seq), PARTIAL);
    assert_int_equal(kvt_seq_chunks(seq, 0, 3, again), 0);
    assert_memory_equal(chunks, again, sizeof chunks);
    assert_int_equal(kvt_seq_chunks(seq, 0, 4, again), -EINVAL);
    assert_int_equal(kvt_seq_append(seq, hosts->tokens, 1), -EINVAL);
    kvt_seq_free(seq);
    assert_int_equal(kvt_seq_from_chunks(hosts->engine, NULL, 0, NULL, &seq), 0);
    assert_int_equal(kvt_seq_tokens(seq), 0);
    kvt_seq_free(seq);
}

static void
impossible_chunks_and_tags_are_refused(void **state)
{
    struct fixture *hosts = *state;
    struct kvt_chunk chunks[2] = { { .n_tokens = CHUNK }, { .n_tokens = CHUNK } };
    struct kvt_seq *seq = NULL;

    open_hosts(hosts, storage_only, false);
    static const uint32_t bad[][2] = { { CHUNK - 1, CHUNK }, { CHUNK, CHUNK + 1 }, { CHUNK, 0 } };
    for (size_t i = 0; i < 3; i++) {
        chunks[0].n_tokens = bad[i][0];
        chunks[1].n_tokens = bad[i][1];
        assert_int_equal(kvt_seq_from_chunks(hosts->engine, chunks, 2, NULL, &seq), -EINVAL);
        assert_non_null(strstr(kvt_last_error(), "chunk_size is 64"));
    }
    assert_int_equal(kvt_seq_from_chunks(hosts->engine, chunks, 0, "kvt%x", &seq), -EINVAL);
    assert_null(seq);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_worker_finds_only_the_chunks_of_its_own_rank),
        TEST(a_probe_asks_only_for_the_objects_of_the_rank),
        TEST(a_probe_finds_a_replicated_chunk_for_any_rank),
        TEST(a_gallop_asks_only_for_the_objects_of_the_rank),
        TEST(a_worker_reads_ahead_from_shared_storage_without_a_request),
        TEST(a_replicated_chunk_is_found_on_its_own_host_only),
        TEST(a_lease_keeps_a_chunk_in_the_workers_memory),
        TEST(a_partial_chunk_and_tags_are_found),
        TEST(chunks_of_a_made_sequence_are_the_given_chunks),
        TEST(impossible_chunks_and_tags_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
