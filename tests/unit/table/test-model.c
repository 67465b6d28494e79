/* SPDX-License-Identifier: Apache-2.0
 *
 * Model check of src/table: a few processes store, replace, evict, lease and find.  The checker
 * runs all orders of the steps with a bounded number of preemptions, and a process may die before
 * any step.  Each process is a coroutine with a separate handle on one mapping, and runs the real
 * code (steps.h).  The model leaves out memory orders (all processes see each step at once) and
 * the clock. */
#include "model-deeds.h"

#include <stdio.h>
#include <sys/mman.h>

static struct {
    size_t at, bytes;
    char *copy;
} saved[12];
static size_t n_saved;

static void
save(const void *at, size_t bytes)
{
    saved[n_saved].at = (size_t)((const char *)at - (const char *)judge->header);
    saved[n_saved].bytes = bytes;
    saved[n_saved].copy = malloc(bytes);
    memcpy(saved[n_saved++].copy, at, bytes);
}

static void
restore_all(void)
{
    for (size_t i = 0; i < n_saved; i++)
        memcpy((char *)judge->header + saved[i].at, saved[i].copy, saved[i].bytes);
}

static void
fresh_handle(struct kvt__table *t, unsigned owner)
{
    pthread_mutex_init(&t->mutex, NULL);
    t->owner = owner;
    t->lock_wait_ns = INT64_MAX / 2;
    t->n_queued = 0;
}

static void
reset(void)
{
    restore_all();
    for (int i = 0; i < MAX_PROCS; i++) {
        struct proc *p = &procs[i];

        fresh_handle(p->t, (unsigned)i);
        p->begun = p->dead = p->sleeps = false;
        p->ended = !scenario->proc[i].deed;
        p->result = 0;
        p->leased = 0;
    }
    fresh_handle(judge, JUDGE);
    at_choice = 0;
    n_preemptions = n_deaths = 0;
}

static bool
can_run(int i)
{
    return !procs[i].ended && !procs[i].dead && !(procs[i].sleeps && !wakes(&procs[i]));
}

/* Choose the process of the next step: the last process, or another process if preemptions
 * are left or the last process cannot step.  -1: no process can step. */
static int
next_proc(int last)
{
    int ready[MAX_PROCS];
    unsigned n = 0;

    if (last >= 0 && can_run(last))
        ready[n++] = last;
    for (int i = 0; i < MAX_PROCS; i++)
        if (i != last && can_run(i) && (!n || ready[0] != last ||
                                        n_preemptions < scenario->max_preemptions))
            ready[n++] = i;
    if (!n)
        return -1;
    int next = ready[n > 1 ? choose(n) : 0];
    n_preemptions += last >= 0 && can_run(last) && next != last;
    return next;
}

static void
run_step(int i)
{
    struct proc *p = &procs[i];

    if (!p->begun) {
        p->begun = true;
        getcontext(&p->context);
        p->context.uc_stack.ss_sp = p->stack;
        p->context.uc_stack.ss_size = STACK_BYTES;
        p->context.uc_link = &explorer;
        makecontext(&p->context, proc_main, 0);
    }
    running = i;
    swapcontext(&explorer, &p->context);
    running = -1;
}

/* No name has two entries. */
static void
check_names(void)
{
    for (unsigned n = 0; n < N_NAMES; n++) {
        struct kvt__name name = name_of(names[n]);
        unsigned there = 0;

        for (uint32_t i = 0; i < judge->header->n_fresh; i++)
            there += tb_state(judge->hot[i].word) != TB_FREE &&
                     judge->cold[i].hash == name.hash.bits[0];
        if (there > 1)
            fail_msg("name %u has %u entries", n, there);
    }
}

static void
check_end(void)
{
    struct tb_change c;

    for (int i = 0; i < MAX_PROCS; i++)
        if (!procs[i].dead && !procs[i].ended)
            fail_msg("process %d waits for ever", i);
    assert_int_equal(kvt__tb_begin(judge, &c), 0);
    kvt__tb_end(&c);
    recount(judge);
    check_names();
    (void)kvt__table_recover(judge);
    recount(judge);
    check_names();
    for (uint32_t i = 0; i < judge->header->n_fresh; i++)
        if (tb_state(judge->hot[i].word) == TB_CLAIMED)
            fail_msg("an entry stays claimed");
    for (unsigned n = 0; n < N_NAMES; n++) {
        bool is_untouched = n < scenario->ready;
        struct kvt__name name = name_of(names[n]);

        for (int i = 0; i < MAX_PROCS; i++)
            is_untouched &= (scenario->proc[i].n != n &&
                             (n || scenario->proc[i].deed != SWAP)) ||
                            scenario->proc[i].deed == FIND ||
                            scenario->proc[i].deed == LEASE ||
                            scenario->proc[i].deed == HOLD || !scenario->proc[i].deed;
        if (!is_untouched)
            continue;
        if (!kvt__table_find(judge, &name, NULL, NULL))
            fail_msg("an untouched entry is lost");
        for (int i = 0; i < MAX_PROCS; i++)
            if (scenario->proc[i].n == n && scenario->proc[i].deed == FIND &&
                !procs[i].dead && procs[i].result)
                fail_msg("a find missed an untouched entry");
    }
    check_holds();
    if (tb_is_usable(judge))
        return;
    fail_msg("the table was marked replaced");
}

