/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that share a handle, and handles that share a mapping: all calls at once. */
#include "place-test.h"
#include "shared-table.h"

#include <pthread.h>

enum { N_THREADS = 6, N_CHUNKS = 64, N_OPS = 4000 };

struct worker {
    struct kvt__table *t;
    uint64_t random;
    uint64_t n_bad;
};

static uint64_t
next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return *state >> 24;
}

static bool
is_whole(const struct kvt__record *r, uint64_t n)
{
    struct kvt__name name = name_of(n);
    uint64_t id;

    memcpy(&id, r->id.b + 8, sizeof id);
    return r->hash.bits[0] == name.hash.bits[0] && id % N_CHUNKS == n && r->bytes == id + 1;
}

static void
work_once(struct worker *w, uint64_t n, uint64_t random)
{
    struct kvt__name name = name_of(n);
    uint64_t id = n + (random >> 10 & 1) * N_CHUNKS;
    struct kvt__id want = id_of(id);
    struct kvt__record r = record_of_n(id, id + 1), out[KVT__TABLE_VICTIMS];
    struct kvt__claim c;

    switch (random & 7) {
    case 0:
    case 1:
    case 2:
        if (kvt__table_claim(w->t, &name, &r, TEXT, &c))
            return;
        if (random >> 4 & 3)
            w->n_bad += !kvt__table_publish(w->t, &c);
        else
            kvt__table_abort(w->t, &c);
        return;
    case 3:
        if (kvt__table_victims(w->t, NULL, NULL, out, 2) &&
            !kvt__table_evict(w->t, out, false, &c)) {
            if (random >> 4 & 1)
                kvt__table_evicted(w->t, &c);
            else
                kvt__table_abort(w->t, &c);
        }
        return;
    case 4:
        if (kvt__table_find(w->t, &name, NULL, &r)) {
            w->n_bad += !is_whole(&r, n);
            (void)kvt__table_forget(w->t, &r, false);
        }
        return;
    case 5:
        if (!kvt__table_lease(w->t, &name, &want, INT64_MAX, &r))
            return;
        w->n_bad += !is_whole(&r, n) || !kvt__id_equal(&r.id, &want);
        w->n_bad += tb_state(TB_LOAD(&w->t->hot[r.entry].word)) == TB_FREE;
        kvt__table_unlease(w->t, &r.lease);
        return;
    case 6:
        kvt__table_prefetch(w->t, &name, 1);
        kvt__table_touch(w->t, &name, &want);
        return;
    default:
        if (kvt__table_find(w->t, &name, &want, &r))
            w->n_bad += !is_whole(&r, n);
    }
}

static void *
work(void *arg)
{
    struct worker *w = arg;

    for (unsigned i = 0; i < N_OPS; i++) {
        uint64_t random = next_random(&w->random);

        work_once(w, random >> 20 & (N_CHUNKS - 1), random);
    }
    return NULL;
}

static void
run(struct kvt__table *tables[N_THREADS])
{
    struct worker workers[N_THREADS] = { 0 };
    pthread_t threads[N_THREADS];

    for (unsigned i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){ .t = tables[i], .random = i + 1 };
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].n_bad, 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        struct tb_change c;
        assert_int_equal(kvt__tb_begin(tables[i], &c), 0);
        kvt__tb_end(&c);
    }
    recount(tables[0]);
    for (uint32_t i = 0; i < tables[0]->header->n_fresh; i++)
        assert_true(tb_state(tables[0]->hot[i].word) != TB_CLAIMED);
}

static void
threads_share_a_handle(void **state)
{
    struct kvt__table *t = open_table(6000, 0), *tables[N_THREADS];

    (void)state;
    for (unsigned i = 0; i < N_THREADS; i++)
        tables[i] = t;
    run(tables);
    kvt__table_close(t);
}

static void
handles_share_a_mapping(void **state)
{
    struct kvt__table_params params = { .limit_bytes = 6000, .max_entries = 4096 };
    struct kvt__table *tables[N_THREADS];
    struct shared s;

    (void)state;
    shared_make(&s, &params);
    for (unsigned i = 0; i < N_THREADS; i++)
        tables[i] = shared_open(&s);
    run(tables);
    for (unsigned i = 0; i < N_THREADS; i++)
        kvt__table_close(tables[i]);
    shared_remove(&s);
}

