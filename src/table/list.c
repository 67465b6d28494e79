/* SPDX-License-Identifier: Apache-2.0
 *
 * Listing: one process, the lister, enters the names that the store's directory contains.  Other
 * processes do not wait for the lister.  The lister locks TB_LIST_BYTE of `lock`; if the lister
 * dies, another process lists. */
#include <errno.h>
#include <fcntl.h>

#include "table/private.h"

bool
kvt__table_is_listed(const struct kvt__table *t)
{
    return tb_is_usable(t) &&
           TB_LOAD(&t->header->listed) == TB_LOAD(&t->header->n_listing_requests) + 1;
}

void
kvt__table_request_listing(struct kvt__table *t)
{
    if (tb_is_usable(t))
        __atomic_fetch_add(&t->header->n_listing_requests, 1, __ATOMIC_SEQ_CST);
}

static void
end(struct kvt__table *t)
{
    if (t->is_listing && t->lock_fd >= 0)
        kvt__tb_unlock_byte(t->lock_fd, TB_LIST_BYTE);
    t->is_listing = false;
}

/* kvt__table_is_listed() is tested while the byte is locked, because another process may have
 * ended a listing just before. */
int
kvt__table_begin_list(struct kvt__table *t)
{
    int err = 0;

    if (!tb_is_usable(t))
        return -ESTALE;
    if (!tb_is_writer(t))
        return -EINVAL;
    pthread_mutex_lock(&t->mutex);
    if (t->is_listing ||
        (t->lock_fd >= 0 && kvt__tb_lock_byte(t->lock_fd, F_WRLCK, TB_LIST_BYTE)))
        err = -EBUSY;
    if (!err) {
        t->is_listing = true;
        t->n_listing_requests = TB_LOAD(&t->header->n_listing_requests);
    }
    if (!err && kvt__table_is_listed(t)) {
        end(t);
        err = -EALREADY;
    }
    pthread_mutex_unlock(&t->mutex);
    return err;
}

void
kvt__table_end_list(struct kvt__table *t, bool whole)
{
    if (kvt__fork_generation_now() != t->generation)
        return;
    pthread_mutex_lock(&t->mutex);
    if (t->is_listing && whole && tb_is_usable(t))
        TB_STORE(&t->header->listed, t->n_listing_requests + 1);
    end(t);
    pthread_mutex_unlock(&t->mutex);
}
