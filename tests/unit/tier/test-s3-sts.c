/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys from STS, for roles of profiles and for web identities, and the address of STS. */
#include <sys/stat.h>
#include <unistd.h>

#include "s3-service.h"

/* ----------------------------------------------------------------------- roles */

static void
start_sts(struct asking *a, service_fn *answer)
{
    service_start(&a->service, answer);
    set(a, "AWS_ENDPOINT_URL_STS=http://127.0.0.1:%u", a->service.port);
    set(a, "AWS_ENDPOINT_URL=http://127.0.0.1:1/nobody");
}

static const char roles[] =
    "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
    "external_id = " SECRET " id\nduration_seconds = 900\nrole_session_name = me@here\n"
    "region = eu-west-2\n"
    "[profile base]\naws_access_key_id = AKB\naws_secret_access_key = " SECRET "b\n"
    "aws_session_token = " SECRET "bt\n"
    "[profile two]\nrole_arn = arn2\nsource_profile = default\n"
    "[profile self]\nrole_arn = arns\nsource_profile = self\naws_access_key_id = AKS\n"
    "aws_secret_access_key = " SECRET "s\n"
    "[profile both]\nrole_arn = arnb\nsource_profile = self\n"
    "[profile l1]\nrole_arn = x\nsource_profile = l2\n"
    "[profile l2]\nrole_arn = x\nsource_profile = l3\n"
    "[profile l3]\nrole_arn = x\nsource_profile = l1\n"
    "[profile lone]\nrole_arn = x\nsource_profile = lone\n"
    "[profile gone]\nrole_arn = x\nsource_profile = not-there\n"
    "[profile empty]\nrole_arn = x\nsource_profile = nothing\n[profile nothing]\n"
    "[profile mfa]\nrole_arn = x\nsource_profile = base\nmfa_serial = y\n"
    "[profile alone]\nrole_arn = x\n"
    "[profile env]\nrole_arn = arne\ncredential_source = Environment\n"
    "[profile ecs]\nrole_arn = arnc\ncredential_source = EcsContainer\n"
    "[profile ec2]\nrole_arn = arn2\ncredential_source = Ec2InstanceMetadata\n"
    "[profile odd]\nrole_arn = arne\ncredential_source = Else\n";

static void
a_role_is_requested_with_the_keys_of_its_source(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    put_file(a, ".aws/config", roles);
    expect_answer(a, kvt__s3_keys_from_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "Action=AssumeRole&Version=2011-06-15&"
                            "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"
                            "RoleSessionName=me%40here&"
                            "DurationSeconds=900&ExternalId=" SECRET "%20id\n"));
    assert_true(service_saw(&a->service, "AWS4-HMAC-SHA256 Credential=AKB/"));
    assert_true(service_saw(&a->service, "/eu-west-2/sts/aws4_request"));
    assert_true(service_saw(&a->service, "x-amz-security-token: " SECRET "bt\r\n"));
    assert_true(service_saw(&a->service, "x-amz-content-sha256: "));
    assert_false(service_saw(&a->service, "UNSIGNED"));
    assert_true(service_saw(&a->service, "application/x-www-form-urlencoded"));
    service_stop(&a->service);
}

static void
a_role_can_have_a_role_as_source(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    put_file(a, ".aws/config", roles);
    a->params.profile = "two";
    a->params.region = "us-west-2";
    expect_answer(a, kvt__s3_keys_from_profile, "AK2", SECRET "2", SECRET "t2", LATER_S);
    assert_true(service_saw(&a->service, "Credential=AKB/"));
    assert_true(service_saw(&a->service, "Credential=AK1/"));
    assert_true(service_saw(&a->service, "/us-west-2/sts/aws4_request"));
    assert_true(service_saw(&a->service, "RoleArn=arn2&RoleSessionName=kvtier\n"));
    assert_int_equal(service_count(&a->service), 2);
    service_stop(&a->service);
}

static void
a_profile_can_be_its_own_source_if_it_has_keys(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    put_file(a, ".aws/config", roles);
    a->params.profile = "self";
    expect_answer(a, kvt__s3_keys_from_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "Credential=AKS/"));
    assert_int_equal(service_count(&a->service), 1);
    a->params.profile = "both"; /* keys take precedence over a role of the same source */
    expect_answer(a, kvt__s3_keys_from_profile, "AK2", SECRET "2", SECRET "t2", LATER_S);
    assert_int_equal(service_count(&a->service), 2);
    service_stop(&a->service);
}

