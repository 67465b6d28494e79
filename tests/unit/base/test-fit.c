/* SPDX-License-Identifier: Apache-2.0
 *
 * The fit of two coefficients to times. */
#include "kvt-test.h"

#include "base/fit.h"

#define MS 1e6

static void
check(const struct kvt__fit *fit, double a, double b)
{
    if (fit->a < a * 0.99 || fit->a > a * 1.01 || fit->b < b * 0.99 || fit->b > b * 1.01)
        fail_msg("%g and %g instead of %g and %g", fit->a, fit->b, a, b);
}

static void
two_shapes_separate_the_parts(void **state)
{
    struct kvt__fit fit = { .a = 0 };

    (void)state;
    for (int i = 1; i < 20; i++)
        kvt__fit_add(&fit, 1, i, 10 * MS + 3 * MS * i, 0.7);
    check(&fit, 10 * MS, 3 * MS);
}

static void
equal_shapes_count_as_cost_of_the_second_part(void **state)
{
    struct kvt__fit fit = { .a = 0 };

    (void)state;
    for (int i = 0; i < 20; i++)
        kvt__fit_add(&fit, 1, 8, 40 * MS, 0.7);
    check(&fit, 0, 5 * MS);
}

static void
no_part_is_negative(void **state)
{
    struct kvt__fit fit = { .a = 0 };

    (void)state;
    kvt__fit_add(&fit, 1, 10, 20 * MS, 0.7); /* a falling line */
    kvt__fit_add(&fit, 1, 20, 15 * MS, 0.7);
    assert_true(fit.a == 0 && fit.b > 0);
    fit = (struct kvt__fit){ .a = 0 };
    kvt__fit_add(&fit, 1, 10, 10 * MS, 0.7); /* a line that begins below zero */
    kvt__fit_add(&fit, 1, 20, 35 * MS, 0.7);
    assert_true(fit.a == 0 && fit.b > 0);
}

static void
a_large_change_counts_at_once(void **state)
{
    struct kvt__fit fit = { .a = 0 };

    (void)state;
    for (int i = 1; i < 100; i++)
        kvt__fit_add(&fit, 1, i, 10 * MS + 3 * MS * i, 0.9);
    kvt__fit_add(&fit, 1, 10, 1000 * MS, 0.9);
    check(&fit, 0, 100 * MS);
    kvt__fit_add(&fit, 1, 10, 10 * MS, 0.9);
    check(&fit, 0, 1 * MS);
}

static void
noise_of_short_operations_changes_little(void **state)
{
    struct kvt__fit fit = { .a = 0 };

    (void)state;
    for (int i = 1; i < 100; i++)
        kvt__fit_add(&fit, 1, i, MS * i, 0.9);
    kvt__fit_add(&fit, 1, 1, 2.9 * MS, 0.9); /* three times the expected time */
    assert_true(fit.b > 0.9 * MS && fit.b < 1.1 * MS);
}

static void
earlier_results_count_until_a_measurement_contradicts(void **state)
{
    struct kvt__fit fit = { .a = 10 * MS, .b = 3 * MS };

    (void)state;
    kvt__fit_add(&fit, 1, 10, 50 * MS, 0.7); /* 40 were expected */
    assert_true(10 * fit.b + fit.a > 40 * MS && 10 * fit.b + fit.a < 50 * MS);
    fit = (struct kvt__fit){ .a = 10 * MS, .b = 3 * MS };
    kvt__fit_add(&fit, 1, 10, 400 * MS, 0.7);
    check(&fit, 0, 40 * MS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_shapes_separate_the_parts),
        cmocka_unit_test(equal_shapes_count_as_cost_of_the_second_part),
        cmocka_unit_test(no_part_is_negative),
        cmocka_unit_test(a_large_change_counts_at_once),
        cmocka_unit_test(noise_of_short_operations_changes_little),
        cmocka_unit_test(earlier_results_count_until_a_measurement_contradicts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
