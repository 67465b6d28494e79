/* SPDX-License-Identifier: Apache-2.0
 *
 * What is the file tier's own: the bytes of its files, files of other programs,
 * damage, and the sentences of a failed open. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "file-test.h"
#include "tier/file/layout/layout.h"

#define FILE_NAME "org-SEP-model@1@0@-1234@bfloat16.data"

static int
setup_header(void **state)
{
    static struct fixture f;

    open_fixture(&f, "fs", true, FILE_NAME);
    *state = &f;
    return 0;
}

static int
setup_bare(void **state)
{
    static struct fixture f;

    open_fixture(&f, "fs", false, FILE_NAME);
    *state = &f;
    return 0;
}

/* ------------------------------------------------------------------- files */

static size_t
read_file(const char *path, unsigned char *out, size_t size)
{
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    ssize_t n = read(fd, out, size);
    assert_true(n >= 0);
    close(fd);
    return (size_t)n;
}

static void
fill(unsigned char *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        out[i] = byte_at(seed, i);
}

/* ------------------------------------------------------------------ layouts */

/* 2 x 32 x 256 x 1024 bfloat16 in KV_2LTD, 33554432 bytes. */
static const unsigned char golden[28] = {
    0x00, 0x00, 0x00, 0x02, 0x01, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    0x00, 0x04, 0x00, 0x00,
};

static void
header_has_the_bytes_of_lmcache(void **state)
{
    static const struct kvt__shape shape = { 1, 3, { 2, 32, 256, 1024 } };
    unsigned char out[KVT__FS_HEADER_BYTES];

    (void)state;
    kvt__fs_header_put(&shape, 33554432, out);
    assert_memory_equal(out, golden, sizeof golden);
    assert_int_equal(kvt__fs_header_get(golden), 33554432);
}

static void
file_with_header_is_header_payload_trailer(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[28 + 1000 + 64 + 1], payload[1000];

    fill(payload, sizeof payload, 1);
    for (int whole = 0; whole < 2; whole++) {
        f->c.object.whole = whole;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        assert_int_equal(read_file(f->path, bytes, sizeof bytes), 28 + 1000 + 64);
        assert_int_equal(kvt__get_le32(bytes), 1000);
        assert_memory_equal(bytes + 4, golden + 4, 24);
        assert_memory_equal(bytes + 28, payload, 1000);
        assert_memory_equal(bytes + 1028, "KVTTRLR1", 8);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 12), crc_of(1000, 1));
        assert_int_equal(kvt__get_le64(bytes + 1028 + 16), 1000);
        assert_memory_equal(bytes + 1028 + 24, f->c.object.id.b, 16);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 40), 256);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 44), 28);
        assert_int_equal(kvt__get_le32(bytes + 1028 + 60),
                         kvt__crc32c(0, bytes + 1028, 60));
    }
}

static void
whole_file_without_header_is_payload_trailer(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[1000 + 64 + 1], payload[1000];

    fill(payload, sizeof payload, 1);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(read_file(f->path, bytes, sizeof bytes), 1064);
    assert_memory_equal(bytes, payload, 1000);
    assert_memory_equal(bytes + 1000, "KVTTRLR1", 8);
    assert_int_equal(kvt__get_le32(bytes + 1000 + 44), 0);
}

static void
sizes_are_exact_with_direct_io_too(void **state)
{
    static const size_t sizes[] = { 1, 4096, 256 << 10, (256 << 10) - 1,
                                    (256 << 10) + 4096 - 92, 1 << 20 };
    struct fixture *f = *state;
    bool header = f->tier->ops->phase(f->tier) == 28;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(put_bytes(f->tier, &f->c.object, sizes[i], 1), 0);
        assert_int_equal(size_of(f->path), sizes[i] + 64 + (header ? 28 : 0));
    }
}

static void
files_are_private_to_the_user(void **state)
{
    struct fixture *f = *state;
    char path[512];
    struct stat st;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    static const char *const dirs[] = { ".kvtier", ".kvtier/tmp", "kvtier" };
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir.path, dirs[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
    }
}

