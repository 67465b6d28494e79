/* SPDX-License-Identifier: Apache-2.0
 *
 * Garbage in the mapping: no call crashes or loops, and a writer that meets garbage marks
 * the table replaced. */
#include "table-test.h"

#include <sys/mman.h>

#include "kvtier.h"

/* A user-mode emulator of another processor allocates memory for each page of a mapping. */
#ifdef __x86_64__
#define GUARD_BYTES (UINT64_C(32) << 30)
#else
#define GUARD_BYTES (UINT64_C(1) << 30)
#endif
#define N_CHUNKS 40

static char *area; /* the mapping between two parts without access */
static char *pristine;
static size_t n_bytes;

static struct kvt__table *
open_guarded(void)
{
    struct kvt__table_params params = { .max_entries = TB_MIN_HEADS, .writer = true };
    struct kvt__table *t = kvt__tb_new(&params);

    n_bytes = tb_parts(TB_MIN_HEADS, false).end;
    area = mmap(NULL, 2 * GUARD_BYTES + n_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(area != MAP_FAILED);
    char *map = area + GUARD_BYTES;
    assert_int_equal(mprotect(map, n_bytes, PROT_READ | PROT_WRITE), 0);
    kvt__tb_set_parts(t, map, TB_MIN_HEADS, false, 0);
    assert_int_equal(kvt__tb_init(t, &params, (const uint64_t[2]){ 0, 0 }, ""), 0);
    assert_int_equal(kvt__tb_acquire_owner(t, 0), 0);
    for (uint64_t i = 0; i < N_CHUNKS; i++)
        assert_int_equal(store(t, i, 10), 0);
    for (uint64_t i = 0; i < N_CHUNKS; i += 4) {
        struct kvt__record r = ready_record(t, i);
        assert_int_equal(kvt__table_forget(t, &r, false), 0);
    }
    return t;
}

static void
close_guarded(struct kvt__table *t)
{
    pthread_mutex_destroy(&t->mutex);
    free(t);
    munmap(area, 2 * GUARD_BYTES + n_bytes);
}

static void
expect_replaced(struct kvt__table *t)
{
    assert_int_equal(t->header->use, TB_REPLACED);
    assert_int_equal(t->header->lock & 0x1ff, 0);
    close_guarded(t);
}

/* ------------------------------------------------------------ single fields */

static void
sizes_out_of_range(void **state)
{
    static const struct {
        size_t field;
        uint32_t value;
    } rows[] = {
        { offsetof(struct tb_header, n_heads), 0 },
        { offsetof(struct tb_header, n_heads), TB_MIN_HEADS - 1 },
        { offsetof(struct tb_header, n_heads), TB_MIN_HEADS + 1 },
        { offsetof(struct tb_header, n_heads), UINT32_MAX },
        { offsetof(struct tb_header, n_made), TB_MIN_HEADS + 1 },
        { offsetof(struct tb_header, n_made), UINT32_MAX },
        { offsetof(struct tb_header, n_made), N_CHUNKS - 1 },
        { offsetof(struct tb_header, n_fresh), TB_MIN_HEADS + 1 },
        { offsetof(struct tb_header, n_fresh), UINT32_MAX },
        { offsetof(struct tb_header, free), TB_MIN_HEADS },
        { offsetof(struct tb_header, free), UINT32_MAX - 1 },
        { offsetof(struct tb_header, n_redo), TB_REDO_MAX + 1 },
        { offsetof(struct tb_header, n_redo), UINT32_MAX },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvt__table *t = open_guarded();

        memcpy((char *)t->header + rows[i].field, &rows[i].value, 4);
        (void)find(t, 1, NULL);
        assert_int_equal(store(t, 1000, 10), -ESTALE);
        expect_replaced(t);
    }
}

static void
redo_records_with_places_out_of_range(void **state)
{
    const uint64_t places[] = { 0, 8 | 1, offsetof(struct tb_header, limit_bytes) - 4,
                                offsetof(struct tb_header, used_bytes) | 2,
                                (offsetof(struct tb_header, used_bytes) + 4) | 1,
                                tb_parts(TB_MIN_HEADS, false).end,
                                (tb_parts(TB_MIN_HEADS, false).end - 4) | 1,
                                UINT64_MAX, UINT64_MAX - 3, UINT64_C(1) << 40 };

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct kvt__table *t = open_guarded();

        t->header->redo[0].offset = places[i];
        t->header->redo[0].value = 7;
        t->header->n_redo = 1;
        assert_int_equal(store(t, 1000, 10), -ESTALE);
        expect_replaced(t);
    }
}

