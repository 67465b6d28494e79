/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles: open and close. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "table/private.h"

struct kvt__table *
kvt__tb_new(const struct kvt__table_params *params)
{
    struct kvt__table *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    pthread_mutex_init(&t->mutex, NULL);
    t->generation = kvt__fork_watch();
    t->owner = TB_N_OWNERS;
    t->map_fd = t->lock_fd = t->v3_fd = -1;
    t->of_memory = params->of_memory;
    t->lock_wait_ns = params->of_memory && !params->area_version ? TB_MEMORY_LOCK_WAIT_NS
                                                                  : TB_LOCK_WAIT_NS;
    t->order = params->order;
    return t;
}

static void
free_handle(struct kvt__table *t)
{
    pthread_mutex_destroy(&t->mutex);
    free(t);
}

int
kvt__table_open_private(const struct kvt__table_params *params, struct kvt__table **out)
{
    struct kvt__table *t = kvt__tb_new(params);

    *out = NULL;
    if (!t)
        return kvt__fail(ENOMEM, "index: open");
    int err = kvt__tb_check_area(params);
    if (!err)
        err = kvt__tb_map(t, kvt__tb_max_entries(params), params->wide_hashes,
                          params->area_bytes);
    if (!err)
        err = kvt__tb_init(t, params, (const uint64_t[2]){ 0, 0 }, "");
    if (err) {
        kvt__tb_unmap(t);
        free_handle(t);
        return err;
    }
    if (params->writer)
        (void)kvt__tb_acquire_owner(t, params->limit_bytes); /* cannot fail: number 0 is free */
    *out = t;
    return 0;
}

/* ------------------------------------------------------------------- shared */

/* Hold a read lock of TB_V3_MAIN, so that no process with index version 3 becomes a writer of the
 * store.  0; -EBUSY with a sentence: such a process already writes to the store; other errors
 * with a sentence. */
static int
check_v3(const struct kvt__table *t)
{
    int err = kvt__tb_lock_byte_wait(t->lock_fd, F_RDLCK, TB_V3_MAIN);

    if (!err && kvt__tb_is_locked(t->lock_fd, 0, TB_V3_OWNERS))
        err = kvt__fail(EBUSY, "index: a process with an older kvtier uses the store; end the "
                        "process");
    return err;
}

#define TRIES 3 /* attempts: a corrupt table is replaced, and the open begins again */

/* Open the table and take an owner's number.  The caller holds TB_OPEN_BYTE. */
static int
open_locked(struct kvt__table *t, const struct kvt__table_params *params, int dirfd,
            const char *store)
{
    int err = -ESTALE;

    for (int i = 0; i < TRIES && err == -ESTALE; i++) {
        err = kvt__tb_open_location(t, params, dirfd, store);
        if (err)
            return err;
        if (params->writer)
            err = kvt__tb_acquire_owner(t, params->limit_bytes);
        if (err)
            kvt__tb_unmap(t);
    }
    return err;
}

static int
open_shared(struct kvt__table *t, const struct kvt__table_params *params, int dirfd,
            const char *store)
{
    int create = tb_only_existing(params) ? 0 : O_CREAT;
    int err = kvt__tb_check_area(params);

    if (err)
        return err;
    t->lock_fd = kvt__lock_file_open(dirfd, "lock", O_RDWR | create, 0600);
    if (t->lock_fd < 0)
        return kvt__fail(-t->lock_fd, "index: open the lock file");
    err = check_v3(t);
    if (!err)
        err = kvt__tb_lock_byte_wait(t->lock_fd, F_WRLCK, TB_OPEN_BYTE);
    if (!err) {
        err = open_locked(t, params, dirfd, store);
        kvt__tb_unlock_byte(t->lock_fd, TB_OPEN_BYTE);
    }
    return err;
}

/* Write the path of a directory; "" if the path is unknown or too long. */
static void
path_of(int dirfd, char out[TB_DIR_MAX])
{
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    ssize_t n = readlink(link, out, TB_DIR_MAX - 1);
    out[n > 0 && n < TB_DIR_MAX - 1 ? n : 0] = '\0';
}

int
kvt__table_open(const struct kvt__table_params *params, int dirfd, struct kvt__table **out)
{
    struct kvt__table *t = kvt__tb_new(params);
    char store[TB_DIR_MAX];

    *out = NULL;
    if (!t)
        return kvt__fail(ENOMEM, "index: open");
    path_of(dirfd, store);
    int err = open_shared(t, params, dirfd, store);
    if (!err) {
        kvt__tb_populate(t);
        (void)kvt__table_recover(t);
        *out = t;
        return 0;
    }
    if (params->area_version) {
        kvt__lock_file_close(t->lock_fd);
        free_handle(t);
        return err;
    }
    kvt__log(KVT_LOG_WARN, "%s: no shared index, so other processes do not find the chunks that "
             "this process stores (%s)", *store ? store : "the store's directory", kvt__why());
    int lock_fd = t->lock_fd;
    bool waits = err == -EBUSY;
    free_handle(t);
    err = kvt__table_open_private(params, out);
    if (waits && !err) {
        kvt__tb_unlock_byte(lock_fd, TB_V3_MAIN);
        (*out)->v3_fd = lock_fd;
    } else {
        kvt__lock_file_close(lock_fd);
    }
    return err;
}

void
kvt__table_close(struct kvt__table *t)
{
    if (!t)
        return;
    /* A forked child has neither the mapping nor the descriptors. */
    if (t->generation == kvt__fork_generation_now()) {
        if (tb_is_writer(t))
            kvt__tb_release_owner(t);
        kvt__tb_unmap(t);
        kvt__lock_file_close(t->lock_fd);
        kvt__lock_file_close(t->v3_fd);
    }
    free_handle(t);
}

void
kvt__table_retire(struct kvt__table *t)
{
    if (t->lock_fd >= 0 && tb_is_writer(t) && t->generation == kvt__fork_generation_now() &&
        TB_LOAD(&t->header->use) != TB_IN_USE)
        kvt__tb_unlock_owner(t, t->owner);
}

bool
kvt__table_is_shared(const struct kvt__table *t)
{
    return t->lock_fd >= 0;
}

unsigned
kvt__table_owner(const struct kvt__table *t)
{
    return t->owner;
}

bool
kvt__table_owner_lives(const struct kvt__table *t, unsigned owner)
{
    /* After the table was replaced, living processes have freed their numbers. */
    return owner < TB_N_OWNERS && (kvt__tb_owner_lives(t, owner) || !tb_is_usable(t));
}

bool
kvt__table_has_writer(const struct kvt__table *t)
{
    for (unsigned i = 0; i < TB_N_OWNERS && tb_is_usable(t); i++)
        if (TB_LOAD(&t->owners[i].incarnation) && kvt__tb_owner_lives(t, i))
            return true;
    return false;
}
