/* SPDX-License-Identifier: Apache-2.0
 *
 * Owners: the writers of a table.  A living owner i holds a lock of byte i of the file
 * `lock` (alive.c); the lock ends with the process. */
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

static int
lock(struct kvt__table *t, int64_t wait_ns)
{
    pthread_mutex_lock(&t->mutex);
    int err = kvt__tb_lock(t, wait_ns);
    if (err)
        pthread_mutex_unlock(&t->mutex);
    return err;
}

static void
unlock(struct kvt__table *t)
{
    kvt__tb_unlock(t);
    pthread_mutex_unlock(&t->mutex);
}

/* The claims of an owner end one by one; each end compares the incarnation, because the number
 * can have a new owner. */
size_t
kvt__tb_end_claims(struct kvt__table *t, unsigned owner, uint64_t incarnation)
{
    struct tb_change c = { .table = t };
    size_t n = 0;

    for (uint32_t i = 0; i < TB_N_CLAIMS; i++) {
        const struct tb_claim *claim = &t->claims[(size_t)owner * TB_N_CLAIMS + i];

        if ((TB_LOAD(&claim->what) & 0xff) == TB_NO_CLAIM)
            continue;
        if (lock(t, TB_LOCK_WAIT_NS))
            break;
        bool is_same = TB_LOAD(&t->owners[owner].incarnation) == incarnation;
        n += is_same && tb_usable(t) && kvt__tb_end_dead(&c, owner, i);
        unlock(t);
        if (!is_same)
            break;
    }
    return n;
}

static bool
has_claims(const struct kvt__table *t, unsigned owner)
{
    for (uint32_t i = 0; i < TB_N_CLAIMS; i++)
        if ((TB_LOAD(&t->claims[(size_t)owner * TB_N_CLAIMS + i].what) & 0xff) != TB_NO_CLAIM)
            return true;
    return false;
}

/* Write an owner's record (incarnation 0: the owner ends), and the smallest limit of all owners
 * as the table's limit.  The caller holds the lock. */
static void
set_owner(struct tb_change *c, unsigned owner, uint64_t incarnation, uint64_t limit_bytes)
{
    struct kvt__table *t = c->table;
    uint64_t least = incarnation ? limit_bytes : 0;

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

/* Begin the life of an owner, whose number has no claims.  The caller holds the lock. */
static void
begin_life(struct tb_change *c, uint64_t limit_bytes)
{
    struct kvt__table *t = c->table;

    TB_STORE(&t->owners[t->owner].pid, (uint64_t)(uint32_t)getpid());
    memset(t->unused_claims, 0xff, sizeof t->unused_claims);
    set_owner(c, t->owner, new_incarnation(), limit_bytes);
}

/* End the life of an owner without claims, unless the number has a new owner. */
static void
end_life(struct kvt__table *t, unsigned owner, uint64_t incarnation)
{
    struct tb_change c = { .table = t };

    if (lock(t, TB_LOCK_WAIT_NS))
        return;
    if (TB_LOAD(&t->owners[owner].incarnation) == incarnation && !has_claims(t, owner))
        set_owner(&c, owner, 0, 0);
    unlock(t);
}

/* The first lock under the number takes over the lock of the dead owner and applies the redo
 * record. */
static int
take(struct kvt__table *t, uint64_t limit_bytes)
{
    struct tb_change c = { .table = t };
    int err = lock(t, TB_OPEN_LOCK_WAIT_NS);

    if (err)
        return err;
    unlock(t);
    (void)kvt__tb_end_claims(t, t->owner, TB_LOAD(&t->owners[t->owner].incarnation));
    err = lock(t, TB_OPEN_LOCK_WAIT_NS);
    if (err)
        return err;
    if (!tb_usable(t))
        err = -ESTALE;
    else if (has_claims(t, t->owner))
        err = -ETIMEDOUT;
    else
        begin_life(&c, limit_bytes);
    unlock(t);
    return err;
}

int
kvt__tb_take_owner(struct kvt__table *t, uint64_t limit_bytes)
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
            ? kvt__fail(ETIMEDOUT, "index: another process holds its lock for long")
            : kvt__fail(ESTALE, "index: it is corrupt");
    }
    return kvt__fail(EUSERS, "index: %u processes write to it", TB_N_OWNERS);
}

/* If the lock cannot be had, the record stays: the next search finds the owner dead. */
void
kvt__tb_leave_owner(struct kvt__table *t)
{
    uint64_t incarnation = TB_LOAD(&t->owners[t->owner].incarnation);
    struct tb_change c;

    t->lock_wait_ns = TB_LOCK_WAIT_NS; /* no thread of an engine waits for a close */
    if (!kvt__tb_begin(t, &c)) { /* carries out late ends of claims */
        kvt__tb_end(&c);
        (void)kvt__tb_end_claims(t, t->owner, incarnation);
        end_life(t, t->owner, incarnation);
    }
    kvt__tb_unlock_owner(t, t->owner);
    t->owner = TB_N_OWNERS;
}

/* ------------------------------------------------------------- dead owners */

size_t
kvt__tb_recover_owner(struct kvt__table *t, unsigned owner)
{
    uint64_t incarnation = owner < TB_N_OWNERS ? TB_LOAD(&t->owners[owner].incarnation) : 0;

    if (!incarnation || kvt__tb_owner_lives(t, owner) || lock(t, TB_LOCK_WAIT_NS))
        return 0;
    unlock(t); /* the redo record, which may begin a claim of the owner, is applied */
    size_t n = kvt__tb_end_claims(t, owner, incarnation);
    end_life(t, owner, incarnation);
    return n;
}

size_t
kvt__table_recover(struct kvt__table *t)
{
    size_t n = 0;

    for (unsigned i = 0; i < TB_N_OWNERS && tb_usable(t) && tb_is_writer(t); i++)
        n += kvt__tb_recover_owner(t, i);
    return n;
}

size_t
kvt__table_recover_next(struct kvt__table *t)
{
    unsigned owner = __atomic_fetch_add(&t->turn, 1, __ATOMIC_RELAXED) % TB_N_OWNERS;

    return tb_usable(t) && tb_is_writer(t) ? kvt__tb_recover_owner(t, owner) : 0;
}

size_t
kvt__tb_recover_rarely(struct kvt__table *t)
{
    int64_t now = kvt__now_ns(), looked = __atomic_load_n(&t->looked_ns, __ATOMIC_RELAXED);

    if (now - looked < KVT__NS_PER_S ||
        !__atomic_compare_exchange_n(&t->looked_ns, &looked, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return 0;
    return kvt__table_recover(t);
}
