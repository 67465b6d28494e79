/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations by key over several tiers: which tiers are asked, corrupt objects, sizes, names,
 * and many operations at once. */
#include "files.h" /* first: a global below has the name of a parameter */

#include "by-key-test.h"
#include "tier/tier.h"

#define KEY "model@1@0@5@bfloat16"
#define OTHER "model@1@0@6@bfloat16"
#define NAME "a name/of any form"
#define N_OPS 120
#define N_KEYS 40 /* more chunks than fit the limit */

static void
open_both(const char *setting)
{
    char disk[300], url[128];
    const char *settings[] = { disk, "max_local_disk_size=1", url, "disable_tls=true",
                               "aws_access_key_id=" S3_ACCESS,
                               "aws_secret_access_key=" S3_SECRET, S3_PATIENT, setting, NULL };

    snprintf(disk, sizeof disk, "local_disk=%s", dir.path);
    snprintf(url, sizeof url, "remote_url=s3://127.0.0.1:%u/" S3_BUCKET "/%s", server.port,
             server.prefix);
    open_with(settings);
}

static void
open_fault(const char *faults)
{
    char url[400];

    snprintf(url, sizeof url, "remote_url=fault://%s/fs://%s", faults, dir.path);
    open_with((const char *const[]){ url, "max_remote_size=0.03", NULL });
}

static const char *
disk_path(void)
{
    static char path[400];

    snprintf(path, sizeof path, "%s/" KEY ".pt", dir.path);
    return path;
}

static bool deletes_before_read;

int __real_kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *tier_op);
int __wrap_kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *tier_op);

/* Delete the file between the probe and the read. */
int
__wrap_kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *tier_op)
{
    if (deletes_before_read && tier_op->kind == KVT__TIER_GET)
        (void)unlink(disk_path());
    return __real_kvt__tier_wait(tier, tier_op);
}

static uint64_t
n_chunks(void)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);

    assert_int_equal(kvt_store_tier(store, 0, &info), 0);
    return info.n_chunks;
}

