/* SPDX-License-Identifier: Apache-2.0
 *
 * The chain of credentials: what each source gives, roles by STS, the order, and what is
 * said when there are none. */
#include "s3-service.h"

static int
ask(struct asking *a, struct kvt__s3_keys **keys)
{
    struct kvt__s3_chain *chain;

    assert_int_equal(kvt__s3_chain_open(&a->params, &chain), 0);
    int err = kvt__s3_chain_ask(chain, keys);
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

/* --------------------------------------------------------------- written down */

static void
configured_keys_are_given_as_they_are(void **state)
{
    struct asking *a = *state;

    expect_not_set(a, kvt__s3_ask_configured);
    a->params.access = a->params.secret = a->params.token = "";
    expect_not_set(a, kvt__s3_ask_configured);
    a->params.access = "AK";
    expect_failure(a, kvt__s3_ask_configured, "the secret key is missing");
    a->params.secret = SECRET;
    expect_answer(a, kvt__s3_ask_configured, "AK", SECRET, NULL, INT64_MAX);
    a->params.token = SECRET "t";
    expect_answer(a, kvt__s3_ask_configured, "AK", SECRET, SECRET "t", INT64_MAX);
    a->params.access = NULL;
    expect_failure(a, kvt__s3_ask_configured, "the access key is missing");
}

static void
the_environment_has_keys_a_token_and_a_time(void **state)
{
    struct asking *a = *state;

    expect_not_set(a, kvt__s3_ask_environment);
    set(a, "AWS_ACCESS_KEY_ID=AKE");
    expect_failure(a, kvt__s3_ask_environment, "AWS_SECRET_ACCESS_KEY is not set");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET "=e");
    expect_answer(a, kvt__s3_ask_environment, "AKE", SECRET "=e", NULL, INT64_MAX);
    set(a, "AWS_SESSION_TOKEN=" SECRET "t");
    set(a, "AWS_CREDENTIAL_EXPIRATION=" LATER);
    expect_answer(a, kvt__s3_ask_environment, "AKE", SECRET "=e", SECRET "t", LATER_S);
    unset_all(a);
    set(a, "AWS_ACCESS_KEY_ID=");
    set(a, "AWS_SECRET_ACCESS_KEY=" SECRET);
    expect_failure(a, kvt__s3_ask_environment, "AWS_ACCESS_KEY_ID is not set");
    set(a, "AWS_CREDENTIAL_EXPIRATION=" SECRET);
    a->variables[2][18] = 'A';
    a->variables[2][19] = '\0';
    expect_failure(a, kvt__s3_ask_environment, "AWS_CREDENTIAL_EXPIRATION");
}

/* -------------------------------------------------------------------- profiles */

static void
a_profile_has_keys(void **state)
{
    struct asking *a = *state;

    expect_not_set(a, kvt__s3_ask_profile);
    put_file(a, ".aws/credentials", "[default]\naws_access_key_id = AKD\n"
             "aws_secret_access_key = " SECRET "d\n[p]\naws_access_key_id=AKP\n"
             "aws_secret_access_key=" SECRET "p\naws_session_token=" SECRET "t\n"
             "[half]\naws_secret_access_key=" SECRET "h\n[none]\nregion=x\n");
    expect_answer(a, kvt__s3_ask_profile, "AKD", SECRET "d", NULL, INT64_MAX);
    a->params.profile = "p";
    expect_answer(a, kvt__s3_ask_profile, "AKP", SECRET "p", SECRET "t", INT64_MAX);
    a->params.profile = "half";
    expect_failure(a, kvt__s3_ask_profile, "but not aws_access_key_id");
    a->params.profile = "none";
    expect_failure(a, kvt__s3_ask_profile, "profile none has no keys");
    a->params.profile = NULL;
    set(a, "AWS_PROFILE=gone");
    expect_failure(a, kvt__s3_ask_profile, "there is no profile gone");
}

static void
a_default_profile_without_keys_is_not_set(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", "[default]\nregion = eu-west-1\n");
    expect_not_set(a, kvt__s3_ask_profile);
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
    expect_answer(a, kvt__s3_ask_profile, "AKX", SECRET "x", SECRET "t", LATER_S);
    put_file(a, "out put", SECRET);
    expect_failure(a, kvt__s3_ask_profile, "no JSON object");
    a->params.profile = "bad";
    expect_failure(a, kvt__s3_ask_profile, "exited with 1: why");
}

