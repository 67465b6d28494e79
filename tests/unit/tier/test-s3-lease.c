/* SPDX-License-Identifier: Apache-2.0
 *
 * max_remote_size on S3: one process at a time deletes objects, and no process does without a
 * lease. */
#include "s3-clean-test.h"

/* ---------------------------------------------------------------------- the lease */

static void
the_lease_is_made_by_a_conditional_put_and_given_back(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    expect_clean(t, 0);
    assert_true(is_there(LEASE "1"));
    expect_clean(t, 0);
    assert_false(is_there(LEASE "1"));
    assert_true(is_there(LEASE "2"));
    /* The first lease tests If-None-Match with a second request. */
    assert_int_equal(s3_count(&server, "statuses", "412"), 1);
    close_cleaner(t);
}

/* S3 Express accepts encryption headers for a session, not for a PUT in the session. */
static void
a_lease_is_encrypted_as_chunks_are(void **state)
{
    static const char *const settings[] = { "max_remote_size=1", "s3_enable_s3express=true",
                                            "s3_sse=aws:kms", NULL };
    const char *const buckets[] = { S3_BUCKET, S3_EXPRESS_BUCKET };
    struct s3_lease lease;
    char url[256];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kvt__tier *one;

        snprintf(url, sizeof url, "s3://127.0.0.1:%u/%s/%s", server.port, buckets[i],
                 server.prefix);
        assert_good(s3_try_open(url, i ? settings : settings + 2, &counters, &one));
        assert_good(kvt__s3_lease_acquire(s3_of(one), &lease));
        assert_string_equal(s3_header(&server, "PutObject", "x-amz-server-side-encryption"),
                            i ? "" : "aws:kms");
        s3_close(one);
    }
}

static void
a_process_that_finds_a_lease_does_not_clean(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 20);
    seed(LEASE "41", 10, 290);
    create_seeds();
    expect_clean(t, -EBUSY);
    assert_int_equal(n_youngest(), 20);
    assert_int_equal(n_done("PutObject"), 0);
    close_cleaner(t);
}

static void
a_lease_released_just_now_is_not_acquired(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 20);
    seed(LEASE "41", 0, 20);
    create_seeds();
    pthread_mutex_lock(&t->cleaner.lock);
    t->cleaner.short_interval_ns = 30 * KVT__NS_PER_S;
    pthread_mutex_unlock(&t->cleaner.lock);
    expect_clean(t, -EBUSY);
    pthread_mutex_lock(&t->cleaner.lock);
    t->cleaner.short_interval_ns = 10 * KVT__NS_PER_S;
    pthread_mutex_unlock(&t->cleaner.lock);
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    close_cleaner(t);
}

static void
an_expired_lease_is_taken_over_by_the_stores_clock(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    s3_config(&server, "{\"clock_offset_s\": 600}"); /* this host is ten minutes behind */
    seed_chunks(0, 20);
    seed(LEASE "41", 10, 299);
    create_seeds();
    expect_clean(t, -EBUSY);
    seed(LEASE "41", 10, 301);
    seed(LEASE "9", 10, 0); /* a lost lease of another process */
    seed(LEASE "none", 10, 0);
    seed(LEASE "0042", 10, 0);
    seed(LEASE "99999999999999999999", 10, 0);
    create_seeds();
    expect_clean(t, 0);
    assert_int_equal(n_youngest(), 10);
    assert_true(is_there(LEASE "42"));
    assert_false(is_there(LEASE "41"));
    close_cleaner(t);
}

static void
a_process_that_loses_the_race_does_not_clean(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 20);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"PutObject\", \"key\": \"cleaner\"}, "
             "\"do\": {\"status\": 412, \"code\": \"PreconditionFailed\"}}");
    expect_clean(t, -EBUSY);
    assert_int_equal(n_youngest(), 20);
    close_cleaner(t);
}

/* Otherwise each round would leave an additional object behind. */
static void
without_the_right_to_delete_nothing_is_counted(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed(LEASE "41", 10, 301);
    seed_chunks(0, 20);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObject$\"}, "
             "\"do\": {\"status\": 403, \"code\": \"AccessDenied\"}}");
    expect_clean(t, -EACCES);
    assert_non_null(strstr(kvt__why(), "s3:DeleteObject"));
    assert_int_equal(n_done("ListObjectsV2"), 2); /* listings of leases */
    assert_int_equal(n_youngest(), 20);
    close_cleaner(t);
}

