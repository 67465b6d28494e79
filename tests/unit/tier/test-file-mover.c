/* SPDX-License-Identifier: Apache-2.0
 *
 * The movers: every size, phase and kind of I/O, failures in the middle, and
 * hosts that forbid io_uring. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forbid.h"
#include "tier-test.h"
#include "tier/mover/mover.h"

#define MOST ((size_t)6 << 20) /* more pieces than may be in flight at a time */
#define PIECE ((size_t)512 << 10)

static struct temp_dir dir;
static bool direct_works;
static unsigned char *truth, *memory; /* MOST and a page, page-aligned */

static unsigned char *
pages(void)
{
    void *at = mmap(NULL, MOST + 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(at != MAP_FAILED);
    return at;
}

static int
set_up(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    int fd = open(dir.path, O_RDONLY | O_DIRECTORY);
    direct_works = kvt__posix_direct_works(fd);
    close(fd);
    truth = pages();
    memory = pages();
    for (size_t i = 0; i < MOST; i += 8)
        kvt__put_le64(truth + i, word_at(7, i / 8));
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    munmap(truth, MOST + 4096);
    munmap(memory, MOST + 4096);
    temp_dir_remove(&dir);
    return 0;
}

/* ------------------------------------------------------------------- helpers */

/* A file system without O_TMPFILE, and a file system that makes a file before refusing
 * O_DIRECT. */
static bool refuse_unnamed, refuse_direct;

int __real_openat64(int dirfd, const char *name, int flags, mode_t mode);
int __wrap_openat64(int dirfd, const char *name, int flags, mode_t mode);

int
__wrap_openat64(int dirfd, const char *name, int flags, mode_t mode)
{
    if (refuse_unnamed && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    int fd = __real_openat64(dirfd, name, flags, mode);
    if (fd >= 0 && refuse_direct && flags & O_DIRECT) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

static int
open_file(int flags)
{
    char path[512];

    snprintf(path, sizeof path, "%s/file", dir.path);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static struct kvt__file_extent
extent(int fd, unsigned char *at, size_t n, bool direct)
{
    return (struct kvt__file_extent){ .fd = fd, .at = at, .bytes = n, .direct = direct };
}

static int
write_extent(size_t n, bool direct)
{
    int fd = open_file(O_WRONLY | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0));
    struct kvt__file_extent e = extent(fd, truth, n, direct);
    int err = kvt__extent_write(&e);

    close(fd);
    return err;
}

/* Read n bytes of the file: head bytes, payload, tail bytes.  *crc: of the payload. */
static int
read_extent(size_t n, size_t head, size_t tail, bool direct, uint32_t *crc)
{
    struct kvt__sum sum = { memory + head, memory + n - tail, 0 };
    int fd = open_file(O_RDONLY | (direct ? O_DIRECT : 0));
    struct kvt__file_extent e = extent(fd, memory, n, direct);

    memset(memory, 0x5a, MOST + 4096);
    int err = kvt__extent_read(&e, &sum);
    close(fd);
    *crc = sum.crc;
    return err;
}

static bool
round_trip(size_t n, size_t head, size_t tail, bool direct)
{
    uint32_t crc;

    return !write_extent(n, direct) && !read_extent(n, head, tail, direct, &crc) &&
           !memcmp(memory, truth, n) &&
           crc == kvt__crc32c(0, truth + head, n - head - tail);
}

static bool
reads_well(void *arg)
{
    (void)arg;
    return round_trip(MOST, 28, 64, direct_works);
}

/* Return the number of this process's rings. */
static unsigned
n_rings(void)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    unsigned n = 0;
    char target[64];

    assert_non_null(d);
    while ((e = readdir(d))) {
        ssize_t len = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);

        target[len < 0 ? 0 : len] = '\0';
        n += !strcmp(target, "anon_inode:[io_uring]");
    }
    closedir(d);
    return n;
}

/* Run fn in a child process and return the result of fn. */
static bool
in_child(bool (*fn)(void *), void *arg)
{
    int status;
    pid_t pid = fork();

    if (!pid)
        _exit(!fn(arg));
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* A call of fn in a new thread.  The new thread has no ring. */
struct call {
    bool (*fn)(void *);
    void *arg;
    bool good;
};

static void *
call_main(void *arg)
{
    struct call *call = arg;

    call->good = call->fn(call->arg);
    return NULL;
}

static bool
in_thread(bool (*fn)(void *), void *arg)
{
    struct call call = { fn, arg, false };
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, call_main, &call), 0);
    pthread_join(thread, NULL);
    return call.good;
}

