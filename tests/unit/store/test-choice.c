/* SPDX-License-Identifier: Apache-2.0
 *
 * remote_serde: auto: the calibration, the choice by the measured rates, and the revision.  The
 * monotonic clock of the test stands still until the test, a transfer of the calibration or a codec
 * moves the clock. */
#include "still-clock.h"
#include "store-test.h"
#include "wrapped-frame.h"

#define MIB ((uint64_t)1 << 20)

static int64_t put_ns, get_ns, encode_ns, decode_ns; /* duration of a call */
static int put_error;     /* result of kvt__tier_put() if not 0 */
static size_t put_bytes[8]; /* size of each object of kvt__tier_put() */
static size_t n_puts, n_encodes;
static size_t encoded_bytes, decoded_bytes; /* of the last kvt__frame_encode() */
static char last_info[512];
static unsigned n_infos;

int __real_kvt__tier_put(struct kvt__tier *tier, const struct kvt__object *object,
                         const struct kvt__slot *slot, uint32_t crc);
int __wrap_kvt__tier_put(struct kvt__tier *tier, const struct kvt__object *object,
                         const struct kvt__slot *slot, uint32_t crc);
int __real_kvt__tier_get(struct kvt__tier *tier, const struct kvt__object *object,
                         const struct kvt__slot *slot, struct kvt__found *found);
int __wrap_kvt__tier_get(struct kvt__tier *tier, const struct kvt__object *object,
                         const struct kvt__slot *slot, struct kvt__found *found);

/* Use the margins of the slot, as a tier may, and store the object. */
int
__wrap_kvt__tier_put(struct kvt__tier *tier, const struct kvt__object *object,
                     const struct kvt__slot *slot, uint32_t crc)
{
    assert_true(object->opaque);
    assert_int_equal((uintptr_t)slot->payload % 4096, tier->phase);
    memset(slot->payload - KVT__SLOT_MARGIN, 0, KVT__SLOT_MARGIN);
    memset(slot->payload + slot->bytes, 0, KVT__SLOT_MARGIN);
    assert_true(n_puts < sizeof put_bytes / sizeof *put_bytes);
    put_bytes[n_puts++] = slot->bytes;
    now_ns += put_ns;
    return put_error ? put_error : __real_kvt__tier_put(tier, object, slot, crc);
}

int
__wrap_kvt__tier_get(struct kvt__tier *tier, const struct kvt__object *object,
                     const struct kvt__slot *slot, struct kvt__found *found)
{
    now_ns += get_ns;
    return __real_kvt__tier_get(tier, object, slot, found);
}

size_t
__wrap_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                         const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                         unsigned char *out)
{
    assert_in_range(chunk[1] & 0x7f, 0x38, 0x3f); /* a bfloat16 number, a little below 2 */
    n_encodes++;
    now_ns += encode_ns;
    decoded_bytes = kvt__chunk_shape_bytes(shape);
    encoded_bytes = __real_kvt__frame_encode(serde, shape, id, chunk, crc, out);
    return encoded_bytes;
}

bool
__wrap_kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk)
{
    now_ns += decode_ns;
    return __real_kvt__frame_decode(frame, chunk);
}

static void
on_log(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    if (level != KVT_LOG_INFO)
        return;
    n_infos++;
    snprintf(last_info, sizeof last_info, "%s", line);
}

static const struct kvt__chunk_shape layout = { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 1, 1, 25,
                                                1250, 2 };
static const char *const settings[] = { "max_remote_size=0.03", "remote_serde=auto", NULL };

static int
setup(void **state)
{
    static struct env e;

    env_init(&e);
    kvt_set_log(on_log, NULL, KVT_LOG_INFO);
    now_ns = 1000 * KVT__NS_PER_S;
    tick_ns = put_ns = get_ns = encode_ns = decode_ns = 0;
    put_error = 0;
    n_puts = n_encodes = 0;
    e.store = open_over(&e, "", settings);
    n_infos = 0;
    *state = &e;
    return 0;
}

static bool
encodes(const struct env *e)
{
    return atomic_load(&e->store->levels[0].choice.encodes);
}

static struct kvt__table_rates
rates_of(const struct env *e)
{
    return kvt__table_get_rates(e->store->levels[0].index);
}

/* Pretend that the storage moved 32 MiB, the least that counts, at `storage`, and a thread encoded
 * and decoded at `codec`, both in MiB in a second, to seven tenths of the bytes. */
