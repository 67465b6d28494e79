/* SPDX-License-Identifier: Apache-2.0
 *
 * The model's recovery, and the recount in it. */
#include "model.h"

bool
model_may_recover(const struct state *s)
{
    bool any = s->recount;

    for (unsigned i = 0; i < N_OWNERS; i++)
        any |= s->owner[i].used && !lives(s, i);
    return any || s->rec.pc != S_IDLE;
}

/* Each owner in turn; true at the last. */
static bool
last_owner(struct recovery *r)
{
    r->i = (uint8_t)((r->i + 1) % N_OWNERS);
    return !r->i;
}

static void
begin_count(struct recovery *r)
{
    r->quiet = 1;
    r->i = r->sum = r->n = 0;
    r->pc = S_QUIET_DONE;
}

static void
next_slot(struct recovery *r)
{
    r->pc = S_WORD;
    if (++r->i == N_SLOTS) {
        r->i = 0;
        r->pc = S_RESERVED;
    }
}

static void
count_failed(struct recovery *r)
{
    r->i = 0;
    r->pc = r->first ? S_BURY : S_END;
}

static void
step_sum(struct state *s, struct recovery *r)
{
    struct slot *e = &s->slot[r->i];

    switch (r->pc) {
    case S_WORD:
        r->seq = e->seq;
        r->state = e->state;
        r->owner = e->owner;
        if (r->state == FREE)
            next_slot(r);
        else if (r->state != READY && !(r->live >> r->owner & 1))
            r->pc = S_FREE;
        else
            r->pc = S_BYTES;
        break;
    case S_BYTES:
        if (r->state != CLAIMING && r->state != FILLING)
            r->sum += e->bytes;
        if (r->state == READY)
            r->n++;
        next_slot(r);
        break;
    default: /* S_FREE */
        move(e, r->seq, r->state, r->owner, FREE, 0);
        next_slot(r);
    }
}

void
model_recover(struct state *s)
{
    struct recovery *r = &s->rec;
    struct owner *o = &s->owner[r->i];
    bool live = r->live >> r->i & 1;

    switch (r->pc) {
    case S_IDLE: /* the lock is taken: no owner can come */
        r->live = 0;
        for (unsigned i = 0; i < N_OWNERS; i++)
            r->live |= (uint8_t)(lives(s, i) << i);
        s->recount = 1;
        r->first = 1;
        begin_count(r);
        break;
    case S_QUIET_DONE:
        r->done = o->done;
        r->pc = S_QUIET_BEGUN;
        break;
    case S_QUIET_BEGUN:
        r->begun[r->i] = live ? o->begun : 0;
        r->quiet &= !live || o->begun == r->done;
        r->pc = last_owner(r) ? S_USED : S_QUIET_DONE;
        break;
    case S_USED:
        r->used = s->used;
        r->pc = S_READY;
        break;
    case S_READY:
        r->ready = s->ready;
        r->pc = S_WORD;
        break;
    case S_WORD: case S_BYTES: case S_FREE:
        step_sum(s, r);
        break;
    case S_RESERVED:
        if (live)
            r->sum += o->reserved;
        r->pc = last_owner(r) ? S_STILL : S_RESERVED;
        break;
    case S_STILL:
        r->quiet &= !live || o->begun == r->begun[r->i];
        if (last_owner(r))
            r->pc = S_SET_USED;
        if (r->pc == S_SET_USED && !r->quiet)
            count_failed(r);
        break;
    case S_SET_USED:
        r->pc = S_SET_READY;
        if (s->used == r->used)
            s->used = r->sum;
        else
            count_failed(r);
        break;
    case S_SET_READY:
        if (s->ready != r->ready) {
            count_failed(r);
            break;
        }
        s->ready = r->n;
        r->quiet = 2; /* good */
        r->pc = r->first ? S_BURY : S_END;
        break;
    case S_BURY:
        if (!live)
            memset(o, 0, sizeof *o);
        if (last_owner(r)) {
            r->first = 0;
            if (r->quiet == 2)
                r->pc = S_END;
            else
                begin_count(r);
        }
        break;
    default: /* S_END: the lock is released */
        if (r->quiet == 2)
            s->recount = 0;
        memset(r, 0, sizeof *r);
    }
}
