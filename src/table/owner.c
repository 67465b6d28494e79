/* SPDX-License-Identifier: Apache-2.0
 *
 * Owners: the writers of a table.  A living owner i locks byte TB_OWNER_BYTE + i of the file
 * `lock` (bytes.c); the lock ends with the process. */
#include <assert.h>
#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "table/private.h"

static uint64_t
new_incarnation(void)
{
    uint64_t v = 0;

    if (getrandom(&v, sizeof v, GRND_NONBLOCK) != sizeof v || !v)
        v = (uint64_t)getpid() << 32 ^ (uint64_t)kvt__now_ns();
    return v ? v : 1;
}

/* Write an owner's record (incarnation 0: free the record), and set the table's limit to the
 * smallest limit of all owners.  The caller holds the lock. */
static void
set_owner(struct tb_change *c, unsigned owner, uint64_t incarnation, uint64_t limit_bytes)
{
    struct kvt__table *t = c->table;
    uint64_t least = incarnation ? limit_bytes : 0;

    assert(owner < TB_N_OWNERS && !c->n);
    for (unsigned i = 0; i < TB_N_OWNERS; i++) {
        uint64_t limit = i != owner && TB_LOAD(&t->owners[i].incarnation)
            ? TB_LOAD(&t->owners[i].limit_bytes) : 0;

        if (limit && (!least || limit < least))
            least = limit;
    }
    tb_set64(c, &t->owners[owner].incarnation, incarnation);
    tb_set64(c, &t->owners[owner].limit_bytes, limit_bytes);
    tb_set64(c, &t->header->limit_bytes, least);
    kvt__tb_commit(c);
}

/* End the claims of a dead owner, or of this handle.  The caller holds the lock, so the number
 * cannot get a new owner meanwhile.  Returns the number of ended claims. */
static size_t
end_claims(struct tb_change *c, unsigned owner)
{
    size_t n = 0;

    for (uint32_t i = 0; i < TB_N_CLAIMS && tb_is_usable(c->table); i++)
        n += kvt__tb_end_dead_claim(c, owner, i);
    return n;
}

/* End the claims and reads of the last owner with this handle's number, if that owner has died, and
 * write the handle's record.  The caller holds the lock; kvt__tb_lock() has completed the
 * transaction of the last owner. */
static int
begin_life(struct kvt__table *t, uint64_t limit_bytes)
{
    struct tb_change c = { .table = t };

    if (TB_LOAD(&t->owners[t->owner].incarnation))
        kvt__table_set_reading(t, 0);
    (void)end_claims(&c, t->owner);
    if (!tb_is_usable(t))
        return -ESTALE;
    TB_STORE(&t->owners[t->owner].pid, (uint64_t)(uint32_t)getpid());
    set_owner(&c, t->owner, new_incarnation(), limit_bytes);
    return 0;
}

static int
take(struct kvt__table *t, uint64_t limit_bytes)
{
    pthread_mutex_lock(&t->mutex);
    int err = kvt__tb_lock(t, TB_OPEN_LOCK_WAIT_NS);
    if (!err) {
        err = begin_life(t, limit_bytes);
        kvt__tb_unlock(t);
    }
    pthread_mutex_unlock(&t->mutex);
    return err;
}

int
kvt__tb_acquire_owner(struct kvt__table *t, uint64_t limit_bytes)
{
    for (unsigned i = 0; i < TB_N_OWNERS; i++) {
        if (!kvt__tb_lock_owner(t, i))
            continue;
        t->owner = i;
        int err = take(t, limit_bytes);
        if (!err)
            return 0;
        t->owner = TB_N_OWNERS;
        kvt__tb_unlock_owner(t, i);
        return err == -ETIMEDOUT
            ? kvt__fail(ETIMEDOUT, "index: another process holds the lock for too long")
            : kvt__fail(ESTALE, "index: the table is corrupt");
    }
    return kvt__fail(EUSERS, "index: %u other processes already write to the table",
                     TB_N_OWNERS);
}

/* If the lock is not available, the owner's record stays, and the next search for dead owners ends
 * the claims. */
void
kvt__tb_release_owner(struct kvt__table *t)
{
    struct tb_change c;

    assert(tb_is_writer(t));
    t->lock_wait_ns = TB_LOCK_WAIT_NS; /* no thread of an engine waits for a close */
    if (!kvt__tb_begin(t, &c)) { /* also carries out queued ends of claims */
        (void)end_claims(&c, t->owner);
        set_owner(&c, t->owner, 0, 0);
        kvt__tb_end(&c);
    }
    kvt__tb_unlock_owner(t, t->owner);
    t->owner = TB_N_OWNERS;
}

/* ------------------------------------------------------------- dead owners */

/* Before this process has the lock, the number may get a new owner; the new owner has another
 * incarnation. */
size_t
kvt__tb_recover_owner(struct kvt__table *t, unsigned owner)
{
    uint64_t incarnation = owner < TB_N_OWNERS ? TB_LOAD(&t->owners[owner].incarnation) : 0;
    struct tb_change c;
    size_t n = 0;

    if (!incarnation || kvt__tb_owner_lives(t, owner) || kvt__tb_begin(t, &c))
        return 0;
    if (TB_LOAD(&t->owners[owner].incarnation) == incarnation) {
        n = end_claims(&c, owner);
        kvt__table_set_reading(t, 0);
        set_owner(&c, owner, 0, 0);
    }
    kvt__tb_end(&c);
    return n;
}

size_t
kvt__table_recover(struct kvt__table *t)
{
    size_t n = 0;

    for (unsigned i = 0; i < TB_N_OWNERS && tb_is_usable(t) && tb_is_writer(t); i++)
        n += kvt__tb_recover_owner(t, i);
    return n;
}

size_t
kvt__tb_recover_if_due(struct kvt__table *t)
{
    int64_t now = kvt__now_ns(), last = __atomic_load_n(&t->recovered_ns, __ATOMIC_RELAXED);

    if (now - last < KVT__NS_PER_S ||
        !__atomic_compare_exchange_n(&t->recovered_ns, &last, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return 0;
    return kvt__table_recover(t);
}
