/* SPDX-License-Identifier: Apache-2.0
 *
 * Replacement of a shared memory in use: a writer of the replaced memory never overwrites a chunk
 * that another process reads. */
#include "shared-cpu-test.h"

void table_step(const void *at);
void shared_cpu_step(const void *at);

enum { N = 4 /* units */ };

static const struct temp_dir *dir;
static const uint32_t *n_pins; /* the reader's count of pins, in the writer's mapping */
static struct handle *reader;  /* retires the table before the writer reads n_pins */

/* Before the writer reads the reader's pins: delete the index; the reader retires the table, which
 * frees the reader's owner number.  The reader's process lives and keeps its pin. */
void
shared_cpu_step(const void *at)
{
    char path[300];

    if (!reader || at != n_pins)
        return;
    snprintf(path, sizeof path, "%s/lock", dir->path);
    assert_int_equal(unlink(path), 0);
    assert_false(kvt__table_is_current(reader->table));
    kvt__table_retire(reader->table);
    reader = NULL;
}

void
table_step(const void *at)
{
    (void)at;
}

static void
pins_hold_after_the_memory_was_replaced(void **state)
{
    dir = *state;
    struct handle a = open_memory(dir, N), b = open_memory(dir, N);
    const unsigned char *payload;

    assert_int_equal(put(&a, 1, N), 0);
    int number = pin(&b, 1, &payload);
    assert_true(number >= 0);
    forget(&a, 1);
    n_pins = &a.m.header->n_pins[kvt__table_owner(b.table)];
    reader = &b;
    assert_int_equal(put(&a, 2, N), -ENOSPC);
    assert_null(reader);
    assert_true(is_payload(1, payload, bytes_of(N)));
    kvt__sc_unpin(&b.m, (unsigned)number);
    kvt__table_close(a.table);
    kvt__table_close(b.table);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(pins_hold_after_the_memory_was_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