static void
a_role_without_a_source_is_an_error(void **state)
{
    static const struct {
        const char *profile, *why;
    } cases[] = {
        { "l1", "profile l1 is its own source_profile by way of l3" },
        { "lone", "profile lone is its own source_profile but has no keys" },
        { "gone", "there is no profile not-there" },
        { "empty", "profile nothing has no keys" },
        { "mfa", "mfa_serial" },
        { "alone", "needs one of source_profile" },
        { "env", "credential_source Environment is not set" },
        { "ecs", "credential_source EcsContainer is not set" },
        { "ec2", "AWS_EC2_METADATA_DISABLED" },
        { "odd", "none of Environment" },
    };
    struct asking *a = *state;
    char many[1024] = "";

    put_file(a, ".aws/config", roles);
    set(a, "AWS_EC2_METADATA_DISABLED=true");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a->params.profile = cases[i].profile;
        expect_failure(a, kvt__s3_keys_from_profile, cases[i].why);
    }
    for (int i = 0; i < 9; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many),
                 "[profile %d]\nrole_arn=x\nsource_profile=%d\n", i, i + 1);
    put_file(a, ".aws/config", many);
    a->params.profile = "0";
    expect_failure(a, kvt__s3_keys_from_profile, "more than 7 source_profiles");
}

static void
a_roles_source_can_be_the_environment(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    put_file(a, ".aws/config", roles);
    set(a, "AWS_ACCESS_KEY_ID=AKE");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET "e");
    set(a, "AWS_ROLE_SESSION_NAME=session");
    a->params.profile = "env";
    expect_answer(a, kvt__s3_keys_from_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "Credential=AKE/"));
    assert_true(service_saw(&a->service, "RoleSessionName=session"));
    assert_true(service_saw(&a->service, "/us-east-1/sts/"));
    service_stop(&a->service);
}

/* ---------------------------------------------------------------- web identity */

static void
a_token_is_read_again_for_each_question(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    expect_not_set(a, kvt__s3_keys_from_web_identity);
    set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", a->dir.path);
    expect_failure(a, kvt__s3_keys_from_web_identity, "AWS_ROLE_ARN is not set");
    set(a, "AWS_ROLE_ARN=arn:r");
    expect_failure(a, kvt__s3_keys_from_web_identity, "/token: No such file");
    put_file(a, "token", SECRET ".a+b/c\n");
    expect_answer(a, kvt__s3_keys_from_web_identity, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "Action=AssumeRoleWithWebIdentity&"
                            "Version=2011-06-15&RoleArn=arn%3Ar&RoleSessionName=kvtier&"
                            "WebIdentityToken="
                            SECRET ".a%2Bb%2Fc\n"));
    assert_false(service_saw(&a->service, "uthorization:"));
    put_file(a, "token", SECRET ".other");
    expect_answer(a, kvt__s3_keys_from_web_identity, "AK2", SECRET "2", SECRET "t2", LATER_S);
    assert_true(service_saw(&a->service, "WebIdentityToken=" SECRET ".other\n"));
    service_stop(&a->service);
}

static void
a_profile_can_have_a_web_identity(void **state)
{
    struct asking *a = *state;
    char text[512];

    start_sts(a, sts);
    snprintf(text, sizeof text, "[default]\nrole_arn = arn\nweb_identity_token_file = "
             "%s/token\nrole_session_name = me\n", a->dir.path);
    put_file(a, ".aws/config", text);
    put_file(a, "token", SECRET);
    expect_answer(a, kvt__s3_keys_from_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "RoleSessionName=me&WebIdentityToken=" SECRET));
    service_stop(&a->service);
}

static int
refusing_sts(struct service *s, const char *request, char *out, size_t room)
{
    (void)s;
    if (strstr(request, "SessionName=echo"))
        snprintf(out, room, "<ErrorResponse><Error><Code>Bad</Code><Message>no: " SECRET
                 "-a-long-token</Message></Error></ErrorResponse>");
    else if (strstr(request, "SessionName=junk"))
        snprintf(out, room, "<html>" SECRET);
    else
        snprintf(out, room, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not "
                 "authorized\nto &lt;assume&gt;</Message></Error></ErrorResponse>");
    return 403;
}

static void
expect_refusal(struct asking *a, const char *session, const char *why)
{
    unset_all(a);
    set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", a->dir.path);
    set(a, "AWS_ROLE_ARN=arn:r");
    set(a, "AWS_ENDPOINT_URL_STS=http://127.0.0.1:%u/", a->service.port);
    set(a, "AWS_ROLE_SESSION_NAME=%s", session);
    expect_failure(a, kvt__s3_keys_from_web_identity, why);
}

static void
a_refusal_of_sts_is_reported_with_code_and_message(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, refusing_sts);
    put_file(a, "token", SECRET "-a-long-token");
    expect_refusal(a, "plain", " answered 403 AccessDenied: Not authorized");
    expect_refusal(a, "echo", " answered 403.");
    expect_refusal(a, "junk", " answered 403.");
    assert_int_equal(service_count(&a->service), 3);
    service_stop(&a->service);
}

