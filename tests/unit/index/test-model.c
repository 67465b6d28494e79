/* SPDX-License-Identifier: Apache-2.0
 *
 * What the entries' state machine must stand: scenarios of the model (model.h), each
 * explored whole. */
#include "model.h"

/* Processes: two writers with an owner each, the evicter with one, the reader. */
static void
two_writers_of_one_identity(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "two writers that may die", .one_must_win = true,
        .proc = { { 1, 1 }, { 1, 2 } }, .n_deaths = 2 });
}

static void
evicter_and_writer_of_one_identity(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "a writer and an evicter that may die", .first_id = 1,
        .proc = { { 1, 1 }, { 0, 0 }, { 1, 0 } }, .n_deaths = 2 });
}

static void
reader_and_writer_of_one_identity(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "a reader and a writer that may die",
        .proc = { { 1, 1 }, { 0, 0 }, { 0, 0 }, { 1, 0 } }, .n_deaths = 1 });
}

static void
reader_while_a_place_changes_its_identity(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "a reader, an evicter, a writer of something else",
        .proc = { { 2, 1 }, { 0, 0 }, { 1, 0 }, { 1, 0 } }, .first_id = 1 });
}

/* An entry that is being filled still bears the identity of the one before it: a
 * rival for that must not push it out, for its owner goes on writing. */
static void
writers_over_places_with_an_old_identity(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "three writers of two identities", .old_id = 1,
        .proc = { { 1, 1 }, { 2, 2 }, { 2, 3 } } });
}

static void
all_of_them(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "two writers, an evicter, a reader",
        .proc = { { 1, 1 }, { 1, 2 }, { 1, 0 }, { 1, 0 } } });
}

static void
all_of_them_with_a_death(void **state)
{
    (void)state;
    model_explore(&(struct scenario){
        .name = "the same, one may die; a recovery is one step",
        .proc = { { 1, 1 }, { 1, 2 }, { 1, 0 }, { 1, 0 } }, .n_deaths = 1,
        .at_once = true });
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_writers_of_one_identity),
        cmocka_unit_test(evicter_and_writer_of_one_identity),
        cmocka_unit_test(reader_and_writer_of_one_identity),
        cmocka_unit_test(reader_while_a_place_changes_its_identity),
        cmocka_unit_test(writers_over_places_with_an_old_identity),
        cmocka_unit_test(all_of_them),
        cmocka_unit_test(all_of_them_with_a_death),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
