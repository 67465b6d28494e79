/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of containers and EC2 instances: the services' addresses, the requests, and the meaning of
 * responses. */
#include "s3-service.h"

#define ROLES "/latest/meta-data/iam/security-credentials/"

static bool
is_for(const char *request, const char *line)
{
    size_t n = strlen(line);

    return !strncmp(request, line, n) && request[n] == ' ';
}

/* ------------------------------------------------------------------------ URLs */

static void
expect_url(const char *text, bool tls, const char *name, uint16_t port, const char *host,
           const char *path)
{
    struct kvt__s3_url url;

    assert_int_equal(kvt__s3_read_url(text, "IT", &url), 0);
    assert_int_equal(url.tls, tls);
    assert_string_equal(url.name, name);
    assert_int_equal(url.port, port);
    assert_string_equal(url.host, host);
    assert_string_equal(url.path, path);
}

static void
urls_are_read(void **state)
{
    (void)state;
    expect_url("https://h", true, "h", 443, "h", "/");
    expect_url("http://localhost", false, "localhost", 80, "localhost", "/");
    expect_url("HTTPS://H.example:443/a/b?c=d&e", true, "H.example", 443, "H.example",
               "/a/b?c=d&e");
    expect_url("http://127.0.0.1:8080?q", false, "127.0.0.1", 8080, "127.0.0.1:8080",
               "/?q");
    expect_url("https://[fd00:ec2::23]:1/x", true, "[fd00:ec2::23]", 1, "[fd00:ec2::23]:1",
               "/x");
    expect_url("http://[::1]", false, "[::1]", 80, "[::1]", "/");
}

static void
an_invalid_url_is_an_error(void **state)
{
    static const char *const texts[] = {
        "", "h", "ftp://h", "http://", "http:///x", "http://h:", "http://h:0", "http://h:x",
        "http://h:65536", "http://h:123456", "http://user:" SECRET "@h/", "http://h:80x",
        "http://[::1", "http://[::1]x", "http://[host]", "http://h\r\nX: y",
        "http://h/\r\n", "http://h/a b", "http://h/#x", "http://h/\xc3\xa4", "http:/h",
        "http://h\\x" };
    struct kvt__s3_url url;
    char text[4096];

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(kvt__s3_read_url(texts[i], "IT", &url), -EINVAL);
        expect_why("IT ");
    }
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    memcpy(text, "http://", 7);
    assert_int_equal(kvt__s3_read_url(text, "IT", &url), -EINVAL);
    text[8] = '/';
    assert_int_equal(kvt__s3_read_url(text, "IT", &url), -EINVAL);
}

/* ------------------------------------------------------------------ containers */

static int
container(struct service *s, const char *request, char *out, size_t room)
{
    (void)s;
    if (strstr(request, "\r\nauthorization: " SECRET "-wrong"))
        snprintf(out, room, "{\"code\":\"AccessDenied\",\"message\":\"not\\nyou\"}");
    else if (strstr(request, "\r\nauthorization: " SECRET "-echo"))
        snprintf(out, room, "{\"code\":\"Bad\",\"message\":\"no: " SECRET
                 "-echo-long-token\"}");
    else if (is_for(request, "GET /v1/keys?id=1"))
        snprintf(out, room, "{\"RoleArn\":\"r\",\"AccessKeyId\":\"AKC\","
                 "\"SecretAccessKey\":\"" SECRET "c\",\"Token\":\"" SECRET "t\","
                 "\"Expiration\":\"" LATER "\"}");
    else
        snprintf(out, room, "{\"AccessKeyId\":\"AKC\",\"SecretAccessKey\":\"" SECRET
                 "c\"}");
    return *out == '{' && strstr(out, "code") ? 403 : 200;
}

