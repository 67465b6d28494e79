/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes of the fake libraries. */
#include "state.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MAX_MOVING 64
#define NO_CONTEXT 201 /* of CUDA; a lost GPU has one */

/* The memory of those that are under way. */
static struct range {
    const char *from, *end; /* NULL: a free place */
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

/* Take a place.  Memory that is read into is no other's. */
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

/* Wait for the others.  0, or an errno. */
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

/* 0, or what the library finds wrong by itself. */
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

/* One that began, and is to end. */
struct move {
    int code;   /* 0, or the errno that it fails with; then it has ended */
    bool fails; /* as the switches say */
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
