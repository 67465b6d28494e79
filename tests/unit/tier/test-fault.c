/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault tier makes the faults of the settings with the given probabilities, and makes equal
 * faults again from an equal seed. */
#include "base/clock.h"
#include "tier-test.h"

/* ---------------------------------------------------------------- settings */

static void
check_refused(const char *url, int err, const char *part)
{
    struct kvt__tier *tier = NULL;

    assert_int_equal(try_open(url, true, &tier), -err);
    assert_null(tier);
    if (!strstr(kvt__why(), part))
        fail_msg("%s: '%s' is not in: %s", url, part, kvt__why());
}

static void
wrong_settings_are_refused_and_the_keys_listed(void **state)
{
    (void)state;
    check_refused("fault://sed=1/null://", EINVAL, "'sed=1'");
    check_refused("fault://sed=1/null://", EINVAL,
                  "keys: seed read_error write_error probe_error remove_error "
                  "short_read bit_flip write_corrupt enospc delay delay_ms hang "
                  "hang_ms read_mb_s shared.");
    check_refused("fault://read_error=1.01/null://", EINVAL, "'read_error=1.01'");
    check_refused("fault://read_error=-0.1/null://", EINVAL, "'read_error=-0.1'");
    check_refused("fault://read_error=/null://", EINVAL, "'read_error='");
    check_refused("fault://read_error/null://", EINVAL, "'read_error'");
    check_refused("fault://seed=7,hang=nan/null://", EINVAL, "'hang=nan'");
    check_refused("fault://seed=0x7/null://", EINVAL, "'seed=0x7'");
    check_refused("fault://seed=4294967296/null://", EINVAL, "'seed=4294967296'");
    check_refused("fault://seed=1,,hang=0/null://", EINVAL, "''");
    check_refused("fault://delay_ms=1e9/null://", EINVAL, "'delay_ms=1e9'");
}

static void
the_wrapped_tier_must_open(void **state)
{
    (void)state;
    check_refused("fault://seed=1", EINVAL, "wraps nothing");
    check_refused("fault://seed=1/", EINVAL, "is no URL");
    check_refused("fault://seed=1/gopher://x", ENODEV, "'gopher://'");
    check_refused("fault:///fs://relative", EINVAL, "is no absolute path");
}

static void
results_of_the_wrapped_tier_are_forwarded(void **state)
{
    struct temp_dir dir;
    struct kvt__tier *plain, *wrapped;
    struct chunk c;
    char url[512];

    (void)state;
    temp_dir_make(&dir);
    chunk_init(&c, "model", 1);
    for (int header = 0; header < 2; header++) {
        snprintf(url, sizeof url, "fs://%s", dir.path);
        plain = open_tier(url, header);
        snprintf(url, sizeof url, "fault:///fault://seed=3/fs://%s", dir.path);
        wrapped = open_tier(url, header);
        assert_int_equal(wrapped->phase, plain->phase);
        assert_true(wrapped->ops->private_dir(wrapped) >= 0);
        assert_int_equal(wrapped->default_limit, plain->default_limit);
        assert_int_equal(wrapped->ops->stored_bytes(wrapped, &c.object, 5000),
                         plain->ops->stored_bytes(plain, &c.object, 5000));
        wrapped->ops->close(wrapped);
        plain->ops->close(plain);
    }
    temp_dir_remove(&dir);
}

/* ------------------------------------------------------------------- rates */

#define N_OPS 2000

/* Record the results of N_OPS gets. */
static void
record(const char *url, int outcomes[N_OPS])
{
    struct kvt__tier *tier = open_tier(url, true);
    struct kvt__slot slot = slot_new(16, 0);
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", 1);
    for (int i = 0; i < N_OPS; i++)
        outcomes[i] = kvt__tier_get(tier, &c.object, &slot, &found);
    slot_free(&slot, 0);
    tier->ops->close(tier);
}

static int
count(const int outcomes[N_OPS], int err)
{
    int n = 0;

    for (int i = 0; i < N_OPS; i++)
        n += outcomes[i] == -err;
    return n;
}

