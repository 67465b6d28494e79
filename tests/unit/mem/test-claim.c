/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims on memory: each pool subtracts the bytes of other unpopulated pools.  The test replaces
 * kvt_memory_available(), because other programs allocate and free memory meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/private-dir.h"
#include "kvtier.h"
#include "mem/claim.h"

#define KEY "max_local_cpu_size"

#define AVAILABLE (UINT64_C(4) << 30)

uint64_t __wrap_kvt_memory_available(void);

uint64_t
__wrap_kvt_memory_available(void)
{
    return AVAILABLE;
}

/* Return a size: a single claim fits the available memory, two claims do not. */
static uint64_t
most_bytes(void)
{
    return AVAILABLE / 4 * 3;
}

static void
a_claim_counts_until_it_ends(void **state)
{
    const struct temp_dir *dir = *state;
    struct kvt__mem_claim first, second;
    uint64_t bytes = most_bytes();

    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &first), 0);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &second), -ENOMEM);
    assert_non_null(strstr(kvt__why(), KEY));
    assert_non_null(strstr(kvt__why(), "other workers"));
    kvt__mem_claim_end(&second); /* ending a failed claim is harmless */
    kvt__mem_claim_set(&first, bytes / 8); /* the rest is populated */
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &second), 0);
    kvt__mem_claim_end(&first);
    kvt__mem_claim_end(&second);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &first), 0);
    kvt__mem_claim_end(&first);
}

/* Records behind the first free record count only if the owners live. */
static void
a_claim_behind_a_free_record_counts_while_its_owner_lives(void **state)
{
    const struct temp_dir *dir = *state;
    struct kvt__mem_claim first, second, third;
    uint64_t bytes = most_bytes();

    assert_int_equal(kvt__mem_claim(dir->path, KEY, 1, &first), 0);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &second), 0);
    kvt__mem_claim_end(&first);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &third), -ENOMEM);
    kvt__lock_file_close(second.fd); /* as after a kill: the record keeps the bytes */
    assert_int_equal(kvt__mem_claim(dir->path, KEY, 1, &first), 0);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &third), 0);
    kvt__mem_claim_end(&third);
    kvt__mem_claim_end(&first);
}

static void
a_claim_ends_with_its_process(void **state)
{
    const struct temp_dir *dir = *state;
    struct kvt__mem_claim claim;
    uint64_t bytes = most_bytes();
    int ready[2];
    char b = 'x';

    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!kvt__mem_claim(dir->path, KEY, bytes, &claim) && write(ready[1], &b, 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &b, 1), 1);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &claim), -ENOMEM);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &claim), 0);
    kvt__mem_claim_end(&claim);
    close(ready[0]);
}

/* ------------------------------------------------------------- a concurrent sum */

#define SUM_BYTE 2048 /* behind 256 records */
#define LAST_RECORD 2040

static int rival = -1; /* holds the sum's lock until a claim waits for that lock */

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

static int
lock_byte(int fd, short type, off_t byte)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte,
                          .l_len = 1 };

    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* The claim waits: the rival enters a claim and releases the lock. */
int
__wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (rival < 0)
        return __real_nanosleep(time, left);
    uint64_t bytes = most_bytes();

    assert_int_equal(lock_byte(rival, F_WRLCK, LAST_RECORD), 0);
    assert_int_equal(pwrite(rival, &bytes, sizeof bytes, LAST_RECORD), sizeof bytes);
    assert_int_equal(lock_byte(rival, F_UNLCK, SUM_BYTE), 0);
    rival = -1;
    return 0;
}

static void
a_claim_waits_until_a_rival_has_entered_its_own(void **state)
{
    const struct temp_dir *dir = *state;
    struct kvt__mem_claim claim;
    uint64_t bytes = most_bytes();

    assert_int_equal(kvt__mem_claim(dir->path, KEY, 1, &claim), 0);
    kvt__mem_claim_end(&claim); /* the file exists */
    int parent = kvt__private_dir_open(dir->path);
    int fd = openat(parent, "pools", O_RDWR | O_CLOEXEC);
    assert_int_equal(lock_byte(fd, F_WRLCK, SUM_BYTE), 0);
    rival = fd;
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &claim), -ENOMEM);
    assert_int_equal(rival, -1);
    close(fd);
    assert_int_equal(kvt__mem_claim(dir->path, KEY, bytes, &claim), 0);
    kvt__mem_claim_end(&claim);
    close(parent);
}

static void
without_a_directory_a_claim_is_compared_alone(void **state)
{
    struct kvt__mem_claim claim;

    (void)state;
    assert_int_equal(kvt__mem_claim("/nowhere", KEY, most_bytes(), &claim), 0);
    kvt__mem_claim_end(&claim);
    assert_int_equal(kvt__mem_claim("/nowhere", KEY, UINT64_MAX / 2, &claim), -ENOMEM);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, temp_dir_setup, temp_dir_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_claim_counts_until_it_ends),
        TEST(a_claim_behind_a_free_record_counts_while_its_owner_lives),
        TEST(a_claim_ends_with_its_process),
        TEST(a_claim_waits_until_a_rival_has_entered_its_own),
        TEST(without_a_directory_a_claim_is_compared_alone),
    };

    return cmocka_run_group_tests_name("mem claim", tests, NULL, NULL);
}
