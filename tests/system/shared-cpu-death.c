/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes store and load chunks of two sizes in one full shared host memory, and no
 * other storage.  Processes are killed or stopped at random instants.  No load returns a
 * wrong byte, the surviving process makes further calls, and afterwards the memory has room for as
 * many leased chunks as a new memory. */
#include <sys/mman.h>
#include <time.h>

#define BLOCK_BYTES 32768u /* a layer of a chunk fills a unit of the shared memory */

#include "system/system-test.h"

#define UNIT_BYTES 65536u
#define N_UNITS 1024u
#define N_PROMPTS 40u /* 1,600 units: 400 chunks of a unit, 400 of three units */
#define KILLS 100u
#define ALONE_EVERY 16u
#define STOPS 100u
#define LONG_STOPS 3u
#define START_NS INT64_C(60000000000) /* limit from the start of a process to its first call */
#define LONG_STOP_NS INT64_C(3000000000)
#define LEASE_S 1
#define LONGEST_NS 5000000u

/* Counts of one process, which the parent reads. */
struct progress {
    _Atomic uint64_t n_calls, n_loaded;
    _Atomic uint64_t n_filled;    /* result of fill() */
    _Atomic uint64_t n_stops;     /* changes before and after a stop */
    _Atomic int64_t longest_ns;   /* longest call without a stop */
    _Atomic(const char *) longest;
};

struct task {
    struct fixture f;
    struct temp_dir shm;
    struct progress *progress; /* of all processes; an array in shared memory */
    uint32_t process;
};

static int64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Return the longest allowed call: $KVTIER_TEST_CALL_MS, or 30 s, because beside other tests
 * the machine may not run a process for seconds. */
static int64_t
max_call_ns(void)
{
    const char *ms = getenv("KVTIER_TEST_CALL_MS");

    return (ms ? atoll(ms) : 30 * 1000) * 1000000;
}

/* ------------------------------------------------------------------- an engine */

/* lease_s: of lookups. */
static void
open_shared(struct task *task, uint32_t n_layers, unsigned lease_s)
{
    struct kvt_group group = opaque_group();
    char path[300], lease[64];
    const char *const settings[] = { path, lease, "remote_url=", "max_local_cpu_size=0.02",
                                     "max_shared_cpu_size=0.0625", NULL };
    struct opening o = { .groups = &group, .n_groups = 1, .settings = settings };

    snprintf(path, sizeof path, "shared_cpu_path=%s", task->shm.path);
    snprintf(lease, sizeof lease, "pin_timeout_sec=%u", lease_s);
    group.n_layers = n_layers;
    group.layers = n_layers == 1 ? "0" : "0,1,2";
    group.layout = n_layers == 1 ? "one" : "three";
    task->f.engine = must_open(&task->f, &o);
    set_view(task->f.engine, 0, task->f.memory);
}