/* Users of store_mode have access with any umask. */
static void
store_mode_lets_other_users_in(void **state)
{
    static const struct { const char *setting; mode_t dir, file; } modes[] = {
        { "store_mode=group", 0770, 0660 }, { "store_mode=all", 0777, 0666 },
    };
    struct fixture *f = *state;
    char url[512], path[1024];
    struct stat st;
    mode_t mask = umask(077);

    for (size_t i = 0; i < 2; i++) {
        struct kvt__tier *tier = NULL;

        snprintf(url, sizeof url, "fs://%s/mode%zu", f->dir.path, i);
        assert_int_equal(try_open_for(url, true, modes[i].setting, 1, &tier), 0);
        assert_int_equal(put_bytes(tier, &f->c.object, 1000, 1), 0);
        tier->ops->close(tier);
        snprintf(path, sizeof path, "%s/.kvtier", url + 5);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i].dir);
        snprintf(path, sizeof path, "%s/%s", url + 5, FILE_NAME);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i].file);
    }
    umask(mask);
}

/* A directory with S_ISGID gives the group to all new files. */
static void
store_mode_keeps_the_group_of_the_directory(void **state)
{
    static const char *const dirs[] = { "kvtier", ".kvtier", ".kvtier/tmp" };
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512], path[1024];
    struct stat st;

    snprintf(url, sizeof url, "fs://%s/group", f->dir.path);
    assert_int_equal(mkdir(url + 5, 0770), 0);
    assert_int_equal(chmod(url + 5, 02770), 0);
    assert_int_equal(try_open_for(url, true, "store_mode=group", 1, &tier), 0);
    tier->ops->close(tier);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        snprintf(path, sizeof path, "%s/%s", url + 5, dirs[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 02770);
    }
}

/* A new directory at this path is replaced by another user's link; "": none. */
static char replaced_by[600];

int __real_mkdirat(int dirfd, const char *path, mode_t mode);
int __wrap_mkdirat(int dirfd, const char *path, mode_t mode);

int
__wrap_mkdirat(int dirfd, const char *path, mode_t mode)
{
    int result = __real_mkdirat(dirfd, path, mode);

    if (*replaced_by && !strcmp(path, ".kvtier")) {
        assert_int_equal(unlinkat(dirfd, path, AT_REMOVEDIR), 0);
        assert_int_equal(symlinkat(replaced_by, dirfd, path), 0);
    }
    return result;
}

static void
a_link_in_place_of_a_new_directory_is_not_followed(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512];
    struct stat st;

    snprintf(url, sizeof url, "fs://%s/all", f->dir.path);
    snprintf(replaced_by, sizeof replaced_by, "%s/mine", f->dir.path);
    assert_int_equal(mkdir(replaced_by, 0700), 0);
    assert_true(try_open_for(url, true, "store_mode=all", 1, &tier) < 0);
    assert_int_equal(stat(replaced_by, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    *replaced_by = '\0';
}

/* Kubernetes gives all directories of a volume to the group fsGroup at each mount. */
static void
a_private_directory_that_the_group_may_write_to_is_taken_back(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512], path[600];
    struct kvt__found found;
    struct stat st;
    bool same;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(chmod(path, 02770), 0);
    assert_int_equal(try_open(url, true, &tier), 0);
    assert_int_equal(get_bytes(tier, &f->c.object, 1000, 1, &found, &same), 0);
    assert_true(same);
    tier->ops->close(tier);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 02700);
}

static void
a_private_directory_of_others_is_refused(void **state)
{
    struct fixture *f = *state;
    struct kvt__tier *tier = NULL;
    char url[512], path[600], kept[600];

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    snprintf(kept, sizeof kept, "%s/elsewhere", f->dir.path);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(try_open(url, true, &tier), -EACCES);
    assert_int_equal(chmod(path, 0700), 0);
    if (!geteuid()) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(try_open(url, true, &tier), -EACCES);
        assert_int_equal(chown(path, 0, 0), 0);
    }
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(symlink(kept, path), 0);
    assert_true(try_open(url, true, &tier) < 0);
}