static int
sts_that_stumbles(struct service *s, const char *request, char *out, size_t room)
{
    return service_count(s) == 1 ? 503 : sts(s, request, out, room);
}

static int
sts_that_is_down(struct service *s, const char *request, char *out, size_t room)
{
    (void)s;
    (void)request;
    (void)out;
    (void)room;
    return 500;
}

static void
a_fault_of_sts_is_tried_again_once(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", roles);
    start_sts(a, sts_that_stumbles);
    expect_answer(a, kvt__s3_keys_from_profile, "AK2", SECRET "2", SECRET "t2", LATER_S);
    service_stop(&a->service);
    unset_all(a);
    start_sts(a, sts_that_is_down);
    expect_failure(a, kvt__s3_keys_from_profile, " answered 500.");
    assert_int_equal(service_count(&a->service), 2);
    service_stop(&a->service);
}

static int
sts_without_keys(struct service *s, const char *request, char *out, size_t room)
{
    (void)s;
    (void)request;
    snprintf(out, room, "<a><Credentials><SecretAccessKey>" SECRET "</SecretAccessKey>"
             "</Credentials></a>");
    return 200;
}

static void
an_answer_of_sts_without_keys_is_an_error(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", roles);
    start_sts(a, sts_without_keys);
    expect_failure(a, kvt__s3_keys_from_profile, "without credentials");
    service_stop(&a->service);
}

/* ------------------------------------------------------------ address of STS */

static void
expect_sts(struct asking *a, const char *profile_region, const char *region,
           const char *host)
{
    char got[64];
    struct kvt__s3_url url;

    assert_int_equal(kvt__s3_sts_url(&a->params, profile_region, got, &url), 0);
    assert_string_equal(got, region);
    assert_string_equal(url.host, host);
    assert_true(url.tls);
}

static void
sts_has_the_endpoint_of_the_region(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_url url;
    char region[64];

    expect_sts(a, NULL, "us-east-1", "sts.us-east-1.amazonaws.com");
    expect_sts(a, "eu-west-1", "eu-west-1", "sts.eu-west-1.amazonaws.com");
    set(a, "AWS_DEFAULT_REGION=eu-west-2");
    expect_sts(a, "eu-west-1", "eu-west-2", "sts.eu-west-2.amazonaws.com");
    set(a, "AWS_REGION=cn-north-1");
    expect_sts(a, "eu-west-1", "cn-north-1", "sts.cn-north-1.amazonaws.com.cn");
    a->params.region = "eusc-de-east-1";
    expect_sts(a, "eu-west-1", "eusc-de-east-1", "sts.eusc-de-east-1.amazonaws.eu");
    a->params.region = "us-isob-east-1";
    expect_sts(a, NULL, "us-isob-east-1", "sts.us-isob-east-1.sc2s.sgov.gov");
    a->params.region = "evil.example.com/";
    assert_int_equal(kvt__s3_sts_url(&a->params, NULL, region, &url), -EINVAL);
    a->params.region = "x";
    set(a, "AWS_ENDPOINT_URL=https://store:8443/base");
    expect_sts(a, NULL, "x", "store:8443");
    set(a, "AWS_ENDPOINT_URL_STS=https://sts:9000");
    expect_sts(a, NULL, "x", "sts:9000");
    a->environment[a->n_variables - 1] = "AWS_ENDPOINT_URL_STS=sts";
    assert_int_equal(kvt__s3_sts_url(&a->params, NULL, region, &url), -EINVAL);
    expect_why("AWS_ENDPOINT_URL_STS");
}

static void
sts_is_chosen_by_fips_and_dualstack(void **state)
{
    static const struct {
        const char *region, *fips, *dualstack, *host;
    } rows[] = {
        { "us-east-1", "false", "FALSE", "sts.us-east-1.amazonaws.com" },
        { "us-east-1", "True", "false", "sts-fips.us-east-1.amazonaws.com" },
        { "us-east-1", "false", "true", "sts.us-east-1.api.aws" },
        { "us-east-1", "true", "true", "sts-fips.us-east-1.api.aws" },
        { "us-gov-west-1", "true", "false", "sts.us-gov-west-1.amazonaws.com" },
        { "us-gov-west-1", "true", "true", "sts-fips.us-gov-west-1.api.aws" },
        { "eusc-de-east-1", "false", "true",
          "sts.eusc-de-east-1.api.amazonwebservices.eu" },
    };
    struct asking *a = *state;
    struct kvt__s3_url url;
    char text[256], region[64];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        a->params.region = rows[i].region;
        for (int profile = 0; profile < 2; profile++) {
            unset_all(a);
            snprintf(text, sizeof text, "[default]\nuse_fips_endpoint = %s\n"
                     "use_dualstack_endpoint = %s\n", profile ? rows[i].fips : "true",
                     profile ? rows[i].dualstack : "true");
            put_file(a, ".aws/config", text);
            if (!profile) {
                set(a, "AWS_USE_FIPS_ENDPOINT=%s", rows[i].fips);
                set(a, "AWS_USE_DUALSTACK_ENDPOINT=%s", rows[i].dualstack);
            }
            expect_sts(a, NULL, rows[i].region, rows[i].host);
        }
    }
    unset_all(a);
    set(a, "AWS_USE_FIPS_ENDPOINT=yes");
    assert_int_equal(kvt__s3_sts_url(&a->params, NULL, region, &url), -EINVAL);
    expect_why("AWS_USE_FIPS_ENDPOINT is neither true nor false");
}

