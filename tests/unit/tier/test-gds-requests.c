/* SPDX-License-Identifier: Apache-2.0
 *
 * The transfer of a chunk between a GPU and a file: the number of concurrent requests is the number
 * of threads, a failed request stops the transfer, and no request is in progress after the call
 * returns. */
#include <dirent.h>
#include <semaphore.h>

#include "gds-device-test.h"
#include "io/exec.h"

#define REGION (32 * MIB)
#define N_THREADS 4

static struct temp_dir dir;
static struct kvt__gpu *gpu;
static struct kvt__tier *tier;
static struct kvt__exec *exec;

static void
open_all(const char *switches)
{
    char url[300];

    behave_well();
    gds_set(switches);
    snprintf(url, sizeof url, "gds://%s", dir.path);
    gpu = open_gpu(0);
    assert_int_equal(try_open_for(url, true, NULL, 1, &tier), 0);
    assert_int_equal(tier->ops->use_gpu(tier, gpu, REGION), 0);
    assert_int_equal(kvt__exec_open(N_THREADS, &exec), 0);
}

static void
close_all(void)
{
    kvt__exec_close(exec);
    tier->ops->close(tier);
    close_gpu(gpu);
}

/* The error of fallocate(); 0: the real result. */
static int no_room;

int __real_fallocate64(int fd, int mode, off_t at, off_t n);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t n);

int
__wrap_fallocate64(int fd, int mode, off_t at, off_t n)
{
    if (!no_room)
        return __real_fallocate64(fd, mode, at, n);
    errno = no_room;
    return -1;
}

static int
setup(void **state)
{
    (void)state;
    no_room = 0;
    temp_dir_make(&dir);
    open_all("");
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    close_all();
    temp_dir_remove(&dir);
    return 0;
}

/* ---------------------------------------------------------------- on the executor */

struct move {
    struct kvt__job job; /* first */
    struct chunk c;
    struct kvt__slot slot;
    bool get;
    int err;
    char why[512];
    sem_t done;
};

static void
run_move(struct kvt__job *job)
{
    struct move *m = (struct move *)job;
    struct kvt__found found;

    m->err = m->get ? kvt__tier_get(tier, &m->c.object, &m->slot, &found)
                    : put_slot(tier, &m->c, &m->slot);
    snprintf(m->why, sizeof m->why, "%s", m->err ? kvt__why() : "");
    sem_post(&m->done);
}

static void
move_init(struct move *m, int number, size_t bytes)
{
    memset(m, 0, sizeof *m);
    m->job.run = run_move;
    chunk_init(&m->c, "model", number);
    m->slot = lent_by(tier, bytes);
    slot_fill(&m->slot, (uint64_t)number);
    sem_init(&m->done, 0, 0);
}

static void
move_begin(struct move *m, bool get)
{
    m->get = get;
    if (get)
        memset(m->slot.payload, 0, m->slot.bytes);
    kvt__exec_submit(exec, get ? KVT__PRIO_LOAD : KVT__PRIO_STORE, &m->job);
}

static int
move_wait(struct move *m)
{
    sem_wait(&m->done);
    return m->err;
}

static int
move(struct move *m, bool get)
{
    move_begin(m, get);
    return move_wait(m);
}

static void
move_fini(struct move *m)
{
    kvt__pool_release(NULL, &m->slot);
    sem_destroy(&m->done);
}

/* Jobs that occupy all threads but one until the test releases them. */
static struct busy {
    struct kvt__job job;
    sem_t entered, open;
} busy[N_THREADS - 1];

static void
run_busy(struct kvt__job *job)
{
    struct busy *b = (struct busy *)job;

    sem_post(&b->entered);
    sem_wait(&b->open);
}

static void
keep_busy(void)
{
    for (int i = 0; i < N_THREADS - 1; i++) {
        busy[i].job.run = run_busy;
        sem_init(&busy[i].entered, 0, 0);
        sem_init(&busy[i].open, 0, 0);
        kvt__exec_submit(exec, KVT__PRIO_LOOKUP, &busy[i].job);
        sem_wait(&busy[i].entered);
    }
}

