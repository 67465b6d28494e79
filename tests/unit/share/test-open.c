/* SPDX-License-Identifier: Apache-2.0
 *
 * Open: who makes a memory, what stays, what is replaced, limits of the host, other users. */
#include "share-test.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "own-shm.h"

enum { CHUNK = 100000 };

static int
try_open(const struct kvt__share_params *params)
{
    struct kvt__share *s = NULL;
    int err = kvt__share_open(params, &s);

    assert_true(!err == !!s);
    kvt__share_close(s);
    return err;
}

static void
chunks_stay_without_a_process(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);

    assert_int_equal(put(s, 1, CHUNK), 0);
    kvt__share_close(s);
    s = share_open(*state, 8 * MIB);
    assert_int_equal(look(s, 1, CHUNK), 1);
    assert_int_equal(recount(s), 1);
    kvt__share_close(s);
}

static void
the_time_to_live_ends_an_unused_memory(void **state)
{
    struct kvt__share_params params = params_of(*state, 8 * MIB);
    struct kvt__share *s = share_open(*state, 8 * MIB), *user;

    params.ttl_ns = 100 * KVT__NS_PER_S;
    assert_int_equal(put(s, 1, CHUNK), 0);
    kvt__share_close(s);
    assert_int_equal(kvt__share_open(&params, &s), 0);
    assert_int_equal(look(s, 1, CHUNK), 1);
    /* A user keeps the memory. */
    s->header->used_ns -= 200 * (uint64_t)KVT__NS_PER_S;
    assert_int_equal(kvt__share_open(&params, &user), 0);
    assert_int_equal(look(user, 1, CHUNK), 1);
    kvt__share_close(user);
    kvt__share_close(s);
    s = share_open(*state, 8 * MIB);
    int fd = dup(s->records_fd);
    kvt__share_close(s);
    uint64_t old = (uint64_t)kvt__wall_ns() - 200 * (uint64_t)KVT__NS_PER_S;
    assert_int_equal(pwrite(fd, &old, sizeof old, offsetof(struct sh_header, used_ns)),
                     sizeof old);
    close(fd);
    assert_int_equal(kvt__share_open(&params, &s), 0);
    assert_false(has(s, 1));
    assert_int_equal(memory(s), 0);
    assert_int_equal(recount(s), 0);
    kvt__share_close(s);
}

static void
another_limit_replaces_an_unused_memory(void **state)
{
    struct kvt__share *a = share_open(*state, 8 * MIB), *b = share_open(*state, 16 * MIB);
    char path[300];

    assert_int_equal(put(a, 1, CHUNK), 0);
    assert_int_equal(look(b, 1, CHUNK), 1);
    assert_int_equal(b->limit_bytes, 8 * MIB);
    kvt__share_close(a);
    kvt__share_close(b);
    a = share_open(*state, 16 * MIB);
    assert_int_equal(a->limit_bytes, 16 * MIB);
    assert_int_equal(recount(a), 0);
    assert_int_equal(put(a, 1, CHUNK), 0);
    /* One file of records, one of payload, and the files of locks and table. */
    snprintf(path, sizeof path, "ls %s/kvtier-*/share | wc -l | grep -qx 5",
             ((const struct temp_dir *)*state)->path);
    assert_int_equal(system(path), 0);
    kvt__share_close(a);
}

/* The files of another version, or of a killed maker. */
static void
unusable_records_are_made_again(void **state)
{
    for (int i = 0; i < 3; i++) {
        struct kvt__share *s = share_open(*state, 8 * MIB);
        int fd = dup(s->records_fd);

        if (!i)
            assert_int_equal(put(s, 1, CHUNK), 0);
        kvt__share_close(s);
        if (i == 0)
            assert_int_equal(pwrite(fd, "x", 1, 0), 1);
        else if (i == 1)
            assert_int_equal(pwrite(fd, "x", 1, offsetof(struct sh_header, version)), 1);
        else
            assert_int_equal(ftruncate(fd, 1 << 20), 0);
        close(fd);
        s = share_open(*state, 8 * MIB);
        assert_false(has(s, 1));
        assert_int_equal(put(s, 1, CHUNK), 0);
        assert_int_equal(recount(s), 1);
        kvt__share_close(s);
    }
}

static void
delete_files(const struct temp_dir *dir, const char *which)
{
    char command[400];

    snprintf(command, sizeof command, "rm %s/kvtier-*/share/%s", dir->path, which);
    assert_int_equal(system(command), 0);
}

