/* SPDX-License-Identifier: Apache-2.0
 *
 * The index family of kvtier-bench: an index of 10^7 chunks, and a baseline hash table of one
 * process.
 *
 * Functions that return int return 0 or an exit code after a message, unless their comment says
 * otherwise. */
#ifndef KVT_BENCH_INDEX_H
#define KVT_BENCH_INDEX_H

#include "bench.h"
#include "cli.h"
#include "common.h"
#include "table/table.h"

#define INDEX_TEXT "meta-llama/Llama-3.1-8B-Instruct@1@0@@bfloat16"
#define INDEX_CHUNK_BYTES 4096u

/* The cases.  Return 0, BENCH_SKIPPED or an exit code, after a message. */
int case_bytes(const struct bench *bench, struct bench_result *out);
int case_find(const struct bench *bench, struct bench_result *out);
int case_store(const struct bench *bench, struct bench_result *out);
int case_processes(const struct bench *bench, struct bench_result *out);

/* Return number i of a fixed pseudo-random sequence. */
static inline uint64_t
index_random(uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Return the name and the record of chunk i.  digest: kvt__table_digest(INDEX_TEXT). */
struct kvt__name index_name(uint64_t digest, uint64_t i);
struct kvt__record index_record(uint64_t i);

/* Return the number of chunks in the index of a case. */
uint64_t index_n_chunks(const struct bench *bench);

/* Enter chunks first .. first + n - 1 into an index.  Stops at an interrupt. */
int index_fill(struct kvt__table *table, uint64_t digest, uint64_t first, uint64_t n);

/* Free a victim, then store chunk i into a full index.  victims, n_victims: victims that remain
 * from earlier calls; *n_victims is 0 before the first call.  Return 0 or a negative errno. */
int index_store(struct kvt__table *table, uint64_t digest, uint64_t i,
                struct kvt__record victims[KVT__TABLE_VICTIMS], size_t *n_victims);

/* --------------------------------------------------------------- baseline.c */

/* The baseline: a hash table of one process with open addressing and linear probing.  An entry has
 * the fields of an index's entry. */
struct baseline_entry {
    struct kvt__id id;
    uint64_t hash, bytes, recency;
    uint64_t space, lease;
};

struct baseline {
    struct baseline_entry *entries; /* an entry whose id is all zeros is empty */
    uint64_t mask; /* number of entries, a power of two, minus 1 */
};

/* Allocate a table for n entries that is then at most two thirds full. */
int baseline_open(struct baseline *baseline, uint64_t n);
void baseline_close(struct baseline *baseline);

/* Prefetch the first entry that baseline_find() reads. */
void baseline_prefetch(const struct baseline *baseline, uint64_t hash);

/* Return the entry with this id, owned by the table; NULL: absent. */
const struct baseline_entry *baseline_find(const struct baseline *baseline, uint64_t hash,
                                   const struct kvt__id *id);

/* Insert an entry without a check for duplicates.  The table must have an empty entry. */
void baseline_insert(struct baseline *baseline, const struct kvt__name *name,
                 const struct kvt__record *record);

#endif
