/* SPDX-License-Identifier: Apache-2.0
 *
 * Error sentences. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kvt-test.h"
#include "kvtier.h"

#include "base/error.h"
#include "base/log.h"

static void
the_text_of_errno_follows_unless_the_sentence_ends(void **state)
{
    (void)state;
    assert_int_equal(kvt__fail(ENOENT, "open %s", "x"), -ENOENT);
    assert_string_equal(kvt__why(), "open x: No such file or directory");
    assert_int_equal(kvt__fail(EINVAL, "x is %d, not 7.", 3), -EINVAL);
    assert_string_equal(kvt__why(), "x is 3, not 7.");
    assert_string_equal(kvt_last_error(), kvt__why());
    assert_int_equal(kvt__fail(EIO, "%s", ""), -EIO);
    assert_string_equal(kvt__why(), ": Input/output error");
}

static void
the_last_sentence_may_be_part_of_the_next(void **state)
{
    (void)state;
    (void)kvt__fail(EIO, "inner.");
    assert_int_equal(kvt__fail(EIO, "outer (%s).", kvt__why()), -EIO);
    assert_string_equal(kvt__why(), "outer (inner.).");
    kvt__set_why("as it stands");
    assert_string_equal(kvt__why(), "as it stands");
}

static void
long_sentences_are_cut(void **state)
{
    char longer[2000];

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)kvt__fail(EIO, "%s", longer);
    assert_in_range(strlen(kvt__why()), 100, sizeof longer - 2);
    assert_int_equal(strspn(kvt__why(), "x"), strlen(kvt__why()));
    memset(longer, '.', sizeof longer - 1);
    (void)kvt__fail(EIO, "%s", longer);
    assert_in_range(strlen(kvt__why()), 100, sizeof longer - 2);
    kvt__set_why(longer);
    assert_in_range(strlen(kvt__why()), 100, sizeof longer - 2);
}

static void *
other_main(void *arg)
{
    char *before = arg;

    strcpy(before, kvt__why());
    (void)kvt__fail(EPERM, "another thread");
    return NULL;
}

static void
each_thread_has_its_own(void **state)
{
    char before[600] = "unset";
    pthread_t thread;

    (void)state;
    (void)kvt__fail(EIO, "mine.");
    assert_int_equal(pthread_create(&thread, NULL, other_main, before), 0);
    pthread_join(thread, NULL);
    assert_string_equal(before, "");
    assert_string_equal(kvt__why(), "mine.");
}

/* The first line of the log reads the level from the environment. */
static void
a_log_line_leaves_the_sentence_alone(void **state)
{
    (void)state;
    assert_int_equal(setenv("KVTIER_LOG_LEVEL", "no level", 1), 0);
    (void)kvt__fail(EIO, "mine.");
    kvt__log(KVT_LOG_DEBUG, "%s", kvt__why());
    assert_string_equal(kvt__why(), "mine.");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_of_errno_follows_unless_the_sentence_ends),
        cmocka_unit_test(the_last_sentence_may_be_part_of_the_next),
        cmocka_unit_test(long_sentences_are_cut),
        cmocka_unit_test(each_thread_has_its_own),
        cmocka_unit_test(a_log_line_leaves_the_sentence_alone),
    };

    return cmocka_run_group_tests_name("base error", tests, NULL, NULL);
}
