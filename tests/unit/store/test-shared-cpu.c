/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over shared host memory alone. */
#include "store-test.h"
#include "tier/shared_cpu/memory.h"

#define MANY 1100u /* more slots than a process can borrow */

static void
open_shared(struct env *e, const char *tmpfs)
{
    char path[300];
    const char *settings[] = { path, "max_shared_cpu_size=0.0625", NULL };

    snprintf(path, sizeof path, "shared_cpu_path=%s", tmpfs);
    struct kvt_config *config = config_with(settings);
    struct kvt__tier_params params = { .config = config, .counters = &e->counters,
                                       .transfers = true };
    if (kvt__store_open(&params, &e->store))
        fail_msg("%s", kvt__why());
    kvt_config_free(config);
    assert_int_equal(kvt__store_set_tags(e->store, &e->space, ""), 0);
}

static struct env *replaces_in; /* the next pin is followed by an eviction and a PUT */

int __real_kvt__sc_pin(const struct sc_memory *m, uint32_t entry, uint64_t word);
int __wrap_kvt__sc_pin(const struct sc_memory *m, uint32_t entry, uint64_t word);

/* After the pin, evict the chunk and store chunk 2, which gets the free entry. */
int
__wrap_kvt__sc_pin(const struct sc_memory *m, uint32_t entry, uint64_t word)
{
    int pin = __real_kvt__sc_pin(m, entry, word);
    struct env *e = replaces_in;
    struct kvt__record record;

    replaces_in = NULL;
    if (e && pin >= 0) {
        assert_true(kvt__table_read(m->table, entry, &record));
        assert_int_equal(kvt__table_forget(m->table, &record, true), 0);
        assert_int_equal(put(e, 2), 0);
        assert_true(kvt__table_read(m->table, entry, &record));
    }
    return pin;
}

/* A load borrows all its chunks, and releases each chunk after the copy. */
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
        request_init(&borrowed[n], &e, KVT__TIER_GET, 1);
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

static void
a_chunk_is_read_whose_entry_gets_another_chunk(void **state)
{
    static struct env e;
    char tmpfs[] = "/dev/shm/kvtier-test-XXXXXX";
    struct request r;

    (void)state;
    assert_non_null(mkdtemp(tmpfs));
    strcpy(e.space.text, "test/model@1@0@@bfloat16");
    open_shared(&e, tmpfs);
    while (put(&e, 1))
        usleep(10000);
    replaces_in = &e;
    assert_int_equal(get(&e, 1), 0); /* of the right bytes */
    assert_false(find(&e, 1));
    request_init(&r, &e, KVT__TIER_GET, 2);
    replaces_in = NULL;
    assert_true(kvt__store_borrow(e.store, &r.req));
    assert_true(request_holds(&r, 2));
    kvt__pool_release(NULL, &r.req.slot);
    free(r.memory);
    kvt__store_close(e.store);
    snprintf(e.dir.path, sizeof e.dir.path, "%s", tmpfs);
    temp_dir_remove(&e.dir);
}

static void
a_chunk_is_borrowed_whose_entry_gets_another_chunk(void **state)
{
    static struct env e;
    char tmpfs[] = "/dev/shm/kvtier-test-XXXXXX";
    struct request r;

    (void)state;
    assert_non_null(mkdtemp(tmpfs));
    strcpy(e.space.text, "test/model@1@0@@bfloat16");
    open_shared(&e, tmpfs);
    while (put(&e, 1))
        usleep(10000);
    request_init(&r, &e, KVT__TIER_GET, 1);
    replaces_in = &e;
    assert_true(kvt__store_borrow(e.store, &r.req));
    assert_false(find(&e, 1));
    assert_true(request_holds(&r, 1));
    kvt__pool_release(NULL, &r.req.slot);
    free(r.memory);
    kvt__store_close(e.store);
    snprintf(e.dir.path, sizeof e.dir.path, "%s", tmpfs);
    temp_dir_remove(&e.dir);
}

