/* SPDX-License-Identifier: Apache-2.0
 *
 * Several handles of one table: waits for the lock of another owner, queued ends of claims,
 * claims of dead owners. */
#include "shared-table.h"

#include <pthread.h>

static struct shared shared;

static int
make(void **state)
{
    struct kvt__table_params params = { .max_entries = 4096 };

    (void)state;
    shared_make(&shared, &params);
    return 0;
}

static int
remove_all(void **state)
{
    (void)state;
    shared_remove(&shared);
    return 0;
}

/* Make the owner hold the lock from now on. */
static void
hold_lock(struct kvt__table *t, const struct kvt__table *owner)
{
    t->header->lock = (t->header->lock & ~UINT32_C(0x3ff)) + 0x400 + owner->owner + 1;
}

static void
release_lock(struct kvt__table *t)
{
    t->header->lock &= ~UINT32_C(0x3ff);
}

/* Close the handle like the handle of a killed process: the claims stay. */
static void
die(struct kvt__table *t)
{
    kvt__lock_file_close(t->lock_fd);
    munmap(t->header, t->map_bytes);
    close(t->map_fd);
    pthread_mutex_destroy(&t->mutex);
    free(t);
}

static struct kvt__table *grows_first; /* stores chunk 2 before another handle grows the table */
static int grow_error;                 /* result of a growth; 0: the table grows */

int __real_kvt__tb_grow(struct kvt__table *t, uint32_t n_made);
int __wrap_kvt__tb_grow(struct kvt__table *t, uint32_t n_made);

int
__wrap_kvt__tb_grow(struct kvt__table *t, uint32_t n_made)
{
    struct kvt__table *first = grows_first;

    grows_first = NULL;
    if (first)
        assert_int_equal(store(first, 2, 10), 0);
    return grow_error ? grow_error : __real_kvt__tb_grow(t, n_made);
}

/* A handle finds the table full, and another handle grows the table first. */
static void
a_table_that_another_handle_has_grown_is_not_full(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);

    (void)state;
    assert_int_equal(a->header->n_made, 0);
    grow_error = -ETIMEDOUT; /* the lock is held: no reason to evict */
    assert_int_equal(store(a, 1, 10), -ETIMEDOUT);
    grow_error = 0;
    grows_first = b;
    assert_int_equal(store(a, 1, 10), 0);
    assert_int_equal(a->header->n_made, a->max_entries);
    assert_true(find(b, 1, NULL) && find(a, 2, NULL));
    kvt__table_close(a);
    kvt__table_close(b);
}

static void
handles_share_entries(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);

    (void)state;
    assert_true(kvt__table_is_shared(a));
    assert_int_equal(a->owner, 0);
    assert_int_equal(b->owner, 1);
    assert_int_equal(store(a, 1, 10), 0);
    assert_true(find(b, 1, NULL));
    assert_int_equal(store(b, 1, 10), -EEXIST);
    assert_int_equal(kvt__table_recover(b), 0);
    recount(a);
    kvt__table_close(a);
    assert_true(find(b, 1, NULL));
    kvt__table_close(b);
}

static void
a_held_lock_times_out_and_readers_continue(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct kvt__name name = name_of(1);
    struct kvt__id id = id_of(1);
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(a, 1, 10), 0);
    struct kvt__record r = ready_record(a, 1);
    hold_lock(a, b);
    assert_int_equal(store(a, 2, 10), -ETIMEDOUT);
    assert_int_equal(kvt__table_evict(a, &r, true, &c), -ETIMEDOUT);
    assert_null(c.table);
    assert_int_equal(kvt__table_forget(a, &r, true), -ETIMEDOUT);
    assert_true(find(a, 1, NULL));
    assert_true(kvt__table_lease(a, &name, &id, kvt__now_ns() + KVT__NS_PER_S, &r));
    kvt__table_unlease(b, &r.lease);
    release_lock(a);
    assert_int_equal(store(a, 2, 10), 0);
    recount(a);
    kvt__table_close(a);
    kvt__table_close(b);
}

