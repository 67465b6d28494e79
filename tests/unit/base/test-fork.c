/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks: counted from the first handle on, and not delayed by a hanging file system. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvt-test.h"
#include "temp-dir.h"

#include "base/fork.h"
#include "table/table.h"

/* The first test, because no lock file was opened before. */
static void
a_private_table_is_dead_in_a_forked_child(void **state)
{
    struct kvt__table_params params = { .max_entries = 1024, .writer = true };
    struct kvt__record record = { .bytes = 1 };
    struct kvt__name name = { .hash.bits = { 1 } };
    struct kvt__table *table;
    int status;

    (void)state;
    assert_int_equal(kvt__table_open_private(&params, &table), 0);
    assert_int_equal(kvt__table_enter(table, &name, &record, NULL), 0);
    assert_true(kvt__table_find(table, &name, NULL, NULL));
    pid_t pid = fork();
    if (!pid) {
        int rc = kvt__table_enter(table, &name, &record, NULL) != -ESTALE ||
                 kvt__table_find(table, &name, NULL, NULL);
        kvt__table_close(table);
        _exit(rc);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    kvt__table_close(table);
}

struct opener {
    int dirfd;
    pid_t tid; /* atomic */
    int fd;
};

static void *
open_main(void *arg)
{
    struct opener *opener = arg;

    __atomic_store_n(&opener->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    opener->fd = kvt__lock_file_open(opener->dirfd, "pipe", O_RDONLY, 0);
    return NULL;
}

/* Return true if a thread of this process is inside a system call with dirfd as the first
 * argument.  The call's number is not checked: under qemu-user, the kernel may have another
 * number for openat() than aarch64. */
static bool
is_in_call_on(pid_t tid, int dirfd)
{
    char path[64], call[64] = "";
    unsigned long first;

    snprintf(path, sizeof path, "/proc/self/task/%ld/syscall", (long)tid);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(call, sizeof call, f))
        skip(); /* the kernel does not report system calls */
    fclose(f);
    return sscanf(call, "%*d %lx", &first) == 1 && first == (unsigned long)dirfd;
}

/* The open of a named pipe waits for a writer.  The wait stands for an open of a file on a
 * server without response. */
static void
a_fork_does_not_wait_for_an_open_that_hangs(void **state)
{
    struct opener opener = { 0 };
    struct temp_dir dir;
    struct stat st;
    pthread_t thread;
    char path[64];
    int status;

    (void)state;
    temp_dir_make(&dir);
    opener.dirfd = open(dir.path, O_RDONLY | O_DIRECTORY);
    assert_true(opener.dirfd >= 0);
    assert_int_equal(mkfifoat(opener.dirfd, "pipe", 0600), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_main, &opener), 0);
    pid_t tid;
    while (!(tid = __atomic_load_n(&opener.tid, __ATOMIC_ACQUIRE)) ||
           !is_in_call_on(tid, opener.dirfd))
        sched_yield();
    alarm(60); /* a fork without end is a failure */
    pid_t pid = fork();
    if (!pid)
        _exit(0);
    alarm(0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    /* The child could share the descriptor of the first openat(), so kvtier opens the file
     * again. */
    int pipe = openat(opener.dirfd, "pipe", O_PATH);
    int file = openat(opener.dirfd, "file", O_RDWR | O_CREAT, 0600);
    assert_int_equal(renameat(opener.dirfd, "file", opener.dirfd, "pipe"), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", pipe);
    int writer = open(path, O_WRONLY);
    assert_true(writer >= 0);
    pthread_join(thread, NULL);
    assert_true(opener.fd >= 0);
    assert_int_equal(fstat(opener.fd, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_true(fcntl(opener.fd, F_GETFD) & FD_CLOEXEC);
    kvt__lock_file_close(opener.fd);
    assert_int_equal(fcntl(opener.fd, F_GETFD), -1);
    close(writer);
    close(file);
    close(pipe);
    close(opener.dirfd);
    temp_dir_remove(&dir);
}

/* This function replaces libc's close().  The close of slow_fd forks, as another thread
 * could during a hanging close. */
static int slow_fd = -1, child_ends[2];
static pid_t child;

int
close(int fd)
{
    char byte;

    if (fd == slow_fd) {
        slow_fd = -1;
        child = fork();
        if (!child) {
            syscall(SYS_close, child_ends[1]);
            _exit((int)read(child_ends[0], &byte, 1)); /* until the parent closes */
        }
    }
    return (int)syscall(SYS_close, fd);
}

static void
a_fork_does_not_wait_for_a_close_that_hangs(void **state)
{
    struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    struct temp_dir dir;
    int status;

    (void)state;
    temp_dir_make(&dir);
    int dirfd = open(dir.path, O_RDONLY | O_DIRECTORY);
    assert_true(dirfd >= 0);
    int fd = kvt__lock_file_open(dirfd, "file", O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &all), 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(pipe(child_ends), 0);
    slow_fd = fd;
    alarm(60); /* a fork without end is a failure */
    kvt__lock_file_close(fd);
    alarm(0);
    assert_true(child > 0);
    /* The child is alive and holds no lock. */
    int other = openat(dirfd, "file", O_RDWR);
    assert_int_equal(fcntl(other, F_OFD_SETLK, &all), 0);
    assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
    close(other);
    close(child_ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(child_ends[0]);
    close(dirfd);
    temp_dir_remove(&dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_private_table_is_dead_in_a_forked_child),
        cmocka_unit_test(a_fork_does_not_wait_for_an_open_that_hangs),
        cmocka_unit_test(a_fork_does_not_wait_for_a_close_that_hangs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