/* The memory holds an engine's chunk of the same key. */
static void
a_put_by_key_replaces_the_chunk(void **state)
{
    static struct env e;
    char tmpfs[] = "/dev/shm/kvtier-test-XXXXXX", path[64], disk[300], buf[BYTES];
    const char *settings[] = { path, "max_shared_cpu_size=0.0625", disk,
                               "max_local_disk_size=1", NULL };
    struct kvt_op op = KVT_INIT(struct kvt_op);
    struct kvt_store *store;

    (void)state;
    assert_non_null(mkdtemp(tmpfs));
    strcpy(e.space.text, "test/model@1@0@@bfloat16");
    open_shared(&e, tmpfs);
    while (put(&e, 1))
        usleep(10000);
    assert_true(lease(&e, 1));
    temp_dir_make(&e.dir);
    snprintf(path, sizeof path, "shared_cpu_path=%s", tmpfs);
    snprintf(disk, sizeof disk, "local_disk=%s", e.dir.path);
    struct kvt_config *config = config_with(settings);
    assert_int_equal(kvt_store_open(config, &store), 0);
    kvt_config_free(config);
    op.kind = KVT_OP_PUT;
    op.key = "test/model@1@0@1@bfloat16";
    op.buf = memcpy(buf, "new", 3);
    op.bytes = 3;
    assert_int_equal(kvt_store_run(store, &op), 0);
    op.kind = KVT_OP_GET;
    op.bytes = sizeof buf;
    assert_int_equal(kvt_store_run(store, &op), 0);
    assert_int_equal(op.found_bytes, 3);
    assert_memory_equal(buf, "new", 3);
    kvt_store_close(store);
    kvt__store_close(e.store);
    temp_dir_remove(&e.dir);
    snprintf(e.dir.path, sizeof e.dir.path, "%s", tmpfs);
    temp_dir_remove(&e.dir);
}

static struct kvt_store *
open_by_key(const char *tmpfs)
{
    char path[64];
    const char *settings[] = { path, "max_shared_cpu_size=0.0625", NULL };
    struct kvt_store *store;

    snprintf(path, sizeof path, "shared_cpu_path=%s", tmpfs);
    struct kvt_config *config = config_with(settings);
    assert_int_equal(kvt_store_open(config, &store), 0);
    kvt_config_free(config);
    return store;
}

/* Without storage, a PUT by key replaces an engine's leased chunk, and the error of a PUT
 * during another PUT names the other PUT. */
static void
a_put_by_key_into_memory_alone_replaces_the_chunk(void **state)
{
    static struct env e;
    char tmpfs[] = "/dev/shm/kvtier-test-XXXXXX", buf[BYTES];
    struct kvt_op op = KVT_INIT(struct kvt_op);
    struct kvt__claim claim;

    (void)state;
    assert_non_null(mkdtemp(tmpfs));
    strcpy(e.space.text, "test/model@1@0@@bfloat16");
    open_shared(&e, tmpfs);
    while (put(&e, 1))
        usleep(10000);
    assert_true(lease(&e, 1));
    struct kvt_store *store = open_by_key(tmpfs);
    op.kind = KVT_OP_PUT;
    op.key = "test/model@1@0@1@bfloat16";
    op.buf = memcpy(buf, "new", 3);
    op.bytes = 3;
    assert_int_equal(kvt_store_run(store, &op), 0);
    assert_int_equal(kvt_store_run(store, &op), 0); /* also a chunk of the same key */
    op.kind = KVT_OP_GET;
    op.bytes = sizeof buf;
    assert_int_equal(kvt_store_run(store, &op), 0);
    assert_memory_equal(buf, "new", 3);
    assert_int_equal(op.found & KVT_FOUND_CHECKED, 0); /* memory has no checksums */
    assert_int_equal(op.found & KVT_FOUND_ID, KVT_FOUND_ID);
    op.kind = KVT_OP_DELETE;
    assert_int_equal(kvt_store_run(store, &op), 0);
    struct kvt__name name = { .digest = kvt__table_digest(e.space.text),
                              .hash = { .bits = { 1 } } };
    struct kvt__record record = { .bytes = 3 };
    assert_int_equal(kvt__table_claim(e.store->levels[0].index, &name, &record, e.space.text,
                                      &claim), 0);
    op.kind = KVT_OP_PUT;
    op.bytes = 3;
    assert_int_equal(kvt_store_run(store, &op), -EBUSY);
    assert_non_null(strstr(op.why, "another process stores the chunk of this key now"));
    kvt__table_abort(e.store->levels[0].index, &claim);
    assert_int_equal(kvt_store_run(store, &op), 0);
    kvt_store_close(store);
    kvt__store_close(e.store);
    snprintf(e.dir.path, sizeof e.dir.path, "%s", tmpfs);
    temp_dir_remove(&e.dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_is_read_while_no_more_slots_can_be_borrowed),
        cmocka_unit_test(a_chunk_is_read_whose_entry_gets_another_chunk),
        cmocka_unit_test(a_chunk_is_borrowed_whose_entry_gets_another_chunk),
        cmocka_unit_test(a_put_by_key_replaces_the_chunk),
        cmocka_unit_test(a_put_by_key_into_memory_alone_replaces_the_chunk),
    };

    return cmocka_run_group_tests_name("store, shared memory", tests, NULL, NULL);
}
