/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of usrbiod: bytes, refused I/Os, sizes of jobs, and faults of I/Os. */
#include "usrbiod-client.h"

enum { MIB = 1 << 20 };

static struct usrbiod u;
static struct shared iov;
static struct open_file file;

/* ------------------------------------------------------------------------------ bytes */

static void
fill(uint8_t *to, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        memcpy(to + i, &seed, 8);
    }
}

static void
transfer(struct ring *r, int n)
{
    for (int i = 0; i < n; i++)
        ring_prepare(r, &iov, (uint64_t)i * MIB, file.ino, (uint64_t)i * MIB, MIB,
                     (uint64_t)i);
    ring_submit(r);
    for (int i = 0; i < n; i++)
        assert_int_equal(ring_wait(r).result, MIB);
}

static void
reads_return_written_bytes(void **state)
{
    struct ring in, out;
    uint8_t *copy = malloc(64 * MIB);

    (void)state;
    assert_non_null(copy);
    ring_open(&u, &out, 64, ".w-4.t0");
    ring_open(&u, &in, 64, ".r-4.t0");
    fill(iov.base, 64 * MIB, 1);
    memcpy(copy, iov.base, 64 * MIB);
    transfer(&out, 64);
    memset(iov.base, 0, 64 * MIB);
    transfer(&in, 64);
    assert_memory_equal(iov.base, copy, 64 * MIB);
    int fd = open(file.backing, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, copy, 64 * MIB), 64 * MIB);
    assert_memory_equal(iov.base, copy, 64 * MIB);
    close(fd);
    free(copy);
    ring_close(&in);
    ring_close(&out);
}

static void
the_end_of_a_file_is_a_short_read(void **state)
{
    struct ring r;

    (void)state;
    ring_open(&u, &r, 4, ".r0.t0");
    assert_int_equal(ftruncate(file.fd, 10000), 0);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 0, 20000), 10000);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 9999, 1), 1);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 10000, 100), 0);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 1 << 30, 100), 0);
    ring_close(&r);
}

static void
invalid_ios_are_errors(void **state)
{
    struct shared blocks, stranger;
    struct ring r;

    (void)state;
    shared_open(&u, &blocks, 65536, ".b4096");
    shared_make(&u, &stranger, 65536, "");
    ring_open(&u, &r, 4, ".w0.t0");
    assert_int_equal(ring_do(&r, &iov, 0, file.ino + 12345678, 0, 10), -EBADF);
    assert_int_equal(ring_do(&r, &stranger, 0, file.ino, 0, 10), -EINVAL);
    assert_int_equal(ring_do(&r, &r.memory, 0, file.ino, 0, 10), -EINVAL);
    assert_int_equal(ring_do(&r, &iov, iov.bytes - 9, file.ino, 0, 10), -EINVAL);
    assert_int_equal(ring_do(&r, &iov, iov.bytes - 10, file.ino, 0, 10), 10);
    assert_int_equal(ring_do(&r, &iov, UINT64_MAX, file.ino, 0, 10), -EINVAL);
    assert_int_equal(ring_do(&r, &iov, 8, file.ino, 0, UINT64_MAX), -EINVAL);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, UINT64_MAX - 2, 10), -EINVAL);
    assert_int_equal(ring_do(&r, &blocks, 4095, file.ino, 0, 2), -EINVAL);
    assert_int_equal(ring_do(&r, &blocks, 4096, file.ino, 0, 4096), 4096);
    unlink(blocks.link);
    assert_int_equal(ring_do(&r, &blocks, 0, file.ino, 0, 10), -EINVAL);
    shared_close(&blocks);
    shared_close(&stranger);
    ring_close(&r);
}

