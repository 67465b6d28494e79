/* SPDX-License-Identifier: Apache-2.0
 *
 * An index of version 3 is read once; garbage in the index makes no call fail.  The test writes
 * the bytes of an index of version 3: header, owners, spaces, entries, rests of wide hashes. */
#include "place-test.h"

#define N_ENTRIES 8192u /* more than the reader takes at a time */
#define SPACES_AT (4096u + 64u * 64u)
#define ENTRIES_AT (SPACES_AT + 4096u * 512u)
#define WIDE_AT (ENTRIES_AT + N_ENTRIES * 64u)
#define FILE_BYTES (WIDE_AT + N_ENTRIES * 24u)

enum { CLAIMED = 1, READY, EVICTING };
enum { UNREAD = 1, FOREIGN = 2, WIDE = 4, EXPECTED = 8 };
enum { VALID = 2 };

static const char *const texts[] = { TEXT, "m/l@1@0@@bfloat16@tag%value" };

/* Entry i of the index. */
struct chunk {
    uint32_t state, flags, space; /* 0: texts[0]; 1500: texts[1]; others have no text */
    enum kvt__hash_form form;
    uint64_t hash;
    bool is_left_out;
};

#define HIGH (UINT64_C(1) << 63)

static const struct chunk chunks[] = {
    { .state = READY, .hash = 1 },
    { .state = READY, .hash = HIGH | 2 },
    { .state = READY, .hash = HIGH | 2, .form = KVT__HASH_UNSIGNED },
    { .state = READY, .hash = 3, .form = KVT__HASH_UNSIGNED },
    { .state = READY, .hash = 4, .flags = FOREIGN },
    { .state = READY, .hash = 5, .flags = UNREAD },
    { .state = READY, .hash = 6, .flags = WIDE, .form = KVT__HASH_WIDE },
    { .state = READY, .hash = 1, .space = 1500 },
    { .state = READY, .hash = 7, .space = 1500, .flags = WIDE, .form = KVT__HASH_WIDE },
    { .state = CLAIMED, .hash = 8, .is_left_out = true },
    { .state = EVICTING, .hash = 9, .is_left_out = true },
    { .state = READY, .hash = 10, .flags = EXPECTED, .is_left_out = true },
    { .state = READY, .hash = 11, .space = 7, .is_left_out = true },
    { .state = READY, .hash = 12, .space = 0xffff, .is_left_out = true },
};

#define N_CHUNKS (sizeof chunks / sizeof *chunks)

static struct kvt__name
v3_name(size_t i)
{
    const struct chunk *c = &chunks[i];
    struct kvt__name name = { .digest = kvt__table_digest(texts[c->space == 1500]),
                              .hash = { { c->hash }, c->form } };

    if (c->form == KVT__HASH_WIDE)
        memcpy(&name.hash.bits[1], (uint64_t[3]){ i, 0, ~(uint64_t)i }, 24);
    else if (!(c->hash & HIGH)) /* one spelling, one name */
        name.hash.form = KVT__HASH_SIGNED;
    return name;
}

static void
put32(char *file, size_t at, uint32_t value)
{
    memcpy(file + at, &value, sizeof value);
}

static void
put64(char *file, size_t at, uint64_t value)
{
    memcpy(file + at, &value, sizeof value);
}

static void
put_space(char *file, size_t number, const char *text)
{
    size_t at = SPACES_AT + number * 512;

    put32(file, at, VALID);
    put64(file, at + 8, kvt__table_digest(text));
    put32(file, at + 16, (uint32_t)strlen(text));
    memcpy(file + at + 24, text, strlen(text));
}

/* The entries lie apart: some before and some behind the first part that is read. */
static void
put_chunk(char *file, uint64_t i, bool wide)
{
    const struct chunk *c = &chunks[i];
    size_t number = i * (N_ENTRIES / N_CHUNKS), at = ENTRIES_AT + number * 64;
    struct kvt__id id = id_of(i);

    put64(file, at, 3 << 16 | c->state);
    memcpy(file + at + 8, id.b, sizeof id.b);
    put64(file, at + 24, c->hash);
    put64(file, at + 32, (1000 + i) | (uint64_t)c->space << 40 | i << 56 |
                         (c->form == KVT__HASH_UNSIGNED ? HIGH : 0));
    put32(file, at + 40, 256); /* tokens */
    put32(file, at + 44, c->flags);
    put64(file, at + 48, (i + 1) << 40 | 3);
    if (wide)
        memcpy(file + WIDE_AT + number * 24, &v3_name(i).hash.bits[1], 24);
}

/* Return the bytes of a file; save_v3() frees the bytes. */
static char *
make_v3(bool wide)
{
    char *file = calloc(1, FILE_BYTES);

    assert_non_null(file);
    memcpy(file, "KVTINDEX", 8);
    put32(file, 8, 3);
    put32(file, 12, 4096);
    put64(file, 16, N_ENTRIES);
    put32(file, 24, 64);
    put32(file, 28, 4096);
    put32(file, 48, 1); /* in use */
    put32(file, 60, wide);
    put64(file, 112, 0x1234);
    put64(file, 120, 0x5678);
    put_space(file, 0, texts[0]);
    put_space(file, 1500, texts[1]);
    for (uint64_t i = 0; i < N_CHUNKS; i++)
        put_chunk(file, i, wide);
    return file;
}