static int
count_key(void *ctx, const struct kvt_listed *listed)
{
    (void)listed;
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned
n_listed(void)
{
    unsigned n = 0;

    assert_int_equal(kvt_store_list(store, "", count_key, &n), 0);
    return n;
}

/* ------------------------------------------------------------------ several tiers */

static void
an_operation_visits_the_tiers_in_order(void **state)
{
    (void)state;
    open_both("disk_io_threads=1");
    for (size_t i = 0; i < N_WAYS; i++) {
        assert_int_equal(ways[i](KVT_OP_PUT, 0, KEY), 0);
        assert_int_equal(n_listed(), 2);
        s3_forget(&server);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        assert_int_equal(ways[i](KVT_OP_STAT, 0, KEY), 0);
        assert_int_equal(s3_n_requests(&server), 0);
        assert_int_equal(unlink(disk_path()), 0);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        assert_int_equal(ways[i](KVT_OP_STAT, 0, KEY), 0);
        assert_int_equal(op.found_bytes, strlen(BYTES));
        assert_int_equal(ways[i](KVT_OP_VERIFY, 0, KEY), 0);
        assert_int_equal(ways[i](KVT_OP_PUT, 0, KEY), 0);
        assert_int_equal(ways[i](KVT_OP_DELETE, 0, KEY), 0);
        assert_int_equal(n_listed(), 0);
        assert_int_equal(n_chunks(), 0);
        for (uint32_t kind = KVT_OP_GET; kind <= KVT_OP_VERIFY; kind++) {
            expect_refused(ways[i](kind, 0, KEY), ENOENT, KEY);
            assert_int_equal(op.found_bytes, 0);
        }
    }
}

static int
run_in(uint32_t tier, uint32_t kind, const char *key)
{
    about(kind, 0, key)->tier = tier;
    (void)!kvt_store_run(store, &op);
    return op.status;
}

static void
an_operation_visits_only_the_chosen_tier(void **state)
{
    (void)state;
    open_both(NULL);
    for (uint32_t tier = 1; tier <= 2; tier++) {
        uint32_t other = 3 - tier;

        assert_int_equal(run_in(tier, KVT_OP_PUT, KEY), 0);
        assert_int_equal(n_listed(), 1);
        for (uint32_t kind = KVT_OP_GET; kind <= KVT_OP_VERIFY; kind++)
            assert_int_equal(run_in(other, kind, KEY), -ENOENT);
        expect_bytes(run_in(tier, KVT_OP_GET, KEY));
        assert_int_equal(run_in(tier, KVT_OP_STAT, KEY), 0);
        assert_int_equal(run_in(tier, KVT_OP_VERIFY, KEY), 0);
        assert_int_equal(run_in(0, KVT_OP_PUT, KEY), 0);
        assert_int_equal(run_in(other, KVT_OP_DELETE, KEY), 0);
        assert_int_equal(run_in(other, KVT_OP_GET, KEY), -ENOENT);
        expect_bytes(run_in(tier, KVT_OP_GET, KEY));
        assert_int_equal(run_in(tier, KVT_OP_DELETE, KEY), 0);
        assert_int_equal(n_listed(), 0);
    }
    assert_int_equal(run_in(3, KVT_OP_STAT, KEY), -EINVAL);
}

/* Programs that were compiled with an older header have no field for the tier. */
static void
an_operation_without_the_field_of_the_tier_visits_all_tiers(void **state)
{
    (void)state;
    open_both(NULL);
    about(KVT_OP_PUT, 0, KEY)->tier = 3;
    op.struct_size = offsetof(struct kvt_op, tier);
    assert_int_equal(kvt_store_run(store, &op), 0);
    assert_int_equal(n_listed(), 2);
}

static void
a_put_into_a_tier_that_stores_nothing_is_refused(void **state)
{
    (void)state;
    open_both("store_location=LocalDiskBackend");
    assert_int_equal(run_in(1, KVT_OP_PUT, KEY), 0);
    expect_refused(run_in(2, KVT_OP_PUT, KEY), EINVAL, "store_location");
    assert_int_equal(n_listed(), 1);
}

static void
an_object_deleted_after_the_check_is_read_from_the_next_tier(void **state)
{
    (void)state;
    open_both("disk_io_threads=1");
    for (size_t i = 0; i < N_WAYS; i++) {
        assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
        deletes_before_read = true;
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        deletes_before_read = false;
        assert_int_equal(access(disk_path(), F_OK), -1);
    }
}

static void
a_corrupt_object_ends_a_get_and_stays(void **state)
{
    (void)state;
    open_both(NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    flip_byte(disk_path(), 0);
    s3_forget(&server);
    for (size_t i = 0; i < N_WAYS; i++) {
        expect_refused(ways[i](KVT_OP_GET, 0, KEY), EBADMSG, "checksum is wrong");
        assert_memory_equal(buf, "nothing at", strlen(BYTES));
        assert_false(op.found & KVT_FOUND_CHECKED);
        expect_refused(ways[i](KVT_OP_VERIFY, 0, KEY), EBADMSG, "checksum is wrong");
        assert_int_equal(ways[i](KVT_OP_STAT, 0, KEY), 0);
        assert_int_equal(n_chunks(), 1);
    }
    assert_int_equal(s3_n_requests(&server), 0);
    assert_int_equal(unlink(disk_path()), 0);
    for (size_t i = 0; i < N_WAYS; i++) {
        s3_fault(&server, "{\"match\": {\"method\": \"GET\"}, \"do\": {\"corrupt_at\": 3}}");
        expect_refused(ways[i](KVT_OP_GET, 0, KEY), EBADMSG, "checksum is wrong");
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
    }
}

/* The circuit of an engine's requests would not ask the tier after eight failures. */
static void
an_operation_tries_a_failing_tier(void **state)
{
    (void)state;
    open_fault("seed=1,read_error=1");
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    for (int i = 0; i < 12; i++)
        expect_refused(ways[i % 2](KVT_OP_GET, 0, KEY), EIO, "read error made by fault");
    assert_int_equal(run(KVT_OP_STAT, 0, KEY), 0);
}

static void
an_operation_reads_locations_that_engines_do_not_read(void **state)
{
    (void)state;
    open_disk("retrieve_locations=LocalCPUBackend");
    for (size_t i = 0; i < N_WAYS; i++) {
        assert_int_equal(ways[i](KVT_OP_PUT, 0, KEY), 0);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        assert_int_equal(ways[i](KVT_OP_STAT, 0, KEY), 0);
    }
}

static void
an_object_that_cannot_be_deleted_keeps_its_entry(void **state)
{
    (void)state;
    open_fault("remove_error=1");
    for (size_t i = 0; i < N_WAYS; i++) {
        assert_int_equal(ways[i](KVT_OP_PUT, 0, KEY), 0);
        expect_refused(ways[i](KVT_OP_DELETE, 0, KEY), EIO, "remove error made by fault");
        assert_int_equal(n_chunks(), 1);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
    }
}

/* No process has populated the memory, and no read by key would use a chunk there. */
static void
a_put_needs_no_shared_memory(void **state)
{
    char disk[300], path[300];
    const char *settings[] = { disk, "max_local_disk_size=1", path,
                               "max_shared_cpu_size=0.0625", NULL };
    struct temp_dir shared;

    (void)state;
    temp_dir_make_in_memory(&shared);
    snprintf(disk, sizeof disk, "local_disk=%s", dir.path);
    snprintf(path, sizeof path, "shared_cpu_path=%s", shared.path);
    open_with(settings);
    for (size_t i = 0; i < N_WAYS; i++) {
        int status = ways[i](KVT_OP_PUT, 0, KEY);
        if (status)
            fail_msg("%s", op.why);
        expect_bytes(ways[i](KVT_OP_GET, 0, KEY));
        assert_int_equal(ways[i](KVT_OP_DELETE, 0, KEY), 0);
        assert_int_equal(n_listed(), 0);
    }
    kvt_store_close(store);
    store = NULL;
    temp_dir_remove(&shared);
}

/* ------------------------------------------------------------------------ sizes */

static void
expect_size(struct kvt_op *it)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(store), .events = POLLIN };
    struct kvt_op *done;

    assert_int_equal(kvt_store_run(store, it), -EMSGSIZE);
    assert_int_equal(it->found_bytes, strlen(BYTES));
    it->found_bytes = 0;
    assert_int_equal(kvt_store_submit(store, &it, 1), 0);
    while (!kvt_store_poll(store, &done, 1))
        poll(&fd, 1, 1000);
    assert_int_equal(it->status, -EMSGSIZE);
    assert_int_equal(it->found_bytes, strlen(BYTES));
}

