/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a tier that blocks: the thread that runs an operation, and the error. */
#include <pthread.h>
#include <semaphore.h>

#include "tier-test.h"

struct env {
    struct kvt__exec *exec; /* one thread */
    struct kvt__tier *tier; /* every probe fails */
};

static int
setup(void **state)
{
    struct env *e = calloc(1, sizeof *e);
    struct kvt_config *config = config_with(NULL);

    assert_non_null(e);
    assert_int_equal(kvt__exec_open(1, &e->exec), 0);
    struct kvt__tier_params params = { .config = config, .name = "remote_url",
                                       .url = "fault://probe_error=1/null://",
                                       .exec = e->exec };
    assert_int_equal(kvt__tier_open(&params, &e->tier), 0);
    kvt_config_free(config);
    *state = e;
    return 0;
}

static int
teardown(void **state)
{
    struct env *e = *state;

    kvt__exec_close(e->exec);
    e->tier->ops->close(e->tier);
    free(e);
    return 0;
}

struct operation {
    struct kvt__tier_op op;
    struct kvt__job job;
    struct env *env;
    struct chunk chunk;
    pthread_t submitter, ender;
    bool ended_in_submit;
    sem_t ended, left;
};

static void
on_end(struct kvt__tier_op *op)
{
    struct operation *o = (struct operation *)op;

    o->ender = pthread_self();
    sem_post(&o->ended);
}

static void
init(struct operation *o, struct env *env, enum kvt__tier_op_kind kind)
{
    memset(o, 0, sizeof *o);
    chunk_init(&o->chunk, "model", 1);
    o->env = env;
    o->op = (struct kvt__tier_op){ .kind = kind, .prio = KVT__PRIO_LOAD,
                                   .object = &o->chunk.object, .on_done = on_end };
    sem_init(&o->ended, 0, 0);
    sem_init(&o->left, 0, 0);
}

static void
wait_for(sem_t *sem)
{
    while (sem_wait(sem) < 0)
        continue;
}

static void
submit_here(struct operation *o)
{
    struct kvt__tier *tier = o->env->tier;

    o->submitter = pthread_self();
    tier->ops->submit(tier, &o->op);
}

static void
the_executor_runs_an_operation_of_another_thread(void **state)
{
    struct operation o;

    init(&o, *state, KVT__TIER_PUT);
    submit_here(&o);
    wait_for(&o.ended);
    assert_false(pthread_equal(o.ender, pthread_self()));
    assert_int_equal(o.op.error.code, 0);
}

static void
an_error_reaches_the_other_thread_with_its_message(void **state)
{
    struct operation o;

    init(&o, *state, KVT__TIER_PROBE);
    kvt__set_why("another sentence");
    submit_here(&o);
    wait_for(&o.ended);
    assert_int_equal(o.op.error.code, -EIO);
    assert_non_null(strstr(o.op.error.why, "probe error made by fault://"));
    assert_string_equal(kvt__why(), "another sentence");
    assert_int_equal(kvt__error_raise(&o.op.error), -EIO);
    assert_string_equal(kvt__why(), o.op.error.why);
}

static void
submit_job(struct kvt__job *job)
{
    struct operation *o = (struct operation *)((char *)job - offsetof(struct operation, job));

    submit_here(o);
    o->ended_in_submit = !sem_trywait(&o->ended);
    sem_post(&o->left);
}

/* Otherwise a walk over the levels would queue behind other requests at each level. */
static void
an_executor_thread_runs_its_own_operation(void **state)
{
    struct env *e = *state;
    struct operation o;

    init(&o, e, KVT__TIER_PUT);
    o.job.run = submit_job;
    kvt__exec_submit(e->exec, KVT__PRIO_LOAD, &o.job);
    wait_for(&o.left);
    assert_true(o.ended_in_submit);
    assert_true(pthread_equal(o.ender, o.submitter));
}

static void
wait_in_job(struct kvt__job *job)
{
    struct operation *o = (struct operation *)((char *)job - offsetof(struct operation, job));

    (void)kvt__tier_wait(o->env->tier, &o->op);
    sem_post(&o->left);
}

/* The only thread of the executor waits: no other thread could run the operation. */
static void
an_executor_thread_can_wait_for_an_operation(void **state)
{
    struct env *e = *state;
    struct operation o;

    init(&o, e, KVT__TIER_PROBE);
    o.job.run = wait_in_job;
    kvt__exec_submit(e->exec, KVT__PRIO_LOAD, &o.job);
    wait_for(&o.left);
    assert_int_equal(o.op.error.code, -EIO);
}

static void
block(struct kvt__job *job)
{
    struct operation *o = (struct operation *)((char *)job - offsetof(struct operation, job));

    wait_for(&o->left);
    sem_post(&o->ended);
}

/* The command line's threads wait while all threads of the executor are busy. */
static void
a_waiting_thread_needs_no_executor(void **state)
{
    struct env *e = *state;
    struct operation busy;
    struct kvt__found found;

    init(&busy, e, KVT__TIER_PUT);
    busy.job.run = block;
    kvt__exec_submit(e->exec, KVT__PRIO_LOOKUP, &busy.job);
    assert_int_equal(kvt__tier_probe(e->tier, &busy.chunk.object, &found), -EIO);
    assert_int_equal(kvt__tier_remove(e->tier, &busy.chunk.object), -ENOENT);
    sem_post(&busy.left);
    wait_for(&busy.ended);
}

static void
without_an_executor_the_calling_thread_runs_the_operation(void **state)
{
    struct env e = { .tier = open_tier("null://", true) };
    struct operation o;

    (void)state;
    init(&o, &e, KVT__TIER_GET);
    submit_here(&o);
    assert_int_equal(sem_trywait(&o.ended), 0);
    assert_int_equal(o.op.error.code, -ENOENT);
    e.tier->ops->close(e.tier);
}

/* The null tier has few rows besides open and close. */
static void
missing_operations_of_a_tier_have_defaults(void **state)
{
    struct kvt__tier *null = open_tier("null://", true);
    struct kvt__object object = { .key = "" };
    struct kvt__slot slot;

    (void)state;
    assert_int_equal(null->slash, '/');
    assert_false(null->ops->acquire_slot(null, KVT__PRIO_LOAD, 1, &slot));
    assert_int_equal(null->ops->use_gpu(null, NULL, 0), 0);
    assert_int_equal(null->ops->shortage(null, &object, 1), 0);
    assert_true(null->ops->makes_room(null, &object, &object));
    null->ops->stop(null);
    null->ops->close(null);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_executor_runs_an_operation_of_another_thread),
        TEST(an_error_reaches_the_other_thread_with_its_message),
        TEST(an_executor_thread_runs_its_own_operation),
        TEST(an_executor_thread_can_wait_for_an_operation),
        TEST(a_waiting_thread_needs_no_executor),
        cmocka_unit_test(without_an_executor_the_calling_thread_runs_the_operation),
        cmocka_unit_test(missing_operations_of_a_tier_have_defaults),
    };

    return cmocka_run_group_tests_name("submit", tests, NULL, NULL);
}