static void
the_last_place_of_a_redo_record_is_in_range(void **state)
{
    struct kvt__table *t = open_guarded();
    uint64_t end = tb_parts(TB_MIN_HEADS, false).end;

    (void)state;
    t->header->redo[0] = (struct tb_redo){ end - 4, 7 };
    t->header->redo[1] = (struct tb_redo){ (end - 16) | 1, UINT64_MAX };
    t->header->redo[2] = (struct tb_redo){ offsetof(struct tb_header, limit_bytes) | 1, 999 };
    t->header->n_redo = 3;
    assert_int_equal(store(t, 1000, 10), 0);
    assert_int_equal(*(uint32_t *)((char *)t->header + end - 4), 7);
    assert_int_equal(t->header->limit_bytes, 999);
    close_guarded(t);
}

static void
a_free_list_with_an_entry_in_use(void **state)
{
    struct kvt__table *t = open_guarded();

    (void)state;
    t->header->free = ready_record(t, 1).entry;
    assert_int_equal(store(t, 1000, 10), -ESTALE);
    expect_replaced(t);
}

/* The head of chunk n's chain. */
static uint32_t *
head_of(struct kvt__table *t, uint64_t n)
{
    struct kvt__name name = name_of(n);

    return &t->heads[tb_bucket(kvt__tb_hash(t, &name), t->header->n_heads)];
}

static void
chains_that_end_elsewhere(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct kvt__table *t = open_guarded();
        uint32_t entry = ready_record(t, 1).entry, *head = head_of(t, 1);
        struct kvt__record r = ready_record(t, 1);
        const uint32_t ends[] = { TB_NONE, TB_END, TB_MIN_HEADS, entry };

        if (i == 3)
            t->hot[entry].next = entry; /* a loop */
        else
            *head = ends[i] == (TB_END | (uint32_t)(head - t->heads)) ? TB_NONE : ends[i];
        (void)find(t, 1, NULL);
        (void)find(t, 2, NULL);
        if (i < 3) {
            assert_false(find(t, 1, NULL));
            assert_int_equal(kvt__table_forget(t, &r, false), 0);
        } else {
            uint64_t n = 2000;

            while (head_of(t, n) != head) /* another name of the chain */
                n++;
            assert_int_equal(store(t, n, 10), -ESTALE);
        }
        expect_replaced(t);
    }
}

static void
counts_that_are_too_low(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct kvt__table *t = open_guarded();
        struct kvt__record r = ready_record(t, 1);
        uint64_t *counts[] = { &t->header->n_entries, &t->header->used_bytes,
                               &t->header->n_unread, NULL };

        if (counts[i])
            *counts[i] = 0;
        else
            t->spaces[r.space].n_entries = 0;
        if (i == 2) {
            t->hot[r.entry].word |= TB_UNREAD;
            r.word |= TB_UNREAD;
        }
        (void)kvt__table_forget(t, &r, false);
        expect_replaced(t);
    }
}

static void
claims_that_changed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct kvt__table *t = open_guarded();
        struct kvt__claim c;

        assert_int_equal(claim_n(t, 1000, 1000, 10, &c), 0);
        if (i == 0)
            t->claims[c.number].packed = TB_NO_CLAIM;
        else if (i == 1)
            t->claims[c.number].packed += UINT64_C(1) << 32;
        else if (i == 2)
            t->hot[c.entry].word ^= 1 << 4; /* owner */
        else
            t->hot[c.entry].word = (t->hot[c.entry].word & ~UINT64_C(3)) | TB_READY;
        (void)kvt__table_publish(t, &c);
        expect_replaced(t);
    }
}

static void
a_form_of_no_hash_is_a_miss(void **state)
{
    struct kvt__table *t = open_guarded();
    struct kvt__record r = ready_record(t, 1);

    (void)state;
    t->cold[r.entry].packed |= UINT64_C(3) << 62;
    assert_false(find(t, 1, &r));
    close_guarded(t);
}

/* ------------------------------------------------------------ random garbage */

static uint64_t
bad_value(const struct kvt__table *t, uint64_t random)
{
    const uint64_t values[] = { 0, 1, 2, 3, UINT64_MAX, TB_END, TB_NONE, TB_MIN_HEADS,
                                TB_MIN_HEADS - 1, N_CHUNKS, N_CHUNKS - 1, random,
                                random & 0xff, UINT64_MAX << 32, t->header->n_made,
                                (random % N_CHUNKS) << 32 | 1 };

    return values[(random >> 8) % (sizeof values / sizeof *values)];
}