static void
a_get_into_too_few_bytes_returns_the_size(void **state)
{
    (void)state;
    for (int s3 = 0; s3 < 2; s3++) {
        s3 ? open_s3(S3_BUCKET, NULL) : open_disk(NULL);
        assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
        about(KVT_OP_GET, 0, KEY);
        op.bytes = strlen(BYTES) - 1;
        expect_size(&op);
        assert_memory_equal(buf, "nothing at", strlen(BYTES));
        op.buf = NULL;
        op.bytes = 0;
        expect_size(&op);
        kvt_store_close(store);
        store = NULL;
    }
}

/* With a buffer above 64 MiB, a waiting thread probes the size first. */
static void
a_get_into_much_memory_reads_the_object(void **state)
{
    size_t bytes = (size_t)65 << 20;
    char *much = malloc(bytes);

    (void)state;
    assert_non_null(much);
    open_s3(S3_BUCKET, NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    about(KVT_OP_GET, 0, KEY);
    op.buf = much;
    op.bytes = bytes;
    assert_int_equal(kvt_store_run(store, &op), 0);
    assert_int_equal(op.found_bytes, strlen(BYTES));
    assert_true(op.found & KVT_FOUND_CHECKED);
    assert_memory_equal(much, BYTES, strlen(BYTES));
    op.key = OTHER;
    assert_int_equal(kvt_store_run(store, &op), -ENOENT);
    free(much);
}

static void
a_chunk_can_have_no_bytes(void **state)
{
    (void)state;
    open_both(NULL);
    about(KVT_OP_PUT, 0, KEY);
    op.buf = NULL;
    op.bytes = 0;
    assert_int_equal(kvt_store_run(store, &op), 0);
    op.kind = KVT_OP_GET;
    assert_int_equal(kvt_store_run(store, &op), 0);
    assert_int_equal(op.found_bytes, 0);
    assert_int_equal(run(KVT_OP_VERIFY, 0, KEY), 0);
}

static void
a_verification_needs_no_memory(void **state)
{
    (void)state;
    open_both(NULL);
    assert_int_equal(run(KVT_OP_PUT, 0, KEY), 0);
    for (int on_s3 = 0; on_s3 < 2; on_s3++) {
        about(KVT_OP_VERIFY, 0, KEY);
        op.buf = NULL;
        op.bytes = 0;
        assert_int_equal(kvt_store_run(store, &op), 0);
        assert_int_equal(op.found_bytes, strlen(BYTES));
        assert_int_equal(op.found, KVT_FOUND_CHECKED | KVT_FOUND_ID | KVT_FOUND_KEY_ID);
        (void)unlink(disk_path());
    }
}

/* ------------------------------------------------------------------------ names */

static void
a_name_is_stored_and_deleted(void **state)
{
    (void)state;
    open_s3(S3_BUCKET, NULL);
    for (size_t i = 0; i < N_WAYS; i++) {
        assert_int_equal(ways[i](KVT_OP_PUT, KVT_OP_NAME, NAME), 0);
        expect_bytes(ways[i](KVT_OP_GET, KVT_OP_NAME, NAME));
        assert_int_equal(ways[i](KVT_OP_VERIFY, KVT_OP_NAME, NAME), 0);
        assert_int_equal(ways[i](KVT_OP_STAT, KVT_OP_NAME, NAME), 0);
        assert_int_equal(ways[i](KVT_OP_PUT, KVT_OP_NAME, NAME), 0);
        assert_int_equal(ways[i](KVT_OP_DELETE, KVT_OP_NAME, NAME), 0);
        expect_refused(ways[i](KVT_OP_GET, KVT_OP_NAME, NAME), ENOENT, NAME);
        assert_int_equal(n_chunks(), 0);
    }
}

static void
a_name_needs_a_store_without_files(void **state)
{
    (void)state;
    open_both(NULL);
    for (size_t i = 0; i < N_WAYS; i++)
        for (uint32_t kind = KVT_OP_PUT; kind <= KVT_OP_VERIFY; kind++)
            expect_refused(ways[i](kind, KVT_OP_NAME, NAME), EINVAL, "with s3:// alone");
}

static void
an_operation_that_is_none_is_refused(void **state)
{
    (void)state;
    open_disk(NULL);
    for (size_t i = 0; i < N_WAYS; i++) {
        expect_refused(ways[i](0, 0, KEY), EINVAL, "kind 0 does not exist");
        expect_refused(ways[i](6, 0, KEY), EINVAL, "kind 6 does not exist");
        expect_refused(ways[i](KVT_OP_PUT, 0, "no key"), EINVAL, "no key");
    }
    for (uint32_t kind = KVT_OP_PUT; kind <= KVT_OP_VERIFY; kind++) {
        bool needs_buffer = kind == KVT_OP_PUT || kind == KVT_OP_GET;

        about(kind, 0, KEY)->buf = NULL;
        assert_int_equal(kvt_store_run(store, &op), needs_buffer ? -EINVAL : -ENOENT);
    }
}

/* ------------------------------------------------------------------ many at once */

static struct kvt_op many[N_OPS];
static char keys[N_OPS][64], bufs[N_OPS][64];

/* Submit all of many, n_keys keys in turn, and wait for the ends. */
static void
submit_many(const uint32_t *kinds, unsigned n_kinds, unsigned n_keys)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(store), .events = POLLIN };
    struct kvt_op *ops[N_OPS], *done[N_OPS];
    size_t n = 0;

    for (unsigned i = 0; i < N_OPS; i++) {
        snprintf(keys[i], sizeof keys[i], "model@1@0@%x@bfloat16", i % n_keys + 1);
        memcpy(bufs[i], BYTES, sizeof BYTES);
        many[i] = (struct kvt_op)KVT_INIT(struct kvt_op);
        many[i].kind = kinds[i % n_kinds];
        many[i].key = keys[i];
        many[i].buf = bufs[i];
        many[i].bytes = many[i].kind == KVT_OP_PUT ? strlen(BYTES) : sizeof bufs[i];
        ops[i] = &many[i];
    }
    assert_int_equal(kvt_store_submit(store, ops, N_OPS), 0);
    while (n < N_OPS) {
        n += kvt_store_poll(store, done, N_OPS);
        if (n < N_OPS)
            poll(&fd, 1, 1000);
    }
}

