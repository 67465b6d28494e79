/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock of transactions, and the locks of the area: a word that processes share.  Bits 0-8 of
 * the word: owner + 1 (0: unlocked), bit 9: a thread may sleep on the word, bits 10-31: number of
 * the acquisition.  If two processes take over a dead owner's lock, the number makes the later
 * take-over fail. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "table/private.h"

#define OWNER 0x1ffu
#define SLEEPER 0x200u
#define ACQUISITION 0x400u

#ifndef TB_SPINS
#define TB_SPINS 200
#endif
#define NAP_NS KVT__NS_PER_MS

#ifndef TB_FUTEX_WAIT
static void
futex_wait(uint32_t *word, uint32_t seen, int64_t ns)
{
    const struct timespec nap = { 0, ns };

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &nap, NULL, 0);
}

static void
futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
#define TB_FUTEX_WAIT futex_wait
#define TB_FUTEX_WAKE futex_wake
#endif

static inline void
relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Take the lock if the word is still `seen`.  sleeper: another thread may sleep on the word. */
static bool
take(const struct kvt__table *t, uint32_t *word, uint32_t seen, bool sleeper)
{
    uint32_t mine = (seen & ~(OWNER | SLEEPER)) + ACQUISITION;

    mine |= (t->owner + 1) | (sleeper ? SLEEPER : 0);
    return tb_swap(word, &seen, mine);
}

/* Wait a moment for a change of the word `seen`.  Returns the word. */
static uint32_t
spin(const uint32_t *word, uint32_t seen)
{
    for (int i = 0; i < TB_SPINS; i++) {
        uint32_t now = TB_LOAD(word);

        if (now != seen)
            return now;
        relax();
    }
    return seen;
}

/* Return true if the owner in the word is dead.  alone: no other thread of this process locks the
 * word, so this handle's own number in the word is from a dead process too. */
static bool
is_stale(const struct kvt__table *t, uint32_t word, bool alone)
{
    unsigned owner = (word & OWNER) - 1;

    if (owner == t->owner)
        return alone;
    return owner >= TB_N_OWNERS || !kvt__tb_owner_lives(t, owner);
}

/* Acquire the lock in the word.  The loop also ends after wait_ns while the word changes, because
 * other processes may take the lock in turn for a long time.  timed_out: the acquisition that an
 * earlier call has waited for in vain: the owner is a stopped process, or the word is garbage and
 * names a living process.  For this acquisition the call only tests if the owner is dead.  0;
 * -ETIMEDOUT. */
static int
acquire(const struct kvt__table *t, uint32_t *word, bool alone, int64_t wait_ns,
        uint32_t *timed_out)
{
    uint32_t seen = TB_LOAD(word), first = seen | SLEEPER;
    bool slept = false;
    int64_t end = 0;

    if (first == __atomic_load_n(timed_out, __ATOMIC_RELAXED))
        wait_ns = 1;

    for (;;) {
        bool is_free = !(seen & OWNER) || (alone && (seen & OWNER) - 1 == t->owner) ||
                       (slept && is_stale(t, seen, alone));

        if (is_free && take(t, word, seen, slept))
            return 0;
        int64_t now = kvt__now_ns();
        end = end ? end : now + wait_ns;
        if (now >= end) {
            /* If this acquisition has ended, the value does no harm. */
            __atomic_store_n(timed_out, first, __ATOMIC_RELAXED);
            return -ETIMEDOUT;
        }
        seen = spin(word, seen);
        if (!(seen & OWNER) ||
            (!(seen & SLEEPER) && !tb_swap(word, &seen, seen | SLEEPER)))
            continue;
        seen |= SLEEPER;
        TB_FUTEX_WAIT(word, seen, end - now < NAP_NS ? end - now : NAP_NS);
        slept = true;
        seen = TB_LOAD(word);
    }
}

/* Return true if the numbers of entries and heads are possible. */
static bool
has_sizes(const struct kvt__table *t)
{
    const struct tb_header *h = t->header;
    uint32_t n_made = TB_LOAD(&h->n_made), n_heads = TB_LOAD(&h->n_heads);

    return n_made <= t->max_entries && TB_LOAD(&h->n_fresh) <= n_made &&
           n_heads >= TB_MIN_HEADS && (n_heads == TB_MIN_HEADS || n_heads <= n_made);
}

int
kvt__tb_lock(struct kvt__table *t, int64_t wait_ns)
{
    /* alone is true, because the caller holds the mutex. */
    int err = acquire(t, &t->header->lock, true, wait_ns, &t->timed_out);

    if (err)
        return err;
    bool has_redo = !TB_LOAD(&t->header->n_redo) || kvt__tb_redo(t);
    if (has_redo && has_sizes(t))
        return 0;
    kvt__tb_mark_corrupt(t, has_redo ? "a size" : "the redo record");
    kvt__tb_unlock(t);
    return -ESTALE;
}

static void
release(uint32_t *word)
{
    uint32_t seen = TB_LOAD(word);

    while (!tb_swap(word, &seen, seen & ~(OWNER | SLEEPER)))
        ;
    if (seen & SLEEPER)
        TB_FUTEX_WAKE(word);
}

void
kvt__tb_unlock(struct kvt__table *t)
{
    release(&t->header->lock);
}

/* ------------------------------------------------------------ locks of the area */

int
kvt__table_lock_word(const struct kvt__table *t, uint32_t *word, int64_t wait_ns,
                     uint32_t *timed_out)
{
    return acquire(t, word, false, wait_ns, timed_out);
}

void
kvt__table_unlock_word(uint32_t *word)
{
    release(word);
}

void
kvt__table_unlock_dead_word(const struct kvt__table *t, uint32_t *word)
{
    if ((TB_LOAD(word) & OWNER) == t->owner + 1)
        release(word);
}
