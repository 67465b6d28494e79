/* SPDX-License-Identifier: Apache-2.0
 *
 * A full disk: stores without room are refused and counted, evictions make room for the
 * next stores, no partial file stays, and stores work again when there is room. */
#include <sys/statvfs.h>

#include "own-shm.h"
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

/* Fill the disk, except for `but` bytes. */
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
    struct kvt__table_totals totals = index_totals(f);

    assert_int_equal(n_temporary_files(f), 0);
    assert_int_equal(totals.used_bytes, usage.bytes);
    assert_int_equal(totals.n_entries, usage.n_files);
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
    /* The storing threads met a full disk; each failed put evicted two chunks for the next
     * puts.  A put can also fail because partial files of other threads fill the room. */
    uint64_t dropped = counter(f, "store_dropped");
    assert_in_range(dropped, 1, N_CHUNKS - 1);
    assert_int_equal(counter(f, "store_chunks"), 2 * N_CHUNKS - dropped);
    assert_in_range(counter(f, "evicted_chunks"), 1, 2 * dropped);
    assert_int_equal(counter(f, "store_failed"), 0);
    expect_tidy(f);
    for (uint32_t prompt = 0; prompt < 2; prompt++) {
        set_tokens(f, prompt);
        struct outcome got = load_prompt(f);
        assert_int_equal(got.loaded, got.promised);
    }

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
        /* With nothing to evict a full disk is not written for a while after 8 failures. */
        assert_int_equal(counter(f, "store_dropped"), c < 8 ? c + 1 : 8);
        assert_int_equal(counter(f, "store_failed"), c < 8 ? 0 : c - 7);
        expect_tidy(f);
    }
    assert_int_equal(usage_of(f).n_files, 0);
}

/* Without a limit, a tenth of the file system stays free, other users' files included. */
static void
the_default_limit_counts_other_files_of_the_disk(void **state)
{
    static const char *const unlimited[] = { "max_remote_size=0", NULL };
    struct fixture *f = *state;
    char ballast[300];
    struct statvfs fs;

    fixture_mount(f, 65536);
    fixture_open(f, unlimited);
    fill_up(f, ballast, sizeof ballast, 12 << 20);
    for (uint32_t prompt = 0; prompt < 400; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, N_CHUNKS);
        assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
        assert_int_equal(statvfs(f->dir.path, &fs), 0);
        /* Each of several storing threads may take a chunk of the tenth. */
        assert_in_range(fs.f_bfree, fs.f_blocks / 10 - 64, fs.f_blocks);
    }
    assert_int_equal(counter(f, "store_dropped"), 0);
    assert_true(counter(f, "evicted_chunks") > 0);
    struct outcome got = load_prompt(f);
    assert_int_equal(got.loaded, N_CHUNKS);
    expect_tidy(f);
}

/* A tmpfs of size 0 has no limit, and statfs(2) reports the size 0. */
static void
a_file_system_without_a_size_is_used(void **state)
{
    static const char *const unlimited[] = { "max_remote_size=0", NULL };
    struct fixture *f = *state;

    fixture_mount(f, 0);
    fixture_open(f, unlimited);
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(counter(f, "store_dropped"), 0);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    expect_tidy(f);
}

/* Deleting a file makes no room on another file system. */
static void
a_full_disk_takes_nothing_from_another_disk(void **state)
{
    struct fixture *f = *state, full = { 0 };
    char url[600], ballast[300];
    const char *const limited[] = { url, "max_remote_size=0.1", NULL };
    const char *const unlimited[] = { url, "max_remote_size=0", NULL };
    const char *const *const with[] = { limited, unlimited };

    fixture_mount(f, 65536);
    temp_dir_make(&full.dir);
    assert_int_equal(mount("kvtier-test", full.dir.path, "tmpfs", 0, "size=8m"), 0);
    fill_up(&full, ballast, sizeof ballast, 16384); /* for the directories */
    snprintf(url, sizeof url, "remote_url=fs://%s,%s", f->dir.path, full.dir.path);
    for (size_t i = 0; i < 2; i++) {
        fixture_open(f, with[i]);
        for (uint32_t prompt = 0; prompt < 20; prompt++) {
            set_tokens(f, 20 * (uint32_t)i + prompt);
            store_chunks(f, 0, N_CHUNKS);
            assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
        }
        assert_true(counter(f, "store_chunks") > 20);
        assert_int_equal(counter(f, "evicted_chunks"), 0);
        kvt_engine_close(f->engine);
        f->engine = NULL;
    }
    umount2(full.dir.path, MNT_DETACH);
    temp_dir_remove(&full.dir);
}

