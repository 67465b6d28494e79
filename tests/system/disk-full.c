/* SPDX-License-Identifier: Apache-2.0
 *
 * A full disk: what does not fit is refused and counted, nothing half is left,
 * and all works again when there is room. */
#include "system/mount-test.h"

static const char *const settings[] = { "max_remote_size=0.1", NULL };

static int
setup(void **state)
{
    static struct fixture f;

    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    fixture_unmount(*state);
    return 0;
}

/* Take all room that is left, but for so many bytes. */
static void
fill_up(const struct fixture *f, char *path, size_t size, off_t but)
{
    static const char zeros[4096];
    off_t n = 0;

    snprintf(path, size, "%s/ballast", f->dir.path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof zeros) == sizeof zeros)
        n += (off_t)sizeof zeros;
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(ftruncate(fd, n - but), 0);
    close(fd);
}

static void
expect_tidy(const struct fixture *f)
{
    struct usage usage = usage_of(f);
    struct kvt__index_totals totals = index_totals(f);

    assert_int_equal(n_temporary_files(f), 0);
    assert_int_equal(totals.used_bytes, usage.bytes);
    assert_int_equal(totals.n_ready, usage.n_files);
}

static void
check_full_disk(struct fixture *f, const char *const *with)
{
    char ballast[300];

    fixture_open(f, with);
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(counter(f, "store_chunks"), N_CHUNKS);

    fill_up(f, ballast, sizeof ballast, 0);
    set_tokens(f, 1);
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(counter(f, "store_dropped"), N_CHUNKS);
    assert_int_equal(counter(f, "store_chunks"), N_CHUNKS);
    expect_tidy(f);
    assert_int_equal(load_prompt(f).promised, 0);
    set_tokens(f, 0);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);

    assert_int_equal(unlink(ballast), 0);
    set_tokens(f, 1);
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    expect_tidy(f);
}

static void
a_store_on_a_full_disk_is_refused_and_works_again_later(void **state)
{
    struct fixture *f = *state;

    fixture_mount(f, 8192);
    check_full_disk(f, settings);
}

static void
a_store_on_a_full_local_disk_is_refused_too(void **state)
{
    struct fixture *f = *state;
    char setting[300];
    const char *const local_disk[] = { "remote_url=", setting,
                                       "max_local_disk_size=0.1", NULL };

    fixture_mount(f, 8192);
    snprintf(setting, sizeof setting, "local_disk=%s", f->dir.path);
    check_full_disk(f, local_disk);
}

/* Room for a part of a file only. */
static void
a_chunk_that_fits_in_part_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    char ballast[300];

    fixture_mount(f, 8192);
    fixture_open(f, settings);
    fill_up(f, ballast, sizeof ballast, 3 * 4096);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        store_chunks(f, c, 1);
        assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
        assert_int_equal(counter(f, "store_dropped"), c + 1);
        expect_tidy(f);
    }
    assert_int_equal(usage_of(f).n_files, 0);
}

static void
the_budget_is_kept_by_eviction_before_the_disk_is_full(void **state)
{
    struct fixture *f = *state;
    const char *const budget[] = { "max_remote_size=0.001", NULL };

    fixture_mount(f, 8192);
    fixture_open(f, budget);
    for (uint32_t prompt = 0; prompt < 20; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, N_CHUNKS);
        assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
        assert_in_range(usage_of(f).bytes, 1, 1073741);
    }
    assert_int_equal(counter(f, "store_dropped"), 0);
    assert_int_equal(counter(f, "store_failed"), 0);
    assert_true(counter(f, "evicted_chunks") > 100);
    struct outcome got = load_prompt(f);
    assert_int_equal(got.loaded, got.promised);
    expect_tidy(f);
}

static void
without_room_for_the_index_the_engine_keeps_its_own(void **state)
{
    struct fixture *f = *state;
    struct heard heard = { .text = "no shared index" };
    char path[300];

    fixture_mount(f, 1024); /* the index takes 1.5 MiB */
    kvt_set_log(hear, &heard, KVT_LOG_WARN);
    fixture_open(f, settings);
    assert_int_equal(heard.n, 1);
    store_chunks(f, 0, 5);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(load_prompt(f).loaded, 5);
    assert_int_equal(heard.n, 1);
    snprintf(path, sizeof path, "%s/.kvtier/index.new", f->dir.path);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/.kvtier/index", f->dir.path);
    assert_int_equal(access(path, F_OK), -1);
    kvt_engine_close(f->engine);
    fixture_open(f, settings); /* and finds its files by asking */
    assert_int_equal(load_prompt(f).loaded, 5);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_store_on_a_full_disk_is_refused_and_works_again_later),
        T(a_store_on_a_full_local_disk_is_refused_too),
        T(a_chunk_that_fits_in_part_leaves_nothing),
        T(the_budget_is_kept_by_eviction_before_the_disk_is_full),
        T(without_room_for_the_index_the_engine_keeps_its_own),
    };

    if (!may_mount())
        return SKIPPED;
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
