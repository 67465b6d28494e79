/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose environment gives the keys, keys that expire while they are used, and sessions
 * of S3 Express. */
#include <sys/stat.h>

#include "files.h"
#include "s3-test.h"

#define BYTES ((size_t)5000)
#define N_READS 50u

static struct temp_dir home;

/* A program that gives the keys AK1, AK2 ... and counts how often it was run. */
static const char script[] =
    "#!/bin/sh\n"
    "n=$(($(cat \"$HOME/n\") + 1))\n"
    "echo $n >\"$HOME/n\"\n"
    "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AK$n\\\","
    " \\\"SecretAccessKey\\\": \\\"SKTEST$n\\\", \\\"SessionToken\\\": \\\"token/+$n==\\\","
    " \\\"Expiration\\\": \\\"2099-01-01T00:00:00Z\\\"}\"\n";

/* The same, of keys that expire soon. */
static const char soon_script[] =
    "#!/bin/sh\n"
    "n=$(($(cat \"$HOME/n\") + 1))\n"
    "echo $n >\"$HOME/n\"\n"
    "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AK$n\\\","
    " \\\"SecretAccessKey\\\": \\\"SKTEST$n\\\", \\\"SessionToken\\\": \\\"token/+$n==\\\","
    " \\\"Expiration\\\": \\\"$(date -u -d '+4 seconds' +%Y-%m-%dT%H:%M:%SZ)\\\"}\"\n";

static void
put_text(const char *name, const char *text, mode_t mode)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", home.path, name);
    write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, mode), 0);
}

static unsigned
n_runs(void)
{
    char path[512];
    unsigned n = 0;

    snprintf(path, sizeof path, "%s/n", home.path);
    FILE *in = fopen(path, "r");
    assert_int_equal(fscanf(in, "%u", &n), 1);
    fclose(in);
    return n;
}

/* Key n is good at the server for so long; expired where that is negative. */
static void
add_key(unsigned n, int expires_in)
{
    char body[256];

    snprintf(body, sizeof body, "{\"access\": \"AK%u\", \"secret\": \"SKTEST%u\", "
             "\"token\": \"token/+%u==\", \"expires_in\": %d}", n, n, n, expires_in);
    s3_tell(&server, "POST", "/credentials", body);
}

static int
setup(void **state)
{
    static char home_is[300], config_is[320];
    static const char *const environment[] = { home_is, config_is,
                                               "AWS_EC2_METADATA_DISABLED=true",
                                               "PATH=/usr/bin:/bin", NULL };
    char config[1024];

    s3_setup(state);
    temp_dir_make(&home);
    snprintf(home_is, sizeof home_is, "HOME=%s", home.path);
    snprintf(config_is, sizeof config_is, "AWS_CONFIG_FILE=%s/config", home.path);
    s3_environment = environment;
    snprintf(config, sizeof config, "[profile test]\ncredential_process = %s/keys\n",
             home.path);
    put_text("config", config, 0600);
    put_text("keys", script, 0700);
    put_text("n", "0", 0600);
    return 0;
}

static int
teardown(void **state)
{
    s3_teardown(state);
    temp_dir_remove(&home);
    return 0;
}

#define NO_KEYS "aws_access_key_id=", "aws_secret_access_key=", "s3_profile=test"

static void
be_silent(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    assert_null(strstr(line, S3_SECRET));
}

/* Read chunk 1 often, all at a time: how many were good. */
static unsigned
read_often(void)
{
    static struct async all[N_READS];
    sem_t over;

    sem_init(&over, 0, 0);
    for (unsigned i = 0; i < N_READS; i++)
        async_start(&all[i], KVT__TIER_GET, 1, BYTES, &over);
    unsigned n = async_wait(all, N_READS, &over, 0);
    sem_destroy(&over);
    return n;
}

/* ------------------------------------------------------------------- environments */

