/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of counters, for metrics and documentation. */
#include "base/counters.h"

#include "kvtier.h"

static const struct kvt_counter_info infos[] = {
#define KVT_COUNTER(name, kind, unit, text) \
    { #name, unit, text, KVT_COUNTER_##kind },
#include "base/counters.def"
#undef KVT_COUNTER
};

size_t
kvt_n_counters(void)
{
    return KVT__N_COUNTERS;
}

const struct kvt_counter_info *
kvt_counter(size_t i)
{
    return i < KVT__N_COUNTERS ? &infos[i] : NULL;
}
