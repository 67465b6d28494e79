/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of credentials: the keys of each source, the order, and the message if no source has
 * keys. */
#include <sys/mman.h>
#include <unistd.h>

#include "s3-service.h"

static int
ask(struct asking *a, struct kvt__s3_keys **keys)
{
    struct kvt__s3_chain *chain;

    assert_int_equal(kvt__s3_chain_open(&a->params, &chain), 0);
    int err = kvt__s3_chain_get_keys(chain, keys);
    kvt__s3_chain_close(chain);
    return err;
}

static void
expect_asked(struct asking *a, const char *access)
{
    struct kvt__s3_keys *keys;

    if (ask(a, &keys))
        fail_msg("%s", kvt__why());
    assert_string_equal(keys->access, access);
    kvt__s3_keys_unref(keys);
}

/* ---------------------------------------------- configuration and environment */

static void
configured_keys_are_given_as_they_are(void **state)
{
    struct asking *a = *state;

    expect_not_set(a, kvt__s3_keys_from_configuration);
    a->params.access = a->params.secret = a->params.token = "";
    expect_not_set(a, kvt__s3_keys_from_configuration);
    a->params.access = "AK";
    expect_failure(a, kvt__s3_keys_from_configuration, "the secret key is missing");
    a->params.secret = SECRET;
    expect_answer(a, kvt__s3_keys_from_configuration, "AK", SECRET, NULL, INT64_MAX);
    a->params.token = SECRET "t";
    expect_answer(a, kvt__s3_keys_from_configuration, "AK", SECRET, SECRET "t", INT64_MAX);
    a->params.access = NULL;
    expect_failure(a, kvt__s3_keys_from_configuration, "the access key is missing");
}

static void
the_environment_has_keys_a_token_and_a_time(void **state)
{
    struct asking *a = *state;

    expect_not_set(a, kvt__s3_keys_from_environment);
    set(a, "AWS_ACCESS_KEY_ID=AKE");
    expect_failure(a, kvt__s3_keys_from_environment, "AWS_SECRET_ACCESS_KEY is not set");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET "=e");
    expect_answer(a, kvt__s3_keys_from_environment, "AKE", SECRET "=e", NULL, INT64_MAX);
    set(a, "AWS_SESSION_TOKEN=" SECRET "t");
    set(a, "AWS_CREDENTIAL_EXPIRATION=" LATER);
    expect_answer(a, kvt__s3_keys_from_environment, "AKE", SECRET "=e", SECRET "t", LATER_S);
    unset_all(a);
    set(a, "AWS_ACCESS_KEY_ID=");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET);
    expect_failure(a, kvt__s3_keys_from_environment, "AWS_ACCESS_KEY_ID is not set");
    set(a, "AWS_CREDENTIAL_EXPIRATION=" SECRET);
    a->variables[2][18] = 'A';
    a->variables[2][19] = '\0';
    expect_failure(a, kvt__s3_keys_from_environment, "AWS_CREDENTIAL_EXPIRATION");
}

/* -------------------------------------------------------------------- profiles */

static void
a_profile_has_keys(void **state)
{
    struct asking *a = *state;

    expect_not_set(a, kvt__s3_keys_from_profile);
    put_file(a, ".aws/credentials", "[default]\naws_access_key_id = AKD\n"
             "aws_secret_access_key = " SECRET "d\n[p]\naws_access_key_id=AKP\n"
             "aws_secret_access_key=" SECRET "p\naws_session_token=" SECRET "t\n"
             "[half]\naws_secret_access_key=" SECRET "h\n[none]\nregion=x\n");
    expect_answer(a, kvt__s3_keys_from_profile, "AKD", SECRET "d", NULL, INT64_MAX);
    a->params.profile = "p";
    expect_answer(a, kvt__s3_keys_from_profile, "AKP", SECRET "p", SECRET "t", INT64_MAX);
    a->params.profile = "half";
    expect_failure(a, kvt__s3_keys_from_profile, "but not aws_access_key_id");
    a->params.profile = "none";
    expect_failure(a, kvt__s3_keys_from_profile, "profile none has no keys");
    a->params.profile = NULL;
    set(a, "AWS_PROFILE=gone");
    expect_failure(a, kvt__s3_keys_from_profile, "there is no profile gone");
}

