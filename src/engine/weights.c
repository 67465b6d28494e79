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
    struct kvt__whose whose = { .random = !named, .flags = KVT_CHUNK_OWN };
    int err = kvt__engine_check(engine, "kvt_engine_reset");

    if (!err && named)
        kvt__weights_named(&whose.weights, fingerprint);
    else if (!err)
        err = random_weights(&whose.weights);
    if (err)
        return err;
    pthread_mutex_lock(&engine->whose_lock);
    engine->whose = whose;
    pthread_mutex_unlock(&engine->whose_lock);
    return 0;
}

struct kvt__whose
kvt__whose_now(struct kvt_engine *engine)
{
    pthread_mutex_lock(&engine->whose_lock);
    struct kvt__whose whose = engine->whose;
    pthread_mutex_unlock(&engine->whose_lock);
    return whose;
}
