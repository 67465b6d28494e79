/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated GPU's memory: ranges of host memory that count as device memory or as pinned.  If
 * the environment variable FAKE_GPU_GUARD is set, device memory is accessible only while the
 * simulated GPU works; another access ends with SIGSEGV, as with a real GPU. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

#define N_RANGES 4096

enum kind { NOTHING, DEVICE, PINNED, REGISTERED };

static struct range {
    char *at;
    size_t bytes;
    enum kind kind;
    int n_shown;
    bool shown;
} ranges[N_RANGES];
static size_t n_ranges; /* number of entries that were ever used */
static int n_all_shown;

/* Return the range that contains a byte, or NULL.  The caller holds core_lock. */
static struct range *
range_of(const void *at)
{
    for (size_t i = 0; i < n_ranges; i++)
        if (ranges[i].kind && (const char *)at >= ranges[i].at &&
            (const char *)at < ranges[i].at + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static size_t
range_bytes(const void *at)
{
    pthread_mutex_lock(&core_lock);
    const struct range *r = range_of(at);
    size_t bytes = r ? r->bytes : 0;
    pthread_mutex_unlock(&core_lock);
    return bytes;
}

static int
add_range(void *at, size_t bytes, enum kind kind)
{
    int error = OUT_OF_MEMORY;

    pthread_mutex_lock(&core_lock);
    for (size_t i = 0; error && i < N_RANGES; i++) {
        if (ranges[i].kind)
            continue;
        ranges[i] = (struct range){ at, bytes, kind, 0, true };
        n_ranges = i < n_ranges ? n_ranges : i + 1;
        error = 0;
    }
    pthread_mutex_unlock(&core_lock);
    return error;
}

static int
drop_range(void *at, enum kind kind)
{
    pthread_mutex_lock(&core_lock);
    struct range *r = range_of(at);
    bool is = r && r->at == at && r->kind == kind;
    if (is)
        r->kind = NOTHING;
    else
        core.n_misused++;
    pthread_mutex_unlock(&core_lock);
    return is ? 0 : INVALID_VALUE;
}

/* Bytes before each allocation: the alignment is then no better than a real driver's. */
#define AHEAD 512

static size_t
whole_bytes(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + AHEAD + page - 1) / page * page;
}

static bool
guarded(bool host)
{
    return !host && getenv("FAKE_GPU_GUARD");
}

/* Set the protection of a range's pages.  The caller holds core_lock. */
static void
protect(struct range *r)
{
    bool shown = n_all_shown || r->n_shown;

    if (r->shown != shown)
        mprotect(r->at - AHEAD, whole_bytes(r->bytes),
                 shown ? PROT_READ | PROT_WRITE : PROT_NONE);
    r->shown = shown;
}

static void
show(const void *at, int n)
{
    if (!guarded(false))
        return;
    pthread_mutex_lock(&core_lock);
    struct range *one = at ? range_of(at) : NULL;
    if (one && one->kind == DEVICE) {
        one->n_shown += n;
        protect(one);
    }
    n_all_shown += at ? 0 : n;
    for (size_t i = 0; !at && i < n_ranges; i++)
        if (ranges[i].kind == DEVICE)
            protect(&ranges[i]);
    pthread_mutex_unlock(&core_lock);
}

void
core_show(const void *at)
{
    show(at, 1);
}

void
core_hide(const void *at)
{
    show(at, -1);
}

int
core_alloc(void **at, size_t bytes, bool host)
{
    size_t whole = whole_bytes(bytes);
    char *memory = NULL;

    if (bytes && guarded(host))
        memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
    else if (bytes)
        memory = aligned_alloc(1024, (bytes + 2047) / 1024 * 1024);
    if (!memory || memory == MAP_FAILED)
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    memset(memory, 0xc3, AHEAD + bytes);
    *at = memory + AHEAD;
    core_count(&core.n_alive, 1);
    int error = add_range(*at, bytes, host ? PINNED : DEVICE);
    if (!host)
        show(*at, 0);
    return error;
}

int
core_free(void *at, bool host)
{
    size_t bytes = range_bytes(at);

    if (drop_range(at, host ? PINNED : DEVICE))
        return INVALID_VALUE;
    core_count(&core.n_alive, -1);
    if (guarded(host))
        munmap((char *)at - AHEAD, whole_bytes(bytes));
    else
        free((char *)at - AHEAD);
    return 0;
}

int
core_register(void *at, size_t bytes, unsigned flags)
{
    if (!at || !bytes)
        return INVALID_VALUE;
    pthread_mutex_lock(&core_lock);
    int error = range_of(at) ? ALREADY_REGISTERED : core.fails;
    if (!error) {
        core.n_registered++;
        core.at = at;
        core.bytes = bytes;
        core.flags = flags;
    }
    pthread_mutex_unlock(&core_lock);
    return error ? error : add_range(at, bytes, REGISTERED);
}

int
core_unregister(void *at)
{
    pthread_mutex_lock(&core_lock);
    struct range *r = range_of(at);
    bool is = r && r->at == at && r->kind == REGISTERED;
    if (is) {
        r->kind = NOTHING;
        core.n_registered--;
    }
    pthread_mutex_unlock(&core_lock);
    return is ? 0 : NOT_REGISTERED;
}

void
core_look(const void *at, size_t bytes)
{
    pthread_mutex_lock(&core_lock);
    const struct range *r = range_of(at);
    if (!r)
        core.n_pageable++;
    else if ((const char *)at + bytes > r->at + r->bytes)
        core.n_misused++;
    pthread_mutex_unlock(&core_lock);
}

/* ---------------------------------------------------------------- for tests */

void *
core_test_alloc(size_t bytes)
{
    void *at;

    return core_alloc(&at, bytes, false) ? NULL : at;
}

void *
core_test_pinned(size_t bytes)
{
    void *at;

    return core_alloc(&at, bytes, true) ? NULL : at;
}

void
core_test_free(void *at)
{
    if (at)
        core_free(at, false);
}

void
core_test_unpin(void *at)
{
    if (at)
        core_free(at, true);
}
