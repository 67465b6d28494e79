/* SPDX-License-Identifier: Apache-2.0
 *
 * The model's processes: the steps of writers, reader and evicter. */
#include "model.h"

static bool
move_seen(struct state *s, struct proc *p, uint8_t to, uint8_t by)
{
    return move(&s->slot[p->at], p->seq, p->state, p->owner, to, by);
}

static void
see(struct proc *p, const struct slot *e)
{
    p->seq = e->seq;
    p->state = e->state;
    p->owner = e->owner;
}

/* ------------------------------------------------------------------- writers */

static void
look_from(struct proc *p, uint8_t at)
{
    p->at = at == p->mine ? at + 1 : at;
    p->pc = L_WORD;
    if (p->at >= N_SLOTS) {
        p->at = 0;
        p->pc = p->mine == NONE ? T_LOOK : C_BEGIN;
    }
}

static void
meet(const struct state *s, struct proc *p)
{
    if (p->state != READY
        && (!lives(s, p->owner)
            || (p->state == CLAIMING && p->mine != NONE && p->at > p->mine)))
        p->pc = L_FREE;
    else
        p->pc = p->mine == NONE ? U_BEGIN : X_FREE;
}

static void
step_look(struct state *s, struct proc *p, uint8_t id)
{
    struct slot *e = &s->slot[p->at];

    switch (p->pc) {
    case L_WORD:
        see(p, e);
        if (e->state == FREE || e->state == FILLING)
            look_from(p, p->at + 1);
        else
            p->pc = L_ID;
        break;
    case L_ID:
        if (e->id != id)
            look_from(p, p->at + 1);
        else
            p->pc = L_AGAIN;
        break;
    case L_AGAIN:
        p->pc = same_word(e, p->seq, p->state, p->owner) ? L_MEET : L_WORD;
        break;
    case L_MEET:
        meet(s, p);
        break;
    default: /* L_FREE */
        if (move_seen(s, p, FREE, 0))
            look_from(p, p->at + 1);
        else
            p->pc = L_WORD;
    }
}

/* The words of one's own claim are known, not looked at. */
static bool
move_mine(struct state *s, unsigned i, uint8_t from, uint8_t to)
{
    struct proc *p = &s->proc[i];
    bool ok = move(&s->slot[p->mine], p->my_seq, from, (uint8_t)i, to,
                   to == FREE || to == READY ? 0 : (uint8_t)i);

    p->my_seq += ok;
    return ok;
}

static void
step_take(struct state *s, unsigned i, uint8_t value)
{
    struct proc *p = &s->proc[i];
    struct slot *e = &s->slot[p->at];

    switch (p->pc) {
    case T_LOOK:
        see(p, e);
        if (e->state == FREE)
            p->pc = T_MOVE;
        else if (++p->at == N_SLOTS)
            p->pc = U_BEGIN;
        return;
    case T_MOVE:
        if (move_seen(s, p, FILLING, (uint8_t)i)) {
            p->mine = p->at;
            p->my_seq = e->seq;
            p->pc = F_LEASE;
        } else {
            p->at = 0;
            p->pc = T_LOOK;
        }
        return;
    case F_LEASE:
        e->lease = 0;
        break;
    case F_HASH:
        e->hash = value;
        break;
    case F_BYTES:
        e->bytes = value;
        break;
    case F_ID:
        e->id = model_scenario->proc[i].id;
        break;
    default: /* F_SHOW */
        move_mine(s, i, FILLING, CLAIMING);
        look_from(p, 0);
        return;
    }
    p->pc++;
}

static void
step_store(struct state *s, unsigned i)
{
    uint8_t value = model_scenario->proc[i].value;
    struct owner *o = &s->owner[i];
    struct proc *p = &s->proc[i];
    bool ok;

    switch (p->pc++) {
    case W_BEGIN: case C_BEGIN: case P_BEGIN: case U_BEGIN:
        o->begun++;
        break;
    case W_RESERVE:
        o->reserved += value;
        break;
    case W_USE:
        s->used += value;
        break;
    case W_DONE:
        o->done++;
        look_from(p, 0);
        break;
    case C_MOVE:
        if (!move_mine(s, i, CLAIMING, CLAIMED))
            p->pc = C_LOST;
        break;
    case C_LOST:
        o->done++;
        p->mine = NONE;
        look_from(p, 0);
        break;
    case C_RESERVE: case U_RESERVE:
        o->reserved -= value;
        break;
    case C_DONE:
        o->done++;
        p->pc = P_BEGIN;
        break;
    case P_READY:
        s->ready++;
        break;
    case P_MOVE:
        ok = move_mine(s, i, CLAIMED, READY);
        expect(ok, "a live owner's claim was taken from it");
        break;
    case X_FREE:
        move_mine(s, i, CLAIMING, FREE);
        break;
    case U_USE:
        s->used -= value;
        break;
    default: /* P_DONE, U_DONE */
        o->done++;
        p->pc = END;
    }
}