static void
let_go(void)
{
    for (int i = 0; i < N_THREADS - 1; i++)
        sem_post(&busy[i].open);
}

/* ------------------------------------------------------------------------ requests */

static void
each_thread_keeps_a_request_of_one_chunk_in_flight(void **state)
{
    struct move m;

    (void)state;
    move_init(&m, 1, 8 * MIB);
    for (int get = 0; get < 2; get++) {
        gds_set("meet=4");
        gds->max_in_flight = gds->n_moves = 0;
        gds->largest = 0;
        assert_int_equal(move(&m, get), 0);
        assert_int_equal(gds->max_in_flight, N_THREADS);
        assert_int_equal(gds->n_moves, N_THREADS);
        assert_int_equal(gds->largest, 2 * MIB);
    }
    assert_true(slot_holds(&m.slot, 1));
    move_fini(&m);
}

static void
one_thread_moves_a_chunk_if_others_are_busy(void **state)
{
    struct move m;

    (void)state;
    keep_busy();
    move_init(&m, 1, 8 * MIB + 4096);
    gds->max_in_flight = 0;
    assert_int_equal(move(&m, false), 0);
    assert_int_equal(move(&m, true), 0);
    assert_int_equal(gds->max_in_flight, 1);
    assert_true(slot_holds(&m.slot, 1));
    move_fini(&m);
    let_go();
}

static void
many_chunks_share_the_threads(void **state)
{
    struct move moves[7];

    (void)state;
    for (int i = 0; i < 7; i++)
        move_init(&moves[i], i, 4 * MIB);
    for (int get = 0; get < 2; get++) {
        for (int i = 0; i < 7; i++)
            move_begin(&moves[i], get);
        for (int i = 0; i < 7; i++)
            assert_int_equal(move_wait(&moves[i]), 0);
    }
    for (int i = 0; i < 7; i++) {
        assert_true(slot_holds(&moves[i].slot, (uint64_t)i));
        move_fini(&moves[i]);
    }
    assert_true(gds->max_in_flight <= N_THREADS);
}

