/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that store, read, forget and clear chunks of three sizes in one full memory at
 * full speed die at random: by SIGKILL from outside, or of themselves before the n-th access
 * to shared memory.  After each death another process stores and reads, and after the death
 * of all no slot is lost.  Argument: number of deaths (make crash). */
#include "share-test.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

void table_step(const void *at);
void share_step(const void *at);

enum { N_CHUNKS = 64, N_CHILDREN = 2, LIMIT = 1 << 20 };

static const uint64_t sizes[] = { 20000, 60000, 4096 };
static uint64_t n_deaths = 300;
static uint64_t steps_left; /* until the process kills itself; 0: never */

void
table_step(const void *at)
{
    (void)at;
    if (steps_left && !--steps_left)
        kill(getpid(), SIGKILL);
}

void
share_step(const void *at)
{
    table_step(at);
}

struct progress {
    uint64_t n_ops, n_hits, n_bad;
};

static void
work_once(struct kvt__share *s, uint64_t random, struct progress *p)
{
    uint64_t n = (random >> 8) % N_CHUNKS, bytes = sizes[n % 3];
    struct kvt__id id = id_of(n);

    if (!(random & 3))
        (void)put(s, n, bytes);
    else if (!(random & 0xfc))
        kvt__share_forget(s, &id);
    else if (!(random & 0xff00))
        (void)kvt__share_clear(s);
    int is = look(s, n, bytes);
    p->n_hits += is == 1;
    p->n_bad += is < 0;
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
    struct kvt__share *s = share_open(dir, LIMIT);
    steps_left = steps;
    for (uint64_t i = 0;; i++) {
        work_once(s, mix(seed * 1000003 + i), p);
        __atomic_fetch_add(&p->n_ops, 1, __ATOMIC_RELAXED);
    }
}

static void
wait_for_death(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Another process goes on: it stores one chunk and reads all. */
static void
go_on(struct kvt__share *s, uint64_t round)
{
    uint64_t n = N_CHUNKS + round;

    assert_int_equal(put(s, n, sizes[n % 3]), 0);
    assert_int_equal(look(s, n, sizes[n % 3]), 1);
    for (uint64_t i = 0; i < N_CHUNKS; i++)
        assert_true(look(s, i, sizes[i % 3]) >= 0);
}

/* All owners but this one are dead: no chunk is claimed, no slot lost. */
static void
check(struct kvt__share *s)
{
    (void)kvt__table_recover(s->table);
    for (uint32_t g = 0; g < s->n_segments; g++)
        kvt__sh_end_drain(s, g);
    recount(s);
}

static void
deaths(const struct temp_dir *dir, bool of_themselves)
{
    struct progress *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                              -1, 0);
    struct kvt__share *s = share_open(dir, LIMIT);
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
            wait_for_death(pids[k]);
            if (k < N_CHILDREN - 1)
                continue;
            check(s);
            go_on(s, i);
            n_hits += p[k].n_hits;
        }
        if (n_deaths > 1000 && i % 1000 == 0)
            printf("%llu deaths\n", (unsigned long long)i), fflush(stdout);
        if (i % 32 == 30) { /* the next to open is alone */
            kvt__share_close(s);
            s = share_open(dir, LIMIT);
            check(s);
        }
    }
    for (unsigned k = 0; k < N_CHILDREN; k++)
        assert_int_equal(p[k].n_bad, 0);
    assert_true(n_hits > 0);
    assert_int_equal(kvt__share_clear(s), 0);
    assert_int_equal(memory(s), 0);
    kvt__share_close(s);
    munmap(p, 4096);
}

static void
killed_at_random_instants(void **state)
{
    deaths(*state, false);
}

static void
killed_before_any_access(void **state)
{
    deaths(*state, true);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SHARE_TEST(killed_before_any_access),
        SHARE_TEST(killed_at_random_instants),
    };

    if (argc > 1)
        n_deaths = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
