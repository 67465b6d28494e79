/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the entries' state machine, explored whole: every interleaving of
 * two writers, a reader, an evicter and a recovery, where each writer may die
 * before each of its steps.
 *
 * A step is one access to shared memory, in the order in which entry.c, read.c
 * and sweep.c make them; tests of liveness are steps too.  What the model leaves
 * out: memory orders (each step is seen by all at once), the second group, the
 * bounds on retries, the limit, and the 128 bits of an identity, which are one
 * step.  An entry's other fields are two words, hash and bytes, which every
 * writer writes alike: if they differ, they are torn. */
#include "index-test.h"

enum { FREE, CLAIMED, READY, EVICTING, CLAIMING, FILLING };
enum { N_SLOTS = 2, N_OWNERS = 3, READER = 3, N_PROCS = 4, NONE = 9 };

enum pc {
    /* reserve */
    W_BEGIN, W_RESERVE, W_USE, W_DONE,
    /* look_round */
    L_WORD, L_ID, L_AGAIN, L_MEET, L_FREE,
    /* take_free, fill */
    T_LOOK, T_MOVE, F_LEASE, F_HASH, F_BYTES, F_ID, F_SHOW,
    /* confirm */
    C_BEGIN, C_MOVE, C_RESERVE, C_DONE, C_LOST,
    /* to_ready of a claim */
    P_BEGIN, P_READY, P_MOVE, P_DONE,
    /* lost against a rival, unreserve */
    X_FREE, U_BEGIN, U_USE, U_RESERVE, U_DONE,
    /* kvt__ix_find, the reader's and the evicter's */
    R_WORD, R_ID, R_HASH, R_BYTES, R_AGAIN,
    /* lease, unlease */
    RL_STORE, RL_CHECK, RL_UNDO, RL_END,
    /* evict */
    E_LOOK, E_BEGIN, E_MOVE, E_READY, E_DONE, E_LOST, E_LEASE,
    /* to_ready of an eviction, to_free */
    B_BEGIN, B_READY, B_MOVE, B_DONE, V_BEGIN, V_MOVE, V_USE, V_DONE,
    END, DEAD
};

enum recovery_pc {
    S_IDLE, S_QUIET_DONE, S_QUIET_BEGUN, S_USED, S_READY, S_WORD, S_BYTES,
    S_FREE, S_RESERVED, S_STILL, S_SET_USED, S_SET_READY, S_BURY, S_END
};

/* All of bytes, so that states compare as memory. */
struct state {
    struct slot {
        uint8_t seq, state, owner, id, hash, bytes, lease;
    } slot[N_SLOTS];
    struct owner {
        uint8_t used, reserved, begun, done;
    } owner[N_OWNERS];
    uint8_t used, ready, recount;
    struct proc {
        uint8_t pc, at, mine, seq, state, owner; /* the word it saw last */
        uint8_t my_seq, id, hash, bytes, rounds, leased;
    } proc[N_PROCS];
    struct recovery {
        uint8_t pc, live, i, quiet, first, used, ready, sum, n, done;
        uint8_t seq, state, owner, begun[N_OWNERS];
    } rec;
};

/* What a process stores, evicts or finds; id 0: it does nothing. */
struct scenario {
    const char *name;
    struct {
        uint8_t id, value;
    } proc[N_PROCS];
    uint8_t first_id; /* ready in slot 0 at the start, 0: none */
    uint8_t old_id;   /* was in the free slots once, 0: none */
    uint8_t n_deaths;
    bool one_must_win;
    bool at_once; /* a recovery is one step */
};

static const struct scenario *scenario;
static const char *broken;

static void
expect(bool ok, const char *what)
{
    if (!ok && !broken)
        broken = what;
}

static bool
lives(const struct state *s, unsigned owner)
{
    return s->proc[owner].pc != DEAD;
}

static bool
same_word(const struct slot *e, uint8_t seq, uint8_t state, uint8_t owner)
{
    return e->seq == seq && e->state == state && e->owner == owner;
}

