/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of tables: names, and a recount of all counters of a table. */
#ifndef KVT_TABLE_TEST_H
#define KVT_TABLE_TEST_H

#include "kvt-test.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "table/private.h"

#define TEXT "m/l@1@0@@bfloat16"

/* Return a number that looks random.  Different numbers have different results. */
static inline uint64_t
mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline struct kvt__name
name_of(uint64_t n)
{
    return (struct kvt__name){ .digest = kvt__table_digest(TEXT),
                               .hash = { .bits = { n * UINT64_C(0x9e3779b97f4a7c15) } } };
}

static inline struct kvt__id
id_of(uint64_t n)
{
    struct kvt__id id = { { 1 } };

    memcpy(id.b + 8, &n, sizeof n);
    return id;
}

static inline struct kvt__record
record_of_n(uint64_t n, uint64_t bytes)
{
    return (struct kvt__record){ .id = id_of(n), .bytes = bytes };
}

static inline struct kvt__table *
open_table(uint64_t limit, uint64_t max_entries)
{
    struct kvt__table_params params = { .limit_bytes = limit, .max_entries = max_entries,
                                        .writer = true };
    struct kvt__table *t;

    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    return t;
}

/* Store a chunk.  Returns the error of the claim. */
static inline int
store(struct kvt__table *t, uint64_t n, uint64_t bytes)
{
    struct kvt__name name = name_of(n);
    struct kvt__record record = record_of_n(n, bytes);
    struct kvt__claim claim;
    int err = kvt__table_claim(t, &name, &record, TEXT, &claim);

    if (!err)
        assert_true(kvt__table_publish(t, &claim));
    return err;
}

static inline bool
find(struct kvt__table *t, uint64_t n, struct kvt__record *out)
{
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);

    return kvt__table_find(t, &name, &id, out);
}

/* Return the record of the chunk's READY entry. */
static inline struct kvt__record
ready_record(struct kvt__table *t, uint64_t n)
{
    struct kvt__name name = name_of(n);
    struct kvt__record r;

    assert_true(kvt__table_find(t, &name, NULL, &r));
    return r;
}

/* Claim a chunk for a new object. */
static inline int
claim_n(struct kvt__table *t, uint64_t n, uint64_t id, uint64_t bytes,
        struct kvt__claim *out)
{
    struct kvt__name name = name_of(n);
    struct kvt__record record = record_of_n(id, bytes);

    return kvt__table_claim(t, &name, &record, TEXT, out);
}

/* Return the number of claims that the handle can make now. */
static inline uint32_t
n_unused_claims(const struct kvt__table *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < TB_N_CLAIMS; i++)
        n += tb_claim_at(t, t->owner, i)->packed == TB_NO_CLAIM;
    return n;
}

static inline uint64_t
used(const struct kvt__table *t)
{
    struct kvt__table_totals totals;

    kvt__table_get_totals(t, &totals);
    return totals.used_bytes;
}

/* Recount the table and compare the result with the totals, chains, free list and spaces.  No call
 * may be in progress. */
static inline void
recount(const struct kvt__table *t)
{
    const struct tb_header *h = t->header;
    uint64_t n_entries = 0, n_unread = 0, used = 0, n_linked = 0, n_free = 0;
    uint32_t *in_space = calloc(TB_N_SPACES, sizeof *in_space);

    assert_int_equal(h->n_redo, 0);
    for (uint32_t i = 0; i < h->n_fresh; i++) {
        uint64_t word = t->hot[i].word;

        if (tb_state(word) == TB_FREE)
            continue;
        n_entries++;
        n_unread += (word & TB_UNREAD) != 0;
        used += tb_bytes(t->cold[i].packed);
        if (tb_space(word) < TB_N_SPACES)
            in_space[tb_space(word)]++;
    }
    for (uint32_t owner = 0; owner < TB_N_OWNERS; owner++)
        for (uint32_t i = 0; t->owners[owner].incarnation && i < TB_N_CLAIMS; i++) {
            const struct tb_claim *claim = &t->claims[owner * TB_N_CLAIMS + i];

            used += (claim->packed & 0xff) == KVT__CLAIM_REPLACE ? claim->bytes : 0;
        }
    for (uint32_t head = 0; head < h->n_heads; head++) {
        uint32_t link = t->heads[head], at;

        for (; (at = tb_linked(t, link)) != TB_NONE; link = t->hot[at].next) {
            assert_int_equal(link & ~TB_ENTRY, tb_link_bits(kvt__tb_entry_hash(t, at)));
            assert_int_equal(tb_bucket(kvt__tb_entry_hash(t, at), h->n_heads), head);
            assert_true(tb_state(t->hot[at].word) != TB_FREE);
            n_linked++;
        }
        assert_int_equal(link, TB_END | head);
    }
    for (uint32_t at = h->free; at != TB_NONE; at = t->hot[at].next) {
        assert_true(at < h->n_fresh);
        assert_int_equal(tb_state(t->hot[at].word), TB_FREE);
        n_free++;
    }
    for (uint32_t i = 0; i < TB_N_SPACES; i++)
        assert_int_equal(t->spaces[i].n_entries, in_space[i]);
    free(in_space);
    assert_int_equal(n_linked, n_entries);
    assert_int_equal(n_free + n_entries, h->n_fresh);
    assert_int_equal(h->n_entries, n_entries);
    assert_int_equal(h->n_unread, n_unread);
    assert_int_equal(h->used_bytes, used);
}

#endif
