/* SPDX-License-Identifier: Apache-2.0
 *
 * The rates of a table: measurements, which the store shares with other processes. */
#include "table/private.h"

/* Another program may have written the index: larger values are no measurements. */
#define MOST_NS 1000000000000000
#define MOST_BYTES (1ULL << 40)

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

void
kvt__table_set_speed(struct kvt__table *t, const struct kvt__table_speed *speed)
{
    const uint64_t values[] = { speed->latency_ns, speed->bytes_per_s };

    for (int i = 0; i < 2 && tb_is_usable(t); i++)
        TB_STORE(&t->header->load[i], values[i]);
}

void
kvt__table_set_reading(struct kvt__table *t, int64_t since_ns)
{
    if (tb_is_usable(t))
        TB_STORE(&t->header->load[2], (uint64_t)since_ns);
}

struct kvt__table_speed
kvt__table_get_speed(const struct kvt__table *t)
{
    uint64_t values[TB_N_LOAD] = { 0 };

    for (int i = 0; i < TB_N_LOAD && tb_is_usable(t); i++)
        values[i] = TB_LOAD(&t->header->load[i]);
    if (values[0] > MOST_NS || values[1] > KVT__TABLE_MOST_BYTES_PER_S)
        values[0] = values[1] = 0;
    return (struct kvt__table_speed){ values[0], values[1], (int64_t)values[2] };
}

_Static_assert(sizeof(struct kvt__table_prefill) == TB_PREFILL_WORDS * 8, "prefill");

void
kvt__table_set_prefill(struct kvt__table *t, const struct kvt__table_prefill *prefill)
{
    uint64_t words[TB_PREFILL_WORDS];
    unsigned place = kvt__table_prefill_place(prefill->key);

    memcpy(words, prefill, sizeof words);
    for (int i = 0; i < TB_PREFILL_WORDS && tb_is_usable(t); i++)
        TB_STORE(&t->header->prefills[place][i], words[i]);
}

static bool
is_plausible(const struct kvt__table_prefill *p)
{
    /* false for NaN */
    return p->ns_per_token >= 0 && p->ns_per_position >= 0 &&
           p->ns_per_token + p->ns_per_position > 0 &&
           p->ns_per_token + p->ns_per_position <= MOST_NS && p->bytes_per_token <= MOST_BYTES;
}

struct kvt__table_prefill
kvt__table_get_prefill(const struct kvt__table *t, unsigned i)
{
    uint64_t words[TB_PREFILL_WORDS] = { 0 };
    struct kvt__table_prefill out;

    for (int k = 0; k < TB_PREFILL_WORDS && tb_is_usable(t); k++)
        words[k] = TB_LOAD(&t->header->prefills[i][k]);
    memcpy(&out, words, sizeof out);
    out.key = is_plausible(&out) ? out.key : 0;
    out.model[sizeof out.model - 1] = '\0';
    return out;
}
