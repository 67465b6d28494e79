/* SPDX-License-Identifier: Apache-2.0
 *
 * load_policy: faster: the part of a hit whose load is faster than the computation. */
#ifndef KVT_ENGINE_WORTH_H
#define KVT_ENGINE_WORTH_H

#include "conf/conf.h"
#include "engine/seq.h"

/* Initialise engine->worth. */
void kvt__worth_init(struct kvt_engine *engine, const struct kvt_config *config);

/* Return the number of leading chunks, up to promise.n, that the hit should have.  If the hit
 * should be shorter, set n_skipped and is_stalled of the promise, and sometimes trial.  The hit
 * is leased. */
size_t kvt__n_worth(struct kvt_seq *seq);

/* Note that the workers begin to read the chunks of the promise, and that the reads have ended or
 * no longer matter.  Both may be called again. */
void kvt__flight_begin(struct kvt_seq *seq);
void kvt__flight_end(struct kvt_seq *seq);

#endif