static void
ends_wait_for_the_lock(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct kvt__claim publish, abort_new, replace, evict, restore, undo, another;
    struct kvt__record r;

    (void)state;
    for (uint64_t i = 3; i < 7; i++)
        assert_int_equal(store(a, i, 10), 0);
    assert_int_equal(claim_n(a, 1, 1, 10, &publish), 0);
    assert_int_equal(claim_n(a, 2, 2, 20, &abort_new), 0);
    assert_int_equal(claim_n(a, 3, 33, 30, &replace), 0);
    r = ready_record(a, 4);
    assert_int_equal(kvt__table_evict(a, &r, false, &evict), 0);
    r = ready_record(a, 5);
    assert_int_equal(kvt__table_evict(a, &r, false, &restore), 0);
    assert_int_equal(claim_n(a, 6, 66, 60, &undo), 0);
    assert_int_equal(claim_n(a, 8, 8, 80, &another), 0);
    hold_lock(a, b);
    assert_true(kvt__table_publish(a, &publish));
    kvt__table_abort(a, &abort_new);
    assert_true(kvt__table_publish(a, &replace));
    kvt__table_evicted(a, &evict);
    kvt__table_abort(a, &restore);
    kvt__table_abort(a, &undo);
    /* Publish of a new chunk and restore need no lock. */
    assert_int_equal(a->n_queued, 4);
    assert_true(find(a, 1, NULL));
    assert_true(find(a, 5, NULL));
    assert_false(find(a, 3, NULL));
    release_lock(a);
    /* The end of another claim carries out the queued ends. */
    kvt__table_abort(a, &another);
    assert_int_equal(a->n_queued, 0);
    assert_int_equal(store(a, 7, 70), 0);
    assert_int_equal(a->n_queued, 0);
    assert_int_equal(n_unused_claims(a), TB_N_CLAIMS);
    assert_true(find(b, 1, NULL));
    assert_false(find(b, 2, NULL));
    assert_false(find(b, 3, NULL));
    assert_int_equal(ready_record(b, 3).bytes, 30);
    assert_false(find(b, 4, NULL));
    assert_true(find(b, 5, NULL));
    assert_true(find(b, 6, NULL));
    assert_int_equal(used(b), 10 + 30 + 10 + 10 + 70);
    recount(b);
    kvt__table_close(a);
    kvt__table_close(b);
}

static void *
store_nine(void *t)
{
    return store(t, 9, 10) ? NULL : t;
}

/* A release wakes a thread that sleeps on the word. */
static void
a_release_wakes_a_sleeper(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    pthread_t thread;
    void *result = NULL;

    (void)state;
    do {
        while (kvt__tb_lock(b, TB_LOCK_WAIT_NS))
            continue;
        assert_int_equal(pthread_create(&thread, NULL, store_nine, a), 0);
        while (!(__atomic_load_n(&b->header->lock, __ATOMIC_SEQ_CST) & 0x200))
            sched_yield();
        kvt__tb_unlock(b);
        pthread_join(thread, &result);
    } while (!result); /* the thread waited for 100 ms */
    assert_int_equal(b->header->lock & 0x1ff, 0);
    assert_true(find(b, 9, NULL));
    kvt__table_close(a);
    kvt__table_close(b);
}

static void
the_lock_of_a_dead_owner_is_taken_over(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);

    (void)state;
    hold_lock(a, b);
    uint32_t held = a->header->lock;
    die(b);
    assert_int_equal(store(a, 1, 10), 0);
    assert_true(a->header->lock >> 10 != held >> 10);
    /* No record has the number. */
    a->header->lock = 0x1ff;
    assert_int_equal(store(a, 2, 10), 0);
    a->header->lock = TB_N_OWNERS + 1;
    assert_int_equal(store(a, 3, 10), 0);
    /* This process itself: the number's last owner died. */
    hold_lock(a, a);
    assert_int_equal(store(a, 4, 10), 0);
    recount(a);
    kvt__table_close(a);
}

