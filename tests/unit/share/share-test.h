/* SPDX-License-Identifier: Apache-2.0
 *
 * Memories in a directory of the test on /dev/shm, and a recount of slots. */
#ifndef KVT_SHARE_TEST_H
#define KVT_SHARE_TEST_H

#include "kvt-test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "share/private.h"
#include "temp-dir.h"

#define MIB (UINT64_C(1) << 20)

static inline int
share_setup(void **state)
{
    static struct temp_dir dir;

    strcpy(dir.path, "/dev/shm/kvtier-test-XXXXXX");
    assert_non_null(mkdtemp(dir.path));
    *state = &dir;
    return 0;
}

#define SHARE_TEST(f) cmocka_unit_test_setup_teardown(f, share_setup, temp_dir_teardown)

static inline struct kvt__share_params
params_of(const struct temp_dir *dir, uint64_t limit)
{
    return (struct kvt__share_params){ .limit_bytes = limit, .writer = true, .key = "test",
                                       .dir = dir->path, .keep_bytes = 1 };
}

/* Does not use cmocka: a forked child may call. */
static inline struct kvt__share *
share_open(const struct temp_dir *dir, uint64_t limit)
{
    struct kvt__share_params params = params_of(dir, limit);
    struct kvt__share *s;

    if (kvt__share_open(&params, &s)) {
        fprintf(stderr, "%s\n", kvt__why());
        abort();
    }
    return s;
}

static inline uint64_t
mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline struct kvt__id
id_of(uint64_t n)
{
    struct kvt__id id;
    uint64_t v[2] = { mix(n + 1), n };

    memcpy(id.b, v, sizeof v);
    return id;
}

/* The payload of a chunk is a function of n. */
static inline void
fill_payload(uint64_t n, unsigned char *out, uint64_t bytes)
{
    uint64_t v = mix(n ^ UINT64_C(0x5851f42d4c957f2d));

    for (uint64_t i = 0; i < bytes; i += 8, v += UINT64_C(0x9e3779b97f4a7c15))
        memcpy(out + i, &v, bytes - i < 8 ? bytes - i : 8);
}

static inline bool
is_payload(uint64_t n, const unsigned char *at, uint64_t bytes)
{
    uint64_t v = mix(n ^ UINT64_C(0x5851f42d4c957f2d));

    for (uint64_t i = 0; i < bytes; i += 8, v += UINT64_C(0x9e3779b97f4a7c15))
        if (memcmp(at + i, &v, bytes - i < 8 ? bytes - i : 8))
            return false;
    return true;
}

static inline int
put(struct kvt__share *s, uint64_t n, uint64_t bytes)
{
    unsigned char *payload = malloc(bytes);
    struct kvt__id id = id_of(n);

    fill_payload(n, payload, bytes);
    struct kvt__share_chunk chunk = { payload, bytes, kvt__crc32c(0, payload, bytes),
                                      (uint32_t)n, (uint32_t)(n & 7) };
    int err = kvt__share_put(s, &id, &chunk);
    free(payload);
    return err;
}

static inline bool
has(struct kvt__share *s, uint64_t n)
{
    struct kvt__id id = id_of(n);

    return kvt__share_has(s, &id);
}

/* Read a chunk.  1: found with the right bytes; 0: a miss; -1: wrong. */
static inline int
look(struct kvt__share *s, uint64_t n, uint64_t bytes)
{
    struct kvt__share_read read;
    struct kvt__id id = id_of(n);
    int err = kvt__share_begin_read(s, &id, &read);

    if (err)
        return 0;
    bool good = read.chunk.bytes == bytes && read.chunk.tokens == (uint32_t)n &&
                read.chunk.flags == (n & 7) && is_payload(n, read.chunk.payload, bytes);
    kvt__share_end_read(s, &read);
    return good ? 1 : -1;
}

static inline uint64_t
memory(struct kvt__share *s)
{
    struct kvt__share_totals totals;

    kvt__share_get_totals(s, &totals);
    return totals.memory_bytes;
}

/* Each READY entry has a slot of its own, each other slot is free, and the host has given no
 * more memory than recorded.  Returns the number of chunks.  No call is in progress. */
static inline uint64_t
recount(struct kvt__share *s)
{
    uint64_t n_used = 0, n_ready = 0, made = 0;
    struct kvt__share_totals totals;
    struct stat st;

    kvt__sh_sweep(s, UINT32_MAX);
    for (uint32_t g = 0; g < s->n_segments; g++) {
        uint64_t word = s->segments[g].word;

        assert_false(word & SH_DRAINING);
        made += s->segments[g].made_bytes;
        for (uint32_t i = 0; i < sh_n_made(s, g, word); i++) {
            uint32_t slot = g * s->segment_slots + i, name = (uint32_t)s->slots[slot].word;

            if (!name)
                continue;
            n_used++;
            assert_int_equal(s->slot_of[name - 1], slot + 1);
            assert_true(kvt__table_is_used(s->table, name - 1));
        }
    }
    for (uint32_t entry = 0; entry < s->header->n_slot_of; entry++) {
        struct kvt__record r;
        unsigned char *payload;
        uint32_t slot;

        if (!kvt__table_read(s->table, entry, &r))
            continue;
        n_ready++;
        assert_true(kvt__sh_locate(s, entry, &slot, &payload));
        assert_int_equal(s->slots[slot].bytes, r.bytes);
    }
    kvt__share_get_totals(s, &totals);
    assert_int_equal(n_used, n_ready);
    assert_int_equal(totals.n_chunks, n_ready);
    assert_int_equal(totals.memory_bytes, made);
    assert_true(made <= s->limit_bytes);
    assert_int_equal(fstat(s->payload_fd, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 <= s->limit_bytes);
    return n_ready;
}

#endif
