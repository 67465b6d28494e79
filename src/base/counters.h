/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of atomic counters, owned by a handle.  counters.def defines all counters.  Any thread. */
#ifndef KVT_BASE_COUNTERS_H
#define KVT_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

enum kvt__counter {
#define KVT_COUNTER(name, kind, unit, text) KVT__N_##name,
#include "base/counters.def"
#undef KVT_COUNTER
    KVT__N_COUNTERS
};

struct kvt__counters {
    _Atomic uint64_t value[KVT__N_COUNTERS];
};

static inline void
kvt__count(struct kvt__counters *c, enum kvt__counter which, uint64_t n)
{
    atomic_fetch_add_explicit(&c->value[which], n, memory_order_relaxed);
}

/* Lower a gauge. */
static inline void
kvt__count_down(struct kvt__counters *c, enum kvt__counter which, uint64_t n)
{
    atomic_fetch_sub_explicit(&c->value[which], n, memory_order_relaxed);
}

static inline uint64_t
kvt__counter_value(const struct kvt__counters *c, enum kvt__counter which)
{
    return atomic_load_explicit(&c->value[which], memory_order_relaxed);
}

#endif
