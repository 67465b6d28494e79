/* SPDX-License-Identifier: Apache-2.0
 *
 * Pins: the places that processes read.  A reader writes the pin and then reads the entry's word
 * again; a process that takes a place finds the entry FREE and then reads the pins.  All four
 * accesses are sequentially consistent, so at least one side sees the other.  A pin ends with the
 * process; the pins of a stopped process stay valid.
 *
 * A search for pins reads header->n_pins of each owner, and the bits of the few owners with
 * pins. */
#include <errno.h>

#include "tier/shared_cpu/memory.h"

/* Add `by` to the number of an owner's pins. */
static void
count(const struct sc_memory *m, unsigned owner, uint32_t by)
{
    SC_STEP(&m->header->n_pins[owner]);
    __atomic_fetch_add(&m->header->n_pins[owner], by, __ATOMIC_SEQ_CST);
}

/* Write the place to a free pin.  Returns the number of the pin; -EAGAIN: no pin is free. */
static int
take_pin(struct sc_pins *p, uint64_t place)
{
    for (unsigned i = 0; i < SC_N_PINS / 64; i++) {
        uint64_t used = SC_LOAD(&p->used[i]);

        while (~used) {
            unsigned bit = (unsigned)__builtin_ctzll(~used);

            if (!__atomic_compare_exchange_n(&p->used[i], &used, used | UINT64_C(1) << bit,
                                             false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                continue;
            SC_STORE(&p->place[64 * i + bit], place);
            return (int)(64 * i + bit);
        }
    }
    return -EAGAIN;
}

void
kvt__sc_unpin(const struct sc_memory *m, unsigned pin)
{
    unsigned owner = kvt__table_owner(m->table);
    uint64_t *used = &m->pins[owner].used[pin / 64];

    SC_STEP(used);
    __atomic_fetch_and(used, ~(UINT64_C(1) << pin % 64), __ATOMIC_SEQ_CST);
    count(m, owner, UINT32_MAX);
}

int
kvt__sc_pin(const struct sc_memory *m, uint32_t entry, uint64_t word)
{
    unsigned owner = kvt__table_owner(m->table);

    if (owner >= KVT__TABLE_OWNERS)
        return -EINVAL;
    count(m, owner, 1); /* first: n_pins is never below the number of set bits */
    int pin = take_pin(&m->pins[owner], SC_LOAD(&m->places[entry]));
    if (pin < 0)
        count(m, owner, UINT32_MAX);
    if (pin >= 0 && !kvt__table_is_unchanged(m->table, entry, word)) {
        kvt__sc_unpin(m, (unsigned)pin);
        return -ENOENT;
    }
    return pin;
}

void
kvt__sc_clear_owner(const struct sc_memory *m)
{
    unsigned owner = kvt__table_owner(m->table);

    if (owner >= KVT__TABLE_OWNERS)
        return;
    for (unsigned i = 0; i < SC_N_PINS / 64; i++)
        SC_STORE(&m->pins[owner].used[i], 0);
    SC_STORE(&m->header->n_pins[owner], 0);
    kvt__table_unlock_dead_word(m->table, &m->header->lock);
    kvt__table_unlock_dead_word(m->table, &m->header->growth);
}

/* Return the end of the last pinned place of one owner that overlaps units [first, first + n); 0:
 * the owner pins none of the units. */
static uint32_t
end_of(const struct sc_pins *p, uint32_t first, uint32_t n)
{
    uint32_t end = 0;

    for (unsigned i = 0; i < SC_N_PINS / 64; i++)
        for (uint64_t used = SC_LOAD(&p->used[i]); used; used &= used - 1) {
            uint64_t place = SC_LOAD(&p->place[64 * i + (unsigned)__builtin_ctzll(used)]);
            uint64_t last = (uint64_t)sc_first(place) + sc_n(place);

            if (sc_first(place) < (uint64_t)first + n && first < last && end < last)
                end = (uint32_t)last;
        }
    return end;
}

uint32_t
kvt__sc_pinned_end(const struct sc_memory *m, uint32_t first, uint32_t n)
{
    uint32_t end = 0;

    for (unsigned owner = 0; owner < KVT__TABLE_OWNERS; owner++) {
        uint32_t last = SC_LOAD(&m->header->n_pins[owner]) ? end_of(&m->pins[owner], first, n)
                                                           : 0;

        if (last > end && kvt__table_owner_lives(m->table, owner))
            end = last;
    }
    return end;
}
