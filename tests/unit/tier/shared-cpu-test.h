/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory in a directory of the test on /dev/shm.  The identity, size and payload
 * of a chunk are functions of the chunk's number. */
#ifndef KVT_SHARED_CPU_TEST_H
#define KVT_SHARED_CPU_TEST_H

#include "kvt-test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "temp-dir.h"
#include "tier/shared_cpu/memory.h"

#define TEXT "m/l@1@0@@bfloat16"

struct handle {
    struct kvt__table *table;
    struct sc_memory m;
};

static inline int
shm_setup(void **state)
{
    static struct temp_dir dir;

    temp_dir_make_in_memory(&dir);
    *state = &dir;
    return 0;
}

#define SHM_TEST(f) cmocka_unit_test_setup_teardown(f, shm_setup, temp_dir_teardown)

static inline int
make_memory(void *ctx, struct kvt__table *table)
{
    (void)ctx;
    return kvt__sc_make_area(table);
}

/* Open a memory of n_units; the first populated_units have memory of the host and count as
 * populated.  A forked child may call this function, so the function does not use cmocka. */
static inline struct handle
open_populated(const struct temp_dir *dir, uint32_t n_units, uint32_t populated_units)
{
    uint64_t bytes = n_units * SC_UNIT;
    struct kvt__table_params params = { .writer = true, .of_memory = true, .shm = dir->path,
                                        .make_area = make_memory };
    int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct handle h;

    kvt__sc_set_params(&params, bytes);
    if (fd < 0 || kvt__table_open(&params, fd, &h.table) || kvt__sc_view(h.table, &h.m) ||
        kvt__table_allocate_area(h.table, h.m.payload_at, populated_units * SC_UNIT)) {
        fprintf(stderr, "%s\n", kvt__why());
        abort();
    }
    close(fd);
    kvt__sc_clear_owner(&h.m);
    __atomic_store_n(&h.m.header->populated_bytes, populated_units * SC_UNIT,
                     __ATOMIC_SEQ_CST);
    return h;
}

static inline struct handle
open_memory(const struct temp_dir *dir, uint32_t n_units)
{
    return open_populated(dir, n_units, n_units);
}

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
                               .hash = { .bits = { mix(n + 1) } } };
}

static inline struct kvt__id
id_of(uint64_t n)
{
    struct kvt__id id = { { 1 } };

    memcpy(id.b + 8, &n, sizeof n);
    return id;
}

/* Return the bytes of a chunk of n_units that does not fill the last unit. */
static inline uint64_t
bytes_of(uint32_t n_units)
{
    return n_units * SC_UNIT - 24;
}

/* Write the payload of chunk n: a word, different for each chunk, again and again. */
static inline void
fill_payload(uint64_t n, unsigned char *out, uint64_t bytes)
{
    uint64_t v = mix(n ^ UINT64_C(0x5851f42d4c957f2d));

    for (uint64_t i = 0; i < bytes; i += 8)
        __atomic_store_n((uint64_t *)(void *)(out + i), v, __ATOMIC_RELAXED);
}

static inline bool
is_payload(uint64_t n, const unsigned char *at, uint64_t bytes)
{
    uint64_t v = mix(n ^ UINT64_C(0x5851f42d4c957f2d));

    for (uint64_t i = 0; i < bytes; i += 8)
        if (__atomic_load_n((const uint64_t *)(const void *)(at + i), __ATOMIC_RELAXED) != v)
            return false;
    return true;
}

static inline int
claim_n(struct handle *h, uint64_t n, uint32_t n_units, struct kvt__claim *claim)
{
    struct kvt__name name = name_of(n);
    struct kvt__record record = { .id = id_of(n), .bytes = bytes_of(n_units) };

    return kvt__table_claim(h->table, &name, &record, TEXT, claim);
}