static void
execute(void)
{
    int last = -1, i;

    reset();
    while ((i = next_proc(last)) >= 0) {
        if (procs[i].begun && n_deaths < scenario->max_deaths && choose(2)) {
            procs[i].dead = true;
            n_deaths++;
        } else {
            run_step(i);
        }
        last = i;
    }
    check_end();
}

static struct kvt__table *
handle_on(const struct kvt__table_params *params, void *map, uint64_t max)
{
    struct kvt__table *t = kvt__tb_new(params);

    assert_non_null(t);
    kvt__tb_set_parts(t, map, max, false, 0);
    t->n_mapped = (uint32_t)max;
    return t;
}

/* Choose names of one chain; if the chain splits, the odd names go to the new head. */
static void
choose_names(void)
{
    uint64_t n = 1;

    for (unsigned i = 0; i < N_NAMES; n++) {
        struct kvt__name name = name_of(n);
        uint64_t hash = kvt__tb_hash(judge, &name);

        if (!(hash & (TB_MIN_HEADS - 1)) && !(hash & TB_MIN_HEADS) == !(i & 1))
            names[i++] = n;
    }
}

static void
explore(const struct scenario *s)
{
    const uint64_t max = 2 * TB_MIN_HEADS;
    struct kvt__table_params params = { .max_entries = max, .of_memory = s->of_memory };
    size_t bytes = tb_parts(max, false).end, n = 0;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert_true(map != MAP_FAILED);
    scenario = s;
    running = -1;
    n_saved = 0;
    judge = handle_on(&params, map, max);
    assert_int_equal(kvt__tb_init(judge, &params, (const uint64_t[2]){ 0, 0 }, ""), 0);
    judge->header->hash_key = 12345;
    fresh_handle(judge, JUDGE);
    judge->owners[JUDGE].incarnation = JUDGE + 1;
    for (int i = 0; i < MAX_PROCS; i++) {
        procs[i].t = handle_on(&params, map, max);
        procs[i].stack = malloc(STACK_BYTES);
        judge->owners[i].incarnation = (uint64_t)i + 1;
    }
    choose_names();
    for (unsigned i = 0; i < s->ready; i++) {
        struct kvt__claim c;
        struct proc p = { .t = judge };
        assert_int_equal(claim_of(&p, i, 0, &c), 0);
        assert_true(kvt__table_publish(judge, &c));
    }
    for (uint64_t i = 10000; judge->header->n_entries < (s->splits ? TB_MIN_HEADS : 4); i++)
        assert_int_equal(store(judge, i, 10), 0);
    struct kvt__record r = ready_record(judge, 10000);
    assert_int_equal(kvt__table_forget(judge, &r, false), 0);
    assert_int_equal(store(judge, 9999, 10), 0);
    for (int i = 0; i < MAX_PROCS; i++) {
        struct kvt__name name = name_of(names[s->proc[i].n]);
        if (s->proc[i].n < s->ready)
            assert_true(kvt__table_find(judge, &name, NULL, &procs[i].seen));
    }
    uint32_t n_fresh = judge->header->n_fresh + 8, space = r.space;
    save(judge->header, sizeof *judge->header);
    save(judge->owners, (JUDGE + 1) * sizeof *judge->owners);
    for (unsigned i = 0; i < MAX_PROCS; i++)
        save(&judge->claims[i * TB_N_CLAIMS], 8 * sizeof *judge->claims);
    save(&judge->spaces[space], sizeof *judge->spaces);
    save(judge->heads, (TB_MIN_HEADS + 4) * sizeof *judge->heads);
    save(judge->hot, n_fresh * sizeof *judge->hot);
    save(judge->cold, n_fresh * sizeof *judge->cold);
    n_choices = 0;
    do {
        execute();
        n++;
    } while (advance());
    printf("%zu executions\n", n);
    restore_all();
    while (n_saved)
        free(saved[--n_saved].copy);
    for (int i = 0; i < MAX_PROCS; i++) {
        free(procs[i].stack);
        free(procs[i].t);
    }
    free(judge);
    munmap(map, bytes);
}

