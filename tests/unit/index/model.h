/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of the entries' state machine is the code itself: entry.c and read.c are
 * compiled with a call before each access to shared memory, at which another process may
 * go on, or this process die.  A dead process's byte is not held any more. */
#ifndef KVT_INDEX_MODEL_H
#define KVT_INDEX_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct kvt__index;

void model_step(void);
void model_step_at(const void *at);
bool model_owner_lives(const struct kvt__index *ix, unsigned owner);

/* The lock of the file: a process that waits for the lock cannot run, and the lock of a
 * dead holder is free. */
int model_lock(struct kvt__index *ix, int64_t wait_ns);
void model_unlock(struct kvt__index *ix);

#endif
