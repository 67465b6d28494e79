/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles: to open and close the table, and its owners' records.  Records are
 * taken, given back and buried only by the holder of the lock. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "index/table.h"

static uint64_t
incarnation(void)
{
    uint64_t v = 0;

    if (getrandom(&v, sizeof v, GRND_NONBLOCK) != sizeof v || !v)
        v = (uint64_t)getpid();
    return v;
}

static void
set_owner(struct kvt__index *ix, unsigned i)
{
    struct ix_owner *o = &ix->map->owners[i];

    IX_STORE(&o->reserved_bytes, 0);
    IX_STORE(&o->begun, 0);
    IX_STORE(&o->done, 0);
    IX_STORE(&o->limit_bytes, ix->limit_bytes);
    IX_STORE(&o->pid, (uint64_t)(uint32_t)getpid());
    IX_STORE(&o->incarnation, incarnation());
    ix->owner = (int)i;
}

/* What dead owners left is swept away before, so a free record has no entry. */
static int
take_owner(struct kvt__index *ix)
{
    for (unsigned i = 0; i < IX_N_OWNERS; i++) {
        if (!IX_LOAD(&ix->map->owners[i].incarnation)
            && kvt__ix_lock_owner(ix, i)) {
            set_owner(ix, i);
            return 0;
        }
    }
    return kvt__fail(EUSERS, "index: %u writers have it open", IX_N_OWNERS);
}

/* Put right what an earlier boot, dead owners or garbage left in a file. */
static void
settle(struct kvt__index *ix, bool writer)
{
    struct ix_header *h = &ix->map->header;
    uint64_t live = kvt__ix_live_owners(ix);
    bool dead = kvt__ix_any_dead(ix, live);
    uint8_t boot_id[16];

    kvt__ix_boot_id(boot_id);
    bool other_boot = memcmp(h->boot_id, boot_id, sizeof boot_id) != 0;
    /* A host that went down with the store open may have lost files. */
    if (other_boot && dead)
        ix_clear_scanned(h);
    if (other_boot || dead || IX_LOAD(&h->recount) || (writer && !live))
        kvt__ix_sweep(ix, live, other_boot);
    if (other_boot)
        memcpy(h->boot_id, boot_id, sizeof boot_id);
}

static int
open_shared(struct kvt__index *ix, const struct kvt__index_params *params)
{
    bool made;
    int rc = kvt__ix_lock_open(params->dirfd);

    if (rc < 0)
        return rc;
    ix->lock_fd = rc;
    rc = kvt__ix_lock(ix, IX_OPEN_WAIT_NS);
    if (rc)
        goto fail;
    rc = kvt__ix_map_file(ix, params, &made);
    if (rc)
        goto fail_locked;
    if (!made)
        settle(ix, params->writer);
    if (params->writer) {
        rc = take_owner(ix);
        if (rc)
            goto fail_mapped;
        kvt__ix_set_limit(ix);
    }
    kvt__ix_unlock(ix);
    return 0;
fail_mapped:
    kvt__ix_unmap(ix);
fail_locked:
    kvt__ix_unlock(ix);
fail:
    kvt__lock_file_close(ix->lock_fd);
    ix->lock_fd = -1;
    return rc;
}

static int
open_private(struct kvt__index *ix, const struct kvt__index_params *params)
{
    int rc = kvt__ix_map_private(ix, params);

    if (rc)
        return rc;
    if (params->writer) {
        set_owner(ix, 0);
        kvt__ix_set_limit(ix);
    }
    return 0;
}

static void
say_private(int dirfd)
{
    char link[64];
    char path[256];

    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n > 0)
        path[n] = '\0';
    else
        snprintf(path, sizeof path, "the store's directory");
    kvt__log(KVT_LOG_WARN,
             "%s: no shared index, other processes will not see what this one "
             "stores (%s)", path, kvt__why());
}

