/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that stores a chunk from a GPU's memory is killed at each step, that is, before each
 * call of the file system and of the library.  Afterwards the directory contains the old chunk, the
 * new chunk or no chunk, and never a part of a chunk. */
#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "gds-device-test.h"
#include "io/exec.h"

#define BYTES (4 * MIB)
#define OLD 1u /* seeds of payloads */
#define NEW 2u

/* ------------------------------------------------------------------------- steps */

static atomic_int steps_left; /* 0: the process is not killed */

static void
take_step(void)
{
    if (steps_left && atomic_fetch_sub(&steps_left, 1) == 1)
        kill(getpid(), SIGKILL);
}

/* Replace a function of the C library: count a step, then call the real function. */
#define WRAPPED(type, name, parameters, arguments) \
    type __real_##name parameters;                 \
    type __wrap_##name parameters;                 \
                                                   \
    type __wrap_##name parameters                  \
    {                                              \
        take_step();                               \
        return __real_##name arguments;            \
    }
WRAPPED(int, openat64, (int dirfd, const char *path, int flags, mode_t mode),
        (dirfd, path, flags, mode))
WRAPPED(ssize_t, pwrite64, (int fd, const void *at, size_t n, off_t to), (fd, at, n, to))
WRAPPED(int, fallocate64, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
WRAPPED(int, mkdirat, (int dirfd, const char *path, mode_t mode), (dirfd, path, mode))
WRAPPED(int, renameat, (int from, const char *old, int to, const char *new),
        (from, old, to, new))
WRAPPED(int, unlinkat, (int dirfd, const char *path, int flags), (dirfd, path, flags))
WRAPPED(int, close, (int fd), (fd))

/* ------------------------------------------------------------------ who is killed */

static char **arguments;
static struct temp_dir dir;

static struct kvt__tier *
open_here(void)
{
    char url[300];

    snprintf(url, sizeof url, "gds://%s", dir.path);
    return open_tier(url, true);
}

/* Describe a chunk; the identity contains the seed of the payload. */
static void
describe(struct chunk *c, unsigned seed)
{
    chunk_init(c, "model", 1234); /* in 12/34 */
    memset(&c->object.id, (int)seed, sizeof c->object.id);
}

struct store {
    struct kvt__job job; /* first */
    struct kvt__tier *tier;
    unsigned seed;
    int kill_at; /* which step; 0: none */
    int err;
    sem_t done;
};

static void
run_store(struct kvt__job *job)
{
    struct store *s = (struct store *)job;
    struct kvt__slot slot = lent_by(s->tier, BYTES);
    struct chunk c;

    slot_fill(&slot, s->seed);
    describe(&c, s->seed);
    steps_left = s->kill_at;
    s->err = put_slot(s->tier, &c, &slot);
    steps_left = 0;
    kvt__pool_release(NULL, &slot);
    sem_post(&s->done);
}

static void
store(unsigned seed, int kill_at)
{
    struct kvt__exec *exec;
    struct store s = { .job.run = run_store, .seed = seed, .kill_at = kill_at };

    use_fakes(arguments[3], arguments[4]);
    behave_well();
    gds->step = take_step;
    struct kvt__gpu *gpu = open_gpu(0);
    s.tier = open_here();
    assert_int_equal(s.tier->ops->use_gpu(s.tier, gpu, BYTES), 0);
    assert_int_equal(kvt__exec_open(4, &exec), 0);
    sem_init(&s.done, 0, 0);
    kvt__exec_submit(exec, KVT__PRIO_STORE, &s.job);
    sem_wait(&s.done);
    kvt__exec_close(exec);
    assert_int_equal(s.err, 0);
    s.tier->ops->close(s.tier);
    close_gpu(gpu);
}

/* Store a chunk in a child process, which is killed at this step.  Return true if the child was
 * killed. */
static bool
store_and_die(unsigned seed, int kill_at)
{
    int status;

    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        store(seed, kill_at);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        assert_int_equal(WTERMSIG(status), SIGKILL);
    else
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

/* ------------------------------------------------------------------- what is left */

/* Return the seed of the stored chunk; 0: no chunk is stored. */
static unsigned
seed_of_what_is_there(struct kvt__tier *tier)
{
    struct kvt__slot slot = slot_new(BYTES, tier->phase);
    struct kvt__found found;
    unsigned seed = 0;
    struct chunk c;

    describe(&c, NEW);
    int err = kvt__tier_get(tier, &c.object, &slot, &found);
    if (!err) {
        seed = found.id.b[0];
        assert_true(found.has_id && found.has_read_crc);
        assert_int_equal(found.read_crc, found.crc);
        assert_true(slot_holds(&slot, seed));
    } else {
        assert_int_equal(err, -ENOENT);
    }
    slot_free(&slot, tier->phase);
    return seed;
}

static size_t
count_files(const char *below, const char *suffix)
{
    char path[400];
    struct dirent *e;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/%s", dir.path, below);
    DIR *d = opendir(path);
    while (d && (e = readdir(d))) {
        size_t length = strlen(e->d_name);

        n += e->d_name[0] != '.' && length > strlen(suffix) &&
             !strcmp(e->d_name + length - strlen(suffix), suffix);
    }
    if (d)
        closedir(d);
    return n;
}

/* LMCache finds no second file without a chunk, and the next start deletes leftover files. */
static unsigned
expect_whole_or_nothing(void)
{
    struct kvt__tier *tier = open_here(); /* through host memory */
    unsigned seed = seed_of_what_is_there(tier);

    assert_int_equal(count_files(".kvtier/tmp", ""), 0);
    size_t n_beside = count_files("12/34", ".kvcache.safetensors.metadata");
    size_t n = count_files("12/34", ".kvcache.safetensors");
    assert_int_equal(n, seed != 0);
    assert_int_equal(count_files("12/34", ""), n + n_beside);
    assert_true(n_beside <= n);
    tier->ops->close(tier);
    return seed;
}

static void
kill_at_each_step(bool over_old)
{
    unsigned n[3] = { 0 };
    bool killed = true;
    int at;

    for (at = 1; killed; at++) {
        temp_dir_make(&dir);
        if (over_old)
            assert_false(store_and_die(OLD, 0));
        killed = store_and_die(NEW, at);
        unsigned seed = expect_whole_or_nothing();
        assert_true(seed == NEW || (killed && seed == (over_old ? OLD : 0)));
        n[seed]++;
        temp_dir_remove(&dir);
    }
    print_message("killed at %d steps; afterwards %u times nothing, %u the old, %u the new "
                  "chunk\n", at - 2, n[0], n[OLD], n[NEW]);
    assert_true(n[NEW] > 1);
    assert_true(n[over_old ? OLD : 0] > 10);
}

static void
a_killed_store_leaves_the_whole_chunk_or_none(void **state)
{
    (void)state;
    kill_at_each_step(false);
}

static void
a_killed_store_leaves_the_old_chunk_or_the_new_one(void **state)
{
    (void)state;
    kill_at_each_step(true);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_store_leaves_the_whole_chunk_or_none),
        cmocka_unit_test(a_killed_store_leaves_the_old_chunk_or_the_new_one),
    };

    if (argc < 5)
        return 1;
    if (!find_helper(argv[1], argv[2]))
        return 77;
    arguments = argv; /* the killed children load the named libraries */
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    int failed = cmocka_run_group_tests_name("gds, crashes", tests, NULL, NULL);
    forget_fakes();
    return failed;
}
