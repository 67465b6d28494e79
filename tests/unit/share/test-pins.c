/* SPDX-License-Identifier: Apache-2.0
 *
 * Pins: a slot that a process reads is not used again before the read or the process ends. */
#include "share-test.h"

#include <fcntl.h>
#include <unistd.h>

enum { CHUNK = 128 << 10, N = 16 /* chunks that fit the memory */ };

static struct kvt__share *
open_small(const struct temp_dir *dir)
{
    return share_open(dir, (uint64_t)N * CHUNK);
}

/* Store three times what fits. */
static void
overfill(struct kvt__share *s, uint64_t first)
{
    wait_for_tick();
    for (uint64_t i = 0; i < 3 * N; i++)
        assert_int_equal(put(s, first + i, CHUNK), 0);
}

static void
a_read_keeps_the_slot(void **state)
{
    struct kvt__share *a = open_small(*state), *b = open_small(*state);
    struct kvt__share_read read[3];

    assert_int_equal(put(a, 1, CHUNK), 0);
    for (int i = 0; i < 3; i++) {
        struct kvt__id id = id_of(1);

        assert_int_equal(kvt__share_begin_read(i < 2 ? b : a, &id, &read[i]), 0);
    }
    overfill(a, 100);
    for (int i = 0; i < 3; i++) {
        assert_true(has(a, 1));
        assert_true(is_payload(1, read[i].chunk.payload, CHUNK));
        kvt__share_end_read(i < 2 ? b : a, &read[i]);
    }
    overfill(a, 200);
    assert_false(has(a, 1));
    assert_int_equal(recount(a), N);
    kvt__share_close(a);
    kvt__share_close(b);
}

static void
all_chunks_read_is_no_space(void **state)
{
    struct kvt__share *a = open_small(*state), *b = open_small(*state);
    struct kvt__share_read read[N];

    for (uint64_t i = 0; i < N; i++) {
        struct kvt__id id = id_of(i);

        assert_int_equal(put(a, i, CHUNK), 0);
        assert_int_equal(kvt__share_begin_read(b, &id, &read[i]), 0);
    }
    assert_int_equal(put(a, 100, CHUNK), -ENOSPC);
    assert_int_equal(put(a, 100, 4096), -ENOSPC);
    kvt__share_end_read(b, &read[3]);
    assert_int_equal(put(a, 100, CHUNK), 0);
    assert_false(has(a, 3));
    kvt__share_close(b); /* ends all pins */
    overfill(a, 200);
    assert_int_equal(recount(a), N);
    kvt__share_close(a);
}

static void
pins_of_a_handle_are_bounded(void **state)
{
    struct kvt__share *s = open_small(*state);
    struct kvt__share_read read[KVT__SHARE_PINS + 1];
    struct kvt__id id = id_of(1);

    assert_int_equal(put(s, 1, CHUNK), 0);
    for (unsigned i = 0; i < KVT__SHARE_PINS; i++)
        assert_int_equal(kvt__share_begin_read(s, &id, &read[i]), 0);
    assert_int_equal(kvt__share_begin_read(s, &id, &read[KVT__SHARE_PINS]), -EAGAIN);
    kvt__share_end_read(s, &read[100]);
    kvt__share_end_read(s, &read[100]); /* ends once */
    assert_int_equal(kvt__share_begin_read(s, &id, &read[100]), 0);
    assert_int_equal(kvt__share_begin_read(s, &id, &read[KVT__SHARE_PINS]), -EAGAIN);
    for (unsigned i = 0; i < KVT__SHARE_PINS; i++)
        kvt__share_end_read(s, &read[i]);
    overfill(s, 100);
    assert_false(has(s, 1));
    kvt__share_close(s);
}