/* ------------------------------------------------------------ sizes and phases */

static const size_t sizes[] = {
    92, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, PIECE + PIECE / 2 - 1,
    PIECE + PIECE / 2, 2 * PIECE, 3 * PIECE + 28 + 64, 8 * PIECE, 9 * PIECE + 4000,
    MOST - 4095, MOST,
};

static bool
all_sizes(void *arg)
{
    (void)arg;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int direct = 0; direct <= direct_works; direct++)
            for (int framed = 0; framed < 2; framed++)
                if (!round_trip(sizes[i], framed ? 28 : 0, framed ? 64 : 0, direct))
                    return false;
    return true;
}

static void
every_size_comes_back_with_its_checksum(void **state)
{
    (void)state;
    assert_true(all_sizes(NULL));
}

static void
a_payload_smaller_than_a_piece_needs_no_alignment(void **state)
{
    static const size_t froms[] = { 0, 5, PIECE - 3, PIECE, PIECE + 1, 3 * PIECE - 1 };
    uint32_t crc;

    (void)state;
    assert_int_equal(write_extent(4 * PIECE, direct_works), 0);
    for (size_t i = 0; i < sizeof froms / sizeof *froms; i++) {
        size_t tail = 4 * PIECE - froms[i] - 10;

        assert_int_equal(read_extent(4 * PIECE, froms[i], tail, direct_works, &crc), 0);
        assert_int_equal(crc, kvt__crc32c(0, truth + froms[i], 10));
    }
}

/* -------------------------------------------------------------------- the ring */

static bool
may_have_ring(void)
{
#ifdef KVT_HAVE_LIBURING
    long fd = syscall(SYS_io_uring_setup, 1, (char[256]){ 0 });

    if (fd < 0)
        return false;
    close((int)fd);
    return direct_works;
#else
    return false;
#endif
}

static bool
reads_with_a_ring(void *arg)
{
    (void)arg;
    if (!round_trip(PIECE / 2, 28, 64, true) || n_rings()) /* one piece gains nothing */
        return false;
    return round_trip(MOST, 28, 64, true) && round_trip(MOST, 0, 64, true) &&
           n_rings() == 1;
}

static void
a_thread_keeps_one_ring(void **state)
{
    (void)state;
    if (!may_have_ring())
        skip();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(n_rings(), 0);
        assert_true(in_thread(reads_with_a_ring, NULL));
    }
    assert_int_equal(n_rings(), 0);
}

struct refusal {
    long call;
    int err;
};

/* qemu-user has no filters of system calls. */
static bool
may_forbid(void *arg)
{
    (void)arg;
    return !forbid(SYS_io_uring_setup, ENOSYS);
}

static bool
reads_without_ring(void *arg)
{
    const struct refusal *r = arg;

    return !forbid(r->call, r->err) && round_trip(MOST, 28, 64, direct_works) &&
           round_trip(MOST - 1, 0, 64, direct_works) && !n_rings();
}

static void
forbidden_io_uring_is_no_error(void **state)
{
    static struct refusal refusals[] = {
        { SYS_io_uring_setup, EPERM }, { SYS_io_uring_setup, ENOSYS },
        { SYS_io_uring_setup, ENOMEM }, { SYS_io_uring_setup, EINVAL },
        { SYS_io_uring_enter, EPERM }, { SYS_io_uring_enter, EAGAIN },
    };

    (void)state;
    if (!in_child(may_forbid, NULL))
        skip();
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        assert_true(in_child(reads_without_ring, &refusals[i]));
}

/* Forbid io_uring_enter() to a thread with a used ring: every call, or only waiting calls.
 * A call waits if the third argument, the number of completions, is not 0. */
static bool
reads_when_forbidden_later(void *arg)
{
    const bool *waits_only = arg;

    if (!reads_with_a_ring(NULL))
        return false;
    return !(*waits_only ? forbid_with(SYS_io_uring_enter, 2, EPERM)
                         : forbid(SYS_io_uring_enter, EPERM)) &&
           round_trip(MOST, 28, 64, true) && round_trip(MOST - 1, 0, 64, true);
}

