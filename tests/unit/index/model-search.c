/* SPDX-License-Identifier: Apache-2.0
 *
 * The search through all states of a scenario, and what must hold in each. */
#include "model.h"

const struct scenario *model_scenario;
const char *model_broken;

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
        model_broken = "more states than the table holds";
    if (space.n_todo == space.max_todo) {
        space.max_todo = 2 * space.max_todo + 1024;
        space.todo = realloc(space.todo, space.max_todo * sizeof *s);
        if (!space.todo)
            abort();
    }
    space.todo[space.n_todo++] = *s;
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
    expect(!model_scenario->one_must_win || n_dead || stored == 1,
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
        model_step(&next, i);
        visit(&next);
        n_next++;
        if (i < N_OWNERS && n_dead < model_scenario->n_deaths) {
            next = *s;
            memset(&next.proc[i], 0, sizeof next.proc[i]);
            next.proc[i].pc = DEAD;
            visit(&next);
        }
    }
    if (model_may_recover(s)) {
        next = *s;
        do
            model_recover(&next);
        while (model_scenario->at_once && next.rec.pc != S_IDLE);
        visit(&next);
        n_next++;
    }
    check(s);
    if (!n_next)
        check_end(s, n_dead);
}

void
model_explore(const struct scenario *which)
{
    struct state s;

    model_scenario = which;
    model_broken = NULL;
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
    while (space.n_todo && !model_broken) {
        s = space.todo[--space.n_todo];
        expand(&s);
    }
    print_message("%s: %zu states\n", which->name, space.n);
    free(space.hashes);
    free(space.todo);
    if (model_broken)
        fail_msg("%s", model_broken);
}