static bool
move(struct slot *e, uint8_t seq, uint8_t state, uint8_t owner, uint8_t to,
     uint8_t by)
{
    if (!same_word(e, seq, state, owner))
        return false;
    e->seq++;
    e->state = to;
    e->owner = by;
    return true;
}

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
        e->id = scenario->proc[i].id;
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
    uint8_t value = scenario->proc[i].value;
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
        } else if (p->id != scenario->proc[i].id) {
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

/* ------------------------------------------------------------------ recovery */

static bool
may_recover(const struct state *s)
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

static void
step_recover(struct state *s)
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

/* --------------------------------------------------------------- exploration */

static struct {
    uint64_t *hashes; /* of the states seen; 0: none */
    size_t n, mask;
    struct state *todo;
    size_t n_todo, max_todo;
} space;

/* Make states equal that differ in what no step looks at. */
static void
forget(struct state *s)
{
    for (unsigned i = 0; i < N_PROCS; i++) {
        struct proc *p = &s->proc[i];
        if (p->pc < R_WORD || p->pc > R_AGAIN)
            p->id = p->hash = 0;
        if (i == READER && p->pc > R_AGAIN)
            p->bytes = 0;
        if (p->pc == R_WORD || p->pc == L_WORD || p->pc == T_LOOK
            || p->pc > E_LEASE || (p->pc >= F_LEASE && p->pc <= F_SHOW)
            || (p->pc >= C_BEGIN && p->pc <= U_DONE))
            p->seq = p->state = p->owner = 0;
        if (p->pc == R_WORD || p->pc == END)
            p->bytes = 0;
        if (p->pc == END)
            p->at = p->mine = p->my_seq = p->rounds = 0;
    }
}

static void
visit(struct state *s)
{
    const uint8_t *b = (const uint8_t *)s;
    uint64_t h = 0x243f6a8885a308d3u;

    forget(s);
    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ b[i]) * UINT64_C(0x100000001b3) ^ h >> 47;
    h = mix(h) | 1;
    size_t at = h >> 8 & space.mask;
    for (; space.hashes[at]; at = (at + 1) & space.mask)
        if (space.hashes[at] == h)
            return;
    space.hashes[at] = h;
    if (++space.n > space.mask / 4 * 3)
        broken = "more states than the table holds";
    if (space.n_todo == space.max_todo) {
        space.max_todo = 2 * space.max_todo + 1024;
        space.todo = realloc(space.todo, space.max_todo * sizeof *s);
        if (!space.todo)
            abort();
    }
    space.todo[space.n_todo++] = *s;
}

static void
step(struct state *s, unsigned i)
{
    uint8_t pc = s->proc[i].pc;

    if (pc >= L_WORD && pc <= L_FREE)
        step_look(s, &s->proc[i], scenario->proc[i].id);
    else if (pc >= T_LOOK && pc <= F_SHOW)
        step_take(s, i, scenario->proc[i].value);
    else if (pc <= U_DONE)
        step_store(s, i);
    else if (pc <= R_AGAIN)
        step_find(s, i);
    else if (pc <= RL_END)
        step_lease(s, &s->proc[i]);
    else
        step_evict(s, i);
}

static void
check(const struct state *s)
{
    const struct proc *reader = &s->proc[READER];

    for (unsigned i = 0; i < N_OWNERS; i++) {
        const struct proc *p = &s->proc[i];
        expect((p->pc != V_BEGIN && p->pc != V_MOVE) || !reader->leased
                   || p->at != reader->at || p->my_seq != reader->seq + 1,
               "a leased entry was evicted");
    }
    for (unsigned id = 1; id <= 2; id++) {
        unsigned n = 0;
        for (unsigned i = 0; i < N_SLOTS; i++)
            n += s->slot[i].id == id && s->slot[i].state != FREE
                 && s->slot[i].state != CLAIMING && s->slot[i].state != FILLING;
        expect(n <= 1, "an identity stands twice");
    }
}

/* Nobody can step any more: all lived or died, and what died is recovered. */
static void
check_end(const struct state *s, unsigned n_dead)
{
    unsigned used = 0, ready = 0, stored = 0;

    for (unsigned i = 0; i < N_SLOTS; i++) {
        const struct slot *e = &s->slot[i];
        expect(e->state == FREE || e->state == READY, "an entry is stuck");
        used += e->state == READY ? e->bytes : 0;
        ready += e->state == READY;
        stored += e->state == READY && e->id == 1;
        expect(e->state != READY || e->hash == e->bytes, "torn fields are ready");
    }
    for (unsigned i = 0; i < N_OWNERS; i++)
        expect(!s->owner[i].reserved, "a reservation is left");
    expect(s->used == used, "used_bytes does not add up");
    expect(s->ready == ready, "n_ready does not add up");
    expect(!scenario->one_must_win || n_dead || stored == 1,
           "no racing claim won");
}