static void
keys_come_from_the_environment_of_the_configuration(void **state)
{
    static const char *const environment[] = {
        "AWS_ACCESS_KEY_ID=" S3_ACCESS, "AWS_SECRET_ACCESS_KEY=" S3_SECRET, NULL };

    (void)state;
    s3_environment = environment;
    open_s3("aws_access_key_id=", "aws_secret_access_key=");
    assert_good(put(1, BYTES, 1));
    s3_close(tier);
    s3_environment = NULL;
    open_s3("aws_access_key_id=", "aws_secret_access_key=");
    assert_int_equal(get(1, BYTES, 1), -EACCES); /* the process's are not known */
}

/* --------------------------------------------------------------------- long-term */

static void
keys_that_have_expired_are_asked_for_once_more(void **state)
{
    (void)state;
    add_key(1, 1000);
    add_key(2, 1000);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    assert_int_equal(n_runs(), 1);
    add_key(1, -1);
    assert_int_equal(read_often(), N_READS); /* many calls, one question */
    assert_int_equal(n_runs(), 2);
    assert_good(get(1, BYTES, 1));
    assert_int_equal(n_runs(), 2);
    assert_string_not_equal(s3_header(&server, "GetObject", "x-amz-security-token"), "");
}

/* SeaweedFS says AccessDenied of a token that has expired. */
static void
keys_that_expire_soon_and_are_refused_are_asked_for_once_more(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 20; n++)
        add_key(n, 1000);
    put_text("keys", soon_script, 0700);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"status\": 403, "
             "\"code\": \"AccessDenied\"}}");
    assert_good(get(1, BYTES, 1));
    assert_true(n_runs() >= 2);
}

static void
keys_that_are_refused_again_are_told(void **state)
{
    (void)state;
    add_key(1, -1);
    add_key(2, -1);
    open_s3(NO_KEYS);
    assert_fails(put(1, BYTES, 1), EACCES, "ExpiredToken", "PUT model");
    assert_int_equal(n_runs(), 2);
    assert_int_equal(s3_n_requests(&server), 2);
}

static void
a_source_that_fails_is_told_by_every_call(void **state)
{
    (void)state;
    put_text("keys", "#!/bin/sh\nexit 3\n", 0700);
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    open_s3(NO_KEYS);
    assert_true(put(1, BYTES, 1) < 0);
    expect_why((const char *const[]){ "credential_process", NULL });
    assert_true(get(1, BYTES, 1) < 0);
    expect_why((const char *const[]){ "credential_process", NULL });
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
    assert_int_equal(s3_n_requests(&server), 0);
}

static void
operations_that_wait_for_keys_end_when_the_tier_is_stopped(void **state)
{
    static struct async all[20];
    sem_t over;

    (void)state;
    put_text("keys", "#!/bin/sh\nexec sleep 2\n", 0700);
    sem_init(&over, 0, 0);
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    open_s3(NO_KEYS);
    for (unsigned i = 0; i < 20; i++)
        async_start(&all[i], KVT__TIER_PROBE, i, 0, &over);
    tier->ops->stop(tier);
    assert_int_equal(async_wait(all, 20, &over, -ECANCELED), 20);
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
    sem_destroy(&over);
}

/* ---------------------------------------------------------------------- sessions */

#define CREATE "\"match\": {\"operation\": \"CreateSession\"}"

static void
open_express(const char *const *more)
{
    const char *settings[8] = { "s3_enable_s3express=true" };
    char url[256];

    for (size_t i = 1; more && *more; i++)
        settings[i] = *more++;
    snprintf(url, sizeof url, "s3://127.0.0.1:%u/" S3_EXPRESS_BUCKET "/%s", server.port,
             server.prefix);
    assert_good(s3_try_open(url, settings, &counters, &tier));
}

static unsigned
n_sessions(void)
{
    return s3_count(&server, "operations", "CreateSession");
}

