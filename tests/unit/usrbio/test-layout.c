/* SPDX-License-Identifier: Apache-2.0
 *
 * Data for the daemon: names of links, sizes and offsets of rings, contents of an I/O.  The
 * numbers are copies of the numbers of 3FS's own client. */
#include "usrbio-test.h"

#include <sys/mman.h>

#include "usrbio/own.h"

static const char id[16] = { 0x01, 0x23, 0x45, 0x67, (char)0x89, (char)0xab, (char)0xcd,
                             (char)0xef, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x7f };
#define UUID "01234567-89ab-cdef-0011-22334455667f"

static void
keys_equal_3fs(void **state)
{
    static const struct {
        struct kvt__own_key key;
        const char *text;
    } cases[] = {
        { { .id = id }, UUID },
        { { .id = id, .block_size = 1048576 }, UUID ".b1048576" },
        { { .id = id, .direction = 'r', .io_depth = -8 }, UUID ".r-8.t0" },
        { { .id = id, .direction = 'w', .priority = -1 }, UUID ".w0.ph.t0" },
        { { .id = id, .direction = 'w', .priority = 2 }, UUID ".w0.pl.t0" },
        { { .id = id, .direction = 'r', .flags = 2 }, UUID ".r0.t0.f10" },
        { { .id = id, .direction = 'r', .io_depth = 32, .timeout = 200, .flags = 1 },
          UUID ".r32.t200.f1" },
        { { .id = id, .block_size = SIZE_MAX, .direction = 'w', .io_depth = INT32_MIN,
            .priority = -1, .timeout = INT32_MAX, .flags = UINT64_MAX },
          UUID ".b18446744073709551615.w-2147483648.ph.t2147483647.f"
               "1111111111111111111111111111111111111111111111111111111111111111" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[KVT__OWN_KEY_BYTES];

        kvt__own_key_text(&cases[i].key, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void
rings_have_the_layout_of_3fs(void **state)
{
    (void)state;
    assert_int_equal(kvt__usrbio_own.ior_size(256), 28816);
    assert_int_equal(kvt__usrbio_own.ior_size(1024), 102544);
    assert_int_equal(KVT__RING_ARGS_AT, 16);
    assert_int_equal(kvt__ring_cqe_at(257), 14408);
    assert_int_equal(kvt__ring_sqe_at(257), 20576);
    assert_int_equal(kvt__ring_sem_at(257), 24688);
    assert_int_equal(kvt__ring_cqe_at(1025), 57416);
    assert_int_equal(kvt__ring_sqe_at(1025), 82016);
    assert_int_equal(kvt__ring_sem_at(1025), 98416);
    for (int entries = 1; entries < 2000; entries++) /* the daemon's calculation */
        assert_int_equal((kvt__usrbio_own.ior_size(entries) - 4096 - 16 - 32) / 96,
                         entries + 1);
}

static void
offsets_of_shared_structures(void **state)
{
    (void)state;
    assert_int_equal(offsetof(struct kvt__ring_heads, sqe_head), 0);
    assert_int_equal(offsetof(struct kvt__ring_heads, sqe_tail), 4);
    assert_int_equal(offsetof(struct kvt__ring_heads, cqe_head), 8);
    assert_int_equal(offsetof(struct kvt__ring_heads, cqe_tail), 12);
    assert_int_equal(offsetof(struct kvt__ring_args, buf_off), 16);
    assert_int_equal(offsetof(struct kvt__ring_args, inode), 24);
    assert_int_equal(offsetof(struct kvt__ring_args, file_off), 32);
    assert_int_equal(offsetof(struct kvt__ring_args, bytes), 40);
    assert_int_equal(offsetof(struct kvt__ring_args, userdata), 48);
    assert_int_equal(offsetof(struct kvt__ring_cqe, result), 8);
    assert_int_equal(offsetof(struct kvt__ring_cqe, userdata), 16);
    assert_int_equal(offsetof(struct kvt__ring_sqe, userdata), 8);
}

static uint64_t
u64_at(const unsigned char *at)
{
    uint64_t v;

    memcpy(&v, at, 8);
    return v;
}

static int32_t
i32_at(const unsigned char *at)
{
    int32_t v;

    memcpy(&v, at, 4);
    return v;
}

static void
an_io_is_in_the_ring_when_prep_returns(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_ior ior = { 0 };

    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, 256, true, -8, 0, -1, 0), 0);
    unsigned char *base = ior.iov.base;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(i32_at(base), i);
        assert_int_equal(prep(f, &ior, 100 + (size_t)i, 1000, 1 << 20, 0x1234567890 + i),
                         i);
        const unsigned char *args = base + 16 + 56 * i, *sqe = base + 20576 + 16 * i;
        assert_memory_equal(args, f->iov.id, 16);
        assert_int_equal(u64_at(args + 16), 100 + i);
        assert_int_equal(u64_at(args + 24), f->c.inode);
        assert_int_equal(u64_at(args + 32), 1 << 20);
        assert_int_equal(u64_at(args + 40), 1000);
        assert_int_equal(u64_at(args + 48), 0x1234567890 + i);
        assert_int_equal(i32_at(sqe), i);
        assert_int_equal(u64_at(sqe + 8), 0x1234567890 + i);
        assert_int_equal(i32_at(base), i + 1);
    }
    f->api->iordestroy(&ior);
}

/* ------------------------------------------------------------------- links */

static void
only_entry(const struct fixture *f, char *name, char *target, size_t size)
{
    char path[512];

    assert_int_equal(counterpart_links(&f->c, name), 1);
    snprintf(path, sizeof path, "%s/3fs-virt/iovs/%s", f->c.path, name);
    ssize_t n = readlink(path, target, size - 1);
    assert_true(n > 0);
    target[n] = '\0';
}

static void
close_all(struct fixture *f)
{
    close_ring(f, &f->r);
    close_ring(f, &f->w);
    f->api->iovdestroy(&f->iov);
    assert_null(f->iov.iovh);
}

static void
memory_is_a_private_file_that_a_link_names(void **state)
{
    struct fixture *f = *state;
    char name[256], target[256], id_text[KVT__OWN_KEY_BYTES];
    struct kvt__hf3fs_iov iov = { 0 };
    struct stat st;

    close_all(f);
    assert_int_equal(f->api->iovcreate(&iov, f->c.path, 12345, 4096, -1), 0);
    assert_int_equal(iov.size, 12345);
    assert_int_equal(iov.block_size, 4096);
    assert_string_equal(iov.mount_point, f->c.path);
    only_entry(f, name, target, sizeof target);
    kvt__own_key_text(&(struct kvt__own_key){ .id = iov.id, .block_size = 4096 }, id_text);
    assert_string_equal(name, id_text);
    assert_memory_equal(target, "/dev/shm/hf3fs-iov-", 19);
    assert_int_equal(strlen(target), 19 + 36);
    assert_null(strstr(name, target + 19)); /* differs from the id */
    assert_int_equal(stat(target, &st), 0);
    assert_int_equal(st.st_size, 12345);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(st.st_blocks * 512 >= 12345); /* the pages are allocated */
    memset(iov.base, 1, iov.size);

    f->api->iovunlink(&iov);
    assert_int_equal(stat(target, &st), -1);
    assert_int_equal(counterpart_links(&f->c, name), 1);
    f->api->iovunlink(&iov);
    f->api->iovdestroy(&iov);
    assert_int_equal(counterpart_links(&f->c, name), 0);
    f->api->iovdestroy(&iov);
}

static void
a_ring_has_no_name_in_shared_memory(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_ior ior = { 0 };
    char name[256], target[256];
    struct stat st;

    close_all(f);
    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, 64, false, -8, 0, -1, 1), 0);
    only_entry(f, name, target, sizeof target);
    assert_string_equal(name + 36, ".w-8.t0.f1");
    assert_int_equal(stat(target, &st), -1);
    assert_int_equal(ior.io_depth, -8);
    assert_int_equal(ior.flags, 1);
    assert_false(ior.for_read);
    assert_int_equal(ior.iov.size, f->api->ior_size(64));
    assert_string_equal(ior.mount_point, f->c.path);
    f->api->iordestroy(&ior);
    assert_int_equal(counterpart_links(&f->c, name), 0);
}

