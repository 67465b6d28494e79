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

/* The claims of an owner end one by one; each end compares the incarnation, because the number can have a new owner. */
size_t
kvt__tb_end_claims(struct kvt__table *t, unsigned owner, uint64_t incarnation)
{
    struct tb_change c = { .table = t };
    size_t n = 0;

    for (uint32_t i = 0; i < TB_N_CLAIMS; i++) {
        const struct tb_claim *claim = &t->claims[(size_t)owner * TB_N_CLAIMS + i];

        if ((TB_LOAD(&claim->what) & 0xff) == TB_NO_CLAIM)
            continue;
        pthread_mutex_lock(&t->mutex);
        int err = kvt__tb_lock(t, TB_LOCK_WAIT_NS);
        if (!err) {
            if (TB_LOAD(&t->owners[owner].incarnation) == incarnation)
                n += kvt__tb_end_dead(&c, owner, i);
            kvt__tb_unlock(t);
        }
        pthread_mutex_unlock(&t->mutex);
        if (err)
            break;
    }
    return n;
}

void
kvt__tb_set_limit(struct kvt__table *t)
{
    struct tb_change c = { .table = t };
    uint64_t least = 0;

    for (unsigned i = 0; i < TB_N_OWNERS; i++) {
        uint64_t limit = TB_LOAD(&t->owners[i].incarnation)
            ? TB_LOAD(&t->owners[i].limit_bytes) : 0;

        if (limit && (!least || limit < least))
            least = limit;
    }
    pthread_mutex_lock(&t->mutex);
    if (!kvt__tb_lock(t, TB_LOCK_WAIT_NS)) {
        tb_set64(&c, &t->header->limit_bytes, least);
        kvt__tb_commit(&c);
        kvt__tb_unlock(t);
    }
    pthread_mutex_unlock(&t->mutex);
}

/* The number of a dead owner is used again only after the lock, the redo record and the
 * claims of the dead owner are settled: the first lock under the number does the first
 * two. */
int
kvt__tb_take_owner(struct kvt__table *t, uint64_t limit_bytes)
{
    for (unsigned i = 0; i < TB_N_OWNERS; i++) {
        struct tb_owner *o = &t->owners[i];

        if (!kvt__tb_lock_owner(t, i))
            continue;
        t->owner = i;
        (void)kvt__tb_end_claims(t, i, TB_LOAD(&o->incarnation));
        TB_STORE(&o->limit_bytes, limit_bytes);
        TB_STORE(&o->pid, (uint64_t)(uint32_t)getpid());
        TB_STORE(&o->incarnation, new_incarnation());
        for (uint32_t n = 0; n < TB_N_CLAIMS; n++)
            t->free_claims[n] = (uint16_t)(TB_N_CLAIMS - 1 - n);
        t->n_free_claims = TB_N_CLAIMS;
        kvt__tb_set_limit(t);
        return 0;
    }
    t->owner = TB_N_OWNERS;
    return kvt__fail(EUSERS, "index: %u processes write to it", TB_N_OWNERS);
}

void
kvt__tb_leave_owner(struct kvt__table *t)
{
    struct tb_owner *o = &t->owners[t->owner];

    (void)kvt__tb_end_claims(t, t->owner, TB_LOAD(&o->incarnation));
    TB_STORE(&o->incarnation, 0);
    kvt__tb_set_limit(t);
    kvt__tb_unlock_owner(t, t->owner);
    t->owner = TB_N_OWNERS;
}

size_t
kvt__table_recover(struct kvt__table *t)
{
    size_t n = 0;

    if (!tb_usable(t) || !tb_is_writer(t))
        return 0;
    for (unsigned i = 0; i < TB_N_OWNERS; i++) {
        uint64_t incarnation = TB_LOAD(&t->owners[i].incarnation);

        if (incarnation && !kvt__tb_owner_lives(t, i)) {
            n += kvt__tb_end_claims(t, i, incarnation);
        }
    }
    return n;
}