static void
opaque_chunks_lie_in_kvtier(void **state)
{
    struct fixture *f = *state;
    char path[512];

    f->c.object.opaque = true;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    assert_int_equal(access(f->path, F_OK), -1);
    snprintf(path, sizeof path, "%s/kvtier/org-SEP-model@1@0@-1234@bfloat16.data",
             f->dir.path);
    assert_true(size_of(path) > 1000);
}

static void
no_temporary_file_stays(void **state)
{
    struct fixture *f = *state;
    struct dirent *e;
    char path[512];
    size_t n = 0;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    f->c.object.key = "x@1@0@1@bfloat16";
    snprintf(path, sizeof path, "%s/x@1@0@1@bfloat16.data", f->dir.path);
    assert_int_equal(mkdir(path, 0700), 0); /* rename over it must fail */
    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), -EISDIR);
    snprintf(path, sizeof path, "%s/.kvtier/tmp", f->dir.path);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 0);
}

/* ------------------------------------------------------------ other programs */

static void
files_of_lmcache_are_read_with_and_without_header(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[28 + 5000];
    struct kvt__found found;
    bool same;

    for (int header = 0; header < 2; header++) {
        memcpy(bytes, golden, 28);
        kvt__put_le32(bytes, 5000);
        fill(bytes + 28, 5000, 9);
        write_file(f->path, bytes + (header ? 0 : 28), header ? 5028 : 5000);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 9, &found, &same), 0);
        assert_true(same);
        assert_false(found.has_id);
        assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
        assert_false(found.has_id);
        assert_int_equal(found.payload_bytes, 5000);
        assert_int_equal(unlink(f->path), 0);
    }
}

static void
files_written_under_the_other_header_setting_are_read(void **state)
{
    struct fixture *f = *state;
    bool header = f->tier->ops->phase(f->tier) == 28;
    struct kvt__found found;
    char url[512];
    bool same;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    struct kvt__tier *other = open_tier(url, !header);
    assert_int_equal(put_bytes(other, &f->c.object, 300 << 10, 2), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 300 << 10, 2, &found, &same), 0);
    assert_true(same && found.has_id);
    other->ops->close(other);
}

static void
list_passes_over_what_is_no_chunk(void **state)
{
    static const char *const others[] = { "x.tmp", "README", ".data", "index",
                                          ".kvtier/tmp/a@1@0@1@half.data",
                                          ".kvtier/b@1@0@1@half.data" };
    struct fixture *f = *state;
    struct names names = { 0 };
    char path[512];

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir.path, others[i]);
        write_file(path, "x", 1);
    }
    snprintf(path, sizeof path, "%s/c@1@0@1@half.data", f->dir.path);
    assert_int_equal(symlink("README", path), 0);
    snprintf(path, sizeof path, "%s/d@1@0@1@half.data", f->dir.path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 10, 1), 0);
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_string_equal(names.last, f->c.key);
}

static void
a_symbolic_link_is_not_followed(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    assert_int_equal(symlink("/etc/passwd", f->path), 0);
    assert_true(f->tier->ops->probe(f->tier, &f->c.object, &found) < 0);
    assert_true(get_bytes(f->tier, &f->c.object, 10, 1, &found, &same) < 0);
}

/* ------------------------------------------------------------------ damage */

static void
damaged_frames_are_ebadmsg(void **state)
{
    struct fixture *f = *state;
    bool header = f->tier->ops->phase(f->tier) == 28;
    off_t first = header ? 28 : 0;
    struct kvt__found found;
    bool same;

    for (off_t at = first + 1000; at < first + 1064; at++) {
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        flip_byte(f->path, at);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EBADMSG);
    }
    for (off_t at = 0; header && at < 4; at++) { /* the length it tells */
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        flip_byte(f->path, at);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EBADMSG);
    }
}

static void
a_damaged_payload_differs_from_its_checksum(void **state)
{
    struct fixture *f = *state;
    size_t phase = f->tier->ops->phase(f->tier);
    struct kvt__slot slot = slot_new(1000, phase);
    struct kvt__found found;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    flip_byte(f->path, 500);
    assert_int_equal(f->tier->ops->get(f->tier, &f->c.object, &slot, &found), 0);
    assert_int_not_equal(kvt__crc32c(0, slot.payload, 1000), found.crc);
    slot_free(&slot, phase);
}

