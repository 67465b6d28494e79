/* SPDX-License-Identifier: Apache-2.0
 *
 * Included before each source of src/share for tests that act between two accesses to
 * shared memory: each access calls share_step() first. */
#ifndef KVT_SHARE_STEPS_H
#define KVT_SHARE_STEPS_H

void share_step(const void *at);

#define SH_STEP(p) share_step(p)

#endif