static void
rings_with_flags_of_two_and_more_leak_in_the_library_alone(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_ior ior = { 0 };
    char name[256];

    close_all(f);
    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, 64, true, 0, 0, -1, 2), 0);
    f->api->iordestroy(&ior);
    assert_int_equal(counterpart_links(&f->c, name), f->set_traps ? 1 : 0);
}

/* -------------------------------------------------------------- what fails */

static void
arguments_that_make_no_sense_are_refused(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_iov iov = { 0 };
    struct kvt__hf3fs_ior ior = { 0 };
    char longest[300];

    memset(longest, '/', sizeof longest);
    longest[256] = '\0';
    assert_int_equal(f->api->iovcreate(NULL, f->c.path, 4096, 0, -1), -EINVAL);
    assert_int_equal(f->api->iovcreate(&iov, longest, 4096, 0, -1), -EINVAL);
    assert_int_equal(f->api->iovcreate(&iov, f->c.path, 4096, 0, 4000), -EINVAL);
    assert_int_equal(f->api->iovcreate(&iov, "/tmp", 4096, 0, -1), -ENOENT);
    assert_int_equal(f->api->iorcreate4(NULL, f->c.path, 8, true, 0, 0, -1, 0), -EINVAL);
    assert_int_equal(f->api->iorcreate4(&ior, "", 8, true, 0, 0, -1, 0), -EINVAL);
    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, 8, true, 0, -1, -1, 0), -EINVAL);
    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, 0, true, 0, 0, -1, 0), -EINVAL);
    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, INT32_MAX, true, 0, 0, -1, 0),
                     -EINVAL);
    assert_int_equal(f->api->iorcreate4(&ior, "/tmp", 8, true, 0, 0, -1, 0), -ENOENT);
    assert_null(iov.iovh);
    assert_null(ior.iorh);
    assert_int_equal(f->api->submit_ios(&ior), -EINVAL);
    assert_int_equal(kvt__usrbio_alloc_memory(f->api, &iov, f->c.path, 4096, 4097, -1), -EINVAL);
}

