/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of the index: made, kept, refused, replaced; other boots, forks, and
 * bytes that are garbage. */
#include "index-test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define FILE_BYTES (sizeof(struct ix_map) + 1024 * sizeof(struct ix_entry))

static void
poke(const struct dir *d, off_t at, const void *bytes, size_t n)
{
    int fd = openat(d->fd, "index", O_RDWR);

    assert_int_equal(pwrite(fd, bytes, n, at), n);
    close(fd);
}

static ino_t
inode(const struct dir *d)
{
    struct stat st;

    assert_int_equal(fstatat(d->fd, "index", &st, 0), 0);
    return st.st_ino;
}

static void
put_one_and_close(const struct dir *d)
{
    struct kvt__index *ix = open_writer(d);
    struct kvt__id id = id_of(1);

    assert_int_equal(put(ix, &id), 0);
    kvt__index_set_scanned(ix, true);
    kvt__index_close(ix);
}

/* Opens shared, without what was stored, and works. */
static void
expect_new(const struct dir *d)
{
    struct kvt__index *ix = open_writer(d);
    struct kvt__id id = id_of(1);

    assert_true(kvt__index_is_shared(ix));
    assert_false(kvt__index_scanned(ix));
    assert_false(kvt__index_find(ix, &id, NULL));
    assert_int_equal(put(ix, &id), 0);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
entries_survive_close(void **state)
{
    struct kvt__id id = id_of(1);
    struct stat st;

    put_one_and_close(*state);
    struct kvt__index *ix = open_writer(*state);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(kvt__index_scanned(ix));
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
    assert_int_equal(fstatat(((struct dir *)*state)->fd, "index", &st, 0), 0);
    assert_int_equal(st.st_size, FILE_BYTES);
    assert_true(st.st_blocks * 512 >= st.st_size);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(n_warnings, 0);
}

static void
bytes_of_an_entry_are_those_of_the_page(void **state)
{
    static const uint8_t want[48] = {
        0x02, 0, 4, 0, 0, 0, 0, 0, /* ready; four moves */
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0x55, 0x44, 0x33, 0x22, 0x11, 0x02, 0x01, 0x85,
        0x88, 0x77, 0x66, 0x55, 2, 0, 0, 0,
    };
    struct dir *d = *state;
    struct kvt__index *ix = open_writer(d);
    struct kvt__index_entry e = {
        .id = { { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } },
        .hash = { { (uint64_t)-2 }, KVT__HASH_UNSIGNED }, .bytes = 0x1122334455,
        .space = 0x102, .path = 5, .tokens = 0x55667788,
        .flags = KVT__INDEX_FOREIGN, .recency_ns = 0x0102030405060000,
    };
    struct kvt__index_claim c;
    uint8_t got[64];

    assert_int_equal(kvt__index_reserve(ix, e.bytes), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
    kvt__index_publish(ix, &c);
    int fd = openat(d->fd, "index", O_RDONLY);
    /* n is 128: group 0x0807060504030201 mod 128 */
    off_t at = 4096 + 64 * 64 + 4096 * 512 + 1 * 8 * 64;
    assert_int_equal(pread(fd, got, sizeof got, at), sizeof got);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(got[50], 6);
    assert_int_equal(got[55], 1);
    assert_int_equal(pread(fd, got, 8, 72), 8);
    assert_memory_equal(got, "\x55\x44\x33\x22\x11\0\0\0", 8);
    close(fd);
    kvt__index_close(ix);
}

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

static void
file_keeps_the_size_it_was_made_with(void **state)
{
    struct dir *d = *state;
    struct kvt__index_params p = { .dirfd = d->fd, .n_entries = 5000 };
    struct kvt__index_totals t;
    struct kvt__index *a, *b;

    assert_int_equal(kvt__index_open(&p, &a), 0);
    kvt__index_get_totals(a, &t);
    assert_int_equal(t.n_entries, 8192);
    b = open_writer(d);
    kvt__index_get_totals(b, &t);
    assert_int_equal(t.n_entries, 8192);
    kvt__index_close(a);
    kvt__index_close(b);
}

static void
truncated_or_longer_file_is_replaced(void **state)
{
    struct dir *d = *state;
    const off_t sizes[] = { 0, 1, 4095, 4096, FILE_BYTES - 1, FILE_BYTES + 1,
                            2 * FILE_BYTES };

    for (unsigned i = 0; i < 7; i++) {
        put_one_and_close(d);
        int fd = openat(d->fd, "index", O_RDWR);
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        close(fd);
        expect_new(d);
        unlinkat(d->fd, "index", 0);
    }
    assert_int_equal(n_warnings, 0);
}

static void
damaged_header_is_replaced(void **state)
{
    static const struct {
        off_t at;
        uint32_t v;
    } damage[] = {
        { 0, 0x31313131 }, { 8, 2 }, { 8, 4 }, { 8, 0 }, { 12, 8192 }, { 16, 0 },
        { 16, 1000 }, { 16, 512 }, { 16, 2048 }, { 20, 1 }, { 20, 0x80000000 },
        { 24, 65 }, { 28, 0 }, { 48, 0 }, { 48, 2 }, { 48, 77 },
    };

    for (unsigned i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        put_one_and_close(*state);
        poke(*state, damage[i].at, &damage[i].v, 4);
        expect_new(*state);
        unlinkat(((struct dir *)*state)->fd, "index", 0);
    }
}

static void
replaced_table_finds_nothing_and_is_estale(void **state)
{
    struct kvt__index *old = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;
    ino_t ino = inode(*state);

    assert_int_equal(put(old, &id), 0);
    poke(*state, 8, &(uint32_t){ 99 }, 4);
    struct kvt__index *ix = open_writer(*state);
    assert_true(kvt__index_is_shared(ix));
    assert_true(inode(*state) != ino);
    assert_false(kvt__index_find(old, &id, NULL));
    assert_int_equal(kvt__index_reserve(old, 1), -ESTALE);
    assert_int_equal(kvt__index_evict(old, &id, true, NULL, &c), -ESTALE);
    assert_int_equal(kvt__ix_space(old, "m"), -ESTALE);
    assert_int_equal(put(ix, &id), 0);
    kvt__index_close(old);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
symbolic_link_is_not_followed(void **state)
{
    struct dir *d = *state;
    struct stat st;

    assert_int_equal(symlinkat("/dev/zero", d->fd, "index"), 0);
    expect_new(d);
    assert_int_equal(fstatat(d->fd, "index", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISREG(st.st_mode));
}

static void
without_a_file_the_table_is_private_and_says_so_once(void **state)
{
    struct dir *d = *state;
    struct kvt__id id = id_of(1);

    assert_int_equal(mkdirat(d->fd, "index", 0700), 0);
    struct kvt__index *a = open_writer(d);
    assert_int_equal(n_warnings, 1);
    struct kvt__index *b = open_writer(d);
    assert_int_equal(n_warnings, 2);
    assert_false(kvt__index_is_shared(a));
    assert_int_equal(put(a, &id), 0);
    assert_true(kvt__index_find(a, &id, NULL));
    assert_false(kvt__index_find(b, &id, NULL));
    assert_int_equal(drop(a, &id), 0);
    assert_int_equal(kvt__index_recover(a), 0);
    assert_true(adds_up(a, 0));
    kvt__index_close(a);
    kvt__index_close(b);
}

static int
open_on_a_full_disk(const struct dir *d)
{
    struct rlimit limit = { 65536, 65536 };
    struct kvt__id id = id_of(1);

    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    struct kvt__index *ix = open_writer(d);
    bool ok = !kvt__index_is_shared(ix) && n_warnings == 1 && !put(ix, &id)
              && kvt__index_find(ix, &id, NULL)
              && faccessat(d->fd, "index", F_OK, 0)
              && faccessat(d->fd, "index.new", F_OK, 0);
    kvt__index_close(ix);
    return ok ? 0 : 1;
}

static void
failed_allocation_leaves_no_file_and_a_private_table(void **state)
{
    int status;
    pid_t pid = fork();

    if (!pid)
        _exit(open_on_a_full_disk(*state));
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

static void
no_directory_is_a_private_table_without_a_word(void **state)
{
    struct kvt__index *ix = open_with(NULL, 100, true);
    struct kvt__id id = id_of(1);

    (void)state;
    assert_false(kvt__index_is_shared(ix));
    assert_int_equal(n_warnings, 0);
    assert_int_equal(kvt__index_reserve(ix, 101), -ENOSPC);
    assert_true(kvt__ix_space(ix, "m") >= 0);
    struct kvt__index_entry e = { .id = id, .bytes = 50 };
    struct kvt__index_claim c;
    assert_int_equal(kvt__index_reserve(ix, 50), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), 0);
    assert_int_equal(kvt__index_claim(ix, &e, NULL, &c), -EEXIST);
    kvt__index_close(ix);
}

static void
sixty_fifth_writer_has_a_private_table(void **state)
{
    struct kvt__index *ix[65], *r;

    for (unsigned i = 0; i < 65; i++) {
        ix[i] = open_writer(*state);
        assert_int_equal(kvt__index_is_shared(ix[i]), i < 64);
    }
    r = open_with(*state, 0, false);
    assert_true(kvt__index_is_shared(r));
    kvt__index_close(r);
    kvt__index_close(ix[10]);
    ix[10] = open_writer(*state);
    assert_true(kvt__index_is_shared(ix[10]));
    for (unsigned i = 0; i < 65; i++)
        kvt__index_close(ix[i]);
}

static void
other_boot_voids_leases_claims_and_owners(void **state)
{
    struct dir *d = *state;
    struct kvt__id ready = id_of(1), claimed = id_of(2), evicting = id_of(3);
    struct kvt__index_claim c;
    int status;

    pid_t pid = fork();
    if (!pid) {
        struct kvt__index *ix = open_writer(d);
        put(ix, &ready);
        put(ix, &evicting);
        kvt__index_lease(ix, &ready, kvt__now_ns() + 60 * KVT__NS_PER_S, NULL);
        claim(ix, &claimed, &c);
        kvt__index_evict(ix, &evicting, false, NULL, &c);
        kvt__index_reserve(ix, 1000);
        kvt__index_set_scanned(ix, true);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    poke(d, 32, "another boot id.", 16);
    struct kvt__index *ix = open_writer(d);
    assert_true(kvt__index_find(ix, &ready, NULL));
    assert_false(kvt__index_find(ix, &claimed, NULL));
    assert_false(kvt__index_find(ix, &evicting, NULL));
    assert_false(kvt__index_scanned(ix));
    assert_true(adds_up(ix, 0));
    assert_int_equal(drop(ix, &ready), 0);
    assert_int_equal(put(ix, &claimed), 0);
    assert_int_equal(put(ix, &evicting), 0);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
closed_table_of_another_boot_stays_scanned(void **state)
{
    struct kvt__id id = id_of(1);

    put_one_and_close(*state);
    poke(*state, 32, "another boot id.", 16);
    struct kvt__index *ix = open_writer(*state);
    assert_true(kvt__index_scanned(ix));
    assert_true(kvt__index_find(ix, &id, NULL));
    kvt__index_close(ix);
}

static int
use_in_child(struct kvt__index *ix, const struct kvt__id *id)
{
    struct kvt__index_totals t;
    struct kvt__index_claim c;
    bool ok = kvt__index_reserve(ix, 1) == -ESTALE
              && claim(ix, id, &c) == -ESTALE
              && kvt__index_evict(ix, id, true, NULL, &c) == -ESTALE
              && kvt__ix_space(ix, "m") == -ESTALE
              && !kvt__index_find(ix, id, NULL)
              && !kvt__index_lease(ix, id, INT64_MAX, NULL)
              && !kvt__index_scanned(ix) && !kvt__index_recover(ix);

    kvt__index_touch(ix, id);
    kvt__index_unlease(ix, id);
    kvt__index_clear(ix);
    kvt__index_get_totals(ix, &t);
    kvt__index_close(ix);
    return ok ? 0 : 1;
}

static void
handle_is_dead_in_a_forked_child(void **state)
{
    struct kvt__index *shared = open_writer(*state), *own = open_writer(NULL);
    struct kvt__id id = id_of(1);
    int status;

    put(shared, &id);
    put(own, &id);
    pid_t pid = fork();
    if (!pid)
        _exit(use_in_child(shared, &id) | use_in_child(own, &id));
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_true(kvt__index_find(shared, &id, NULL));
    assert_true(kvt__index_find(own, &id, NULL));
    kvt__index_close(shared);
    kvt__index_close(own);
}

static void
child_of_a_dead_owner_does_not_keep_it_alive(void **state)
{
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;
    int ready[2], hold[2];
    char b;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (!pid) {
        struct kvt__index *ix = open_writer(*state);
        close(hold[1]);
        claim(ix, &id, &c);
        if (!fork()) {
            ssize_t n = write(ready[1], "x", 1) + read(hold[0], &b, 1);
            _exit((int)n);
        }
        pause();
    }
    close(hold[0]);
    assert_int_equal(read(ready[0], &b, 1), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    struct kvt__index *ix = open_writer(*state);
    assert_int_equal(put(ix, &id), 0);
    kvt__index_close(ix);
    close(hold[1]);
    close(ready[0]);
    close(ready[1]);
}

/* ------------------------------------------------------------------ garbage */

static bool
count_garbage(void *ctx, const struct kvt__index_entry *e)
{
    ++*(size_t *)ctx;
    return e->space < IX_N_SPACES && e->path < 128 && e->bytes < IX_MAX_BYTES;
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
    }
    n = kvt__index_first(ix, NULL, out, 20);
    for (size_t i = 0; i < n; i++)
        if (!kvt__index_evict(ix, &out[i].id, true, NULL, &c))
            kvt__index_restore(ix, &c);
    kvt__index_each(ix, count_garbage, &n);
    kvt__ix_space(ix, "some text");
    kvt__index_recover(ix);
    kvt__index_get_totals(ix, &t);
    assert_true(t.n_ready <= t.n_entries && t.n_unread <= t.n_ready);
}

/* Bytes above, but few enough values that all states and owners occur. */
static void
scribble(const struct dir *d, uint64_t seed, size_t from)
{
    int fd = openat(d->fd, "index", O_RDWR);
    size_t n = (FILE_BYTES - from) / 8;
    uint64_t *words = malloc(n * 8);

    for (size_t i = 0; i < n; i++) {
        words[i] = mix(seed * 1000003 + i);
        if (seed & 1)
            words[i] &= UINT64_C(0xffff0fff00ff0037);
    }
    assert_int_equal(pwrite(fd, words, n * 8, (off_t)from), n * 8);
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
        ix = open_writer(*state);
        assert_true(kvt__index_is_shared(ix));
        use_garbage(ix, seed);
        kvt__index_clear(ix);
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
        assert_int_equal(put(b, &id), 0);
        assert_true(adds_up(b, 0));
        kvt__index_close(b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(entries_survive_close),
        INDEX_TEST(bytes_of_an_entry_are_those_of_the_page),
        INDEX_TEST(wide_hashes_come_back_from_file_and_memory),
        INDEX_TEST(without_room_for_it_a_wide_hash_is_enotsup),
        INDEX_TEST(file_without_room_for_wide_hashes_is_replaced),
        INDEX_TEST(file_keeps_the_size_it_was_made_with),
        INDEX_TEST(truncated_or_longer_file_is_replaced),
        INDEX_TEST(damaged_header_is_replaced),
        INDEX_TEST(replaced_table_finds_nothing_and_is_estale),
        INDEX_TEST(symbolic_link_is_not_followed),
        INDEX_TEST(without_a_file_the_table_is_private_and_says_so_once),
        INDEX_TEST(failed_allocation_leaves_no_file_and_a_private_table),
        INDEX_TEST(no_directory_is_a_private_table_without_a_word),
        INDEX_TEST(sixty_fifth_writer_has_a_private_table),
        INDEX_TEST(other_boot_voids_leases_claims_and_owners),
        INDEX_TEST(closed_table_of_another_boot_stays_scanned),
        INDEX_TEST(handle_is_dead_in_a_forked_child),
        INDEX_TEST(child_of_a_dead_owner_does_not_keep_it_alive),
        INDEX_TEST(garbage_found_at_open_is_survived_and_healed),
        INDEX_TEST(garbage_written_while_open_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