static void
a_closed_file_is_unknown(void **state)
{
    struct open_file f;
    struct ring r;

    (void)state;
    file_open(&u, &f, "closed");
    ring_open(&u, &r, 4, ".w0.t0");
    int dup_fd = dup(f.fd);
    close(f.fd);
    assert_int_equal(ring_do(&r, &iov, 0, f.ino, 0, 10), 10);
    close(dup_fd);
    while (usrbiod_count(&u, "live_inodes") > 1)
        continue;
    assert_int_equal(ring_do(&r, &iov, 0, f.ino, 0, 10), -EBADF);
    unlink(f.path);
    ring_close(&r);
}

/* ------------------------------------------------------------------------------- jobs */

/* Submit ten I/Os. */
static void
submit_ten(struct ring *r)
{
    for (uint64_t i = 0; i < 10; i++)
        ring_prepare(r, &iov, 0, file.ino, 0, 1, i);
    ring_submit(r);
}

/* Wait until the daemon has given n entries back.  The daemon writes the results first, so a client
 * can see the last result earlier. */
static void
wait_for_entries(struct ring *r, int n)
{
    while (atomic_load(ring_counter(r, 1)) != n)
        continue;
}

static void
expect_jobs(const char *words, int results, int jobs, int largest)
{
    struct ring r;
    struct done done;

    usrbiod_command(&u, "reset");
    ring_open(&u, &r, 16, words);
    submit_ten(&r);
    for (int i = 0; i < results; i++)
        ring_wait(&r);
    assert_int_equal(usrbiod_count(&u, "jobs"), jobs);
    assert_int_equal(usrbiod_count(&u, "largest_job"), largest);
    assert_int_equal(usrbiod_count(&u, "reads"), results);
    assert_false(ring_poll(&r, &done));
    wait_for_entries(&r, results);
    ring_close(&r);
}

static void
io_depth_sets_the_size_of_jobs(void **state)
{
    (void)state;
    expect_jobs(".r0.t0", 10, 1, 10);
    expect_jobs(".r4.t0", 8, 2, 4); /* the last two I/Os wait for two more */
    expect_jobs(".r-4.t0", 10, 3, 4);
    expect_jobs(".r-4.t5", 8, 2, 4); /* as with the real daemon, the last two I/Os wait forever */
}

static void
a_group_completes_when_the_last_io_is_submitted(void **state)
{
    struct ring r;

    (void)state;
    ring_open(&u, &r, 16, ".r4.t0");
    submit_ten(&r);
    for (int i = 0; i < 8; i++)
        ring_wait(&r);
    ring_prepare(&r, &iov, 0, file.ino, 0, 1, 10);
    ring_prepare(&r, &iov, 0, file.ino, 0, 1, 11);
    ring_submit(&r);
    for (int i = 0; i < 4; i++)
        ring_wait(&r);
    ring_close(&r);
}

static void
ring_indexes_wrap_around(void **state)
{
    struct ring r;
    uint64_t next = 0;

    (void)state;
    ring_open(&u, &r, 5, ".r-2.t0");
    for (uint64_t i = 0; i < 1000; i++) {
        ring_prepare(&r, &iov, 0, file.ino, 0, 1, i);
        ring_submit(&r);
        if (i >= 4) {
            struct done done = ring_wait(&r);
            assert_int_equal(done.result, 1);
            assert_true(done.userdata < next + 5);
            next++;
        }
    }
    for (int i = 0; i < 4; i++)
        ring_wait(&r);
    ring_close(&r);
}

static void
a_garbage_ring_does_not_affect_other_rings(void **state)
{
    struct ring r;
    int32_t bad = 1000;

    (void)state;
    ring_open(&u, &r, 4, ".r0.t0");
    ring_prepare(&r, &iov, 0, file.ino, 0, 1, 77);
    memcpy(r.memory.base + 16 + 80 * r.n, &bad, 4);
    ring_submit(&r);
    assert_int_equal(ring_wait(&r).result, -EINVAL);
    atomic_store(ring_counter(&r, 0), -5);
    ring_submit(&r);
    atomic_store(ring_counter(&r, 0), 1 << 30);
    ring_submit(&r);
    atomic_store(ring_counter(&r, 0), 1);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 0, 1), 1);
    ring_close(&r);
}