static void
io_uring_forbidden_after_the_start_is_no_error(void **state)
{
    static bool waits_only[] = { false, true };

    (void)state;
    if (!may_have_ring() || !in_child(may_forbid, NULL))
        skip();
    for (size_t i = 0; i < 2; i++)
        assert_true(in_child(reads_when_forbidden_later, &waits_only[i]));
}

static bool
all_sizes_without_ring(void *arg)
{
    (void)arg;
    return !forbid(SYS_io_uring_setup, ENOSYS) && all_sizes(NULL);
}

static void
without_io_uring_every_size_comes_back_too(void **state)
{
    (void)state;
    if (!in_child(may_forbid, NULL))
        skip();
    assert_true(in_child(all_sizes_without_ring, NULL));
}

/* The superuser may lock any amount of memory, so the test drops the superuser's rights. */
static bool
drop_rights(void)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };

    return !syscall(SYS_capset, &header, none);
}

static bool
with_little_locked_memory(void *arg)
{
    struct rlimit none = { 0, 0 };

    (void)arg;
    return !setrlimit(RLIMIT_MEMLOCK, &none) && drop_rights() &&
           in_thread(reads_well, NULL);
}

static void
little_locked_memory_is_enough(void **state)
{
    (void)state;
    assert_true(in_child(with_little_locked_memory, NULL));
}

static bool
without_descriptors(void *arg)
{
    struct rlimit few = { 0, 0 };
    int fd = open_file(O_RDONLY | (direct_works ? O_DIRECT : 0));
    struct kvt__sum sum = { memory, memory + MOST, 0 };
    struct kvt__file_extent e = extent(fd, memory, MOST, direct_works);

    (void)arg;
    few.rlim_cur = few.rlim_max = (rlim_t)fd + 1;
    return !setrlimit(RLIMIT_NOFILE, &few) && !kvt__extent_read(&e, &sum) &&
           sum.crc == kvt__crc32c(0, truth, MOST);
}

static void
no_descriptor_for_a_ring_is_no_error(void **state)
{
    (void)state;
    assert_int_equal(write_extent(MOST, direct_works), 0);
    assert_true(in_child(without_descriptors, NULL));
}

static void
a_child_of_fork_does_not_use_its_parents_ring(void **state)
{
    (void)state;
    assert_true(reads_well(NULL)); /* this thread has a ring now */
    for (int i = 0; i < 3; i++) {
        assert_true(in_child(reads_well, NULL));
        assert_true(reads_well(NULL));
    }
}

static bool
with_descriptor_0_free(void *arg)
{
    int fd = open(dir.path, O_RDONLY | O_DIRECTORY);

    (void)arg;
    close(0);
    return kvt__posix_direct_works(fd) == direct_works && fcntl(0, F_GETFD) == -1;
}

static void
descriptor_0_is_as_good_as_any(void **state)
{
    (void)state;
    assert_true(in_child(with_descriptor_0_free, NULL));
}

/* ------------------------------------------------------------------- failures */

static void
a_refusal_of_direct_io_leaves_no_file(void **state)
{
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s/empty", dir.path);
    assert_int_equal(mkdir(path, 0700), 0);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    refuse_unnamed = refuse_direct = true;
    bool works = kvt__posix_direct_works(fd);
    refuse_unnamed = refuse_direct = false;
    close(fd);
    assert_false(works);
    assert_int_equal(rmdir(path), 0);
}

/* An earlier kvtier probed under a fixed name.  A crash or another host may have left the
 * probe's file. */
