/* SPDX-License-Identifier: Apache-2.0
 *
 * An index of version 3 is read once; garbage in the index makes no call fail. */
#include "place-test.h"

#include "index/index.h"

static const char *const texts[] = { TEXT, "m/l@1@0@@bfloat16@tag%value" };

static struct kvt__name
v3_name(uint64_t n)
{
    struct kvt__name name = { .digest = kvt__table_digest(texts[n % 2]),
                              .hash = { { n * 31 + 1 }, (enum kvt__hash_form)(n % 3) } };

    if (name.hash.form == KVT__HASH_WIDE)
        name.hash.bits[1] = name.hash.bits[3] = n;
    return name;
}

static void
make_v3(const struct dir *d, bool wide)
{
    struct kvt__index_params params = { .dirfd = d->fd, .n_entries = 1024, .writer = true,
                                        .wide_hashes = wide };
    struct kvt__index *ix;

    assert_int_equal(kvt__index_open(&params, &ix), 0);
    assert_true(kvt__index_is_shared(ix));
    for (uint64_t i = 0; i < 6; i++) {
        struct kvt__index_entry e = { .id = id_of(i), .hash = v3_name(i).hash,
                                      .bytes = 1000 + i, .path = (uint32_t)i,
                                      .flags = i == 3 ? KVT__INDEX_FOREIGN : 0,
                                      .recency_ns = (int64_t)(1 + i) << 40 };
        struct kvt__index_claim c;

        if (!wide && e.hash.form == KVT__HASH_WIDE)
            continue;
        assert_int_equal(kvt__index_reserve(ix, e.bytes), 0);
        assert_int_equal(kvt__index_claim(ix, &e, texts[i % 2], &c), 0);
        if (i != 4) /* the claim ends with the handle */
            assert_true(kvt__index_publish(ix, &c));
    }
    kvt__index_close(ix);
}

static void
an_index_of_version_3_is_read_once(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);

    params.wide_hashes = true;
    make_v3(d, true);
    struct kvt__table *t = open_with(d, &params);
    assert_true(kvt__table_is_shared(t));
    assert_true(faccessat(d->fd, "index", F_OK, 0));
    assert_int_equal(kvt__table_read_v3(t, d->fd), 5);
    for (uint64_t i = 0; i < 6; i++) {
        struct kvt__name name = v3_name(i);
        struct kvt__id id = id_of(i);
        struct kvt__record r;
        char text[KVT__TABLE_TEXT_MAX + 1];

        assert_int_equal(kvt__table_find(t, &name, &id, &r), i != 4);
        if (i == 4)
            continue;
        assert_int_equal(r.bytes, 1000 + i);
        assert_int_equal(r.path, i);
        assert_int_equal(r.flags, i == 3 ? KVT__TABLE_FOREIGN : 0);
        assert_int_equal(r.recency_ns, (int64_t)(1 + i) << 40);
        assert_int_equal(kvt__table_space_text(t, r.space, text, sizeof text), 0);
        assert_string_equal(text, texts[i % 2]);
    }
    recount(t);
    assert_int_equal(kvt__table_read_v3(t, d->fd), -ENOENT);
    kvt__table_close(t);
}

static void
an_index_that_lock_does_not_name_is_deleted(void **state)
{
    static const uint64_t other[2] = { 1, 2 };
    const struct dir *d = *state;

    make_v3(d, false);
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, other, sizeof other, 8192), sizeof other);
    close(fd);
    struct kvt__table *t = open_writer(d);
    assert_int_equal(kvt__table_read_v3(t, d->fd), -ENOENT);
    assert_true(faccessat(d->fd, "index", F_OK, 0));
    kvt__table_close(t);
}

/* An older kvtier ran after this one: the table is stale, its index is read. */
static void
a_later_index_of_version_3_replaces_the_table(void **state)
{
    const struct dir *d = *state;

    store_one_and_close(d);
    make_v3(d, false);
    struct kvt__table *t = open_writer(d);
    assert_false(find(t, 1, NULL));
    assert_int_equal(kvt__table_read_v3(t, d->fd), 3);
    recount(t);
    kvt__table_close(t);
}

static void
garbage_in_an_index_of_version_3_is_left_out(void **state)
{
    const struct dir *d = *state;
    uint64_t seed = 1;

    for (int i = 0; i < 300; i++) {
        make_v3(d, true);
        int fd = openat(d->fd, "index", O_RDWR | O_CLOEXEC);
        off_t size = lseek(fd, 0, SEEK_END);
        for (int n = 0; n < 2000; n++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            uint64_t word = seed ^ seed >> 29;
            /* The number at 112 and the magic stay. */
            off_t at = 128 + (off_t)(word >> 8) % (size - 136);
            assert_int_equal(pwrite(fd, &word, sizeof word, at), sizeof word);
        }
        if (i % 3 == 0)
            assert_int_equal(ftruncate(fd, 4096 + (off_t)(seed % (uint64_t)size)), 0);
        close(fd);
        struct kvt__table *t = open_writer(d);
        assert_true(kvt__table_read_v3(t, d->fd) >= 0);
        recount(t);
        kvt__table_close(t);
        empty(d->path);
        empty(d->shm);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(an_index_of_version_3_is_read_once),
        PLACE_TEST(an_index_that_lock_does_not_name_is_deleted),
        PLACE_TEST(a_later_index_of_version_3_replaces_the_table),
        PLACE_TEST(garbage_in_an_index_of_version_3_is_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
