/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories of the indexes of host memory: a worker and the scheduler of an engine share a
 * directory, and the last user removes the directory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvt-test.h"
#include "own-shm.h"

#include "base/error.h"
#include "base/fork.h"
#include "store/instance.h"

/* Part of every name: without an own /dev/shm, other programs have instances there too. */
static pid_t this_run;

static int
open_instance(const char *what, uint32_t rank, bool worker, struct kvt__instance *out)
{
    char name[64];

    snprintf(name, sizeof name, "%s-%d", what, (int)this_run);
    return kvt__instance_open(name, rank, worker, out);
}

static bool
is_there(const struct kvt__instance *instance)
{
    char path[128];

    snprintf(path, sizeof path, "/dev/shm/kvtier-%lu/%s", (unsigned long)geteuid(),
             instance->name);
    return !access(path, F_OK);
}

static void
both_roles_find_one_directory_and_the_last_removes_it(void **state)
{
    struct kvt__instance worker, scheduler;

    (void)state;
    assert_int_equal(open_instance("test-both", 1, false, &scheduler), 0);
    assert_int_equal(open_instance("test-both", 1, true, &worker), 0);
    assert_string_equal(scheduler.name, worker.name);
    kvt__instance_close(&worker);
    assert_true(is_there(&scheduler));
    char name[32];
    memcpy(name, scheduler.name, sizeof name);
    kvt__instance_close(&scheduler);
    memcpy(scheduler.name, name, sizeof name);
    assert_false(is_there(&scheduler));
    scheduler.name[0] = '\0';
    kvt__instance_close(&scheduler); /* a second close has no effect */
}

static void
ranks_and_engines_have_directories_of_their_own(void **state)
{
    struct kvt__instance a, b, c;

    (void)state;
    assert_int_equal(open_instance("test-own", 0, true, &a), 0);
    assert_int_equal(open_instance("test-own", 1, true, &b), 0);
    assert_int_equal(open_instance("../test/own", 0, true, &c), 0);
    assert_string_not_equal(a.name, b.name);
    assert_string_not_equal(a.name, c.name);
    kvt__instance_close(&a);
    kvt__instance_close(&b);
    kvt__instance_close(&c);
}

static void
a_second_worker_of_a_rank_is_refused_while_the_first_lives(void **state)
{
    struct kvt__instance first, second;

    (void)state;
    assert_int_equal(open_instance("test-second", 0, true, &first), 0);
    assert_int_equal(open_instance("test-second", 0, true, &second), -EBUSY);
    assert_non_null(strstr(kvt__why(), "test-second"));
    kvt__instance_close(&first);
    assert_int_equal(open_instance("test-second", 0, true, &second), 0);
    kvt__instance_close(&second);
}

static void
the_next_engine_removes_directories_of_a_killed_engine(void **state)
{
    struct kvt__instance dead, next;
    int pipe_fds[2];
    char ready;

    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (!child) {
        if (open_instance("test-killed", 0, true, &dead) ||
            write(pipe_fds[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(pipe_fds[0], &ready, 1), 1);
    assert_int_equal(open_instance("test-killed", 0, false, &dead), 0);
    assert_int_equal(open_instance("test-next", 0, true, &next), 0);
    assert_true(is_there(&dead)); /* a process holds the directory */
    kvt__instance_close(&next);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    kvt__lock_file_close(dead.dirfd); /* the second engine dies too */
    assert_true(is_there(&dead));
    assert_int_equal(open_instance("test-next", 0, true, &next), 0);
    assert_false(is_there(&dead));
    kvt__instance_close(&next);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

/* A worker can start again beside a living child that its predecessor has forked. */
static void
a_forked_child_is_no_worker(void **state)
{
    struct kvt__instance scheduler, parents, next;
    int ready[2];
    char byte;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(open_instance("test-fork", 0, false, &scheduler), 0);
    assert_int_equal(open_instance("test-fork", 0, true, &parents), 0);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (write(ready[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kvt__instance_close(&parents);
    assert_int_equal(open_instance("test-fork", 0, true, &next), 0);
    kvt__instance_close(&next);
    kvt__instance_close(&scheduler);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_roles_find_one_directory_and_the_last_removes_it),
        cmocka_unit_test(ranks_and_engines_have_directories_of_their_own),
        cmocka_unit_test(a_second_worker_of_a_rank_is_refused_while_the_first_lives),
        cmocka_unit_test(the_next_engine_removes_directories_of_a_killed_engine),
        cmocka_unit_test(a_forked_child_is_no_worker),
    };

    this_run = getpid();
    (void)own_shm(NULL); /* workers of other programs would remove the directories */
    return cmocka_run_group_tests_name("instances", tests, NULL, NULL);
}
