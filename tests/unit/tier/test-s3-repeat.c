/* SPDX-License-Identifier: Apache-2.0
 *
 * Failed requests: which requests are retried, how often and until when, and the messages for
 * failures without a retry. */
#include "s3-test.h"

#define BYTES ((size_t)100 << 10)

/* -------------------------------------------------------------- temporary failures */

static const char *const passing[] = {
    "{\"status\": 500}",
    "{\"status\": 500, \"body\": \"\"}",
    "{\"status\": 502, \"body\": \"<html><p>Bad gateway</html>\"}",
    "{\"status\": 503, \"code\": \"ServiceUnavailable\"}",
    "{\"status\": 503, \"code\": \"SlowDown\"}",
    "{\"status\": 504, \"body\": \"too late\"}",
    "{\"status\": 429, \"code\": \"TooManyRequests\"}",
    "{\"status\": 408, \"code\": \"RequestTimeout\"}",
    "{\"status\": 400, \"code\": \"RequestTimeout\"}",
    "{\"status\": 409, \"code\": \"OperationAborted\"}",
    "{\"status\": 503, \"code\": \"SlowDown\", \"chunked\": true}",
    "{\"status\": 503, \"code\": \"SlowDown\", \"close\": true}",
};

static void
temporary_failures_are_retried(void **state)
{
    char fault[512];

    (void)state;
    open_s3(NULL);
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        uint64_t before = counted(KVT__N_s3_repetitions);

        snprintf(fault, sizeof fault,
                 "[{\"match\": {\"operation\": \"PutObject\"}, \"do\": %s},"
                 " {\"match\": {\"operation\": \"GetObject\"}, \"count\": 2, \"do\": %s}]",
                 passing[i], passing[i]);
        s3_fault(&server, fault);
        assert_good(put((int64_t)i, BYTES, i));
        assert_good(get((int64_t)i, BYTES, i));
        assert_int_equal(counted(KVT__N_s3_repetitions) - before, 3);
    }
}

/* The first connection: the client replaces a kept connection without a retry. */
static void
a_reset_before_the_answer_is_tried_again(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"do\": {\"reset\": true}}");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(counted(KVT__N_s3_repetitions), 1);
    s3_fault(&server, "{\"do\": {\"reset\": true}}");
    assert_good(get(1, BYTES, 1));
}

static void
an_incomplete_body_is_retried(void **state)
{
    static const char *const cuts[] = {
        "{\"reset_at\": 50000}", "{\"close_at\": 50000}", "{\"close_at\": 0}" };
    char fault[256];

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        uint64_t before = counted(KVT__N_s3_repetitions);

        snprintf(fault, sizeof fault,
                 "{\"match\": {\"method\": \"GET\"}, \"count\": 2, \"do\": %s}", cuts[i]);
        s3_fault(&server, fault);
        assert_good(get(1, BYTES, 1));
        assert_int_equal(counted(KVT__N_s3_repetitions) - before, 2);
    }
}

static void
bytes_damaged_in_transit_are_sent_again(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"status\": 400, "
             "\"code\": \"BadDigest\", \"message\": \"The CRC32C you specified did not "
             "match the calculated checksum.\"}}");
    assert_good(put(1, BYTES, 1));
    assert_int_equal(counted(KVT__N_s3_repetitions), 1);
    /* This status does not mean that the store lacks checksums. */
    assert_string_not_equal(s3_header(&server, "PutObject", "x-amz-checksum-crc32c"), "");
    assert_good(put(2, BYTES, 2));
    assert_string_not_equal(s3_header(&server, "PutObject", "x-amz-checksum-crc32c"), "");
}

static void
an_early_answer_to_a_put_is_taken(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"early\": true, "
             "\"status\": 503, \"code\": \"SlowDown\"}}");
    assert_good(put(1, (size_t)4 << 20, 1));
    assert_good(get(1, (size_t)4 << 20, 1));
    assert_int_equal(counted(KVT__N_s3_repetitions), 1);
}

/* Both times are the server's; the difference is at least the requested delay. */
static void
retry_after_is_waited_for(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"do\": {\"status\": 503, \"code\": \"SlowDown\", "
             "\"retry_after\": 1}}");
    assert_good(put(1, BYTES, 1));
    json_t *stats = s3_request_json(&server, "GET", "/stats", "");
    json_t *requests = json_object_get(stats, "requests");
    assert_int_equal(json_array_size(requests), 2);
    double first = json_real_value(json_object_get(json_array_get(requests, 0), "at"));
    double second = json_real_value(json_object_get(json_array_get(requests, 1), "at"));
    assert_true(second - first >= 0.99);
    json_decref(stats);
}

