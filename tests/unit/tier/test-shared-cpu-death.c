/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that store, read and forget chunks of three sizes in one full memory are killed:
 * before each access to shared memory, before a random access, or by SIGKILL of another process at
 * a random instant.  After each death other processes store and read, and no byte is wrong.  After
 * the death of all processes no unit is lost.  Argument: number of deaths (make crash). */
#include "shared-cpu-test.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

void table_step(const void *at);
void shared_cpu_step(const void *at);

enum { N = 64 /* units */, N_CHUNKS = 48, N_CHILDREN = 2 };

static const uint32_t sizes[] = { 1, 4, 9 };
static uint64_t n_deaths = 100;
static uint64_t steps_left; /* until the process kills itself; 0: never */
static const struct sc_memory *memory; /* accesses to pins of other owners do not count */
static unsigned own;

static bool
is_of_another_owner(const void *at)
{
    const uint32_t *n = at;
    const struct sc_pins *p = at;

    if (n >= memory->header->n_pins && n < memory->header->n_pins + KVT__TABLE_OWNERS)
        return n - memory->header->n_pins != own;
    return p >= memory->pins && p < memory->pins + KVT__TABLE_OWNERS &&
           !(p >= memory->pins + own && p < memory->pins + own + 1);
}

void
shared_cpu_step(const void *at)
{
    if (memory && is_of_another_owner(at))
        return;
    if (steps_left && !--steps_left)
        kill(getpid(), SIGKILL);
}

void
table_step(const void *at)
{
    shared_cpu_step(at);
}

static bool
was_killed(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status)) {
        assert_int_equal(WEXITSTATUS(status), 0);
        return false;
    }
    assert_int_equal(WTERMSIG(status), SIGKILL);
    return true;
}

/* After a death, the surviving process stores a chunk and reads all chunks. */
static void
survive(struct handle *h, uint64_t n)
{
    int err = put(h, n, sizes[n % 3]);

    for (unsigned i = 0; err == -ETIMEDOUT && i < 1000; i++) /* until the death is seen */
        err = put(h, n, sizes[n % 3]);
    assert_int_equal(err, 0);
    assert_int_equal(read_and_check(h, n, sizes[n % 3]), 1);
    for (uint64_t i = 0; i < N_CHUNKS; i++)
        assert_true(read_and_check(h, i, sizes[i % 3]) >= 0);
}

/* Recount the memory, and use each unit.  All other owners are dead. */
static void
check(struct handle *h)
{
    (void)kvt__table_recover(h->table);
    recount(h);
    fill_completely(h, UINT64_C(1) << 40);
}

/* ------------------------------------------------------------- before each access */

static void
store_and_read(struct handle *h)
{
    const unsigned char *payload;

    if (put(h, 3, 1) || put(h, 4, 4) || put(h, 5, 9) || pin(h, 5, &payload) < 0 ||
        read_and_check(h, 4, 4) != 1) /* older chunks were in memory */
        _exit(1);
}

static void
killed_before_each_access(void **state)
{
    struct handle h = open_memory(*state, N);

    for (uint64_t at = 1;; at++) {
        for (uint64_t i = 0; i < N / 4; i++)
            assert_int_equal(put(&h, 1000 + i, 4), 0);
        assert_int_equal(recount(&h), N / 4);
        pid_t pid = fork();
        if (!pid) {
            struct handle child = open_memory(*state, N);

            memory = &child.m;
            own = kvt__table_owner(child.table);
            steps_left = at;
            store_and_read(&child);
            _exit(0);
        }
        bool killed = was_killed(pid);
        survive(&h, 2000);
        check(&h);
        if (!killed) {
            assert_true(at > 100);
            break;
        }
    }
    kvt__table_close(h.table);
}

/* ------------------------------------------------------------- random instants */

struct progress {
    uint64_t n_ops, n_hits, n_bad;
};

static void
work_once(struct handle *h, uint64_t random, struct progress *p)
{
    uint64_t n = (random >> 8) % N_CHUNKS;
    const unsigned char *payload;

    if (!(random & 3))
        (void)put(h, n, sizes[n % 3]);
    else if (!(random & 0xfc))
        forget(h, n);
    int is = read_and_check(h, n, sizes[n % 3]);
    p->n_hits += is == 1;
    p->n_bad += is < 0;
    if (!(random & 0xff0000)) /* the death ends this pin */
        (void)pin(h, n, &payload);
}

static pid_t
start(const struct temp_dir *dir, uint64_t seed, uint64_t steps, struct progress *p)
{
    p->n_ops = 0;
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    steps_left = steps & 1 ? steps : 0; /* half of the deaths may meet the open */
    struct handle h = open_memory(dir, N);
    steps_left = steps;
    for (uint64_t i = 0;; i++) {
        work_once(&h, mix(seed * 1000003 + i), p);
        __atomic_fetch_add(&p->n_ops, 1, __ATOMIC_RELAXED);
    }
}

static void
deaths(const struct temp_dir *dir, bool of_themselves)
{
    struct progress *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                              -1, 0);
    struct handle h = open_memory(dir, N);
    uint64_t n_hits = 0;

    for (uint64_t i = 0; i < n_deaths / 2; i += N_CHILDREN) {
        pid_t pids[N_CHILDREN];

        for (unsigned k = 0; k < N_CHILDREN; k++)
            pids[k] = start(dir, i + k, of_themselves ? 1 + mix(i + k) % 20000 : 0, &p[k]);
        for (unsigned k = 0; k < N_CHILDREN; k++) {
            uint64_t n = mix(~(i + k)) % 60;

            while (!of_themselves && __atomic_load_n(&p[k].n_ops, __ATOMIC_RELAXED) < n)
                sched_yield();
            if (!of_themselves)
                kill(pids[k], SIGKILL);
            assert_true(was_killed(pids[k]));
        }
        (void)kvt__table_recover(h.table);
        survive(&h, 1000 + i);
        if (i % 32 == 30) {
            check(&h);
            kvt__table_close(h.table); /* the next to open is alone */
            h = open_memory(dir, N);
        }
        for (unsigned k = 0; k < N_CHILDREN; k++)
            n_hits += p[k].n_hits;
        if (n_deaths > 1000 && i % 1000 == 0)
            printf("%llu deaths\n", (unsigned long long)i), fflush(stdout);
    }
    check(&h);
    for (unsigned k = 0; k < N_CHILDREN; k++)
        assert_int_equal(p[k].n_bad, 0);
    assert_true(n_hits > 0);
    kvt__table_close(h.table);
    munmap(p, 4096);
}

static void
killed_at_random_instants(void **state)
{
    deaths(*state, false);
}

static void
killed_before_a_random_access(void **state)
{
    deaths(*state, true);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(killed_before_each_access),
        SHM_TEST(killed_before_a_random_access),
        SHM_TEST(killed_at_random_instants),
    };

    if (argc > 1)
        n_deaths = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