static void
claims_of_a_dead_owner_become_unread(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct kvt__claim c;
    struct kvt__table_totals totals;

    (void)state;
    assert_int_equal(store(a, 2, 20), 0);
    assert_int_equal(store(a, 3, 30), 0);
    assert_int_equal(claim_n(b, 1, 1, 10, &c), 0);
    assert_int_equal(claim_n(b, 2, 22, 200, &c), 0);
    struct kvt__record r = ready_record(b, 3);
    assert_int_equal(kvt__table_evict(b, &r, false, &c), 0);
    assert_int_equal(kvt__table_recover(a), 0);
    die(b);
    assert_int_equal(kvt__table_recover(a), 3);
    assert_int_equal(kvt__table_recover(a), 0);
    for (uint64_t i = 1; i < 4; i++) {
        assert_int_equal(ready_record(a, i).flags, KVT__TABLE_UNREAD);
        assert_false(find(a, i, NULL));
    }
    assert_int_equal(ready_record(a, 2).bytes, 220); /* both objects, until a probe */
    kvt__table_get_totals(a, &totals);
    assert_int_equal(totals.n_unread, 3);
    assert_int_equal(totals.used_bytes, 10 + 220 + 30);
    recount(a);
    struct kvt__name name = name_of(2);
    struct kvt__record probed = record_of_n(22, 200);
    assert_int_equal(kvt__table_enter(a, &name, &probed, TEXT), 0);
    assert_int_equal(used(a), 10 + 200 + 30);
    recount(a);
    kvt__table_close(a);
}

static void
claims_of_a_dead_owner_of_memory_are_free(void **state)
{
    struct kvt__table *a, *b;
    struct kvt__claim c;

    (void)state;
    shared.params.of_memory = true;
    a = shared_open(&shared);
    b = shared_open(&shared);
    shared.params.of_memory = false;
    assert_int_equal(store(a, 2, 20), 0);
    assert_int_equal(store(a, 3, 30), 0);
    assert_int_equal(claim_n(b, 1, 1, 10, &c), 0);
    assert_int_equal(claim_n(b, 2, 22, 200, &c), 0);
    struct kvt__record r = ready_record(b, 3);
    assert_int_equal(kvt__table_evict(b, &r, false, &c), 0);
    die(b);
    assert_int_equal(kvt__table_recover(a), 3);
    assert_false(find(a, 1, NULL));
    assert_false(find(a, 2, NULL));
    assert_true(find(a, 3, NULL));
    assert_int_equal(used(a), 30);
    recount(a);
    kvt__table_close(a);
}

static void
a_new_owner_ends_the_claims_of_the_last_one(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct kvt__claim c;

    (void)state;
    assert_int_equal(claim_n(b, 1, 1, 10, &c), 0);
    hold_lock(b, b);
    die(b);
    b = shared_open(&shared);
    assert_int_equal(b->owner, 1);
    assert_int_equal(ready_record(b, 1).flags, KVT__TABLE_UNREAD);
    assert_int_equal(claim_n(b, 2, 2, 10, &c), 0);
    kvt__table_abort(b, &c);
    recount(b);
    kvt__table_close(a);
    /* A handle that closes ends its claims. */
    assert_int_equal(claim_n(b, 3, 3, 10, &c), 0);
    a = shared_open(&shared);
    kvt__table_close(b);
    assert_int_equal(ready_record(a, 3).flags, KVT__TABLE_UNREAD);
    recount(a);
    kvt__table_close(a);
}

/* A writer dies after the store of the number of values, before the last value. */
static void
a_redo_record_is_applied(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct tb_change change = { .table = b };

    (void)state;
    hold_lock(a, b);
    tb_set64(&change, &b->header->n_unread, 7);
    tb_set32(&change, &b->heads[5], 77);
    tb_set64(&change, &b->header->used_bytes, 9);
    b->header->n_redo = 2;
    die(b);
    assert_int_equal(kvt__tb_lock(a, TB_LOCK_WAIT_NS), 0);
    kvt__tb_unlock(a);
    assert_int_equal(a->header->n_redo, 0);
    assert_int_equal(a->header->n_unread, 7);
    assert_int_equal(a->heads[5], 77);
    assert_int_equal(a->heads[6], TB_END | 6);
    assert_int_equal(a->header->used_bytes, 0);
    a->header->n_unread = 0;
    a->heads[5] = TB_END | 5;
    kvt__table_close(a);
}

