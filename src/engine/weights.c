/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of an engine's KV.  The prefixes of a sequence's chunks contain the weights id of the
 * sequence's creation, so stores and loads that were planned before a reset keep the old id. */
#include <errno.h>
#include <sys/random.h>

#include "engine/private.h"

static int
random_weights(struct kvt__weights *out)
{
    if (getrandom(out->b, sizeof out->b, 0) != sizeof out->b)
        return kvt__fail(errno ? errno : EIO, "kvt_engine_reset: getrandom");
    return 0;
}

int
kvt_engine_reset(struct kvt_engine *engine, const char *fingerprint)
{
    bool named = fingerprint && *fingerprint;
    struct kvt__seq_weights weights = { .random = !named, .flags = KVT_CHUNK_OWN };
    int err = kvt__engine_check(engine, "kvt_engine_reset");

    if (!err && named)
        kvt__weights_named(&weights.id, fingerprint);
    else if (!err)
        err = random_weights(&weights.id);
    if (err)
        return err;
    pthread_mutex_lock(&engine->weights_lock);
    engine->weights = weights;
    pthread_mutex_unlock(&engine->weights_lock);
    return 0;
}

struct kvt__seq_weights
kvt__current_weights(struct kvt_engine *engine)
{
    pthread_mutex_lock(&engine->weights_lock);
    struct kvt__seq_weights weights = engine->weights;
    pthread_mutex_unlock(&engine->weights_lock);
    return weights;
}
