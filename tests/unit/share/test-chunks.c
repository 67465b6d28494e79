/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks of one and two handles: puts, budgets, sizes, evictions, status. */
#include "share-test.h"

#include <fcntl.h>
#include <unistd.h>

enum { CHUNK = 100000 };

static void
another_handle_reads_what_one_puts(void **state)
{
    struct kvt__share *a = share_open(*state, 16 * MIB), *b = share_open(*state, 16 * MIB);
    unsigned char payload[CHUNK];
    struct kvt__share_chunk chunk;
    struct kvt__id id = id_of(7);

    assert_false(has(b, 7));
    assert_int_equal(look(b, 7, CHUNK), 0);
    assert_int_equal(put(a, 7, CHUNK), 0);
    assert_int_equal(put(b, 7, CHUNK), -EEXIST);
    assert_true(has(a, 7) && has(b, 7) && !has(b, 8));
    assert_int_equal(look(b, 7, CHUNK), 1);
    assert_int_equal(kvt__share_get(b, &id, payload, CHUNK, &chunk), 0);
    assert_true(is_payload(7, payload, CHUNK));
    assert_int_equal(chunk.tokens, 7);
    assert_int_equal(kvt__share_get(b, &id, payload, CHUNK - 1, &chunk), -ENOENT);
    assert_int_equal(recount(b), 1);
    kvt__share_close(a);
    kvt__share_close(b);
}

static void
a_chunk_larger_than_a_segment_is_refused(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);

    assert_int_equal(put(s, 1, MIB + 1), -EFBIG);
    assert_int_equal(put(s, 1, MIB), 0);
    assert_int_equal(look(s, 1, MIB), 1);
    kvt__share_close(s);
}

/* The usual chunk is larger than an eighth of the limit. */
static void
segments_fit_the_usual_chunk(void **state)
{
    struct kvt__share_params params = params_of(*state, 16 * MIB);
    struct kvt__share *s;

    params.chunk_bytes = 3 * MIB + 1;
    assert_int_equal(kvt__share_open(&params, &s), 0);
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(put(s, i, 3 * MIB + 1), 0);
    assert_int_equal(recount(s), 5);
    kvt__share_close(s);
}

static void
a_full_memory_evicts_the_oldest(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);
    uint64_t n = 8 * MIB / (128 << 10);

    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(put(s, i, 128 << 10), 0);
    assert_int_equal(recount(s), n);
    assert_int_equal(memory(s), 8 * MIB);
    wait_for_tick();
    for (uint64_t i = 0; i < n / 2; i++) {
        struct kvt__id id = id_of(i);

        kvt__share_touch(s, &id);
    }
    for (uint64_t i = 0; i < n / 2; i++)
        assert_int_equal(put(s, 1000 + i, 128 << 10), 0);
    assert_int_equal(recount(s), n);
    for (uint64_t i = 0; i < n / 2; i++) {
        assert_int_equal(look(s, i, 128 << 10), 1);
        assert_false(has(s, n / 2 + i));
        assert_int_equal(look(s, 1000 + i, 128 << 10), 1);
    }
    kvt__share_close(s);
}

static void
leased_chunks_stay(void **state)
{
    struct kvt__share *s = share_open(*state, 2 * MIB);
    int64_t until = kvt__now_ns() + 3600 * KVT__NS_PER_S;
    uint64_t n = 2 * MIB / (64 << 10);

    for (uint64_t i = 0; i < n; i++) {
        struct kvt__id id = id_of(i);

        assert_int_equal(put(s, i, 64 << 10), 0);
        assert_true(kvt__share_lease(s, &id, until));
    }
    assert_int_equal(put(s, 1000, 64 << 10), -ENOSPC);
    assert_int_equal(put(s, 1000, 4096), -ENOSPC); /* no segment can be drained */
    assert_int_equal(recount(s), n);
    struct kvt__id id = id_of(5);
    kvt__share_unlease(s, &id);
    assert_int_equal(put(s, 1000, 64 << 10), 0);
    assert_false(has(s, 5));
    assert_int_equal(look(s, 6, 64 << 10), 1);
    assert_int_equal(recount(s), n);
    kvt__share_close(s);
}

static uint64_t
count(struct kvt__share *s, uint64_t first, uint64_t n, uint64_t bytes)
{
    uint64_t found = 0;

    for (uint64_t i = first; i < first + n; i++) {
        int is = look(s, i, bytes);

        assert_true(is >= 0);
        found += is == 1;
    }
    return found;
}

