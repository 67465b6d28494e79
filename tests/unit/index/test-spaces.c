/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces are given to other texts when no entry uses them, and never before. */
#include "index-test.h"

#include <pthread.h>
#include <sched.h>

#define N_TAGGED (IX_N_SPACES - IX_N_UNTAGGED)

/* Key text number i with an empty hash and tags. */
static void
tagged(unsigned i, char out[64])
{
    snprintf(out, 64, "m@1@0@@half@user%%%u", i);
}

static void
untagged(unsigned i, char out[64])
{
    snprintf(out, 64, "m%u@1@0@@half@kvt%%0123456789abcdef", i);
}

/* Identity number i; in a table of 8192 entries each finds a place. */
static struct kvt__id
spread_id(uint64_t i)
{
    uint64_t w[2] = { mix(i), mix(~i) };
    struct kvt__id id;

    memcpy(id.b, w, sizeof w);
    return id;
}

static struct kvt__index *
open_large(const struct dir *d)
{
    struct kvt__index_params p = { .dirfd = d->fd, .n_entries = 8192, .writer = true };
    struct kvt__index *ix;

    assert_int_equal(kvt__index_open(&p, &ix), 0);
    return ix;
}

/* Claim entry number i in the space of text number i. */
static int
claim_tagged(struct kvt__index *ix, unsigned i, struct kvt__index_claim *c)
{
    struct kvt__index_entry e = { .id = spread_id(i), .hash.bits = { i } };
    char text[64];

    tagged(i, text);
    ix->search_from_ns = 0; /* search again at once */
    return kvt__index_claim(ix, &e, text, c);
}

static int
put_tagged(struct kvt__index *ix, unsigned i)
{
    struct kvt__index_claim c;
    int rc = claim_tagged(ix, i, &c);

    if (!rc)
        kvt__index_publish(ix, &c);
    return rc;
}

static void
fill_table(struct kvt__index *ix)
{
    for (unsigned i = 0; i < N_TAGGED; i++)
        assert_int_equal(put_tagged(ix, i), 0);
    assert_int_equal(put_tagged(ix, N_TAGGED), -ENFILE);
}

/* Check that each ready entry's space has the text of the claim. */
static bool
audit_text(void *ctx, const struct kvt__index_entry *e)
{
    char want[64], text[KVT__INDEX_SPACE_TEXT_MAX + 1];
    const struct kvt__index *ix = ctx;

    tagged((unsigned)e->hash.bits[0], want);
    assert_int_equal(kvt__index_space_text(ix, e->space, text, sizeof text), 0);
    assert_string_equal(text, want);
    return true;
}

static void
tags_leave_texts_without_tags_their_spaces(void **state)
{
    struct kvt__index *ix = open_large(*state);
    char text[64];

    fill_table(ix);
    for (unsigned i = 0; i < IX_N_UNTAGGED; i++) {
        untagged(i, text);
        assert_true(kvt__ix_space(ix, text) >= 0);
    }
    kvt__index_each(ix, audit_text, ix);
    kvt__index_close(ix);
}

static void
a_text_that_has_a_space_finds_it_in_a_full_table(void **state)
{
    struct kvt__index *ix = open_large(*state);
    struct kvt__id id = spread_id(7);

    fill_table(ix);
    assert_int_equal(drop(ix, &id), 0);
    assert_int_equal(put_tagged(ix, 7), 0);
    kvt__index_each(ix, audit_text, ix);
    kvt__index_close(ix);
}

static void
a_space_that_no_entry_uses_is_given_away(void **state)
{
    struct kvt__index *ix = open_large(*state);

    fill_table(ix);
    for (unsigned i = 100; i < 200; i++) {
        struct kvt__id id = spread_id(i);
        assert_int_equal(drop(ix, &id), 0);
    }
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(put_tagged(ix, 10000 + i), 0);
    assert_int_equal(put_tagged(ix, 20000), -ENFILE);
    kvt__index_each(ix, audit_text, ix);
    kvt__index_close(ix);
}

static void
a_space_of_a_claim_or_an_eviction_is_not(void **state)
{
    struct kvt__index *ix = open_large(*state);
    struct kvt__index_claim claimed, evicting;
    char text[KVT__INDEX_SPACE_TEXT_MAX + 1];
    struct kvt__index_entry out;
    struct kvt__id id = spread_id(3);

    for (unsigned i = 1; i < N_TAGGED; i++)
        assert_int_equal(put_tagged(ix, i), 0);
    assert_int_equal(claim_tagged(ix, 0, &claimed), 0);
    assert_int_equal(kvt__index_evict(ix, &id, false, &out, &evicting), 0);
    assert_int_equal(put_tagged(ix, N_TAGGED), -ENFILE);
    assert_int_equal(kvt__index_space_text(ix, out.space, text, sizeof text), 0);
    assert_string_equal(text, "m@1@0@@half@user%3");
    kvt__index_publish(ix, &claimed);
    kvt__index_each(ix, audit_text, ix);
    kvt__index_removed(ix, &evicting);
    assert_int_equal(put_tagged(ix, N_TAGGED), 0);
    kvt__index_each(ix, audit_text, ix);
    kvt__index_close(ix);
}