static void
a_response_with_a_body_to_a_put_is_a_success(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "[{\"match\": {\"method\": \"PUT\"}, \"do\": {\"status\": 201, "
             "\"body\": \"<html>Created</html>\"}},"
             "{\"match\": {\"method\": \"PUT\"}, \"do\": {\"status\": 200, "
             "\"chunked\": true, \"body\": \"\"}}]");
    assert_good(put(1, BYTES, 1));
    assert_good(put(2, BYTES, 2));
    assert_int_equal(s3_count(&server, "methods", "PUT"), 2);
    assert_int_equal(s3_count(&server, "connections", "opened"), 1);
}

/* ------------------------------------------------------------- permanent failures */

static void
permanent_failures_are_not_retried(void **state)
{
    static const struct {
        const char *status, *code;
        int error;
    } kinds[] = {
        { "403", "AccessDenied", EACCES },
        { "403", "SignatureDoesNotMatch", EACCES },
        { "400", "InvalidRequest", EIO },
        { "400", "InvalidArgument", EIO },
        { "405", "MethodNotAllowed", EIO },
        { "404", "NoSuchBucket", ENXIO },
        { "507", "QuotaExceeded", ENOSPC },
    };
    char fault[256];

    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(fault, sizeof fault, "{\"count\": 2, \"do\": {\"status\": %s, \"code\": "
                 "\"%s\", \"message\": \"Why it is so\"}}", kinds[i].status, kinds[i].code);
        s3_fault(&server, fault);
        s3_forget(&server);
        assert_fails(get(1, BYTES, 1), kinds[i].error, kinds[i].status, kinds[i].code,
                     ", request ", "GET model", "127.0.0.1", "Why it is so");
        assert_fails(put(2, BYTES, 2), kinds[i].error, kinds[i].status, kinds[i].code,
                     ", request ", "PUT model", "Why it is so");
        assert_int_equal(s3_n_requests(&server), 2);
    }
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

static void
a_wrong_secret_is_reported(void **state)
{
    (void)state;
    open_s3("aws_secret_access_key=SKTESU");
    assert_fails(put(1, BYTES, 1), EACCES, "403 SignatureDoesNotMatch",
                 "The secret key is wrong");
    assert_null(strstr(kvt__why(), "SKTESU"));
    assert_fails(probe(1), EACCES, "403", "HEAD model");
}

static void
a_missing_bucket_is_reported(void **state)
{
    static const char *const none[] = { NULL };
    char url[128];

    (void)state;
    snprintf(url, sizeof url, "s3://127.0.0.1:%u/nobucket/%s", server.port, server.prefix);
    assert_good(s3_try_open(url, none, &counters, &tier));
    assert_fails(put(1, BYTES, 1), ENXIO, "404 NoSuchBucket",
                 " at 127.0.0.1:", "There is no bucket 'nobucket' there: make it");
    assert_fails(get(1, BYTES, 1), ENXIO, "404 NoSuchBucket",
                 " at 127.0.0.1:", "There is no bucket 'nobucket' there: make it");
    assert_int_equal(probe(1), -ENOENT); /* a HEAD has no code for a missing bucket */
}

/* ---------------------------------------------------------------------- connections */

static void
a_miss_keeps_its_connection(void **state)
{
    (void)state;
    open_s3(NULL);
    never_hedge();
    for (int64_t i = 0; i < 50; i++) {
        assert_int_equal(get(i, BYTES, 0), -ENOENT);
        assert_int_equal(probe(i), -ENOENT);
    }
    assert_int_equal(s3_n_requests(&server), 100);
    assert_int_equal(s3_count(&server, "connections", "opened"), 1);
}

#define N_MISSES 3000u

