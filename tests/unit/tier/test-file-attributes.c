/* SPDX-License-Identifier: Apache-2.0
 *
 * The extended attribute of a partial chunk's file without a header. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "fs-test.h"
#include "tier/layout/layout.h"

static void
a_partial_file_without_header_is_payload_alone(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    f->c.object.is_full = false;
    f->c.object.tokens = 17;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(size_of(f->path), 5000);
    if (!temp_dir_has_attributes(&f->dir))
        skip();
    assert_int_equal(getxattr(f->path, "user.kvtier", NULL, 0), 80);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same), 0);
    assert_true(same && found.has_id);
    assert_int_equal(found.tokens, 17);
}

static void
a_partial_file_that_another_program_wrote_since_is_foreign(void **state)
{
    const struct timespec times[2] = { { 1, 2 }, { 1000000000, 5 } };
    struct fixture *f = *state;
    unsigned char bytes[5000];
    struct kvt__found found;
    bool same;

    f->c.object.is_full = false;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    fill(bytes, sizeof bytes, 2);
    write_file(f->path, bytes, sizeof bytes);
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 2, &found, &same), 0);
    assert_true(same);
    assert_false(found.has_id);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
    assert_false(found.has_id);
    assert_int_equal(found.payload_bytes, 5000);
}

static void
a_damaged_attribute_makes_a_file_foreign(void **state)
{
    struct fixture *f = *state;
    unsigned char value[80];
    struct kvt__found found;
    bool same;

    f->c.object.is_full = false;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    if (getxattr(f->path, "user.kvtier", value, 80) != 80)
        skip();
    for (size_t at = 0; at < 80; at++) {
        value[at] ^= 1;
        assert_int_equal(setxattr(f->path, "user.kvtier", value, 80, 0), 0);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same), 0);
        assert_true(same);
        assert_false(found.has_id);
        value[at] ^= 1;
    }
    assert_int_equal(setxattr(f->path, "user.kvtier", value, 79, 0), 0);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
    assert_false(found.has_id);
}

static void
an_attribute_with_another_length_makes_a_file_foreign(void **state)
{
    struct kvt__trailer wrong = { .payload_bytes = UINT64_C(1) << 40 };
    struct fixture *f = *state;
    unsigned char value[80];
    struct kvt__found found;

    f->c.object.is_full = false;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    if (getxattr(f->path, "user.kvtier", value, 80) != 80)
        skip();
    kvt__trailer_put(&wrong, value);
    assert_int_equal(setxattr(f->path, "user.kvtier", value, 80, 0), 0);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
    assert_false(found.has_id);
    assert_int_equal(found.payload_bytes, 5000);
}

/* This function takes the place of libc's. */
static int xattr_errno; /* 0: the file system decides */

int
fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
    if (!xattr_errno)
        return (int)syscall(SYS_fsetxattr, fd, name, value, size, flags);
    errno = xattr_errno;
    return -1;
}

static void
count_line(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "extended attribute"))
        ++*(unsigned *)ctx;
}

/* The file system has no attributes. */
static void
a_put_without_the_right_to_set_attributes_succeeds(void **state)
{
    static const int errors[] = { ENOTSUP, ENOSYS, EPERM, EACCES, E2BIG, ERANGE };
    struct fixture *f = *state;
    struct kvt__found found;
    unsigned n_lines = 0;
    bool same;

    kvt_set_log(count_line, &n_lines, KVT_LOG_INFO);
    for (size_t i = 0; i < 2 * sizeof errors / sizeof *errors; i++) {
        bool whole = i % 2;

        xattr_errno = errors[i / 2];
        f->c.object.is_full = whole;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, i), 0);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, i, &found, &same), 0);
        assert_true(same);
        assert_int_equal(found.has_id, whole); /* in the trailer */
        assert_int_equal(n_lines, i > 1); /* ENOTSUP is not logged */
    }
    xattr_errno = 0;
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

static void
a_put_fails_with_its_attribute_if_the_disk_is_full_or_broken(void **state)
{
    static const int errors[] = { ENOSPC, EDQUOT, EIO, EROFS };
    struct fixture *f = *state;

    for (size_t i = 0; i < 2 * sizeof errors / sizeof *errors; i++) {
        xattr_errno = errors[i / 2];
        f->c.object.is_full = i % 2;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, i), -xattr_errno);
        assert_int_equal(access(f->path, F_OK), -1);
    }
    xattr_errno = 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        BARE(a_partial_file_without_header_is_payload_alone),
        BARE(a_partial_file_that_another_program_wrote_since_is_foreign),
        BARE(a_damaged_attribute_makes_a_file_foreign),
        BARE(an_attribute_with_another_length_makes_a_file_foreign),
        BARE(a_put_without_the_right_to_set_attributes_succeeds),
        BARE(a_put_fails_with_its_attribute_if_the_disk_is_full_or_broken),
    };

    return cmocka_run_group_tests_name("tier file attributes", tests, NULL, NULL);
}