static void
direct_io_is_found_despite_files_of_other_probes(void **state)
{
    char path[512];

    (void)state;
    if (!direct_works)
        skip();
    snprintf(path, sizeof path, "%s/direct-probe", dir.path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    refuse_unnamed = true;
    fd = open(dir.path, O_RDONLY | O_DIRECTORY);
    bool works = kvt__posix_direct_works(fd);
    close(fd);
    refuse_unnamed = false;
    assert_int_equal(unlink(path), 0);
    assert_true(works);
}

static void
a_file_that_is_too_short_is_eio(void **state)
{
    uint32_t crc;

    (void)state;
    for (size_t n = 1; n < MOST; n += MOST / 5 - 999) {
        assert_int_equal(write_extent(n, direct_works), 0);
        assert_int_equal(read_extent(MOST, 0, 0, direct_works, &crc), -EIO);
        assert_memory_equal(memory, truth, n & ~(size_t)4095);
    }
    assert_true(reads_well(NULL));
}

/* The kernel cannot write to a page in the middle, so a single piece fails. */
static bool
nothing_moves_after_an_error(void)
{
    static const size_t bad[] = { 0, 3 * PIECE, 7 * PIECE + 8192, MOST - 4096 };
    unsigned char *later = pages();
    struct kvt__sum sum = { later, later + MOST, 0 };
    bool good = true;

    for (size_t i = 0; good && i < sizeof bad / sizeof *bad; i++) {
        int fd = open_file(O_RDONLY | (direct_works ? O_DIRECT : 0));
        struct kvt__file_extent e = extent(fd, later, MOST, direct_works);

        mprotect(later + bad[i], 4096, PROT_READ);
        good = kvt__extent_read(&e, &sum) == -EFAULT;
        close(fd);
        mprotect(later + bad[i], 4096, PROT_READ | PROT_WRITE);
        memset(later, 0x11, MOST);
        good = good && reads_well(NULL);
        for (size_t at = 0; at < MOST; at++)
            good = good && later[at] == 0x11;
    }
    munmap(later, MOST + 4096);
    return good;
}

static void
after_an_error_nothing_is_under_way(void **state)
{
    (void)state;
    assert_int_equal(write_extent(MOST, direct_works), 0);
    assert_true(nothing_moves_after_an_error());
}

static bool
file_too_large(void *arg)
{
    struct rlimit limit = { 3 * PIECE, 3 * PIECE };

    (void)arg;
    signal(SIGXFSZ, SIG_IGN);
    return !setrlimit(RLIMIT_FSIZE, &limit) &&
           write_extent(MOST, direct_works) == -EFBIG &&
           write_extent(2 * PIECE, direct_works) == 0 &&
           write_extent(MOST, false) == -EFBIG;
}

static void
an_incomplete_write_names_the_reason(void **state)
{
    (void)state;
    assert_true(in_child(file_too_large, NULL));
}

static void
on_alarm(int signal)
{
    (void)signal;
}

static void
signals_do_not_disturb(void **state)
{
    struct sigaction action = { .sa_handler = on_alarm }; /* no SA_RESTART */
    struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };

    (void)state;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    bool good = true;
    for (int i = 0; i < 10; i++)
        good = good && reads_well(NULL) && round_trip(MOST, 28, 64, false);
    setitimer(ITIMER_REAL, &never, NULL);
    assert_true(good);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_keeps_one_ring),
        cmocka_unit_test(forbidden_io_uring_is_no_error),
        cmocka_unit_test(io_uring_forbidden_after_the_start_is_no_error),
        cmocka_unit_test(little_locked_memory_is_enough),
        cmocka_unit_test(no_descriptor_for_a_ring_is_no_error),
        cmocka_unit_test(without_io_uring_every_size_comes_back_too),
        cmocka_unit_test(every_size_comes_back_with_its_checksum),
        cmocka_unit_test(a_payload_smaller_than_a_piece_needs_no_alignment),
        cmocka_unit_test(a_child_of_fork_does_not_use_its_parents_ring),
        cmocka_unit_test(descriptor_0_is_as_good_as_any),
        cmocka_unit_test(a_refusal_of_direct_io_leaves_no_file),
        cmocka_unit_test(direct_io_is_found_despite_files_of_other_probes),
        cmocka_unit_test(a_file_that_is_too_short_is_eio),
        cmocka_unit_test(after_an_error_nothing_is_under_way),
        cmocka_unit_test(an_incomplete_write_names_the_reason),
        cmocka_unit_test(signals_do_not_disturb),
    };

    /* Without O_DIRECT all tests would use buffered I/O and pass. */
    temp_dir_make(&dir);
    int fd = open(dir.path, O_RDONLY | O_DIRECTORY);
    direct_works = kvt__posix_direct_works(fd);
    close(fd);
    temp_dir_remove(&dir);
    if (!direct_works) {
        fprintf(stderr, "%s has no O_DIRECT: set TMPDIR to a file system that has it\n",
                dir.path);
        return 77;
    }
    return cmocka_run_group_tests_name("tier file mover", tests, set_up, tear_down);
}
