/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines over gds_path: crashes, damage, a limit, files of LMCache and of other instances,
 * several directories.  KV is in host memory.  If the arguments name fake libraries, KV is in
 * the memory of a GPU that transfers files directly. */
#include <ftw.h>
#include <time.h>

#include "base/bytes.h"
#include "files.h"
#include "gds-fakes.h"
#include "system/system-test.h"

#define SUFFIX ".kvcache.safetensors"
#define BESIDE SUFFIX ".metadata"
#define PAYLOAD (N_LAYERS * CHUNK_BLOCKS * BLOCK_BYTES)
#define CHUNK_ON_DISK (PAYLOAD + 2u * 4096u)
#define N_PROMPTS 60u
#define BUDGET (UINT64_C(10) << 20) /* 320 of 600 chunks */
#define LONGEST_NS 5000000u

/* A fixture whose store is gds_path=DIR/a[,DIR/b...]. */
struct world {
    struct fixture f;
    char path[1200];
    const char *settings[8];
};

/* limit: a setting, or NULL. */
static void
world_init(struct world *w, size_t n_paths, const char *limit, const char *more)
{
    fixture_init(&w->f);
    strcpy(w->path, "gds_path=");
    for (size_t i = 0; i < n_paths; i++)
        snprintf(w->path + strlen(w->path), sizeof w->path - strlen(w->path), "%s%s/%c",
                 i ? "," : "", w->f.dir.path, (char)('a' + i));
    const char *const settings[] = { "remote_url=", w->path,
                                     limit ? limit : "max_gds_size=0.1", more };
    memset(w->settings, 0, sizeof w->settings);
    memcpy(w->settings, settings, sizeof settings);
}

/* The files in the directories. */
struct gds_usage {
    uint64_t bytes;
    size_t n_files, n_beside;
    char last[1024];
};

static struct gds_usage usage; /* for nftw() */

static int
count_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    size_t n = strlen(path);

    (void)ftw;
    if (type != FTW_F)
        return 0;
    if (n > strlen(BESIDE) && !strcmp(path + n - strlen(BESIDE), BESIDE)) {
        usage.n_beside++;
        usage.bytes += ((uint64_t)st->st_size + 4095) / 4096 * 4096;
    } else if (n > strlen(SUFFIX) && !strcmp(path + n - strlen(SUFFIX), SUFFIX)) {
        usage.n_files++;
        usage.bytes += ((uint64_t)st->st_size + 4095) / 4096 * 4096;
        snprintf(usage.last, sizeof usage.last, "%s", path);
    }
    return 0;
}

static struct gds_usage
count_files(const struct world *w)
{
    usage = (struct gds_usage){ 0 };
    assert_int_equal(nftw(w->f.dir.path, count_file, 16, FTW_PHYS), 0);
    return usage;
}

/* The index is in the first directory. */
static struct kvt__table_totals
totals_of(const struct world *w, bool scanned)
{
    struct fixture first = w->f;

    snprintf(first.dir.path, sizeof first.dir.path, "%.200s/a", w->f.dir.path);
    return read_index(&first, scanned);
}

static void
lose_index_of(const struct world *w)
{
    char store[400];

    snprintf(store, sizeof store, "%s/a", w->f.dir.path);
    lose_index(store);
}

static void
expect_tidy(const struct world *w)
{
    struct kvt__table_totals totals = totals_of(w, true);
    struct gds_usage found = count_files(w);

    assert_int_equal(totals.used_bytes, found.bytes);
    assert_int_equal(totals.n_entries, found.n_files);
    assert_int_equal(found.n_files, found.n_beside);
}

/* -------------------------------------------------------------- store and load */

