/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose environment gives the keys, keys that expire while they are used, and sessions
 * of S3 Express. */
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

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

/* The same, of keys that expire in an hour. */
static const char hour_script[] =
    "#!/bin/sh\n"
    "n=$(($(cat \"$HOME/n\") + 1))\n"
    "echo $n >\"$HOME/n\"\n"
    "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AK$n\\\","
    " \\\"SecretAccessKey\\\": \\\"SKTEST$n\\\", \\\"SessionToken\\\": \\\"token/+$n==\\\","
    " \\\"Expiration\\\": \\\"$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)\\\"}\"\n";

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

/* Start N_READS gets or probes of chunk 1 at the same time, and return the number of
 * successes. */
static unsigned
many_at_once(enum kvt__tier_what what)
{
    static struct async all[N_READS];
    sem_t over;

    sem_init(&over, 0, 0);
    for (unsigned i = 0; i < N_READS; i++)
        async_start(&all[i], what, 1, what == KVT__TIER_GET ? BYTES : 0, &over);
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

static void
endpoints_of_aws_are_chosen_by_the_environment(void **state)
{
    static const char *const environment[] = { "AWS_USE_FIPS_ENDPOINT=true",
                                               "AWS_USE_DUALSTACK_ENDPOINT=true", NULL };
    static const char *const tls[] = { "disable_tls=", NULL };

    (void)state;
    s3_environment = environment;
    assert_good(s3_try_open("s3://kv-cache", tls, &counters, &tier));
    assert_string_equal(kvt__s3_place_of(s3_of(tier))->host,
                        "kv-cache.s3-fips.dualstack.us-east-1.amazonaws.com");
    s3_close(tier);
    tier = NULL;
    assert_fails(s3_try_open("s3://kv-cache.s3.us-east-1.amazonaws.com", tls, &counters,
                             &tier), EINVAL, "no FIPS endpoint");
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
exceptions_from_proxies_are_those_of_the_environment(void **state)
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
keys_that_have_expired_are_asked_for_once_more(void **state)
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

/* One answer with a Date of another century must not make good keys unusable: without keys
 * there is no request whose answer could correct the clock. */
static void
a_wrong_date_takes_no_keys_away(void **state)
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
keys_that_a_head_is_refused_with_are_asked_for_once_more(void **state)
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
lookups_go_on_after_keys_were_rotated(void **state)
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
keys_that_cannot_be_renewed_are_used_on(void **state)
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
    bool as_before = k->failed && k->base_refresh_s == refresh_s;
    pthread_mutex_unlock(&k->lock);
    assert_true(as_before);
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
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
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
    assert_int_equal(n_sessions(), 1);
    assert_string_not_equal(s3_header(&server, "GetObject", "x-amz-s3session-token"), "");
    assert_string_equal(s3_header(&server, "GetObject", "x-amz-security-token"), "");
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

/* The wall clock of this program, in place of libc's.  It stands still at wall_at_s if that
 * is not 0. */
static atomic_llong wall_ahead_s, wall_at_s;

time_t
time(time_t *out)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (wall_at_s)
        now.tv_sec = wall_at_s;
    now.tv_sec += wall_ahead_s;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

/* The keyring looks at the clock now. */
static void
put_wall_forward(long long seconds)
{
    struct s3_keyring *k = &s3_of(tier)->keyring;

    pthread_mutex_lock(&k->lock);
    wall_ahead_s += seconds;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

/* Return the keyring's session and the time of the next refresh. */
static struct kvt__s3_keys *
session_now(int64_t *refresh_s)
{
    struct s3_keyring *k = &s3_of(tier)->keyring;

    pthread_mutex_lock(&k->lock);
    struct kvt__s3_keys *session = kvt__s3_keys_ref(k->session);
    *refresh_s = k->session_refresh_s;
    pthread_mutex_unlock(&k->lock);
    return session;
}

/* A session of 300 s is replaced 60 s before the expiry, not earlier, and no request waits
 * or is refused: the old session serves until then. */
static void
sessions_are_replaced_before_they_expire(void **state)
{
    int64_t refresh_s, next_s;

    (void)state;
    wall_ahead_s = 0;
    wall_at_s = time(NULL);
    s3_config(&server, "{\"session_seconds\": 300}");
    open_express(NULL);
    assert_good(put(1, BYTES, 1));
    struct kvt__s3_keys *first = session_now(&refresh_s);
    assert_int_equal(refresh_s, first->expires_s - 60);
    put_wall_forward(refresh_s - time(NULL) - 10);
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
    assert_int_equal(n_sessions(), 1);
    put_wall_forward(10);
    for (bool same = true; same;) { /* the test's time limit ends the loop otherwise */
        assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
        struct kvt__s3_keys *now = session_now(&next_s);
        same = now == first;
        kvt__s3_keys_unref(now);
    }
    assert_int_equal(n_sessions(), 2);
    assert_true(time(NULL) < first->expires_s); /* the session is still valid */
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
    kvt__s3_keys_unref(first);
    wall_ahead_s = wall_at_s = 0;
}

static void
a_session_that_ends_early_is_replaced_once(void **state)
{
    (void)state;
    open_express(NULL);
    assert_good(put(1, BYTES, 1));
    s3_tell(&server, "POST", "/sessions", "{\"expires_in\": -1}");
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
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
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
    assert_int_equal(n_runs(), 2);
    assert_int_equal(n_sessions(), 3);
}

/* Return the number of requests for a read-only session. */
static unsigned
n_read_only(void)
{
    json_t *stats = s3_ask(&server, "GET", "/stats", ""), *request;
    unsigned n = 0;
    size_t i;

    json_array_foreach(json_object_get(stats, "requests"), i, request) {
        json_t *headers = json_object_get(request, "headers");
        const char *mode = json_string_value(
            json_object_get(headers, "x-amz-create-session-mode"));

        n += mode && !strcmp(mode, "ReadOnly");
    }
    json_decref(stats);
    return n;
}

/* The keyring tries again 2 s after a failure, and the server then gives a session. */
static void
a_session_that_cannot_be_had_is_told(void **state)
{
    static const char *const answers[] = {
        "{" CREATE ", \"count\": 2, \"do\": {\"status\": 403}}",
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
        assert_int_equal(n_read_only(), i ? 0 : 1);
        s3_close(tier);
        tier = NULL;
    }
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

/* True if the stack of the keyring's thread contains the text. */
static bool
is_on_stack(const char *text, size_t n)
{
    static unsigned char page[4096 + 64];
    struct s3_keyring *k = &s3_of(tier)->keyring;
    pthread_attr_t attr;
    void *stack;
    size_t size;
    bool found = false;
    int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pthread_getattr_np(k->thread, &attr), 0);
    assert_int_equal(pthread_attr_getstack(&attr, &stack, &size), 0);
    for (size_t at = 0; !found && at < size; at += 4096) {
        ssize_t got = pread(fd, page, sizeof page, (off_t)((uintptr_t)stack + at));

        found = got > 0 && memmem(page, (size_t)got, text, n);
    }
    pthread_attr_destroy(&attr);
    close(fd);
    return found;
}

static void
a_session_that_cannot_be_read_leaves_no_secret(void **state)
{
    char fault[600] = "[{" CREATE ", \"do\": {\"status\": 200, \"body\": \""
                      "<CreateSessionResult><Credentials><SecretAccessKey>";
    size_t n = strlen(fault);

    (void)state;
    for (size_t i = 0; i < 200; i++)
        fault[n + i] = 'S';
    strcpy(fault + n + 200, "</SecretAccessKey></Credentials></CreateSessionResult>\"}}]");
    s3_fault(&server, fault);
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    open_express(NULL);
    assert_int_equal(put(1, BYTES, 1), -EBADMSG);
    assert_false(is_on_stack(fault + n, 20));
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

/* The server refuses the read-write session and accepts the read-only session. */
static void
keys_that_may_only_read_read(void **state)
{
    (void)state;
    open_express(NULL);
    assert_good(put(1, BYTES, 1));
    s3_close(tier);
    s3_forget(&server);
    kvt_set_log(be_silent, NULL, KVT_LOG_INFO);
    s3_fault(&server, "{" CREATE ", \"do\": {\"status\": 403, \"code\": \"AccessDenied\"}}");
    open_express(NULL);
    assert_good(get(1, BYTES, 1));
    assert_good(probe(1));
    assert_int_equal(n_sessions(), 2);
    assert_string_equal(s3_header(&server, "CreateSession", "x-amz-create-session-mode"),
                        "ReadOnly");
    assert_fails(put(2, BYTES, 2), EACCES, "AccessDenied");
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
}

/* S3 Express accepts encryption headers for a session, not for a PUT in the session. */
static void
a_session_says_how_objects_are_encrypted(void **state)
{
    static const char *const kms[] = { "s3_sse=aws:kms", "s3_sse_kms_key_id=key/1", NULL };
    static const char sse[] = "x-amz-server-side-encryption";
    static const char key[] = "x-amz-server-side-encryption-aws-kms-key-id";

    (void)state;
    open_express(kms);
    assert_good(put(1, BYTES, 1));
    assert_string_equal(s3_header(&server, "CreateSession", sse), "aws:kms");
    assert_string_equal(s3_header(&server, "CreateSession", key), "key/1");
    assert_string_equal(s3_header(&server, "PutObject", sse), "");
    assert_string_equal(s3_header(&server, "PutObject", key), "");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keys_come_from_the_environment_of_the_configuration),
        TEST(endpoints_of_aws_are_chosen_by_the_environment),
        TEST(exceptions_from_proxies_are_those_of_the_environment),
        TEST(keys_that_have_expired_are_asked_for_once_more),
        TEST(keys_that_expire_soon_and_are_refused_are_asked_for_once_more),
        TEST(a_wrong_date_takes_no_keys_away),
        TEST(keys_that_a_head_is_refused_with_are_asked_for_once_more),
        TEST(lookups_go_on_after_keys_were_rotated),
        TEST(a_right_that_is_missing_renews_keys_once_a_minute),
        TEST(keys_that_cannot_be_renewed_are_used_on),
        TEST(keys_that_are_refused_again_are_told),
        TEST(a_source_that_fails_is_told_by_every_call),
        TEST(operations_that_wait_for_keys_end_when_the_tier_is_stopped),
        TEST(one_session_serves_all_at_once),
        TEST(sessions_are_replaced_before_they_expire),
        TEST(a_session_that_ends_early_is_replaced_once),
        TEST(a_session_that_is_refused_leads_to_newer_keys),
        TEST(a_session_that_cannot_be_had_is_told),
        TEST(a_session_that_cannot_be_read_leaves_no_secret),
        TEST(a_session_is_asked_for_again_when_that_failed),
        TEST(keys_that_may_only_read_read),
        TEST(a_session_says_how_objects_are_encrypted),
    };

    /* The environment of the configuration counts, and not the process's. */
    setenv("AWS_ACCESS_KEY_ID", "AKPROCESS", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "SKTEST-process", 1);
    unsetenv("AWS_SESSION_TOKEN");
    setenv("no_proxy", "127.0.0.1", 1);
    return s3_test_main("s3 keys", tests, "--bucket", S3_BUCKET, "--bucket",
                        S3_EXPRESS_BUCKET);
}