/* As chunk_bytes(), of n_layers. */
static bool
layer_bytes(const struct fixture *f, const struct io *io, uint32_t c, uint32_t n_layers,
            bool compare)
{
    static uint64_t want[BLOCK_BYTES / sizeof(uint64_t)];
    uint64_t state;

    memcpy(&state, io->chunks[c].prefix, sizeof state);
    state += n_layers;
    for (uint32_t b = 0; b < CHUNK_BLOCKS; b++) {
        for (uint32_t layer = 0; layer < n_layers; layer++) {
            void *at = block_at(f, layer, (uint32_t)io->blocks[c * CHUNK_BLOCKS + b]);

            for (size_t i = 0; i < sizeof want / sizeof *want; i++)
                want[i] = next_random(&state);
            if (!compare)
                memcpy(at, want, sizeof want);
            else if (memcmp(at, want, sizeof want))
                return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------- a process */

struct call {
    const char *name;
    uint64_t n_stops;
    int64_t began_ns;
};

static struct call
begin(const struct progress *p, const char *name)
{
    uint64_t n_stops = atomic_load(&p->n_stops);

    return (struct call){ name, n_stops, now_ns() };
}

static void
end_call(struct progress *p, const struct call *call)
{
    int64_t ns = now_ns() - call->began_ns;

    atomic_fetch_add(&p->n_calls, 1);
    if (atomic_load(&p->n_stops) != call->n_stops || ns <= atomic_load(&p->longest_ns))
        return;
    atomic_store(&p->longest_ns, ns);
    atomic_store(&p->longest, call->name); /* a literal: valid in the parent */
}

static void
store_some(struct task *task, struct kvt_seq *seq, uint64_t random, uint32_t n_layers)
{
    struct progress *p = &task->progress[task->process];
    size_t first = random % N_CHUNKS;
    uint32_t n = 1 + (uint32_t)((random >> 8) % (N_CHUNKS - first));
    struct io io;

    make_io(&io, seq, 0, first, n, 1);
    for (uint32_t c = 0; c < n; c++)
        layer_bytes(&task->f, &io, c, n_layers, false);
    struct call call = begin(p, "store");
    assert_int_equal(kvt_engine_store(task->f.engine, &io.io, 1), 0);
    end_call(p, &call);
    if (random >> 16 & 1) {
        call = begin(p, "flush");
        assert_int_equal(kvt_engine_flush(task->f.engine, -1), 0);
        end_call(p, &call);
    }
}

/* Load the chunks of a promise.  A chunk may be missing only after the end of the lease. */
static void
load_some(struct task *task, struct kvt_seq *seq, uint64_t random, uint32_t n_layers)
{
    struct progress *p = &task->progress[task->process];
    struct call call = begin(p, "lookup"), lookup_call = call;
    uint64_t max = (1 + random % N_CHUNKS) * CHUNK;
    uint32_t n = (uint32_t)(lookup(&task->f, seq, 0, max) / CHUNK);
    struct io io;

    end_call(p, &call);
    if (!n)
        return;
    make_io(&io, seq, 0, 0, n, 1);
    wipe(&task->f);
    call = begin(p, "load");
    struct kvt_load *load = load_and_wait(&task->f, &io.io, 1);
    end_call(p, &call);
    bool leased = now_ns() - lookup_call.began_ns < LEASE_S * INT64_C(900000000);
    for (uint32_t c = 0; c < n; c++) {
        int status = kvt_load_status(load, 0, c);

        if (status && (leased || (status != -ENOENT && status != -ECANCELED)))
            fail_msg("promised chunk %u: status %d", c, status);
        if (!status && !layer_bytes(&task->f, &io, c, n_layers, true))
            fail_msg("chunk %u was loaded with wrong bytes", c);
        atomic_fetch_add(&p->n_loaded, !status);
    }
    kvt_load_free(load);
}

static void
work(void *arg)
{
    struct task *task = arg;
    uint64_t random = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);
    uint32_t n_layers = random >> 32 & 1 ? 1 : 3;
    struct progress *p = &task->progress[task->process];
    struct call call;

    /* The limit of a call does not hold for an open, which populates the private pool. */
    open_shared(task, n_layers, LEASE_S);
    for (;;) {
        uint64_t r = next_random(&random);

        set_tokens(&task->f, (uint32_t)(r % N_PROMPTS));
        struct kvt_seq *seq = new_seq(&task->f, N_TOKENS);
        if (r >> 32 & 1)
            store_some(task, seq, r >> 33, n_layers);
        else
            load_some(task, seq, r >> 33, n_layers);
        call = begin(p, "release");
        kvt_engine_release(task->f.engine, seq);
        end_call(p, &call);
        kvt_seq_free(seq);
    }
}

/* ------------------------------------------------------------------- the whole memory */

/* Store a chunk until a lookup promises it: the memory may still grow. */
static bool
store_leased(struct task *task, struct kvt_seq *seq, uint32_t c, uint32_t n_layers)
{
    struct io io;

    make_io(&io, seq, 0, c, 1, 1);
    layer_bytes(&task->f, &io, 0, n_layers, false);
    for (int i = 0; i < 100; i++) {
        store_and_flush(&task->f, &io.io, 1);
        kvt_engine_release(task->f.engine, seq); /* else the next lookup returns the old promise */
        if (lookup(&task->f, seq, 0, (c + 1) * CHUNK) == (c + 1) * CHUNK)
            return true;
        usleep(20 * 1000);
    }
    return false;
}

/* Fill the memory with leased chunks of one unit each, from prompts that work() does not use. */
static void
fill(void *arg)
{
    struct task *task = arg;
    struct kvt_seq *seqs[N_UNITS / N_CHUNKS + 1];
    uint32_t n_seqs = 0, n = 0;

    open_shared(task, 1, 3600);
    for (bool stored = true; stored && n <= N_UNITS; n += stored) {
        if (n == n_seqs * N_CHUNKS) {
            set_tokens(&task->f, N_PROMPTS + n_seqs);
            seqs[n_seqs++] = new_seq(&task->f, N_TOKENS);
        }
        stored = store_leased(task, seqs[n_seqs - 1], n % N_CHUNKS, 1);
    }
    for (uint32_t i = 0; i < n_seqs; i++) {
        kvt_engine_release(task->f.engine, seqs[i]);
        kvt_seq_free(seqs[i]);
    }
    atomic_store(&task->progress->n_filled, n);
    kvt_engine_close(task->f.engine);
}

/* Return the number of chunks that fill the memory while no other process uses the memory. */
static uint64_t
fill_in_a_process(struct task *task)
{
    assert_int_equal(end_child(start_child(fill, task)), 0);
    return atomic_load(&task->progress->n_filled);
}

/* ------------------------------------------------------------------- the parent */

static void
start(struct task *task, pid_t *pid, uint32_t process)
{
    task->process = process;
    *pid = start_child(work, task);
}

static void
end(pid_t pid)
{
    kill(pid, SIGKILL);
    int status = end_child(pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Wait until a process has made n more calls; the process must not end. */
static void
wait_for_calls(const struct task *task, pid_t pid, uint32_t process, uint64_t n)
{
    const struct progress *p = &task->progress[process];
    uint64_t before = atomic_load(&p->n_calls);
    int64_t began = now_ns();

    while (atomic_load(&p->n_calls) < before + n) {
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
        if (now_ns() - began > START_NS)
            fail_msg("process %u makes no calls", process);
        usleep(100);
    }
}

static void
setup_task(struct task *task)
{
    memset(task, 0, sizeof *task);
    fixture_init(&task->f);
    temp_dir_make_in_memory(&task->shm);
    task->progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    assert_true(task->progress != MAP_FAILED);
}

/* Both processes are dead: compare the memory with `n_new` chunks of a new memory. */
static void
check_and_end(struct task *task, uint64_t n_new)
{
    sleep(LEASE_S + 1); /* leases of the dead */
    uint64_t n_filled = fill_in_a_process(task);

    temp_dir_remove(&task->shm);
    fixture_fini(&task->f);
    for (uint32_t i = 0; i < 2; i++) {
        const struct progress *p = &task->progress[i];

        print_message("process %u: %llu calls, %llu chunks loaded, longest call %.0f ms "
                      "(%s)\n", i, (unsigned long long)p->n_calls,
                      (unsigned long long)p->n_loaded, (double)p->longest_ns / 1e6,
                      p->longest ? p->longest : "none");
        assert_true(p->n_loaded > 0);
        assert_true(p->longest_ns < max_call_ns());
    }
    print_message("%llu leased chunks of a unit fill the memory, %llu a new memory\n",
                  (unsigned long long)n_filled, (unsigned long long)n_new);
    munmap(task->progress, 4096);
    assert_int_equal(n_filled, n_new);
    assert_true(n_new > N_UNITS / 2);
}

static void
a_killed_process_leaves_whole_chunks_and_no_lost_memory(void **state)
{
    unsigned kills = rounds(KILLS);
    uint64_t random = 1;
    struct task task;
    pid_t pids[2];

    (void)state;
    setup_task(&task);
    uint64_t n_new = fill_in_a_process(&task);
    for (uint32_t i = 0; i < 2; i++)
        start(&task, &pids[i], i);
    for (unsigned k = 1; k <= kills; k++) {
        uint64_t r = next_random(&random);
        uint32_t victim = r >> 32 & 1;

        if (r >> 40 & 3)
            wait_for_calls(&task, pids[victim], victim, 1);
        usleep((useconds_t)(r % (LONGEST_NS / 1000)));
        end(pids[victim]);
        if (k % ALONE_EVERY) {
            wait_for_calls(&task, pids[!victim], !victim, 2);
        } else { /* the next process that opens the memory is alone */
            end(pids[!victim]);
            start(&task, &pids[!victim], !victim);
        }
        start(&task, &pids[victim], victim);
        if (k % 1000 == 0)
            print_message("%u deaths\n", k);
    }
    for (uint32_t i = 0; i < 2; i++)
        end(pids[i]);
    check_and_end(&task, n_new);
}

/* Stop a process until the other process has made calls, or for the time of a long stop. */
static void
stop(struct task *task, const pid_t pids[2], uint32_t victim, bool is_long)
{
    struct progress *p = &task->progress[victim];
    int status;

    atomic_fetch_add(&p->n_stops, 1);
    kill(pids[victim], SIGSTOP);
    assert_int_equal(waitpid(pids[victim], &status, WUNTRACED), pids[victim]);
    assert_true(WIFSTOPPED(status));
    int64_t began = now_ns();
    do
        wait_for_calls(task, pids[!victim], !victim, 20);
    while (is_long && now_ns() - began < LONG_STOP_NS);
    atomic_fetch_add(&p->n_stops, 1);
    kill(pids[victim], SIGCONT);
}

static void
a_stopped_process_stops_no_other_and_reads_its_own_bytes(void **state)
{
    unsigned stops = LONG_STOPS + rounds(STOPS);
    uint64_t random = 2;
    struct task task;
    pid_t pids[2];

    (void)state;
    setup_task(&task);
    uint64_t n_new = fill_in_a_process(&task);
    for (uint32_t i = 0; i < 2; i++)
        start(&task, &pids[i], i);
    for (unsigned k = 1; k <= stops; k++) {
        uint64_t r = next_random(&random);
        uint32_t victim = r >> 32 & 1;

        wait_for_calls(&task, pids[victim], victim, 1);
        usleep((useconds_t)(r % (LONGEST_NS / 1000)));
        stop(&task, pids, victim, k % (stops / LONG_STOPS) == 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        end(pids[i]);
    check_and_end(&task, n_new);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_process_leaves_whole_chunks_and_no_lost_memory),
        cmocka_unit_test(a_stopped_process_stops_no_other_and_reads_its_own_bytes),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
