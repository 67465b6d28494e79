/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes store, replace, evict and lease in one table at full speed and die at random: another
 * process sends SIGKILL, or the process kills itself before the n-th access to shared memory.
 * After each death and one transaction of another process, all totals equal a recount.  Argument:
 * number of deaths (make crash). */
#include "shared-table.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

void table_step(const void *at);

enum { N_CHUNKS = 48, LIMIT = 3000, N_CHILDREN = 2 };

static uint64_t n_deaths = 300;
static uint64_t steps_left; /* until the process kills itself; 0: never */

void
table_step(const void *at)
{
    (void)at;
    if (steps_left && !--steps_left)
        kill(getpid(), SIGKILL);
}

struct progress {
    uint64_t n_ops, n_bad;
};

static bool
is_whole(const struct kvt__record *r, uint64_t n)
{
    struct kvt__name name = name_of(n);
    uint64_t id;

    if (r->hash.bits[0] != name.hash.bits[0])
        return false;
    memcpy(&id, r->id.b + 8, sizeof id);
    return r->flags & KVT__TABLE_UNREAD || (id % N_CHUNKS == n && r->bytes == id + 1);
}

static void
work_once(struct kvt__table *t, uint64_t random, struct progress *p)
{
    uint64_t n = (random >> 20) % N_CHUNKS, id = n + (random >> 10 & 1) * N_CHUNKS;
    struct kvt__name name = name_of(n);
    struct kvt__record r = record_of_n(id, id + 1), out[KVT__TABLE_VICTIMS];
    struct kvt__claim c;

    switch (random & 7) {
    case 0:
    case 1:
        if (kvt__table_claim(t, &name, &r, TEXT, &c))
            break;
        if (random >> 4 & 3)
            kvt__table_publish(t, &c);
        else
            kvt__table_abort(t, &c);
        break;
    case 2:
    case 3:
        if (kvt__table_victims(t, NULL, NULL, out, 2))
            (void)kvt__table_forget(t, out, false);
        if (!kvt__table_claim(t, &name, &r, TEXT, &c))
            kvt__table_publish(t, &c);
        break;
    case 4:
        if (kvt__table_find(t, &name, NULL, &r) && !kvt__table_evict(t, &r, true, &c)) {
            if (random >> 4 & 1)
                kvt__table_evicted(t, &c);
            else
                kvt__table_abort(t, &c);
        }
        break;
    case 5:
        if (kvt__table_lease(t, &name, NULL, kvt__now_ns() + KVT__NS_PER_S, &r)) {
            p->n_bad += !is_whole(&r, n);
            kvt__table_unlease(t, &r.lease);
        }
        break;
    case 6:
        (void)kvt__table_enter(t, &name, &r, TEXT);
        break;
    default:
        if (!(random >> 4 & 63))
            (void)kvt__table_recover(t);
        if (kvt__table_find(t, &name, NULL, &r))
            p->n_bad += !is_whole(&r, n);
    }
}

static pid_t
start(const struct shared *s, uint64_t seed, uint64_t steps, struct progress *p)
{
    p->n_ops = 0;
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct kvt__table *t = shared_open(s);
    steps_left = steps;
    for (uint64_t i = 0;; i++) {
        work_once(t, mix(seed * 1000003 + i), p);
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

/* The transaction of another process, and then the end of all claims of dead owners. */
static void
check(struct kvt__table *t, bool all_dead)
{
    struct tb_change c;

    if (all_dead) {
        while (kvt__tb_begin(t, &c))
            assert_true(tb_is_usable(t));
        recount(t);
        kvt__tb_end(&c);
        (void)kvt__table_recover(t);
        for (uint32_t i = 0; i < t->header->n_fresh; i++)
            assert_true(tb_state(t->hot[i].word) != TB_CLAIMED);
        recount(t);
        return;
    }
    while (kvt__tb_begin(t, &c)) /* under the lock, so the other process changes nothing */
        assert_true(tb_is_usable(t));
    recount(t);
    kvt__tb_end(&c);
}

static void
deaths(bool of_themselves, bool of_memory)
{
    struct kvt__table_params params = { .limit_bytes = LIMIT, .max_entries = 2048,
                                        .of_memory = of_memory };
    struct progress *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvt__table *t;
    struct shared s;

    shared_make(&s, &params);
    t = shared_open(&s);
    for (uint64_t i = 0; i < n_deaths / 4; i += N_CHILDREN) {
        pid_t pids[N_CHILDREN];

        for (unsigned k = 0; k < N_CHILDREN; k++)
            pids[k] = start(&s, i + k, of_themselves ? 1 + mix(i + k) % 4000 : 0, &p[k]);
        for (unsigned k = 0; k < N_CHILDREN; k++) {
            uint64_t n = mix(~(i + k)) % 100;

            while (!of_themselves && __atomic_load_n(&p[k].n_ops, __ATOMIC_RELAXED) < n)
                sched_yield();
            if (!of_themselves)
                kill(pids[k], SIGKILL);
            wait_for_death(pids[k]);
            check(t, k == N_CHILDREN - 1);
        }
        if (n_deaths > 1000 && i % 1000 == 0)
            printf("%llu deaths\n", (unsigned long long)i), fflush(stdout);
        if (i % 64 == 62) { /* the next to open ends the claims too */
            kvt__table_close(t);
            t = shared_open(&s);
            check(t, true);
        }
    }
    for (unsigned k = 0; k < N_CHILDREN; k++)
        assert_int_equal(p[k].n_bad, 0);
    kvt__table_close(t);
    munmap(p, 4096);
    shared_remove(&s);
}

static void
killed_at_random_instants(void **state)
{
    (void)state;
    deaths(false, false);
    deaths(false, true);
}

static void
killed_before_any_access(void **state)
{
    (void)state;
    deaths(true, false);
    deaths(true, true);
}

/* The limit of the table is the smallest limit of the living owners, even if an owner dies before
 * any access of kvt__table_close(). */
static void
a_limit_ends_with_its_owner(void **state)
{
    struct kvt__table_params params = { .limit_bytes = LIMIT, .max_entries = 2048 };
    struct shared s;
    int status = 1;

    (void)state;
    shared_make(&s, &params);
    struct kvt__table *t = shared_open(&s);
    for (uint64_t n = 1; status; n++) {
        pid_t pid = fork();

        if (!pid) {
            s.params.limit_bytes = LIMIT / 2;
            struct kvt__table *own = shared_open(&s);
            steps_left = n;
            kvt__table_close(own);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        check(t, true);
        assert_int_equal(t->header->limit_bytes, LIMIT);
    }
    kvt__table_close(t);
    shared_remove(&s);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_ends_with_its_owner),
        cmocka_unit_test(killed_before_any_access),
        cmocka_unit_test(killed_at_random_instants),
    };

    if (argc > 1)
        n_deaths = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
