/* SPDX-License-Identifier: Apache-2.0
 *
 * Begin and end of transactions. */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "table/private.h"

int
kvt__tb_begin(struct kvt__table *t, struct tb_change *c)
{
    *c = (struct tb_change){ .table = t };
    if (!tb_usable(t))
        return -ESTALE;
    if (!tb_is_writer(t))
        return -EINVAL;
    pthread_mutex_lock(&t->mutex);
    kvt__tb_populate(t); /* another process may have grown the table */
    int err = kvt__tb_lock(t, t->lock_wait_ns);
    if (err) {
        pthread_mutex_unlock(&t->mutex);
        return err == -ETIMEDOUT
            ? kvt__fail(ETIMEDOUT, "index: another process holds its lock for long") : err;
    }
    kvt__tb_end_late(c);
    return 0;
}

void
kvt__tb_end(struct tb_change *c)
{
    assert(!c->n);
    kvt__tb_unlock(c->table);
    pthread_mutex_unlock(&c->table->mutex);
}