static void
many_misses_open_no_more_connections_than_the_limit(void **state)
{
    struct async *all = calloc(N_MISSES, sizeof *all);
    sem_t over;

    (void)state;
    assert_non_null(all);
    sem_init(&over, 0, 0);
    open_s3("s3_max_inflight_reqs=8");
    never_hedge();
    for (unsigned i = 0; i < N_MISSES; i++)
        async_start(&all[i], KVT__TIER_PROBE, i, 0, &over);
    assert_int_equal(async_wait(all, N_MISSES, &over, -ENOENT), N_MISSES);
    assert_int_equal(s3_n_requests(&server), N_MISSES);
    assert_in_range(s3_count(&server, "connections", "max_open"), 1, 8);
    assert_in_range(s3_count(&server, "connections", "opened"), 1, 8);
    free(all);
    sem_destroy(&over);
}

/* A kept connection that the server has closed does not count as a retry. */
static void
a_closed_connection_is_replaced_without_a_warning(void **state)
{
    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"count\": 5, \"do\": {\"close\": true}}");
    for (int i = 0; i < 6; i++)
        assert_good(get(1, BYTES, 1));
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

/* ------------------------------------------------------------------- time and load */

static void
a_store_that_does_not_answer_ends_at_the_deadline(void **state)
{
    (void)state;
    open_s3("blocking_timeout_secs=1");
    assert_good(put(1, BYTES, 1));
    s3_of(tier)->write_ns = KVT__NS_PER_S;
    s3_fault(&server, "{\"count\": null, \"do\": {\"hold\": true}}");
    assert_fails(get(1, BYTES, 1), ETIMEDOUT, "GET model");
    assert_fails(put(2, BYTES, 2), ETIMEDOUT, "PUT model");
    assert_int_equal(probe(1), -ETIMEDOUT);
}

static void
a_body_that_stalls_ends_at_the_deadline(void **state)
{
    (void)state;
    open_s3("blocking_timeout_secs=1");
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"count\": null, "
             "\"do\": {\"stall_at\": 5000}}");
    assert_fails(get(1, BYTES, 1), ETIMEDOUT, "GET model");
}

static void
a_slow_body_is_waited_for(void **state)
{
    (void)state;
    open_s3(NULL);
    assert_good(put(1, BYTES, 1));
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"drip\": 200000}}");
    assert_good(get(1, BYTES, 1));
    assert_int_equal(s3_count(&server, "operations", "GetObject"), 1);
}

static void
a_late_read_is_sent_on_a_second_connection(void **state)
{
    (void)state;
    open_s3(NULL);
    never_hedge();
    assert_good(put(1, BYTES, 1));
    for (int i = 0; i < 100; i++) /* teaches the usual response time */
        assert_good(get(1, BYTES, 1));
    s3_of(tier)->pace.hedge_tokens = 20; /* for one hedge */
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"hold\": true}}");
    assert_good(get(1, BYTES, 1));
    assert_int_equal(counted(KVT__N_s3_hedges), 1);
    assert_int_equal(counted(KVT__N_s3_repetitions), 0);
}

/* Return the number of hedges that are allowed now, in a row. */
static unsigned
count_hedges(struct s3_pace *pace)
{
    unsigned n = 0;

    while (n < 1000 && kvt__s3_acquire_hedge(pace))
        n++;
    return n;
}

/* A store that becomes slow receives few requests twice, after any number of reads. */
static void
hedges_are_few_in_a_row_and_a_share_of_reads(void **state)
{
    struct s3_call call = { .can_hedge = true };
    struct s3_pace pace;

    (void)state;
    kvt__s3_pace_init(&pace, 64);
    assert_int_equal(count_hedges(&pace), 0);
    for (int i = 0; i < 100000; i++)
        kvt__s3_note_success(&pace, &call);
    assert_int_equal(count_hedges(&pace), 8);
    for (int i = 0; i < 59; i++)
        kvt__s3_note_success(&pace, &call);
    assert_int_equal(count_hedges(&pace), 2);
    kvt__s3_note_success(&pace, &call);
    assert_int_equal(count_hedges(&pace), 1);
    kvt__s3_pace_fini(&pace);
}