/* A profile may demand FIPS endpoints: an unreadable profile does not mean "no". */
static void
a_profile_that_cannot_be_read_is_no_choice_of_endpoints(void **state)
{
    static const char *const files[] = { "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE" };
    struct asking *a = *state;
    bool demanded = true;

    for (size_t i = 0; i < 2; i++) {
        unset_all(a);
        set(a, "%s=%s", files[i], a->dir.path); /* a directory */
        assert_true(kvt__s3_use_fips(&a->params, &demanded) < 0);
        expect_why("use_fips_endpoint of the profile cannot be read");
        expect_why("AWS_USE_FIPS_ENDPOINT is not set");
        expect_why(a->dir.path);
        assert_true(kvt__s3_use_dualstack(&a->params, &demanded) < 0);
        expect_why("use_dualstack_endpoint of the profile cannot be read");
        set(a, "AWS_USE_FIPS_ENDPOINT=false");
        assert_int_equal(kvt__s3_use_fips(&a->params, &demanded), 0);
        assert_false(demanded);
    }
    unset_all(a);
    set(a, "AWS_CONFIG_FILE=%s/absent/config", a->dir.path);
    set(a, "AWS_SHARED_CREDENTIALS_FILE=/dev/null");
    demanded = true;
    assert_int_equal(kvt__s3_use_fips(&a->params, &demanded), 0);
    assert_false(demanded);
}

/* A container often runs as another user than the owner of $HOME. */
static void
a_profile_in_a_home_of_another_user_is_none(void **state)
{
    struct asking *a = *state;
    bool demanded = true;

    unset_all(a);
    put_file(a, ".aws/config", "[default]\nuse_fips_endpoint = true\n");
    assert_int_equal(kvt__s3_use_fips(&a->params, &demanded), 0);
    assert_true(demanded);
    assert_int_equal(chmod(a->dir.path, 0), 0);
    bool root = !geteuid();
    assert_true(!root || !seteuid(65534));
    int err = kvt__s3_use_fips(&a->params, &demanded);
    assert_true(!root || !seteuid(0));
    assert_int_equal(chmod(a->dir.path, 0700), 0);
    assert_int_equal(err, 0);
    assert_false(demanded);
}

/* A token would be sent unencrypted. */
static void
sts_is_never_requested_from_a_plain_endpoint_of_the_store(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, sts);
    put_file(a, "token", SECRET "-a-long-token");
    set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", a->dir.path);
    set(a, "AWS_ROLE_ARN=arn:r");
    set(a, "AWS_ENDPOINT_URL=HTTP://127.0.0.1:%u/", a->service.port);
    expect_failure(a, kvt__s3_keys_from_web_identity, "Set AWS_ENDPOINT_URL_STS");
    assert_int_equal(service_count(&a->service), 0);
    service_stop(&a->service);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        ASKING(a_role_is_requested_with_the_keys_of_its_source),
        ASKING(a_role_can_have_a_role_as_source),
        ASKING(a_profile_can_be_its_own_source_if_it_has_keys),
        ASKING(a_role_without_a_source_is_an_error),
        ASKING(a_roles_source_can_be_the_environment),
        ASKING(a_token_is_read_again_for_each_question),
        ASKING(a_profile_can_have_a_web_identity),
        ASKING(a_refusal_of_sts_is_reported_with_code_and_message),
        ASKING(a_fault_of_sts_is_tried_again_once),
        ASKING(an_answer_of_sts_without_keys_is_an_error),
        ASKING(sts_has_the_endpoint_of_the_region),
        ASKING(sts_is_chosen_by_fips_and_dualstack),
        ASKING(a_profile_that_cannot_be_read_is_no_choice_of_endpoints),
        ASKING(a_profile_in_a_home_of_another_user_is_none),
        ASKING(sts_is_never_requested_from_a_plain_endpoint_of_the_store),
    };

    return cmocka_run_group_tests_name("s3, STS", tests, NULL, NULL);
}
