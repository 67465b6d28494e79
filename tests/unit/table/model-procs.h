/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of the model check.  A process is a coroutine that stops before each access to
 * shared memory (a step), and the checker chooses the process of the next step. */
#ifndef KVT_TABLE_MODEL_PROCS_H
#define KVT_TABLE_MODEL_PROCS_H

#include "table-test.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { MAX_PROCS = 3, MAX_CHOICES = 8192, STACK_BYTES = 256 << 10, N_NAMES = 4 };
enum { JUDGE = 9 }; /* owner number of the handle that checks */

enum deed { NOTHING, STORE, REPLACE, UNDO, EVICT, RESTORE, FORGET, SWAP, LEASE, HOLD, FIND,
            RECOVER };

struct scenario {
    struct {
        enum deed deed;
        unsigned n; /* number of the name */
    } proc[MAX_PROCS];
    unsigned ready;  /* names below this number are stored at the begin */
    unsigned max_preemptions, max_deaths;
    bool of_memory;
    bool splits;     /* the next claim splits the chain of the names */
};

static struct proc {
    struct kvt__table *t;
    ucontext_t context;
    char *stack;
    bool begun, ended, dead;
    bool sleeps;      /* the process sleeps until the word of the lock changes */
    uint32_t asleep;  /* the word of the lock when the process began to sleep */
    int result;
    uint64_t leased;  /* the word of the leased entry; 0: no lease */
    uint32_t entry;
    struct kvt__record seen; /* record of the name before the execution */
} procs[MAX_PROCS];

static const struct scenario *scenario;
static struct kvt__table *judge;
static uint64_t names[N_NAMES];
static ucontext_t explorer;
static int running = -1;

static struct {
    uint16_t taken, n;
} choices[MAX_CHOICES];
static size_t n_choices, at_choice;
static unsigned n_preemptions, n_deaths;

static unsigned
choose(unsigned n)
{
    if (at_choice == n_choices) {
        assert_true(n_choices < MAX_CHOICES);
        choices[n_choices].taken = 0;
        choices[n_choices++].n = (uint16_t)n;
    }
    assert_int_equal(choices[at_choice].n, n);
    return choices[at_choice++].taken;
}

/* Choose the next execution; false: all executions were run. */
static bool
advance(void)
{
    while (n_choices && choices[n_choices - 1].taken + 1 == choices[n_choices - 1].n)
        n_choices--;
    if (!n_choices)
        return false;
    choices[n_choices - 1].taken++;
    return true;
}

static void
pause_proc(void)
{
    swapcontext(&procs[running].context, &explorer);
}

void table_step(const void *at);

/* Return true if the order of accesses to p matters.  An access to the owners, the claims or the
 * redo record is no step: no process changes the incarnation or the claims of another process here,
 * and only the writer of a redo record reads the record, unless the writer dies. */
static bool
matters(const struct kvt__table *t, const char *p)
{
    const struct tb_header *h = t->header;

    return p < (const char *)h->redo || p >= (const char *)t->spaces ||
           (p >= (const char *)t->claims &&
            ((size_t)(p - (const char *)t->claims) / sizeof *t->claims) % TB_N_CLAIMS < 2);
}

void
table_step(const void *at)
{
    if (running >= 0 && at != &procs[running].t->header->use &&
        matters(procs[running].t, at))
        pause_proc();
}

static bool
is_dead(uint32_t owner)
{
    for (int i = 0; i < MAX_PROCS; i++)
        if (procs[i].t->owner == owner)
            return procs[i].dead;
    return owner != JUDGE;
}

bool __wrap_kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner);
long __wrap_syscall(long number, ...);

bool
__wrap_kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner)
{
    return owner == t->owner || !is_dead(owner);
}

static bool
wakes(const struct proc *p)
{
    uint32_t word = judge->header->lock;

    return word != p->asleep || is_dead((word & 0x1ff) - 1);
}

/* The only system calls of the table are sleeps on the lock. */
long
__wrap_syscall(long number, ...)
{
    assert_int_equal(number, SYS_futex);
    if (running < 0)
        return 0;
    struct proc *p = &procs[running];
    va_list args;
    va_start(args, number);
    (void)va_arg(args, uint32_t *);
    p->sleeps = va_arg(args, int) == FUTEX_WAIT;
    p->asleep = va_arg(args, uint32_t);
    va_end(args);
    pause_proc();
    p->sleeps = false;
    return 0;
}

#endif