static void
the_full_uri_of_a_container_is_requested(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, container);
    expect_not_set(a, kvt__s3_keys_from_container);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/v1/keys?id=1",
        a->service.port);
    expect_answer(a, kvt__s3_keys_from_container, "AKC", SECRET "c", SECRET "t", LATER_S);
    assert_true(service_saw(&a->service, "\r\nhost: 127.0.0.1:") ||
                service_saw(&a->service, "\r\nHost: 127.0.0.1:"));
    assert_false(service_saw(&a->service, "uthorization"));
    unset_all(a);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://localhost:%u/", a->service.port);
    expect_answer(a, kvt__s3_keys_from_container, "AKC", SECRET "c", NULL, INT64_MAX);
    service_stop(&a->service);
}

static void
the_authorization_is_read_for_each_request(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, container);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/", a->service.port);
    set(a, "AWS_CONTAINER_AUTHORIZATION_TOKEN=Basic " SECRET "-variable");
    expect_answer(a, kvt__s3_keys_from_container, "AKC", SECRET "c", NULL, INT64_MAX);
    assert_true(service_saw(&a->service, "uthorization: Basic " SECRET "-variable\r\n"));
    set(a, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=%s/token", a->dir.path);
    put_file(a, "token", SECRET "-1\n");
    expect_answer(a, kvt__s3_keys_from_container, "AKC", SECRET "c", NULL, INT64_MAX);
    assert_true(service_saw(&a->service, "uthorization: " SECRET "-1\r\n"));
    put_file(a, "token", " " SECRET "-2");
    expect_answer(a, kvt__s3_keys_from_container, "AKC", SECRET "c", NULL, INT64_MAX);
    assert_true(service_saw(&a->service, "uthorization: " SECRET "-2\r\n"));
    service_stop(&a->service);
}

