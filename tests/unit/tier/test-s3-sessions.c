/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions of S3 Express: creation, refresh, expiry and refusal. */
#include <stdatomic.h>
#include <time.h>

#include "s3-keys-test.h"

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

/* The wall clock of this program replaces libc's.  If wall_at_s is not 0, the clock stands still at
 * wall_at_s. */
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

/* Make the keyring check the clock now. */
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
    s3_request(&server, "POST", "/sessions", "{\"expires_in\": -1}");
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
    assert_int_equal(n_sessions(), 2);
}

/* The keys that make sessions can expire too. */
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
    s3_request(&server, "POST", "/sessions", "{\"expires_in\": -1}");
    assert_int_equal(many_at_once(KVT__TIER_GET), N_READS);
    assert_int_equal(n_runs(), 2);
    assert_int_equal(n_sessions(), 3);
}

/* Return the number of requests for a read-only session. */
static unsigned
n_read_only(void)
{
    json_t *stats = s3_request_json(&server, "GET", "/stats", ""), *request;
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

/* The keyring retries 2 s after a failure; the server then returns a session. */
static void
a_missing_session_is_reported(void **state)
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
a_failed_session_request_is_retried(void **state)
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
a_session_request_names_the_encryption(void **state)
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_session_serves_all_at_once),
        TEST(sessions_are_replaced_before_they_expire),
        TEST(a_session_that_ends_early_is_replaced_once),
        TEST(a_session_that_is_refused_leads_to_newer_keys),
        TEST(a_missing_session_is_reported),
        TEST(a_session_that_cannot_be_read_leaves_no_secret),
        TEST(a_failed_session_request_is_retried),
        TEST(keys_that_may_only_read_read),
        TEST(a_session_request_names_the_encryption),
    };

    set_process_environment();
    return s3_test_main("s3 sessions", tests, "--bucket", S3_BUCKET, "--bucket",
                        S3_EXPRESS_BUCKET);
}