static void
the_next_engine_finds_stored_chunks(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, NULL, NULL);
    fixture_open(&w.f, w.settings);
    write_chunks(&w.f, 0, N_CHUNKS);
    assert_int_equal(load_prompt(&w.f).loaded, N_CHUNKS);
    expect_tidy(&w);
    assert_int_equal(count_files(&w).bytes, N_CHUNKS * CHUNK_ON_DISK);
    kvt_engine_close(w.f.engine);
    fixture_open(&w.f, w.settings);
    assert_int_equal(load_prompt(&w.f).loaded, N_CHUNKS);
    fixture_fini(&w.f);
}

/* The index is deleted: the engine lists all directories. */
static void
a_lost_index_is_made_from_all_directories(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 4, NULL, "gds_path_sharding=by_local_rank");
    fixture_open(&w.f, w.settings);
    write_chunks(&w.f, 0, N_CHUNKS);
    kvt_engine_close(w.f.engine);
    lose_index_of(&w);
    fixture_open(&w.f, w.settings);
    expect_tidy(&w);
    assert_int_equal(load_prompt(&w.f).loaded, N_CHUNKS);
    expect_tidy(&w);
    fixture_fini(&w.f);
}

/* Of eight ranks on four directories, cuda:4 writes to the directory of cuda:0.  Each rank finds
 * the chunks of all ranks. */
static void
each_worker_writes_to_its_directory(void **state)
{
    struct world w;
    char dir[300];

    (void)state;
    if (on_device())
        skip(); /* all ranks would be on one GPU */
    world_init(&w, 4, NULL, NULL);
    for (uint32_t rank = 0; rank < 8; rank++) {
        struct opening o = { .settings = w.settings, .world_size = 8, .rank = rank,
                             .local_ranks = 8, .role = KVT_ROLE_WORKER };

        w.f.engine = must_open(&w.f, &o);
        set_view(w.f.engine, 0, w.f.memory);
        write_chunks(&w.f, 0, 1);
        struct gds_usage found = count_files(&w);
        assert_int_equal(found.n_files, rank + 1);
        snprintf(dir, sizeof dir, "%s/%c", w.f.dir.path, (char)('a' + rank % 4));
        usage = (struct gds_usage){ 0 };
        assert_int_equal(nftw(dir, count_file, 16, FTW_PHYS), 0);
        assert_int_equal(usage.n_files, rank / 4 + 1);
        kvt_engine_close(w.f.engine);
    }
    w.f.engine = NULL;
    fixture_fini(&w.f);
}

/* ---------------------------------------------------------------------- limit */

static void
max_gds_size_evicts_both_files_of_a_chunk(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2, "max_gds_size=0.009765625", "gds_path_sharding=by_local_rank");
    fixture_open(&w.f, w.settings);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        set_tokens(&w.f, p);
        write_chunks(&w.f, 0, N_CHUNKS);
        assert_true(count_files(&w).bytes <= BUDGET);
    }
    assert_true(counter(&w.f, "evicted_chunks") > 0);
    assert_in_range(count_files(&w).n_files, BUDGET / CHUNK_ON_DISK * 9 / 10,
                    BUDGET / CHUNK_ON_DISK);
    expect_tidy(&w);
    assert_int_equal(load_prompt(&w.f).loaded, N_CHUNKS); /* the last */
    fixture_fini(&w.f);
}

/* --------------------------------------------------------------------- crashes */

struct task {
    struct world *w;
    int ready_fd;
};

static void
store_for_ever(void *arg)
{
    struct task *task = arg;
    struct fixture f = task->w->f;
    uint64_t random = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);

    fixture_open(&f, task->w->settings);
    if (write(task->ready_fd, "", 1) < 0)
        _exit(1);
    for (;;) {
        set_tokens(&f, (uint32_t)(next_random(&random) % N_PROMPTS));
        store_chunks(&f, 0, 1 + (uint32_t)(next_random(&random) % N_CHUNKS));
        if (next_random(&random) % 2 && kvt_engine_flush(f.engine, -1))
            _exit(1);
    }
}

