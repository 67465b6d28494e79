/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's profile files: the meaning of their text, and the selected profile. */
#include "s3-service.h"

#include "tier/s3/credentials/profile.h"

/* The text is in memory of exactly this size, so that a sanitizer reports a read behind the end. */
static struct kvt__s3_profile
read_text(const char *name, bool config, const char *text, size_t n)
{
    struct kvt__s3_profile profile = { 0 };
    char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    assert_int_equal(kvt__s3_profile_add(&profile, name, config, copy, n), 0);
    free(copy);
    return profile;
}

/* Check a setting of the profile; value NULL: unset. */
static void
expect(const char *name, bool config, const char *text, const char *key, const char *value)
{
    struct kvt__s3_profile profile = read_text(name, config, text, strlen(text));
    const char *got = profile.value[kvt__s3_profile_key(key)];

    if (value && got)
        assert_string_equal(got, value);
    else
        assert_true(value == got);
    kvt__s3_profile_fini(&profile);
}

/* ----------------------------------------------------------------------- text */

static void
settings_belong_to_the_section_above(void **state)
{
    static const char text[] = "region = none\n[a]\nregion=ra\n[b]\nregion = rb\n";

    (void)state;
    expect("a", false, text, "region", "ra");
    expect("b", false, text, "region", "rb");
    expect("c", false, text, "region", NULL);
    expect("a", false, text, "role_arn", NULL);
}

static void
sections_of_one_name_are_merged_and_the_last_setting_counts(void **state)
{
    static const char text[] = "[a]\nregion=1\nrole_arn=r\n[b]\nregion=2\n[a]\nregion=3\n";

    (void)state;
    expect("a", false, text, "region", "3");
    expect("a", false, text, "role_arn", "r");
}

static void
a_config_names_profiles_with_the_word(void **state)
{
    static const char text[] = "[default]\nregion=d\n[profile a]\nregion=a\n[b]\nregion=b\n"
                               "[ profile \t \"two words\" ]\nregion=t\n"
                               "[profilea]\nregion=x\n[sso-session a]\nregion=s\n"
                               "[services a]\nregion=v\n[profile a b]\nregion=ab\n";

    (void)state;
    expect("default", true, text, "region", "d");
    expect("a", true, text, "region", "a");
    expect("b", true, text, "region", NULL);
    expect("two words", true, text, "region", "t");
    expect("profile a", false, text, "region", "a");
    expect("default", true, "[profile default]\nregion=p\n", "region", "p");
}

static void
blanks_remarks_and_unknown_lines_do_not_count(void **state)
{
    static const char text[] =
        "# [a]\n; region=1\n[a] ; a remark\n  region = indented\n\tregion=too\n"
        "s3 =\n  region = nested\nregion\t=  value with # a remark\nno setting\n[broken\n"
        "aws_secret_access_key = with#and;inside=\nrole_arn = #\n= x\n\n"
        "external_id =;y\n";

    (void)state;
    expect("a", false, text, "region", "value with");
    expect("a", false, text, "aws_secret_access_key", NULL);
    expect("a", false, "[a]\naws_secret_access_key = with#and;inside=\n",
           "aws_secret_access_key", "with#and;inside=");
    expect("a", false, "[a]\nrole_arn = #\nexternal_id =;y\n", "role_arn", NULL);
    expect("a", false, "[a]\nrole_arn = #\nexternal_id =;y\n", "external_id", ";y");
    expect("a", false, "[a]\nREGION=big\n", "region", "big");
}

static void
other_systems_ends_of_lines_and_marks_are_read(void **state)
{
    (void)state;
    expect("a", false, "\xef\xbb\xbf[a]\r\nregion = x\r\n", "region", "x");
    expect("a", false, "[a]\nregion = at the end", "region", "at the end");
    expect("a", false, "", "region", NULL);
    expect("a", false, "[", "region", NULL);
}

static void
an_empty_setting_deletes_the_previous_value(void **state)
{
    (void)state;
    expect("a", false, "[a]\nregion=x\nregion=\n", "region", NULL);
}

static void
zero_bytes_end_nothing(void **state)
{
    static const char text[] = "[a]\n\0region=0\nregion=x\0y\n[b\0]\nregion=z\n";
    struct kvt__s3_profile profile = read_text("a", false, text, sizeof text - 1);

    (void)state;
    assert_string_equal(profile.value[KVT__PROFILE_REGION], "x");
    kvt__s3_profile_fini(&profile);
}