static void
truncated_files_are_ebadmsg(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    for (off_t size = size_of(f->path) - 1; size > 5028; size -= 7) {
        assert_int_equal(truncate(f->path, size), 0);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same),
                         -EBADMSG);
    }
    assert_int_equal(truncate(f->path, 0), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same),
                     -EBADMSG);
    assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found),
                     temp_dir_has_attributes(&f->dir) ? -ENOENT : 0);
}

/* A file whose end tells lengths that the file has not: their sum may overflow. */
static void
a_trailer_with_lengths_of_another_file_is_none(void **state)
{
    static const struct kvt__trailer wrong[] = {
        { .payload_bytes = 1001 }, { .payload_bytes = UINT64_MAX },
        { .payload_bytes = UINT64_C(1000) - UINT32_MAX, .payload_at = UINT32_MAX },
    };
    struct fixture *f = *state;
    unsigned char bytes[1064] = { 0 };
    struct kvt__found found;
    bool same;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kvt__trailer_put(&wrong[i], bytes + 1000);
        write_file(f->path, bytes, sizeof bytes);
        assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
        assert_false(found.has_id);
        assert_int_equal(found.payload_bytes, sizeof bytes);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EBADMSG);
    }
}

/* --------------------------------------------------------- partial, no header */

static void
a_partial_file_without_header_is_payload_alone(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    f->c.object.whole = false;
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

    f->c.object.whole = false;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    fill(bytes, sizeof bytes, 2);
    write_file(f->path, bytes, sizeof bytes);
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 2, &found, &same), 0);
    assert_true(same);
    assert_false(found.has_id);
    assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
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

    f->c.object.whole = false;
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
    assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
    assert_false(found.has_id);
}

static void
an_attribute_that_tells_another_length_makes_a_file_foreign(void **state)
{
    struct kvt__trailer wrong = { .payload_bytes = UINT64_C(1) << 40 };
    struct fixture *f = *state;
    unsigned char value[80];
    struct kvt__found found;

    f->c.object.whole = false;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    if (getxattr(f->path, "user.kvtier", value, 80) != 80)
        skip();
    kvt__trailer_put(&wrong, value);
    assert_int_equal(setxattr(f->path, "user.kvtier", value, 80, 0), 0);
    assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
    assert_false(found.has_id);
    assert_int_equal(found.payload_bytes, 5000);
}

/* ------------------------------------------------------------- refused attributes */

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

/* As on a file system without attributes. */
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
        f->c.object.whole = whole;
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
        f->c.object.whole = i % 2;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, i), -xattr_errno);
        assert_int_equal(access(f->path, F_OK), -1);
    }
    xattr_errno = 0;
}

/* -------------------------------------------------------------- directories */

static void
keys_spread_by_the_magnitude_of_their_hash(void **state)
{
    static const int64_t hashes[] = { 0, 1, 2, 3, -1, -2, -3, INT64_MAX, INT64_MIN };
    static const unsigned dirs[] = { 0, 1, 2, 0, 1, 2, 0, 1, 2 };
    struct temp_dir dir;
    char url[1024], path[1024], name[NAME_MAX + 1];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "fs://%1$s/0 , %1$s/1,%1$s/2", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        struct chunk c;

        chunk_init(&c, "m", hashes[i]);
        assert_int_equal(put_bytes(tier, &c.object, 10, i), 0);
        assert_int_equal(kvt__layout_name(&kvt__layout_fs, c.key, NULL, name,
                                          sizeof name), 0);
        snprintf(path, sizeof path, "%s/%u/%s", dir.path, dirs[i], name);
        assert_int_equal(access(path, R_OK), 0);
    }
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