static void
store_and_be_killed(struct world *w, uint64_t random)
{
    /* With a fake GPU the first chunk takes longer. */
    uint64_t longest = on_device() ? 20 * LONGEST_NS : LONGEST_NS;
    struct timespec life = { 0, (long)(random % longest) };
    struct task task = { .w = w };
    int ends[2];
    char byte;

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    task.ready_fd = ends[1];
    pid_t pid = start_child(store_for_ever, &task);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    nanosleep(&life, NULL);
    kill(pid, SIGKILL);
    assert_true(WIFSIGNALED(end_child(pid)));
}

/* Processes are also killed between writing a chunk's file and writing the metadata file; a
 * chunk's file alone is a valid chunk. */
static void
a_killed_process_leaves_complete_chunks_only(void **state)
{
    unsigned kills = rounds(on_device() ? 30 : 100), n = 0;
    uint64_t random = 3;
    struct world w;

    (void)state;
    world_init(&w, 2, "max_gds_size=0.009765625", "gds_path_sharding=by_local_rank");
    for (unsigned k = 0; k < kills; k++)
        store_and_be_killed(&w, next_random(&random));
    fixture_open(&w.f, w.settings);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        set_tokens(&w.f, p);
        struct outcome got = load_prompt(&w.f);
        if (got.loaded != got.promised)
            fail_msg("%u of %u chunks loaded: %s", got.loaded, got.promised,
                     strerror(-got.first_error));
        n += got.loaded;
    }
    assert_true(n > 0);
    struct kvt__table_totals totals = totals_of(&w, true);
    struct gds_usage found = count_files(&w);
    print_message("%u chunks loaded; %zu files, %zu beside them, %llu bytes; index: %llu "
                  "bytes\n", n, found.n_files, found.n_beside,
                  (unsigned long long)found.bytes, (unsigned long long)totals.used_bytes);
    /* A claim of a killed process leaves an unread entry, perhaps without a file. */
    assert_in_range(found.n_files, totals.n_entries - totals.n_unread, totals.n_entries);
    assert_true(found.bytes <= totals.used_bytes && totals.used_bytes <= BUDGET);
    assert_true(found.n_beside <= found.n_files);
    assert_int_equal(counter(&w.f, "load_corrupt"), 0);
    fixture_fini(&w.f);
}

/* ---------------------------------------------------------------------- damage */

static void
a_damaged_file_is_not_loaded_and_both_files_are_removed(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, NULL, NULL);
    fixture_open(&w.f, w.settings);
    totals_of(&w, true);
    for (off_t at = 0; at < 4096 + PAYLOAD; at += at < 340 ? 1 : 2039) {
        write_chunks(&w.f, 0, 1);
        struct gds_usage found = count_files(&w);
        assert_int_equal(found.n_files, 1);
        flip_byte(found.last, at);
        struct outcome got = load_prompt(&w.f);
        if (got.first_error == -ENOENT) {
            assert_true(at < 170); /* the version of LMCache: not ours to remove */
            continue;
        }
        if (got.loaded) {
            assert_true(at < 140); /* bytes that only LMCache reads */
            flip_byte(found.last, at);
        } else {
            assert_int_equal(load_prompt(&w.f).promised, 0);
        }
        assert_int_equal(totals_of(&w, false).n_entries, count_files(&w).n_files);
        assert_int_equal(count_files(&w).n_beside, count_files(&w).n_files);
    }
    fixture_fini(&w.f);
}

/* ------------------------------------------------------------- LMCache and others */

/* Turn a file into a file of LMCache: the header without kvtier's members. */
static int
take_identity(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    static const struct kvt__shape shape = { 6, 3, { 1, N_LAYERS, CHUNK, PAYLOAD / CHUNK /
                                                     N_LAYERS / 2 } };
    unsigned char header[KVT__GDS_HEADER_BYTES];
    size_t n = strlen(path);

    (void)st;
    (void)ftw;
    if (type != FTW_F || n < strlen(SUFFIX) || strcmp(path + n - strlen(SUFFIX), SUFFIX))
        return 0;
    kvt__gds_header_put(&shape, PAYLOAD, NULL, header);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, header, sizeof header, 0), sizeof header);
    close(fd);
    return 0;
}

