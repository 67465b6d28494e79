/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of the file system during a probe, a get or a listing: an error is neither a missing
 * chunk, nor a chunk of LMCache, nor the end of a directory. */
#include <dirent.h>
#include <sys/xattr.h>

#include "fs-test.h"
#include "gds-test.h"
#include "tier/layout/layout.h"

/* The errno of the call number `calls_left`; 0: none fails. */
static int failing;
static unsigned calls_left;

static bool
fails(void)
{
    if (!failing || calls_left--)
        return false;
    errno = failing;
    failing = 0;
    return true;
}

static void
fail_call(unsigned number, int err)
{
    calls_left = number;
    failing = err;
}

ssize_t __real_pread64(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at);

ssize_t
__wrap_pread64(int fd, void *to, size_t n, off_t at)
{
    return fails() ? -1 : __real_pread64(fd, to, n, at);
}

ssize_t __real_fgetxattr(int fd, const char *name, void *value, size_t n);
ssize_t __wrap_fgetxattr(int fd, const char *name, void *value, size_t n);

ssize_t
__wrap_fgetxattr(int fd, const char *name, void *value, size_t n)
{
    return fails() ? -1 : __real_fgetxattr(fd, name, value, n);
}

struct dirent *__real_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir);

/* Return each name twice. */
static bool repeats;

struct dirent *
__wrap_readdir64(DIR *dir)
{
    static struct dirent *last;
    struct dirent *e = last;

    last = NULL;
    if (e || fails())
        return e;
    e = __real_readdir64(dir);
    last = repeats ? e : NULL;
    return e;
}

/* Errno of the attributes of the file whose name contains `unreadable`. */
static const char *unreadable;
static int unreadable_errno;

static unsigned n_looks;

int __wrap_fstatat64(int fd, const char *name, struct stat64 *out, int flags);

#if __GLIBC_PREREQ(2, 33) /* an older C library has no fstatat() to wrap */
#define HAS_FSTATAT true
int __real_fstatat64(int fd, const char *name, struct stat64 *out, int flags);

int
__wrap_fstatat64(int fd, const char *name, struct stat64 *out, int flags)
{
    n_looks++;
    if (!unreadable || !strstr(name, unreadable))
        return __real_fstatat64(fd, name, out, flags);
    errno = unreadable_errno;
    return -1;
}
#else
#define HAS_FSTATAT false
#endif

static unsigned n_synced;

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int
__wrap_fsync(int fd)
{
    n_synced++;
    return fails() ? -1 : __real_fsync(fd);
}

/* fsync: true: a chunk that may not be on the disk is not stored. */
static void
a_put_that_cannot_be_synced_fails(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    struct kvt__found found;
    char url[512];

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    n_synced = 0;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(n_synced, 0);
    assert_int_equal(kvt__tier_remove(f->tier, &f->c.object), 0);
    assert_int_equal(try_open_for(url, true, "fsync=true", 1, &tier), 0);
    fail_call(0, EIO);
    assert_int_equal(put_bytes(tier, &f->c.object, 1000, 1), -EIO);
    assert_int_equal(kvt__tier_probe(tier, &f->c.object, &found), -ENOENT);
    assert_int_equal(put_bytes(tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(n_synced, 2);
    tier->ops->close(tier);
}

static void
a_probe_that_cannot_read_fails(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;

    for (int whole = 0; whole < 2; whole++) {
        f->c.object.is_full = whole;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        fail_call(0, EIO);
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), -EIO);
        assert_non_null(strstr(kvt__why(), f->dir.path));
        fail_call(0, EINTR);
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
        assert_true(found.has_id);
    }
}

/* A file that LMCache wrote has no trailer. */
static void
a_probe_that_cannot_read_the_header_fails(void **state)
{
    struct fixture *f = *state;
    unsigned char file[1028];
    struct kvt__found found;

    kvt__fs_header_put(&f->c.object.shape, 1000, file);
    fill(file + 28, 1000, 1);
    write_file(f->path, (char *)file, sizeof file);
    fail_call(1, EIO);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), -EIO);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
    assert_int_equal(found.payload_bytes, 1000);
}

/* A partial chunk without header has its identity in the attribute. */
static void
a_chunk_whose_identity_cannot_be_read_is_not_foreign(void **state)
{
    static const int none[] = { ENODATA, ENOTSUP, EPERM, EACCES, ENOSYS };
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    f->c.object.is_full = false;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    for (unsigned i = 0; i < 2; i++) {
        fail_call(1, EIO); /* after the payload, or the end of the file */
        assert_int_equal(i ? kvt__tier_probe(f->tier, &f->c.object, &found)
                           : get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EIO);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        fail_call(1, none[i]);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same), 0);
        assert_false(found.has_id);
    }
    assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same), 0);
    assert_true(found.has_id);
}