/* Write the first n bytes to the file, and the file's number to `lock`.  Frees the bytes. */
static void
save_v3(const struct dir *d, char *file, size_t n)
{
    int fd = openat(d->fd, "index", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int lock = openat(d->fd, "lock", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, file, n), n);
    assert_int_equal(pwrite(lock, file + 112, 16, 8192), 16);
    close(fd);
    close(lock);
    free(file);
}

static void
save_whole_v3(const struct dir *d, bool wide)
{
    save_v3(d, make_v3(wide), wide ? FILE_BYTES : WIDE_AT);
}

static void
expect_chunk(struct kvt__table *t, size_t i)
{
    const struct chunk *c = &chunks[i];
    struct kvt__id id = id_of(i), none = { { 0 } };
    struct kvt__name name = v3_name(i);
    struct kvt__record r;
    char text[KVT__TABLE_TEXT_MAX + 1];

    assert_true(kvt__table_find(t, &name, NULL, &r));
    assert_memory_equal(r.id.b, c->flags & UNREAD ? none.b : id.b, sizeof id.b);
    assert_int_equal(r.bytes, 1000 + i);
    assert_int_equal(r.flags, c->flags & (UNREAD | FOREIGN));
    assert_int_equal(r.recency_ns, (int64_t)(i + 1) << 40);
    assert_int_equal(r.n_uses, 3);
    assert_int_equal(kvt__table_space_text(t, r.space, text, sizeof text), 0);
    assert_string_equal(text, texts[c->space == 1500]);
}

static void
an_index_of_version_3_is_read_once(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);
    int64_t n = 0;

    params.wide_hashes = true;
    save_whole_v3(d, true);
    struct kvt__table *t = open_with(d, &params);
    assert_true(kvt__table_is_shared(t));
    assert_true(faccessat(d->fd, "index", F_OK, 0));
    for (size_t i = 0; i < N_CHUNKS; i++)
        n += !chunks[i].is_left_out;
    assert_int_equal(kvt__table_read_v3(t, d->fd), n);
    for (size_t i = 0; i < N_CHUNKS; i++)
        if (!chunks[i].is_left_out)
            expect_chunk(t, i);
    recount(t);
    assert_int_equal(kvt__table_read_v3(t, d->fd), -ENOENT);
    kvt__table_close(t);
}

static void
without_room_for_wide_hashes_the_others_are_read(void **state)
{
    const struct dir *d = *state;

    for (int wide = 0; wide < 2; wide++) {
        save_whole_v3(d, wide);
        struct kvt__table *t = open_writer(d);
        assert_int_equal(kvt__table_read_v3(t, d->fd), 7);
        for (size_t i = 0; i < N_CHUNKS; i++)
            if (!chunks[i].is_left_out && chunks[i].form != KVT__HASH_WIDE)
                expect_chunk(t, i);
        recount(t);
        kvt__table_close(t);
        empty(d->path);
        empty(d->shm);
    }
}

static void
an_index_that_lock_does_not_name_is_deleted(void **state)
{
    static const uint64_t other[2] = { 1, 2 };
    const struct dir *d = *state;

    save_whole_v3(d, false);
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, other, sizeof other, 8192), sizeof other);
    close(fd);
    struct kvt__table *t = open_writer(d);
    assert_int_equal(kvt__table_read_v3(t, d->fd), -ENOENT);
    assert_true(faccessat(d->fd, "index", F_OK, 0));
    kvt__table_close(t);
}

/* An older kvtier ran after this kvtier: the table is stale, and the older index is read. */
static void
a_later_index_of_version_3_replaces_the_table(void **state)
{
    const struct dir *d = *state;

    store_one_and_close(d);
    save_whole_v3(d, false);
    struct kvt__table *t = open_writer(d);
    assert_false(find(t, 1, NULL));
    assert_int_equal(kvt__table_read_v3(t, d->fd), 7);
    recount(t);
    kvt__table_close(t);
}

static void
an_entry_of_the_table_is_younger(void **state)
{
    const struct dir *d = *state;
    struct kvt__name name = v3_name(0);
    struct kvt__record record = record_of_n(99, 10), r;

    save_whole_v3(d, false);
    struct kvt__table *t = open_writer(d);
    assert_int_equal(kvt__table_enter(t, &name, &record, TEXT), 0);
    assert_int_equal(kvt__table_read_v3(t, d->fd), 6);
    assert_true(kvt__table_find(t, &name, &record.id, &r));
    assert_int_equal(r.bytes, 10);
    recount(t);
    kvt__table_close(t);
}

static void
garbage_in_an_index_of_version_3_is_left_out(void **state)
{
    const struct dir *d = *state;
    uint64_t seed = 1;

    for (int i = 0; i < 100; i++) {
        char *file = make_v3(true);
        size_t n = FILE_BYTES;
        for (int words = 0; words < 2000; words++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            uint64_t word = seed ^ seed >> 29;
            /* Mostly entries, sometimes spaces; the number at 112 and the magic stay. */
            size_t from = words % 10 ? ENTRIES_AT : 128;
            put64(file, from + (size_t)(word >> 8) % (FILE_BYTES - from - 8), word);
        }
        if (i % 3 == 0)
            n = 4096 + (size_t)(seed >> 8) % (FILE_BYTES - 4096);
        save_v3(d, file, n);
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
        PLACE_TEST(without_room_for_wide_hashes_the_others_are_read),
        PLACE_TEST(an_index_that_lock_does_not_name_is_deleted),
        PLACE_TEST(a_later_index_of_version_3_replaces_the_table),
        PLACE_TEST(an_entry_of_the_table_is_younger),
        PLACE_TEST(garbage_in_an_index_of_version_3_is_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