/* A status that the operation may have while others change the key. */
static void
expect_ends(void)
{
    for (unsigned i = 0; i < N_OPS; i++) {
        const struct kvt_op *it = &many[i];
        bool puts = it->kind == KVT_OP_PUT;

        if (it->status && (puts || it->status != -ENOENT))
            fail_msg("kind %u of %s: %s", it->kind, it->key, it->why);
        if (it->kind == KVT_OP_GET && !it->status)
            assert_memory_equal(it->buf, BYTES, strlen(BYTES));
    }
}

static void
operations_of_one_key_do_not_disturb_each_other(void **state)
{
    static const uint32_t puts[] = { KVT_OP_PUT };
    static const uint32_t all[] = { KVT_OP_PUT, KVT_OP_GET, KVT_OP_STAT, KVT_OP_VERIFY,
                                    KVT_OP_DELETE };
    static const char *const threads[] = { "disk_io_threads=1", "disk_io_threads=4" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        open_both(threads[i]);
        submit_many(puts, 1, 1);
        expect_ends();
        expect_bytes(run(KVT_OP_GET, 0, "model@1@0@1@bfloat16"));
        submit_many(all, 5, 3);
        expect_ends();
        kvt_store_close(store);
        open_s3(S3_BUCKET, threads[i]);
        submit_many(all, 5, 3);
        expect_ends();
        kvt_store_close(store);
        store = NULL;
    }
}