/* A timeout counts like SlowDown. */
static void
stalls_lower_the_number_of_stores(void **state)
{
    static const char *const late[] = {
        "{\"hold\": true}", "{\"status\": 504, \"body\": \"\"}",
        "{\"status\": 408, \"body\": \"\"}",
        "{\"status\": 400, \"code\": \"RequestTimeout\"}" };
    char fault[128];

    (void)state;
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        s3_teardown(state);
        s3_setup(state);
        open_s3("s3_stall_timeout_ms=500");
        double before = s3_of(tier)->pace.stores_limit;
        snprintf(fault, sizeof fault, "{\"match\": {\"method\": \"PUT\"}, \"do\": %s}",
                 late[i]);
        s3_fault(&server, fault);
        assert_good(put(1, BYTES, 1));
        assert_true(s3_of(tier)->pace.stores_limit < before);
        assert_true(counted(KVT__N_s3_repetitions) > 0);
    }
    assert_good(get(1, BYTES, 1));
    s3_of(tier)->pace.stores_limit = 32;
    s3_of(tier)->pace.reduced_ns -= KVT__NS_PER_S; /* otherwise both would count as one slowdown */
    s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"stall_at\": 5000}}");
    assert_good(get(1, BYTES, 1));
    assert_true(s3_of(tier)->pace.stores_limit <= 16);
}

/* The limit falls by half each time, also without stores, and rises up to the maximum. */
static void
the_limit_on_stores_falls_and_rises(void **state)
{
    struct s3_call call = { .is_store = true };
    struct s3_pace pace;

    (void)state;
    kvt__s3_pace_init(&pace, 64);
    for (double limit = 32; limit >= 1; limit /= 2) {
        pace.reduced_ns -= KVT__NS_PER_S;
        kvt__s3_note_overload(&pace);
        assert_true(pace.stores_limit == limit);
        kvt__s3_note_overload(&pace); /* at the same moment, so ignored */
        assert_true(pace.stores_limit == limit);
    }
    pace.reduced_ns -= KVT__NS_PER_S;
    kvt__s3_note_overload(&pace);
    assert_true(pace.stores_limit == 1);
    pace.stores_limit = 32;
    pace.n_stores = 8; /* the load that the server rejects */
    pace.reduced_ns -= KVT__NS_PER_S;
    kvt__s3_note_overload(&pace);
    assert_true(pace.stores_limit == 4);
    for (int i = 0; i < 10000; i++)
        kvt__s3_note_success(&pace, &call);
    assert_true(pace.stores_limit == 64);
    kvt__s3_pace_fini(&pace);
}

/* The limit delays stores, and no load waits for a delayed store. */
static void
loads_continue_while_stores_wait(void **state)
{
    static struct async puts[2];
    sem_t over;

    (void)state;
    sem_init(&over, 0, 0);
    open_s3(NULL);
    assert_good(put(1000, BYTES, 1000));
    s3_of(tier)->pace.stores_limit = 1;
    s3_forget(&server);
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"count\": null, "
             "\"do\": {\"hold\": true}}");
    for (unsigned i = 0; i < 2; i++)
        async_start(&puts[i], KVT__TIER_PUT, i, 4096, &over);
    for (int i = 0; i < 10; i++) {
        assert_good(get(1000, BYTES, 1000));
        assert_good(probe(1000));
    }
    assert_int_equal(s3_of(tier)->pace.n_stores, 1);
    assert_true(s3_count(&server, "operations", "PutObject") <= 1);
    tier->ops->stop(tier);
    assert_int_equal(async_wait(puts, 2, &over, -ECANCELED), 2);
    sem_destroy(&over);
}

#define N_OPS 200u

static void
an_outage_does_not_multiply_the_load(void **state)
{
    static struct async all[N_OPS];
    sem_t over;

    (void)state;
    sem_init(&over, 0, 0);
    open_s3(NULL);
    s3_fault(&server, "{\"count\": null, \"do\": {\"status\": 500}}");
    for (unsigned i = 0; i < N_OPS; i++)
        async_start(&all[i], KVT__TIER_GET, i, 4096, &over);
    assert_int_equal(async_wait(all, N_OPS, &over, -EIO), N_OPS);
    unsigned n = s3_n_requests(&server);
    assert_in_range(n, N_OPS, N_OPS + N_OPS / 2);
    assert_int_equal(counted(KVT__N_s3_requests), n);
    assert_int_equal(counted(KVT__N_s3_repetitions), n - N_OPS);
    sem_destroy(&over);
}