static void
expand(const struct state *s)
{
    unsigned n_dead = 0, n_next = 0;
    struct state next;

    for (unsigned i = 0; i < N_OWNERS; i++)
        n_dead += s->proc[i].pc == DEAD;
    for (unsigned i = 0; i < N_PROCS; i++) {
        if (s->proc[i].pc >= END)
            continue;
        next = *s;
        step(&next, i);
        visit(&next);
        n_next++;
        if (i < N_OWNERS && n_dead < scenario->n_deaths) {
            next = *s;
            memset(&next.proc[i], 0, sizeof next.proc[i]);
            next.proc[i].pc = DEAD;
            visit(&next);
        }
    }
    if (may_recover(s)) {
        next = *s;
        do
            step_recover(&next);
        while (scenario->at_once && next.rec.pc != S_IDLE);
        visit(&next);
        n_next++;
    }
    check(s);
    if (!n_next)
        check_end(s, n_dead);
}

static void
explore(const struct scenario *which)
{
    struct state s;

    scenario = which;
    broken = NULL;
    memset(&s, 0, sizeof s);
    for (unsigned i = 0; i < N_PROCS; i++) {
        bool finds = i == READER || !which->proc[i].value;
        s.proc[i].mine = NONE;
        s.proc[i].pc = !which->proc[i].id ? END : finds ? R_WORD : W_BEGIN;
    }
    for (unsigned i = 0; i < N_OWNERS; i++)
        s.owner[i].used = 1;
    for (unsigned i = 0; i < N_SLOTS; i++)
        s.slot[i].id = which->old_id;
    if (which->first_id) {
        s.slot[0] = (struct slot){ 1, READY, 0, which->first_id, 5, 5, 0 };
        s.used = 5;
        s.ready = 1;
    }
    memset(&space, 0, sizeof space);
    space.mask = (1 << 23) - 1;
    space.hashes = calloc(space.mask + 1, sizeof *space.hashes);
    visit(&s);
    while (space.n_todo && !broken) {
        s = space.todo[--space.n_todo];
        expand(&s);
    }
    print_message("%s: %zu states\n", which->name, space.n);
    free(space.hashes);
    free(space.todo);
    if (broken)
        fail_msg("%s", broken);
}

/* Processes: two writers with an owner each, the evicter with one, the reader. */
static void
two_writers_of_one_identity(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "two writers that may die", .one_must_win = true,
        .proc = { { 1, 1 }, { 1, 2 } }, .n_deaths = 2 });
}

static void
evicter_and_writer_of_one_identity(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "a writer and an evicter that may die", .first_id = 1,
        .proc = { { 1, 1 }, { 0, 0 }, { 1, 0 } }, .n_deaths = 2 });
}

static void
reader_and_writer_of_one_identity(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "a reader and a writer that may die",
        .proc = { { 1, 1 }, { 0, 0 }, { 0, 0 }, { 1, 0 } }, .n_deaths = 1 });
}

static void
reader_while_a_place_changes_its_identity(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "a reader, an evicter, a writer of something else",
        .proc = { { 2, 1 }, { 0, 0 }, { 1, 0 }, { 1, 0 } }, .first_id = 1 });
}

/* An entry that is being filled still bears the identity of the one before it: a
 * rival for that must not push it out, for its owner goes on writing. */
static void
writers_over_places_with_an_old_identity(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "three writers of two identities", .old_id = 1,
        .proc = { { 1, 1 }, { 2, 2 }, { 2, 3 } } });
}

static void
all_of_them(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "two writers, an evicter, a reader",
        .proc = { { 1, 1 }, { 1, 2 }, { 1, 0 }, { 1, 0 } } });
}

static void
all_of_them_with_a_death(void **state)
{
    (void)state;
    explore(&(struct scenario){
        .name = "the same, one may die; a recovery is one step",
        .proc = { { 1, 1 }, { 1, 2 }, { 1, 0 }, { 1, 0 } }, .n_deaths = 1,
        .at_once = true });
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_writers_of_one_identity),
        cmocka_unit_test(evicter_and_writer_of_one_identity),
        cmocka_unit_test(reader_and_writer_of_one_identity),
        cmocka_unit_test(reader_while_a_place_changes_its_identity),
        cmocka_unit_test(writers_over_places_with_an_old_identity),
        cmocka_unit_test(all_of_them),
        cmocka_unit_test(all_of_them_with_a_death),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
