/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline table: a hash table without sharing, leases and eviction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "index.h"

int
baseline_open(struct baseline *baseline, uint64_t n)
{
    uint64_t size = 1024;

    while (size < n + n / 2)
        size *= 2;
    void *p = mmap(NULL, size * sizeof *baseline->entries, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "kvtier-bench: no memory for a table of %llu entries\n",
                (unsigned long long)size);
        return CLI_ENVIRONMENT;
    }
    *baseline = (struct baseline){ p, size - 1 };
    return 0;
}

void
baseline_close(struct baseline *baseline)
{
    munmap(baseline->entries, (baseline->mask + 1) * sizeof *baseline->entries);
}

void
baseline_prefetch(const struct baseline *baseline, uint64_t hash)
{
    __builtin_prefetch(&baseline->entries[hash & baseline->mask]);
}

const struct baseline_entry *
baseline_find(const struct baseline *baseline, uint64_t hash, const struct kvt__id *id)
{
    static const struct kvt__id none;

    for (uint64_t i = hash & baseline->mask;; i = (i + 1) & baseline->mask) {
        const struct baseline_entry *e = &baseline->entries[i];

        if (kvt__id_equal(&e->id, id))
            return e;
        if (kvt__id_equal(&e->id, &none))
            return NULL;
    }
}

void
baseline_insert(struct baseline *baseline, const struct kvt__name *name,
            const struct kvt__record *record)
{
    static const struct kvt__id none;
    uint64_t i = name->hash.bits[0] & baseline->mask;

    while (!kvt__id_equal(&baseline->entries[i].id, &none))
        i = (i + 1) & baseline->mask;
    baseline->entries[i] = (struct baseline_entry){ .id = record->id, .hash = name->hash.bits[0],
                                            .bytes = record->bytes,
                                            .recency = (uint64_t)record->recency_ns };
}