static void
stores_slow_down_before_loads_do(void **state)
{
    static struct async puts[64];
    sem_t over;

    (void)state;
    sem_init(&over, 0, 0);
    open_s3("s3_max_inflight_reqs=32");
    assert_good(put(1000, BYTES, 1000));
    s3_fault(&server, "{\"match\": {\"method\": \"PUT\"}, \"count\": 20, "
             "\"do\": {\"status\": 503, \"code\": \"SlowDown\"}}");
    double before = s3_of(tier)->pace.stores_limit;
    for (unsigned i = 0; i < 64; i++)
        async_start(&puts[i], KVT__TIER_PUT, i, 4096, &over);
    for (int i = 0; i < 20; i++)
        assert_good(get(1000, BYTES, 1000));
    assert_int_equal(async_wait(puts, 64, &over, 0), 64);
    assert_int_equal(s3_count(&server, "operations", "GetObject"), 20);
    assert_true(s3_of(tier)->pace.stores_limit < before);
    assert_int_equal(s3_of(tier)->pace.n_stores, 0);
    sem_destroy(&over);
}

static void
stores_grow_faster_again_when_all_is_well(void **state)
{
    static struct async puts[60];
    sem_t over;

    (void)state;
    sem_init(&over, 0, 0);
    open_s3("s3_max_inflight_reqs=32");
    s3_of(tier)->pace.stores_limit = 1;
    for (unsigned i = 0; i < 60; i++)
        async_start(&puts[i], KVT__TIER_PUT, i, 4096, &over);
    assert_int_equal(async_wait(puts, 60, &over, 0), 60);
    s3_forget(&server);
    s3_fault(&server, "{\"count\": null, \"do\": {\"hold\": true}}");
    for (unsigned i = 0; i < 60; i++)
        async_start(&puts[i], KVT__TIER_PUT, 100 + i, 4096, &over);
    for (int i = 0; i < 60000 && s3_count(&server, "max_at_a_time", NULL) < 4; i++)
        usleep(1000);
    s3_no_faults(&server);
    assert_int_equal(async_wait(puts, 60, &over, 0), 60);
    assert_in_range(s3_count(&server, "max_at_a_time", NULL), 4, 32);
    sem_destroy(&over);
}

static void
operations_in_flight_end_when_the_tier_stops(void **state)
{
    static struct async all[100];
    sem_t over;

    (void)state;
    sem_init(&over, 0, 0);
    open_s3("s3_max_inflight_reqs=8");
    s3_fault(&server, "{\"count\": null, \"do\": {\"hold\": true}}");
    for (unsigned i = 0; i < 100; i++)
        async_start(&all[i], i % 3 ? KVT__TIER_PUT : KVT__TIER_GET, i, 4096, &over);
    tier->ops->stop(tier);
    assert_int_equal(async_wait(all, 100, &over, -ECANCELED), 100);
    assert_int_equal(probe(1), -ECANCELED);
    sem_destroy(&over);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(temporary_failures_are_retried),
        S3_TEST(a_reset_before_the_answer_is_tried_again),
        S3_TEST(an_incomplete_body_is_retried),
        S3_TEST(bytes_damaged_in_transit_are_sent_again),
        S3_TEST(an_early_answer_to_a_put_is_taken),
        S3_TEST(retry_after_is_waited_for),
        S3_TEST(a_response_with_a_body_to_a_put_is_a_success),
        S3_TEST(permanent_failures_are_not_retried),
        S3_TEST(a_wrong_secret_is_reported),
        S3_TEST(a_missing_bucket_is_reported),
        S3_TEST(a_miss_keeps_its_connection),
        S3_TEST(many_misses_open_no_more_connections_than_the_limit),
        S3_TEST(a_closed_connection_is_replaced_without_a_warning),
        S3_TEST(a_store_that_does_not_answer_ends_at_the_deadline),
        S3_TEST(a_body_that_stalls_ends_at_the_deadline),
        S3_TEST(a_slow_body_is_waited_for),
        S3_TEST(a_late_read_is_sent_on_a_second_connection),
        S3_TEST(hedges_are_few_in_a_row_and_a_share_of_reads),
        S3_TEST(stalls_lower_the_number_of_stores),
        S3_TEST(the_limit_on_stores_falls_and_rises),
        S3_TEST(loads_continue_while_stores_wait),
        S3_TEST(an_outage_does_not_multiply_the_load),
        S3_TEST(stores_slow_down_before_loads_do),
        S3_TEST(stores_grow_faster_again_when_all_is_well),
        S3_TEST(operations_in_flight_end_when_the_tier_stops),
    };

    return s3_test_main("s3 repetitions", tests, NULL);
}
