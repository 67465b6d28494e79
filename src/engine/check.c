/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions about an engine that most files of the room ask. */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/private.h"

int
kvt__engine_check(const struct kvt_engine *engine, const char *call)
{
    if (!engine || engine->magic != KVT__ENGINE_MAGIC)
        return kvt__fail(EINVAL, "%s: not an open engine.", call);
    if (engine->pid != getpid())
        return kvt__fail(ESTALE, "%s: the engine was opened by process %ld, before a "
                         "fork; open one in this process.", call, (long)engine->pid);
    return 0;
}

uint64_t
kvt__engine_largest_chunk(const struct kvt_engine *e)
{
    uint64_t most = 0;

    for (uint32_t g = 0; g < e->n_groups; g++) {
        uint64_t bytes = kvt__chunk_bytes(&e->groups[g].view, e->chunk_tokens);
        if (bytes > most)
            most = bytes;
    }
    return most;
}
