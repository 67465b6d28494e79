/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificates of credential services, independent of the store's TLS settings, and client
 * certificates.  A server with a certificate of the test's own authority acts as STS and as
 * the store. */
#include "files.h"
#include "s3-test.h"

#include "temp-dir.h"
#include "unit/http/certificate.h"
#include "unit/http/script.h"

#define TOKEN "a-web-identity-token"

static struct script sts;
static SSL_CTX *sts_tls;
static struct authority authority;
static struct temp_dir dir;
static atomic_uint n_asked; /* requests read by the server */

static void
play(struct peer *p)
{
    if (!peer_head(p))
        return;
    n_asked++;
    peer_send(p, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n"
                 "Connection: close\r\n\r\n");
    peer_gone(p);
}

static int
setup(void **state)
{
    char path[300];

    (void)state;
    temp_dir_make(&dir);
    snprintf(path, sizeof path, "%s/token", dir.path);
    write_file(path, TOKEN, strlen(TOKEN));
    authority_init(&authority);
    authority_write(&authority, dir.path, "ca.pem", path);
    sts_tls = server_context(&authority, "IP:127.0.0.1", false);
    script_start(&sts, PLAYS(play), sts_tls);
    n_asked = 0;
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    script_stop(&sts);
    SSL_CTX_free(sts_tls);
    authority_fini(&authority);
    temp_dir_remove(&dir);
    return 0;
}