static void
a_forgotten_chunk_is_a_miss_and_its_slot_stays_for_readers(void **state)
{
    struct kvt__share *a = open_small(*state), *b = open_small(*state);
    struct kvt__share_read read;
    struct kvt__id id = id_of(1);

    assert_int_equal(put(a, 1, CHUNK), 0);
    assert_int_equal(kvt__share_begin_read(b, &id, &read), 0);
    kvt__share_forget(a, &id);
    assert_false(has(a, 1) || has(b, 1) ||
                 kvt__share_lease(a, &id, kvt__now_ns() + KVT__NS_PER_S));
    assert_int_equal(look(a, 1, CHUNK), 0);
    assert_int_equal(put(a, 1, CHUNK), -EEXIST);
    overfill(a, 100);
    assert_true(is_payload(1, read.chunk.payload, CHUNK));
    kvt__share_end_read(b, &read);
    assert_int_equal(put(a, 1, CHUNK), 0);
    assert_int_equal(look(b, 1, CHUNK), 1);
    recount(a);
    kvt__share_close(a);
    kvt__share_close(b);
}

static void
clear_leaves_what_is_read(void **state)
{
    struct kvt__share *s = open_small(*state);
    struct kvt__share_read read;
    struct kvt__id id = id_of(1);

    for (uint64_t i = 0; i < N; i++)
        assert_int_equal(put(s, i, CHUNK), 0);
    assert_int_equal(kvt__share_begin_read(s, &id, &read), 0);
    assert_int_equal(kvt__share_clear(s), 1);
    assert_true(is_payload(1, read.chunk.payload, CHUNK));
    assert_int_equal(memory(s), s->segment_bytes);
    kvt__share_end_read(s, &read);
    assert_int_equal(look(s, 1, CHUNK), 1);
    assert_int_equal(kvt__share_clear(s), 0);
    assert_int_equal(memory(s), 0);
    kvt__share_close(s);
}

/* --------------------------------------------------------------- processes */

struct reader {
    pid_t pid;
    int out, in;
};

/* Start a process that reads chunk 1, writes a byte, waits for a byte and looks at the
 * payload again; the process exits 0 if the payload is the same. */
static struct reader
start_reader(const struct temp_dir *dir)
{
    struct reader r;
    int out[2], in[2];

    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    r.pid = fork();
    if (!r.pid) {
        struct kvt__share *s = open_small(dir);
        struct kvt__share_read opened;
        struct kvt__id id = id_of(1);
        char b = 0;

        close(in[1]);
        if (kvt__share_begin_read(s, &id, &opened) || write(out[1], &b, 1) != 1 ||
            read(in[0], &b, 1) != 1)
            _exit(2);
        _exit(!is_payload(1, opened.chunk.payload, CHUNK));
    }
    r.out = out[0];
    r.in = in[1];
    close(out[1]);
    close(in[0]);
    char b;
    assert_int_equal(read(r.out, &b, 1), 1);
    return r;
}

static void
close_pipes(const struct reader *r)
{
    close(r->out);
    close(r->in);
}

static void
a_stopped_reader_keeps_the_slot(void **state)
{
    struct kvt__share *s = open_small(*state);
    int status;

    assert_int_equal(put(s, 1, CHUNK), 0);
    struct reader r = start_reader(*state);
    kill(r.pid, SIGSTOP);
    assert_int_equal(waitpid(r.pid, &status, WUNTRACED), r.pid);
    assert_true(WIFSTOPPED(status));
    overfill(s, 100);
    assert_true(has(s, 1));
    assert_int_equal(kvt__share_clear(s), 1);
    kill(r.pid, SIGCONT);
    assert_int_equal(write(r.in, "", 1), 1);
    assert_int_equal(waitpid(r.pid, &status, 0), r.pid);
    assert_int_equal(status, 0);
    overfill(s, 200);
    assert_false(has(s, 1));
    assert_int_equal(recount(s), N);
    close_pipes(&r);
    kvt__share_close(s);
}

