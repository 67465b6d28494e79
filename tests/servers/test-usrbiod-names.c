/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of usrbiod: the mount, the directory of links and its access rights, faults of requests,
 * and the cleanup at the end. */
#include <dirent.h>
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>

#include "usrbiod-client.h"

static struct usrbiod u;

static bool
lists(const char *dir, const char *name)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    bool found = false;

    assert_non_null(d);
    while ((e = readdir(d)))
        found |= !strcmp(e->d_name, name);
    closedir(d);
    return found;
}

static void
in_mount(char out[static 600], const char *name)
{
    snprintf(out, 600, "%s/%s", u.mount, name);
}

/* ------------------------------------------------------------------------- the mount */

static bool
mount_type_is_hf3fs(void)
{
    FILE *f = fopen("/proc/self/mountinfo", "r");
    char line[4096];
    bool found = false;

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        found |= strstr(line, u.mount) && strstr(line, " - fuse.hf3fs hf3fs.test ");
    fclose(f);
    return found;
}

static void
the_mount_reports_type_3fs(void **state)
{
    int fd = open(u.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[32] = "", path[600];
    uint32_t magic = 0, offset = 0, version = 0;

    (void)state;
    assert_true(mount_type_is_hf3fs());
    assert_int_equal(ioctl(fd, 0x80046802, &magic), 0);
    assert_int_equal(magic, 0x8f3f5fff);
    assert_int_equal(ioctl(fd, 0x80046801, &offset), 0);
    assert_int_equal(offset, strlen(u.mount));
    assert_int_equal(ioctl(fd, 0x80046803, &version), 0);
    assert_int_equal(version, 1);
    assert_int_equal(ioctl(fd, 0x80206800, name), 0);
    assert_string_equal(name, "test");
    assert_int_equal(ioctl(fd, 0x80046810, &version), -1);
    assert_int_equal(errno, EINVAL);
    close(fd);
    assert_true(lists(u.mount, "3fs-virt"));
    in_mount(path, "3fs-virt");
    assert_true(lists(path, "iovs") && lists(path, "rm-rf") && lists(path, "get-conf"));
    in_mount(path, "3fs-virt/iovs");
    assert_true(lists(path, "submit-ios") && lists(path, "submit-ios.ph"));
}

static void
a_submit_link_leads_to_a_semaphore(void **state)
{
    char path[600], target[256] = "", want[256];

    (void)state;
    in_mount(path, "3fs-virt/iovs/submit-ios");
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    snprintf(want, sizeof want, "/dev/shm/sem.%s", u.submit + 1);
    assert_string_equal(target, want);
    assert_int_equal(access(want, R_OK | W_OK), 0);
    assert_int_equal(unlink(path), -1);
    assert_int_equal(errno, EPERM);
}

static void
files_pass_through(void **state)
{
    struct open_file f;
    struct stat st;
    char path[600];

    (void)state;
    file_open(&u, &f, "through");
    assert_int_equal(write(f.fd, "abc", 3), 3);
    assert_int_equal(stat(f.backing, &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(st.st_ino, f.ino);
    in_mount(path, "dir");
    assert_int_equal(mkdir(path, 0755), 0);
    in_mount(path, "dir/other");
    assert_int_equal(rename(f.path, path), 0);
    assert_int_equal(fstat(f.fd, &st), 0);
    assert_int_equal(st.st_ino, f.ino);
    assert_int_equal(usrbiod_count(&u, "live_inodes"), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(pwrite(f.fd, "d", 1, 3), 1);
    in_mount(path, "dir");
    assert_int_equal(rmdir(path), 0);
    file_close(&f);
    assert_true(setxattr(u.mount, "user.x", "y", 1, 0) < 0 && errno == ENOTSUP);
}

/* ------------------------------------------------------------------------- refusals */

#define UUID "00112233-4455-6677-8899-aabbccddeeff"

/* Names for a file of 64 KiB, which holds a ring of 638 entries. */
static const struct {
    const char *name;
    int err;
} refused[] = {
    { "nonsense", EIO },
    { "00112233-4455-6677-8899-aabbccddeef", EIO },
    { UUID "x", EIO },
    { UUID ".b0", EINVAL },
    { UUID ".b-1", EINVAL },
    { UUID ".b65537", EINVAL },
    { UUID ".", EINVAL },
    { UUID ".x1", EINVAL },
    { UUID ".t0", EINVAL },
    { UUID ".ph", EINVAL },
    { UUID ".f1", EINVAL },
    { UUID ".r0", EINVAL },
    { UUID ".r.t0", EINVAL },
    { UUID ".r0.t-1", EINVAL },
    { UUID ".r0.t0.f2", EINVAL },
    { UUID ".r0.t0.px", EINVAL },
    { UUID ".r639.t0", EINVAL },
    { UUID ".w9x.t0", EINVAL },
};

static const char *const accepted[] = {
    UUID, UUID ".b65536", UUID ".b1", UUID ".r0.t0", UUID ".w-8.t0", UUID ".r638.t0",
    UUID ".w0.ph.t0", UUID ".r0.pl.t0", UUID ".r0.pn.t5", UUID ".r0.t0.f10",
};

static void
invalid_names_are_refused(void **state)
{
    struct shared s;

    (void)state;
    shared_make(&u, &s, 65536, "");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        snprintf(s.link, sizeof s.link, "%s/3fs-virt/iovs/%s", u.mount, refused[i].name);
        int err = symlink(s.target, s.link) < 0 ? errno : 0;
        if (err != refused[i].err)
            fail_msg("%s: %s", refused[i].name, strerror(err));
    }
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        snprintf(s.link, sizeof s.link, "%s/3fs-virt/iovs/%s", u.mount, accepted[i]);
        if (symlink(s.target, s.link) < 0)
            fail_msg("%s: %s", accepted[i], strerror(errno));
        assert_int_equal(unlink(s.link), 0);
    }
    shared_close(&s);
    assert_int_equal(usrbiod_count(&u, "iovs") + usrbiod_count(&u, "rings"), 0);
}

static void
targets_that_are_no_shared_memory_are_refused(void **state)
{
    struct shared s;
    char path[600], target[256] = "";

    (void)state;
    shared_make(&u, &s, 4096, "");
    assert_true(symlink("/dev/shm/kvtier-test-not-there", s.link) < 0 && errno == EINVAL);
    assert_true(symlink("/dev/shm", s.link) < 0 && errno == EINVAL);
    snprintf(path, sizeof path, "%s/outside", u.backing);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    assert_true(symlink(path, s.link) < 0 && errno == EACCES);
    unlink(path);
    assert_int_equal(symlink(s.target, s.link), 0);
    assert_true(symlink(s.target, s.link) < 0 && errno == EEXIST);
    assert_true(readlink(s.link, target, sizeof target - 1) > 0);
    assert_string_equal(target, s.target);
    in_mount(path, "3fs-virt/iovs");
    assert_true(lists(path, strrchr(s.link, '/') + 1));
    shared_close(&s);
    assert_true(readlink(s.link, target, sizeof target) < 0 && errno == ENOENT);
}

static void
a_link_is_visible_to_its_owner_only(void **state)
{
    struct shared s;
    struct stat st;
    char path[600];

    (void)state;
    if (geteuid())
        skip();
    assert_int_equal(chmod(u.dir.path, 0711), 0);
    shared_open(&u, &s, 4096, "");
    assert_int_equal(lstat(s.link, &st), 0);
    assert_int_equal(st.st_mode, S_IFLNK | 0400);
    usrbiod_command(&u, "fault lookup refuse_uid");
    assert_true(lstat(s.link, &st) < 0 && errno == EPERM);
    usrbiod_command(&u, "clear");
    in_mount(path, "3fs-virt/iovs");
    setfsuid(12345);
    int err = lstat(s.link, &st) < 0 ? errno : 0;
    int unlink_err = unlink(s.link) < 0 ? errno : 0;
    bool hidden = !lists(path, strrchr(s.link, '/') + 1);
    setfsuid(0);
    assert_int_equal(err, EPERM);
    assert_int_equal(unlink_err, EPERM);
    assert_true(hidden);
    shared_close(&s);
}

static void *
register_it(void *arg)
{
    assert_int_equal(shared_register(arg), 0);
    return NULL;
}

static void
closing_a_directory_removes_the_links_of_its_thread(void **state)
{
    struct shared mine, others;
    pthread_t thread;
    char path[600];

    (void)state;
    in_mount(path, "3fs-virt/iovs");
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    shared_open(&u, &mine, 4096, "");
    shared_make(&u, &others, 4096, "");
    assert_int_equal(pthread_create(&thread, NULL, register_it, &others), 0);
    pthread_join(thread, NULL);
    assert_int_equal(usrbiod_count(&u, "iovs"), 2);
    close(fd);
    while (usrbiod_count(&u, "iovs") > 1) /* the kernel reports the close to usrbiod later */
        continue;
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(mine.link), -1);
    assert_int_equal(unlink(others.link), 0);
    shared_close(&mine);
    shared_close(&others);
}

/* --------------------------------------------------------------------------- faults */

static void
requests_fail_by_injected_faults(void **state)
{
    struct open_file f;
    char path[600];

    (void)state;
    in_mount(path, "renamed");
    file_open(&u, &f, "plain");
    usrbiod_command(&u, "fault lookup result=-EIO name=plain");
    assert_true(access(f.path, F_OK) < 0 && errno == EIO);
    usrbiod_command(&u, "clear");
    assert_int_equal(access(f.path, F_OK), 0);
    usrbiod_command(&u, "fault open result=EMFILE n=1");
    assert_true(open(f.path, O_RDONLY) < 0 && errno == EMFILE);
    usrbiod_command(&u, "fault create result=-28 n=1");
    assert_true(open(path, O_RDWR | O_CREAT, 0666) < 0 && errno == ENOSPC);
    usrbiod_command(&u, "fault rename result=-EREMOTEIO n=1 name=renamed");
    assert_true(rename(f.path, path) < 0 && errno == EREMOTEIO);
    usrbiod_command(&u, "fault unlink result=-EPERM n=1");
    assert_true(unlink(f.path) < 0 && errno == EPERM);
    usrbiod_command(&u, "fault flush result=-EIO n=1");
    assert_true(fsync(f.fd) < 0 && errno == EIO);
    usrbiod_command(&u, "fault flush result=-EDQUOT n=1");
    assert_true(close(f.fd) < 0 && errno == EDQUOT);
    assert_int_equal(rename(f.path, path), 0);
    assert_int_equal(unlink(path), 0);
    usrbiod_command(&u, "clear");
}

static void
an_invalid_fault_is_an_error(void **state)
{
    static const char *const wrong[] = {
        "fault", "fault read", "fault nothing stuck", "fault read stick",
        "fault read result=-EWHAT", "fault read short=-1", "fault read stuck p=2", "what",
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_t *answer = usrbiod_request(&u, wrong[i]);

        assert_true(json_is_false(json_object_get(answer, "ok")));
        assert_true(json_is_string(json_object_get(answer, "error")));
        json_decref(answer);
    }
}

/* ------------------------------------------------------------------------- look-ups */

static void *
look_for(void *arg)
{
    return access(arg, F_OK) < 0 ? NULL : arg;
}

/* All lookups are stuck at the same time, so none waits for another lookup. */
static void
lookups_run_concurrently(void **state)
{
    enum { N = 12 };
    static char paths[N][600];
    pthread_t threads[N];

    (void)state;
    if (geteuid()) /* a mount by fusermount3 does not allow parallel lookups */
        skip();
    usrbiod_command(&u, "reset");
    usrbiod_command(&u, "fault lookup stuck name=absent-");
    for (int i = 0; i < N; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/absent-%d", u.mount, i);
        assert_int_equal(pthread_create(&threads[i], NULL, look_for, paths[i]), 0);
    }
    while (usrbiod_count(&u, "stuck") < N)
        continue;
    assert_int_equal(usrbiod_count(&u, "max_lookups"), N);
    usrbiod_command(&u, "clear");
    json_decref(usrbiod_request(&u, "release"));
    for (int i = 0; i < N; i++) {
        void *found;

        pthread_join(threads[i], &found);
        assert_null(found);
    }
    assert_true(usrbiod_count(&u, "lookups") >= N);
}

/* ------------------------------------------------------------------------ life cycle */

static bool
is_mounted(const char *path)
{
    FILE *f = fopen("/proc/self/mounts", "r");
    char line[4096];
    bool found = false;

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        found |= strstr(line, path) != NULL;
    fclose(f);
    return found;
}

static bool
semaphore_is_there(const struct usrbiod *d)
{
    char path[256];

    snprintf(path, sizeof path, "/dev/shm/sem.%s", d->submit + 1);
    return !access(path, F_OK);
}

static void
the_daemon_restarts_after_a_crash(void **state)
{
    struct usrbiod d;
    struct stat st;

    (void)state;
    assert_true(usrbiod_start(&d, NULL));
    char before[sizeof d.submit];
    memcpy(before, d.submit, sizeof before);
    usrbiod_kill(&d);
    assert_true(stat(d.mount, &st) < 0 && errno == ENOTCONN);
    assert_true(usrbiod_run(&d, NULL));
    assert_int_equal(stat(d.mount, &st), 0);
    assert_string_not_equal(d.submit, before);
    assert_true(semaphore_is_there(&d));
    assert_int_equal(usrbiod_end(&d), 0);
    assert_false(semaphore_is_there(&d));
    memcpy(d.submit, before, sizeof before);
    assert_false(semaphore_is_there(&d));
}

static void
the_daemon_removes_all_its_files(void **state)
{
    static const char *const arguments[] = { "--iov-limit", "1", NULL };
    struct shared first, second;
    struct open_file f;
    struct usrbiod d;

    (void)state;
    assert_true(usrbiod_start(&d, arguments));
    shared_open(&d, &first, 4096, "");
    shared_make(&d, &second, 4096, "");
    assert_int_equal(shared_register(&second), EMFILE);
    file_open(&d, &f, "open");
    int dir = open(d.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    int status = usrbiod_wait(&d);
    assert_int_equal(status, 0);
    assert_false(is_mounted(d.mount));
    assert_false(semaphore_is_there(&d));
    shared_close(&first);
    shared_close(&second);
    close(f.fd);
    close(dir);
    assert_int_equal(usrbiod_end(&d), 0);
}

static int
clean(void **state)
{
    (void)state;
    shared_clean();
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mount_reports_type_3fs),
        cmocka_unit_test(a_submit_link_leads_to_a_semaphore),
        cmocka_unit_test(files_pass_through),
        cmocka_unit_test(invalid_names_are_refused),
        cmocka_unit_test(targets_that_are_no_shared_memory_are_refused),
        cmocka_unit_test(a_link_is_visible_to_its_owner_only),
        cmocka_unit_test(closing_a_directory_removes_the_links_of_its_thread),
        cmocka_unit_test(requests_fail_by_injected_faults),
        cmocka_unit_test(an_invalid_fault_is_an_error),
        cmocka_unit_test(lookups_run_concurrently),
        cmocka_unit_test(the_daemon_restarts_after_a_crash),
        cmocka_unit_test(the_daemon_removes_all_its_files),
    };

    return usrbiod_run_tests(&u, "usrbiod names", tests, sizeof tests / sizeof *tests, NULL,
                             clean);
}
