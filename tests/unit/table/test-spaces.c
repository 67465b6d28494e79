/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces: texts, reuse of unused spaces, the separate parts for tagged and other texts. */
#include "table-test.h"

#include <stdio.h>

#define N_TAGGED (TB_N_SPACES - TB_N_UNTAGGED)

static void
text_of(char out[64], unsigned n, bool tagged)
{
    snprintf(out, 64, tagged ? "m@1@0@@half@user%%%u" : "m%u@1@0@@half", n);
}

/* Enter chunk 1 of the space with this text. */
static int
enter(struct kvt__table *t, const char *text)
{
    struct kvt__name name = { .digest = kvt__table_digest(text), .hash = { .bits = { 1 } } };
    struct kvt__record record = { .id = id_of(1), .bytes = 1 };

    return kvt__table_enter(t, &name, &record, text);
}

static bool
find_text(struct kvt__table *t, const char *text, struct kvt__record *out)
{
    struct kvt__name name = { .digest = kvt__table_digest(text), .hash = { .bits = { 1 } } };
    struct kvt__id id = id_of(1);

    return kvt__table_find(t, &name, &id, out);
}

static void
a_space_has_its_text(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    char text[KVT__TABLE_TEXT_MAX + 1], longest[KVT__TABLE_TEXT_MAX + 1];
    struct kvt__record r;

    (void)state;
    memset(longest, 'y', sizeof longest);
    longest[KVT__TABLE_TEXT_MAX] = '\0';
    for (unsigned n = 1; n <= KVT__TABLE_TEXT_MAX; n += n < 20 ? 1 : 153) {
        char *end = longest + KVT__TABLE_TEXT_MAX - n;

        assert_int_equal(enter(t, end), 0);
        assert_true(find_text(t, end, &r));
        assert_int_equal(kvt__table_space_text(t, r.space, text, sizeof text), 0);
        assert_string_equal(text, end);
        assert_int_equal(kvt__table_space_text(t, r.space, text, n + 1), 0);
        assert_int_equal(kvt__table_space_text(t, r.space, text, n), -ENOENT);
    }
    assert_int_equal(kvt__table_space_text(t, TB_N_SPACES, text, sizeof text), -ENOENT);
    assert_int_equal(kvt__table_space_text(t, TB_NO_SPACE, text, sizeof text), -ENOENT);
    recount(t);
    kvt__table_close(t);
}

static void
one_hash_in_two_spaces_is_two_chunks(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record a, b;

    (void)state;
    assert_int_equal(enter(t, "a@1@0@@half"), 0);
    assert_false(find_text(t, "b@1@0@@half", NULL));
    assert_int_equal(enter(t, "b@1@0@@half"), 0);
    assert_int_equal(enter(t, "b@1@0@@half"), -EEXIST);
    assert_true(find_text(t, "a@1@0@@half", &a) && find_text(t, "b@1@0@@half", &b));
    assert_true(a.entry != b.entry && a.space != b.space);
    recount(t);
    kvt__table_close(t);
}

static void
full_spaces_of_a_kind_are_no_room(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    char text[64];
    struct kvt__record r;

    (void)state;
    for (unsigned tagged = 0; tagged < 2; tagged++) {
        unsigned n = tagged ? N_TAGGED : TB_N_UNTAGGED;

        for (unsigned i = 0; i < n; i++) {
            text_of(text, i, tagged);
            assert_int_equal(enter(t, text), 0);
            assert_true(find_text(t, text, &r));
            assert_int_equal(r.space >= TB_N_UNTAGGED, tagged);
        }
        text_of(text, n, tagged);
        assert_int_equal(enter(t, text), -ENFILE);
        assert_int_equal(enter(t, text), -ENFILE);
        recount(t);
        /* A chunk of a text with a space can be stored even if all spaces are used. */
        text_of(text, 5, tagged);
        struct kvt__name name = { .digest = kvt__table_digest(text),
                                  .hash = { .bits = { 2 } } };
        struct kvt__record record = { .id = id_of(2), .bytes = 1 };
        assert_int_equal(kvt__table_enter(t, &name, &record, text), 0);
        assert_true(kvt__table_find(t, &name, NULL, &r));
        assert_int_equal(kvt__table_forget(t, &r, false), 0);
        /* After the eviction of a space's last chunk, another text gets the space. */
        text_of(text, 7, tagged);
        assert_true(find_text(t, text, &r));
        uint32_t space = r.space;
        assert_int_equal(kvt__table_forget(t, &r, false), 0);
        text_of(text, n, tagged);
        assert_int_equal(enter(t, text), 0);
        assert_true(find_text(t, text, &r));
        assert_int_equal(r.space, space);
        text_of(text, 7, tagged);
        assert_false(find_text(t, text, NULL));
        assert_int_equal(enter(t, text), -ENFILE);
        recount(t);
    }
    kvt__table_close(t);
}

/* The text of an unused space may be stored again. */
static void
an_unused_space_keeps_its_text_until_another_needs_it(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    struct kvt__record r;

    (void)state;
    assert_int_equal(enter(t, "a@1@0@@half"), 0);
    assert_true(find_text(t, "a@1@0@@half", &r));
    uint32_t space = r.space;
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    assert_int_equal(t->spaces[space].n_entries, 0);
    assert_int_equal(enter(t, "a@1@0@@half"), 0);
    assert_true(find_text(t, "a@1@0@@half", &r));
    assert_int_equal(r.space, space);
    recount(t);
    kvt__table_close(t);
}

static void
a_text_that_was_half_written_is_written_again(void **state)
{
    struct kvt__table *t = open_table(0, 0);
    const char *text = "a@1@0@@half";
    struct kvt__record r;

    (void)state;
    assert_int_equal(enter(t, text), 0);
    assert_true(find_text(t, text, &r));
    struct tb_space *space = &t->spaces[r.space];
    assert_int_equal(kvt__table_forget(t, &r, false), 0);
    space->digest = 1; /* the writer died */
    space->n_bytes = 3;
    assert_int_equal(enter(t, text), 0);
    assert_true(find_text(t, text, &r));
    assert_true(space == &t->spaces[r.space]);
    recount(t);
    kvt__table_close(t);
}

static void
a_digest_is_never_zero_and_differs(void **state)
{
    (void)state;
    assert_true(kvt__table_digest("a") != 0);
    assert_true(kvt__table_digest("a") != kvt__table_digest("b"));
    assert_true(kvt__table_digest("a") == kvt__table_digest("a"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_space_has_its_text),
        cmocka_unit_test(one_hash_in_two_spaces_is_two_chunks),
        cmocka_unit_test(full_spaces_of_a_kind_are_no_room),
        cmocka_unit_test(an_unused_space_keeps_its_text_until_another_needs_it),
        cmocka_unit_test(a_text_that_was_half_written_is_written_again),
        cmocka_unit_test(a_digest_is_never_zero_and_differs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
