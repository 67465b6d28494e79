/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiler includes this file before each source of src/table.  Each access to shared memory
 * then calls table_step() first, so a test can stop the real code between two accesses. */
#ifndef KVT_TABLE_STEPS_H
#define KVT_TABLE_STEPS_H

void table_step(const void *at);

#define TB_STEP(p) table_step(p)
#define TB_SPINS 1

#endif