static void
lmcaches_chunks_are_served_and_counted_unless_refused(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1, NULL, NULL);
    fixture_open_plain(&w.f, w.settings);
    write_chunks(&w.f, 0, N_CHUNKS);
    kvt_engine_close(w.f.engine);
    assert_int_equal(nftw(w.f.dir.path, take_identity, 16, FTW_PHYS), 0);
    lose_index_of(&w);
    fixture_open_plain(&w.f, w.settings);
    assert_int_equal(load_prompt(&w.f).loaded, N_CHUNKS);
    assert_int_equal(counter(&w.f, "unverified_chunks"), N_CHUNKS);
    expect_tidy(&w);
    kvt_engine_close(w.f.engine);
    w.settings[3] = "refuse_unverified=true";
    fixture_open_plain(&w.f, w.settings);
    assert_int_equal(load_prompt(&w.f).loaded, 0);
    fixture_fini(&w.f);
}

/* LMCache on another host writes to a shared path; the index does not know of the files. */
static void
new_chunks_are_probed_in_all_directories(void **state)
{
    struct world w;
    char from[300], to[300], digits[16];

    (void)state;
    world_init(&w, 4, NULL, NULL);
    fixture_open_plain(&w.f, w.settings);
    write_chunks(&w.f, 0, N_CHUNKS);
    kvt_engine_close(w.f.engine);
    for (int first = -9; first < 100; first++) { /* out of sight */
        snprintf(digits, sizeof digits, "%d", first);
        snprintf(from, sizeof from, "%s/a/%s", w.f.dir.path, digits);
        snprintf(to, sizeof to, "%s/away-%s", w.f.dir.path, digits);
        (void)!rename(from, to);
    }
    lose_index_of(&w);
    fixture_open_plain(&w.f, w.settings);
    assert_int_equal(totals_of(&w, true).n_entries, 0);
    for (int first = -9; first < 100; first++) {
        snprintf(digits, sizeof digits, "%d", first);
        snprintf(from, sizeof from, "%s/away-%s", w.f.dir.path, digits);
        snprintf(to, sizeof to, "%s/c/%s", w.f.dir.path, digits);
        (void)!rename(from, to);
    }
    assert_int_equal(load_prompt(&w.f).loaded, N_CHUNKS);
    expect_tidy(&w);
    fixture_fini(&w.f);
}

/* Assert that the fake library moved all chunks. */
static void
all_moved_directly(void **state)
{
    (void)state;
    assert_true(gds->n_moves > 0);
    assert_int_equal(gds->n_files, 0);
    assert_int_equal(gds->n_dead, 0);
    assert_int_equal(gds->n_bare, 0);
    assert_int_equal(gds->n_overlaps, 0);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        /* First, because streams of a fake GPU do not survive a fork. */
        cmocka_unit_test(a_killed_process_leaves_complete_chunks_only),
        cmocka_unit_test(the_next_engine_finds_stored_chunks),
        cmocka_unit_test(a_lost_index_is_made_from_all_directories),
        cmocka_unit_test(each_worker_writes_to_its_directory),
        cmocka_unit_test(max_gds_size_evicts_both_files_of_a_chunk),
        cmocka_unit_test(a_damaged_file_is_not_loaded_and_both_files_are_removed),
        cmocka_unit_test(lmcaches_chunks_are_served_and_counted_unless_refused),
        cmocka_unit_test(new_chunks_are_probed_in_all_directories),
    };
    const struct CMUnitTest after[] = { cmocka_unit_test(all_moved_directly) };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    if (argc > 1 && !load_fakes(argc, argv))
        return SKIPPED;
    if (argc > 1) {
        setenv("KVTIER_TEST_DRIVER", argv[3], 1);
        behave_well();
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (argc > 1) {
        failed += cmocka_run_group_tests(after, NULL, NULL);
        forget_fakes();
    }
    return failed;
}