/* ---------------------------------------------------------------------- files */

static const char *
region(const struct asking *a)
{
    static char text[64];
    int err = kvt__s3_profile_text(&a->params, "region", text, sizeof text);

    assert_true(!err || err == -ENOENT);
    return err ? "none" : text;
}

static void
the_profile_is_configured_or_of_the_environment_or_default(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", "[default]\nregion=d\n[profile a]\nregion=a\n"
                               "[profile b]\nregion=b\n");
    assert_string_equal(region(a), "d");
    set(a, "AWS_PROFILE=a");
    assert_string_equal(region(a), "a");
    a->params.profile = "b";
    assert_string_equal(region(a), "b");
    a->params.profile = "c";
    assert_string_equal(region(a), "none");
    unset_all(a);
    set(a, "AWS_PROFILE=");
    a->params.profile = "";
    assert_string_equal(region(a), "d");
}

static void
credentials_take_precedence_over_the_config(void **state)
{
    struct asking *a = *state;
    char text[64];

    put_file(a, ".aws/config", "[default]\nregion=config\nendpoint_url=http://e\n");
    put_file(a, ".aws/credentials", "[default]\nregion=credentials\n");
    assert_string_equal(region(a), "credentials");
    assert_int_equal(kvt__s3_profile_text(&a->params, "endpoint_url", text, sizeof text),
                     0);
    assert_string_equal(text, "http://e");
    assert_int_equal(kvt__s3_profile_text(&a->params, "endpoint_url", text, 8),
                     -ENAMETOOLONG);
    assert_int_equal(kvt__s3_profile_text(&a->params, "no_such_key", text, 8), -ENOENT);
}

static void
the_environment_sets_the_paths_of_files(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", "[default]\nregion=home\n");
    put_file(a, ".aws/elsewhere", "[default]\nregion=elsewhere\n");
    set(a, "AWS_CONFIG_FILE=%s/.aws/elsewhere", a->dir.path);
    assert_string_equal(region(a), "elsewhere");
    unset_all(a);
    set(a, "AWS_CONFIG_FILE=~/.aws/elsewhere");
    assert_string_equal(region(a), "elsewhere");
    unset_all(a);
    set(a, "AWS_CONFIG_FILE=/no/such/file");
    assert_string_equal(region(a), "none");
    unset_all(a);
    a->environment[0] = "NO_HOME=1";
    assert_string_equal(region(a), "none");
}

/* A message about a file contains the file's name and no content. */
static void
an_invalid_profile_file_is_an_error(void **state)
{
    struct asking *a = *state;
    char path[512], text[64], *big = calloc(1, (1 << 20) + 1);

    assert_non_null(big);
    memset(big, 'x', (1 << 20) + 1);
    snprintf(path, sizeof path, "%s/.aws/config", a->dir.path);
    write_file(path, big, (1 << 20) + 1);
    assert_int_equal(kvt__s3_profile_text(&a->params, "region", text, sizeof text), -EFBIG);
    assert_non_null(strstr(kvt__why(), "/.aws/config"));
    write_file(path, big, 1 << 20);
    assert_string_equal(region(a), "none");
    free(big);
    write_file(path, "sec\0ret", 7);
    assert_int_equal(kvt__s3_profile_text(&a->params, "region", text, sizeof text),
                     -EBADMSG);
    assert_null(strstr(kvt__why(), "sec"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(kvt__s3_profile_text(&a->params, "region", text, sizeof text),
                     -EINVAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_belong_to_the_section_above),
        cmocka_unit_test(sections_of_one_name_are_merged_and_the_last_setting_counts),
        cmocka_unit_test(a_config_names_profiles_with_the_word),
        cmocka_unit_test(blanks_remarks_and_unknown_lines_do_not_count),
        cmocka_unit_test(other_systems_ends_of_lines_and_marks_are_read),
        cmocka_unit_test(an_empty_setting_deletes_the_previous_value),
        cmocka_unit_test(zero_bytes_end_nothing),
        ASKING(the_profile_is_configured_or_of_the_environment_or_default),
        ASKING(credentials_take_precedence_over_the_config),
        ASKING(the_environment_sets_the_paths_of_files),
        ASKING(an_invalid_profile_file_is_an_error),
    };

    return cmocka_run_group_tests_name("s3, profiles", tests, NULL, NULL);
}