static void
a_default_profile_without_keys_is_not_set(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", "[default]\nregion = eu-west-1\n");
    expect_not_set(a, kvt__s3_keys_from_profile);
}

static void
a_profiles_program_gives_keys(void **state)
{
    struct asking *a = *state;
    char text[1024];

    snprintf(text, sizeof text, "[default]\ncredential_process = cat '%s/out put'\n"
             "[profile bad]\ncredential_process = sh -c 'echo " SECRET "; echo why >&2; "
             "exit 1'\n", a->dir.path);
    put_file(a, ".aws/config", text);
    put_file(a, "out put", "{\"Version\":1,\"AccessKeyId\":\"AKX\",\"SecretAccessKey\":\""
             SECRET "x\",\"SessionToken\":\"" SECRET "t\",\"Expiration\":\"" LATER "\"}\n");
    expect_answer(a, kvt__s3_keys_from_profile, "AKX", SECRET "x", SECRET "t", LATER_S);
    put_file(a, "out put", SECRET);
    expect_failure(a, kvt__s3_keys_from_profile, "no JSON object");
    a->params.profile = "bad";
    expect_failure(a, kvt__s3_keys_from_profile, "exited with 1: why");
}

static void
a_profile_for_sso_names_the_remedy(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", "[profile s]\nsso_session = x\nsso_account_id = 1\n"
             "[profile t]\nsso_start_url = x\naws_access_key_id = AK\n"
             "aws_secret_access_key = " SECRET "\n");
    a->params.profile = "s";
    expect_failure(a, kvt__s3_keys_from_profile, "credential_process = aws configure "
                   "export-credentials --profile s --format process");
    a->params.profile = "t";
    expect_answer(a, kvt__s3_keys_from_profile, "AK", SECRET, NULL, INT64_MAX);
}

/* ------------------------------------------------------------------- the order */

static int
any(struct service *s, const char *request, char *out, size_t room)
{
    if (*request == 'P' && strstr(request, "POST"))
        return sts(s, request, out, room);
    if (!strncmp(request, "GET /container ", 15))
        snprintf(out, room, "{\"AccessKeyId\":\"AKC\",\"SecretAccessKey\":\"" SECRET "\"}");
    else
        snprintf(out, room, strstr(request, "credentials/role ")
                     ? "{\"AccessKeyId\":\"AKI\",\"SecretAccessKey\":\"" SECRET "\"}"
                     : "role");
    return 200;
}

/* Configure the sources in reverse order: each new source has priority over all earlier sources. */
static void
the_first_source_that_has_keys_counts(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, any);
    put_file(a, "token", SECRET);
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u", a->service.port);
    expect_asked(a, "AKI");
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
        a->service.port);
    expect_asked(a, "AKC");
    set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", a->dir.path);
    set(a, "AWS_ROLE_ARN=arn");
    set(a, "AWS_ENDPOINT_URL_STS=http://127.0.0.1:%u", a->service.port);
    expect_asked(a, "AK5");
    put_file(a, ".aws/credentials", "[default]\naws_access_key_id=AKP\n"
             "aws_secret_access_key=" SECRET "\n");
    expect_asked(a, "AKP");
    set(a, "AWS_ACCESS_KEY_ID=AKE");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET);
    expect_asked(a, "AKE");
    a->params.access = "AKG";
    a->params.secret = SECRET;
    expect_asked(a, "AKG");
    service_stop(&a->service);
}

static void
a_source_that_fails_does_not_end_the_search(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, any);
    put_file(a, ".aws/config", "[default]\naws_access_key_id=half\n");
    set(a, "AWS_ACCESS_KEY_ID=half");
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
        a->service.port);
    expect_asked(a, "AKC");
    service_stop(&a->service);
}