static void
measure(struct env *e, uint64_t storage, uint64_t codec)
{
    struct kvt__choice *choice = &e->store->levels[0].choice;

    for (int kind = 0; kind < 2; kind++) {
        choice->bytes[kind] = choice->decoded[kind] = 32 * MIB;
        choice->encoded[kind] = 32 * MIB * 7 / 10 + 1;
        choice->busy_ns[kind] = (int64_t)(32 * KVT__NS_PER_S / (int64_t)storage);
        choice->codec_ns[kind] = (int64_t)(32 * KVT__NS_PER_S / (int64_t)codec);
    }
    choice->rates.read = choice->rates.write = 0; /* no mean with the earlier rate */
    choice->rates.encode = choice->rates.decode = 0;
    kvt__choice_revise(&e->store->levels[0]);
}

/* PUT chunk i of numbers between 1 and 2, which are compressible. */
static int
put_kv(struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PUT, i);
    r.req.layout = layout;
    for (size_t k = 0; k < BYTES; k++)
        r.req.slot.payload[k] = k % 2 ? 0x3f : (unsigned char)(0x80 | (k * 7 + i));
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static bool
is_read(struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_GET, i);
    kvt__store_run(e->store, &r.req);
    bool is_right = !r.req.error.code && r.req.verified;
    for (size_t k = 0; is_right && k < BYTES; k++)
        is_right = r.req.slot.payload[k] == (k % 2 ? 0x3f : (unsigned char)(0x80 | (k * 7 + i)));
    free(r.memory);
    return is_right;
}

static void
a_slow_storage_gets_lossless_chunks_and_a_fast_one_naive_chunks(void **state)
{
    struct env *e = *state;

    measure(e, 100, 3000);
    assert_int_equal(put_kv(e, 1), 0);
    assert_false(file_there(e, 1));
    measure(e, 20000, 3000);
    assert_int_equal(put_kv(e, 2), 0);
    assert_true(file_there(e, 2));
    assert_true(is_read(e, 1));
    assert_true(is_read(e, 2));
    measure(e, 100, 3000);
    assert_int_equal(put_kv(e, 3), 0);
    assert_false(file_there(e, 3));
    assert_int_equal(put_kv(e, 2), -EEXIST);
    check_counted(e, 3, 0);
}

static void
a_small_difference_does_not_change_the_choice(void **state)
{
    struct env *e = *state;

    /* Equal: 0.3 * (2 / storage) == 2 / codec / threads. */
    uint64_t n = e->store->codec_threads, equal = 3000 * n * 3 / 10;

    measure(e, equal * 11 / 10, 3000);
    assert_true(encodes(e));
    measure(e, equal * 2, 3000);
    assert_false(encodes(e));
    measure(e, equal * 9 / 10, 3000);
    assert_false(encodes(e));
    measure(e, equal / 2, 3000);
    assert_true(encodes(e));
}

static void
unknown_rates_keep_the_choice(void **state)
{
    struct env *e = *state;
    struct kvt__choice *choice = &e->store->levels[0].choice;

    measure(e, 20000, 3000);
    assert_false(encodes(e));
    choice->rates = (struct kvt__table_rates){ .decode = 1, .encode = 1 };
    choice->bytes[KVT__PAUSE_WRITES] = 32 * MIB;
    choice->busy_ns[KVT__PAUSE_WRITES] = KVT__NS_PER_S;
    kvt__choice_revise(&e->store->levels[0]); /* reads are unknown */
    assert_int_equal(rates_of(e).write, 32 * MIB);
    assert_false(encodes(e));
    choice->rates = (struct kvt__table_rates){ .read = 1, .write = 1 };
    choice->bytes[KVT__PAUSE_WRITES] = 32 * MIB;
    choice->busy_ns[KVT__PAUSE_WRITES] = KVT__NS_PER_S;
    kvt__choice_revise(&e->store->levels[0]); /* the codec is unknown */
    assert_int_equal(rates_of(e).write, 16 * MIB); /* the mean with 1 */
    assert_false(encodes(e));
}

static void
a_measured_codec_changes_the_choice(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    measure(e, 100, 3000);
    assert_int_equal(rates_of(e).kept_permille, 700);
    assert_int_equal(rates_of(e).choice, 1 + KVT__SERDE_LOSSLESS);
    assert_int_equal(n_infos, 0);
    level->choice.rates.encode = level->choice.rates.decode = 0;
    for (int round = 1; round < 3; round++)
        for (int kind = 0; kind < 2; kind++) {
            kvt__choice_count_codec(level, (enum kvt__table_pause)kind, 32 * MIB,
                                    round * 8 * MIB, KVT__NS_PER_S * 3200);
            kvt__choice_revise(level);
            assert_int_equal(rates_of(e).kept_permille, kind == KVT__PAUSE_WRITES ? round * 250
                             : round == 1 ? 700 : 250);
        }
    assert_false(encodes(e));
    assert_int_equal(rates_of(e).choice, 1 + KVT__SERDE_NAIVE);
    assert_int_equal(n_infos, 1);
    assert_non_null(strstr(last_info, " are naive from now on"));
}