static void
a_higher_lease_number_wins(void **state)
{
    struct s3_tier *t = open_cleaner();
    struct s3_lease ours;

    (void)state;
    s3_fault(&server, "{\"match\": {\"operation\": \"ListObjectsV2\"}, \"do\": {\"body\": "
             "\"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>\", "
             "\"status\": 200}}");
    seed(LEASE "2", 10, 0);
    create_seeds();
    assert_int_equal(kvt__s3_lease_acquire(t, &ours), -EBUSY);
    assert_false(is_there(LEASE "1"));
    assert_true(is_there(LEASE "2"));
    close_cleaner(t);
}

struct rival {
    struct s3_tier *t;
    pthread_t thread;
    int rc;
};

static void *
rival_main(void *arg)
{
    struct rival *r = arg;

    r->rc = kvt__s3_enforce_limit(r->t);
    return NULL;
}

/* The second process finds the lease held, or all objects already deleted. */
static void
one_of_many_processes_cleans(void **state)
{
    struct rival rivals[6];
    unsigned n_cleaned = 0;

    (void)state;
    seed_chunks(0, 40);
    create_seeds();
    for (size_t i = 0; i < 6; i++)
        rivals[i].t = open_cleaner();
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&rivals[i].thread, NULL, rival_main, &rivals[i]),
                         0);
    for (size_t i = 0; i < 6; i++) {
        pthread_join(rivals[i].thread, NULL);
        assert_true(rivals[i].rc == 0 || rivals[i].rc == -EBUSY);
        n_cleaned += !rivals[i].rc;
    }
    assert_true(n_cleaned >= 1);
    assert_int_equal(n_youngest(), 10);
    assert_int_equal(n_done("DeleteObjects"), 1);
    assert_int_equal(counted(KVT__N_evicted_chunks), 30);
    for (size_t i = 0; i < 6; i++)
        close_cleaner(rivals[i].t);
}

/* During the first request of deletions another process acquires the lease. */
static void
a_process_without_the_lease_stops_deleting(void **state)
{
    struct rival r = { .t = open_cleaner() };

    (void)state;
    seed_chunks(0, 2510);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"DeleteObjects\"}, "
             "\"do\": {\"hold\": true}}");
    assert_int_equal(pthread_create(&r.thread, NULL, rival_main, &r), 0);
    while (!n_done("DeleteObjects"))
        usleep(20000);
    seed(LEASE "2", 10, 0);
    create_seeds();
    s3_no_faults(&server);
    pthread_join(r.thread, NULL);
    assert_int_equal(r.rc, -EBUSY);
    assert_int_equal(n_done("DeleteObjects"), 1);
    assert_int_equal(n_youngest(), 1510);
    close_cleaner(r.t);
}

/* Age of a lease after kvt__s3_lease_acquire().  Not 0: another process takes the lease before
 * the list of chunks. */
static int64_t lease_age_ns;

int __real_kvt__s3_lease_acquire(struct s3_tier *t, struct s3_lease *lease);
int __wrap_kvt__s3_lease_acquire(struct s3_tier *t, struct s3_lease *lease);

int
__wrap_kvt__s3_lease_acquire(struct s3_tier *t, struct s3_lease *lease)
{
    int rc = __real_kvt__s3_lease_acquire(t, lease);

    if (rc || !lease_age_ns)
        return rc;
    lease->checked_ns -= lease_age_ns;
    seed(LEASE "2", 10, 0);
    create_seeds();
    s3_forget(&server);
    return 0;
}

/* Clean with a lost lease of this age and expect rc.  Return the number of list requests.
 * The chunks are below the limit, so no deletion checks the lease. */
static unsigned
n_lists_with_lost_lease(int64_t age_ns, int rc)
{
    struct s3_tier *t = open_cleaner();

    seed_chunks(0, 5);
    create_seeds();
    lease_age_ns = age_ns;
    expect_clean(t, rc);
    lease_age_ns = 0;
    close_cleaner(t);
    return n_done("ListObjectsV2");
}

static void
a_lost_lease_ends_a_list_that_takes_longer_than_a_minute(void **state)
{
    (void)state;
    assert_int_equal(n_lists_with_lost_lease(61 * KVT__NS_PER_S, -EBUSY), 1); /* of leases */
}

static void
a_lease_is_not_checked_for_each_page_of_a_list(void **state)
{
    (void)state;
    assert_int_equal(n_lists_with_lost_lease(1, 0), 1); /* of chunks */
}

static void
a_lease_is_renewed_at_half_time_and_lost_near_expiry(void **state)
{
    struct s3_tier *t = open_cleaner();
    struct s3_lease lease;

    (void)state;
    assert_int_equal(kvt__s3_lease_acquire(t, &lease), 0);
    s3_forget(&server);
    assert_int_equal(kvt__s3_lease_renew(&lease), 0);
    assert_int_equal(n_done("PutObject"), 0);
    seed(LEASE "1", 10, 150);
    create_seeds();
    assert_int_equal(kvt__s3_lease_renew(&lease), 0);
    assert_int_equal(n_done("PutObject"), 1);
    assert_int_equal(kvt__s3_lease_renew(&lease), 0);
    assert_int_equal(n_done("PutObject"), 1);
    seed(LEASE "1", 10, 190);
    create_seeds();
    assert_int_equal(kvt__s3_lease_renew(&lease), -EBUSY);
    close_cleaner(t);
}

