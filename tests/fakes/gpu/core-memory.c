/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine's memory: which of the host's counts as a GPU's, and which is pinned. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define N_RANGES 4096

enum kind { NOTHING, DEVICE, PINNED, REGISTERED };

static struct range {
    char *at;
    size_t bytes;
    enum kind kind;
} ranges[N_RANGES];

/* Under the lock: the range that holds the byte. */
static struct range *
range_of(const void *at)
{
    for (size_t i = 0; i < N_RANGES; i++)
        if (ranges[i].kind && (const char *)at >= ranges[i].at &&
            (const char *)at < ranges[i].at + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static int
add_range(void *at, size_t bytes, enum kind kind)
{
    int error = OUT_OF_MEMORY;

    pthread_mutex_lock(&core_lock);
    for (size_t i = 0; error && i < N_RANGES; i++) {
        if (ranges[i].kind)
            continue;
        ranges[i] = (struct range){ at, bytes, kind };
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

int
core_alloc(void **at, size_t bytes, bool host)
{
    /* Aligned no better than a driver promises. */
    char *whole = bytes ? aligned_alloc(1024, (bytes + 2047) / 1024 * 1024) : NULL;

    if (!whole)
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    *at = whole + 512;
    memset(whole, 0xc3, (bytes + 2047) / 1024 * 1024);
    core_count(&core.n_alive, 1);
    return add_range(*at, bytes, host ? PINNED : DEVICE);
}

int
core_free(void *at, bool host)
{
    if (drop_range(at, host ? PINNED : DEVICE))
        return INVALID_VALUE;
    core_count(&core.n_alive, -1);
    free((char *)at - 512);
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

/* Whether all of it lies in one range, or nowhere that is known. */
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
