/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong how often: KEY=VALUE,KEY=VALUE as a fault URL has it. */
#ifndef KVT_TIER_FAULT_SETTINGS_H
#define KVT_TIER_FAULT_SETTINGS_H

#include <stddef.h>

/* key, largest value, default.  Those up to 1 are rates of operations; but shared: 1 to
 * count as storage of other hosts. */
#define KVT__FAULTS(F)              \
    F(seed, 4294967295.0, 0)        \
    F(read_error, 1, 0)             \
    F(write_error, 1, 0)            \
    F(probe_error, 1, 0)            \
    F(remove_error, 1, 0)           \
    F(short_read, 1, 0)             \
    F(bit_flip, 1, 0)               \
    F(write_corrupt, 1, 0)          \
    F(enospc, 1, 0)                 \
    F(delay, 1, 1)                  \
    F(delay_ms, 3600000, 0)         \
    F(hang, 1, 0)                   \
    F(hang_ms, 3600000, 60000)      \
    F(shared, 1, 0)

enum kvt__fault {
#define F(key, max, fallback) KVT__FAULT_##key,
    KVT__FAULTS(F)
#undef F
    KVT__N_FAULTS
};

/* Read the n bytes at text into value[].  name: for messages.  -EINVAL: a key
 * that is none, or a value out of its range; the sentence lists all keys. */
int kvt__faults_parse(const char *name, const char *text, size_t n,
                      double value[KVT__N_FAULTS]);

#endif