static void
a_request_is_no_less_than_a_mib_and_no_more_than_the_library_moves(void **state)
{
    static const struct {
        size_t bytes;
        const char *switches; /* pieces of the library, in KiB */
        int n_moves;
        size_t largest;
    } cuts[] = {
        { 4096, "", 1, 4096 },
        { 2 * MIB - 4096, "", 1, 2 * MIB - 4096 },
        { 3 * MIB, "", 3, MIB },
        { 5 * MIB + 4096, "", 4, (5 * MIB + 4096 + 3) / 4 / 65536 * 65536 + 65536 },
        { 8 * MIB, "piece=1024", 8, MIB },
        { MIB, "piece=100", 16, 65536 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct move m;

        close_all();
        open_all(cuts[i].switches);
        move_init(&m, (int)i, cuts[i].bytes);
        gds->n_moves = 0;
        gds->largest = 0;
        assert_int_equal(move(&m, false), 0);
        assert_int_equal(gds->n_moves, cuts[i].n_moves);
        assert_int_equal(gds->largest, cuts[i].largest);
        assert_int_equal(move(&m, true), 0);
        assert_true(slot_holds(&m.slot, i));
        move_fini(&m);
    }
}

/* ------------------------------------------------------------------------ failures */

static size_t
n_temporary_files(void)
{
    char path[300];
    struct dirent *e;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/.kvtier/tmp", dir.path);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void
expect_nothing_left(void)
{
    assert_int_equal(gds->in_flight, 0);
    assert_int_equal(gds->n_files, 0);
    assert_int_equal(n_temporary_files(), 0);
}

static const struct {
    bool get;
    const char *switches;
    int err;
    const char *said;
} failures[] = {
    { false, "write=5,only=1", -EIO, "Write: Input/output error." },
    { false, "write=28,only=2", -ENOSPC, "Write: No space left on device." },
    { false, "write=5030,only=3", -EIO, "Write returns 5030: internal error of the library" },
    { false, "write=5017,form=1,only=4", -EFAULT, "Write returns 5017: the range exceeds" },
    { true, "read=5,only=4", -EIO, "Read: Input/output error." },
    { true, "read=5036,form=1,only=2", -ENOMEM, "Read returns 5036: the device's" },
    { true, "short=1,only=3", -EIO, "1048576 of 2097152 bytes were read." },
    { true, "read=5", -EIO, "Read: Input/output error." }, /* all of them */
};

static void
a_failed_request_fails_the_chunk_with_its_message(void **state)
{
    struct kvt__found found;
    struct move m;
    char start[500];

    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        bool get = failures[i].get;

        move_init(&m, (int)i, 8 * MIB);
        if (get)
            assert_int_equal(move(&m, false), 0);
        gds_set(failures[i].switches);
        assert_int_equal(move(&m, get), failures[i].err);
        int n_moves = gds->n_moves;
        expect_nothing_left();
        snprintf(start, sizeof start, "in %s: lib%sfile", dir.path, is_hip ? "hip" : "cu");
        if (strncmp(m.why, get ? "read " : "write ", get ? 5 : 6) ||
            !strstr(m.why, start) || !strstr(m.why, failures[i].said))
            fail_msg("'%s' in '%s'", failures[i].said, m.why);
        assert_int_equal(kvt__tier_probe(tier, &m.c.object, &found), get ? 0 : -ENOENT);
        assert_int_equal(gds->n_moves, n_moves);
        gds_set("");
        slot_fill(&m.slot, i);
        assert_int_equal(move(&m, false), 0); /* the memory and the name can be used */
        assert_int_equal(move(&m, true), 0);
        assert_true(slot_holds(&m.slot, i));
        move_fini(&m);
    }
}

static void
after_a_request_that_failed_none_begins(void **state)
{
    struct move m;

    (void)state;
    keep_busy();
    move_init(&m, 1, 8 * MIB);
    gds_set("write=5,only=2");
    gds->n_moves = 0;
    assert_int_equal(move(&m, false), -EIO);
    assert_int_equal(gds->n_moves, 2);
    let_go();
    move_fini(&m);
}

static void
without_room_no_request_begins(void **state)
{
    struct move m;

    (void)state;
    move_init(&m, 1, 8 * MIB);
    no_room = ENOSPC;
    gds->n_moves = 0;
    assert_int_equal(move(&m, false), -ENOSPC);
    assert_non_null(strstr(m.why, "reserve 8388608 bytes: No space left on device."));
    assert_int_equal(gds->n_moves, 0);
    expect_nothing_left();
    no_room = EOPNOTSUPP; /* a file system without fallocate() may still have room */
    assert_int_equal(move(&m, false), 0);
    assert_int_equal(move(&m, true), 0);
    assert_true(slot_holds(&m.slot, 1));
    move_fini(&m);
}

/* The call does not return before the last request has ended. */
static void
a_failure_waits_for_the_chunks_other_requests(void **state)
{
    struct move m;

    (void)state;
    move_init(&m, 1, 8 * MIB);
    gds_set("write=5,only=1,meet=4,delay=20");
    gds->n_moves = 0;
    assert_int_equal(move(&m, false), -EIO);
    expect_nothing_left();
    assert_int_equal(gds->n_moves, N_THREADS);
    move_fini(&m);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(each_thread_keeps_a_request_of_one_chunk_in_flight),
        TEST(one_thread_moves_a_chunk_if_others_are_busy),
        TEST(many_chunks_share_the_threads),
        TEST(a_request_is_no_less_than_a_mib_and_no_more_than_the_library_moves),
        TEST(a_failed_request_fails_the_chunk_with_its_message),
        TEST(after_a_request_that_failed_none_begins),
        TEST(without_room_no_request_begins),
        TEST(a_failure_waits_for_the_chunks_other_requests),
    };

    if (!load_fakes(argc, argv))
        return 77;
    int failed = cmocka_run_group_tests_name("gds, requests", tests, NULL, NULL);
    forget_fakes();
    return failed;
}