int
kvt__index_open(const struct kvt__index_params *params, struct kvt__index **out)
{
    struct kvt__index *ix = calloc(1, sizeof *ix);
    int rc = -1;

    *out = NULL;
    if (!ix)
        return kvt__fail(ENOMEM, "index: open");
    pthread_mutex_init(&ix->mutex, NULL);
    ix->generation = kvt__fork_watch();
    ix->lock_fd = -1;
    ix->owner = -1;
    ix->limit_bytes = params->limit_bytes;
    ix->policy = params->policy;
    if (params->dirfd >= 0) {
        rc = open_shared(ix, params);
        if (rc)
            say_private(params->dirfd);
    }
    if (rc)
        rc = open_private(ix, params);
    if (rc) {
        pthread_mutex_destroy(&ix->mutex);
        free(ix);
        return rc;
    }
    *out = ix;
    return 0;
}

/* This handle's claims and evictions end as those of a dead owner do, but their
 * bytes are known. */
static void
give_back(struct kvt__index *ix)
{
    struct ix_header *h = &ix->map->header;
    struct ix_owner *o = &ix->map->owners[ix->owner];
    uint64_t left = IX_LOAD(&ix->n_claims);

    for (uint64_t i = 0; left && i < ix->n_entries; i++) {
        struct ix_entry *e = &ix->map->entries[i];
        uint64_t word = IX_LOAD(&e->word);
        enum ix_state state = ix_word_state(word);

        if ((state != IX_CLAIMED && state != IX_EVICTING)
            || (int)ix_word_owner(word) != ix->owner)
            continue;
        uint64_t bytes = ix_packed_bytes(IX_LOAD(&e->packed));
        ix_clear_scanned(h); /* the file may exist */
        if (ix_move(e, word, ix_word_next(word, IX_FREE, 0)))
            ix_sub(&h->used_bytes, bytes);
    }
    ix_sub(&h->used_bytes, IX_LOAD(&o->reserved_bytes));
}

static void
drop_owner(struct kvt__index *ix)
{
    /* Without the lock the record stays, and the next to look finds it dead. */
    if (kvt__ix_lock(ix, IX_LOCK_WAIT_NS))
        return;
    ix_begin(ix);
    give_back(ix);
    ix_done(ix);
    kvt__ix_free_owner(ix, (unsigned)ix->owner);
    kvt__ix_set_limit(ix);
    kvt__ix_unlock(ix);
}

void
kvt__index_close(struct kvt__index *ix)
{
    if (!ix)
        return;
    /* A child of fork has neither the mapping nor the descriptor. */
    if (ix->generation == kvt__fork_generation_now()) {
        if (ix->owner >= 0)
            drop_owner(ix);
        kvt__ix_unmap(ix);
        kvt__lock_file_close(ix->lock_fd);
    }
    pthread_mutex_destroy(&ix->mutex);
    free(ix);
}

void
kvt__index_retire(struct kvt__index *ix)
{
    if (ix->lock_fd >= 0 && ix->owner >= 0 && ix->generation == kvt__fork_generation_now())
        kvt__ix_unlock_owner(ix, (unsigned)ix->owner);
}

bool
kvt__index_is_shared(const struct kvt__index *ix)
{
    return ix->lock_fd >= 0;
}

bool
kvt__index_has_writer(const struct kvt__index *ix)
{
    return ix_usable(ix) && kvt__ix_live_owners(ix) != 0;
}

bool
kvt__index_scanned(const struct kvt__index *ix)
{
    return ix_usable(ix) && IX_LOAD(&ix->map->header.scanned) & IX_SCANNED;
}

void
kvt__index_set_scanned(struct kvt__index *ix, bool scanned)
{
    if (!ix_usable(ix))
        return;
    if (scanned)
        kvt__index_end_scan(ix, kvt__index_begin_scan(ix));
    else
        ix_clear_scanned(&ix->map->header);
}

uint32_t
kvt__index_begin_scan(const struct kvt__index *ix)
{
    return ix_usable(ix) ? IX_LOAD(&ix->map->header.scanned) & ~IX_SCANNED : 0;
}

void
kvt__index_end_scan(struct kvt__index *ix, uint32_t began)
{
    if (ix_usable(ix))
        __atomic_compare_exchange_n(&ix->map->header.scanned, &began, began | IX_SCANNED,
                                    false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
