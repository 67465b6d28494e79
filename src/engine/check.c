/* SPDX-License-Identifier: Apache-2.0
 *
 * The check at the begin of each public function. */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/private.h"

int
kvt__engine_check(const struct kvt_engine *engine, const char *call)
{
    if (!engine || engine->magic != KVT__ENGINE_MAGIC)
        return kvt__fail(EINVAL, "%s: the engine is NULL or closed.", call);
    if (engine->pid != getpid())
        return kvt__fail(ESTALE, "%s: the engine was opened by process %ld, before a "
                         "fork; open an engine in this process.", call, (long)engine->pid);
    return 0;
}