static void
a_profile_for_sso_says_what_to_do(void **state)
{
    struct asking *a = *state;

    put_file(a, ".aws/config", "[profile s]\nsso_session = x\nsso_account_id = 1\n"
             "[profile t]\nsso_start_url = x\naws_access_key_id = AK\n"
             "aws_secret_access_key = " SECRET "\n");
    a->params.profile = "s";
    expect_failure(a, kvt__s3_ask_profile, "credential_process = aws configure "
                   "export-credentials --profile s --format process");
    a->params.profile = "t";
    expect_answer(a, kvt__s3_ask_profile, "AK", SECRET, NULL, INT64_MAX);
}

/* ------------------------------------------------------------------------- STS */

/* Gives keys AK1, AK2 ... */
static int
sts(struct service *s, const char *request, char *out, size_t room)
{
    const char *body = strstr(request, "\r\n\r\n") + 4;
    const char *action = strncmp(body, "Action=AssumeRole&", 18)
                             ? "AssumeRoleWithWebIdentity" : "AssumeRole";

    if (strncmp(request, "POST / HTTP/1.1\r\n", 17) || !strstr(body, action)) {
        snprintf(out, room, "<ErrorResponse><Error><Code>InvalidAction</Code>"
                 "<Message>what</Message></Error></ErrorResponse>");
        return 400;
    }
    unsigned n = service_count(s);
    snprintf(out, room, "<%sResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
             "<%sResult><Credentials><AccessKeyId>AK%u</AccessKeyId>"
             "<SecretAccessKey>" SECRET "%u</SecretAccessKey>"
             "<SessionToken>" SECRET "t%u</SessionToken><Expiration>" LATER "</Expiration>"
             "</Credentials></%sResult></%sResponse>", action, action, n, n, n, action,
             action);
    return 200;
}

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
a_role_is_asked_for_with_the_keys_of_its_source(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    put_file(a, ".aws/config", roles);
    expect_answer(a, kvt__s3_ask_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
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
roles_stand_on_roles(void **state)
{
    struct asking *a = *state;

    start_sts(a, sts);
    put_file(a, ".aws/config", roles);
    a->params.profile = "two";
    a->params.region = "us-west-2";
    expect_answer(a, kvt__s3_ask_profile, "AK2", SECRET "2", SECRET "t2", LATER_S);
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
    expect_answer(a, kvt__s3_ask_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "Credential=AKS/"));
    assert_int_equal(service_count(&a->service), 1);
    a->params.profile = "both"; /* the keys of a source go before its role */
    expect_answer(a, kvt__s3_ask_profile, "AK2", SECRET "2", SECRET "t2", LATER_S);
    assert_int_equal(service_count(&a->service), 2);
    service_stop(&a->service);
}

static void
a_role_without_a_source_says_so(void **state)
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
        expect_failure(a, kvt__s3_ask_profile, cases[i].why);
    }
    for (int i = 0; i < 9; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many),
                 "[profile %d]\nrole_arn=x\nsource_profile=%d\n", i, i + 1);
    put_file(a, ".aws/config", many);
    a->params.profile = "0";
    expect_failure(a, kvt__s3_ask_profile, "more than 7 source_profiles");
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
    expect_answer(a, kvt__s3_ask_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
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
    expect_not_set(a, kvt__s3_ask_web_identity);
    set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", a->dir.path);
    expect_failure(a, kvt__s3_ask_web_identity, "AWS_ROLE_ARN is not set");
    set(a, "AWS_ROLE_ARN=arn:r");
    expect_failure(a, kvt__s3_ask_web_identity, "/token: No such file");
    put_file(a, "token", SECRET ".a+b/c\n");
    expect_answer(a, kvt__s3_ask_web_identity, "AK1", SECRET "1", SECRET "t1", LATER_S);
    assert_true(service_saw(&a->service, "Action=AssumeRoleWithWebIdentity&"
                            "Version=2011-06-15&RoleArn=arn%3Ar&RoleSessionName=kvtier&"
                            "WebIdentityToken="
                            SECRET ".a%2Bb%2Fc\n"));
    assert_false(service_saw(&a->service, "uthorization:"));
    put_file(a, "token", SECRET ".other");
    expect_answer(a, kvt__s3_ask_web_identity, "AK2", SECRET "2", SECRET "t2", LATER_S);
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
    expect_answer(a, kvt__s3_ask_profile, "AK1", SECRET "1", SECRET "t1", LATER_S);
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
    set(a, "AWS_ENDPOINT_URL=http://127.0.0.1:%u/", a->service.port);
    set(a, "AWS_ROLE_SESSION_NAME=%s", session);
    expect_failure(a, kvt__s3_ask_web_identity, why);
}

