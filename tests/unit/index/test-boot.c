/* SPDX-License-Identifier: Apache-2.0
 *
 * The index after another boot, in a forked child and after the death of an owner. */
#include "index-test.h"

#include <signal.h>
#include <sys/wait.h>

static void
other_boot_voids_leases_claims_and_owners(void **state)
{
    struct dir *d = *state;
    struct kvt__id ready = id_of(1), claimed = id_of(2), evicting = id_of(3);
    struct kvt__index_claim c;
    int status;

    pid_t pid = fork();
    if (!pid) {
        struct kvt__index *ix = open_writer(d);
        put(ix, &ready);
        put(ix, &evicting);
        kvt__index_lease(ix, &ready, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL);
        claim(ix, &claimed, &c);
        kvt__index_evict(ix, &evicting, false, NULL, &c);
        kvt__index_reserve(ix, 1000);
        kvt__index_set_scanned(ix, true);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    poke(d, 32, "another boot id.", 16);
    struct kvt__index *ix = open_writer(d);
    assert_true(kvt__index_find(ix, &ready, NULL));
    assert_false(kvt__index_find(ix, &claimed, NULL));
    assert_false(kvt__index_find(ix, &evicting, NULL));
    assert_false(kvt__index_scanned(ix));
    assert_true(adds_up(ix, 0));
    assert_int_equal(drop(ix, &ready), 0);
    assert_int_equal(put(ix, &claimed), 0);
    assert_int_equal(put(ix, &evicting), 0);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
closed_table_of_another_boot_stays_scanned(void **state)
{
    struct kvt__id id = id_of(1);

    put_one_and_close(*state);
    poke(*state, 32, "another boot id.", 16);
    struct kvt__index *ix = open_writer(*state);
    assert_true(kvt__index_scanned(ix));
    assert_true(kvt__index_find(ix, &id, NULL));
    kvt__index_close(ix);
}

static int
use_in_child(struct kvt__index *ix, const struct kvt__id *id)
{
    struct kvt__index_totals t;
    struct kvt__index_claim c;
    bool ok = kvt__index_reserve(ix, 1) == -ESTALE
              && claim(ix, id, &c) == -ESTALE
              && kvt__index_evict(ix, id, true, NULL, &c) == -ESTALE
              && kvt__ix_space(ix, "m") == -ESTALE
              && !kvt__index_find(ix, id, NULL)
              && !kvt__index_lease(ix, id, INT64_MAX, NULL)
              && !kvt__index_scanned(ix) && !kvt__index_recover(ix);

    kvt__index_touch(ix, id);
    kvt__index_unlease(ix, id);
    kvt__index_clear(ix);
    kvt__index_get_totals(ix, &t);
    kvt__index_close(ix);
    return ok ? 0 : 1;
}

static void
handle_is_dead_in_a_forked_child(void **state)
{
    struct kvt__index *shared = open_writer(*state), *own = open_writer(NULL);
    struct kvt__id id = id_of(1);
    int status;

    put(shared, &id);
    put(own, &id);
    pid_t pid = fork();
    if (!pid)
        _exit(use_in_child(shared, &id) | use_in_child(own, &id));
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_true(kvt__index_find(shared, &id, NULL));
    assert_true(kvt__index_find(own, &id, NULL));
    kvt__index_close(shared);
    kvt__index_close(own);
}

static void
child_of_a_dead_owner_does_not_keep_it_alive(void **state)
{
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;
    int ready[2], hold[2];
    char b;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (!pid) {
        struct kvt__index *ix = open_writer(*state);
        close(hold[1]);
        claim(ix, &id, &c);
        if (!fork()) {
            ssize_t n = write(ready[1], "x", 1) + read(hold[0], &b, 1);
            _exit((int)n);
        }
        pause();
    }
    close(hold[0]);
    assert_int_equal(read(ready[0], &b, 1), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    struct kvt__index *ix = open_writer(*state);
    assert_int_equal(put(ix, &id), 0);
    kvt__index_close(ix);
    close(hold[1]);
    close(ready[0]);
    close(ready[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(other_boot_voids_leases_claims_and_owners),
        INDEX_TEST(closed_table_of_another_boot_stays_scanned),
        INDEX_TEST(handle_is_dead_in_a_forked_child),
        INDEX_TEST(child_of_a_dead_owner_does_not_keep_it_alive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