/* --------------------------------------------------------- reader and evicter */

static void
find_again(struct proc *p)
{
    p->at = 0;
    p->pc = p->rounds++ < 1 ? R_WORD : END;
}

static void
next_place(struct proc *p)
{
    p->pc = ++p->at < N_SLOTS ? R_WORD : END;
}

static void
step_find(struct state *s, unsigned i)
{
    struct proc *p = &s->proc[i];
    struct slot *e = &s->slot[p->at];

    switch (p->pc++) {
    case R_WORD:
        see(p, e);
        if (e->state != READY)
            next_place(p);
        break;
    case R_ID:
        p->id = e->id;
        break;
    case R_HASH:
        p->hash = e->hash;
        break;
    case R_BYTES:
        p->bytes = e->bytes;
        break;
    default: /* R_AGAIN */
        if (!same_word(e, p->seq, p->state, p->owner)) {
            p->pc = R_WORD;
        } else if (p->id != model_scenario->proc[i].id) {
            next_place(p);
        } else {
            expect(p->hash == p->bytes, "torn fields were valid");
            p->pc = i == READER ? RL_STORE : E_LOOK;
        }
    }
}

static void
step_lease(struct state *s, struct proc *p)
{
    struct slot *e = &s->slot[p->at];

    switch (p->pc) {
    case RL_STORE:
        e->lease++;
        p->pc = RL_CHECK;
        break;
    case RL_CHECK:
        p->leased = same_word(e, p->seq, p->state, p->owner);
        p->pc = p->leased ? RL_END : RL_UNDO;
        break;
    default: /* RL_UNDO, RL_END */
        if (e->lease)
            e->lease--;
        p->leased = 0;
        find_again(p);
    }
}

static void
step_evict(struct state *s, unsigned i)
{
    struct proc *p = &s->proc[i];
    struct slot *e = &s->slot[p->at];
    struct owner *o = &s->owner[i];
    bool ok;

    switch (p->pc++) {
    case E_LOOK:
        if (e->lease)
            p->pc = END;
        break;
    case E_BEGIN: case B_BEGIN: case V_BEGIN:
        o->begun++;
        break;
    case E_MOVE:
        if (!move_seen(s, p, EVICTING, (uint8_t)i)) {
            p->pc = E_LOST;
            break;
        }
        p->mine = p->at;
        p->my_seq = e->seq;
        break;
    case E_READY:
        s->ready--;
        break;
    case E_DONE:
        o->done++;
        p->pc = E_LEASE;
        break;
    case E_LOST:
        o->done++;
        find_again(p);
        break;
    case E_LEASE:
        p->pc = e->lease ? B_BEGIN : V_BEGIN;
        break;
    case B_READY:
        s->ready++;
        break;
    case B_MOVE: case V_MOVE:
        ok = move_mine(s, i, EVICTING, p->pc - 1 == B_MOVE ? READY : FREE);
        expect(ok, "a live owner's eviction was taken from it");
        break;
    case V_USE:
        s->used -= p->bytes;
        break;
    default: /* B_DONE, V_DONE */
        o->done++;
        p->mine = NONE;
        find_again(p);
    }
}

/* --------------------------------------------------------------------- steps */

void
model_step(struct state *s, unsigned i)
{
    uint8_t pc = s->proc[i].pc;

    if (pc >= L_WORD && pc <= L_FREE)
        step_look(s, &s->proc[i], model_scenario->proc[i].id);
    else if (pc >= T_LOOK && pc <= F_SHOW)
        step_take(s, i, model_scenario->proc[i].value);
    else if (pc <= U_DONE)
        step_store(s, i);
    else if (pc <= R_AGAIN)
        step_find(s, i);
    else if (pc <= RL_END)
        step_lease(s, &s->proc[i]);
    else
        step_evict(s, i);
}
