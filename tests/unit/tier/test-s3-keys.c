/* SPDX-License-Identifier: Apache-2.0
 *
 * The environment as source of keys, and keys that expire or are rotated while a tier uses the
 * keys. */
#include "s3-keys-test.h"

/* A program like script, for keys that expire in four seconds. */
static const char soon_script[] =
    "#!/bin/sh\n"
    "n=$(($(cat \"$HOME/n\") + 1))\n"
    "echo $n >\"$HOME/n\"\n"
    "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AK$n\\\","
    " \\\"SecretAccessKey\\\": \\\"SKTEST$n\\\", \\\"SessionToken\\\": \\\"token/+$n==\\\","
    " \\\"Expiration\\\": \\\"$(date -u -d '+4 seconds' +%Y-%m-%dT%H:%M:%SZ)\\\"}\"\n";

/* A program like script, for keys that expire in an hour. */
static const char hour_script[] =
    "#!/bin/sh\n"
    "n=$(($(cat \"$HOME/n\") + 1))\n"
    "echo $n >\"$HOME/n\"\n"
    "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AK$n\\\","
    " \\\"SecretAccessKey\\\": \\\"SKTEST$n\\\", \\\"SessionToken\\\": \\\"token/+$n==\\\","
    " \\\"Expiration\\\": \\\"$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)\\\"}\"\n";

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
    assert_int_equal(get(1, BYTES, 1), -EACCES); /* keys in the process's environment are ignored */
}

static void
endpoints_of_aws_are_chosen_by_the_environment(void **state)
{
    static const char *const environment[] = { "AWS_USE_FIPS_ENDPOINT=true",
                                               "AWS_USE_DUALSTACK_ENDPOINT=true", NULL };
    static const char *const tls[] = { "disable_tls=", NULL };

    (void)state;
    s3_environment = environment;
    assert_good(s3_try_open("s3://kv-cache", tls, &counters, &tier));
    assert_string_equal(kvt__s3_address_of(s3_of(tier))->host,
                        "kv-cache.s3-fips.dualstack.us-east-1.amazonaws.com");
    s3_close(tier);
    tier = NULL;
    assert_fails(s3_try_open("s3://kv-cache.s3.us-east-1.amazonaws.com", tls, &counters,
                             &tier), EINVAL, "not a FIPS endpoint");
}

/* ------------------------------------------------------------------------ proxies */

/* The proxy's port is closed. */
static int
put_with_proxy(const char *no_proxy)
{
    const char *environment[] = { "http_proxy=http://127.0.0.1:1", no_proxy, NULL };

    s3_environment = environment;
    open_s3(NULL);
    int err = put(1, BYTES, 1);
    s3_close(tier);
    tier = NULL;
    return err;
}

static void
no_proxy_of_the_environment_counts(void **state)
{
    static char list[5000];

    (void)state;
    assert_int_equal(put_with_proxy("no_proxy=other.example"), -ECONNREFUSED);
    assert_int_equal(put_with_proxy("no_proxy=*"), 0);
    strcpy(list, "no_proxy=");
    while (strlen(list) < 4000)
        strcat(list, "other.example,");
    assert_int_equal(put_with_proxy(list), -ECONNREFUSED);
    strcat(list, "127.0.0.1");
    assert_int_equal(put_with_proxy(list), 0);
}

/* --------------------------------------------------------------------- long-term */

static void
expired_keys_are_refreshed_once(void **state)
{
    (void)state;
    add_key(1, 1000);
    add_key(2, 1000);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    assert_int_equal(n_runs(), 1);
    add_key(1, -1);
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS); /* many calls, a single renewal */
    assert_int_equal(n_runs(), 2);
    assert_good(get(1, BYTES, 1));
    assert_int_equal(n_runs(), 2);
    assert_string_not_equal(s3_header(&server, "GetObject", "x-amz-security-token"), "");
}

/* SeaweedFS responds AccessDenied to an expired token. */
static void
rejected_keys_close_to_expiry_are_refreshed_once(void **state)
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

/* One answer with a Date of another century must not make good keys unusable: without keys
 * there is no request whose answer could correct the clock. */
static void
a_wrong_date_does_not_discard_keys(void **state)
{
    (void)state;
    add_key(1, 1000);
    add_key(2, 1000);
    put_text("keys", hour_script, 0700);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"status\": 403, "
             "\"code\": \"RequestTimeTooSkewed\", \"headers\": {\"Date\": "
             "\"Fri, 01 Jan 2100 00:00:00 GMT\"}}}");
    assert_int_equal(get(1, BYTES, 1), -EACCES);
    assert_good(get(1, BYTES, 1));
}