static void
errors_come_at_their_rate(void **state)
{
    static const struct {
        const char *rate;
        int min, max;
    } cases[] = { { "0", 0, 0 }, { "0.01", 5, 40 }, { "0.3", 520, 680 },
                  { "0.9", 1740, 1860 }, { "1", N_OPS, N_OPS } };
    static int outcomes[N_OPS];
    char url[128];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int seed = 0; seed < 5; seed++) {
            snprintf(url, sizeof url, "fault://seed=%d,read_error=%s/null://", seed,
                     cases[i].rate);
            record(url, outcomes);
            assert_in_range(count(outcomes, EIO), cases[i].min, cases[i].max);
            assert_int_equal(count(outcomes, EIO) + count(outcomes, ENOENT), N_OPS);
        }
    }
}

static void
one_seed_gives_the_same_faults_again(void **state)
{
    static int first[N_OPS], again[N_OPS], other[N_OPS], mixed[N_OPS];

    (void)state;
    record("fault://seed=7,read_error=0.3/null://", first);
    record("fault://seed=7,read_error=0.3/null://", again);
    record("fault://seed=8,read_error=0.3/null://", other);
    record("fault://probe_error=1,bit_flip=0.5,read_error=0.3,seed=7/null://", mixed);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    assert_memory_equal(first, mixed, sizeof first);
}

static void
each_rate_concerns_its_own_operation(void **state)
{
    static const struct {
        const char *fault;
        int put, probe, get, remove;
    } cases[] = {
        { "", 0, ENOENT, ENOENT, ENOENT },
        { "read_error=1", 0, ENOENT, EIO, ENOENT },
        { "write_error=1", EIO, ENOENT, ENOENT, ENOENT },
        { "enospc=1", ENOSPC, ENOENT, ENOENT, ENOENT },
        { "probe_error=1", 0, EIO, ENOENT, ENOENT },
        { "remove_error=1", 0, ENOENT, ENOENT, EIO },
    };
    struct kvt__found found;
    struct chunk c;
    bool same;
    char url[128];

    (void)state;
    chunk_init(&c, "model", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(url, sizeof url, "fault://%s/null://", cases[i].fault);
        struct kvt__tier *tier = open_tier(url, true);
        assert_int_equal(put_bytes(tier, &c.object, 64, 1), -cases[i].put);
        assert_int_equal(kvt__tier_probe(tier, &c.object, &found), -cases[i].probe);
        assert_int_equal(get_bytes(tier, &c.object, 64, 1, &found, &same),
                         -cases[i].get);
        assert_int_equal(kvt__tier_remove(tier, &c.object), -cases[i].remove);
        tier->ops->close(tier);
    }
}

/* ------------------------------------------------------------------ damage */

#define BYTES ((size_t)5000)

struct fixture {
    struct temp_dir dir;
    struct kvt__tier *plain;
    struct kvt__tier *faulty;
    struct chunk chunk;
    struct kvt__slot slot;
};

static void
open_pair(struct fixture *f, const char *faults)
{
    char url[512];

    temp_dir_make(&f->dir);
    snprintf(url, sizeof url, "fs://%s", f->dir.path);
    f->plain = open_tier(url, true);
    snprintf(url, sizeof url, "fault://%s/fs://%s", faults, f->dir.path);
    f->faulty = open_tier(url, true);
    chunk_init(&f->chunk, "model", 1);
    f->slot = slot_new(BYTES, 28);
}

static void
close_pair(struct fixture *f)
{
    slot_free(&f->slot, 28);
    f->faulty->ops->close(f->faulty);
    f->plain->ops->close(f->plain);
    temp_dir_remove(&f->dir);
}

static int
wrong_bits(const struct kvt__slot *slot, uint64_t seed)
{
    int n = 0;

    for (size_t i = 0; i < slot->bytes; i++)
        n += __builtin_popcount(slot->payload[i] ^ byte_at(seed, i));
    return n;
}

static void
bit_flip_changes_one_bit_and_the_checksum_differs(void **state)
{
    struct kvt__found found;
    struct fixture f;

    (void)state;
    open_pair(&f, "bit_flip=1");
    assert_int_equal(put_bytes(f.faulty, &f.chunk.object, BYTES, 1), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(kvt__tier_get(f.faulty, &f.chunk.object, &f.slot,
                                       &found), 0);
        assert_int_equal(wrong_bits(&f.slot, 1), 1);
        assert_int_not_equal(kvt__crc32c(0, f.slot.payload, BYTES), found.crc);
    }
    assert_int_equal(kvt__tier_get(f.plain, &f.chunk.object, &f.slot, &found), 0);
    assert_int_equal(wrong_bits(&f.slot, 1), 0);
    close_pair(&f);
}

