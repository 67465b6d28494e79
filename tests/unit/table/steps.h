/* SPDX-License-Identifier: Apache-2.0
 *
 * Included before each source of src/table for tests that stop the real code between two
 * accesses to shared memory: each access calls table_step() first. */
#ifndef KVT_TABLE_STEPS_H
#define KVT_TABLE_STEPS_H

void table_step(const void *at);

#define TB_STEP(p) table_step(p)
#define TB_SPINS 1

#endif