/* The heads grow while a thread finds entries that no thread changes. */
static void *
store_many(void *t)
{
    for (uint64_t i = 1000; i < 21000; i++)
        assert_int_equal(store(t, i, 1), 0);
    return NULL;
}

static void
finds_during_splits_hit(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    uint64_t n_missed = 0;
    pthread_t thread;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(store(t, i, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, store_many, t), 0);
    while (TB_LOAD(&t->header->n_entries) < 20000)
        for (uint64_t i = 0; i < 1000; i++)
            n_missed += !find(t, i, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(n_missed, 0);
    recount(t);
    kvt__table_close(t);
}

/* ------------------------------------------------------------------- spaces */

enum { N_TAGGED = TB_N_SPACES - TB_N_UNTAGGED, N_TEXTS = 300 };

static struct kvt__name
name_of_text(const char *text)
{
    return (struct kvt__name){ .digest = kvt__table_digest(text), .hash.bits = { 1 } };
}

/* Enter a chunk of the space of user number n. */
static int
enter_text(struct kvt__table *t, uint64_t n, char text[64])
{
    struct kvt__record record = record_of_n(n, 1);

    snprintf(text, 64, "m@1@0@@half@user%%%llu", (unsigned long long)n);
    struct kvt__name name = name_of_text(text);
    return kvt__table_enter(t, &name, &record, text);
}

/* Evict the entry.  False: the claimed entry's space has another text. */
static bool
evict_text(struct kvt__table *t, const char *want)
{
    char text[KVT__TABLE_TEXT_MAX + 1];
    struct kvt__name name = name_of_text(want);
    struct kvt__record seen;
    struct kvt__claim c;

    if (!kvt__table_find(t, &name, NULL, &seen) || kvt__table_evict(t, &seen, true, &c))
        return false;
    bool ok = !kvt__table_space_text(t, seen.space, text, sizeof text) && !strcmp(text, want);
    kvt__table_evicted(t, &c);
    return ok;
}

static void *
use_new_texts(void *arg)
{
    struct worker *w = arg;
    char text[64];

    for (unsigned i = 0; i < N_TEXTS; i++)
        if (!enter_text(w->t, w->random * 100000 + i, text))
            w->n_bad += !evict_text(w->t, text);
    return NULL;
}

/* Fewer spaces are unused than threads take new texts. */
static void
a_claimed_entrys_space_keeps_its_text(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    char text[64];

    (void)state;
    for (uint64_t i = 0; i < N_TAGGED - 3; i++)
        assert_int_equal(enter_text(t, i, text), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){ .t = t, .random = i + 1 };
        assert_int_equal(pthread_create(&threads[i], NULL, use_new_texts, &workers[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].n_bad, 0);
    }
    recount(t);
    kvt__table_close(t);
}

/* -------------------------------------------------------------------- opens */

static void *
open_and_close(void *dir)
{
    for (uint64_t i = 0; i < 20; i++) {
        struct kvt__table *t = open_writer(dir);
        struct kvt__claim c;

        assert_true(kvt__table_is_shared(t));
        (void)store(t, i, 1);
        (void)claim_n(t, i, i + 100, 1, &c); /* ends with the handle */
        kvt__table_close(t);
    }
    return NULL;
}

static void
handles_open_and_close(void **state)
{
    pthread_t threads[N_THREADS];

    for (unsigned i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, *state), 0);
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    struct kvt__table *t = open_writer(*state);
    for (uint64_t i = 0; i < 20; i++)
        assert_true(find(t, i, NULL) || ready_record(t, i).flags & KVT__TABLE_UNREAD);
    recount(t);
    kvt__table_close(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_handle),
        cmocka_unit_test(handles_share_a_mapping),
        cmocka_unit_test(finds_during_splits_hit),
        cmocka_unit_test(a_claimed_entrys_space_keeps_its_text),
        PLACE_TEST(handles_open_and_close),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
