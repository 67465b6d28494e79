/* SPDX-License-Identifier: Apache-2.0
 *
 * The level of the log, from the environment or from a caller.  A process reads the environment's
 * level once, so each case runs in a forked child. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvt-test.h"

#include "base/log.h"

struct outcome {
    char said[2048];
};

static void
log_all(void)
{
    kvt__log(KVT_LOG_ERROR, "<e>");
    kvt__log(KVT_LOG_WARN, "<w>");
    kvt__log(KVT_LOG_INFO, "<i>");
    kvt__log(KVT_LOG_DEBUG, "<d>");
}

/* Log all levels in a child with these variables (NULL: not set); *out gets the standard error. */
static void
run(const char *kvtier, const char *lmcache, bool sets_level, struct outcome *out)
{
    int ends[2], status;
    size_t used = 0;
    ssize_t n;

    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(ends[1], 2);
        unsetenv("KVTIER_LOG_LEVEL");
        unsetenv("LMCACHE_LOG_LEVEL");
        if (kvtier)
            setenv("KVTIER_LOG_LEVEL", kvtier, 1);
        if (lmcache)
            setenv("LMCACHE_LOG_LEVEL", lmcache, 1);
        if (sets_level)
            kvt_set_log(NULL, NULL, KVT_LOG_WARN);
        log_all();
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], out->said + used, sizeof out->said - 1 - used)) > 0)
        used += (size_t)n;
    out->said[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Check that exactly the first n_lines of error, warning, info and debug were logged. */
static void
check(const struct outcome *o, size_t n_lines)
{
    static const char *const lines[] = { "ERROR: <e>\n", "WARNING: <w>\n", "INFO: <i>\n",
                                         "DEBUG: <d>\n" };

    for (size_t i = 0; i < 4; i++)
        if (!strstr(o->said, lines[i]) != (i >= n_lines))
            fail_msg("%zu lines are expected: %s", n_lines, o->said);
}

static void
lmcaches_variable_names_the_level(void **state)
{
    static const struct {
        const char *name;
        size_t n_lines;
    } all[] = {
        { NULL, 3 }, { "DEBUG", 4 }, { "INFO", 3 }, { "WARNING", 2 }, { "WARN", 2 },
        { "ERROR", 1 }, { "CRITICAL", 0 }, { "FATAL", 0 }, { "debug", 4 }, { "Error", 1 },
    };
    struct outcome o;

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        run(NULL, all[i].name, false, &o);
        check(&o, all[i].n_lines);
        assert_null(strstr(o.said, "log level"));
    }
}

static void
an_invalid_level_is_reported_and_ignored(void **state)
{
    struct outcome o;

    (void)state;
    run(NULL, "LOUD", false, &o);
    check(&o, 3);
    assert_non_null(strstr(o.said, "log level 'LOUD': use CRITICAL, ERROR, WARNING, INFO, "
                                   "DEBUG or TRACE."));
}

static void
our_variable_wins_and_a_caller_wins_over_both(void **state)
{
    struct outcome o;

    (void)state;
    run("ERROR", "DEBUG", false, &o);
    check(&o, 1);
    run("ERROR", "DEBUG", true, &o);
    check(&o, 2);
}

struct callback {
    atomic_bool is_inside, may_return;
};

static void
wait_inside(void *ctx, enum kvt_log_level level, const char *line)
{
    struct callback *c = ctx;

    (void)level;
    (void)line;
    atomic_store(&c->is_inside, true);
    while (!atomic_load(&c->may_return))
        sched_yield();
}

static void *
log_one(void *arg)
{
    (void)arg;
    kvt__log(KVT_LOG_ERROR, "<e>");
    return NULL;
}

/* The callback may wait for the thread that forks, so the fork waits for no callback. */
static void
a_child_logs_that_was_forked_while_another_thread_logged(void **state)
{
    struct callback c = { false, false };
    pthread_t thread;
    int status;

    (void)state;
    kvt_set_log(wait_inside, &c, KVT_LOG_INFO);
    assert_int_equal(pthread_create(&thread, NULL, log_one, NULL), 0);
    while (!atomic_load(&c.is_inside))
        sched_yield();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        alarm(30); /* ends a child that hangs */
        atomic_store(&c.may_return, true);
        kvt__log(KVT_LOG_ERROR, "<e>");
        kvt_set_log(NULL, NULL, KVT_LOG_WARN);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    atomic_store(&c.may_return, true);
    pthread_join(thread, NULL);
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lmcaches_variable_names_the_level),
        cmocka_unit_test(an_invalid_level_is_reported_and_ignored),
        cmocka_unit_test(our_variable_wins_and_a_caller_wins_over_both),
        cmocka_unit_test(a_child_logs_that_was_forked_while_another_thread_logged),
    };

    return cmocka_run_group_tests_name("base log", tests, NULL, NULL);
}