static void
scribble(struct kvt__table *t, uint64_t random)
{
    struct {
        void *at;
        size_t bytes;
    } parts[] = {
        { &t->header->lock, 128 }, { &t->header->lock, 128 },
        { t->header->redo, 256 }, { t->owners, 64 }, { t->claims, 64 },
        { t->spaces, 4096 }, { &t->spaces[ready_record(t, 1).space], 64 },
        { head_of(t, 1), 4 }, { t->heads, 4096 },
        { t->hot, N_CHUNKS * sizeof *t->hot }, { t->hot, N_CHUNKS * sizeof *t->hot },
        { t->cold, N_CHUNKS * sizeof *t->cold },
    };
    unsigned n = 1 + (unsigned)(random & 3);

    for (unsigned i = 0; i < n; i++) {
        random = mix(random + i);
        unsigned part = (unsigned)(random % (sizeof parts / sizeof *parts));
        size_t at = (random >> 16) % parts[part].bytes & ~(size_t)3;
        uint64_t value = bad_value(t, mix(random));

        memcpy((char *)parts[part].at + at, &value,
               random >> 60 & 1 && at + 8 <= parts[part].bytes && at % 8 == 0 ? 8 : 4);
    }
}

static bool
count(void *ctx, const struct kvt__record *r)
{
    *(uint64_t *)ctx += r->bytes;
    return true;
}

static void
use(struct kvt__table *t, uint64_t random)
{
    uint64_t n = random >> 8 & 63;
    struct kvt__name name = name_of(n);
    struct kvt__id id = id_of(n);
    struct kvt__record r, out[KVT__TABLE_VICTIMS];
    char text[KVT__TABLE_TEXT_MAX + 1];
    struct kvt__claim c;
    uint64_t sum = 0;

    switch (random & 15) {
    case 0:
    case 1:
        (void)store(t, n, 10);
        break;
    case 2:
    case 3:
        if (kvt__table_find(t, &name, NULL, &r))
            (void)kvt__table_forget(t, &r, true);
        break;
    case 4:
    case 5:
        if (!claim_n(t, n, n + 1, 10, &c)) {
            if (random >> 7 & 1)
                (void)kvt__table_publish(t, &c);
            else
                kvt__table_abort(t, &c);
        }
        break;
    case 6:
        if (kvt__table_lease(t, &name, &id, INT64_MAX, &r))
            kvt__table_unlease(t, &r.lease);
        kvt__table_protect(t, &name, &id, INT64_MAX);
        r.lease = (struct kvt__lease){ .entry = (uint32_t)random,
                                       .life = (uint8_t)(random >> 32) };
        kvt__table_unlease(t, &r.lease);
        break;
    case 7:
        for (size_t i = kvt__table_victims(t, NULL, NULL, out, KVT__TABLE_VICTIMS); i-- > 0;)
            if (!kvt__table_evict(t, &out[i], true, &c))
                kvt__table_evicted(t, &c);
        break;
    case 8:
        (void)kvt__table_recover(t);
        break;
    case 9:
        kvt__table_each(t, count, &sum);
        break;
    case 10:
        if (kvt__table_find(t, &name, NULL, &r))
            (void)kvt__table_space_text(t, r.space, text, sizeof text);
        break;
    case 11:
        (void)kvt__table_is_victim(t, (uint32_t)name.hash.bits[0], &r);
        t->header->limit_bytes = 0;
        break;
    case 12:
        kvt__table_prefetch(t, &name, 1);
        kvt__table_touch(t, &name, &id);
        break;
    default:
        for (uint64_t i = 0; i < N_CHUNKS; i++)
            (void)find(t, i, i & 1 ? &r : NULL);
    }
}

static void
random_garbage_makes_no_call_crash_or_loop(void **state)
{
    struct kvt__table *t = open_guarded();
    uint64_t rounds = 10000, n_replaced = 0;

    (void)state;
    pristine = malloc(n_bytes);
    assert_non_null(pristine);
    memcpy(pristine, t->header, n_bytes);
    size_t claims = (size_t)((char *)t->claims - (char *)t->header);
    size_t spaces = (size_t)((char *)t->spaces - (char *)t->header);
    for (uint64_t i = 0; i < rounds; i++) {
        memcpy(t->header, pristine, claims + 4096);
        memcpy(t->spaces, pristine + spaces, n_bytes - spaces);
        t->n_queued = 0;
        scribble(t, mix(i));
        for (uint64_t n = 0; n < 24; n++)
            use(t, mix(i * 100 + n));
        n_replaced += t->header->use == TB_REPLACED;
    }
    assert_true(n_replaced > rounds / 10);
    free(pristine);
    close_guarded(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_out_of_range),
        cmocka_unit_test(redo_records_with_places_out_of_range),
        cmocka_unit_test(the_last_place_of_a_redo_record_is_in_range),
        cmocka_unit_test(a_free_list_with_an_entry_in_use),
        cmocka_unit_test(chains_that_end_elsewhere),
        cmocka_unit_test(counts_that_are_too_low),
        cmocka_unit_test(claims_that_changed),
        cmocka_unit_test(a_form_of_no_hash_is_a_miss),
        cmocka_unit_test(random_garbage_makes_no_call_crash_or_loop),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
