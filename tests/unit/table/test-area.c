/* SPDX-License-Identifier: Apache-2.0
 *
 * The area of a table: shared bytes, other sizes and versions, allocation, makers that fail or
 * are killed, deletion, garbage. */
#include "place-test.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/error.h"

enum { AREA = 8 << 20, VERSION = 7 };

/* The tables of these tests are in the directory of the tmpfs. */
static struct kvt__table_params
area_params(uint64_t bytes)
{
    return (struct kvt__table_params){ .max_entries = 200000, .writer = true,
                                       .of_memory = true, .area_bytes = bytes,
                                       .area_version = VERSION };
}

static struct kvt__table *
open_area(const struct dir *d, uint64_t bytes)
{
    struct kvt__table_params params = area_params(bytes);
    struct kvt__table *t = NULL;

    assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0);
    assert_int_equal(n_warnings, 0);
    return t;
}

static int
open_err(const struct dir *d, const struct kvt__table_params *params)
{
    struct kvt__table *t;
    int err = kvt__table_open(params, d->shm_fd, &t);

    assert_true(err < 0);
    assert_null(t);
    assert_true(*kvt__why());
    assert_int_equal(n_warnings, 0);
    return err;
}

static char *
area_of(const struct kvt__table *t, uint64_t expected)
{
    uint64_t bytes;
    char *area = kvt__table_area(t, &bytes);

    assert_non_null(area);
    assert_int_equal(bytes, expected);
    return area;
}

static bool
has_file(const struct dir *d, const char *name)
{
    return !faccessat(d->shm_fd, name, F_OK, AT_SYMLINK_NOFOLLOW);
}

static void
write_file(const struct dir *d, off_t at, const void *bytes, size_t n)
{
    int fd = openat(d->shm_fd, "table", O_RDWR | O_CLOEXEC);

    assert_int_equal(pwrite(fd, bytes, n, at), n);
    close(fd);
}

struct making {
    const struct dir *dir;
    int err;
    int n_calls;
    bool finds_old; /* the older table still has memory */
};

static int
on_make(void *ctx, struct kvt__table *t)
{
    struct making *m = ctx;
    uint64_t bytes;
    char *area = kvt__table_area(t, &bytes);

    m->n_calls++;
    m->finds_old = m->dir && has_file(m->dir, "table");
    if (kvt__table_allocate_area(t, 4096, 8192))
        abort();
    for (int i = 0; i < 8192; i++)
        if (area[4096 + i])
            abort();
    memset(area + 4096, 'm', 8192);
    return m->err ? kvt__fail(-m->err, "no area") : 0;
}

