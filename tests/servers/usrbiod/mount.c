/* SPDX-License-Identifier: Apache-2.0
 *
 * The mount and the threads that answer its requests. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "usrbiod.h"

static struct fuse_session *session;
static pthread_t *threads;
static unsigned n_threads;

void
sleep_ns(int64_t ns)
{
    int64_t at = now_ns() + ns;
    struct timespec until = { at / 1000000000, at % 1000000000 };

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR &&
           !fuse_session_exited(session))
        continue;
}

static void
unmount_helper(const char *path)
{
    pid_t pid = fork();

    if (!pid) {
        execlp("fusermount3", "fusermount3", "-u", "-z", "-q", path, (char *)NULL);
        _exit(127);
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
}

/* One whose daemon died is there, but nothing can be asked of it. */
int
mount_point(const char *path)
{
    for (int i = 0; i < 8; i++) {
        struct stat st;

        if (stat(path, &st) == 0)
            return realpath(path, opt.mount) ? 0 : errno;
        if (errno != ENOTCONN)
            return errno;
        if (umount2(path, MNT_DETACH) < 0)
            unmount_helper(path);
    }
    return ENOTCONN;
}

/* A signal has nothing to do but interrupt a read. */
static void
wake(int signal)
{
    (void)signal;
}

static void *
answer(void *arg)
{
    struct fuse_buf buf = { .mem = NULL };

    while (!fuse_session_exited(session)) {
        int n = fuse_session_receive_buf(session, &buf);

        if (n == -EINTR)
            continue;
        if (n <= 0)
            break;
        fuse_session_process_buf(session, &buf);
    }
    free(buf.mem);
    return arg;
}

int
mount_start(void)
{
    char options[128], *args[] = { (char[]){ "usrbiod" }, (char[]){ "-o" }, options,
                                   NULL };
    struct fuse_args fuse_args = FUSE_ARGS_INIT(3, args);
    struct sigaction action = { .sa_handler = wake };

    sigaction(SIGUSR1, &action, NULL);
    snprintf(options, sizeof options, "subtype=hf3fs,fsname=hf3fs.test,"
             "default_permissions%s", geteuid() == 0 ? ",allow_other" : "");
    session = fuse_session_new(&fuse_args, &fs_ops, sizeof fs_ops, NULL);
    fuse_opt_free_args(&fuse_args);
    if (!session || fuse_session_mount(session, opt.mount) < 0)
        return failed("mount, see above", EIO);
    threads = calloc(opt.n_threads, sizeof *threads);
    while (threads && n_threads < opt.n_threads &&
           !pthread_create(&threads[n_threads], NULL, answer, NULL))
        n_threads++;
    if (n_threads == opt.n_threads)
        return 0;
    fuse_session_unmount(session);
    return failed("threads for FUSE", EAGAIN);
}

/* The kernel wakes no reader of its device when it is closed. */
void
mount_stop(void)
{
    fuse_session_exit(session);
    while (n_threads) {
        struct timespec until;

        fault_release();
        pthread_kill(threads[n_threads - 1], SIGUSR1);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 2000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        if (!pthread_timedjoin_np(threads[n_threads - 1], NULL, &until))
            n_threads--;
    }
    free(threads);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
}
