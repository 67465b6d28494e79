/* SPDX-License-Identifier: Apache-2.0
 *
 * Pins: the bytes of a pinned chunk stay, whatever happens to the entry, until the unpin or
 * the end of the process. */
#include "shared-cpu-test.h"

enum { N = 32 /* units */ };

/* Store three times the capacity of the memory. */
static void
overfill(struct handle *h, uint64_t first)
{
    for (uint64_t i = 0; i < 3 * N / 4; i++)
        assert_int_equal(put(h, first + i, 4), 0);
}

static void
pinned_bytes_stay_after_a_forced_end_of_the_entry(void **state)
{
    struct handle a = open_memory(*state, N), b = open_memory(*state, N);
    const unsigned char *payload;

    assert_int_equal(put(&a, 1, 4), 0);
    int number = pin(&b, 1, &payload);
    assert_true(number >= 0);
    forget(&a, 1);
    assert_false(has(&a, 1));
    overfill(&a, 100); /* also uses the number of the entry again */
    forget_all(&a);
    overfill(&a, 200);
    assert_true(is_payload(1, payload, bytes_of(4)));
    assert_int_equal(put(&a, 300, N), -ENOSPC);
    kvt__sc_unpin(&b.m, (unsigned)number);
    assert_int_equal(put(&a, 301, N), 0);
    kvt__table_close(b.table);
    fill_completely(&a, 1 << 20);
    kvt__table_close(a.table);
}

static void
pinned_chunks_are_not_evicted(void **state)
{
    struct handle a = open_memory(*state, N), b = open_memory(*state, N);
    const unsigned char *payload[N / 4];
    int number[N / 4];

    for (unsigned i = 0; i < N / 4; i++) {
        assert_int_equal(put(&a, i, 4), 0);
        number[i] = pin(&b, i, &payload[i]);
        assert_true(number[i] >= 0);
    }
    assert_int_equal(put(&a, 100, 4), -ENOSPC);
    assert_int_equal(recount(&a), N / 4);
    kvt__sc_unpin(&b.m, (unsigned)number[3]);
    assert_int_equal(put(&a, 100, 4), 0);
    assert_false(has(&a, 3));
    for (unsigned i = 0; i < N / 4; i++)
        assert_true(i == 3 || is_payload(i, payload[i], bytes_of(4)));
    kvt__table_close(b.table); /* ends all pins */
    overfill(&a, 200);
    fill_completely(&a, 1 << 20);
    kvt__table_close(a.table);
}

static void
pins_run_out(void **state)
{
    struct handle h = open_memory(*state, N);
    const unsigned char *payload;

    assert_int_equal(put(&h, 1, 4), 0);
    for (unsigned i = 0; i < SC_N_PINS; i++)
        assert_int_equal(pin(&h, 1, &payload), i);
    assert_int_equal(pin(&h, 1, &payload), -EAGAIN);
    kvt__sc_unpin(&h.m, 77);
    assert_int_equal(pin(&h, 1, &payload), 77);
    for (unsigned i = 0; i < SC_N_PINS; i++)
        kvt__sc_unpin(&h.m, i);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

static void
late_pin_of_a_changed_entry_is_enoent(void **state)
{
    struct handle h = open_memory(*state, N);
    struct kvt__record seen;

    assert_int_equal(put(&h, 1, 4), 0);
    assert_true(find(&h, 1, &seen));
    forget(&h, 1);
    assert_int_equal(kvt__sc_pin(&h.m, seen.entry, seen.word), -ENOENT);
    overfill(&h, 100);
    assert_int_equal(kvt__sc_pin(&h.m, seen.entry, seen.word), -ENOENT);
    for (unsigned i = 0; i < SC_N_PINS / 64; i++)
        assert_int_equal(h.m.pins[kvt__table_owner(h.table)].used[i], 0);
    kvt__table_close(h.table);
}

static void
pin_chunks_and_die(const struct temp_dir *dir)
{
    struct handle h = open_memory(dir, N);
    const unsigned char *payload;

    for (uint64_t i = 0; i < N / 4; i++)
        if (put(&h, i, 4) || pin(&h, i, &payload) < 0)
            abort();
    kill(getpid(), SIGKILL);
}

/* The next handle has the number of the dead owner, but not the pins. */
static void
pins_of_a_dead_process_do_not_count(void **state)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        struct handle a = { 0 }, b;
        pid_t pid;
        int status;

        if (keeps) /* another owner notices the death; else the next owner gets the number */
            a = open_memory(*state, N);
        pid = fork();
        if (!pid)
            pin_chunks_and_die(*state);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (keeps) {
            assert_int_equal(put(&a, 100, N), 0);
            forget(&a, 100);
        }
        b = open_memory(*state, N);
        assert_int_equal(put(&b, 101, N), 0);
        fill_completely(&b, 1 << 20);
        kvt__table_close(b.table);
        if (keeps)
            kvt__table_close(a.table);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(pinned_bytes_stay_after_a_forced_end_of_the_entry),
        SHM_TEST(pinned_chunks_are_not_evicted),
        SHM_TEST(pins_run_out),
        SHM_TEST(late_pin_of_a_changed_entry_is_enoent),
        SHM_TEST(pins_of_a_dead_process_do_not_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
