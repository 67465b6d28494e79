/* SPDX-License-Identifier: Apache-2.0
 *
 * The index family of `kvtier-bench`: an index of many chunks beside a bare table. */
#ifndef KVT_BENCH_INDEX_H
#define KVT_BENCH_INDEX_H

#include "bench.h"
#include "cli.h"
#include "common.h"
#include "table/table.h"

#define INDEX_TEXT "meta-llama/Llama-3.1-8B-Instruct@1@0@@bfloat16"
#define INDEX_CHUNK_BYTES 4096u

int case_bytes(const struct bench *bench, struct bench_result *out);
int case_find(const struct bench *bench, struct bench_result *out);
int case_store(const struct bench *bench, struct bench_result *out);
int case_processes(const struct bench *bench, struct bench_result *out);

/* Number i of a fixed random sequence. */
static inline uint64_t
index_random(uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The name and the record of chunk i. */
struct kvt__name index_name(uint64_t digest, uint64_t i);
struct kvt__record index_record(uint64_t i);

/* The number of chunks of a case. */
uint64_t index_many(const struct bench *bench);

/* Enter chunks first .. first + n - 1.  0 or an exit code. */
int index_fill(struct kvt__table *table, uint64_t digest, uint64_t first, uint64_t n);

/* Store chunk i into a full index after a victim was freed.
 * victims, n_victims: kept between calls, none at first.  0 or -errno. */
int index_store(struct kvt__table *table, uint64_t digest, uint64_t i,
                struct kvt__record victims[KVT__TABLE_VICTIMS], size_t *n_victims);

/* ------------------------------------------------------------------- bare.c */

/* A table of one process with open addressing and linear probing, of entries with the
 * fields of an index's entry. */
struct bare_entry {
    struct kvt__id id;
    uint64_t hash, bytes, recency;
    uint64_t space, lease;
};

struct bare {
    struct bare_entry *entries; /* id of zeros: empty */
    uint64_t mask;
};

/* A table for n entries, at most two thirds full.  0 or an exit code. */
int bare_open(struct bare *bare, uint64_t n);
void bare_close(struct bare *bare);
void bare_prefetch(const struct bare *bare, uint64_t hash);
const struct bare_entry *bare_find(const struct bare *bare, uint64_t hash,
                                   const struct kvt__id *id);
void bare_insert(struct bare *bare, const struct kvt__name *name,
                 const struct kvt__record *record);

#endif