/* The last owner of the number was killed while it drained a segment. */
static void
an_open_ends_the_drain_of_a_dead_owner(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);
    unsigned owner = s->owner;

    assert_int_equal(put(s, 1, CHUNK), 0);
    s->segments[0].word |= SH_DRAINING | (uint64_t)owner << 25;
    kvt__share_close(s);
    s = share_open(*state, 8 * MIB);
    assert_int_equal(s->owner, owner);
    assert_int_equal(look(s, 1, CHUNK), 1);
    assert_int_equal(recount(s), 1);
    kvt__share_close(s);
}

/* A process that uses deleted files and a new process never share a table. */
static void
deleted_files_separate_old_and_new_handles(void **state)
{
    static const char *const names[] = { "records-*", "payload-*", "lock", "*" };

    for (unsigned i = 0; i < 4; i++) {
        struct kvt__share *old = share_open(*state, 8 * MIB);

        assert_int_equal(put(old, i, CHUNK), 0);
        assert_true(kvt__share_is_current(old));
        delete_files(*state, names[i]);
        if (i == 1) { /* the payload of a user: no open before the user's end */
            struct kvt__share_params params = params_of(*state, 8 * MIB);

            assert_int_equal(try_open(&params), -EINVAL);
            kvt__share_close(old);
            continue;
        }
        struct kvt__share *new = share_open(*state, 8 * MIB);
        assert_false(has(new, i));
        assert_false(kvt__share_is_current(old));
        assert_int_equal(put(old, 100, CHUNK), -ESTALE);
        assert_int_equal(put(new, 100, CHUNK), 0);
        assert_int_equal(recount(new), 1);
        kvt__share_close(old);
        assert_int_equal(look(new, 100, CHUNK), 1);
        kvt__share_close(new);
    }
}

static void
a_reader_makes_nothing_and_looks(void **state)
{
    struct kvt__share_params params = params_of(*state, 8 * MIB);
    struct kvt__share_read read;
    struct kvt__share *s, *reader;
    struct kvt__id id = id_of(1);

    params.writer = false;
    assert_int_equal(try_open(&params), -ENOENT);
    s = share_open(*state, 8 * MIB);
    assert_int_equal(put(s, 1, CHUNK), 0);
    assert_int_equal(kvt__share_open(&params, &reader), 0);
    assert_true(has(reader, 1));
    assert_int_equal(memory(reader), MIB);
    assert_int_equal(put(reader, 2, CHUNK), -EINVAL);
    assert_int_equal(kvt__share_begin_read(reader, &id, &read), -EINVAL);
    assert_int_equal(kvt__share_clear(reader), -EINVAL);
    kvt__share_close(s);
    kvt__share_close(reader);
    assert_int_equal(kvt__share_open(&params, &reader), 0);
    assert_true(has(reader, 1));
    kvt__share_close(reader);
}

static void
impossible_sizes_are_refused(void **state)
{
    struct kvt__share_params params = params_of(*state, 0);

    assert_int_equal(try_open(&params), -EINVAL);
    params.limit_bytes = UINT64_C(1) << 50;
    assert_int_equal(try_open(&params), -EINVAL);
    params.limit_bytes = MIB;
    params.chunk_bytes = MIB + 1;
    assert_int_equal(try_open(&params), -EINVAL);
    params.chunk_bytes = 0;
    params.limit_bytes = UINT64_C(1) << 42; /* more than any test machine has */
    int err = try_open(&params);
    assert_true(err == -ENOMEM || err == -ENOSPC);
    params.limit_bytes = MIB;
    assert_int_equal(try_open(&params), 0);
    params.keep_bytes = UINT64_C(1) << 60;
    params.limit_bytes = 2 * MIB;
    assert_int_equal(try_open(&params), -ENOSPC);
}

static void
a_directory_on_a_disk_is_refused(void **state)
{
    struct kvt__share_params params = params_of(*state, MIB);
    struct temp_dir disk;
    struct statfs fs;

    temp_dir_make(&disk);
    params.dir = disk.path;
    int err = try_open(&params);
    assert_int_equal(statfs(disk.path, &fs), 0);
    assert_int_equal(err, fs.f_type == TMPFS_MAGIC ? 0 : -ENOTSUP);
    temp_dir_remove(&disk);
}

/* ------------------------------------------------- children with other rights */