static void
processes_share_the_bytes(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_area(d, AREA);
    char *area = area_of(t, AREA);
    int status;

    assert_int_equal((area - (char *)t->header) % (2 << 20), 0);
    assert_int_equal(t->lock_wait_ns, TB_LOCK_WAIT_NS); /* no thread of an engine waits */
    assert_int_equal(kvt__table_allocate_area(t, 0, AREA), 0);
    for (int i = 0; i < AREA; i++)
        assert_int_equal(area[i], 0);
    area[AREA - 1] = 'p';
    pid_t pid = fork();
    if (!pid) {
        struct kvt__table_params params = area_params(AREA);
        struct kvt__table *own;
        uint64_t bytes;

        if (kvt__table_area(t, &bytes) || bytes || kvt__table_delete(t, d->shm_fd) != -ESTALE ||
            kvt__table_allocate_area(t, 0, 1) != -ESTALE)
            _exit(1);
        if (kvt__table_open(&params, d->shm_fd, &own))
            _exit(2);
        char *bytes_of = kvt__table_area(own, &bytes);
        if (bytes_of[AREA - 1] != 'p')
            _exit(3);
        bytes_of[0] = 'c';
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(area[0], 'c');
    assert_int_equal(store(t, 1, 10), 0);
    recount(t);
    assert_int_equal(area[AREA - 1], 'p');
    kvt__table_close(t);
    t = open_area(d, AREA); /* the memory stays */
    assert_int_equal(area_of(t, AREA)[0], 'c');
    kvt__table_close(t);
}

static void
private_area(void **state)
{
    struct making m = { 0 };
    struct kvt__table_params params = area_params(AREA);
    struct kvt__table *t;

    (void)state;
    params.make_area = on_make;
    params.area_ctx = &m;
    assert_int_equal(kvt__table_open_private(&params, &t), 0);
    assert_int_equal(m.n_calls, 1);
    char *area = area_of(t, AREA);
    assert_int_equal(area[4096], 'm');
    assert_int_equal(area[AREA - 1], 0);
    assert_int_equal(kvt__table_allocate_area(t, 0, AREA), 0);
    assert_int_equal(kvt__table_delete(t, -1), -EINVAL);
    assert_int_equal(store(t, 1, 10), 0);
    kvt__table_close(t);
    m.err = -EDOM;
    assert_int_equal(kvt__table_open_private(&params, &t), -EDOM);
    assert_null(t);
    params.area_bytes = UINT64_MAX;
    assert_int_equal(kvt__table_open_private(&params, &t), -EINVAL);
    assert_null(t);
}

static void
table_without_an_area_has_none(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t = open_writer(d);
    uint64_t bytes = 1;

    assert_null(kvt__table_area(t, &bytes));
    assert_int_equal(bytes, 0);
    assert_int_equal(kvt__table_allocate_area(t, 0, 1), -EINVAL);
    assert_int_equal(kvt__table_delete(t, d->fd), -EINVAL);
    kvt__table_close(t);
}

static void
parts_outside_the_area_are_einval(void **state)
{
    struct kvt__table *t = open_area(*state, AREA);

    assert_int_equal(kvt__table_allocate_area(t, AREA, 0), 0);
    assert_int_equal(kvt__table_allocate_area(t, AREA, 1), -EINVAL);
    assert_int_equal(kvt__table_allocate_area(t, 1, AREA), -EINVAL);
    assert_int_equal(kvt__table_allocate_area(t, UINT64_MAX, 2), -EINVAL);
    assert_int_equal(kvt__table_allocate_area(t, 1, UINT64_MAX), -EINVAL);
    kvt__table_close(t);
}

/* -------------------------------------------------------- sizes and versions */

static void
another_size_replaces_a_table_without_users(void **state)
{
    const struct dir *d = *state;
    struct making m = { .dir = d };
    struct kvt__table_params params = area_params(2 * AREA);
    struct kvt__table *t = open_area(d, AREA);

    params.make_area = on_make;
    params.area_ctx = &m;
    assert_int_equal(kvt__table_allocate_area(t, 0, 1), 0);
    *area_of(t, AREA) = 'p';
    kvt__table_close(t);
    assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0);
    assert_int_equal(m.n_calls, 1);
    assert_false(m.finds_old);
    char *area = area_of(t, 2 * AREA);
    assert_int_equal(kvt__table_allocate_area(t, 0, 1), 0);
    assert_int_equal(*area, 0);
    assert_int_equal(area[4096], 'm');
    kvt__table_close(t);
    assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0);
    assert_int_equal(m.n_calls, 1); /* once for each table */
    kvt__table_close(t);
}

static void
another_size_uses_a_table_with_users(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = area_params(0);

    for (int i = 0; i < 2; i++) {
        struct kvt__table *made = open_area(d, AREA), *user = made;

        assert_int_equal(store(made, 1, 10), i ? -EEXIST : 0);
        if (i) { /* the only user is a reader */
            params.writer = false;
            assert_int_equal(kvt__table_open(&params, d->shm_fd, &user), 0);
            kvt__table_close(made);
        }
        struct kvt__table *other = open_area(d, 2 * AREA);
        area_of(other, AREA);
        assert_true(find(other, 1, NULL));
        assert_true(kvt__table_is_current(user));
        kvt__table_close(user);
        struct kvt__table *third = open_area(d, 2 * AREA); /* `other` holds its flock again */
        area_of(third, AREA);
        kvt__table_close(third);
        kvt__table_close(other);
    }
}

static void
another_version_waits_for_users(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = area_params(AREA);
    struct kvt__table *user = open_area(d, AREA), *t;

    params.area_version = VERSION + 1;
    assert_int_equal(open_err(d, &params), -EBUSY);
    assert_true(kvt__table_is_current(user));
    /* Another version of the index. */
    params.area_version = VERSION;
    write_file(d, offsetof(struct tb_header, version), &(uint32_t){ 99 }, 4);
    assert_int_equal(open_err(d, &params), -EBUSY);
    assert_int_equal(user->header->use, TB_IN_USE);
    write_file(d, offsetof(struct tb_header, version), &(uint32_t){ TB_VERSION }, 4);
    kvt__table_close(user);
    params.area_version = VERSION + 1;
    assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0);
    assert_int_equal(t->header->area_version, VERSION + 1);
    kvt__table_close(t);
    write_file(d, offsetof(struct tb_header, version), &(uint32_t){ 99 }, 4);
    t = open_area(d, AREA);
    assert_int_equal(t->header->version, TB_VERSION);
    kvt__table_close(t);
}