static void
a_measurement_without_time_changes_no_rate(void **state)
{
    struct env *e = *state;

    kvt__choice_begin(&e->store->levels[0], KVT__PAUSE_READS);
    kvt__choice_end(&e->store->levels[0], KVT__PAUSE_READS, 64 * MIB);
    kvt__choice_revise(&e->store->levels[0]);
    assert_int_equal(rates_of(e).read, 0);
    assert_int_equal(e->store->levels[0].choice.bytes[KVT__PAUSE_READS], 64 * MIB);
}

static void
naive_storage_still_encodes_some_chunks(void **state)
{
    struct env *e = *state;

    measure(e, 20000, 3000);
    for (unsigned i = 0; i < 128; i++) {
        assert_int_equal(put_kv(e, i), 0);
        assert_true(file_there(e, i) == (i % 64 != 63));
        assert_true(is_read(e, i));
    }
    assert_int_equal(e->store->levels[0].choice.decoded[KVT__PAUSE_WRITES], 2 * BYTES);
}

static void
the_work_of_the_codec_is_counted(void **state)
{
    struct env *e = *state;
    struct kvt__choice *choice = &e->store->levels[0].choice;
    size_t encoded = 0, first = 0;

    encode_ns = 7;
    decode_ns = 9;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(put_kv(e, i), 0);
        encoded += encoded_bytes;
        first = i ? first : encoded_bytes;
    }
    assert_true(is_read(e, 1));
    assert_true(is_read(e, 2));
    assert_int_equal(choice->bytes[KVT__PAUSE_READS], encoded - first);
    assert_int_equal(choice->decoded[KVT__PAUSE_WRITES], 3 * BYTES);
    assert_int_equal(choice->encoded[KVT__PAUSE_WRITES], encoded);
    assert_int_equal(choice->codec_ns[KVT__PAUSE_WRITES], 3 * 7);
    assert_int_equal(choice->decoded[KVT__PAUSE_READS], 2 * BYTES);
    assert_int_equal(choice->encoded[KVT__PAUSE_READS], encoded - first);
    assert_int_equal(choice->codec_ns[KVT__PAUSE_READS], 2 * 9);
}

static void
a_failed_operation_moves_no_bytes(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_kv(e, 1), 0);
    reopen_over(e, "fault://write_error=1,read_error=1/", settings);
    assert_true(put_kv(e, 2));
    assert_false(is_read(e, 1));
    for (int kind = 0; kind < 2; kind++) {
        assert_int_equal(e->store->levels[0].choice.bytes[kind], 0);
        assert_int_equal(e->store->levels[0].choice.n[kind], 0);
    }
}

static void
operations_at_the_same_time_count_their_common_time_once(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    kvt__choice_begin(level, KVT__PAUSE_READS);
    now_ns += 3;
    kvt__choice_begin(level, KVT__PAUSE_READS);
    now_ns += 4;
    kvt__choice_end(level, KVT__PAUSE_READS, 10);
    now_ns += 5;
    kvt__choice_end(level, KVT__PAUSE_READS, 20);
    assert_int_equal(level->choice.busy_ns[KVT__PAUSE_READS], 3 + 4 + 5);
    now_ns += 100;
    kvt__choice_begin(level, KVT__PAUSE_READS);
    now_ns += 6;
    kvt__choice_end(level, KVT__PAUSE_READS, 30);
    assert_int_equal(level->choice.busy_ns[KVT__PAUSE_READS], 3 + 4 + 5 + 6);
    assert_int_equal(level->choice.bytes[KVT__PAUSE_READS], 60);
    assert_int_equal(level->choice.busy_ns[KVT__PAUSE_WRITES], 0);
}

static void
a_process_begins_with_the_choice_of_the_index(void **state)
{
    struct env *e = *state;
    /* Between the thresholds of both choices. */
    uint64_t equal = 3000 * e->store->codec_threads * 3 / 10;

    measure(e, equal * 2, 3000);
    measure(e, equal * 11 / 10, 3000);
    assert_false(encodes(e));
    reopen_over(e, "", settings);
    kvt__choice_calibrate(&e->store->levels[0]);
    assert_false(encodes(e));
    measure(e, equal / 2, 3000);
    measure(e, equal * 11 / 10, 3000);
    assert_true(encodes(e));
    reopen_over(e, "", settings);
    kvt__choice_calibrate(&e->store->levels[0]);
    assert_true(encodes(e));
    assert_int_equal(n_puts, 0);
}

