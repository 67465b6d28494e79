/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of shared tables: a store's directory and a directory on the tmpfs, which are
 * removed at the end. */
#ifndef KVT_TABLE_PLACE_TEST_H
#define KVT_TABLE_PLACE_TEST_H

#include "table-test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

struct dir {
    char path[200], shm[200];
    int fd, shm_fd;
};

static int n_warnings;
static char last_warning[2048];

static inline void
count_warning(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    if (level > KVT_LOG_WARN)
        return;
    n_warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

static inline int
make_dirs(void **state)
{
    const char *tmp = getenv("TMPDIR");
    struct dir *d = calloc(1, sizeof *d);

    if (!d)
        return -1;
    snprintf(d->path, sizeof d->path, "%s/kvt-table-XXXXXX", tmp ? tmp : "/tmp");
    snprintf(d->shm, sizeof d->shm, "/dev/shm/kvt-table-XXXXXX");
    if (!mkdtemp(d->path) || !mkdtemp(d->shm))
        return -1;
    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    d->shm_fd = open(d->shm, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    n_warnings = 0;
    kvt_set_log(count_warning, NULL, KVT_LOG_DEBUG);
    *state = d;
    return d->fd < 0 || d->shm_fd < 0 ? -1 : 0;
}

/* Delete the entries of a directory.  Returns their number. */
static inline int
empty(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    int n = 0;

    while (dir && (e = readdir(dir))) {
        if (e->d_name[0] == '.')
            continue;
        if (unlinkat(dirfd(dir), e->d_name, 0))
            unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
        n++;
    }
    if (dir)
        closedir(dir);
    return n;
}

static inline int
remove_dirs(void **state)
{
    struct dir *d = *state;

    empty(d->path);
    empty(d->shm);
    close(d->fd);
    close(d->shm_fd);
    rmdir(d->path);
    rmdir(d->shm);
    free(d);
    return 0;
}

#define PLACE_TEST(f) cmocka_unit_test_setup_teardown(f, make_dirs, remove_dirs)

static inline struct kvt__table_params
params_of(const struct dir *d)
{
    return (struct kvt__table_params){ .shm = d->shm, .max_entries = 200000,
                                       .writer = true };
}

static inline struct kvt__table *
open_with(const struct dir *d, const struct kvt__table_params *params)
{
    struct kvt__table *t;

    assert_int_equal(kvt__table_open(params, d->fd, &t), 0);
    return t;
}

static inline struct kvt__table *
open_writer(const struct dir *d)
{
    struct kvt__table_params params = params_of(d);

    return open_with(d, &params);
}

static inline struct kvt__table *
open_reader(const struct dir *d)
{
    struct kvt__table_params params = params_of(d);

    params.writer = false;
    return open_with(d, &params);
}

/* Return the name of the only file in the tmpfs directory; "" if the directory is empty. */
static inline const char *
shm_file(const struct dir *d)
{
    static char name[256];
    DIR *dir = opendir(d->shm);
    struct dirent *e;

    *name = '\0';
    while ((e = readdir(dir)))
        if (e->d_name[0] != '.') {
            assert_int_equal(*name, '\0');
            snprintf(name, sizeof name, "%s", e->d_name);
        }
    closedir(dir);
    return name;
}

static inline void
overwrite_bytes(const struct dir *d, off_t at, const void *bytes, size_t n)
{
    int fd = openat(d->shm_fd, shm_file(d), O_RDWR | O_CLOEXEC);

    assert_int_equal(pwrite(fd, bytes, n, at), n);
    close(fd);
}

/* Let `change` edit the place in `lock`. */
static inline void
edit_place(const struct dir *d, void (*change)(struct tb_location *place))
{
    struct tb_location place;
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);

    assert_true(kvt__tb_get_location(fd, &place));
    change(&place);
    assert_int_equal(kvt__tb_set_location(fd, &place), 0);
    close(fd);
}

static inline void
store_one_and_close(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);

    assert_true(kvt__table_is_shared(t));
    assert_int_equal(store(t, 1, 10), 0);
    kvt__table_close(t);
}

/* A new table is shared, empty, and works. */
static inline void
expect_new(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);

    assert_true(kvt__table_is_shared(t));
    assert_true(kvt__table_is_current(t));
    assert_false(find(t, 1, NULL));
    assert_int_equal(store(t, 1, 10), 0);
    recount(t);
    kvt__table_close(t);
}

/* A table of these parameters opens, is shared, and takes chunk n. */
static inline void
expect_usable(const struct dir *d, const struct kvt__table_params *params, uint64_t n)
{
    struct kvt__table *t = open_with(d, params);

    assert_true(kvt__table_is_shared(t));
    assert_int_equal(store(t, n, 10), 0);
    recount(t);
    kvt__table_close(t);
}

/* Run fn in a child; fn must return 0. */
static inline void
succeed_in_child(const struct dir *d, int (*fn)(const struct dir *d))
{
    int status;
    pid_t pid = fork();

    if (!pid)
        _exit(fn(d));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Run fn in a child, which then kills itself. */
static inline void
in_child(const struct dir *d, void (*fn)(const struct dir *d))
{
    pid_t pid = fork();

    if (!pid) {
        fn(d);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Run fn in a child and kill the child at the entry of its n-th system call.  Returns false
 * if the child ended before. */
static inline bool
kill_at(const struct dir *d, void (*fn)(const struct dir *d), int n)
{
    int status, stops = 0;
    pid_t pid = fork();

    if (!pid) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(77);
        raise(SIGSTOP);
        fn(d);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status))
        skip(); /* no ptrace here */
    for (;;) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSTOPPED(status))
            return false;
        if (++stops == 2 * n - 1) {
            kill(pid, SIGKILL);
            assert_int_equal(waitpid(pid, &status, 0), pid);
            return true;
        }
    }
}

#endif
