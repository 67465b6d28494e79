/* SPDX-License-Identifier: Apache-2.0
 *
 * Execution of a job: checks, faults, and the transfer between a file and an iov.  A job belongs
 * to one thread at a time. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "usrbiod.h"

static bool
is_read(const struct job *job)
{
    return ring_reg(job->ring)->key.for_read;
}

/* ------------------------------------------------------------------------ checks */

static bool
crosses_block(const struct io *io, size_t block)
{
    return block && io->buffer_at / block != (io->buffer_at + io->bytes - 1) / block;
}

/* Look up the file and the iov of an I/O, and check the range.  Return 0 or a negative errno. */
static int
check(struct io *io)
{
    io->node = node_use(io->file);
    if (!io->node)
        return -EBADF;
    io->iov = table_iov(io->buffer_id);
    if (!io->iov)
        return -EINVAL;
    if (!io->bytes || io->buffer_at > io->iov->bytes ||
        io->bytes > io->iov->bytes - io->buffer_at ||
        crosses_block(io, io->iov->key.block_bytes))
        return -EINVAL;
    if (io->file_at > INT64_MAX || io->bytes > INT64_MAX - io->file_at)
        return -EINVAL;
    return 0;
}

/* Check an I/O and apply its faults; add the job's effects to *sum. */
static void
prepare_io(struct job *job, struct io *io, struct effect *sum)
{
    char name[256];
    struct effect e;

    if (io->fixed)
        return;
    io->at_most = UINT64_MAX;
    io->result = check(io);
    io->fixed = io->result < 0;
    if (io->node)
        node_name(io->node, name);
    else
        name[0] = '\0';
    if (!fault_find(is_read(job) ? OP_READ : OP_WRITE, name, io->file_at, &e))
        return;
    if (e.has_result && !io->fixed) {
        io->fixed = true;
        io->result = e.result;
    }
    io->at_most = e.at_most;
    io->corrupt = e.corrupt;
    sum->stuck |= e.stuck;
    sum->generation = e.generation;
    sum->reorder |= e.reorder;
    sum->lost_wakeup |= e.lost_wakeup;
    if (e.delay_ns > sum->delay_ns)
        sum->delay_ns = e.delay_ns;
}

/* Prepare a job.  Return false if a fault delays the job.  The bytes of a delayed job move after
 * the delay: a client that reuses the memory too early finds the memory overwritten. */
static bool
prepare(struct job *job)
{
    struct effect sum = {0};

    job->prepared = true;
    for (size_t i = 0; i < job->n; i++)
        prepare_io(job, &job->io[i], &sum);
    job->reverse = sum.reorder;
    job->silent = sum.lost_wakeup;
    if (sum.stuck)
        job_park(job, sum.generation);
    else if (sum.delay_ns)
        timers_add(job, job->taken_ns + sum.delay_ns);
    return !sum.stuck && !sum.delay_ns;
}

/* -------------------------------------------------------------------------- bytes */

/* Return the number of bytes before a hole that extends to the end of the I/O, or a negative
 * errno.  Holes are the holes of the backing file; the length of the file does not matter. */
static int64_t
without_holes(const struct io *io, uint64_t bytes, bool forbidden)
{
    int fd = io->node->data_fd;
    off_t start = (off_t)io->file_at, end = start + (off_t)bytes, at = start;

    while (at < end) {
        off_t data = lseek(fd, at, SEEK_DATA);

        if (data < 0 || data >= end)
            break;
        if (data > at && forbidden)
            return -ENODATA;
        at = lseek(fd, data, SEEK_HOLE);
        if (at < 0)
            return -errno;
    }
    return (at < end ? at : end) - start;
}

/* Move bytes by a direct system call, which the thread sanitizer does not observe: the client is
 * responsible for other accesses to its memory. */
static ssize_t
move_some(int fd, uint8_t *memory, uint64_t bytes, uint64_t at, bool read)
{
    return syscall(read ? SYS_pread64 : SYS_pwrite64, fd, memory, bytes, at);
}

static int64_t
move(const struct io *io, uint64_t bytes, bool read)
{
    uint8_t *memory = io->iov->base + io->buffer_at;
    uint64_t done = 0;

    while (done < bytes) {
        ssize_t n = move_some(io->node->data_fd, memory + done, bytes - done,
                              io->file_at + done, read);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            break;
        if (n > 0)
            done += (uint64_t)n;
    }
    return (int64_t)done;
}

/* Flip a bit of the middle byte: in memory after a read, in the file after a write. */
static int64_t
flip_byte(const struct io *io, bool read)
{
    uint64_t middle = (uint64_t)io->result / 2;
    uint8_t *memory = io->iov->base + io->buffer_at + middle;

    if (!io->result)
        return 0;
    if (read) {
        *memory ^= 0x10;
    } else {
        uint8_t other = *memory ^ 0x10;
        if (pwrite(io->node->data_fd, &other, 1, (off_t)(io->file_at + middle)) < 0)
            return -errno;
    }
    return io->result;
}

static void
run_io(const struct job *job, struct io *io)
{
    uint64_t bytes = io->bytes < io->at_most ? io->bytes : io->at_most;
    bool read = is_read(job);

    if (!io->fixed) {
        int64_t there = (int64_t)bytes;

        if (!read && opt.lazy_length)
            node_hide_growth(io->node);
        if (read && opt.holes)
            there = without_holes(io, bytes,
                                  ring_reg(job->ring)->key.flags & RING_FORBIDS_HOLES);
        io->result = there < 0 ? there : move(io, (uint64_t)there, read);
        if (io->corrupt && io->result > 0)
            io->result = flip_byte(io, read);
    }
    if (io->node)
        node_unuse(io->node);
    if (io->iov)
        reg_drop(io->iov);
    io->node = NULL;
    io->iov = NULL;
}

/* Return the time when the largest I/O of the job is due.  Each I/O has the full rate. */
static int64_t
due_ns(const struct job *job)
{
    uint64_t most = 0;

    for (size_t i = 0; i < job->n; i++)
        if (job->io[i].bytes > most)
            most = job->io[i].bytes;
    return job->taken_ns + (int64_t)((double)most * 1e9 / (double)opt.rate);
}

void
job_run(struct job *job)
{
    if (!job->prepared && !prepare(job))
        return;
    for (size_t i = 0; i < job->n; i++)
        run_io(job, &job->io[i]);
    job->moved = true;
    if (opt.rate)
        timers_add(job, due_ns(job));
    else
        job_finish(job);
}

/* After a job, a worker tries once to take the ring's next job. */
void
job_finish(struct job *job)
{
    struct ring *ring = job->ring;

    ring_complete(job);
    struct job *next = ring_take(ring);
    if (next)
        work_push(next);
    reg_drop(ring_reg(ring));
}
