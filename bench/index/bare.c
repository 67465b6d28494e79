/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline table: a hash table without sharing, leases and eviction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "index.h"

int
bare_open(struct bare *bare, uint64_t n)
{
    uint64_t size = 1024;

    while (size < n + n / 2)
        size *= 2;
    void *p = mmap(NULL, size * sizeof *bare->entries, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "kvtier-bench: no memory for a table of %llu entries\n",
                (unsigned long long)size);
        return CLI_ENVIRONMENT;
    }
    *bare = (struct bare){ p, size - 1 };
    return 0;
}

void
bare_close(struct bare *bare)
{
    munmap(bare->entries, (bare->mask + 1) * sizeof *bare->entries);
}

void
bare_prefetch(const struct bare *bare, uint64_t hash)
{
    __builtin_prefetch(&bare->entries[hash & bare->mask]);
}

const struct bare_entry *
bare_find(const struct bare *bare, uint64_t hash, const struct kvt__id *id)
{
    static const struct kvt__id none;

    for (uint64_t i = hash & bare->mask;; i = (i + 1) & bare->mask) {
        const struct bare_entry *e = &bare->entries[i];

        if (kvt__id_equal(&e->id, id))
            return e;
        if (kvt__id_equal(&e->id, &none))
            return NULL;
    }
}

void
bare_insert(struct bare *bare, const struct kvt__name *name,
            const struct kvt__record *record)
{
    static const struct kvt__id none;
    uint64_t i = name->hash.bits[0] & bare->mask;

    while (!kvt__id_equal(&bare->entries[i].id, &none))
        i = (i + 1) & bare->mask;
    bare->entries[i] = (struct bare_entry){ .id = record->id, .hash = name->hash.bits[0],
                                            .bytes = record->bytes,
                                            .recency = (uint64_t)record->recency_ns };
}