static void
puts_hold_the_limit(void **state)
{
    static const uint32_t kinds[] = { KVT_OP_PUT, KVT_OP_PUT, KVT_OP_GET };
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    char disk[300];

    (void)state;
    snprintf(disk, sizeof disk, "local_disk=%s", dir.path);
    open_with((const char *const[]){ disk, "max_local_disk_size=0.0001", NULL });
    for (int i = 0; i < 4; i++) {
        submit_many(kinds, 3, N_KEYS);
        for (unsigned k = 0; k < N_OPS; k++)
            if (many[k].status && many[k].status != -ENOENT && many[k].status != -ENOSPC)
                fail_msg("%s: %s", many[k].key, many[k].why);
        assert_int_equal(kvt_store_tier(store, 0, &info), 0);
        assert_true(info.n_chunks > 0 && info.used_bytes <= info.limit_bytes);
    }
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_operation_visits_the_tiers_in_order),
        TEST(an_operation_visits_only_the_chosen_tier),
        TEST(an_operation_without_the_field_of_the_tier_visits_all_tiers),
        TEST(a_put_into_a_tier_that_stores_nothing_is_refused),
        TEST(an_object_deleted_after_the_check_is_read_from_the_next_tier),
        TEST(a_corrupt_object_ends_a_get_and_stays),
        TEST(an_operation_tries_a_failing_tier),
        TEST(an_operation_reads_locations_that_engines_do_not_read),
        TEST(an_object_that_cannot_be_deleted_keeps_its_entry),
        TEST(a_put_needs_no_shared_memory),
        TEST(a_get_into_too_few_bytes_returns_the_size),
        TEST(a_get_into_much_memory_reads_the_object),
        TEST(a_chunk_can_have_no_bytes),
        TEST(a_verification_needs_no_memory),
        TEST(a_name_is_stored_and_deleted),
        TEST(a_name_needs_a_store_without_files),
        TEST(an_operation_that_is_none_is_refused),
        TEST(operations_of_one_key_do_not_disturb_each_other),
        TEST(puts_hold_the_limit),
    };

    if (!s3_server_start(&server, NULL)) {
        printf("skipped: needs python3\n");
        return 77;
    }
    int failed = cmocka_run_group_tests_name("store by key, tiers", tests, NULL, NULL);
    s3_server_stop(&server);
    return failed;
}
