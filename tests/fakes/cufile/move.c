/* SPDX-License-Identifier: Apache-2.0
 *
 * Read and Write of the fake libraries. */
#include "state.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MAX_MOVING 64
#define NO_CONTEXT 201 /* CUDA_ERROR_INVALID_CONTEXT; a lost GPU returns another error */

/* The memory of the transfers in flight. */
static struct range {
    const char *from, *end; /* NULL: a free entry */
    bool is_read;
} moving[MAX_MOVING];

#pragma GCC visibility push(default)
ssize_t NAME(Read)(void *handle, void *base, size_t bytes, off_t offset, off_t at);
ssize_t NAME(Write)(void *handle, const void *base, size_t bytes, off_t offset, off_t at);
#pragma GCC visibility pop

static ssize_t
fail(long with, bool negative)
{
    if (negative)
        return -with;
    errno = (int)with;
    return -1;
}

/* Take an entry for a transfer.  Count overlaps: no other transfer may use the memory of a Read. */
static struct range *
take_range_locked(const char *from, size_t bytes, bool is_read)
{
    struct range *place = NULL;

    for (struct range *r = moving; r < moving + MAX_MOVING; r++) {
        if (!r->from)
            place = r;
        else if (r->from < from + bytes && from < r->end && (is_read || r->is_read))
            state.n_overlaps++;
    }
    if (!place)
        abort();
    *place = (struct range){ from, from + bytes, is_read };
    return place;
}

/* Wait until the number of transfers of the switch `meet` have begun.  0, or an errno. */
static int
meet_locked(void)
{
    struct timespec until;
    int err = 0;

    pthread_cond_broadcast(&met);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    while (n_begun < traps.meet && !err)
        err = pthread_cond_timedwait(&met, &lock, &until);
    return err;
}

/* Check the arguments as the real libraries.  0, or a status code. */
static int
check_locked(const struct file *file, const void *base, size_t bytes, off_t at)
{
    int ignored;

    if (file < files || file >= files + MAX_FILES || !file->used) {
        state.n_dead++;
        state.count -= state.count > 0;
        return KVT__GDS_NOT_REGISTERED;
    }
    int place = find_buffer_locked(base);
    if (place >= 0 && (size_t)at + bytes > buffers[place].bytes)
        return 5017;
    if (state.context && state.context(&ignored, &ignored) == NO_CONTEXT) {
        state.n_bare++;
        return 5015;
    }
    return 0;
}

/* A transfer in flight. */
struct move {
    int code;   /* 0; else the errno or status code of a transfer that has failed at the begin */
    bool fails; /* the switches apply to this transfer */
    struct gds_fake_traps traps;
    struct range *range;
};

static void
end_locked(const struct move *move)
{
    state.in_flight--;
    move->range->from = NULL;
}

static void
begin_locked(struct move *move, const char *from, size_t bytes, bool is_read)
{
    state.n_moves++;
    move->fails = ++n_begun == traps.only || !traps.only;
    if (bytes > state.largest)
        state.largest = bytes;
    if (++state.in_flight > state.max_in_flight)
        state.max_in_flight = state.in_flight;
    move->range = take_range_locked(from, bytes, is_read);
    move->code = meet_locked();
    move->traps = traps;
    if (move->code)
        end_locked(move);
}

static struct move
begin(const struct file *file, const void *base, size_t bytes, off_t at, bool is_read)
{
    struct move move = { 0 };

    step();
    pthread_mutex_lock(&lock);
    move.code = check_locked(file, base, bytes, at);
    if (!move.code)
        begin_locked(&move, (const char *)base + at, bytes, is_read);
    pthread_mutex_unlock(&lock);
    long delay = move.traps.only && move.fails ? 0 : move.traps.delay;
    if (delay && !move.code)
        nanosleep(&(struct timespec){ delay / 1000, delay % 1000 * 1000000 }, NULL);
    return move;
}

static void
end(const struct move *move)
{
    step();
    pthread_mutex_lock(&lock);
    end_locked(move);
    pthread_mutex_unlock(&lock);
}

ssize_t
NAME(Read)(void *handle, void *base, size_t bytes, off_t offset, off_t at)
{
    struct move move = begin(handle, base, bytes, at, true);
    const struct gds_fake_traps *t = &move.traps;

    if (move.code)
        return fail(move.code, false);
    if (t->hang == 2)
        hang();
    ssize_t got = t->read && move.fails
                      ? fail(t->read, t->form)
                      : pread(((struct file *)handle)->fd, (char *)base + at,
                              t->shorter && move.fails ? bytes / 2 : bytes, offset);
    end(&move);
    return got;
}

ssize_t
NAME(Write)(void *handle, const void *base, size_t bytes, off_t offset, off_t at)
{
    struct move move = begin(handle, base, bytes, at, false);
    const struct gds_fake_traps *t = &move.traps;

    if (move.code)
        return fail(move.code, false);
    if (t->damage && move.fails && bytes)
        *((char *)(uintptr_t)base + at + bytes / 2) ^= 1;
    ssize_t got = t->write && move.fails
                      ? fail(t->write, t->form)
                      : pwrite(((struct file *)handle)->fd, (const char *)base + at, bytes,
                               offset);
    end(&move);
    return got;
}
