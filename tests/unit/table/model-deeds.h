/* SPDX-License-Identifier: Apache-2.0
 *
 * The deeds of the processes of the model check.  A deed is one operation of the table and a check
 * of the result. */
#ifndef KVT_TABLE_MODEL_DEEDS_H
#define KVT_TABLE_MODEL_DEEDS_H

#include "model-procs.h"

/* Added to a number, gives the identity of the chunk that replaces the first chunk of the name. */
#define SECOND UINT64_C(1000000)

static int
claim_of(struct proc *p, unsigned n, uint64_t second, struct kvt__claim *c)
{
    struct kvt__name name = name_of(names[n]);
    struct kvt__record record = record_of_n(names[n] + second, 10 + n);

    return kvt__table_claim(p->t, &name, &record, TEXT, c);
}

static void
check_record(unsigned n, const struct kvt__record *r)
{
    struct kvt__name name = name_of(names[n]);
    struct kvt__id first = id_of(names[n]), second = id_of(names[n] + SECOND);

    if (r->hash.bits[0] != name.hash.bits[0] || r->bytes != 10 + n ||
        (!kvt__id_equal(&r->id, &first) && !kvt__id_equal(&r->id, &second)))
        fail_msg("a reader found another chunk or a torn entry");
}

static void
store_one(struct proc *p, unsigned n, uint64_t second, bool undo)
{
    struct kvt__claim c;

    p->result = claim_of(p, n, second, &c);
    if (p->result)
        return;
    if (undo)
        kvt__table_abort(p->t, &c);
    else if (!kvt__table_publish(p->t, &c))
        fail_msg("a claim was lost");
}

static void
check_no_lease(uint32_t entry)
{
    for (int i = 0; i < MAX_PROCS; i++)
        if (procs[i].leased && !procs[i].dead && procs[i].entry == entry)
            fail_msg("a leased entry was evicted");
}

static void
evict_one(struct proc *p, bool restore)
{
    struct kvt__claim c;

    p->result = kvt__table_evict(p->t, &p->seen, false, &c);
    if (p->result)
        return;
    check_no_lease(c.entry);
    if (restore)
        kvt__table_abort(p->t, &c);
    else
        kvt__table_evicted(p->t, &c);
}

/* Lease the chunk of a name, with either identity. */
static void
lease_one(struct proc *p, unsigned n)
{
    struct kvt__name name = name_of(names[n]);
    struct kvt__record r;

    if (!kvt__table_lease(p->t, &name, NULL, kvt__now_ns() + 3600 * KVT__NS_PER_S, &r))
        return;
    p->entry = r.entry;
    p->leased = r.word;
    if (!(r.flags & KVT__TABLE_UNREAD))
        check_record(n, &r);
    pause_proc();
    const struct tb_hot *e = &judge->hot[r.entry];
    uint64_t id[2];
    memcpy(id, r.id.b, sizeof id);
    if (!n_deaths && !tb_lease_holds(e->lease, kvt__now_ns()))
        fail_msg("a lease was ended by another");
    if (!n_deaths && (tb_state(e->word) == TB_FREE || e->id[1] != id[1]))
        fail_msg("a leased entry was evicted");
    p->leased = 0;
    kvt__table_unlease(p->t, &r.lease);
}

/* Hold the first chunk of the name. */
static void
hold_one(struct proc *p, unsigned n)
{
    struct kvt__name name = name_of(names[n]);
    struct kvt__id id = id_of(names[n]);

    kvt__table_protect(p->t, &name, &id, kvt__now_ns() + 3600 * KVT__NS_PER_S);
}

/* In a scenario without LEASE, only the first chunk of a name may have a lease, and only if a
 * process holds this name. */
static void
check_holds(void)
{
    for (unsigned n = 0; n < N_NAMES; n++) {
        struct kvt__name name = name_of(names[n]);
        struct kvt__id id = id_of(names[n]);
        struct kvt__record r;
        bool held = false;

        for (int i = 0; i < MAX_PROCS; i++) {
            if (scenario->proc[i].deed == LEASE)
                return;
            held |= scenario->proc[i].deed == HOLD && scenario->proc[i].n == n;
        }
        if (kvt__table_find(judge, &name, NULL, &r) &&
            !(held && kvt__id_equal(&r.id, &id)) &&
            tb_lease_holds(judge->hot[r.entry].lease, kvt__now_ns()))
            fail_msg("a late hold extended the lease of another chunk");
    }
}

static void
proc_main(void)
{
    struct proc *p = &procs[running];
    unsigned n = scenario->proc[running].n;
    struct kvt__name name = name_of(names[n]);
    struct kvt__record r;

    switch (scenario->proc[running].deed) {
    case STORE:
        store_one(p, n, 0, false);
        break;
    case REPLACE:
        store_one(p, n, SECOND, false);
        break;
    case UNDO:
        store_one(p, n, SECOND, true);
        break;
    case SWAP: /* the victim is chunk 0 */
        (void)kvt__table_forget(p->t, &procs[0].seen, false);
        store_one(p, n, 0, false);
        break;
    case EVICT:
        evict_one(p, false);
        break;
    case RESTORE:
        evict_one(p, true);
        break;
    case FORGET:
        p->result = kvt__table_forget(p->t, &p->seen, false);
        break;
    case LEASE:
        lease_one(p, n);
        break;
    case HOLD:
        hold_one(p, n);
        break;
    case RECOVER:
        (void)kvt__table_recover(p->t);
        break;
    default:
        if (kvt__table_find(p->t, &name, NULL, &r)) {
            if (!(r.flags & KVT__TABLE_UNREAD))
                check_record(n, &r);
        } else {
            p->result = -ENOENT;
        }
    }
    p->ended = true;
    swapcontext(&p->context, &explorer);
}

#endif
