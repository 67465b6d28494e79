/* SPDX-License-Identifier: Apache-2.0
 *
 * The open of a tier deletes leftover temporary files, and no other files. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>

#include "tier-test.h"

/* The behaviour of flock().  LOCAL: a local file system.  NFS: an exclusive flock needs a writable
 * descriptor.  NONE: flock() is not supported.  REMOVED_AND_LOCKED: another process has found the
 * next new file without a flock, has deleted the file, and still holds the flock.  REMOVED: the
 * other process has released the flock. */
static enum { LOCAL, NFS, NONE, REMOVED_AND_LOCKED, REMOVED } locks;

static void
remove_open_file(int fd)
{
    char link[64], path[1024];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    assert_int_equal(unlink(path), 0);
}

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int
__wrap_flock(int fd, int operation)
{
    if (locks == NONE)
        errno = EOPNOTSUPP;
    else if (locks == NFS && operation & LOCK_EX &&
             (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        errno = EBADF;
    else if (locks == REMOVED_AND_LOCKED || locks == REMOVED) {
        bool locked = locks == REMOVED_AND_LOCKED;

        locks = LOCAL;
        remove_open_file(fd);
        if (!locked)
            return __real_flock(fd, operation);
        errno = EWOULDBLOCK;
    } else
        return __real_flock(fd, operation);
    return -1;
}

static bool modes_are_refused, modes_are_ignored;

int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);

int
__wrap_fchmod(int fd, mode_t mode)
{
    if (modes_are_ignored)
        return 0;
    if (!modes_are_refused)
        return __real_fchmod(fd, mode);
    errno = EPERM;
    return -1;
}

struct writer {
    struct kvt__tier *tier;
    _Atomic bool stop;
    _Atomic int n_failed;
};

static void *
writer_main(void *arg)
{
    struct writer *w = arg;
    struct chunk c;

    chunk_init(&c, "model", 1);
    while (!w->stop)
        if (put_bytes(w->tier, &c.object, 300 << 10, 1))
            w->n_failed++;
    return NULL;
}

static bool
first_name(const char *dir, char *out, size_t size)
{
    bool found = false;
    struct dirent *e;
    DIR *d = opendir(dir);

    while (d && !found && (e = readdir(d))) {
        found = e->d_name[0] != '.';
        if (found)
            snprintf(out, size, "%s", e->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

/* Return a name of a temporary file of this host: the first name that appears during a put. */
static void
own_name(const char *dir, char *out, size_t size)
{
    char url[512], temp[512];
    pthread_t thread;

    snprintf(url, sizeof url, "fs://%s", dir);
    snprintf(temp, sizeof temp, "%s/.kvtier/tmp", dir);
    struct writer w = { .tier = open_tier(url, true) };
    assert_int_equal(pthread_create(&thread, NULL, writer_main, &w), 0);
    while (!first_name(temp, out, size))
        continue;
    w.stop = true;
    pthread_join(thread, NULL);
    w.tier->ops->close(w.tier);
    assert_int_equal(w.n_failed, 0);
}

static int
make_file(const char *dir, const char *name, time_t age)
{
    struct timespec times[2];
    char path[1024];

    snprintf(path, sizeof path, "%s/.kvtier/tmp/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= age;
    times[1] = times[0];
    assert_int_equal(futimens(fd, times), 0);
    return fd;
}

static bool
is_there(const char *dir, const char *name)
{
    char path[1024];

    snprintf(path, sizeof path, "%s/.kvtier/tmp/%s", dir, name);
    return !access(path, F_OK);
}

static void
reopen(const char *dir)
{
    char url[512];

    snprintf(url, sizeof url, "fs://%s", dir);
    struct kvt__tier *tier = open_tier(url, true);
    tier->ops->close(tier);
}

struct fixture {
    struct temp_dir dir;
    char own[256];     /* a name of this host */
    char foreign[256]; /* a name of another host */
};

static int
setup(void **state)
{
    static struct fixture f;

    locks = LOCAL;
    temp_dir_make(&f.dir);
    own_name(f.dir.path, f.own, sizeof f.own);
    memcpy(f.foreign, f.own, sizeof f.foreign);
    f.foreign[0] = f.own[0] == '0' ? '1' : '0';
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    temp_dir_remove(&f->dir);
    return 0;
}

static void
an_unlocked_file_of_this_host_is_removed(void **state)
{
    struct fixture *f = *state;

    close(make_file(f->dir.path, f->own, 0));
    reopen(f->dir.path);
    assert_false(is_there(f->dir.path, f->own));
}

static void
a_locked_file_of_this_host_is_kept(void **state)
{
    struct fixture *f = *state;
    int fd = make_file(f->dir.path, f->own, 1000000);

    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    reopen(f->dir.path);
    assert_true(is_there(f->dir.path, f->own));
    close(fd);
    reopen(f->dir.path);
    assert_false(is_there(f->dir.path, f->own));
}

static void
on_nfs_the_lock_protects_temporary_files(void **state)
{
    struct fixture *f = *state;

    locks = NFS;
    a_locked_file_of_this_host_is_kept(state);
    close(make_file(f->dir.path, f->own, 0));
    reopen(f->dir.path);
    assert_false(is_there(f->dir.path, f->own));
}

static void
without_locks_the_age_decides(void **state)
{
    struct fixture *f = *state;

    locks = NONE;
    close(make_file(f->dir.path, f->own, 3000));
    reopen(f->dir.path);
    assert_true(is_there(f->dir.path, f->own));
    char path[1024];
    snprintf(path, sizeof path, "%s/.kvtier/tmp/%s", f->dir.path, f->own);
    assert_int_equal(unlink(path), 0);
    close(make_file(f->dir.path, f->own, 4000));
    reopen(f->dir.path);
    assert_false(is_there(f->dir.path, f->own));
}

static void
a_young_file_of_another_host_is_kept(void **state)
{
    struct fixture *f = *state;

    close(make_file(f->dir.path, f->foreign, 3000));
    close(make_file(f->dir.path, "something else", 3000));
    reopen(f->dir.path);
    assert_true(is_there(f->dir.path, f->foreign));
    assert_true(is_there(f->dir.path, "something else"));
}

static void
an_old_file_of_another_host_is_removed(void **state)
{
    struct fixture *f = *state;

    close(make_file(f->dir.path, f->foreign, 4000));
    close(make_file(f->dir.path, "something else", 4000));
    reopen(f->dir.path);
    assert_false(is_there(f->dir.path, f->foreign));
    assert_false(is_there(f->dir.path, "something else"));
}

static void
only_regular_files_are_removed(void **state)
{
    struct fixture *f = *state;
    char path[1024];

    snprintf(path, sizeof path, "%s/.kvtier/tmp/%s", f->dir.path, f->own);
    assert_int_equal(mkfifo(path, 0600), 0);
    reopen(f->dir.path);
    assert_true(is_there(f->dir.path, f->own));
}

/* A process that starts must not delete a file that another process is writing. */
static void
opens_during_writes_fail_no_put(void **state)
{
    struct fixture *f = *state;
    char url[512];
    pthread_t thread;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    struct writer w = { .tier = open_tier(url, true) };
    assert_int_equal(pthread_create(&thread, NULL, writer_main, &w), 0);
    for (int i = 0; i < 300; i++)
        reopen(f->dir.path);
    w.stop = true;
    pthread_join(thread, NULL);
    w.tier->ops->close(w.tier);
    assert_int_equal(w.n_failed, 0);
}

/* A process that starts may delete a new file between the creation and the flock. */
static void
a_temporary_file_removed_before_its_lock_fails_no_put(void **state)
{
    struct fixture *f = *state;
    struct chunk c;
    char url[512];

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    chunk_init(&c, "model", 1);
    locks = REMOVED_AND_LOCKED;
    assert_int_equal(put_bytes(tier, &c.object, 1000, 1), 0);
    assert_int_equal(locks, LOCAL);
    locks = REMOVED;
    assert_int_equal(put_bytes(tier, &c.object, 1000, 1), 0);
    assert_int_equal(locks, LOCAL);
    tier->ops->close(tier);
}

static void
a_file_system_that_refuses_a_mode_makes_the_put_fail(void **state)
{
    struct fixture *f = *state;
    char url[512], temp[512], name[256];
    struct kvt__tier *tier;
    struct chunk c;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    snprintf(temp, sizeof temp, "%s/.kvtier/tmp", f->dir.path);
    assert_int_equal(try_open_for(url, true, "store_mode=group", 1, &tier), 0);
    chunk_init(&c, "model", 1);
    modes_are_refused = true;
    int err = put_bytes(tier, &c.object, 1000, 1);
    modes_are_refused = false;
    assert_int_equal(err, -EPERM);
    assert_false(first_name(temp, name, sizeof name));
    assert_int_equal(put_bytes(tier, &c.object, 1000, 1), 0);
    tier->ops->close(tier);
}

/* Without the mark, a chunk with a time to live would live for ever after the loss of the index. */
static void
a_file_system_without_the_mark_stores_no_chunk_with_a_time_to_live(void **state)
{
    struct fixture *f = *state;
    char url[512], temp[512], name[NAME_MAX + 1];
    struct kvt__found found;
    struct chunk c;

    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    snprintf(temp, sizeof temp, "%s/.kvtier/tmp", f->dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    chunk_init(&c, "model", 2);
    c.object.expires = true;
    modes_are_ignored = true;
    int err = put_bytes(tier, &c.object, 1000, 1);
    modes_are_ignored = false;
    assert_int_equal(err, -ENOTSUP);
    assert_int_equal(kvt__tier_probe(tier, &c.object, &found), -ENOENT);
    assert_false(first_name(temp, name, sizeof name));
    assert_int_equal(put_bytes(tier, &c.object, 1000, 1), 0);
    tier->ops->close(tier);
}

/* Take the doctor's line about locks. */
static void
take_locks(void *ctx, const char *about, int status, const char *text)
{
    assert_true(status == 0 || status == 1);
    if (!strcmp(about, "fs locks"))
        snprintf(ctx, 300, "%s", text);
}

static void
the_doctor_reports_if_locks_work(void **state)
{
    struct kvt_config *config = config_with((const char *const[]){ NULL });
    char url[512], text[300] = "";
    struct temp_dir dir;

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "fs://%s", dir.path);
    struct kvt__tier_params params = { .config = config, .url = url, .name = "remote_url" };
    locks = LOCAL;
    kvt__tier_check(&params, &(struct kvt__reporter){ .fn = take_locks, .ctx = text });
    assert_non_null(strstr(text, "flock() works"));
    locks = NONE;
    kvt__tier_check(&params, &(struct kvt__reporter){ .fn = take_locks, .ctx = text });
    assert_non_null(strstr(text, "after an hour"));
    locks = LOCAL;
    kvt_config_free(config);
    temp_dir_remove(&dir);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_unlocked_file_of_this_host_is_removed),
        TEST(a_locked_file_of_this_host_is_kept),
        TEST(on_nfs_the_lock_protects_temporary_files),
        TEST(without_locks_the_age_decides),
        TEST(a_young_file_of_another_host_is_kept),
        TEST(an_old_file_of_another_host_is_removed),
        TEST(only_regular_files_are_removed),
        TEST(opens_during_writes_fail_no_put),
        TEST(a_temporary_file_removed_before_its_lock_fails_no_put),
        TEST(a_file_system_that_refuses_a_mode_makes_the_put_fail),
        TEST(a_file_system_without_the_mark_stores_no_chunk_with_a_time_to_live),
        TEST(the_doctor_reports_if_locks_work),
    };

    return cmocka_run_group_tests_name("tier file, temporary files", tests, NULL,
                                       NULL);
}
