/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a gallop, and lookups without a gallop, over a directory that counts as storage of
 * other hosts too.  The index of the directory is empty. */
#include <semaphore.h>

#include "system/system-test.h"

#include "engine/seq.h"

static const char *
url_of(const struct fixture *f)
{
    static char url[512];

    snprintf(url, sizeof url, "remote_url=fault://shared=1/fs://%s", f->dir.path);
    return url;
}

/* Open an engine with one thread for requests.  Without a limit no process lists the directory. */
static void
open_one_thread(struct fixture *f, const struct kvt_group *group)
{
    const char *const settings[] = { url_of(f), "max_remote_size=0", "disk_io_threads=1",
                                     "local_cpu=true", NULL };

    f->engine = open_engine(f, KVT_ROLE_BOTH, group, 1, settings);
    set_view(f->engine, 0, f->memory);
}

/* Close the engine, and delete the index. */
static void
close_and_forget(struct fixture *f)
{
    char path[300];
    struct dirent *e;

    kvt_engine_close(f->engine);
    f->engine = NULL;
    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            assert_true(!unlinkat(dirfd(d), e->d_name, 0) || errno == EISDIR);
    closedir(d);
}

/* ------------------------------------------------------------------------ a thread */

/* A job that keeps the engine's thread. */
struct gate {
    struct kvt__job job;
    sem_t reached, open;
};

static void
run_gate(struct kvt__job *job)
{
    struct gate *gate = (struct gate *)job;

    sem_post(&gate->reached);
    while (sem_wait(&gate->open))
        continue;
}

/* Queue a gate behind the requests of lookups. */
static void
queue_gate(const struct fixture *f, struct gate *gate)
{
    *gate = (struct gate){ .job.run = run_gate };
    assert_int_equal(sem_init(&gate->reached, 0, 0), 0);
    assert_int_equal(sem_init(&gate->open, 0, 0), 0);
    kvt__exec_submit(f->engine->exec, KVT__PRIO_LOOKUP, &gate->job);
}

/* Let the thread run from one gate to the next gate. */
static void
pass(struct gate *from, struct gate *to)
{
    if (from)
        sem_post(&from->open);
    while (sem_wait(&to->reached))
        continue;
}

/* ------------------------------------------------------------------------- chunks */

/* Fill in a request for a chunk of a sequence. */
static void
describe(const struct fixture *f, const struct kvt_seq *seq, size_t chunk,
         struct kvt__store_req *req)
{
    *req = (struct kvt__store_req){ .op = KVT__TIER_GET };
    kvt__fill_request(f->engine, 0, 0, kvt__seq_space(seq, 0, 0), &seq->chunks[chunk], req);
}

static bool
is_in_index(const struct fixture *f, const struct kvt_seq *seq, size_t chunk)
{
    struct kvt__store_req req;

    describe(f, seq, chunk, &req);
    struct kvt__chunk_key key = kvt__request_key(&req);
    return kvt__store_find(f->engine->store, &key, KVT__ANYWHERE);
}

/* The path of the only chunk file. */
static void
only_file(const struct fixture *f, char path[800])
{
    char dir[300];

    snprintf(dir, sizeof dir, "%s/kvtier", f->dir.path);
    DIR *d = opendir(dir);
    assert_non_null(d);
    path[0] = '\0';
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".data"))
            snprintf(path, 800, "%s/%s", dir, e->d_name);
    closedir(d);
    assert_true(*path);
}

/* Read a chunk that storage does not have. */
static void
read_missing(const struct fixture *f, const struct kvt_seq *seq, size_t chunk)
{
    struct kvt__store_req req;

    describe(f, seq, chunk, &req);
    assert_true(kvt__pool_acquire(f->engine->pool, req.bytes, 0, &req.slot));
    kvt__store_run(f->engine->store, &req);
    assert_int_equal(req.error.code, -ENOENT);
    kvt__pool_release(f->engine->pool, &req.slot);
}

/* ------------------------------------------------------------------------- tests */

/* Another host deletes the first chunk while the gallop goes on. */
static void
a_gallop_ends_when_a_missing_chunk_ends_the_hit(void **state)
{
    struct kvt_group group = opaque_group();
    static struct gate gates[4];
    struct fixture *f = *state;
    char first[800];
    uint64_t hit;

    open_one_thread(f, &group);
    write_chunks(f, 0, 1);
    only_file(f, first);
    write_chunks(f, 1, N_CHUNKS - 1);
    close_and_forget(f);
    open_one_thread(f, &group);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    queue_gate(f, &gates[0]);
    pass(NULL, &gates[0]);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
    queue_gate(f, &gates[1]); /* before the gallop's second request */
    pass(&gates[0], &gates[1]);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), -EAGAIN);
    assert_int_equal(seq->promise.n, 1);
    assert_int_equal(unlink(first), 0);
    read_missing(f, seq, 0);
    assert_int_equal(kvt_engine_lookup(f->engine, seq, 0, N_TOKENS, &hit), 0);
    assert_int_equal(hit, 0);
    queue_gate(f, &gates[2]); /* before the third request */
    pass(&gates[1], &gates[2]);
    assert_true(is_in_index(f, seq, 1)); /* the second request was already queued */
    queue_gate(f, &gates[3]);
    pass(&gates[2], &gates[3]);
    assert_false(is_in_index(f, seq, 2));
    assert_false(is_in_index(f, seq, 3));
    sem_post(&gates[3].open);
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

/* A gallop asks for chunks of a full-attention group. */
static void
without_a_full_group_every_chunk_is_probed(void **state)
{
    struct kvt_group group = opaque_group();
    struct fixture *f = *state;

    group.kind = KVT_GROUP_SLIDING;
    group.window_tokens = 100;
    open_one_thread(f, &group);
    write_chunks(f, 0, N_CHUNKS);
    close_and_forget(f);
    open_one_thread(f, &group);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_TOKENS);
    for (size_t c = 0; c < N_CHUNKS; c++)
        assert_true(is_in_index(f, seq, c));
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(a_gallop_ends_when_a_missing_chunk_ends_the_hit),
        T(without_a_full_group_every_chunk_is_probed),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests_name("gallop-end", tests, NULL, NULL);
}