static void
a_refusal_of_sts_is_told_by_code_and_message(void **state)
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
    expect_answer(a, kvt__s3_ask_profile, "AK2", SECRET "2", SECRET "t2", LATER_S);
    service_stop(&a->service);
    unset_all(a);
    start_sts(a, sts_that_is_down);
    expect_failure(a, kvt__s3_ask_profile, " answered 500.");
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
    expect_failure(a, kvt__s3_ask_profile, "without credentials");
    service_stop(&a->service);
}

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
sts_is_that_of_the_region(void **state)
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

/* Set all sources; then take away the one that has keys. */
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
    a->params.profile = "gone";
    set(a, "AWS_ACCESS_KEY_ID=half");
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
        a->service.port);
    expect_asked(a, "AKC");
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
the_source_that_had_keys_is_asked_alone_until_it_fails(void **state)
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
    assert_int_equal(kvt__s3_chain_ask(chain, &got), 0);
    expect_keys(got, "AKC", SECRET, NULL, INT64_MAX);
    put_file(a, ".aws/credentials", keys);
    assert_int_equal(kvt__s3_chain_ask(chain, &got), 0);
    expect_keys(got, "AKC", SECRET, NULL, INT64_MAX);
    service_stop(&a->service);
    assert_int_equal(kvt__s3_chain_ask(chain, &got), 0);
    expect_keys(got, "AKP", SECRET, NULL, INT64_MAX);
    kvt__s3_chain_close(chain);
}

/* What was given to open may go at once. */
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
    assert_int_equal(kvt__s3_chain_ask(chain, &got), 0);
    kvt__s3_chain_close(chain);
    expect_keys(got, "AKG", SECRET, NULL, INT64_MAX);
    kvt__s3_chain_close(NULL);
}

/* ------------------------------------------------------------------- no keys */

static void
when_nothing_is_set_that_is_said(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_keys *keys;

    set(a, "AWS_EC2_METADATA_DISABLED=true");
    assert_int_equal(ask(a, &keys), -ENOKEY);
    assert_string_equal(kvt__why(), "no keys for S3. Not set: configuration, environment, "
                        "profile, web identity, container. EC2 metadata: disabled by "
                        "AWS_EC2_METADATA_DISABLED.");
}

/* Each with a sentence that is too long; all must fit. */
static void
when_all_fail_all_are_told(void **state)
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
        ASKING(a_profile_for_sso_says_what_to_do),
        ASKING(a_role_is_asked_for_with_the_keys_of_its_source),
        ASKING(roles_stand_on_roles),
        ASKING(a_profile_can_be_its_own_source_if_it_has_keys),
        ASKING(a_role_without_a_source_says_so),
        ASKING(a_roles_source_can_be_the_environment),
        ASKING(a_token_is_read_again_for_each_question),
        ASKING(a_profile_can_have_a_web_identity),
        ASKING(a_refusal_of_sts_is_told_by_code_and_message),
        ASKING(a_fault_of_sts_is_tried_again_once),
        ASKING(an_answer_of_sts_without_keys_is_an_error),
        ASKING(sts_is_that_of_the_region),
        ASKING(the_first_source_that_has_keys_counts),
        ASKING(a_source_that_fails_does_not_end_the_search),
        ASKING(keys_that_have_expired_do_not_count),
        ASKING(the_source_that_had_keys_is_asked_alone_until_it_fails),
        ASKING(a_chain_keeps_copies),
        ASKING(when_nothing_is_set_that_is_said),
        ASKING(when_all_fail_all_are_told),
    };

    return cmocka_run_group_tests_name("s3, credentials", tests, NULL, NULL);
}