static void
be_silent(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* Store a chunk with keys from this STS only, which never provides keys.  bundle: the file for
 * AWS_CA_BUNDLE, or NULL.  Return the number of requests that the STS read. */
static unsigned
ask(const char *setting, const char *bundle, const char *why)
{
    char file[300], url[100], ca[300], value[300];
    const char *environment[] = { file, url, "AWS_ROLE_ARN=arn:r",
                                  "AWS_EC2_METADATA_DISABLED=true", "HOME=/nowhere",
                                  bundle ? ca : NULL, NULL };
    const char *const settings[] = { "aws_access_key_id=", "aws_secret_access_key=",
                                     value, NULL };

    snprintf(file, sizeof file, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", dir.path);
    snprintf(url, sizeof url, "AWS_ENDPOINT_URL_STS=https://127.0.0.1:%u", sts.port);
    snprintf(ca, sizeof ca, "AWS_CA_BUNDLE=%s/%s", dir.path, bundle ? bundle : "");
    snprintf(value, sizeof value, setting, dir.path);
    s3_environment = environment;
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    assert_good(s3_try_open("s3://127.0.0.1:1/bucket", settings, &counters, &tier));
    assert_int_equal(put(1, 5000, 1), -ENOKEY);
    expect_why((const char *const[]){ why, NULL });
    s3_close(tier);
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
    s3_environment = NULL;
    return n_asked;
}

#define NOT_ACCEPTED "certificate is not accepted"

static void
an_impostor_gets_no_token_although_the_store_is_not_verified(void **state)
{
    (void)state;
    assert_int_equal(ask("s3_verify_tls=false", NULL, NOT_ACCEPTED), 0);
}

static void
certificates_for_the_store_do_not_count(void **state)
{
    (void)state;
    assert_int_equal(ask("s3_ca_file=%s/ca.pem", NULL, NOT_ACCEPTED), 0);
}

static void
awss_own_variable_adds_certificates(void **state)
{
    (void)state;
    assert_true(ask("s3_verify_tls=false", "ca.pem", "answered 403") > 0);
}

/* SSL_CERT_FILE: OpenSSL's file with the system's certificates. */
static void
the_systems_certificates_are_trusted_too(void **state)
{
    char path[300];
    struct authority other;

    (void)state;
    authority_init(&other);
    authority_write(&other, dir.path, "other.pem", path);
    authority_fini(&other);
    assert_int_equal(ask("s3_verify_tls=false", "other.pem", NOT_ACCEPTED), 0);
    const char *before = getenv("SSL_CERT_FILE");
    char *kept = before ? strdup(before) : NULL;
    snprintf(path, sizeof path, "%s/ca.pem", dir.path);
    setenv("SSL_CERT_FILE", path, 1);
    unsigned n = ask("s3_verify_tls=false", "other.pem", "answered 403");
    if (kept)
        setenv("SSL_CERT_FILE", kept, 1);
    else
        unsetenv("SSL_CERT_FILE");
    free(kept);
    assert_true(n > 0);
}

/* Look up a chunk in a store with an untrusted certificate.  Return the number of requests
 * read by the store. */
static unsigned
look_up_unknown(const char *verify, const char *bundle)
{
    char url[100], ca[300];
    const char *environment[] = { bundle ? ca : "HOME=/nowhere", NULL };
    const char *const settings[] = { "disable_tls=false", verify, NULL };

    snprintf(url, sizeof url, "s3://127.0.0.1:%u/bucket", sts.port);
    snprintf(ca, sizeof ca, "AWS_CA_BUNDLE=%s/%s", dir.path, bundle ? bundle : "");
    s3_environment = environment;
    assert_good(s3_try_open(url, settings, &counters, &tier));
    assert_true(probe(1) < 0);
    s3_close(tier);
    s3_environment = NULL;
    return n_asked;
}

static void
a_store_is_verified_unless_s3_verify_tls_is_false(void **state)
{
    (void)state;
    assert_int_equal(look_up_unknown(NULL, NULL), 0);
    expect_why((const char *const[]){ NOT_ACCEPTED, NULL });
    assert_int_equal(look_up_unknown("s3_verify_tls=true", NULL), 0);
    assert_true(look_up_unknown(NULL, "ca.pem") > 0);
    n_asked = 0;
    assert_true(look_up_unknown("s3_verify_tls=false", NULL) > 0);
}

/* Look up a chunk in a store with mandatory client certificates.  Return the number of
 * requests read by the store. */
static unsigned
look_up(const char *cert, const char *key)
{
    char url[100], ca[300], cert_is[320], key_is[320];
    const char *const settings[] = { "disable_tls=false", ca, cert_is, key_is, NULL };

    snprintf(url, sizeof url, "s3://127.0.0.1:%u/bucket", sts.port);
    snprintf(ca, sizeof ca, "s3_ca_file=%s/ca.pem", dir.path);
    snprintf(cert_is, sizeof cert_is, "s3_client_cert=%s", cert);
    snprintf(key_is, sizeof key_is, "s3_client_key=%s", key);
    assert_good(s3_try_open(url, settings, &counters, &tier));
    s3_of(tier)->pace.retry_tokens = 0; /* no retries */
    assert_true(probe(1) < 0);
    s3_close(tier);
    return n_asked;
}

static void
a_store_that_demands_a_certificate_gets_the_one_that_is_set(void **state)
{
    char cert[300], key[300];

    (void)state;
    demand_clients(sts_tls, &authority);
    snprintf(cert, sizeof cert, "%s/client.pem", dir.path);
    snprintf(key, sizeof key, "%s/client.key", dir.path);
    client_write(&authority, cert, key, NULL);
    assert_int_equal(look_up("", ""), 0);
    expect_why((const char *const[]){ "certificate required", NULL });
    assert_true(look_up(cert, key) > 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_impostor_gets_no_token_although_the_store_is_not_verified),
        TEST(certificates_for_the_store_do_not_count),
        TEST(awss_own_variable_adds_certificates),
        TEST(the_systems_certificates_are_trusted_too),
        TEST(a_store_is_verified_unless_s3_verify_tls_is_false),
        TEST(a_store_that_demands_a_certificate_gets_the_one_that_is_set),
    };

    clock_runs = true;
    return cmocka_run_group_tests_name("s3, TLS of services of credentials", tests, NULL,
                                       NULL);
}