static void
write_corrupt_stores_one_wrong_bit_and_spares_the_slot(void **state)
{
    struct kvt__found found;
    struct fixture f;

    (void)state;
    open_pair(&f, "write_corrupt=1");
    slot_fill(&f.slot, 1);
    uint32_t crc = kvt__crc32c(0, f.slot.payload, BYTES);
    assert_int_equal(kvt__tier_put(f.faulty, &f.chunk.object, &f.slot, crc), 0);
    assert_int_equal(wrong_bits(&f.slot, 1), 0);
    assert_int_equal(kvt__tier_get(f.plain, &f.chunk.object, &f.slot, &found), 0);
    assert_int_equal(wrong_bits(&f.slot, 1), 1);
    assert_int_equal(found.crc, crc);
    close_pair(&f);
}

static void
short_read_is_eio_after_the_first_bytes(void **state)
{
    struct kvt__found found;
    struct fixture f;

    (void)state;
    open_pair(&f, "short_read=1");
    assert_int_equal(put_bytes(f.faulty, &f.chunk.object, BYTES, 1), 0);
    assert_int_equal(kvt__tier_get(f.faulty, &f.chunk.object, &f.slot, &found),
                     -EIO);
    assert_non_null(strstr(kvt__why(), "made by fault://"));
    size_t good = 0;
    while (good < BYTES && f.slot.payload[good] == byte_at(1, good))
        good++;
    assert_in_range(good, 0, BYTES - 1);
    assert_true(wrong_bits(&f.slot, 1) > 0);
    close_pair(&f);
}

/* ------------------------------------------------------------------- pauses */

static void
delay_and_hang_hold_an_operation_up(void **state)
{
    static const char *const urls[] = { "fault://delay_ms=3/null://",
                                        "fault://hang=1,hang_ms=3/null://" };
    struct kvt__found found;
    struct chunk c;

    (void)state;
    chunk_init(&c, "model", 1);
    for (size_t i = 0; i < 2; i++) {
        struct kvt__tier *tier = open_tier(urls[i], true);
        int64_t before = kvt__now_ns();
        assert_int_equal(kvt__tier_probe(tier, &c.object, &found), -ENOENT);
        assert_true(kvt__now_ns() - before >= 3 * KVT__NS_PER_MS);
        tier->ops->close(tier);
    }
}

static void
read_mb_s_limits_the_reads_together(void **state)
{
    enum { LARGE = 100000, READS = 3 };
    char url[256], dir_url[200];
    struct temp_dir dir;
    struct kvt__slot slot = slot_new(LARGE, 0);
    struct kvt__found found;
    struct chunk c;

    (void)state;
    temp_dir_make(&dir);
    chunk_init(&c, "model", 1);
    snprintf(dir_url, sizeof dir_url, "fs://%.150s", dir.path);
    snprintf(url, sizeof url, "fault://read_mb_s=10/%s", dir_url);
    struct kvt__tier *tier = open_tier(url, true);
    assert_int_equal(kvt__tier_put(tier, &c.object, &slot,
                                   kvt__crc32c(0, slot.payload, slot.bytes)), 0);
    int64_t before = kvt__now_ns();
    for (int i = 0; i < READS; i++)
        assert_int_equal(kvt__tier_get(tier, &c.object, &slot, &found), 0);
    assert_true(kvt__now_ns() - before >= READS * 10 * KVT__NS_PER_MS);
    tier->ops->close(tier);
    slot_free(&slot, 0);
    temp_dir_remove(&dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_settings_are_refused_and_the_keys_listed),
        cmocka_unit_test(the_wrapped_tier_must_open),
        cmocka_unit_test(results_of_the_wrapped_tier_are_forwarded),
        cmocka_unit_test(errors_come_at_their_rate),
        cmocka_unit_test(one_seed_gives_the_same_faults_again),
        cmocka_unit_test(each_rate_concerns_its_own_operation),
        cmocka_unit_test(bit_flip_changes_one_bit_and_the_checksum_differs),
        cmocka_unit_test(write_corrupt_stores_one_wrong_bit_and_spares_the_slot),
        cmocka_unit_test(short_read_is_eio_after_the_first_bytes),
        cmocka_unit_test(delay_and_hang_hold_an_operation_up),
        cmocka_unit_test(read_mb_s_limits_the_reads_together),
    };

    return cmocka_run_group_tests_name("tier fault", tests, NULL, NULL);
}