static void
pins_of_a_killed_reader_end(void **state)
{
    struct kvt__share *s = open_small(*state);

    assert_int_equal(put(s, 1, CHUNK), 0);
    struct reader r = start_reader(*state);
    overfill(s, 100);
    assert_true(has(s, 1));
    kill(r.pid, SIGKILL);
    assert_int_equal(waitpid(r.pid, NULL, 0), r.pid);
    overfill(s, 200);
    assert_false(has(s, 1));
    /* The next owner of the number has no pins. */
    struct kvt__share *next = open_small(*state);
    assert_int_equal(kvt__share_clear(next), 0);
    recount(s);
    close_pipes(&r);
    kvt__share_close(next);
    kvt__share_close(s);
}

/* Claim entries and take slots for half of the memory. */
static void
die_while_storing(const struct temp_dir *dir)
{
    struct kvt__share *s = open_small(dir);

    for (uint64_t i = 0; i < N / 2; i++) {
        struct kvt__record record = { .id = id_of(500 + i), .bytes = CHUNK };
        struct kvt__name name = { .hash = { .bits = { i } } };
        struct kvt__claim claim;
        uint32_t slot;

        if (kvt__table_claim(s->table, &name, &record, NULL, NULL, &claim) ||
            kvt__sh_alloc(s, claim.entry, CHUNK / SH_PAGE, &slot))
            _exit(1);
    }
    kill(getpid(), SIGKILL);
}

/* No process opens: stores in full memory look for the dead. */
static void
slots_of_a_killed_writer_are_found(void **state)
{
    struct kvt__share *s = open_small(*state);
    struct kvt__share_totals totals;
    int status;

    assert_int_equal(put(s, 1, CHUNK), 0);
    pid_t pid = fork();
    if (!pid)
        die_while_storing(*state);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (uint64_t i = 0; i < N / 2; i++)
        assert_int_equal(put(s, 100 + i, CHUNK), 0);
    kvt__share_get_totals(s, &totals);
    assert_int_equal(totals.n_chunks, N);
    for (uint64_t i = 0; i < 2 * KVT__TABLE_OWNERS; i++)
        assert_int_equal(put(s, 200 + i, CHUNK), 0);
    uint64_t n = 0;
    for (uint64_t i = 0; i < 2 * KVT__TABLE_OWNERS; i++)
        n += has(s, 200 + i);
    assert_int_equal(n, N);
    assert_int_equal(recount(s), N);
    kvt__share_close(s);
}

/* The child of a reader has no mapping and does not keep the reader's pins. */
static void
a_forked_child_finds_nothing(void **state)
{
    struct kvt__share *s = open_small(*state);
    struct kvt__share_read read;
    struct kvt__id id = id_of(1);
    int status;

    assert_int_equal(put(s, 1, CHUNK), 0);
    assert_int_equal(kvt__share_begin_read(s, &id, &read), 0);
    pid_t pid = fork();
    if (!pid) {
        struct kvt__share_totals totals;
        struct kvt__share_read own;

        kvt__share_end_read(s, &read);
        kvt__share_get_totals(s, &totals);
        bool bad = has(s, 1) || kvt__share_begin_read(s, &id, &own) != -ESTALE ||
                   put(s, 2, CHUNK) != -ESTALE || kvt__share_clear(s) != -ESTALE ||
                   kvt__share_is_current(s) || totals.n_chunks;
        kvt__share_close(s);
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    overfill(s, 100);
    assert_true(is_payload(1, read.chunk.payload, CHUNK));
    kvt__share_end_read(s, &read);
    kvt__share_close(s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARE_TEST(a_read_keeps_the_slot),
        SHARE_TEST(all_chunks_read_is_no_space),
        SHARE_TEST(pins_of_a_handle_are_bounded),
        SHARE_TEST(a_forgotten_chunk_is_a_miss_and_its_slot_stays_for_readers),
        SHARE_TEST(clear_leaves_what_is_read),
        SHARE_TEST(a_stopped_reader_keeps_the_slot),
        SHARE_TEST(pins_of_a_killed_reader_end),
        SHARE_TEST(slots_of_a_killed_writer_are_found),
        SHARE_TEST(a_forked_child_finds_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
