/* SPDX-License-Identifier: Apache-2.0
 *
 * The real space.c, of which each access to an entry or space that matters is a step of the
 * model: a search of all spaces and entries would be thousands of steps. */
#include "index/table.h"
#include "model.h"

#undef IX_LOAD
#undef IX_STORE
#undef IX_LOAD_SEQ
#undef IX_STORE_SEQ
#define IX_LOAD(p) (model_step_at(p), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define IX_STORE(p, v) (model_step_at(p), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define IX_LOAD_SEQ(p) (model_step_at(p), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define IX_STORE_SEQ(p, v) (model_step_at(p), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))

#define kvt__ix_lock model_lock
#define kvt__ix_unlock model_unlock

#include "index/space.c"