/* The profile and the machine's role are different identities. */
static void
a_named_profile_that_fails_ends_the_search(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_keys *keys;

    service_start(&a->service, any);
    put_file(a, ".aws/config", "[profile half]\naws_access_key_id=half\n");
    for (int i = 0; i < 4; i++) {
        const char *name = i % 2 ? "half" : "gone";

        unset_all(a);
        set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u", a->service.port);
        set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
            a->service.port);
        a->params.profile = i < 2 ? name : NULL;
        if (i >= 2)
            set(a, "AWS_PROFILE=%s", name);
        assert_int_equal(ask(a, &keys), -ENOKEY);
        assert_string_equal(kvt__why(), i % 2
            ? "no keys for S3. Not set: configuration, environment. profile: profile half "
              "has aws_access_key_id but not aws_secret_access_key."
            : "no keys for S3. Not set: configuration, environment. profile: there is no "
              "profile gone.");
    }
    assert_int_equal(service_count(&a->service), 0);
    service_stop(&a->service);
}

/* Keys that the profile had earlier make no difference. */
static void
a_named_profile_that_fails_later_ends_the_search(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_chain *chain;
    struct kvt__s3_keys *keys;

    service_start(&a->service, any);
    put_file(a, ".aws/config", "[profile mine]\naws_access_key_id=AKM\n"
             "aws_secret_access_key=" SECRET "\n");
    set(a, "AWS_PROFILE=mine");
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
        a->service.port);
    assert_int_equal(kvt__s3_chain_open(&a->params, &chain), 0);
    assert_int_equal(kvt__s3_chain_get_keys(chain, &keys), 0);
    expect_keys(keys, "AKM", SECRET, NULL, INT64_MAX);
    put_file(a, ".aws/config", "");
    assert_int_equal(kvt__s3_chain_get_keys(chain, &keys), -ENOKEY);
    expect_why("there is no profile mine");
    assert_int_equal(service_count(&a->service), 0);
    kvt__s3_chain_close(chain);
    service_stop(&a->service);
}

static void
keys_that_have_expired_do_not_count(void **state)
{
    struct asking *a = *state;

    set(a, "AWS_ACCESS_KEY_ID=AKE");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET);
    set(a, "AWS_CREDENTIAL_EXPIRATION=2020-01-01T00:00:00Z");
    put_file(a, ".aws/credentials", "[default]\naws_access_key_id=AKP\n"
             "aws_secret_access_key=" SECRET "\n");
    expect_asked(a, "AKP");
}

static void
the_source_of_the_keys_is_used_alone_until_a_failure(void **state)
{
    static const char keys[] = "[default]\naws_access_key_id=AKP\n"
                               "aws_secret_access_key=" SECRET "\n";
    struct asking *a = *state;
    struct kvt__s3_keys *got;
    struct kvt__s3_chain *chain;

    service_start(&a->service, any);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
        a->service.port);
    assert_int_equal(kvt__s3_chain_open(&a->params, &chain), 0);
    assert_int_equal(kvt__s3_chain_get_keys(chain, &got), 0);
    expect_keys(got, "AKC", SECRET, NULL, INT64_MAX);
    put_file(a, ".aws/credentials", keys);
    assert_int_equal(kvt__s3_chain_get_keys(chain, &got), 0);
    expect_keys(got, "AKC", SECRET, NULL, INT64_MAX);
    service_stop(&a->service);
    assert_int_equal(kvt__s3_chain_get_keys(chain, &got), 0);
    expect_keys(got, "AKP", SECRET, NULL, INT64_MAX);
    kvt__s3_chain_close(chain);
}

/* The caller may free the parameters after open. */
static void
a_chain_keeps_copies(void **state)
{
    struct asking *a = *state;
    char access[] = "AKG", secret[] = SECRET;
    struct kvt__s3_keys *got;
    struct kvt__s3_chain *chain;

    a->params.access = access;
    a->params.secret = secret;
    assert_int_equal(kvt__s3_chain_open(&a->params, &chain), 0);
    memset(access, 'x', sizeof access);
    memset(secret, 'x', sizeof secret);
    memset(a->variables, 'x', sizeof a->variables);
    assert_int_equal(kvt__s3_chain_get_keys(chain, &got), 0);
    kvt__s3_chain_close(chain);
    expect_keys(got, "AKG", SECRET, NULL, INT64_MAX);
    kvt__s3_chain_close(NULL);
}

/* ----------------------------------------------------------------- core dumps */