/* ---------------------------------------------------- stores without If-None-Match */

static void
a_store_without_conditions_evicts_nothing_and_warns_once(void **state)
{
    struct s3_tier *t;

    (void)state;
    seed_chunks(0, 20);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"PutObject\", \"key\": \"cleaner\"}, "
             "\"count\": null, \"do\": {\"status\": 501, \"code\": \"NotImplemented\"}}");
    t = open_cleaner();
    put_some(t, 1);
    pthread_join(t->cleaner.thread, NULL); /* the thread ends: further rounds are useless */
    t->cleaner.has_thread = false;
    expect_warning("If-None-Match");
    expect_warning("max_remote_size is not enforced at 127.0.0.1");
    assert_int_equal(n_youngest(), 20);
    assert_false(is_there(LEASE "1"));
    close_cleaner(t);
}

/* The store responds 200 where 412 is correct. */
static void
a_store_that_ignores_conditions_evicts_nothing(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 20);
    create_seeds();
    s3_fault(&server, "{\"match\": {\"operation\": \"PutObject\", \"key\": \"cleaner\"}, "
             "\"count\": null, \"do\": {\"status\": 200, \"body\": \"\"}}");
    expect_clean(t, -EOPNOTSUPP);
    assert_int_equal(n_youngest(), 20);
    close_cleaner(t);
}

/* ---------------------------------------------------------------------- the thread */

static void
a_process_that_stores_enforces_the_limit(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    seed_chunks(0, 30);
    create_seeds();
    put_some(t, 1);
    for (int i = 0; i < 3000 && counted(KVT__N_evicted_chunks) < 21; i++)
        usleep(20000);
    assert_int_equal(counted(KVT__N_evicted_chunks), 21);
    assert_int_equal(n_youngest(), 9);
    close_cleaner(t);
}

static void
without_stores_or_limit_nothing_is_listed(void **state)
{
    struct s3_tier *reader = open_cleaner();
    struct s3_tier *t = s3_of(s3_open_with(&server, NULL, NULL));
    struct kvt__found found;
    struct chunk c;
    bool same;

    (void)state;
    seed_chunks(0, 30);
    create_seeds();
    put_some(t, 1);
    chunk_init(&c, "m", 1);
    assert_int_equal(get_bytes(&reader->tier, &c.object, EACH, 1, &found, &same), 0);
    assert_false(t->cleaner.has_thread);
    close_cleaner(t);
    close_cleaner(reader);
    assert_int_equal(n_done("ListObjectsV2"), 0);
    assert_int_equal(n_youngest(), 30);
}

static void
closing_does_not_wait_for_the_store(void **state)
{
    struct s3_tier *t = open_cleaner();

    (void)state;
    s3_fault(&server, "{\"match\": {\"operation\": \"ListObjectsV2\"}, \"count\": null, "
             "\"do\": {\"stall_at\": 10}}");
    put_some(t, 1);
    while (!n_done("ListObjectsV2"))
        usleep(20000);
    close_cleaner(t);
    assert_int_equal(warned.n, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CLEAN(the_lease_is_made_by_a_conditional_put_and_given_back),
        CLEAN(a_lease_is_encrypted_as_chunks_are),
        CLEAN(a_process_that_finds_a_lease_does_not_clean),
        CLEAN(a_lease_released_just_now_is_not_acquired),
        CLEAN(an_expired_lease_is_taken_over_by_the_stores_clock),
        CLEAN(a_process_that_loses_the_race_does_not_clean),
        CLEAN(without_the_right_to_delete_nothing_is_counted),
        CLEAN(a_higher_lease_number_wins),
        CLEAN(one_of_many_processes_cleans),
        CLEAN(a_process_without_the_lease_stops_deleting),
        CLEAN(a_lost_lease_ends_a_list_that_takes_longer_than_a_minute),
        CLEAN(a_lease_is_not_checked_for_each_page_of_a_list),
        CLEAN(a_lease_is_renewed_at_half_time_and_lost_near_expiry),
        CLEAN(a_store_without_conditions_evicts_nothing_and_warns_once),
        CLEAN(a_store_that_ignores_conditions_evicts_nothing),
        CLEAN(a_process_that_stores_enforces_the_limit),
        CLEAN(without_stores_or_limit_nothing_is_listed),
        CLEAN(closing_does_not_wait_for_the_store),
    };

    return clean_test_main("s3 lease", tests);
}