static void
one_session_serves_all_at_once(void **state)
{
    (void)state;
    open_express(NULL);
    assert_int_equal(put(1, BYTES, 1), 0);
    assert_int_equal(read_often(), N_READS);
    assert_int_equal(n_sessions(), 1);
    assert_string_not_equal(s3_header(&server, "GetObject", "x-amz-s3session-token"), "");
    assert_string_equal(s3_header(&server, "GetObject", "x-amz-security-token"), "");
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

static void
sessions_are_replaced_before_they_expire(void **state)
{
    (void)state;
    s3_config(&server, "{\"session_seconds\": 3}");
    open_express(NULL);
    assert_good(put(1, BYTES, 1));
    int64_t until = kvt__now_ns() + 5 * KVT__NS_PER_S;
    while (kvt__now_ns() < until) {
        assert_int_equal(read_often(), N_READS);
        usleep(20000);
    }
    /* One in two seconds, where the machine lets; one in three is needed. */
    assert_in_range(n_sessions(), 2, 6);
}

static void
a_session_that_ends_early_is_replaced_once(void **state)
{
    (void)state;
    open_express(NULL);
    assert_good(put(1, BYTES, 1));
    s3_tell(&server, "POST", "/sessions", "{\"expires_in\": -1}");
    assert_int_equal(read_often(), N_READS);
    assert_int_equal(n_sessions(), 2);
}

/* The keys that sessions are made with can expire, too. */
static void
a_session_that_is_refused_leads_to_newer_keys(void **state)
{
    static const char *const no_keys[] = { NO_KEYS, NULL };

    (void)state;
    add_key(1, 1000);
    add_key(2, 1000);
    open_express(no_keys);
    assert_good(put(1, BYTES, 1));
    add_key(1, -1);
    s3_tell(&server, "POST", "/sessions", "{\"expires_in\": -1}");
    assert_int_equal(read_often(), N_READS);
    assert_int_equal(n_runs(), 2);
    assert_int_equal(n_sessions(), 3);
}

static void
a_session_that_cannot_be_had_is_told(void **state)
{
    static const char *const answers[] = {
        "{" CREATE ", \"do\": {\"status\": 403}}",
        "{" CREATE ", \"do\": {\"listing\": true}}",
        "{" CREATE ", \"do\": {\"status\": 200, \"body\": \"\"}}" };
    static const int errors[] = { -EACCES, -EBADMSG, -EBADMSG };

    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    for (size_t i = 0; i < 3; i++) {
        s3_setup(state);
        s3_fault(&server, answers[i]);
        open_express(NULL);
        assert_int_equal(put(1, BYTES, 1), errors[i]);
        assert_true(*kvt__why());
        assert_int_equal(s3_n_requests(&server), 1);
        s3_close(tier);
        tier = NULL;
    }
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

static void
a_session_is_asked_for_again_when_that_failed(void **state)
{
    (void)state;
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    s3_fault(&server, "{" CREATE ", \"count\": 3, \"do\": {\"status\": 503, \"code\": "
             "\"SlowDown\"}}");
    open_express(NULL);
    assert_good(put(1, BYTES, 1));
    assert_int_equal(n_sessions(), 4);
    assert_good(get(1, BYTES, 1));
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keys_come_from_the_environment_of_the_configuration),
        TEST(keys_that_have_expired_are_asked_for_once_more),
        TEST(keys_that_expire_soon_and_are_refused_are_asked_for_once_more),
        TEST(keys_that_are_refused_again_are_told),
        TEST(a_source_that_fails_is_told_by_every_call),
        TEST(operations_that_wait_for_keys_end_when_the_tier_is_stopped),
        TEST(one_session_serves_all_at_once),
        TEST(sessions_are_replaced_before_they_expire),
        TEST(a_session_that_ends_early_is_replaced_once),
        TEST(a_session_that_is_refused_leads_to_newer_keys),
        TEST(a_session_that_cannot_be_had_is_told),
        TEST(a_session_is_asked_for_again_when_that_failed),
    };

    /* The environment of the configuration counts, and not the process's. */
    setenv("AWS_ACCESS_KEY_ID", "AKPROCESS", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "SKTEST-process", 1);
    unsetenv("AWS_SESSION_TOKEN");
    setenv("no_proxy", "127.0.0.1", 1);
    return s3_test_main("s3 keys", tests, "--bucket", S3_BUCKET, "--bucket",
                        S3_EXPRESS_BUCKET);
}