static void
missing_directories_are_made(void **state)
{
    struct temp_dir dir;
    char url[512], path[512];
    struct stat st;

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "fs://host:0%s/a/b//c", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    snprintf(path, sizeof path, "%s/a/b/c/.kvtier/tmp", dir.path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(tier->ops->private_dir(tier) >= 0);
    assert_true(tier->ops->default_limit(tier) > 0);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

static void
a_failed_open_says_which_setting_and_which_path(void **state)
{
    struct temp_dir dir;
    struct kvt__tier *tier = NULL;
    char file[512], url[1024], many[4096] = "fs://";

    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/file", dir.path);
    write_file(file, "x", 1);

    assert_int_equal(try_open("fs://relative", true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "remote_url: "));
    assert_non_null(strstr(kvt__why(), "no absolute path"));
    snprintf(url, sizeof url, "fs://%s/a,b/c", dir.path);
    assert_int_equal(try_open(url, true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "remote_url: 'b/c' is no absolute path"));

    snprintf(url, sizeof url, "fs://%s", file);
    assert_int_equal(try_open(url, true, &tier), -ENOTDIR);
    assert_non_null(strstr(kvt__why(), "remote_url: "));
    assert_non_null(strstr(kvt__why(), file));

    snprintf(url, sizeof url, "fs://%s/below", file);
    assert_int_equal(try_open(url, true, &tier), -ENOTDIR);
    assert_non_null(strstr(kvt__why(), "remote_url: make directory"));

    for (size_t i = 0; i < 65; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s%s/a",
                 i ? "," : "", dir.path);
    assert_int_equal(try_open(many, true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "more than 64 directories"));
    assert_null(tier);
    temp_dir_remove(&dir);
}

#define HEADER(fn) cmocka_unit_test_setup_teardown(fn, setup_header, teardown)
#define BARE(fn) cmocka_unit_test_setup_teardown(fn, setup_bare, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_has_the_bytes_of_lmcache),
        HEADER(file_with_header_is_header_payload_trailer),
        BARE(whole_file_without_header_is_payload_trailer),
        HEADER(sizes_are_exact_with_direct_io_too),
        BARE(sizes_are_exact_with_direct_io_too),
        HEADER(files_are_private_to_the_user),
        HEADER(store_mode_lets_other_users_in),
        HEADER(store_mode_keeps_the_group_of_the_directory),
        HEADER(a_link_in_place_of_a_new_directory_is_not_followed),
        HEADER(a_private_directory_that_the_group_may_write_to_is_taken_back),
        HEADER(a_private_directory_of_others_is_refused),
        HEADER(opaque_chunks_lie_in_kvtier),
        HEADER(no_temporary_file_stays),
        HEADER(files_of_lmcache_are_read_with_and_without_header),
        BARE(files_of_lmcache_are_read_with_and_without_header),
        HEADER(files_written_under_the_other_header_setting_are_read),
        BARE(files_written_under_the_other_header_setting_are_read),
        HEADER(list_passes_over_what_is_no_chunk),
        HEADER(a_symbolic_link_is_not_followed),
        HEADER(damaged_frames_are_ebadmsg),
        BARE(damaged_frames_are_ebadmsg),
        HEADER(a_damaged_payload_differs_from_its_checksum),
        BARE(a_damaged_payload_differs_from_its_checksum),
        HEADER(truncated_files_are_ebadmsg),
        HEADER(a_trailer_with_lengths_of_another_file_is_none),
        BARE(a_partial_file_without_header_is_payload_alone),
        BARE(a_partial_file_that_another_program_wrote_since_is_foreign),
        BARE(a_damaged_attribute_makes_a_file_foreign),
        BARE(an_attribute_that_tells_another_length_makes_a_file_foreign),
        BARE(a_put_without_the_right_to_set_attributes_succeeds),
        BARE(a_put_fails_with_its_attribute_if_the_disk_is_full_or_broken),
        cmocka_unit_test(keys_spread_by_the_magnitude_of_their_hash),
        cmocka_unit_test(missing_directories_are_made),
        cmocka_unit_test(a_failed_open_says_which_setting_and_which_path),
    };

    return cmocka_run_group_tests_name("tier file", tests, NULL, NULL);
}