static void
table_without_an_area_is_another_version(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = area_params(AREA), without = area_params(0);
    struct kvt__table *t, *with;

    without.area_version = 0;
    assert_int_equal(kvt__table_open(&without, d->shm_fd, &t), 0);
    assert_int_equal(open_err(d, &params), -EBUSY);
    assert_true(kvt__table_is_current(t));
    kvt__table_close(t);
    with = open_area(d, AREA);
    area_of(with, AREA);
    /* An area makes a table useless for a handle without an area. */
    assert_int_equal(kvt__table_open(&without, d->shm_fd, &t), 0);
    assert_null(t->area);
    assert_false(kvt__table_is_current(with));
    kvt__table_close(with);
    kvt__table_close(t);
}

static void
readers_and_writers_without_a_size_make_no_table(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *t;

    for (int i = 0; i < 3; i++) {
        struct kvt__table_params params = area_params(i == 1 ? 0 : 2 * AREA);

        params.writer = i == 1;
        assert_int_equal(open_err(d, &params), -ENOENT);
        assert_false(has_file(d, "lock"));
        struct kvt__table *made = open_area(d, AREA);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0);
            area_of(t, AREA); /* of any size */
            if (!k)
                kvt__table_close(made); /* also without other users */
            kvt__table_close(t);
        }
        params.area_version++;
        assert_int_equal(open_err(d, &params), -ENOENT);
        params.area_version--;
        write_file(d, offsetof(struct tb_header, version), &(uint32_t){ 99 }, 4);
        assert_int_equal(open_err(d, &params), -ENOENT);
        write_file(d, offsetof(struct tb_header, version), &(uint32_t){ TB_VERSION }, 4);
        assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0); /* unchanged */
        kvt__table_close(t);
        unlinkat(d->shm_fd, "table", 0);
        assert_int_equal(open_err(d, &params), -ENOENT);
        assert_false(has_file(d, "table"));
        empty(d->shm);
    }
}

/* ------------------------------------------------------------------ failures */

static void
failed_make_area_leaves_no_file(void **state)
{
    const struct dir *d = *state;
    struct making m = { .err = -ENOMEM };
    struct kvt__table_params params = area_params(AREA);

    params.make_area = on_make;
    params.area_ctx = &m;
    assert_int_equal(open_err(d, &params), -ENOMEM);
    assert_string_equal(kvt__why(), "no area: Cannot allocate memory");
    assert_int_equal(m.n_calls, 1);
    assert_string_equal(shm_file(d), "lock"); /* also fails if there are several */
    kvt__table_close(open_area(d, AREA));
}

/* The caller learns of each failure: no private table, no warning. */
static void
no_private_table_replaces_an_area(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = area_params(AREA);
    struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = TB_OWNER_BYTE,
                        .l_len = TB_N_OWNERS };
    struct rlimit old, low;

    params.area_bytes = UINT64_MAX;
    assert_int_equal(open_err(d, &params), -EINVAL);
    params.area_bytes = AREA;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = (struct rlimit){ tb_parts(params.max_entries, false).end + 4096, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    assert_int_equal(open_err(d, &params), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    int fd = openat(d->shm_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), 0);
    assert_int_equal(open_err(d, &params), -EUSERS);
    fl.l_start = 7;
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), 0); /* a writer of version 3 */
    assert_int_equal(open_err(d, &params), -EBUSY);
    close(fd);
    kvt__table_close(open_area(d, AREA));
}

static bool
mount_small(const struct dir *d)
{
    return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("kvtier-test", d->path, "tmpfs", 0, "size=32m");
}

/* The index grows although the area takes most of the tmpfs. */
static void
full_file_system_is_enospc(void **state)
{
    struct dir *d = *state;
    struct kvt__table_params params = area_params(64 << 20);
    struct kvt__table *t;

    if (!mount_small(d))
        skip();
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(kvt__table_open(&params, fd, &t), 0);
    char *area = area_of(t, 64 << 20);
    assert_int_equal(kvt__table_allocate_area(t, 4 << 20, 20 << 20), 0);
    memset(area + (4 << 20), 'x', 20 << 20);
    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(t->header->n_made, TB_STEP_ENTRIES);
    assert_int_equal(kvt__table_allocate_area(t, 32 << 20, 16 << 20), -ENOSPC);
    assert_true(*kvt__why());
    assert_int_equal(kvt__table_allocate_area(t, 4 << 20, 20 << 20), 0); /* allocated already */
    assert_int_equal(area[(24 << 20) - 1], 'x');
    recount(t);
    kvt__table_close(t);
    /* A table of another size needs the memory of the old table. */
    params.area_bytes = 128 << 20;
    assert_int_equal(kvt__table_open(&params, fd, &t), 0);
    assert_int_equal(kvt__table_allocate_area(t, 64 << 20, 20 << 20), 0);
    kvt__table_close(t);
    close(fd);
    assert_int_equal(umount2(d->path, MNT_DETACH), 0);
}