/* Return true if the mapping of this address has the flag dd, "do not dump". */
static bool
is_left_out_of_dumps(const void *at)
{
    uintptr_t begin, end, address = (uintptr_t)at;
    bool is_here = false, left_out = false;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "re");

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_here = address >= begin && address < end;
        else if (is_here && !strncmp(line, "VmFlags:", 8))
            left_out = strstr(line, " dd") != NULL;
    }
    fclose(f);
    return left_out;
}

/* qemu-user does not forward the advice to the kernel. */
static bool
advice_reaches_the_kernel(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);

    assert_true(page != MAP_FAILED && !madvise(page, bytes, MADV_DONTDUMP));
    bool reaches = is_left_out_of_dumps(page);
    munmap(page, bytes);
    return reaches;
}

static void
keys_are_left_out_of_core_dumps(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_keys *keys;

    if (!advice_reaches_the_kernel())
        skip();
    assert_false(is_left_out_of_dumps(a));
    a->params.access = "AKG";
    a->params.secret = SECRET;
    a->params.token = SECRET "-token";
    assert_int_equal(ask(a, &keys), 0);
    assert_true(is_left_out_of_dumps(keys->access));
    assert_true(is_left_out_of_dumps(keys->secret));
    assert_true(is_left_out_of_dumps(keys->token));
    assert_true(is_left_out_of_dumps(keys->signing.key));
    kvt__s3_keys_unref(keys);
    struct kvt__s3_fetch *fetch = kvt__s3_fetch_new();
    assert_true(is_left_out_of_dumps(fetch->text));
    assert_true(is_left_out_of_dumps(fetch->text + KVT__S3_FETCH_ROOM));
    kvt__s3_fetch_free(fetch);
    kvt__s3_fetch_free(NULL);
}

/* ------------------------------------------------------------------- no keys */

static void
without_a_source_the_message_names_all_sources(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_keys *keys;

    set(a, "AWS_EC2_METADATA_DISABLED=true");
    assert_int_equal(ask(a, &keys), -ENOKEY);
    assert_string_equal(kvt__why(), "no keys for S3. Not set: configuration, environment, "
                        "profile, web identity, container. EC2 metadata: disabled by "
                        "AWS_EC2_METADATA_DISABLED.");
}

/* Each source has a sentence that is too long; the message must contain all sources. */
static void
the_message_lists_all_failed_sources(void **state)
{
    static const char *const names[] = { " configuration: the secret key is missing.",
                                         " environment: AWS_", " profile: ",
                                         " web identity: ", " container: ",
                                         " EC2 metadata: " };
    struct asking *a = *state;
    struct kvt__s3_keys *keys;
    char deep[300], text[400];

    memset(deep, 'x', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    a->params.access = "AKG";
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET);
    snprintf(text, sizeof text, "[default]\ncredential_process = "
             "sh -c 'echo %s >&2; exit 1' " SECRET "\n", deep);
    put_file(a, ".aws/config", text);
    set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=/%s", deep);
    set(a, "AWS_ROLE_ARN=arn");
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://%.200s/" SECRET, deep);
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=" SECRET);
    assert_int_equal(ask(a, &keys), -ENOKEY);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_why(names[i]);
    assert_null(strstr(kvt__why(), "Not set"));
    expect_why("...");
    assert_int_equal(kvt__why()[strlen(kvt__why()) - 1], '.');
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        ASKING(configured_keys_are_given_as_they_are),
        ASKING(the_environment_has_keys_a_token_and_a_time),
        ASKING(a_profile_has_keys),
        ASKING(a_default_profile_without_keys_is_not_set),
        ASKING(a_profiles_program_gives_keys),
        ASKING(a_profile_for_sso_names_the_remedy),
        ASKING(the_first_source_that_has_keys_counts),
        ASKING(a_source_that_fails_does_not_end_the_search),
        ASKING(a_named_profile_that_fails_ends_the_search),
        ASKING(a_named_profile_that_fails_later_ends_the_search),
        ASKING(keys_that_have_expired_do_not_count),
        ASKING(the_source_of_the_keys_is_used_alone_until_a_failure),
        ASKING(a_chain_keeps_copies),
        ASKING(keys_are_left_out_of_core_dumps),
        ASKING(without_a_source_the_message_names_all_sources),
        ASKING(the_message_lists_all_failed_sources),
    };

    return cmocka_run_group_tests_name("s3, credentials", tests, NULL, NULL);
}
