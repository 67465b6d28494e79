/* SPDX-License-Identifier: Apache-2.0
 *
 * A client with ever new tags leaks no memory, takes no lock in lookups, and leaves room for
 * other models and tenants. */
#include <malloc.h>

#include "table/layout.h"
#include "system/system-test.h"

#define MANY 5000u

static int
open_private_dir(const struct fixture *f)
{
    char path[300];

    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* Spaces in use of the store's index. */
static unsigned
n_spaces(const struct fixture *f)
{
    int fd = open_private_dir(f);
    struct kvt__table_params params = { .writer = false };
    char text[KVT__TABLE_TEXT_MAX + 1];
    struct kvt__table *index;
    unsigned n = 0;

    assert_int_equal(kvt__table_open(&params, fd, &index), 0);
    for (unsigned i = 0; i < TB_N_SPACES; i++)
        n += !kvt__table_space_text(index, i, text, sizeof text);
    kvt__table_close(index);
    close(fd);
    return n;
}

/* Return the allocated bytes; 0 if the allocator has no counter. */
static size_t
allocated(void)
{
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

static void
lookups_of_many_tags_free_their_memory(void **state)
{
    struct fixture *f = *state;
    char tags[64];

    fixture_open(f, NULL);
    store_tagged(f, NULL, 2, 1);
    unsigned spaces = n_spaces(f);
    size_t bytes = 0;
    for (unsigned i = 0; i < 2 * MANY; i++) {
        if (i == MANY)
            bytes = allocated();
        snprintf(tags, sizeof tags, "user%%%u", i);
        assert_int_equal(load_tagged(f, tags, 0), 0);
    }
    assert_true(allocated() <= bytes + 65536);
    assert_int_equal(n_spaces(f), spaces);
}

/* Another process holds the lock of openers, for instance stopped amid an open. */
static void
a_lookup_of_new_tags_takes_no_lock(void **state)
{
    struct fixture *f = *state;
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET,
                          .l_start = TB_OPEN_BYTE, .l_len = 1 };

    fixture_open(f, NULL);
    store_tagged(f, "user%a", 2, 1);
    int dir = open_private_dir(f), fd = openat(dir, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
    assert_int_equal(load_tagged(f, "user%new", 0), 0);
    assert_int_equal(load_tagged(f, "user%a", 1), 2);
    close(fd);
    close(dir);
}

static const char *const roomy[] = { "max_remote_size=0.2", NULL };

/* Store a chunk of each of ever new tags until the index has no space for more.  Return the
 * number of tags. */
static unsigned
fill_spaces(const struct fixture *f)
{
    char tags[64];
    unsigned n = 0;

    for (; n < MANY && !counter(f, "store_dropped"); n++) {
        snprintf(tags, sizeof tags, "user%%%u", n);
        store_tagged(f, tags, 1, 2);
    }
    assert_int_equal(counter(f, "store_dropped"), 1);
    assert_int_equal(counter(f, "store_failed"), 0);
    return n;
}

/* A client that invents tags shuts out no other client: some chunks with tags go. */
static void
new_tags_are_stored_soon_after_the_table_is_full(void **state)
{
    struct fixture *f = *state;
    char tags[64] = "other%new";
    unsigned n_found = 0;

    fixture_open(f, roomy);
    unsigned n = fill_spaces(f);
    while (!load_tagged(f, tags, 7)) { /* the test's time limit ends this */
        usleep(10000);
        store_tagged(f, tags, 1, 7);
    }
    for (unsigned i = 0; i < n; i++) {
        snprintf(tags, sizeof tags, "user%%%u", i);
        n_found += load_tagged(f, tags, 2);
    }
    assert_in_range(n_found, n / 2, n - 1);
    struct kvt__table_totals totals = index_totals(f);
    struct usage usage = usage_of(f);
    assert_int_equal(totals.n_entries, usage.n_files);
    assert_int_equal(totals.used_bytes, usage.bytes);
}

static void
a_full_table_keeps_no_model_from_starting(void **state)
{
    struct opening opening = { .world_size = 2, .settings = roomy };
    struct fixture *f = *state;

    fixture_open(f, roomy);
    fill_spaces(f);
    store_tagged(f, NULL, 2, 3);
    assert_int_equal(load_tagged(f, NULL, 3), 2);
    struct fixture other = *f;
    other.engine = must_open(f, &opening);
    set_view(other.engine, 0, other.memory);
    store_tagged(&other, NULL, 2, 4);
    assert_int_equal(counter(&other, "store_chunks"), 2);
    kvt_engine_close(other.engine);
}

/* Evictions make room and find each file by the tags of the store. */
static void
many_tags_replace_each_other_in_a_small_store(void **state)
{
    static const char *const small[] = { "max_remote_size=0.0005", NULL };
    struct fixture *f = *state;
    unsigned n = rounds(MANY);
    char tags[64];

    fixture_open(f, small);
    read_index(f, true);
    for (unsigned i = 0; i < n; i++) {
        snprintf(tags, sizeof tags, "user%%%u", i);
        store_tagged(f, tags, 1, i);
        assert_int_equal(load_tagged(f, tags, i), 1);
    }
    assert_int_equal(counter(f, "store_chunks"), n);
    struct kvt__table_totals totals = index_totals(f);
    struct usage usage = usage_of(f);
    assert_int_equal(totals.n_entries, usage.n_files);
    assert_int_equal(totals.used_bytes, usage.bytes);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        T(lookups_of_many_tags_free_their_memory),
        T(a_lookup_of_new_tags_takes_no_lock),
        T(new_tags_are_stored_soon_after_the_table_is_full),
        T(a_full_table_keeps_no_model_from_starting),
        T(many_tags_replace_each_other_in_a_small_store),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