static void
make_and_store(const struct dir *d)
{
    struct making m = { 0 };
    struct kvt__table_params params = area_params(AREA);
    struct kvt__table *t;

    params.make_area = on_make;
    params.area_ctx = &m;
    if (kvt__table_open(&params, d->shm_fd, &t))
        abort();
    (void)store(t, 1, 10);
    kvt__table_close(t);
}

/* A maker killed at any system call, without and with an older table of another size. */
static void
killed_maker_leaves_no_half_area(void **state)
{
    const struct dir *d = *state;
    struct making m = { 0 };
    struct kvt__table_params params = area_params(AREA);
    struct kvt__table *t;

    params.make_area = on_make;
    params.area_ctx = &m;
    for (int older = 0; older < 2; older++)
        for (int n = 1;; n++) {
            if (older)
                kvt__table_close(open_area(d, 2 * AREA));
            bool killed = kill_at(d, make_and_store, n);
            assert_int_equal(kvt__table_open(&params, d->shm_fd, &t), 0);
            assert_int_equal(area_of(t, AREA)[4096], 'm');
            assert_int_equal(store(t, 2, 10), 0);
            recount(t);
            kvt__table_close(t);
            assert_false(has_file(d, "table.new"));
            empty(d->shm);
            if (!killed) {
                assert_true(n > 20);
                break;
            }
        }
}

/* ------------------------------------------------------------------ deletion */

static void
deletion_needs_the_only_handle(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = area_params(0);
    struct kvt__table *a = open_area(d, AREA), *b;

    assert_int_equal(kvt__table_allocate_area(a, 0, 1), 0);
    char *area = area_of(a, AREA);
    *area = 'p';
    params.writer = false;
    assert_int_equal(kvt__table_open(&params, d->shm_fd, &b), 0);
    assert_int_equal(kvt__table_delete(a, d->shm_fd), -EBUSY);
    assert_true(*kvt__why());
    assert_true(kvt__table_is_current(a));
    kvt__table_close(b);
    b = open_area(d, AREA);
    assert_int_equal(kvt__table_delete(b, d->shm_fd), -EBUSY);
    kvt__table_close(a);
    area = area_of(b, AREA);
    assert_int_equal(*area, 'p');
    assert_int_equal(kvt__table_delete(b, d->shm_fd), 0);
    assert_false(has_file(d, "table"));
    assert_false(kvt__table_is_current(b));
    assert_int_equal(store(b, 1, 10), -ESTALE);
    assert_int_equal(kvt__table_delete(b, d->shm_fd), -ESTALE);
    assert_int_equal(open_err(d, &params), -ENOENT);
    a = open_area(d, AREA);
    assert_true(kvt__table_is_current(a));
    assert_int_equal(kvt__table_allocate_area(a, 0, 1), 0);
    assert_int_equal(*area_of(a, AREA), 0);
    assert_int_equal(*area, 'p'); /* until the handle closes */
    kvt__table_close(b);
    assert_true(kvt__table_is_current(a));
    kvt__table_close(a);
}

static void
delete_table(const struct dir *d)
{
    struct kvt__table *t = open_area(d, AREA);

    (void)kvt__table_delete(t, d->shm_fd);
    kvt__table_close(t);
}

static void
killed_deleter_leaves_a_store_that_opens(void **state)
{
    const struct dir *d = *state;

    kvt__table_close(open_area(d, AREA));
    for (int n = 1; kill_at(d, delete_table, n); n++) {
        struct kvt__table *t = open_area(d, AREA);

        assert_true(kvt__table_is_current(t));
        assert_int_equal(store(t, (uint64_t)n, 1), 0);
        recount(t);
        kvt__table_close(t);
    }
    assert_false(has_file(d, "table"));
}

static void
replaced_handle_deletes_nothing(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *a = open_area(d, AREA);

    unlinkat(d->shm_fd, "lock", 0);
    struct kvt__table *b = open_area(d, AREA);
    assert_int_equal(kvt__table_delete(a, d->shm_fd), -ESTALE);
    assert_true(kvt__table_is_current(b));
    assert_true(has_file(d, "table"));
    kvt__table_close(a);
    kvt__table_close(b);
}

/* ------------------------------------------------------------------- garbage */

