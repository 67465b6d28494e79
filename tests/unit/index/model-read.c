/* SPDX-License-Identifier: Apache-2.0
 *
 * The real read.c, of which each access to shared memory is a step of the model. */
#include "model.h"

#define IX_STEP() model_step()
#define kvt__ix_owner_lives model_owner_lives

#include "index/read.c"
