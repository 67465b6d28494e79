/* SPDX-License-Identifier: Apache-2.0
 *
 * The rates of a table: measurements that the store shares with other processes. */
#include "table/private.h"

void
kvt__table_set_rates(struct kvt__table *t, const struct kvt__table_rates *rates)
{
    const uint64_t values[TB_N_RATES] = { rates->read, rates->write, rates->encode, rates->decode,
                                          rates->kept_permille, rates->choice };

    for (int i = 0; i < TB_N_RATES && tb_is_usable(t); i++)
        TB_STORE(&t->header->rates[i], values[i]);
}

struct kvt__table_rates
kvt__table_get_rates(const struct kvt__table *t)
{
    uint64_t values[TB_N_RATES] = { 0 };

    for (int i = 0; i < TB_N_RATES && tb_is_usable(t); i++)
        values[i] = TB_LOAD(&t->header->rates[i]);
    return (struct kvt__table_rates){ values[0], values[1], values[2], values[3], values[4],
                                      values[5] };
}
