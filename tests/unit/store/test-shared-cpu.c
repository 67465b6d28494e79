/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over shared host memory alone. */
#include "store-test.h"

#define MANY 300u /* more slots than a process can borrow */

static void
open_shared(struct env *e, const char *tmpfs)
{
    char path[300];
    const char *settings[] = { path, "max_shared_cpu_size=0.0625", NULL };

    snprintf(path, sizeof path, "shared_cpu_path=%s", tmpfs);
    struct kvt_config *config = config_with(settings);
    struct kvt__store_params params = { .config = config, .counters = &e->counters,
                                        .transfers = true };
    if (kvt__store_open(&params, &e->store))
        fail_msg("%s", kvt__why());
    kvt_config_free(config);
    assert_int_equal(kvt__store_set_tags(e->store, &e->space, ""), 0);
}

/* Chunks of a load lie borrowed until the load has copied each of them. */
static void
a_chunk_is_read_while_no_more_slots_can_be_borrowed(void **state)
{
    static struct request borrowed[MANY];
    static struct env e;
    char tmpfs[] = "/dev/shm/kvtier-test-XXXXXX", command[64];
    unsigned n = 0;

    (void)state;
    assert_non_null(mkdtemp(tmpfs));
    strcpy(e.space.text, "test/model@1@0@@bfloat16");
    open_shared(&e, tmpfs);
    while (put(&e, 1)) /* until the memory is populated */
        usleep(10000);
    for (bool more = true; more && n < MANY; n += more) {
        request_init(&borrowed[n], &e, KVT__STORE_GET, 1);
        more = kvt__store_borrow(e.store, &borrowed[n].req);
        if (!more)
            free(borrowed[n].memory);
    }
    assert_in_range(n, 1, MANY - 1);
    assert_int_equal(get(&e, 1), 0);
    assert_true(find(&e, 1));
    while (n--) {
        kvt__pool_release(NULL, &borrowed[n].req.slot);
        free(borrowed[n].memory);
    }
    kvt__store_close(e.store);
    snprintf(command, sizeof command, "rm -r %s", tmpfs);
    assert_int_equal(system(command), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_is_read_while_no_more_slots_can_be_borrowed),
    };

    return cmocka_run_group_tests_name("store, shared memory", tests, NULL, NULL);
}
