/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool on a memory node.  The tests use node 0, which every machine with nodes has. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kvt-test.h"

#include "base/error.h"
#include "base/log.h"
#include "forbid.h"
#include "mem/numa.h"
#include "mem/pool.h"

#define MIB ((size_t)1 << 20)
#define PREFERRED 1
#define OF_ADDRESS 2UL

static enum kvt_log_level level;
static int n_lines;

static void
on_log_line(void *ctx, enum kvt_log_level line_level, const char *line)
{
    (void)ctx;
    assert_non_null(strstr(line, "node 0"));
    level = line_level;
    n_lines++;
}

/* Open a pool on node 0.  Return the policy of the pool's memory; -1: the kernel does not report
 * policies. */
static int
policy_of_pool(void)
{
    int node = 0, mode = -1;
    struct kvt__pool_params params = { .bytes = 4 * MIB, .node = &node,
                                       .key = "max_local_cpu_size" };
    unsigned long nodes[KVT__MAX_NODES / (8 * sizeof(long))] = { 0 };
    struct kvt__pool *pool = NULL;
    struct kvt__slot slot;

    n_lines = 0;
    if (kvt__pool_open(&params, &pool))
        fail_msg("%s", kvt__why());
    kvt__pool_wait_populated(pool, 4 * MIB);
    assert_true(kvt__pool_acquire(pool, MIB, 0, &slot));
    memset(slot.payload, 1, slot.bytes);
    if (syscall(SYS_get_mempolicy, &mode, nodes, KVT__MAX_NODES + 1UL, slot.payload,
                OF_ADDRESS))
        mode = -1;
    else if (mode == PREFERRED)
        assert_int_equal(nodes[0], 1);
    kvt__pool_release(pool, &slot);
    kvt__pool_close(pool);
    return mode;
}

static void
a_pool_prefers_the_given_node(void **state)
{
    (void)state;
    int mode = policy_of_pool();

    if (mode < 0)
        skip();
    assert_int_equal(mode, PREFERRED);
    assert_int_equal(n_lines, 0);
}

static void
a_missing_node_is_refused_with_the_existing_nodes(void **state)
{
    (void)state;
    if (access("/sys/devices/system/node/has_memory", R_OK))
        skip();
    assert_int_equal(kvt__numa_check(0, "key"), 0);
    assert_int_equal(kvt__numa_check(1000, "key"), -EINVAL);
    assert_non_null(strstr(kvt__why(), "key: this machine has no memory node 1000; it has "
                           "0"));
}

static void
this_thread_runs_on_a_node(void **state)
{
    (void)state;
    int node = kvt__numa_current_node();

    assert_in_range(node, 0, KVT__MAX_NODES - 1);
}

/* The last test: the filter of system calls stays. */
static void
a_forbidden_policy_is_logged_once(void **state)
{
    (void)state;
    if (forbid(SYS_mbind, EPERM))
        skip();
    assert_int_not_equal(policy_of_pool(), PREFERRED);
    assert_int_equal(n_lines, 1);
    assert_int_equal(level, KVT_LOG_INFO);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_prefers_the_given_node),
        cmocka_unit_test(a_missing_node_is_refused_with_the_existing_nodes),
        cmocka_unit_test(this_thread_runs_on_a_node),
        cmocka_unit_test(a_forbidden_policy_is_logged_once),
    };

    kvt_set_log(on_log_line, NULL, KVT_LOG_INFO);
    return cmocka_run_group_tests_name("memory nodes", tests, NULL, NULL);
}