/* Store a chunk. */
static inline int
put(struct handle *h, uint64_t n, uint32_t n_units)
{
    struct sc_evicted evicted;
    struct kvt__claim claim;
    int err = claim_n(h, n, n_units, &claim);

    if (err)
        return err;
    err = kvt__sc_acquire_place(&h->m, claim.entry, bytes_of(n_units), &evicted);
    unsigned char *payload = err ? NULL : kvt__sc_payload(&h->m, claim.entry,
                                                          bytes_of(n_units));
    if (!payload) {
        kvt__table_abort(h->table, &claim);
        return err ? err : -EIO;
    }
    fill_payload(n, payload, bytes_of(n_units));
    return kvt__table_publish(h->table, &claim) ? 0 : -ESTALE;
}

static inline bool
find(const struct handle *h, uint64_t n, struct kvt__record *out)
{
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);

    return kvt__table_find(h->table, &name, &id, out);
}

static inline bool
has(const struct handle *h, uint64_t n)
{
    return find(h, n, NULL);
}

static inline struct kvt__lease
lease(struct handle *h, uint64_t n)
{
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);
    struct kvt__record record;

    assert_true(kvt__table_lease(h->table, &name, &id,
                                 kvt__now_ns() + 600 * KVT__NS_PER_S, &record));
    return record.lease;
}

/* Free the chunk's entry, leased or not. */
static inline void
forget(struct handle *h, uint64_t n)
{
    struct kvt__record seen;

    if (find(h, n, &seen))
        (void)kvt__table_forget(h->table, &seen, true);
}

/* Pin a chunk.  payload: of the chunk.  Returns the number of the pin, or an error. */
static inline int
pin(struct handle *h, uint64_t n, const unsigned char **payload)
{
    struct kvt__record seen;

    *payload = NULL;
    if (!find(h, n, &seen))
        return -ENOENT;
    int number = kvt__sc_pin(&h->m, seen.entry, seen.word);
    if (number >= 0)
        *payload = kvt__sc_pinned_payload(&h->m, (unsigned)number, seen.bytes);
    return number;
}

/* Read a chunk.  1: found with the right bytes; 0: a miss; -1: wrong. */
static inline int
read_and_check(struct handle *h, uint64_t n, uint32_t n_units)
{
    const unsigned char *payload;
    int number = pin(h, n, &payload);

    if (number < 0)
        return 0;
    bool good = payload && is_payload(n, payload, bytes_of(n_units));
    kvt__sc_unpin(&h->m, (unsigned)number);
    return good ? 1 : -1;
}

/* Return the number of READY entries, and test that their places are in the memory and do not
 * overlap.  No call may be in progress. */
static inline uint32_t
recount(const struct handle *h)
{
    uint32_t *owner = calloc(h->m.n_units, sizeof *owner), n = 0;
    struct kvt__record r;

    for (uint32_t entry = 0; entry < h->m.n_entries; entry++) {
        if (!kvt__table_read(h->table, entry, &r))
            continue;
        uint64_t place = h->m.places[entry];
        assert_true((uint64_t)sc_first(place) + sc_n(place) <= h->m.n_units);
        assert_true(r.bytes <= sc_n(place) * SC_UNIT);
        for (uint32_t i = 0; i < sc_n(place); i++) {
            assert_int_equal(owner[sc_first(place) + i], 0);
            assert_int_equal(h->m.units[sc_first(place) + i], entry + 1);
            owner[sc_first(place) + i] = entry + 1;
        }
        n++;
    }
    free(owner);
    return n;
}

static inline void
forget_all(struct handle *h)
{
    struct kvt__record r;

    for (uint32_t entry = 0; entry < h->m.n_entries; entry++)
        if (kvt__table_read(h->table, entry, &r))
            assert_int_equal(kvt__table_forget(h->table, &r, true), 0);
}

/* Test that each unit can be used: fill the memory with leased chunks of one unit.  No pin and no
 * claim may exist. */
static inline void
fill_completely(struct handle *h, uint64_t first)
{
    forget_all(h);
    for (uint32_t i = 0; i < h->m.n_units; i++) {
        assert_int_equal(put(h, first + i, 1), 0);
        (void)lease(h, first + i);
    }
    assert_int_equal(recount(h), h->m.n_units);
    assert_int_equal(put(h, first + h->m.n_units, 1), -ENOSPC);
    for (uint32_t i = 0; i < h->m.n_units; i++)
        assert_int_equal(read_and_check(h, first + i, 1), 1);
    forget_all(h);
}

#endif