/* ----------------------------------------------------------------------------- faults */

static void
ios_fail_by_injected_faults(void **state)
{
    struct ring r;

    (void)state;
    ring_open(&u, &r, 4, ".r0.t0");
    usrbiod_command(&u, "fault read result=-EREMOTEIO n=1 name=data");
    usrbiod_command(&u, "fault read result=-EIO name=another");
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 0, 100), -EREMOTEIO);
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 0, 100), 100);
    usrbiod_command(&u, "fault any short=10 n=1");
    assert_int_equal(ring_do(&r, &iov, 0, file.ino, 0, 100), 10);
    usrbiod_command(&u, "clear");
    ring_close(&r);
}

static void
bits_are_flipped(void **state)
{
    struct ring in, out;
    uint8_t was;

    (void)state;
    ring_open(&u, &in, 4, ".r0.t0");
    ring_open(&u, &out, 4, ".w0.t0");
    fill(iov.base, 104, 3);
    was = iov.base[52];
    usrbiod_command(&u, "fault write corrupt n=1");
    assert_int_equal(ring_do(&out, &iov, 0, file.ino, 0, 104), 104);
    assert_int_equal(iov.base[52], was);
    assert_int_equal(ring_do(&in, &iov, 0, file.ino, 0, 104), 104);
    assert_int_equal(iov.base[52], was ^ 0x10);
    usrbiod_command(&u, "fault read corrupt n=1");
    assert_int_equal(ring_do(&in, &iov, 0, file.ino, 0, 104), 104);
    assert_int_equal(iov.base[52], was);
    usrbiod_command(&u, "clear");
    ring_close(&in);
    ring_close(&out);
}

static void
stuck_ios_complete_after_a_release(void **state)
{
    struct ring r;
    struct done done;

    (void)state;
    ring_open(&u, &r, 16, ".r-1.t0");
    usrbiod_command(&u, "fault read stuck n=1");
    memset(iov.base, 0xee, 10);
    for (uint64_t i = 0; i < 3; i++)
        ring_prepare(&r, &iov, 0, file.ino, 0, 10, i);
    ring_submit(&r);
    ring_wait(&r);
    ring_wait(&r);
    assert_false(ring_poll(&r, &done));
    while (usrbiod_count(&u, "stuck") < 1)
        continue;
    assert_int_equal(usrbiod_count(&u, "in_flight"), 1);
    memset(iov.base, 0xee, 10);
    json_decref(usrbiod_request(&u, "release"));
    assert_int_equal(ring_wait(&r).result, 10);
    assert_int_not_equal(iov.base[3], 0xee);
    wait_for_entries(&r, 3);
    usrbiod_command(&u, "clear");
    ring_close(&r);
}

static void
reordered_results_come_in_reverse(void **state)
{
    struct ring r;

    (void)state;
    ring_open(&u, &r, 16, ".r-2.t0");
    usrbiod_command(&u, "fault read reorder n=1");
    for (uint64_t i = 0; i < 2; i++)
        ring_prepare(&r, &iov, 0, file.ino, 0, 10, i);
    ring_submit(&r);
    assert_int_equal(ring_wait(&r).userdata, 1);
    assert_int_equal(ring_wait(&r).userdata, 0);
    usrbiod_command(&u, "clear");
    ring_close(&r);
}

static void
posts_are_lost(void **state)
{
    struct ring r;
    struct done done;

    (void)state;
    ring_open(&u, &r, 16, ".r0.t0");
    usrbiod_command(&u, "fault read lost_wakeup n=1");
    ring_prepare(&r, &iov, 0, file.ino, 0, 10, 5);
    ring_submit(&r);
    while (!ring_poll(&r, &done))
        continue;
    assert_int_equal(done.userdata, 5);
    usrbiod_command(&u, "fault submit lost_wakeup n=1");
    double posts = usrbiod_count(&u, "posts");
    ring_prepare(&r, &iov, 0, file.ino, 0, 10, 6);
    ring_submit(&r);
    while (usrbiod_count(&u, "posts") < posts + 1)
        continue;
    assert_false(ring_poll(&r, &done));
    ring_submit(&r);
    assert_int_equal(ring_wait(&r).userdata, 6);
    usrbiod_command(&u, "clear");
    ring_close(&r);
}

