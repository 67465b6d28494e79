/* SPDX-License-Identifier: Apache-2.0
 *
 * An index file of random bytes. */
#include "index-test.h"

static bool
count_garbage(void *ctx, const struct kvt__index_entry *e)
{
    ++*(size_t *)ctx;
    return ix_space_in_range(e->space) && e->path < 128 && e->bytes < IX_MAX_BYTES;
}

static bool
fail_on_entry(void *ctx, const struct kvt__index_entry *e)
{
    (void)ctx;
    (void)e;
    fail_msg("an entry survived clear");
    return false;
}

static void
use_garbage(struct kvt__index *ix, uint64_t seed)
{
    struct kvt__index_entry out[20];
    struct kvt__index_totals t;
    struct kvt__index_claim c;
    char text[512];
    size_t n = 0;

    for (unsigned i = 0; i < 40; i++) {
        struct kvt__id id = id_of(seed + i);
        kvt__index_find(ix, &id, out);
        kvt__index_lease(ix, &id, kvt__now_ns() + 1000, out);
        if (!claim(ix, &id, &c))
            kvt__index_publish(ix, &c);
        if (!kvt__index_evict(ix, &id, i & 1, out, &c))
            kvt__index_removed(ix, &c);
        kvt__index_space_text(ix, i, text, sizeof text);
        kvt__index_space_digest(ix, i);
    }
    n = kvt__index_first(ix, NULL, out, 20);
    for (size_t i = 0; i < n; i++)
        if (!kvt__index_evict(ix, &out[i].id, true, NULL, &c))
            kvt__index_restore(ix, &c);
    kvt__index_each(ix, count_garbage, &n);
    kvt__ix_space(ix, "some text");
    kvt__index_recover(ix);
    kvt__index_get_totals(ix, &t);
}

#define ID_AT offsetof(struct ix_header, file_id)

/* Bytes above, but few enough values that all states and owners occur. */
static void
scribble(const struct dir *d, uint64_t seed, size_t from)
{
    int fd = openat(d->fd, "index", O_RDWR);
    size_t n = (FILE_BYTES - from) / 8;
    uint64_t *words = malloc(n * 8), file_id[2];

    assert_int_equal(pread(fd, file_id, sizeof file_id, ID_AT), sizeof file_id);
    for (size_t i = 0; i < n; i++) {
        words[i] = mix(seed * 1000003 + i);
        if (seed & 1)
            words[i] &= UINT64_C(0xffff0fff00ff0037);
    }
    assert_int_equal(pwrite(fd, words, n * 8, (off_t)from), n * 8);
    /* or the file would be replaced, and no garbage be met */
    assert_int_equal(pwrite(fd, file_id, sizeof file_id, ID_AT), sizeof file_id);
    free(words);
    close(fd);
}

static void
garbage_found_at_open_is_survived_and_healed(void **state)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct kvt__index *ix = open_writer(*state);
        kvt__index_close(ix);
        scribble(*state, seed, 52);
        poke(*state, 48, &(uint32_t){ IX_IN_USE }, 4);
        poke(*state, 60, &(uint32_t){ 0 }, 4); /* wide_hashes */
        ino_t ino = inode(*state);
        ix = open_writer(*state);
        assert_true(kvt__index_is_shared(ix));
        assert_true(inode(*state) == ino);
        use_garbage(ix, seed);
        kvt__index_clear(ix);
        kvt__index_each(ix, fail_on_entry, NULL);
        struct kvt__id id = id_of(seed);
        assert_int_equal(put(ix, &id), 0);
        assert_true(adds_up(ix, 0));
        kvt__index_close(ix);
    }
}

static void
garbage_written_while_open_is_survived(void **state)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct kvt__index *a = open_writer(*state);
        struct kvt__index *b = open_writer(*state);
        struct kvt__index_claim c;
        struct kvt__id id = id_of(seed);

        claim(a, &id, &c);
        scribble(*state, seed, seed & 2 ? 0 : 52);
        poke(*state, 48, &(uint32_t){ IX_IN_USE }, 4);
        use_garbage(a, seed);
        kvt__index_publish(a, &c);
        use_garbage(b, seed + 20);
        kvt__index_close(a);
        use_garbage(b, seed);
        kvt__index_close(b);
        b = open_writer(*state);
        assert_true(kvt__index_is_shared(b));
        kvt__index_clear(b);
        kvt__index_each(b, fail_on_entry, NULL);
        assert_int_equal(put(b, &id), 0);
        assert_true(adds_up(b, 0));
        kvt__index_close(b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(garbage_found_at_open_is_survived_and_healed),
        INDEX_TEST(garbage_written_while_open_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