static void
an_error_of_a_container_is_reported_with_code_and_message(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, container);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/", a->service.port);
    set(a, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=%s/token", a->dir.path);
    put_file(a, "token", SECRET "-wrong");
    expect_failure(a, kvt__s3_keys_from_container, "403 AccessDenied: not");
    put_file(a, "token", SECRET "-echo-long-token");
    expect_failure(a, kvt__s3_keys_from_container, " answered 403.");
    put_file(a, "token", SECRET "\r\nX: y");
    expect_failure(a, kvt__s3_keys_from_container, "/token has more than a token");
    put_file(a, "token", "\n");
    expect_failure(a, kvt__s3_keys_from_container, "/token is empty");
    unset_all(a);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/", a->service.port);
    set(a, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=/no/such/file");
    expect_failure(a, kvt__s3_keys_from_container, "/no/such/file");
    service_stop(&a->service);
}

/* Return the path of the container's URL, with only this variable set.  NULL: *err is the error. */
static const char *
container_path(struct asking *a, const char *variable, int *err)
{
    static struct kvt__s3_url url;

    unset_all(a);
    set(a, "%s", variable);
    *err = kvt__s3_container_url(&a->params, &url);
    if (*err)
        return NULL;
    return url.path;
}

static void
a_relative_uri_belongs_to_the_ecs_agent(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_url url;
    int err;

    set(a, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/v2/credentials/x?y");
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=https://elsewhere/");
    assert_int_equal(kvt__s3_container_url(&a->params, &url), 0);
    assert_false(url.tls);
    assert_string_equal(url.host, "169.254.170.2");
    assert_int_equal(url.port, 80);
    assert_string_equal(url.path, "/v2/credentials/x?y");
    assert_null(container_path(a, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=@evil/x", &err));
    assert_int_equal(err, -EINVAL);
    expect_why("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
}

/* Every service rejects a plain URL with a host name or another network before sending a request;
 * allowed hosts are connected by address. */
static void
keys_are_requested_without_tls_only_from_this_host(void **state)
{
    static const struct {
        const char *url, *address; /* NULL: rejected; "": connected by name, with TLS */
    } rows[] = {
        { "http://localhost/x", "127.0.0.1" },
        { "http://127.0.0.1/x", "127.0.0.1" },
        { "http://127.9.9.9:99/x", "127.9.9.9" },
        { "http://[::1]/x", "::1" },
        { "http://169.254.170.2/x", "169.254.170.2" },
        { "http://169.254.170.23/x", "169.254.170.23" },
        { "http://169.254.169.254/x", "169.254.169.254" },
        { "http://[fe80::1]/x", "fe80::1" },
        { "http://[fd00:ec2::23]/x", "fd00:ec2::23" },
        { "http://[fd00:ec2::254]/x", "fd00:ec2::254" },
        { "https://example.com/x", "" },
        { "https://127.0.0.1/x", "127.0.0.1" },
        { "https://10.0.0.1/x", "" },
        { "http://example.com/x", NULL },
        { "http://10.0.0.1/x", NULL },
        { "http://128.0.0.1/x", NULL },
        { "http://169.253.170.2/x", NULL },
        { "http://2130706433/x", NULL },
        { "http://127.1/x", NULL },
        { "http://127.0.0.1.example.com/x", NULL },
        { "http://localhost.example.com/x", NULL },
        { "http://notlocalhost/x", NULL },
        { "http://169.254.170.2.example.com/x", NULL },
        { "http://[fd00:ec2::255]/x", NULL },
        { "http://[fd00::1]/x", NULL },
        { "http://[::ffff:10.0.0.1]/x", NULL },
    };
    static const struct {
        const char *variable;
        kvt__s3_source_fn *ask;
    } services[] = {
        { "AWS_CONTAINER_CREDENTIALS_FULL_URI", kvt__s3_keys_from_container },
        { "AWS_EC2_METADATA_SERVICE_ENDPOINT", kvt__s3_keys_from_metadata },
        { "AWS_ENDPOINT_URL_STS", kvt__s3_keys_from_web_identity },
    };
    struct asking *a = *state;
    struct kvt__s3_url url;

    put_file(a, "token", SECRET);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int err = kvt__s3_read_url(rows[i].url, "IT", &url);

        if (err != (rows[i].address ? 0 : -EACCES))
            fail_msg("%s: %d", rows[i].url, err);
        if (rows[i].address)
            assert_string_equal(url.address, rows[i].address);
        for (int j = 0; j < 3 && !rows[i].address; j++) {
            unset_all(a);
            set(a, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", a->dir.path);
            set(a, "AWS_ROLE_ARN=arn");
            set(a, "%s=%s", services[j].variable, rows[i].url);
            expect_failure(a, services[j].ask, "only https:// may leave this host");
        }
    }
}

/* A container's token must not pass through http_proxy. */
static void
local_services_are_reached_without_proxy(void **state)
{
    static const char *const names[] = { "127.0.0.1", "localhost" };
    struct asking *a = *state;
    struct service proxy;

    service_start(&proxy, container);
    service_start(&a->service, container);
    put_file(a, "token", SECRET "-1");
    for (int i = 0; i < 2; i++) {
        unset_all(a);
        set(a, "http_proxy=http://127.0.0.1:%u", proxy.port);
        set(a, "https_proxy=http://127.0.0.1:%u", proxy.port);
        set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://%s:%u/", names[i],
            a->service.port);
        set(a, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=%s/token", a->dir.path);
        kvt__http_close(a->params.http);
        assert_int_equal(kvt__s3_open_key_client(a->environment, 0, &a->params.http), 0);
        expect_answer(a, kvt__s3_keys_from_container, "AKC", SECRET "c", NULL, INT64_MAX);
    }
    assert_int_equal(service_count(&a->service), 2);
    unset_all(a);
    set(a, "AWS_CONTAINER_CREDENTIALS_FULL_URI=https://127.0.0.1:1/");
    expect_failure(a, kvt__s3_keys_from_container, "connect to 127.0.0.1:1");
    assert_int_equal(service_count(&proxy), 0);
    service_stop(&a->service);
    service_stop(&proxy);
}

/* -------------------------------------------------------------------- metadata */

/* A response without Code, as moto sends. */
static int
metadata(struct service *s, const char *request, char *out, size_t room)
{
    (void)s;
    if (is_for(request, "PUT /latest/api/token")) {
        bool asked = strstr(request, "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n");

        snprintf(out, room, "%s", asked ? SECRET "-imds" : "");
        return asked ? 200 : 400;
    }
    if (!strstr(request, "x-aws-ec2-metadata-token: " SECRET "-imds\r\n"))
        return 401;
    if (is_for(request, "GET " ROLES))
        snprintf(out, room, "a+role@x\nanother");
    else if (is_for(request, "GET " ROLES "a%2Brole%40x"))
        snprintf(out, room, "{\"AccessKeyId\":\"AKI\",\"SecretAccessKey\":\"" SECRET "i\","
                 "\"Token\":\"" SECRET "t\",\"Expiration\":\"" LATER "\"}");
    return *out ? 200 : 404;
}

static void
the_instance_metadata_is_requested_with_a_token(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, metadata);
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u/", a->service.port);
    expect_answer(a, kvt__s3_keys_from_metadata, "AKI", SECRET "i", SECRET "t", LATER_S);
    assert_int_equal(service_count(&a->service), 3);
    service_stop(&a->service);
}

static int
failing_metadata(struct service *s, const char *request, char *out, size_t room)
{
    bool keys = is_for(request, "GET " ROLES "a%2Brole%40x");

    if (!keys)
        return metadata(s, request, out, room);
    snprintf(out, room, "{\"Code\":\"AssumeRoleUnauthorizedAccess\",\"Message\":\"m\","
             "\"SecretAccessKey\":\"" SECRET "\"}");
    return 200;
}

static int
metadata_without_role(struct service *s, const char *request, char *out, size_t room)
{
    return *request == 'P' ? metadata(s, request, out, room) : 404;
}

static int
metadata_of_junk(struct service *s, const char *request, char *out, size_t room)
{
    if (*request == 'P')
        return metadata(s, request, out, room);
    snprintf(out, room, "\n" SECRET);
    return 200;
}

static int
junk(struct service *s, const char *request, char *out, size_t room)
{
    (void)s;
    (void)request;
    snprintf(out, room, SECRET "\r\nX: y");
    return 200;
}

static void
expect_metadata_failure(struct asking *a, service_fn *answer, const char *why)
{
    service_start(&a->service, answer);
    unset_all(a);
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u", a->service.port);
    expect_failure(a, kvt__s3_keys_from_metadata, why);
    service_stop(&a->service);
}

static void
an_instance_without_keys_names_the_reason(void **state)
{
    struct asking *a = *state;

    expect_metadata_failure(a, failing_metadata, "Code AssumeRoleUnauthorizedAccess.");
    expect_metadata_failure(a, metadata_without_role, "has no role");
    expect_metadata_failure(a, metadata_of_junk, "no role's name");
    expect_metadata_failure(a, junk, "no token");
}

static void
a_metadata_service_can_be_disabled(void **state)
{
    struct asking *a = *state;

    service_start(&a->service, metadata);
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u", a->service.port);
    set(a, "AWS_EC2_METADATA_DISABLED=TRUE");
    expect_failure(a, kvt__s3_keys_from_metadata, "AWS_EC2_METADATA_DISABLED");
    assert_int_equal(service_count(&a->service), 0);
    service_stop(&a->service);
}

static void
a_hanging_metadata_service_times_out(void **state)
{
    struct asking *a = *state;

    clock_is_right = true;
    service_listen(&a->service); /* no thread accepts connections */
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u", a->service.port);
    expect_failure(a, kvt__s3_keys_from_metadata, "127.0.0.1:");
    service_stop(&a->service);
    expect_failure(a, kvt__s3_keys_from_metadata, "127.0.0.1:"); /* connections are refused now */
    clock_is_right = false;
}

static void
the_metadata_service_is_at_amazons_address(void **state)
{
    struct asking *a = *state;
    struct kvt__s3_url url;

    assert_int_equal(kvt__s3_metadata_url(&a->params, &url), 0);
    assert_string_equal(url.host, "169.254.169.254");
    assert_string_equal(url.path, "");
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6");
    assert_int_equal(kvt__s3_metadata_url(&a->params, &url), 0);
    assert_string_equal(url.host, "[fd00:ec2::254]");
    set(a, "AWS_EC2_METADATA_SERVICE_ENDPOINT=https://h:1338/base/");
    assert_int_equal(kvt__s3_metadata_url(&a->params, &url), 0);
    assert_string_equal(url.host, "h:1338");
    assert_string_equal(url.path, "/base");
}

/* ------------------------------------------------------------------------ JSON */

static int
read_json(const char *text, enum kvt__s3_json kind, struct kvt__s3_keys **keys)
{
    return kvt__s3_keys_from_json(text, strlen(text), kind, "test", keys);
}

#define PAIR "\"AccessKeyId\":\"AK\",\"SecretAccessKey\":\"" SECRET "\""

static void
the_output_of_a_program_needs_a_version(void **state)
{
    struct kvt__s3_keys *keys;

    (void)state;
    assert_int_equal(read_json("{\"Version\":1," PAIR ",\"SessionToken\":\"" SECRET "t\","
                               "\"Token\":\"no\","
                               "\"Expiration\":\"2099-01-02T05:04:05+02:00\"}",
                               KVT__S3_JSON_PROCESS, &keys), 0);
    expect_keys(keys, "AK", SECRET, SECRET "t", LATER_S);
    assert_int_equal(read_json(" {\"Version\":1," PAIR ",\"Expiration\":null}\n",
                               KVT__S3_JSON_PROCESS, &keys), 0);
    expect_keys(keys, "AK", SECRET, NULL, INT64_MAX);
    assert_int_equal(read_json("{" PAIR "}", KVT__S3_JSON_PROCESS, &keys), -EBADMSG);
    expect_why("Version");
    assert_int_equal(read_json("{\"Version\":2," PAIR "}", KVT__S3_JSON_PROCESS, &keys),
                     -EBADMSG);
    assert_int_equal(read_json("{" PAIR ",\"Code\":\"Success\"}", KVT__S3_JSON_SERVICE,
                               &keys), 0);
    kvt__s3_keys_unref(keys);
}

static void
json_without_keys_is_an_error(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        { "", "no JSON object" },
        { "[{" PAIR "}]", "no JSON object" },
        { "{" PAIR, "no JSON object" },
        { "{" PAIR "} " SECRET, "no JSON object" },
        { "{\"AccessKeyId\":\"AK\"}", "no SecretAccessKey" },
        { "{\"SecretAccessKey\":\"" SECRET "\"}", "no AccessKeyId" },
        { "{\"AccessKeyId\":1,\"SecretAccessKey\":\"" SECRET "\"}", "no AccessKeyId" },
        { "{\"AccessKeyId\":\"AK\",\"SecretAccessKey\":\"\"}", "no SecretAccessKey" },
        { "{\"AccessKeyId\":\"AK\\u0000\",\"SecretAccessKey\":\"x\"}", "no JSON object" },
        { "{" PAIR ",\"Expiration\":\"" SECRET "\"}", "Expiration" },
        { "{" PAIR ",\"Expiration\":1234567}", "Expiration" },
        { "{" PAIR ",\"Code\":\"Failed\\u001b[2J\"}", "Code Failed?[2J." },
    };
    struct kvt__s3_keys *keys;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_json(cases[i].text, KVT__S3_JSON_SERVICE, &keys), -EBADMSG);
        expect_why(cases[i].why);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_read),
        cmocka_unit_test(an_invalid_url_is_an_error),
        ASKING(the_full_uri_of_a_container_is_requested),
        ASKING(the_authorization_is_read_for_each_request),
        ASKING(an_error_of_a_container_is_reported_with_code_and_message),
        ASKING(a_relative_uri_belongs_to_the_ecs_agent),
        ASKING(keys_are_requested_without_tls_only_from_this_host),
        ASKING(local_services_are_reached_without_proxy),
        ASKING(the_instance_metadata_is_requested_with_a_token),
        ASKING(an_instance_without_keys_names_the_reason),
        ASKING(a_metadata_service_can_be_disabled),
        ASKING(a_hanging_metadata_service_times_out),
        ASKING(the_metadata_service_is_at_amazons_address),
        cmocka_unit_test(the_output_of_a_program_needs_a_version),
        cmocka_unit_test(json_without_keys_is_an_error),
    };

    return cmocka_run_group_tests_name("s3, services of credentials", tests, NULL, NULL);
}