static void
few_operations_change_nothing(void **state)
{
    struct env *e = *state;

    tick_ns = 1;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(put_kv(e, i), 0);
    kvt__choice_revise(&e->store->levels[0]);
    assert_int_equal(rates_of(e).choice, 0);
    assert_true(e->store->levels[0].choice.bytes[KVT__PAUSE_WRITES] > 20 * 3000);
    assert_true(e->store->levels[0].choice.busy_ns[KVT__PAUSE_WRITES] > 0);
    assert_int_equal(e->store->levels[0].choice.n[KVT__PAUSE_WRITES], 0);
}

static void
a_paused_storage_costs_no_encoding(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    assert_true(kvt__table_pause(level->index, KVT__PAUSE_WRITES, 60 * KVT__NS_PER_S));
    assert_int_equal(put_kv(e, 1), -EIO);
    assert_int_equal(level->choice.decoded[KVT__PAUSE_WRITES], 0);
    assert_true(kvt__table_resume(level->index, KVT__PAUSE_WRITES));
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(level->choice.decoded[KVT__PAUSE_WRITES], BYTES);
}

static void
a_calibration_measures_all_rates_and_leaves_no_object(void **state)
{
    struct env *e = *state;

    put_ns = 40 * KVT__NS_PER_MS;
    get_ns = 10 * KVT__NS_PER_MS;
    encode_ns = KVT__NS_PER_MS;
    decode_ns = KVT__NS_PER_MS / 2;
    kvt__choice_calibrate(&e->store->levels[0]);
    struct kvt__table_rates r = rates_of(e);
    assert_int_equal(r.write, 25 * 4 * MIB);
    assert_int_equal(r.read, 100 * 4 * MIB);
    assert_int_equal(r.encode, 1000 * MIB / 2);
    assert_int_equal(r.decode, 2000 * MIB / 2);
    assert_int_equal(r.kept_permille, 700);
    assert_int_equal(r.choice, 1 + KVT__SERDE_LOSSLESS);
    assert_int_equal(n_encodes, 2);
    assert_in_range(encoded_bytes * 100 / decoded_bytes, 60, 80);
    assert_int_equal(disk_bytes(e), 0);
    reopen_over(e, "", settings);
    struct kvt__table_rates again = rates_of(e);
    assert_memory_equal(&again, &r, sizeof r);
    kvt__choice_calibrate(&e->store->levels[0]); /* begins with the rates of the index */
    again = rates_of(e);
    assert_memory_equal(&again, &r, sizeof r);
    assert_int_equal(n_puts, 3);
}

static void
a_calibration_writes_larger_objects_until_the_time_is_enough(void **state)
{
    static const struct {
        int64_t put_ms, get_ms;
        size_t n;
    } runs[] = { { 0, 0, 3 }, { 50, 49, 3 }, { 60, 40, 1 } };
    struct env *e = *state;

    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        n_puts = 0;
        put_ns = runs[i].put_ms * KVT__NS_PER_MS;
        get_ns = runs[i].get_ms * KVT__NS_PER_MS;
        close_and_lose_index(e);
        e->store = open_over(e, "", settings);
        kvt__choice_calibrate(&e->store->levels[0]);
        assert_int_equal(n_puts, runs[i].n);
        for (size_t k = 0; k < n_puts; k++)
            assert_int_equal(put_bytes[k], (MIB / 4) << 2 * k);
        if (!put_ns)
            assert_int_equal(rates_of(e).write, 4 * MIB * 1000000000);
    }
}

static void
a_storage_that_cannot_be_measured_gets_lossless_chunks(void **state)
{
    struct env *e = *state;
    char text[192];

    put_error = -EIO;
    kvt__choice_calibrate(&e->store->levels[0]);
    assert_int_equal(n_puts, 1);
    struct kvt__table_rates r = rates_of(e);
    assert_int_equal(r.read, 0);
    assert_int_equal(r.write, 0);
    assert_true(r.encode && r.decode);
    assert_true(encodes(e));
    kvt__choice_text(&r, text, sizeof text);
    assert_string_equal(text, "lossless, because the storage could not be measured");
}

static void
a_calibration_leaves_out_a_storage_without_reads_or_writes(void **state)
{
    struct env *e = *state;

    for (int why = 0; why < 4; why++) {
        close_and_lose_index(e);
        e->store = open_over(e, "", settings);
        struct kvt__level *level = &e->store->levels[0];

        level->no_put = why == 0;
        level->no_get = why == 1;
        atomic_store(&level->reads_only, why == 2);
        atomic_store(&e->store->stopping, why == 3);
        kvt__choice_calibrate(level);
        assert_int_equal(n_puts, 0);
        assert_true(rates_of(e).encode);
    }
}