/* A response to a HEAD has no error code: rotated keys look like a missing permission. */
static void
keys_rejected_by_a_head_are_refreshed_once(void **state)
{
    static const int statuses[] = { 400, 401, 403 };
    char fault[128];

    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (i) {
            teardown(state);
            setup(state);
        }
        add_key(1, 1000);
        add_key(2, 1000);
        open_s3(NO_KEYS);
        assert_good(put(1, BYTES, 1));
        snprintf(fault, sizeof fault, "{\"match\": {\"method\": \"HEAD\"}, \"do\": "
                 "{\"status\": %d}}", statuses[i]);
        s3_fault(&server, fault);
        assert_good(probe(1));
        assert_int_equal(n_runs(), 2);
    }
}

static void
lookups_continue_after_a_key_rotation(void **state)
{
    (void)state;
    add_key(1, 1000);
    add_key(2, 1000);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    add_key(1, -1); /* 400 to HEAD */
    assert_int_equal(many_at_once(KVT__TIER_PROBE), N_READS); /* many calls, a single renewal */
    assert_int_equal(n_runs(), 2);
}

/* A missing permission renews the keys at most once a minute, and good keys stay. */
static void
a_right_that_is_missing_renews_keys_once_a_minute(void **state)
{
    (void)state;
    add_key(1, 1000);
    add_key(2, 1000);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"HEAD\"}, \"count\": null, \"do\": "
             "{\"status\": 403}}");
    for (int i = 0; i < 10; i++)
        assert_fails(probe(1), EACCES, "403", "HEAD model");
    assert_int_equal(n_runs(), 2);
    assert_int_equal(s3_count(&server, "operations", "HeadObject"), 11);
    assert_good(get(1, BYTES, 1));
    /* A call with outdated keys may use the new keys at once. */
    struct kvt__s3_keys *older = kvt__s3_keys_new("A", "S", NULL, INT64_MAX, "test");
    assert_true(kvt__s3_keyring_doubt(s3_of(tier), older));
    kvt__s3_keys_unref(older);
    s3_of(tier)->keyring.doubted_ns -= 61 * KVT__NS_PER_S;
    assert_int_equal(probe(1), -EACCES);
    assert_int_equal(n_runs(), 3);
}

/* A doubt without newer keys keeps the old keys and does not change the time of the next
 * refresh. */
static void
keys_without_replacement_stay_in_use(void **state)
{
    struct s3_keyring *k;

    (void)state;
    add_key(1, 1000);
    open_s3(NO_KEYS);
    assert_good(put(1, BYTES, 1));
    k = &s3_of(tier)->keyring;
    int64_t refresh_s = k->base_refresh_s;
    put_text("keys", "#!/bin/sh\nexit 3\n", 0700);
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    s3_fault(&server, "{\"match\": {\"method\": \"HEAD\"}, \"do\": {\"status\": 403}}");
    assert_good(probe(1));
    assert_good(get(1, BYTES, 1));
    pthread_mutex_lock(&k->lock);
    bool as_before = k->last_err && k->base_refresh_s == refresh_s;
    pthread_mutex_unlock(&k->lock);
    assert_true(as_before);
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

static void
keys_rejected_twice_are_reported(void **state)
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
every_call_reports_a_failed_source(void **state)
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
    put_text("keys", "#!/bin/sh\nexec sleep 1000\n", 0700);
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keys_come_from_the_environment_of_the_configuration),
        TEST(endpoints_of_aws_are_chosen_by_the_environment),
        TEST(no_proxy_of_the_environment_counts),
        TEST(expired_keys_are_refreshed_once),
        TEST(rejected_keys_close_to_expiry_are_refreshed_once),
        TEST(a_wrong_date_does_not_discard_keys),
        TEST(keys_rejected_by_a_head_are_refreshed_once),
        TEST(lookups_continue_after_a_key_rotation),
        TEST(a_right_that_is_missing_renews_keys_once_a_minute),
        TEST(keys_without_replacement_stay_in_use),
        TEST(keys_rejected_twice_are_reported),
        TEST(every_call_reports_a_failed_source),
        TEST(operations_that_wait_for_keys_end_when_the_tier_is_stopped),
    };

    set_process_environment();
    return s3_test_main("s3 keys", tests, "--bucket", S3_BUCKET);
}
