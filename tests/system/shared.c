/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory that other hosts share, here a bindfs mount (FUSE): the index is outside the
 * directory, chunks of other hosts are found, and kvtier evicts nothing by default. */
#include <limits.h>
#include <signal.h>

#include "base/error.h"
#include "files.h"
#include "index-dir.h"
#include "system/mount-test.h"
#include "tier/files/files.h"

/* The fixture's directory is a bindfs mount of the directory `below`. */
struct shared {
    struct fixture f;
    struct temp_dir below;
    pid_t bindfs;
};

static bool
is_mounted(const struct shared *s)
{
    int fd = open(s->f.dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool shared = fd >= 0 && kvt__fs_is_shared(fd);

    if (fd >= 0)
        close(fd);
    return shared;
}

static int
setup(void **state)
{
    struct shared *s = calloc(1, sizeof *s);

    assert_non_null(s);
    *state = s;
    fixture_init(&s->f);
    temp_dir_make(&s->below);
    s->bindfs = fork();
    if (!s->bindfs) {
        execlp("bindfs", "bindfs", "-f", s->below.path, s->f.dir.path, (char *)NULL);
        _exit(SKIPPED);
    }
    while (!is_mounted(s) && !waitpid(s->bindfs, NULL, WNOHANG))
        usleep(1000);
    return is_mounted(s) ? 0 : -1;
}

/* Remove the index too: the index in local storage outlives the engine. */
static int
teardown(void **state)
{
    struct shared *s = *state;

    kvt_engine_close(s->f.engine);
    s->f.engine = NULL;
    int fd = open(s->f.dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int index = kvt__shared_index_dir(fd, s->f.dir.path);
    index_dir_remove(index);
    close(index);
    close(fd);
    umount2(s->f.dir.path, MNT_DETACH);
    kill(s->bindfs, SIGTERM);
    waitpid(s->bindfs, NULL, 0);
    temp_dir_remove(&s->below);
    fixture_fini(&s->f);
    free(s);
    return 0;
}

static bool
has_index(const char *dir)
{
    char path[300];

    snprintf(path, sizeof path, "%s/.kvtier/lock", dir);
    return !access(path, F_OK);
}

static void
the_index_is_outside_the_store_and_survives_a_restart(void **state)
{
    /* If loads do not use memory, lookups promise chunks without verification. */
    static const char *const believing[] = { "local_cpu=true",
                                             "retrieve_locations=RemoteBackend", NULL };
    struct shared *s = *state;

    fixture_open(&s->f, NULL);
    store_chunks(&s->f, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(s->f.engine, -1), 0);
    assert_false(has_index(s->below.path));
    kvt_engine_close(s->f.engine);
    fixture_open(&s->f, believing);
    struct kvt_seq *seq = new_seq(&s->f, N_TOKENS);
    uint64_t hit = 0;
    assert_int_equal(kvt_engine_lookup(s->f.engine, seq, 0, N_TOKENS, &hit), 0);
    assert_int_equal(hit, N_TOKENS); /* at once, without a probe of files */
    kvt_engine_release(s->f.engine, seq);
    kvt_seq_free(seq);
    assert_int_equal(load_prompt(&s->f).loaded, N_CHUNKS);
}

static void
chunks_of_another_host_are_found(void **state)
{
    struct shared *s = *state;
    struct fixture other = s->f;

    fixture_open(&s->f, NULL);
    other.dir = s->below;
    fixture_open(&other, NULL);
    store_chunks(&other, 0, N_CHUNKS);
    assert_int_equal(kvt_engine_flush(other.engine, -1), 0);
    kvt_engine_close(other.engine);
    assert_true(has_index(s->below.path));
    assert_int_equal(load_prompt(&s->f).loaded, N_CHUNKS);
}

/* Another program removes a chunk's file, below the mount, while the engine is open. */
static void
remove_below(const char *path)
{
    int status;
    pid_t rm = fork();

    if (!rm) {
        execlp("rm", "rm", path, (char *)NULL);
        _exit(SKIPPED);
    }
    assert_int_equal(waitpid(rm, &status, 0), rm);
    assert_int_equal(status, 0);
}

/* Rename a chunk's file to a name of no chunk, or back. */
static void
move_aside(const char *path, bool back)
{
    char aside[520];

    assert_in_range(snprintf(aside, sizeof aside, "%s.aside", path), 1, sizeof aside - 1);
    assert_int_equal(back ? rename(aside, path) : rename(path, aside), 0);
}

/* Store the chunks one by one, and note the file of each. */
static void
write_and_name(const struct shared *s, char paths[N_CHUNKS][512])
{
    struct fixture below = { .dir = s->below };

    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        write_chunks(&s->f, c, 1);
        struct usage usage = usage_of(&below);
        assert_int_equal(usage.n_files, 1);
        strcpy(paths[c], usage.last);
        move_aside(paths[c], false);
    }
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        move_aside(paths[c], true);
}

/* The chunks before a chunk without file are promised and loaded. */
static void
a_chunk_deleted_by_another_program_is_no_hit(void **state)
{
    static const char *const memory[] = { "local_cpu=true", "lookup_timeout_ms=60000",
                                          "blocking_timeout_secs=60", NULL };
    static char paths[N_CHUNKS][512];
    struct shared *s = *state;

    fixture_open(&s->f, NULL);
    write_and_name(s, paths);
    for (uint32_t left = N_CHUNKS; left;) {
        kvt_engine_close(s->f.engine);
        fixture_open(&s->f, memory); /* with empty memory */
        left = left > 4 ? left - 4 : left - 1;
        remove_below(paths[left]);
        struct outcome got = load_prompt(&s->f);
        assert_int_equal(got.promised, left);
        assert_int_equal(got.loaded, left);
        assert_int_equal(counter(&s->f, "load_missing"), 0);
    }
}

static void
a_chunk_damaged_by_another_program_is_no_hit_and_is_counted(void **state)
{
    static const char *const memory[] = { "local_cpu=true", NULL };
    struct shared *s = *state;
    struct fixture below = { .dir = s->below };

    fixture_open(&s->f, NULL);
    write_chunks(&s->f, 0, N_CHUNKS);
    kvt_engine_close(s->f.engine);
    struct usage usage = usage_of(&below);
    flip_byte(usage.last, 100);
    fixture_open(&s->f, memory);
    struct outcome got = load_prompt(&s->f);
    assert_int_equal(got.loaded, got.promised);
    assert_true(got.promised < N_CHUNKS);
    assert_comes_to(&s->f, "load_corrupt", 1);
}

/* A chunk verified in memory stays a hit after the deletion of the file. */
static void
a_chunk_in_memory_is_a_hit_without_its_file(void **state)
{
    static const char *const memory[] = { "local_cpu=true", NULL };
    struct shared *s = *state;
    struct fixture below = { .dir = s->below };

    fixture_open(&s->f, memory);
    write_chunks(&s->f, 0, N_CHUNKS);
    for (unsigned i = 0; i < N_CHUNKS; i++)
        remove_below(usage_of(&below).last);
    assert_int_equal(load_prompt(&s->f).loaded, N_CHUNKS);
    assert_int_equal(counter(&s->f, "memory_hits"), N_CHUNKS);
}

/* Return the limit of the shared directory's tier.  size: a setting, or NULL for the
 * default. */
static uint64_t
limit_with(const struct shared *s, const char *size)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    struct kvt_store *store;
    char url[300];
    const char *const settings[] = { url, size, NULL };

    snprintf(url, sizeof url, "remote_url=fs://%s", s->f.dir.path);
    struct kvt_config *config = config_with(settings);
    assert_int_equal(kvt_store_open(config, &store), 0);
    assert_int_equal(kvt_store_tier(store, 0, &info), 0);
    kvt_store_close(store);
    kvt_config_free(config);
    return info.limit_bytes;
}

static void
no_limit_is_set_but_the_users(void **state)
{
    assert_int_equal(limit_with(*state, NULL), 0);
    assert_int_equal(limit_with(*state, "max_remote_size=0"), 0);
    assert_int_equal(limit_with(*state, "max_remote_size=0.001"),
                     (uint64_t)(0.001 * (1 << 30)));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_index_is_outside_the_store_and_survives_a_restart),
        TEST(chunks_of_another_host_are_found),
        TEST(a_chunk_deleted_by_another_program_is_no_hit),
        TEST(a_chunk_damaged_by_another_program_is_no_hit_and_is_counted),
        TEST(a_chunk_in_memory_is_a_hit_without_its_file),
        TEST(no_limit_is_set_but_the_users),
    };

    if (!may_mount())
        return SKIPPED;
    if (access("/dev/fuse", R_OK | W_OK) < 0 ||
        system("bindfs --version >/dev/null 2>&1")) {
        printf("skipped: needs bindfs and /dev/fuse\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests_name("shared directory", tests, NULL, NULL);
}