static void
garbage_of_the_area_in_the_header_is_replaced(void **state)
{
    const struct dir *d = *state;
    const off_t at = offsetof(struct tb_header, area_bytes);
    const uint64_t sizes[] = { 0, 1, AREA - 4096, AREA + 1, 2 * AREA, UINT64_C(1) << 46,
                               UINT64_C(1) << 63, UINT64_MAX - AREA, UINT64_MAX };

    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int k = 0; k < 2; k++) {
            struct kvt__table *t = open_area(d, AREA);
            assert_int_equal(store(t, 1, 10), 0);
            kvt__table_close(t);
            write_file(d, at, &sizes[i], 8);
            t = open_area(d, k ? AREA : sizes[i] <= 2 * AREA && sizes[i] ? sizes[i] : AREA);
            assert_false(find(t, 1, NULL));
            recount(t);
            kvt__table_close(t);
            empty(d->shm);
        }
    /* The header of a file without an area. */
    struct kvt__table_params params = area_params(0);
    const size_t end = tb_parts(params.max_entries, false).end;
    const uint64_t wrapped = end - tb_area_at(end);
    struct kvt__table *without;
    params.area_version = 0;
    assert_int_equal(kvt__table_open(&params, d->shm_fd, &without), 0);
    kvt__table_close(without);
    write_file(d, at, &wrapped, 8);
    write_file(d, offsetof(struct tb_header, area_version), &(uint32_t){ VERSION }, 4);
    params.area_version = VERSION;
    assert_int_equal(open_err(d, &params), -ENOENT);

    kvt__table_close(open_area(d, AREA));
    write_file(d, offsetof(struct tb_header, area_version), &(uint32_t){ 0 }, 4);
    struct kvt__table *t = open_area(d, AREA);
    area_of(t, AREA);
    assert_int_equal(t->header->area_version, VERSION);
    kvt__table_close(t);
}

static void
file_without_all_of_the_area_is_replaced(void **state)
{
    const struct dir *d = *state;
    const off_t size = (off_t)tb_file_bytes(tb_parts(200000, false).end, AREA);
    const off_t sizes[] = { size - 1, size - AREA, size + 1, 2 * size };

    for (unsigned i = 0; i < 4; i++) {
        struct kvt__table *t = open_area(d, AREA);
        assert_int_equal(store(t, 1, 10), 0);
        kvt__table_close(t);
        int fd = openat(d->shm_fd, "table", O_RDWR | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        close(fd);
        t = open_area(d, AREA);
        assert_false(find(t, 1, NULL));
        kvt__table_close(t);
    }
}

/* The objects of an older table are not in the area. */
static void
table_with_an_area_has_no_snapshot(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params without = area_params(0);
    struct kvt__table *t;

    without.area_version = 0;
    assert_int_equal(kvt__table_open(&without, d->shm_fd, &t), 0);
    assert_int_equal(store(t, 1, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->shm_fd, 0), 0);
    kvt__table_close(t);
    t = open_area(d, AREA);
    assert_int_equal(kvt__table_read_v3(t, d->shm_fd), -ENOENT);
    assert_int_equal(kvt__table_read_snapshot(t, d->shm_fd), -ENOENT);
    assert_false(find(t, 1, NULL));
    assert_int_equal(store(t, 2, 10), 0);
    assert_int_equal(kvt__table_write_snapshot(t, d->shm_fd, 0), -EINVAL);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(processes_share_the_bytes),
        PLACE_TEST(private_area),
        PLACE_TEST(table_without_an_area_has_none),
        PLACE_TEST(parts_outside_the_area_are_einval),
        PLACE_TEST(another_size_replaces_a_table_without_users),
        PLACE_TEST(another_size_uses_a_table_with_users),
        PLACE_TEST(another_version_waits_for_users),
        PLACE_TEST(table_without_an_area_is_another_version),
        PLACE_TEST(readers_and_writers_without_a_size_make_no_table),
        PLACE_TEST(failed_make_area_leaves_no_file),
        PLACE_TEST(no_private_table_replaces_an_area),
        PLACE_TEST(killed_maker_leaves_no_half_area),
        PLACE_TEST(deletion_needs_the_only_handle),
        PLACE_TEST(killed_deleter_leaves_a_store_that_opens),
        PLACE_TEST(replaced_handle_deletes_nothing),
        PLACE_TEST(garbage_of_the_area_in_the_header_is_replaced),
        PLACE_TEST(file_without_all_of_the_area_is_replaced),
        PLACE_TEST(table_with_an_area_has_no_snapshot),
        PLACE_TEST(full_file_system_is_enospc),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
