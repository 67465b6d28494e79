/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over shared host memory alone. */
#include "shared-test.h"
#include "tier/shared_cpu/memory.h"

#define MANY 1100u /* more slots than a process can borrow */

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
    struct shared *s = *state;
    unsigned n = 0;

    open_with_chunk_1(s);
    for (bool more = true; more && n < MANY; n += more) {
        request_init(&borrowed[n], &s->e, KVT__TIER_GET, 1);
        more = kvt__store_acquire_chunk(s->e.store, &borrowed[n].req);
        if (!more)
            free(borrowed[n].memory);
    }
    assert_in_range(n, 1, MANY - 1);
    assert_int_equal(get(&s->e, 1), 0);
    assert_true(find(&s->e, 1));
    while (n--) {
        kvt__pool_release(NULL, &borrowed[n].req.slot);
        free(borrowed[n].memory);
    }
    kvt__store_close(s->e.store);
}

static void
a_chunk_is_read_whose_entry_gets_another_chunk(void **state)
{
    struct shared *s = *state;
    struct request r;

    open_with_chunk_1(s);
    replaces_in = &s->e;
    assert_int_equal(get(&s->e, 1), 0); /* of the right bytes */
    assert_false(find(&s->e, 1));
    request_init(&r, &s->e, KVT__TIER_GET, 2);
    replaces_in = NULL;
    assert_true(kvt__store_acquire_chunk(s->e.store, &r.req));
    assert_true(request_holds(&r, 2));
    kvt__pool_release(NULL, &r.req.slot);
    free(r.memory);
    kvt__store_close(s->e.store);
}

static void
a_chunk_is_borrowed_whose_entry_gets_another_chunk(void **state)
{
    struct shared *s = *state;
    struct request r;

    open_with_chunk_1(s);
    request_init(&r, &s->e, KVT__TIER_GET, 1);
    replaces_in = &s->e;
    assert_true(kvt__store_acquire_chunk(s->e.store, &r.req));
    assert_false(find(&s->e, 1));
    assert_true(request_holds(&r, 1));
    kvt__pool_release(NULL, &r.req.slot);
    free(r.memory);
    kvt__store_close(s->e.store);
}

/* The memory holds an engine's chunk of the same key. */
static void
a_put_by_key_replaces_the_chunk(void **state)
{
    struct shared *s = *state;
    char path[300], buf[BYTES];
    const char *settings[] = { s->settings[0], s->settings[1], path, "max_local_disk_size=1",
                               NULL };
    struct kvt_op op = KVT_INIT(struct kvt_op);
    struct kvt_store *store;
    struct temp_dir disk;

    open_with_chunk_1(s);
    assert_true(lease(&s->e, 1));
    temp_dir_make(&disk);
    snprintf(path, sizeof path, "local_disk=%s", disk.path);
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
    kvt__store_close(s->e.store);
    temp_dir_remove(&disk);
}

static struct kvt_store *
open_by_key(const struct shared *s)
{
    struct kvt_config *config = config_with(s->settings);
    struct kvt_store *store;

    assert_int_equal(kvt_store_open(config, &store), 0);
    kvt_config_free(config);
    return store;
}

/* Without storage, a PUT by key replaces an engine's leased chunk, and the error of a PUT
 * during another PUT names the other PUT. */
static void
a_put_by_key_into_memory_alone_replaces_the_chunk(void **state)
{
    struct shared *s = *state;
    char buf[BYTES];
    struct kvt_op op = KVT_INIT(struct kvt_op);
    struct kvt__claim claim;

    open_with_chunk_1(s);
    assert_true(lease(&s->e, 1));
    struct kvt_store *store = open_by_key(s);
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
    assert_int_equal(op.found & KVT_FOUND_CHECKED, 0); /* shared host memory stores no checksums */
    assert_int_equal(op.found & KVT_FOUND_ID, KVT_FOUND_ID);
    for (unsigned i = 0; i < 1100; i++) /* more reads than a process has pins */
        assert_int_equal(kvt_store_run(store, &op), 0);
    op.kind = KVT_OP_DELETE;
    assert_int_equal(kvt_store_run(store, &op), 0);
    struct kvt__name name = { .digest = kvt__table_digest(s->e.space.text),
                              .hash = { .bits = { 1 } } };
    struct kvt__record record = { .bytes = 3 };
    struct kvt__table *index = s->e.store->levels[0].index;
    assert_int_equal(kvt__table_claim(index, &name, &record, s->e.space.text, &claim), 0);
    op.kind = KVT_OP_PUT;
    op.bytes = 3;
    assert_int_equal(kvt_store_run(store, &op), -EBUSY);
    assert_non_null(strstr(op.why, "another process stores chunk "));
    kvt__table_abort(index, &claim);
    assert_int_equal(kvt_store_run(store, &op), 0);
    kvt_store_close(store);
    kvt__store_close(s->e.store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARED_TEST(a_chunk_is_read_while_no_more_slots_can_be_borrowed),
        SHARED_TEST(a_chunk_is_read_whose_entry_gets_another_chunk),
        SHARED_TEST(a_chunk_is_borrowed_whose_entry_gets_another_chunk),
        SHARED_TEST(a_put_by_key_replaces_the_chunk),
        SHARED_TEST(a_put_by_key_into_memory_alone_replaces_the_chunk),
    };

    return cmocka_run_group_tests_name("store, shared memory", tests, NULL, NULL);
}
