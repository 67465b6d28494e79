/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu tier: slots are shared, not copied, and given back; and the directories
 * of its indexes. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "own-shm.h"
#include "tier-test.h"

#include "base/fork.h"
#include "tier/cpu/cpu.h"

static struct kvt__tier *
open_cpu(uint32_t n_chunks)
{
    struct kvt__cpu_params params = { .pool = slot_pool, .n_chunks = n_chunks,
                                      .limit_bytes = 32 << 20, .dirfd = -1 };
    struct kvt__tier *tier = NULL;

    assert_int_equal(kvt__cpu_open(&params, &tier), 0);
    return tier;
}

static int
setup(void **state)
{
    open_slot_pool();
    *state = open_cpu(8);
    return 0;
}

static int
teardown(void **state)
{
    struct kvt__tier *tier = *state;

    tier->ops->close(tier);
    assert_int_equal(kvt__pool_used(slot_pool), 0);
    close_slot_pool();
    return 0;
}

static void
borrow_hands_out_the_slot_that_was_put(void **state)
{
    struct kvt__tier *tier = *state;
    struct kvt__slot slot = slot_new(5000, 0), borrowed;
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", 1);
    assert_int_equal(tier->ops->put(tier, &c.object, &slot, 77), 0);
    assert_int_equal(tier->ops->borrow(tier, &c.object, &borrowed, &found), 0);
    assert_ptr_equal(borrowed.payload, slot.payload);
    assert_int_equal(borrowed.bytes, 5000);
    assert_int_equal(found.payload_bytes, 5000);
    kvt__pool_release(slot_pool, &borrowed);
    kvt__pool_release(slot_pool, &slot);
}

static void
a_chunk_in_use_is_not_removed_and_later_is(void **state)
{
    struct kvt__tier *tier = *state;
    struct kvt__slot slot = slot_new(5000, 0), borrowed;
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", 1);
    assert_int_equal(tier->ops->put(tier, &c.object, &slot, 0), 0);
    assert_int_equal(tier->ops->remove(tier, &c.object), -EBUSY);
    kvt__pool_release(slot_pool, &slot);
    assert_int_equal(tier->ops->borrow(tier, &c.object, &borrowed, &found), 0);
    assert_int_equal(tier->ops->remove(tier, &c.object), -EBUSY);
    kvt__pool_release(slot_pool, &borrowed);
    assert_int_equal(tier->ops->remove(tier, &c.object), 0);
    assert_int_equal(kvt__pool_used(slot_pool), 0);
}

static void
what_is_borrowed_outlives_its_replacement(void **state)
{
    struct kvt__tier *tier = *state;
    struct kvt__slot borrowed;
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", 1);
    assert_int_equal(put_bytes(tier, &c.object, 5000, 1), 0);
    assert_int_equal(tier->ops->borrow(tier, &c.object, &borrowed, &found), 0);
    assert_int_equal(put_bytes(tier, &c.object, 5000, 2), 0);
    assert_true(slot_holds(&borrowed, 1));
    kvt__pool_release(slot_pool, &borrowed);
}

static void
a_full_table_refuses_and_takes_again_after_a_removal(void **state)
{
    struct kvt__tier *tier = *state;
    struct chunk c;

    for (int i = 0; i < 8; i++) {
        chunk_init(&c, "model", i);
        assert_int_equal(put_bytes(tier, &c.object, 100, 1), 0);
    }
    chunk_init(&c, "model", 8);
    assert_int_equal(put_bytes(tier, &c.object, 100, 1), -ENOSPC);
    chunk_init(&c, "model", 3);
    assert_int_equal(tier->ops->remove(tier, &c.object), 0);
    chunk_init(&c, "model", 8);
    assert_int_equal(put_bytes(tier, &c.object, 100, 1), 0);
}

static void *
use(void *arg)
{
    struct kvt__tier *tier = arg;
    struct kvt__found found;
    struct kvt__slot slot;
    struct chunk c;
    long n_bad = 0;

    for (unsigned i = 0; i < 2000; i++) {
        chunk_init(&c, "model", i * 7 % 6);
        if (i % 3 == 0 && put_bytes(tier, &c.object, 512, c.object.hash.bits[0]))
            n_bad++;
        else if (i % 3 == 1)
            (void)tier->ops->remove(tier, &c.object);
        else if (!tier->ops->borrow(tier, &c.object, &slot, &found)) {
            n_bad += !slot_holds(&slot, c.object.hash.bits[0]);
            kvt__pool_release(slot_pool, &slot);
        }
    }
    return (void *)n_bad;
}

static void
threads_see_whole_chunks_and_leak_no_slot(void **state)
{
    pthread_t threads[4];
    void *n_bad;

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, *state), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &n_bad);
        assert_ptr_equal(n_bad, NULL);
    }
}

/* ---------------------------------------------------------------- instances */

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
    kvt__instance_close(&scheduler); /* again does nothing */
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
what_a_killed_engine_left_goes_when_another_starts(void **state)
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
    assert_true(is_there(&dead)); /* somebody holds it */
    kvt__instance_close(&next);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    kvt__lock_file_close(dead.dirfd); /* this one dies too */
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

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(borrow_hands_out_the_slot_that_was_put),
        TEST(a_chunk_in_use_is_not_removed_and_later_is),
        TEST(what_is_borrowed_outlives_its_replacement),
        TEST(a_full_table_refuses_and_takes_again_after_a_removal),
        TEST(threads_see_whole_chunks_and_leak_no_slot),
        cmocka_unit_test(both_roles_find_one_directory_and_the_last_removes_it),
        cmocka_unit_test(ranks_and_engines_have_directories_of_their_own),
        cmocka_unit_test(a_second_worker_of_a_rank_is_refused_while_the_first_lives),
        cmocka_unit_test(what_a_killed_engine_left_goes_when_another_starts),
        cmocka_unit_test(a_forked_child_is_no_worker),
    };

    this_run = getpid();
    (void)own_shm(NULL); /* workers of other programs would remove what is left here */
    return cmocka_run_group_tests_name("cpu tier", tests, NULL, NULL);
}
