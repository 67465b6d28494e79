/* SPDX-License-Identifier: Apache-2.0
 *
 * io_uring for the baseline loop over files, and a filter that makes io_uring unavailable. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "bench.h"

int
bench_forbid_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return errno;
    return 0;
}

#ifdef KVT_HAVE_LIBURING
#include <liburing.h>

struct bench_uring {
    struct io_uring uring;
    unsigned depth;
};

struct bench_uring *
bench_uring_new(unsigned depth)
{
    struct bench_uring *ring = calloc(1, sizeof *ring);

    if (!ring || io_uring_queue_init(depth, &ring->uring, 0)) {
        free(ring);
        return NULL;
    }
    ring->depth = depth;
    return ring;
}

void
bench_uring_free(struct bench_uring *ring)
{
    if (ring)
        io_uring_queue_exit(&ring->uring);
    free(ring);
}

/* Wait for at least one completion and process all available completions.  Return the sum of
 * their bytes, or a negative errno. */
static ssize_t
reap_completions(struct io_uring *uring, unsigned *in_flight)
{
    struct io_uring_cqe *cqe;
    ssize_t bytes = 0;

    for (int err = io_uring_wait_cqe(uring, &cqe); err;
         err = io_uring_wait_cqe(uring, &cqe))
        if (err != -EINTR)
            return err;
    do {
        bytes = bytes < 0 || cqe->res < 0 ? -EIO : bytes + cqe->res;
        io_uring_cqe_seen(uring, cqe);
        --*in_flight;
    } while (!io_uring_peek_cqe(uring, &cqe));
    return bytes;
}

int
bench_uring_move(struct bench_uring *ring, const struct bench_baseline *baseline, int fd,
                unsigned char *buffer, bool write)
{
    struct io_uring *uring = &ring->uring;
    size_t submitted = 0, done = 0;
    unsigned in_flight = 0;
    ssize_t got = 0;

    while (in_flight || (got >= 0 && submitted < baseline->file_bytes)) {
        while (got >= 0 && submitted < baseline->file_bytes && in_flight < ring->depth) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(uring);
            size_t left = baseline->file_bytes - submitted;
            unsigned n = (unsigned)(left < baseline->piece ? left : baseline->piece);

            if (write)
                io_uring_prep_write(sqe, fd, buffer + submitted, n, submitted);
            else
                io_uring_prep_read(sqe, fd, buffer + submitted, n, submitted);
            submitted += n;
            in_flight++;
        }
        if (io_uring_submit(uring) < 0)
            return EIO;
        got = reap_completions(uring, &in_flight);
        done += got > 0 ? (size_t)got : 0;
    }
    return done == baseline->file_bytes ? 0 : EIO;
}

#else

struct bench_uring *
bench_uring_new(unsigned depth)
{
    (void)depth;
    return NULL;
}

void
bench_uring_free(struct bench_uring *ring)
{
    (void)ring;
}

int
bench_uring_move(struct bench_uring *ring, const struct bench_baseline *baseline, int fd,
                unsigned char *buffer, bool write)
{
    (void)ring;
    (void)baseline;
    (void)fd;
    (void)buffer;
    (void)write;
    return ENOSYS;
}

#endif