/* The segments of chunks that nobody uses go to another size, and back. */
static void
sizes_share_one_budget(void **state)
{
    static const uint64_t sizes[] = { 4096, 300000, 8192, 100001, 4000 };
    struct kvt__share *s = share_open(*state, 8 * MIB);
    uint64_t first = 0;

    for (unsigned k = 0; k < 5; k++) {
        uint64_t n = 6 * MIB / sizes[k];

        for (uint32_t g = 0; g < s->n_segments; g++)
            s->segments[g].used_ns -= (uint64_t)KVT__NS_PER_S * 10;
        wait_for_tick();
        for (uint64_t i = 0; i < n; i++)
            assert_int_equal(put(s, first + i, sizes[k]), 0);
        recount(s);
        assert_true(count(s, first, n, sizes[k]) >= n * 9 / 10);
        first += n;
    }
    assert_int_equal(memory(s), 8 * MIB);
    kvt__share_close(s);
}

/* A size that is in use keeps its segments: the other size evicts its own chunks. */
static void
a_size_in_use_keeps_its_memory(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);
    uint64_t n = 7 * MIB / (64 << 10);

    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(put(s, i, 64 << 10), 0);
    assert_int_equal(put(s, 1000, 32 << 10), 0);
    for (uint32_t g = 0; g < s->n_segments; g++)
        s->segments[g].used_ns = (uint64_t)kvt__wall_ns() + 60 * (uint64_t)KVT__NS_PER_S;
    for (uint64_t i = 1; i < 200; i++)
        assert_int_equal(put(s, 1000 + i, 32 << 10), 0);
    assert_int_equal(count(s, 0, n, 64 << 10), n);
    assert_int_equal(count(s, 1000, 200, 32 << 10), MIB / (32 << 10));
    recount(s);
    kvt__share_close(s);
}

static void
a_corrupt_chunk_is_deleted(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);
    unsigned char payload[CHUNK];
    struct kvt__share_chunk chunk;
    struct kvt__share_read read;
    struct kvt__id id = id_of(1);

    assert_int_equal(put(s, 1, CHUNK), 0);
    assert_int_equal(kvt__share_begin_read(s, &id, &read), 0);
    s->payload[(const unsigned char *)read.chunk.payload - s->payload + 99] ^= 1;
    kvt__share_end_read(s, &read);
    assert_int_equal(kvt__share_get(s, &id, payload, CHUNK, &chunk), -EBADMSG);
    assert_false(has(s, 1));
    assert_int_equal(recount(s), 0);
    assert_int_equal(put(s, 1, CHUNK), 0);
    assert_int_equal(look(s, 1, CHUNK), 1);
    kvt__share_close(s);
}

static bool
add(void *ctx, const struct kvt__share_info *info)
{
    uint64_t *sum = ctx, n;

    memcpy(&n, info->id.b + 8, sizeof n);
    assert_true(info->tokens == n && info->flags == (n & 7) && info->recency_ns > 0);
    sum[0]++;
    sum[1] += info->bytes;
    return sum[0] < sum[2];
}

static void
each_and_totals_show_the_chunks(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);
    uint64_t sum[3] = { 0, 0, 100 }, few[3] = { 0, 0, 2 };
    struct kvt__share_totals totals;

    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put(s, i, 1000 + i), 0);
    kvt__share_each(s, add, sum);
    kvt__share_each(s, add, few);
    kvt__share_get_totals(s, &totals);
    assert_int_equal(sum[0], 10);
    assert_int_equal(sum[1], 10045);
    assert_int_equal(few[0], 2);
    assert_int_equal(totals.n_chunks, 10);
    assert_int_equal(totals.used_bytes, 10045);
    assert_int_equal(totals.limit_bytes, 8 * MIB);
    assert_int_equal(totals.memory_bytes, MIB);
    kvt__share_close(s);
}