static void
in_child(const struct temp_dir *dir, int (*fn)(const struct temp_dir *dir))
{
    int status;
    pid_t pid = fork();

    if (!pid)
        _exit(fn(dir));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

/* The directory of the test has mode 0700: another user has to be let into it first. */
static int
look_as_another_user(const struct temp_dir *dir)
{
    struct kvt__share_params params = params_of(dir, 8 * MIB);
    struct kvt__share *s = share_open(dir, 8 * MIB);
    char path[2][400];
    FILE *names;

    if (geteuid() || chmod(dir->path, 01777))
        return 77;
    if (put(s, 1, CHUNK))
        return 1;
    snprintf(path[0], sizeof path[0], "ls -d %s/kvtier-0/share/*", dir->path);
    names = popen(path[0], "r");
    if (!names || setgid(65534) || setuid(65534))
        return 77;
    int n = 0;
    for (; fscanf(names, "%399s", path[1]) == 1; n++)
        if (open(path[1], O_RDONLY) >= 0 || errno != EACCES)
            return 2;
    kvt__share_close(s);
    if (n != 5)
        return 3;
    params.writer = false;
    if (kvt__share_open(&params, &s) != -ENOENT)
        return 4;
    params.writer = true; /* a memory of this user's own */
    if (kvt__share_open(&params, &s) || has(s, 1))
        return 5;
    return 0;
}

static void
another_user_reads_nothing(void **state)
{
    in_child(*state, look_as_another_user);
}

static int
fill_a_small_tmpfs(const struct temp_dir *dir)
{
    struct kvt__share_params params = params_of(dir, 16 * MIB);
    struct kvt__share *s;

    if (geteuid() || !own_shm("size=40m"))
        return 77;
    params.dir = "/dev/shm";
    params.keep_bytes = 0;
    if (kvt__share_open(&params, &s) != -ENOSPC) /* 1 GiB must stay free */
        return 1;
    params.keep_bytes = MIB;
    if (kvt__share_open(&params, &s))
        return 2;
    for (uint64_t i = 0; i < 20; i++)
        if (put(s, i, CHUNK))
            return 3;
    int fd = open("/dev/shm/rest", O_RDWR | O_CREAT, 0600);
    for (off_t step = MIB; step >= 4096; step /= 2) /* all that is left */
        for (off_t at; (at = lseek(fd, 0, SEEK_END)) >= 0 && !posix_fallocate(fd, at, step);)
            ;
    for (uint64_t i = 20; i < 500; i++)
        if (put(s, i, CHUNK) || look(s, i, CHUNK) != 1)
            return 4;
    if (put(s, 1000, 4096) != -ENOSPC) /* no memory for the records of smaller slots */
        return 5;
    if (memory(s) > 4 * MIB)
        return 6;
    close(fd);
    unlink("/dev/shm/rest");
    s->retry_ns = 0;
    for (uint64_t i = 0; i < 150; i++)
        if (put(s, 2000 + i, CHUNK))
            return 7;
    return memory(s) == 16 * MIB ? 0 : 8;
}

static void
a_full_tmpfs_is_no_signal(void **state)
{
    in_child(*state, fill_a_small_tmpfs);
}

static int
open_with_huge_pages(const struct temp_dir *dir)
{
    struct kvt__share_params params = params_of(dir, 16 * MIB);
    struct kvt__share *s;

    params.huge_pages = true;
    if (geteuid() || !own_shm("huge=never"))
        return 77;
    params.dir = "/dev/shm";
    if (kvt__share_open(&params, &s) != -ENOTSUP)
        return 1;
    if (mount("kvtier-test", "/dev/shm", "tmpfs", 0, "huge=advise"))
        return 77;
    if (kvt__share_open(&params, &s) || put(s, 1, CHUNK) || look(s, 1, CHUNK) != 1)
        return 2;
    return s->segment_bytes % (2 * MIB) ? 3 : 0;
}

static void
huge_pages_are_required_of_the_file_system(void **state)
{
    in_child(*state, open_with_huge_pages);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARE_TEST(chunks_stay_without_a_process),
        SHARE_TEST(the_time_to_live_ends_an_unused_memory),
        SHARE_TEST(another_limit_replaces_an_unused_memory),
        SHARE_TEST(unusable_records_are_made_again),
        SHARE_TEST(an_open_ends_the_drain_of_a_dead_owner),
        SHARE_TEST(deleted_files_separate_old_and_new_handles),
        SHARE_TEST(a_reader_makes_nothing_and_looks),
        SHARE_TEST(impossible_sizes_are_refused),
        SHARE_TEST(a_directory_on_a_disk_is_refused),
        SHARE_TEST(another_user_reads_nothing),
        SHARE_TEST(a_full_tmpfs_is_no_signal),
        SHARE_TEST(huge_pages_are_required_of_the_file_system),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