static void
memory_without_space_is_refused_before_any_access(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_iov iov = { 0 };
    char name[256];
    int before = counterpart_links(&f->c, name);

    assert_int_equal(kvt__usrbio_alloc_memory(f->api, &iov, f->c.path, (size_t)1 << 46, 0, -1),
                     -ENOSPC);
    assert_non_null(strstr(kvt__why(), "/dev/shm has no room for 67108864 MiB"));
    assert_non_null(strstr(kvt__why(), "hf3fs_iov_size"));
    assert_int_equal(f->api->iovcreate(&iov, f->c.path, (size_t)1 << 46, 0, -1), -ENOSPC);
    assert_int_equal(counterpart_links(&f->c, name), before);
}

static void
a_semaphore_elsewhere_is_refused(void **state)
{
    static const char *const targets[] = { "/tmp/sem.x", "/dev/shm/x", "/dev/shm/sem.a/b",
                                           "sem.x" };
    struct fixture *f = *state;
    struct kvt__hf3fs_iov iov = { 0 };
    char link[512], text[300];

    snprintf(link, sizeof link, "%s/3fs-virt/iovs/submit-ios", f->c.path);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        unlink(link);
        assert_int_equal(symlink(targets[i], link), 0);
        assert_int_equal(f->api->iovcreate(&iov, f->c.path, 4096, 0, -1), -EIO);
    }
    memset(text, 'x', sizeof text);
    memcpy(text, "/dev/shm/sem.", 13);
    text[256] = '\0';
    unlink(link);
    assert_int_equal(symlink(text, link), 0);
    assert_int_equal(f->api->iovcreate(&iov, f->c.path, 4096, 0, -1), -EIO);
    unlink(link);
    assert_int_equal(symlink("/dev/shm/sem.kvtier-test-none", link), 0);
    assert_int_equal(f->api->iovcreate(&iov, f->c.path, 4096, 0, -1), -ENOENT);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_equal_3fs),
        cmocka_unit_test(rings_have_the_layout_of_3fs),
        cmocka_unit_test(offsets_of_shared_structures),
        BOTH(an_io_is_in_the_ring_when_prep_returns),
        BOTH(memory_is_a_private_file_that_a_link_names),
        BOTH(a_ring_has_no_name_in_shared_memory),
        BOTH(rings_with_flags_of_two_and_more_leak_in_the_library_alone),
        BOTH(arguments_that_make_no_sense_are_refused),
        BOTH(memory_without_space_is_refused_before_any_access),
        BOTH(a_semaphore_elsewhere_is_refused),
    };

    return RUN("usrbio layout");
}
