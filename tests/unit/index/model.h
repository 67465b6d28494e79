/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the entries' state machine, to be explored whole: every interleaving of
 * two writers, a reader, an evicter and a recovery, where each writer may die
 * before each of its steps.
 *
 * A step is one access to shared memory, in the order in which entry.c, read.c
 * and sweep.c make them; tests of liveness are steps too.  What the model leaves
 * out: memory orders (each step is seen by all at once), the second group, the
 * bounds on retries, the limit, and the 128 bits of an identity, which are one
 * step.  An entry's other fields are two words, hash and bytes, which every
 * writer writes alike: if they differ, they are torn. */
#ifndef KVT_INDEX_MODEL_H
#define KVT_INDEX_MODEL_H

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

/* What is explored, and the first thing that did not hold. */
extern const struct scenario *model_scenario;
extern const char *model_broken;

static inline void
expect(bool ok, const char *what)
{
    if (!ok && !model_broken)
        model_broken = what;
}

static inline bool
lives(const struct state *s, unsigned owner)
{
    return s->proc[owner].pc != DEAD;
}

static inline bool
same_word(const struct slot *e, uint8_t seq, uint8_t state, uint8_t owner)
{
    return e->seq == seq && e->state == state && e->owner == owner;
}

static inline bool
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

/* The next step of process i. */
void model_step(struct state *s, unsigned i);

/* The next step of the recovery, if one is due or under way. */
bool model_may_recover(const struct state *s);
void model_recover(struct state *s);

/* Visit every state that can come of the scenario; fails the test where one is
 * wrong. */
void model_explore(const struct scenario *scenario);

#endif