/* ---------------------------------------------------------------------------- options */

static void
with(const char *const *arguments, void (*test)(struct usrbiod *d, struct shared *memory,
                                                struct open_file *f))
{
    struct usrbiod d;
    struct shared memory;
    struct open_file f;

    assert_true(usrbiod_start(&d, arguments));
    shared_open(&d, &memory, 8 * MIB, "");
    file_open(&d, &f, "data");
    test(&d, &memory, &f);
    file_close(&f);
    shared_close(&memory);
    assert_int_equal(usrbiod_end(&d), 0);
}

/* The daemon is new and has no earlier job: after a job, the daemon would look at the ring and
 * find this I/O. */
static void
check_posts(struct usrbiod *d, struct shared *memory, struct open_file *f)
{
    struct ring quiet, high;
    struct done done;
    char link[600], target[256] = "";

    assert_int_equal(ftruncate(f->fd, 1), 0);
    ring_open(d, &quiet, 4, ".r0.t0");
    ring_open(d, &high, 4, ".r0.ph.t0");
    sem_close(high.submit);
    snprintf(link, sizeof link, "%s/3fs-virt/iovs/submit-ios.ph", d->mount);
    assert_true(readlink(link, target, sizeof target - 1) > 0);
    target[strlen("/dev/shm/sem.") - 1] = '/';
    high.submit = sem_open(target + strlen("/dev/shm/sem.") - 1, 0);
    assert_ptr_not_equal(high.submit, SEM_FAILED);
    ring_prepare(&quiet, memory, 0, f->ino, 0, 1, 1);
    for (int i = 0; i < 50; i++)
        assert_int_equal(ring_do(&high, memory, 0, f->ino, 0, 1), 1);
    assert_false(ring_poll(&quiet, &done));
    ring_submit(&quiet);
    assert_int_equal(ring_wait(&quiet).result, 1);
    ring_close(&quiet);
    ring_close(&high);
}

static void
nothing_is_taken_without_a_post(void **state)
{
    (void)state;
    with((const char *const[]){ NULL }, check_posts);
}

static void
check_rate(struct usrbiod *d, struct shared *memory, struct open_file *f)
{
    struct ring r;
    int64_t start = kvt__now_ns();

    ring_open(d, &r, 16, ".w-1.t0");
    for (uint64_t i = 0; i < 8; i++)
        ring_prepare(&r, memory, 0, f->ino, i * MIB, MIB, i);
    ring_submit(&r);
    for (int i = 0; i < 8; i++)
        assert_int_equal(ring_wait(&r).result, MIB);
    assert_true(kvt__now_ns() - start >= 100000000); /* a late completion proves nothing */
    assert_int_equal(usrbiod_count(d, "max_in_flight"), 8);
    assert_float_equal(usrbiod_count(d, "mean_bytes_in_flight") / MIB,
                       usrbiod_count(d, "mean_in_flight"), 0.01);
    ring_close(&r);
}

static void
each_io_has_the_rate_for_itself(void **state)
{
    (void)state;
    with((const char *const[]){ "--rate", "10485760", NULL }, check_rate);
}

