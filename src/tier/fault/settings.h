/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings of the fault tier: KEY=VALUE,KEY=VALUE in the URL, with the rate of each fault. */
#ifndef KVT_TIER_FAULT_SETTINGS_H
#define KVT_TIER_FAULT_SETTINGS_H

#include <stddef.h>

/* Key, largest value, default.  A key with the largest value 1 is the share of the operations that
 * get the fault, for example 0.01; delay and hang last delay_ms and hang_ms.  The reads of a
 * process together transfer at most read_mb_s MB in a second; 0: no limit.  `shared` is a flag: 1
 * makes the tier multi-host storage. */
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
    F(read_mb_s, 1000000, 0)        \
    F(shared, 1, 0)

enum kvt__fault {
#define F(key, max, fallback) KVT__FAULT_##key,
    KVT__FAULTS(F)
#undef F
    KVT__N_FAULTS
};

/* Parse the n bytes at text into value[].  name: the setting, for messages.  Returns 0, or
 * -EINVAL with a sentence that lists all keys, for an unknown key or a value out of range. */
int kvt__faults_parse(const char *name, const char *text, size_t n,
                      double value[KVT__N_FAULTS]);

#endif
