/* SPDX-License-Identifier: Apache-2.0
 *
 * Included before each source of src/tier/shared_cpu for tests that stop the real code
 * between two accesses to shared memory: each access calls shared_cpu_step() first. */
#ifndef KVT_SHARED_CPU_STEPS_H
#define KVT_SHARED_CPU_STEPS_H

void shared_cpu_step(const void *at);

#define SC_STEP(p) shared_cpu_step(p)

#endif
