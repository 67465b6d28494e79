/* SPDX-License-Identifier: Apache-2.0
 *
 * Open and close.  An opener holds SH_OPEN_BYTE of `users`; every handle holds a read lock
 * of SH_USER_BYTE, so an opener that gets the write lock is alone. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "share/private.h"

#define WAIT_NS (60 * KVT__NS_PER_S)
#define TRIES 3 /* memories that are replaced */

static struct kvt__share *
new_handle(const struct kvt__share_params *params)
{
    struct kvt__share *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    pthread_mutex_init(&s->growth, NULL);
    s->generation = kvt__fork_watch();
    s->owner = KVT__TABLE_OWNERS;
    s->dir_fd = s->payload_dir_fd = s->records_fd = s->payload_fd = s->lock_fd = -1;
    s->key = params->key ? params->key : "shared_cpu";
    s->dir = params->dir ? params->dir : "/dev/shm";
    s->keep_bytes = params->keep_bytes;
    s->huge_pages = params->huge_pages;
    return s;
}

void
kvt__share_close(struct kvt__share *s)
{
    if (!s)
        return;
    bool is_open = sh_usable(s); /* a forked child has neither mappings nor descriptors */
    if (is_open && s->header && s->owner < KVT__TABLE_OWNERS)
        SH_STORE(&s->header->used_ns, (uint64_t)kvt__wall_ns());
    kvt__table_close(s->table);
    if (is_open)
        kvt__sh_unmap(s);
    kvt__lock_file_close(s->lock_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    if (s->payload_dir_fd >= 0)
        close(s->payload_dir_fd);
    pthread_mutex_destroy(&s->growth);
    free(s);
}

static int
lock_open(const struct kvt__share *s)
{
    static const struct timespec pause = { 0, 2 * KVT__NS_PER_MS };
    int64_t end = kvt__now_ns() + WAIT_NS;
    int err;

    while ((err = kvt__sh_lock(s, F_WRLCK, SH_OPEN_BYTE)) == -EAGAIN && kvt__now_ns() < end)
        nanosleep(&pause, NULL);
    return err ? kvt__fail(-err, "shared memory: lock its lock file") : 0;
}

/* ----------------------------------------------------------------- the table */

static int
open_table(struct kvt__share *s, const struct kvt__share_params *params)
{
    uint64_t max = params->limit_bytes / SH_PAGE;
    struct kvt__table_params of_table = { .max_entries = max ? max : 1, .of_memory = true,
                                          .writer = params->writer, .order = params->order,
                                          .shm = s->dir };
    int err = kvt__table_open(&of_table, s->dir_fd, &s->table);

    if (err)
        return err;
    s->owner = kvt__table_owner(s->table);
    if (kvt__table_is_shared(s->table) &&
        (s->owner < KVT__TABLE_OWNERS || !params->writer))
        return 0;
    return kvt__fail(EUSERS, "%s: the index of shared memory could not be opened (%s)", s->key,
                     kvt__why());
}

static bool
has_entries(const struct kvt__share *s)
{
    struct kvt__table_totals totals;

    kvt__table_get_totals(s->table, &totals);
    return totals.n_entries;
}

/* Close the table, which the next open replaces.  Users of the table notice that `lock` is
 * deleted. */
static void
replace_table(struct kvt__share *s)
{
    kvt__sh_unmap(s);
    kvt__table_close(s->table);
    s->table = NULL;
    unlinkat(s->dir_fd, "lock", 0);
}

/* Map the files of the table.  alone: no other handle has the table open.  -ERESTART: the
 * table must be replaced. */
static int
map(struct kvt__share *s, const struct kvt__share_params *params, bool alone)
{
    int err = kvt__sh_map(s);

    if (!params->writer)
        return err == -ENOENT || err == -EXDEV
            ? kvt__fail(ENOENT, "%s: there is no shared memory", s->key) : err;
    if (err == -EXDEV && !alone)
        return kvt__fail(EINVAL, "%s: processes with other settings for huge pages use the "
                         "shared memory; their settings must be equal.", s->key);
    if (!err && s->limit_bytes != params->limit_bytes && !alone)
        kvt__log(KVT_LOG_WARN, "%s: shared memory keeps its limit of %" PRIu64 " MiB while "
                 "other processes use the memory", s->key, s->limit_bytes >> 20);
    if (!err && s->limit_bytes != params->limit_bytes && alone)
        return -ERESTART;
    if (err != -ENOENT && err != -EXDEV)
        return err;
    return alone && !has_entries(s) ? kvt__sh_make(s, params) : -ERESTART;
}

/* Pins and drains of an earlier owner of the number end; slots that killed processes left
 * are free. */
static void
settle(struct kvt__share *s)
{
    memset(&s->pins[s->owner], 0, sizeof *s->pins);
    for (uint32_t i = 0; i < s->n_segments; i++)
        kvt__sh_end_drain(s, i);
    kvt__sh_sweep(s, UINT32_MAX);
}

static void
expire(struct kvt__share *s, int64_t ttl_ns)
{
    int64_t age = kvt__wall_ns() - (int64_t)SH_LOAD(&s->header->used_ns);

    if (ttl_ns > 0 && age > ttl_ns)
        kvt__sh_empty(s, true);
}

static int
open_locked(struct kvt__share *s, const struct kvt__share_params *params)
{
    bool alone = !kvt__sh_lock(s, F_WRLCK, SH_USER_BYTE);
    int err = -ERESTART;

    if (!params->writer && faccessat(s->dir_fd, "table", F_OK, 0))
        return kvt__fail(ENOENT, "%s: there is no shared memory", s->key);
    for (int i = 0; i < TRIES && err == -ERESTART; i++) {
        err = open_table(s, params);
        if (!err)
            err = map(s, params, alone || i); /* no other process has the new table */
        if (err == -ERESTART)
            replace_table(s);
    }
    if (err == -ERESTART)
        return kvt__fail(EIO, "%s: the shared memory cannot be replaced", s->key);
    if (err || !params->writer)
        return err;
    settle(s);
    if (alone)
        expire(s, params->ttl_ns);
    SH_STORE(&s->header->used_ns, (uint64_t)kvt__wall_ns());
    kvt__sh_remove_others(s);
    return 0;
}

int
kvt__share_open(const struct kvt__share_params *params, struct kvt__share **out)
{
    struct kvt__share *s = new_handle(params);

    *out = NULL;
    if (!s)
        return kvt__fail(ENOMEM, "shared memory: open");
    int err = kvt__sh_open_dirs(s, params);
    if (!err)
        err = kvt__sh_check_dirs(s);
    if (!err)
        err = lock_open(s);
    if (!err) {
        err = open_locked(s, params);
        if (!err)
            err = kvt__sh_lock(s, F_RDLCK, SH_USER_BYTE);
        (void)kvt__sh_lock(s, F_UNLCK, SH_OPEN_BYTE);
    }
    if (err) {
        kvt__share_close(s);
        return err;
    }
    *out = s;
    return 0;
}

bool
kvt__share_is_current(struct kvt__share *s)
{
    return sh_usable(s) && kvt__table_is_current(s->table);
}

/* -------------------------------------------------------------------- clear */

static uint64_t
n_chunks(const struct kvt__share *s)
{
    struct kvt__table_totals totals;

    kvt__table_get_totals(s->table, &totals);
    return totals.n_entries;
}

int64_t
kvt__share_clear(struct kvt__share *s)
{
    if (!sh_usable(s))
        return -ESTALE;
    if (s->owner >= KVT__TABLE_OWNERS)
        return -EINVAL;
    bool opens = !kvt__sh_lock(s, F_WRLCK, SH_OPEN_BYTE);
    bool alone = opens && !kvt__sh_lock(s, F_WRLCK, SH_USER_BYTE);
    kvt__sh_empty(s, alone);
    if (alone)
        (void)kvt__sh_lock(s, F_RDLCK, SH_USER_BYTE);
    if (opens)
        (void)kvt__sh_lock(s, F_UNLCK, SH_OPEN_BYTE);
    return (int64_t)n_chunks(s);
}