/* A full table is not searched for every new text of a client. */
static void
a_search_that_found_nothing_is_not_repeated_at_once(void **state)
{
    struct kvt__index *ix = open_large(*state);
    struct kvt__index_entry e = { .id = spread_id(N_TAGGED) };
    struct kvt__id id = spread_id(7);
    struct kvt__index_claim c;

    fill_table(ix);
    assert_int_equal(drop(ix, &id), 0);
    ix->search_from_ns = INT64_MAX;
    assert_int_equal(kvt__index_claim(ix, &e, "m@1@0@@half@user%x", &c), -ENFILE);
    ix->search_from_ns = 0;
    int64_t before = kvt__now_ns();
    assert_int_equal(kvt__index_claim(ix, &e, "m@1@0@@half@user%x", &c), 0);
    assert_true(ix->search_from_ns >= before + KVT__NS_PER_S);
    kvt__index_abort(ix, &c);
    kvt__index_close(ix);
}

/* A process died during a search or during the write of a text. */
static void
what_a_dead_process_left_is_mended(void **state)
{
    struct kvt__index *ix = open_large(*state);
    int space;

    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(put_tagged(ix, i), 0);
    for (unsigned i = IX_N_UNTAGGED; i < IX_N_SPACES; i++)
        if (ix->map->spaces[i].state == IX_SPACE_VALID)
            ix->map->spaces[i].state = IX_SPACE_CHECKED;
        else
            ix->map->spaces[i].state = IX_SPACE_WRITING;
    kvt__index_each(ix, audit_text, ix); /* the text is there all the time */
    space = kvt__ix_space(ix, "m@1@0@@half@user%5");
    assert_int_equal(ix->map->spaces[space].state, IX_SPACE_VALID);
    for (unsigned i = 10; i < N_TAGGED; i++)
        assert_int_equal(put_tagged(ix, i), 0);
    kvt__index_each(ix, audit_text, ix);
    kvt__index_close(ix);
}

static void
the_first_place_is_as_good_as_any(void **state)
{
    struct kvt__index *ix = open_large(*state);
    char text[64];
    unsigned i = 0;

    do
        snprintf(text, sizeof text, "m%u@1@0@@half", i++);
    while (kvt__ix_space(ix, text));
    assert_true(kvt__ix_space_has(ix, 0, text));
    ix->map->spaces[0].state = IX_SPACE_CHECKED; /* by a process that died */
    assert_int_equal(kvt__ix_space(ix, text), 0);
    kvt__index_close(ix);
}

/* -------------------------------------------------------------------- at once */

#define N_THREADS 4
#define ROUNDS 400

struct worker {
    const struct dir *dir;
    unsigned number;
    unsigned n_wrong, n_put;
};

/* Put and evict entries of new texts. */
static void *
come_and_go(void *arg)
{
    struct worker *w = arg;
    struct kvt__index *ix = open_large(w->dir);

    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned number = 100000 + i * N_THREADS + w->number;
        char want[64], text[KVT__INDEX_SPACE_TEXT_MAX + 1];
        struct kvt__id id = spread_id(number);
        struct kvt__index_entry out;
        struct kvt__index_claim c;

        if (put_tagged(ix, number)) {
            sched_yield();
            continue;
        }
        w->n_put++;
        tagged(number, want);
        if (kvt__index_evict(ix, &id, true, &out, &c)) {
            w->n_wrong++;
            continue;
        }
        w->n_wrong += kvt__index_space_text(ix, out.space, text, sizeof text) ||
                      strcmp(text, want);
        kvt__index_removed(ix, &c);
    }
    kvt__index_close(ix);
    return NULL;
}

static void
an_entrys_text_is_its_own_whoever_searches(void **state)
{
    struct kvt__index *ix = open_large(*state);
    struct worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    unsigned n_put = 0;

    for (unsigned i = 0; i < N_TAGGED - 3; i++)
        assert_int_equal(put_tagged(ix, i), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){ .dir = *state, .number = i };
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &workers[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].n_wrong, 0);
        n_put += workers[i].n_put;
    }
    assert_true(n_put > ROUNDS / 2); /* spaces were given away over and over */
    kvt__index_each(ix, audit_text, ix);
    kvt__index_close(ix);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(tags_leave_texts_without_tags_their_spaces),
        INDEX_TEST(a_text_that_has_a_space_finds_it_in_a_full_table),
        INDEX_TEST(a_space_that_no_entry_uses_is_given_away),
        INDEX_TEST(a_space_of_a_claim_or_an_eviction_is_not),
        INDEX_TEST(a_search_that_found_nothing_is_not_repeated_at_once),
        INDEX_TEST(what_a_dead_process_left_is_mended),
        INDEX_TEST(the_first_place_is_as_good_as_any),
        INDEX_TEST(an_entrys_text_is_its_own_whoever_searches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