static void
check_holes(struct usrbiod *d, struct shared *memory, struct open_file *f)
{
    struct ring in, out, strict;

    ring_open(d, &in, 4, ".r0.t0");
    ring_open(d, &strict, 4, ".r0.t0.f10");
    ring_open(d, &out, 4, ".w0.t0");
    memset(memory->base, 1, 65536);
    assert_int_equal(ring_do(&out, memory, 0, f->ino, MIB, 65536), 65536);
    assert_int_equal(ftruncate(f->fd, 4 * MIB), 0);
    assert_int_equal(ring_do(&in, memory, 0, f->ino, 0, 2 * MIB), MIB + 65536);
    assert_int_equal(memory->base[MIB - 1], 0);
    assert_int_equal(memory->base[MIB], 1);
    assert_int_equal(ring_do(&in, memory, 0, f->ino, 2 * MIB, MIB), 0);
    assert_int_equal(ring_do(&strict, memory, 0, f->ino, 0, 2 * MIB), -ENODATA);
    assert_int_equal(ring_do(&strict, memory, 0, f->ino, MIB, MIB), 65536);
    ring_close(&in);
    ring_close(&strict);
    ring_close(&out);
}

static void
reads_stop_at_holes(void **state)
{
    (void)state;
    with((const char *const[]){ "--holes", NULL }, check_holes);
}

static void
check_length(struct usrbiod *d, struct shared *memory, struct open_file *f)
{
    struct ring out;
    struct stat st;

    ring_open(d, &out, 4, ".w0.t0");
    assert_int_equal(ring_do(&out, memory, 0, f->ino, 0, 1000), 1000);
    assert_int_equal(fstat(f->fd, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(fsync(f->fd), 0);
    assert_int_equal(fstat(f->fd, &st), 0);
    assert_int_equal(st.st_size, 1000);
    ring_close(&out);
}

static void
a_file_length_is_updated_after_a_delay(void **state)
{
    (void)state;
    with((const char *const[]){ "--lazy-length", NULL }, check_length);
}

static void
leave_io_under_way(struct usrbiod *d, struct shared *memory, struct open_file *f)
{
    struct ring r;

    ring_open(d, &r, 16, ".w-1.t0");
    usrbiod_command(d, "fault write stuck n=2");
    usrbiod_command(d, "fault write delay_ms=100000");
    for (uint64_t i = 0; i < 8; i++)
        ring_prepare(&r, memory, 0, f->ino, i * MIB, MIB, i);
    ring_submit(&r);
    while (usrbiod_count(d, "in_flight") < 8)
        continue;
    usrbiod_command(d, "clear");
    ring_close(&r);
}

static void
the_daemon_exits_with_io_in_flight(void **state)
{
    (void)state;
    with((const char *const[]){ "--rate", "1000", NULL }, leave_io_under_way);
}

static int
begin(void **state)
{
    (void)state;
    shared_open(&u, &iov, 64 * MIB, "");
    file_open(&u, &file, "data");
    return 0;
}

static int
end(void **state)
{
    (void)state;
    file_close(&file);
    shared_close(&iov);
    shared_clean();
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_return_written_bytes),
        cmocka_unit_test(io_depth_sets_the_size_of_jobs),
        cmocka_unit_test(a_group_completes_when_the_last_io_is_submitted),
        cmocka_unit_test(nothing_is_taken_without_a_post),
        cmocka_unit_test(ring_indexes_wrap_around),
        cmocka_unit_test(a_garbage_ring_does_not_affect_other_rings),
        cmocka_unit_test(the_end_of_a_file_is_a_short_read),
        cmocka_unit_test(invalid_ios_are_errors),
        cmocka_unit_test(a_closed_file_is_unknown),
        cmocka_unit_test(ios_fail_by_injected_faults),
        cmocka_unit_test(bits_are_flipped),
        cmocka_unit_test(stuck_ios_complete_after_a_release),
        cmocka_unit_test(reordered_results_come_in_reverse),
        cmocka_unit_test(posts_are_lost),
        cmocka_unit_test(each_io_has_the_rate_for_itself),
        cmocka_unit_test(reads_stop_at_holes),
        cmocka_unit_test(a_file_length_is_updated_after_a_delay),
        cmocka_unit_test(the_daemon_exits_with_io_in_flight),
    };

    return usrbiod_run_tests(&u, "usrbiod rings", tests, sizeof tests / sizeof *tests,
                             begin, end);
}