static void
clear_gives_memory_back_without_other_handles(void **state)
{
    struct kvt__share *a = share_open(*state, 8 * MIB), *b = share_open(*state, 8 * MIB);
    int64_t until = kvt__now_ns() + 3600 * KVT__NS_PER_S;
    struct kvt__id id = id_of(3);
    struct stat st;

    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put(a, i, CHUNK), 0);
    assert_true(kvt__share_lease(a, &id, until));
    assert_int_equal(kvt__share_clear(b), 0);
    assert_int_equal(recount(a), 0);
    assert_int_equal(memory(a), MIB);
    assert_int_equal(put(a, 1, CHUNK), 0);
    kvt__share_close(a);
    assert_int_equal(kvt__share_clear(b), 0);
    assert_int_equal(memory(b), 0);
    assert_int_equal(fstat(b->payload_fd, &st), 0);
    assert_int_equal(st.st_blocks, 0);
    assert_int_equal(put(b, 1, CHUNK), 0);
    assert_int_equal(look(b, 1, CHUNK), 1);
    recount(b);
    kvt__share_close(b);
}

/* A process that opens may be about to map the memory. */
static void
clear_beside_an_open_keeps_the_memory(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB), opener = *s;
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", s->lock_fd);
    opener.lock_fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(kvt__sh_lock(&opener, F_WRLCK, SH_OPEN_BYTE), 0);
    assert_int_equal(put(s, 1, CHUNK), 0);
    assert_int_equal(kvt__share_clear(s), 0);
    assert_int_equal(memory(s), MIB);
    close(opener.lock_fd);
    assert_int_equal(kvt__share_clear(s), 0);
    assert_int_equal(memory(s), 0);
    kvt__share_close(s);
}

struct ranges {
    unsigned n;
    uint64_t bytes;
    bool accepts;
};

static bool
on_range(void *ctx, void *at, uint64_t bytes)
{
    struct ranges *r = ctx;

    assert_true(at && bytes);
    r->n++;
    r->bytes += bytes;
    return r->accepts;
}

static void
segments_are_reported_once(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);
    struct ranges r = { 0 };

    for (uint64_t i = 0; i < 12; i++)
        assert_int_equal(put(s, i, 128 << 10), 0);
    kvt__share_segments(s, on_range, &r);
    assert_true(r.n == 2 && r.bytes == 2 * MIB);
    s->segments[1].made_bytes -= MIB / 2; /* later chunks would span two ranges */
    kvt__share_segments(s, on_range, &r);
    assert_int_equal(r.n, 3);
    s->segments[1].made_bytes = MIB;
    r = (struct ranges){ .accepts = true };
    kvt__share_segments(s, on_range, &r);
    assert_true(r.n == 2 && r.bytes == 2 * MIB);
    kvt__share_segments(s, on_range, &r);
    assert_int_equal(r.n, 2);
    /* A driver has pinned the pages, so they stay. */
    assert_int_equal(kvt__share_clear(s), 0);
    assert_int_equal(memory(s), 2 * MIB);
    kvt__share_close(s);
}

/* Values that no process writes. */
static void
garbage_records_are_misses(void **state)
{
    struct kvt__share *s = share_open(*state, 8 * MIB);

    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(put(s, i, CHUNK), 0);
    for (uint32_t entry = 0; entry < 10; entry++)
        s->slot_of[entry] = (uint32_t)mix(entry);
    for (uint32_t slot = 0; slot < 4; slot++)
        s->slots[slot].bytes = UINT64_MAX;
    s->segments[1].word = UINT64_MAX;
    s->segments[0].made_bytes = UINT64_MAX;
    for (uint64_t i = 0; i < 20; i++) {
        (void)has(s, i);
        assert_true(look(s, i, CHUNK) >= 0);
        (void)put(s, i, CHUNK);
        (void)put(s, 100 + i, CHUNK);
    }
    (void)kvt__share_clear(s);
    kvt__share_close(s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARE_TEST(another_handle_reads_what_one_puts),
        SHARE_TEST(a_chunk_larger_than_a_segment_is_refused),
        SHARE_TEST(segments_fit_the_usual_chunk),
        SHARE_TEST(a_full_memory_evicts_the_oldest),
        SHARE_TEST(leased_chunks_stay),
        SHARE_TEST(sizes_share_one_budget),
        SHARE_TEST(a_size_in_use_keeps_its_memory),
        SHARE_TEST(a_corrupt_chunk_is_deleted),
        SHARE_TEST(each_and_totals_show_the_chunks),
        SHARE_TEST(clear_gives_memory_back_without_other_handles),
        SHARE_TEST(clear_beside_an_open_keeps_the_memory),
        SHARE_TEST(segments_are_reported_once),
        SHARE_TEST(garbage_records_are_misses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
