/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool is populated in steps: the pool's claim at each step, and the pool's size after the
 * kernel refused a step.  The claims are in a directory of the test. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "base/private-dir.h"
#include "kvtier.h"
#include "mem/pool.h"

#define MIB ((size_t)1 << 20)
#define STEP (32 * MIB)
#define BYTES (2 * STEP + 5 * MIB) /* in three steps */
#define POPULATE_WRITE 23

/* Written by the populating thread; read after the close of the pool. */
static struct {
    int refused; /* number of the failing step, from 1 on; 0: none */
    int error;
    int n_steps;
    uint64_t claimed[4]; /* bytes before each step */
} seen;

static struct temp_dir dir;

int __real_kvt__private_dir_open(const char *parent);
int __wrap_kvt__private_dir_open(const char *parent);
int __real_madvise(void *at, size_t n, int advice);
int __wrap_madvise(void *at, size_t n, int advice);

int
__wrap_kvt__private_dir_open(const char *parent)
{
    (void)parent;
    return __real_kvt__private_dir_open(dir.path);
}

/* Return the claim of this process, the only claim in the file. */
static uint64_t
claimed_bytes(void)
{
    int parent = kvt__private_dir_open("/dev/shm");
    int fd = openat(parent, "pools", O_RDONLY | O_CLOEXEC);
    uint64_t bytes = 0;

    assert_true(parent >= 0 && fd >= 0);
    assert_int_equal(pread(fd, &bytes, sizeof bytes, 0), sizeof bytes);
    close(fd);
    close(parent);
    return bytes;
}

int
__wrap_madvise(void *at, size_t n, int advice)
{
    if (advice != POPULATE_WRITE)
        return __real_madvise(at, n, advice);
    seen.claimed[seen.n_steps++] = claimed_bytes();
    if (seen.n_steps == seen.refused) {
        errno = seen.error;
        return -1;
    }
    return __real_madvise(at, n, advice);
}

static int
setup(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    temp_dir_remove(&dir);
    return 0;
}

static struct kvt__pool *
open_pool(int refused, int error)
{
    struct kvt__pool_params params = { .bytes = BYTES, .key = "max_local_cpu_size" };
    struct kvt__pool *pool = NULL;

    memset(&seen, 0, sizeof seen);
    seen.refused = refused;
    seen.error = error;
    if (kvt__pool_open(&params, &pool))
        fail_msg("%s", kvt__why());
    kvt__pool_wait_populated(pool, BYTES);
    return pool;
}

static void
a_pool_claims_its_unpopulated_memory(void **state)
{
    struct kvt__pool *pool = open_pool(0, 0);

    (void)state;
    kvt__pool_close(pool);
    assert_int_equal(seen.n_steps, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(seen.claimed[i], BYTES - (size_t)i * STEP);
    assert_int_equal(claimed_bytes(), 0);
}

static void
a_step_that_the_kernel_refuses_ends_the_pool_and_its_claim(void **state)
{
    static const int errors[] = { ENOMEM, EFAULT, EHWPOISON };
    struct kvt__slot slot;

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct kvt__pool *pool = open_pool(2, errors[i]);

        assert_true(kvt__pool_is_populated(pool));
        assert_false(kvt__pool_acquire(pool, STEP, 0, &slot));
        assert_false(kvt__pool_acquire(pool, STEP / 4, STEP, &slot));
        assert_true(kvt__pool_acquire(pool, STEP - 2 * KVT__SLOT_MARGIN, 0, &slot));
        kvt__pool_release(pool, &slot);
        kvt__pool_close(pool);
        assert_int_equal(seen.n_steps, 2);
        assert_int_equal(seen.claimed[1], BYTES - STEP);
        assert_int_equal(claimed_bytes(), 0);
    }
}

static void
a_step_that_is_interrupted_is_repeated(void **state)
{
    static const int errors[] = { EINTR, EAGAIN };

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct kvt__slot slot;
        struct kvt__pool *pool = open_pool(3, errors[i]);

        assert_true(kvt__pool_acquire(pool, BYTES - 2 * KVT__SLOT_MARGIN, 0, &slot));
        kvt__pool_release(pool, &slot);
        kvt__pool_close(pool);
        assert_int_equal(seen.n_steps, 4);
    }
}

/* On a kernel before Linux 5.14, the pool writes to each page instead. */
static void
without_madvise_populate_the_pages_are_written(void **state)
{
    unsigned char present[5 * MIB / 4096];
    struct kvt__pool *pool = open_pool(3, EINVAL);

    (void)state;
    assert_true(kvt__pool_is_populated(pool));
    assert_int_equal(mincore((char *)kvt__pool_memory(pool) + 2 * STEP, 5 * MIB, present),
                     0);
    for (size_t i = 0; i < sizeof present; i++)
        assert_true(present[i] & 1);
    kvt__pool_close(pool);
    assert_int_equal(seen.n_steps, 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_claims_its_unpopulated_memory),
        cmocka_unit_test(a_step_that_the_kernel_refuses_ends_the_pool_and_its_claim),
        cmocka_unit_test(a_step_that_is_interrupted_is_repeated),
        cmocka_unit_test(without_madvise_populate_the_pages_are_written),
    };

    return cmocka_run_group_tests_name("mem populate", tests, setup, teardown);
}