static void
the_reason_of_the_choice_has_the_rates(void **state)
{
    struct kvt__table_rates r = { .choice = 0, .read = 4000000000, .write = 2000000000,
                                  .encode = 1000000000, .decode = 2000000000,
                                  .kept_permille = 600 };
    char text[192];

    (void)state;
    kvt__choice_text(&r, text, sizeof text);
    assert_string_equal(text, "lossless until the first engine has measured the storage");
    r.choice = 1 + KVT__SERDE_NAIVE;
    kvt__choice_text(&r, text, sizeof text);
    assert_string_equal(text, "naive: a lossless GB saves 0.30 s of reads (4.00 GB/s) and writes "
                        "(2.00 GB/s), and costs 1.50 s of a thread");
    r.choice = 1 + KVT__SERDE_LOSSLESS;
    kvt__choice_text(&r, text, sizeof text);
    assert_memory_equal(text, "lossless: a ", 12);
}

static void
without_auto_nothing_is_measured(void **state)
{
    static const char *const lossless[] = { "max_remote_size=0.03", "remote_serde=lossless", NULL };
    struct env *e = *state;

    reopen_over(e, "", lossless);
    kvt__choice_calibrate(&e->store->levels[0]);
    assert_int_equal(put_kv(e, 1), 0);
    kvt__choice_revise(&e->store->levels[0]);
    assert_int_equal(rates_of(e).choice, 0);
    assert_int_equal(e->store->levels[0].choice.bytes[KVT__PAUSE_WRITES], 0);
}

static void
the_time_of_operations_in_progress_counts(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    for (int kind = 0; kind < 2; kind++) {
        kvt__choice_begin(level, kind);
        kvt__choice_end(level, kind, 1);
        kvt__choice_begin(level, kind);
        level->choice.counted_ns[kind] -= KVT__NS_PER_S; /* an operation of a second */
        kvt__choice_begin(level, kind);
        kvt__choice_end(level, kind, 64 * MIB);
    }
    kvt__choice_revise(level);
    struct kvt__table_rates r = kvt__table_get_rates(level->index);
    assert_true(r.read && r.read <= 64 * MIB + 1);
    assert_true(r.write && r.write <= 64 * MIB + 1);
    kvt__choice_end(level, KVT__PAUSE_READS, 1);
    kvt__choice_end(level, KVT__PAUSE_WRITES, 1);
}

static void
only_new_chunks_tell_if_the_codec_makes_chunks_smaller(void **state)
{
    struct env *e = *state;
    struct kvt__level *level = &e->store->levels[0];

    measure(e, 100, 3000);
    kvt__choice_count_codec(level, KVT__PAUSE_WRITES, 64 * MIB, 64 * MIB, KVT__NS_PER_MS);
    kvt__choice_revise(level);
    assert_false(atomic_load(&level->choice.encodes));
    kvt__choice_count_codec(level, KVT__PAUSE_READS, 64 * MIB, 32 * MIB, KVT__NS_PER_MS);
    kvt__choice_revise(level);
    assert_false(atomic_load(&level->choice.encodes));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_slow_storage_gets_lossless_chunks_and_a_fast_one_naive_chunks),
        TEST(a_small_difference_does_not_change_the_choice),
        TEST(unknown_rates_keep_the_choice),
        TEST(a_measured_codec_changes_the_choice),
        TEST(a_measurement_without_time_changes_no_rate),
        TEST(naive_storage_still_encodes_some_chunks),
        TEST(the_work_of_the_codec_is_counted),
        TEST(a_failed_operation_moves_no_bytes),
        TEST(operations_at_the_same_time_count_their_common_time_once),
        TEST(a_process_begins_with_the_choice_of_the_index),
        TEST(few_operations_change_nothing),
        TEST(a_paused_storage_costs_no_encoding),
        TEST(a_calibration_measures_all_rates_and_leaves_no_object),
        TEST(a_calibration_writes_larger_objects_until_the_time_is_enough),
        TEST(a_storage_that_cannot_be_measured_gets_lossless_chunks),
        TEST(a_calibration_leaves_out_a_storage_without_reads_or_writes),
        TEST(the_reason_of_the_choice_has_the_rates),
        TEST(without_auto_nothing_is_measured),
        TEST(the_time_of_operations_in_progress_counts),
        TEST(only_new_chunks_tell_if_the_codec_makes_chunks_smaller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
