/* SPDX-License-Identifier: Apache-2.0
 *
 * Pins: the entries that a process reads.  A reader writes the pin and then looks at the
 * entry's word again; an eviction makes the entry CLAIMED and then reads the pins.  Pins end
 * with the process; pins of a stopped process hold. */
#include <errno.h>

#include "share/private.h"

int
kvt__sh_pin(struct kvt__share *s, uint32_t entry)
{
    struct sh_pins *p = &s->pins[s->owner];

    for (unsigned i = 0; i < KVT__SHARE_PINS / 64; i++) {
        uint64_t used = SH_LOAD(&p->used[i]);

        while (~used) {
            unsigned bit = (unsigned)__builtin_ctzll(~used);

            if (SH_SWAP(&p->used[i], &used, used | UINT64_C(1) << bit)) {
                SH_STORE(&p->entry[64 * i + bit], entry);
                return (int)(64 * i + bit);
            }
        }
    }
    return -EAGAIN;
}

void
kvt__sh_unpin(struct kvt__share *s, unsigned pin)
{
    SH_STEP(&s->pins[s->owner].used[pin / 64]);
    __atomic_fetch_and(&s->pins[s->owner].used[pin / 64], ~(UINT64_C(1) << pin % 64),
                       __ATOMIC_SEQ_CST);
}

static bool
owner_pins(const struct sh_pins *p, uint32_t entry)
{
    for (unsigned i = 0; i < KVT__SHARE_PINS / 64; i++)
        for (uint64_t used = SH_LOAD(&p->used[i]); used; used &= used - 1)
            if (SH_LOAD(&p->entry[64 * i + (unsigned)__builtin_ctzll(used)]) == entry)
                return true;
    return false;
}

bool
kvt__sh_is_pinned(const struct kvt__share *s, uint32_t entry)
{
    for (unsigned owner = 0; owner < KVT__TABLE_OWNERS; owner++)
        if (owner_pins(&s->pins[owner], entry) &&
            kvt__table_owner_lives(s->table, owner))
            return true;
    return false;
}
