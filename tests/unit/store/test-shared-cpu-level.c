/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory as a level of the store: slots on a device, chunks of another identity,
 * the age of chunks, other sizes, paths and sizes that are refused, a deleted directory, and
 * checks of the host. */
#include "shared-test.h"

#include "mem/pool.h"
#include "tier/tier.h"

static _Atomic time_t moved_s; /* seconds that the time of day is ahead */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int err = __real_clock_gettime(clock, out);

    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        out->tv_sec += moved_s;
    return err;
}

/* Run a request whose slot is in the memory of a device. */
static int
run_on_device(struct shared *s, enum kvt__tier_op_kind op, unsigned i)
{
    struct kvt__slot_source source = { .on_device = true };
    struct request r;

    request_init(&r, &s->e, op, i);
    r.req.slot.source = &source;
    kvt__store_run(s->e.store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static void
slots_on_a_device_pass_the_memory_by(void **state)
{
    struct shared *s = *state;

    open_with_chunk_1(s);
    assert_int_equal(run_on_device(s, KVT__TIER_GET, 1), -ENOENT);
    assert_int_equal(get(&s->e, 1), 0); /* still there */
    assert_int_equal(run_on_device(s, KVT__TIER_PUT, 2), -EEXIST);
    assert_int_equal(get(&s->e, 2), -ENOENT);
    kvt__store_close(s->e.store);
}

static void
chunk_of_another_identity_is_a_miss(void **state)
{
    struct shared *s = *state;
    struct request r;

    open_with_chunk_1(s);
    request_init(&r, &s->e, KVT__TIER_GET, 1);
    r.req.id = id_of(2);
    kvt__store_run(s->e.store, &r.req);
    assert_int_equal(r.req.error.code, -ENOENT);
    assert_int_equal(get(&s->e, 1), 0);
    free(r.memory);
    request_init(&r, &s->e, KVT__TIER_PUT, 1); /* the new chunk replaces the old one */
    r.req.id = id_of(2);
    kvt__store_run(s->e.store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    assert_int_equal(get(&s->e, 1), -ENOENT);
    kvt__store_close(s->e.store);
}

/* Run a request of a store with lossy encodings. */
static int
run_lossy(const struct shared *s, enum kvt__tier_op_kind op, unsigned i)
{
    struct request r;

    request_init(&r, &s->e, op, i);
    kvt__id_toggle_lossy(&r.req.id);
    kvt__store_run(s->e.store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static void
a_lossy_store_finds_exact_chunks_in_the_memory_and_keeps_them(void **state)
{
    struct shared *s = *state;
    char remote[400];

    open_with_chunk_1(s);
    kvt__store_close(s->e.store);
    snprintf(remote, sizeof remote, "remote_url=fs://%s/files", s->e.dir.path);
    s->settings[2] = remote;
    s->e.store = open_shared(s, "accept_serde=kv8");
    assert_non_null(s->e.store);
    assert_true(kvt__store_traits(s->e.store)->is_lossy);
    assert_int_equal(run_lossy(s, KVT__TIER_GET, 1), 0);
    (void)run_lossy(s, KVT__TIER_PUT, 1); /* into the files only */
    assert_int_equal(run_lossy(s, KVT__TIER_PUT, 2), 0);
    assert_int_equal(run_lossy(s, KVT__TIER_GET, 2), 0);
    kvt__store_close(s->e.store);
    s->settings[2] = NULL;
    s->e.store = open_shared(s, NULL);
    assert_int_equal(get(&s->e, 1), 0);
    assert_int_equal(get(&s->e, 2), -ENOENT);
    kvt__store_close(s->e.store);
}

static void
old_chunks_are_deleted_at_the_open(void **state)
{
    struct shared *s = *state;

    open_with_chunk_1(s);
    moved_s = 3600;
    put_soon(s, 2);
    kvt__store_close(s->e.store);
    s->e.store = open_shared(s, "shared_cpu_ttl=1800");
    assert_non_null(s->e.store);
    assert_int_equal(get(&s->e, 1), -ENOENT);
    assert_int_equal(get(&s->e, 2), 0);
    kvt__store_close(s->e.store);
    moved_s = 0;
}

static void
another_size_waits_for_users(void **state)
{
    struct shared *s = *state;

    open_with_chunk_1(s);
    s->settings[1] = "max_shared_cpu_size=0.125";
    struct kvt__store *first = s->e.store;
    assert_int_equal(n_warnings, 0);
    s->e.store = open_shared(s, NULL);
    assert_non_null(s->e.store);
    assert_int_equal(n_warnings, 1);
    assert_int_equal(get(&s->e, 1), 0);
    kvt__store_close(first);
    kvt__store_close(s->e.store);
    s->e.store = open_shared(s, NULL);
    assert_non_null(s->e.store);
    assert_int_equal(n_warnings, 1);
    assert_int_equal(get(&s->e, 1), -ENOENT); /* a new memory */
    put_soon(s, 1);
    kvt__store_close(s->e.store);
}

static void
disk_is_refused(void **state)
{
    struct shared *s = *state;
    struct temp_dir disk;

    temp_dir_make(&disk);
    if (temp_dir_has_attributes(&disk)) { /* a tmpfs has no attributes */
        snprintf(s->path, sizeof s->path, "shared_cpu_path=%s", disk.path);
        assert_null(open_shared(s, NULL));
        assert_non_null(strstr(kvt__why(), "is no tmpfs"));
        assert_non_null(strstr(kvt__why(), "shared_cpu_path"));
    }
    temp_dir_remove(&disk);
}

static void
memory_larger_than_the_host_is_refused(void **state)
{
    struct shared *s = *state;
    char size[64];

    uint64_t host = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    snprintf(size, sizeof size, "max_shared_cpu_size=%llu",
             (unsigned long long)(host >> 30) + 1);
    s->settings[1] = size;
    assert_null(open_shared(s, NULL));
    if (!strstr(kvt__why(), "index: map")) /* an emulator has few addresses */
        assert_non_null(strstr(kvt__why(), "max_shared_cpu_size"));
    s->settings[1] = "max_shared_cpu_size=0.0625"; /* the refused open left no file */
    open_with_chunk_1(s);
    kvt__store_close(s->e.store);
}

/* ------------------------------------------------------------------- deleted directories */

static void
remove_shared(const struct shared *s)
{
    char command[400];

    snprintf(command, sizeof command, "rm -r %s/kvtier-%u/shared", s->e.dir.path,
             (unsigned)geteuid());
    assert_int_equal(system(command), 0);
}

/* Two processes share chunks again after a user has deleted the directory. */
static void
deleted_directory_is_made_again(void **state)
{
    struct shared *s = *state, other;

    s->e.store = open_shared(s, NULL);
    assert_non_null(s->e.store);
    other = *s;
    other.e.store = open_shared(s, NULL);
    assert_non_null(other.e.store);
    put_soon(s, 1);
    for (int i = 0; i < 3; i++) {
        remove_shared(s);
        kvt__store_renew_indexes(s->e.store);
        assert_int_equal(get(&s->e, 1), -ENOENT);
        put_soon(s, 1);
        kvt__store_renew_indexes(other.e.store);
        assert_int_equal(get(&other.e, 1), 0);
    }
    kvt__store_close(other.e.store);
    kvt__store_close(s->e.store);
}

static void
failed_renewal_is_tried_again(void **state)
{
    struct shared *s = *state;
    char away[400];

    s->e.store = open_shared(s, NULL);
    assert_non_null(s->e.store);
    struct kvt__level *level = &s->e.store->levels[0];
    put_soon(s, 1);
    remove_shared(s);
    snprintf(away, sizeof away, "%s-away", s->e.dir.path);
    assert_int_equal(rename(s->e.dir.path, away), 0); /* no new directory can be made */
    n_warnings = 0;
    kvt__store_renew_indexes(s->e.store);
    assert_int_equal(n_warnings, 1);
    assert_true(put(&s->e, 1) != 0);
    assert_int_equal(rename(away, s->e.dir.path), 0);
    kvt__store_renew_indexes(s->e.store); /* too early */
    assert_false(kvt__table_is_current(level->index));
    atomic_store(&level->renew_from_ns, 0); /* the minute is over */
    kvt__store_renew_indexes(s->e.store);
    assert_true(kvt__table_is_current(level->index));
    put_soon(s, 1);
    assert_int_equal(get(&s->e, 1), 0);
    kvt__store_close(s->e.store);
}

static unsigned
n_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void
a_close_leaves_no_descriptor(void **state)
{
    struct shared *s = *state;
    unsigned n[2];

    for (unsigned i = 0; i < 2; i++) {
        s->e.store = open_shared(s, NULL);
        assert_non_null(s->e.store);
        kvt__store_close(s->e.store);
        n[i] = n_descriptors();
    }
    assert_int_equal(n[0], n[1]);
}

/* ------------------------------------------------------------------- checks */

struct reports {
    unsigned n;
    int status;
    char text[600]; /* of the last report */
};

static void
on_report(void *ctx, const char *about, int status, const char *text)
{
    struct reports *r = ctx;

    assert_string_equal(about, "shared memory");
    r->n++;
    r->status = status;
    snprintf(r->text, sizeof r->text, "%s", text);
}

static struct reports
look(const struct shared *s)
{
    const char *settings[] = { s->settings[0], s->settings[1], NULL };
    struct kvt_config *config = config_with(settings);
    struct reports r = { 0 };
    char url[300];

    snprintf(url, sizeof url, "shared_cpu://%s", s->e.dir.path);
    kvt__tier_check(&(struct kvt__tier_params){ .config = config, .name = "shared_cpu",
                                               .url = url },
                   &(struct kvt__reporter){ .fn = on_report, .ctx = &r });
    kvt_config_free(config);
    assert_int_equal(r.n, 1);
    return r;
}

static void
the_check_reports_the_memory_or_the_free_space(void **state)
{
    struct shared *s = *state;
    struct reports r = look(s);

    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.text, "have room for 0.06 GiB"));
    s->e.store = open_shared(s, NULL);
    assert_non_null(s->e.store);
    r = look(s);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.text, "0.06 GiB in "));
    assert_null(strstr(r.text, "max_shared_cpu_size"));
    s->settings[1] = "max_shared_cpu_size=0.125";
    r = look(s);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.text, "an engine makes a memory of the size max_shared_cpu_size"));
    kvt__store_close(s->e.store);
}

static void
the_check_reports_missing_space(void **state)
{
    struct shared *s = *state;

    s->settings[1] = "max_shared_cpu_size=16000";
    struct reports r = look(s);
    assert_true(r.status < 0);
    assert_non_null(strstr(r.text, "max_shared_cpu_size"));
    assert_null(open_shared(s, NULL));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHARED_TEST(slots_on_a_device_pass_the_memory_by),
        SHARED_TEST(chunk_of_another_identity_is_a_miss),
        SHARED_TEST(a_lossy_store_finds_exact_chunks_in_the_memory_and_keeps_them),
        SHARED_TEST(old_chunks_are_deleted_at_the_open),
        SHARED_TEST(another_size_waits_for_users),
        SHARED_TEST(disk_is_refused),
        SHARED_TEST(memory_larger_than_the_host_is_refused),
        SHARED_TEST(deleted_directory_is_made_again),
        SHARED_TEST(failed_renewal_is_tried_again),
        SHARED_TEST(a_close_leaves_no_descriptor),
        SHARED_TEST(the_check_reports_the_memory_or_the_free_space),
        SHARED_TEST(the_check_reports_missing_space),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