/* By chance all chunks of a moment belong on the full disk: the other disk is written on. */
static void
a_full_disk_does_not_pause_another_disk(void **state)
{
    struct fixture *f = *state, full = { 0 };
    char url[600], ballast[300];
    const char *const with[] = { url, "max_remote_size=0.1", NULL };

    fixture_mount(f, 8192);
    temp_dir_make(&full.dir);
    assert_int_equal(mount("kvtier-test", full.dir.path, "tmpfs", 0, "size=8m"), 0);
    fill_up(&full, ballast, sizeof ballast, 16384); /* for the directories */
    snprintf(url, sizeof url, "remote_url=fs://%s,%s", f->dir.path, full.dir.path);
    fixture_open(f, with);
    fill_up(f, ballast, sizeof ballast, 0);
    for (uint32_t prompt = 0; prompt < 3; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, N_CHUNKS);
        assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    }
    assert_int_equal(counter(f, "store_dropped"), 3 * N_CHUNKS);
    assert_int_equal(counter(f, "tier_pauses"), 0);
    assert_int_equal(unlink(ballast), 0);
    store_chunks(f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(counter(f, "store_failed"), 0);
    assert_true(counter(f, "store_chunks") > 0);
    kvt_engine_close(f->engine);
    f->engine = NULL;
    umount2(full.dir.path, MNT_DETACH);
    temp_dir_remove(&full.dir);
}

/* The smaller disk is full of chunks that are newer than many chunks on the larger disk. */
static void
each_of_two_disks_evicts_its_own_chunks(void **state)
{
    struct fixture *f = *state, small = { 0 };
    char url[600];
    const char *const unlimited[] = { url, "max_remote_size=0", NULL };

    fixture_mount(f, 262144);
    temp_dir_make(&small.dir);
    assert_int_equal(mount("kvtier-test", small.dir.path, "tmpfs", 0, "size=8m"), 0);
    snprintf(url, sizeof url, "remote_url=fs://%s,%s", f->dir.path, small.dir.path);
    fixture_open(f, unlimited);
    for (uint32_t prompt = 0; prompt < 150; prompt++) {
        set_tokens(f, prompt);
        store_chunks(f, 0, N_CHUNKS);
        assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    }
    assert_int_equal(counter(f, "store_dropped"), 0);
    assert_true(counter(f, "evicted_chunks") > 0);
    assert_int_equal(load_prompt(f).loaded, N_CHUNKS);
    kvt_engine_close(f->engine);
    f->engine = NULL;
    umount2(small.dir.path, MNT_DETACH);
    temp_dir_remove(&small.dir);
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
without_room_for_the_index_the_engine_only_reads(void **state)
{
    struct fixture *f = *state;
    struct heard heard = { .text = "no shared index" };
    char path[300];

    if (!own_shm("size=64k"))
        skip();
    fixture_mount(f, 1024); /* the index takes more */
    kvt_set_log(count_line, &heard, KVT_LOG_WARN);
    fixture_open(f, settings);
    assert_int_equal(heard.n, 1);
    store_chunks(f, 0, 5); /* other processes would store up to the limit too */
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
    assert_int_equal(counter(f, "store_failed"), 5);
    assert_int_equal(load_prompt(f).promised, 0);
    assert_int_equal(heard.n, 1);
    snprintf(path, sizeof path, "%s/.kvtier/table.new", f->dir.path);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/.kvtier/table", f->dir.path);
    assert_int_equal(access(path, F_OK), -1);
    kvt_engine_close(f->engine);
    assert_int_equal(umount("/dev/shm"), 0);
    fixture_open(f, settings); /* now there is room */
    store_chunks(f, 0, 5);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
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
        T(the_default_limit_counts_other_files_of_the_disk),
        T(a_file_system_without_a_size_is_used),
        T(a_full_disk_takes_nothing_from_another_disk),
        T(a_full_disk_does_not_pause_another_disk),
        T(each_of_two_disks_evicts_its_own_chunks),
        T(the_budget_is_kept_by_eviction_before_the_disk_is_full),
        T(without_room_for_the_index_the_engine_only_reads),
    };

    if (!may_mount())
        return SKIPPED;
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