static void
a_directory_that_cannot_be_read_to_its_end_is_not_listed(void **state)
{
    struct fixture *f = *state;
    unsigned n_failed = 0;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
    for (;; n_failed++) {
        struct names names = { 0 };

        fail_call(n_failed, EIO);
        if (!f->tier->ops->list(f->tier, "", take_name, &names)) {
            assert_int_equal(names.n, 1);
            break;
        }
    }
    fail_call(0, 0);
    assert_true(n_failed > 4);
}

/* The listing goes on and returns an error: the file does not count for a limit yet. */
static void
a_file_with_unreadable_attributes_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct names names = { 0 };
    struct chunk other;

    if (!HAS_FSTATAT)
        skip();
    chunk_init(&other, "org/model", 0x77);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
    assert_int_equal(put_bytes(f->tier, &other.object, 10, 1), 0);
    unreadable = "-1234";
    unreadable_errno = EIO;
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), -EIO);
    assert_non_null(strstr(kvt__why(), f->dir.path));
    assert_int_equal(names.n, 1);
    unreadable_errno = ENOENT; /* deleted after readdir() */
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 2);
    unreadable = NULL;
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 4);
}

/* The receiver of names stops the tier. */
static unsigned n_until_stop;

static void
stop_tier(void *ctx, const char *key, bool opaque, uint64_t stored_bytes,
          int64_t mtime_ns, bool expires)
{
    struct fixture *f = ctx;

    (void)key, (void)opaque, (void)stored_bytes, (void)mtime_ns, (void)expires;
    n_until_stop++;
    f->tier->ops->stop(f->tier);
}

static void
a_stop_ends_a_listing(void **state)
{
    struct fixture *f = *state;
    struct chunk other;

    chunk_init(&other, "org/model", 0x77);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
    assert_int_equal(put_bytes(f->tier, &other.object, 10, 1), 0);
    n_until_stop = 0;
    assert_int_equal(f->tier->ops->list(f->tier, "", stop_tier, f), -ECANCELED);
    assert_int_equal(n_until_stop, 1);
}

static void
take_twice(void *ctx, const char *key, bool opaque, uint64_t stored_bytes,
           int64_t mtime_ns, bool expires)
{
    (void)key, (void)opaque, (void)mtime_ns, (void)expires;
    assert_int_equal(stored_bytes, 3 * 4096);
    ++*(unsigned *)ctx;
}

/* If a file is replaced during a listing, a file system may return the file's name twice. */
static void
a_name_that_is_read_twice_counts_once(void **state)
{
    struct fixture *f = *state;
    unsigned n = 0;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
    repeats = true;
    assert_int_equal(f->tier->ops->list(f->tier, "", take_twice, &n), 0);
    repeats = false;
    assert_int_equal(n, 1);
}

/* A listing calls fstatat() once for each file of a chunk, and for no missing file. */
static void
a_listing_checks_each_file_once(void **state)
{
    struct names names = { 0 };
    struct temp_dir dir;
    char url[1024];

    (void)state;
    if (!HAS_FSTATAT)
        skip();
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "gds://%1$s/a,%1$s/b,%1$s/c", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    for (int64_t i = 0; i < 9; i++) {
        struct chunk c;

        chunk_init(&c, "m", i % 2 ? 123400 + i : i);
        c.object.rank = (uint32_t)i;
        assert_int_equal(put_bytes(tier, &c.object, 10, 1), 0);
    }
    n_looks = 0;
    assert_int_equal(tier->ops->list(tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 9);
    assert_int_equal(n_looks, 2 * 9);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        HEADER(a_put_that_cannot_be_synced_fails),
        HEADER(a_probe_that_cannot_read_fails),
        HEADER(a_probe_that_cannot_read_the_header_fails),
        BARE(a_chunk_whose_identity_cannot_be_read_is_not_foreign),
        HEADER(a_directory_that_cannot_be_read_to_its_end_is_not_listed),
        cmocka_unit_test_setup_teardown(a_directory_that_cannot_be_read_to_its_end_is_not_listed,
                                        setup, teardown),
        HEADER(a_file_with_unreadable_attributes_is_an_error),
        cmocka_unit_test_setup_teardown(a_file_with_unreadable_attributes_is_an_error, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_name_that_is_read_twice_counts_once, setup, teardown),
        cmocka_unit_test(a_listing_checks_each_file_once),
        HEADER(a_stop_ends_a_listing),
        cmocka_unit_test_setup_teardown(a_stop_ends_a_listing, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