static void
two_writers_of_one_name(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { STORE, 0 }, { STORE, 0 } },
                                .max_preemptions = 2 });
}

static void
a_writer_that_may_die_and_another_writer(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { STORE, 0 }, { STORE, 0 } },
                                .max_preemptions = 1, .max_deaths = 1 });
    explore(&(struct scenario){ .proc = { { STORE, 0 }, { STORE, 1 } }, .ready = 1,
                                .max_deaths = 2, .of_memory = true });
}

static void
a_replacement_that_may_die_and_a_writer(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { REPLACE, 0 }, { STORE, 1 } }, .ready = 1,
                                .max_preemptions = 1, .max_deaths = 1 });
    explore(&(struct scenario){ .proc = { { UNDO, 0 }, { STORE, 0 } }, .ready = 1,
                                .max_deaths = 2, .of_memory = true });
}

static void
a_split_that_may_die_and_a_find(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 3; n++)
        explore(&(struct scenario){ .proc = { { STORE, 3 }, { FIND, n } }, .ready = 3,
                                    .max_preemptions = n == 1 ? 1 : 2,
                                    .max_deaths = n == 1, .splits = true });
}

static void
an_evicter_that_may_die_and_a_writer(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { EVICT, 0 }, { STORE, 1 } }, .ready = 1,
                                .max_preemptions = 1, .max_deaths = 1 });
    explore(&(struct scenario){ .proc = { { RESTORE, 0 }, { FORGET, 0 } }, .ready = 1,
                                .max_preemptions = 1, .max_deaths = 1 });
    explore(&(struct scenario){ .proc = { { FORGET, 0 }, { STORE, 0 } }, .ready = 1,
                                .max_deaths = 2, .of_memory = true });
}

static void
a_lease_and_an_eviction(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { LEASE, 0 }, { EVICT, 0 } }, .ready = 1,
                                .max_preemptions = 3 });
    explore(&(struct scenario){ .proc = { { LEASE, 0 }, { REPLACE, 0 } }, .ready = 1,
                                .max_preemptions = 2 });
    explore(&(struct scenario){ .proc = { { LEASE, 0 }, { FORGET, 0 }, { LEASE, 0 } },
                                .ready = 1, .max_preemptions = 2 });
}

/* The entry of chunk 0 gets another chunk, and the lease of the new chunk must stay. */
static void
a_lease_while_the_entry_gets_another_chunk(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { LEASE, 0 }, { SWAP, 1 }, { LEASE, 1 } },
                                .ready = 1, .max_preemptions = 2 });
}

/* A reader holds chunk 0 after the entry got another chunk or another identity. */
static void
a_hold_while_the_entry_gets_another_chunk(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { HOLD, 0 }, { SWAP, 1 } }, .ready = 1,
                                .max_preemptions = 2 });
    explore(&(struct scenario){ .proc = { { HOLD, 0 }, { REPLACE, 0 } }, .ready = 1,
                                .max_preemptions = 2 });
}

static void
a_find_during_changes_of_its_chain(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { FIND, 0 }, { FORGET, 1 }, { STORE, 3 } },
                                .ready = 3, .max_preemptions = 1 });
    explore(&(struct scenario){ .proc = { { FIND, 0 }, { FORGET, 1 } },
                                .ready = 3, .max_preemptions = 2 });
    explore(&(struct scenario){ .proc = { { FIND, 0 }, { REPLACE, 0 } }, .ready = 1,
                                .max_preemptions = 3 });
}

static void
a_recovery_and_writers(void **state)
{
    (void)state;
    explore(&(struct scenario){ .proc = { { REPLACE, 0 }, { RECOVER, 0 } },
                                .ready = 1, .max_preemptions = 1, .max_deaths = 1 });
    explore(&(struct scenario){ .proc = { { EVICT, 0 }, { RECOVER, 0 } },
                                .ready = 1, .max_preemptions = 1, .max_deaths = 1,
                                .of_memory = true });
}

int
main(void)
{
#ifndef __x86_64__
    /* The executions are the same for all processors, and take minutes under qemu. */
    puts("table-model: runs on x86-64 only");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_writers_of_one_name),
        cmocka_unit_test(a_writer_that_may_die_and_another_writer),
        cmocka_unit_test(a_replacement_that_may_die_and_a_writer),
        cmocka_unit_test(a_split_that_may_die_and_a_find),
        cmocka_unit_test(an_evicter_that_may_die_and_a_writer),
        cmocka_unit_test(a_lease_and_an_eviction),
        cmocka_unit_test(a_lease_while_the_entry_gets_another_chunk),
        cmocka_unit_test(a_hold_while_the_entry_gets_another_chunk),
        cmocka_unit_test(a_find_during_changes_of_its_chain),
        cmocka_unit_test(a_recovery_and_writers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