static struct tb_claim *
record_at(const struct kvt__table *t, unsigned owner, uint32_t number)
{
    return &t->claims[(size_t)owner * TB_N_CLAIMS + number];
}

/* A writer dies after the write of the entry's word, before the reset of the claim's record.  The
 * entry is published, and the next owner of the number may have claimed the entry since. */
static void
the_record_of_a_published_chunk_is_cleared(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct kvt__claim publish, evict;

    (void)state;
    assert_int_equal(claim_n(b, 1, 1, 10, &publish), 0);
    struct tb_claim *record = record_at(b, b->owner, publish.number);
    uint64_t packed = record->packed;
    assert_true(kvt__table_publish(b, &publish));
    assert_int_equal(record->packed, TB_NO_CLAIM);
    record->packed = packed;
    struct kvt__record r = ready_record(b, 1);
    assert_int_equal(kvt__table_evict(b, &r, false, &evict), 0);
    assert_true(evict.number != publish.number);
    die(b);
    assert_int_equal(kvt__table_recover(a), 1);
    assert_int_equal(record_at(a, 1, publish.number)->packed, TB_NO_CLAIM);
    assert_int_equal(ready_record(a, 1).flags, KVT__TABLE_UNREAD);
    assert_true(tb_is_usable(a));
    recount(a);
    kvt__table_close(a);
}

static void
the_smallest_limit_holds(void **state)
{
    struct kvt__table *a, *b;

    (void)state;
    shared.params.limit_bytes = 100;
    a = shared_open(&shared);
    shared.params.limit_bytes = 50;
    b = shared_open(&shared);
    shared.params.limit_bytes = 0;
    assert_int_equal(store(a, 1, 51), -ENOSPC);
    assert_int_equal(store(b, 1, 50), 0);
    kvt__table_close(b);
    assert_int_equal(store(a, 2, 50), 0);
    assert_int_equal(store(a, 3, 1), -ENOSPC);
    kvt__table_close(a);
}

static void
a_replaced_table_finds_nothing(void **state)
{
    struct kvt__table *a = shared_open(&shared), *b = shared_open(&shared);
    struct kvt__claim c;

    (void)state;
    assert_int_equal(store(a, 1, 10), 0);
    assert_int_equal(claim_n(a, 2, 2, 10, &c), 0);
    struct kvt__record r = ready_record(a, 1), out[8];
    kvt__tb_mark_corrupt(b, "a test");
    assert_false(find(a, 1, NULL));
    assert_false(kvt__table_publish(a, &c));
    assert_int_equal(store(a, 3, 10), -ESTALE);
    assert_int_equal(kvt__table_forget(a, &r, true), -ESTALE);
    assert_int_equal(kvt__table_victims(a, NULL, NULL, out, 8), 0);
    assert_int_equal(kvt__table_recover(a), 0);
    assert_int_equal(used(a), 0);
    kvt__table_close(a);
    kvt__table_close(b);
}

#define SHARED_TEST(f) cmocka_unit_test_setup_teardown(f, make, remove_all)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARED_TEST(a_table_that_another_handle_has_grown_is_not_full),
        SHARED_TEST(handles_share_entries),
        SHARED_TEST(a_held_lock_times_out_and_readers_continue),
        SHARED_TEST(ends_wait_for_the_lock),
        SHARED_TEST(a_release_wakes_a_sleeper),
        SHARED_TEST(the_lock_of_a_dead_owner_is_taken_over),
        SHARED_TEST(claims_of_a_dead_owner_become_unread),
        SHARED_TEST(claims_of_a_dead_owner_of_memory_are_free),
        SHARED_TEST(a_new_owner_ends_the_claims_of_the_last_one),
        SHARED_TEST(a_redo_record_is_applied),
        SHARED_TEST(the_record_of_a_published_chunk_is_cleared),
        SHARED_TEST(the_smallest_limit_holds),
        SHARED_TEST(a_replaced_table_finds_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
