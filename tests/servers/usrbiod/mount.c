/* SPDX-License-Identifier: Apache-2.0
 *
 * The mount, and the threads that process its requests. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "usrbiod.h"

static struct fuse_session *session;
static pthread_t *threads;
static unsigned n_threads;
static bool mounted; /* mounted without libfuse */

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

/* Detach the mount of a dead daemon, if any: stat() of such a mount fails with ENOTCONN. */
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

/* The signal only interrupts a read. */
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

/* End the threads.  A close of the FUSE device does not wake a thread in read(), so the function
 * interrupts each read with a signal. */
void
mount_stop(void)
{
    if (session)
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
    if (mounted)
        umount2(opt.mount, MNT_DETACH);
    if (session) {
        fuse_session_unmount(session);
        fuse_session_destroy(session);
    }
}

/* -------------------------------------------------------------------------- start */

static ssize_t
read_device(int fd, void *buf, size_t size, void *data)
{
    (void)data;
    return read(fd, buf, size);
}

/* The first response contains the daemon's capabilities.  Debian 12's libfuse always omits
 * FUSE_PARALLEL_DIROPS, parallel lookups in a directory. */
static ssize_t
write_device(int fd, struct iovec *iov, int n, void *data)
{
    static atomic_bool begun;
    struct fuse_init_out *init = n == 2 ? iov[1].iov_base : NULL;

    (void)data;
    if (init && !atomic_exchange(&begun, true) && iov[1].iov_len >= sizeof *init &&
        !opt.serial_lookups)
        init->flags |= FUSE_PARALLEL_DIROPS;
    return writev(fd, iov, n);
}

/* Mount as root without libfuse: a mount by libfuse sends its own first response. */
static int
mount_as_root(void)
{
    const struct fuse_custom_io io = { .writev = write_device, .read = read_device };
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[128];

    if (fd < 0)
        return report_failure("/dev/fuse", errno);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,"
             "allow_other,default_permissions", fd);
    if (mount("hf3fs.test", opt.mount, "fuse.hf3fs", MS_NOSUID | MS_NODEV, options) < 0) {
        int err = errno;
        close(fd);
        return report_failure("mount", err);
    }
    mounted = true;
    int err = fuse_session_custom_io(session, &io, fd);
    if (err)
        close(fd);
    return err ? report_failure("take the device", -err) : 0;
}

static int
open_session(void)
{
    char *args[] = { (char[]){ "usrbiod" }, (char[]){ "-o" },
                     (char[]){ "subtype=hf3fs,fsname=hf3fs.test,default_permissions" },
                     NULL };
    struct fuse_args fuse_args = FUSE_ARGS_INIT(3, args);

    session = fuse_session_new(&fuse_args, &fs_ops, sizeof fs_ops, NULL);
    fuse_opt_free_args(&fuse_args);
    if (!session)
        return report_failure("libfuse", EINVAL);
    if (geteuid() == 0)
        return mount_as_root();
    return fuse_session_mount(session, opt.mount) < 0 ? report_failure("mount, see above", EIO)
                                                      : 0;
}

int
mount_start(void)
{
    struct sigaction action = { .sa_handler = wake };
    int err = open_session();

    sigaction(SIGUSR1, &action, NULL);
    threads = calloc(opt.n_threads, sizeof *threads);
    while (!err && threads && n_threads < opt.n_threads) {
        err = pthread_create(&threads[n_threads], NULL, answer, NULL);
        n_threads += !err;
    }
    if (!err && threads)
        return 0;
    mount_stop();
    return report_failure("start", EIO);
}
