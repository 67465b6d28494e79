/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes of 256 bits, and tables without room for wide hashes. */
#include "index-test.h"

static struct kvt__index *
open_wide(const struct dir *d, bool writer)
{
    struct kvt__index_params p = { .dirfd = d ? d->fd : -1, .n_entries = 1024,
                                   .writer = writer, .wide_hashes = true };
    struct kvt__index *ix;

    return kvt__index_open(&p, &ix) ? NULL : ix;
}

/* An entry number i whose hash has 256 bits. */
static struct kvt__index_entry
wide_entry(uint64_t i)
{
    struct kvt__id id = id_of(i);
    struct kvt__index_entry e = entry_of(&id);

    e.hash = (struct kvt__hash){ { mix(i), ~mix(i), i, UINT64_MAX - i }, KVT__HASH_WIDE };
    return e;
}

static int
put_entry(struct kvt__index *ix, const struct kvt__index_entry *e)
{
    struct kvt__index_claim c;
    int rc = kvt__index_reserve(ix, e->bytes);

    if (!rc)
        rc = kvt__index_claim(ix, e, NULL, &c);
    if (!rc)
        kvt__index_publish(ix, &c);
    return rc;
}

static void
wide_hashes_come_back_from_file_and_memory(void **state)
{
    const struct dir *const dirs[] = { *state, NULL };
    struct kvt__index_entry out;

    for (size_t d = 0; d < 2; d++) {
        struct kvt__index *ix = open_wide(dirs[d], true);

        for (uint64_t i = 0; i < 200; i++) {
            struct kvt__index_entry e = wide_entry(i);

            assert_int_equal(put_entry(ix, &e), 0);
        }
        /* Hashes of 64 bits lie among them. */
        struct kvt__id narrow = id_of(1000);
        assert_int_equal(put(ix, &narrow), 0);
        if (dirs[d]) {
            kvt__index_close(ix);
            ix = open_writer(dirs[d]); /* one that wants none finds them */
        }
        for (uint64_t i = 0; i < 200; i++) {
            struct kvt__index_entry e = wide_entry(i);

            assert_true(kvt__index_find(ix, &e.id, &out));
            assert_true(same_hash(&out.hash, &e.hash));
        }
        assert_true(kvt__index_find(ix, &narrow, &out));
        assert_true(entry_is_whole(&out));
        kvt__index_close(ix);
    }
}

static void
without_room_for_it_a_wide_hash_is_enotsup(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__index_entry e = wide_entry(1);

    assert_int_equal(put_entry(ix, &e), -ENOTSUP);
    kvt__index_unreserve(ix, e.bytes);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
file_without_room_for_wide_hashes_is_replaced(void **state)
{
    struct dir *d = *state;
    struct kvt__id id = id_of(1);

    put_one_and_close(d);
    struct kvt__index *old = open_writer(d), *ix = open_wide(d, true);
    assert_false(kvt__index_find(ix, &id, NULL));
    assert_false(kvt__index_scanned(ix));
    assert_int_equal(put(old, &id), -ESTALE);
    kvt__index_close(old);
    struct kvt__index_entry e = wide_entry(1);
    assert_int_equal(put_entry(ix, &e), 0);
    kvt__index_close(ix);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(wide_hashes_come_back_from_file_and_memory),
        INDEX_TEST(without_room_for_it_a_wide_hash_is_enotsup),
        INDEX_TEST(file_without_room_for_wide_hashes_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
