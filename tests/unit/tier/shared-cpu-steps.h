/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiler includes this file before each source of src/tier/shared_cpu.  Each access to shared
 * memory then calls shared_cpu_step() first, so a test can stop the real code between two
 * accesses. */
#ifndef KVT_SHARED_CPU_STEPS_H
#define KVT_SHARED_CPU_STEPS_H

void shared_cpu_step(const void *at);

#define SC_STEP(p) shared_cpu_step(p)

#endif
