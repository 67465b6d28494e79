/* SPDX-License-Identifier: Apache-2.0
 *
 * kvt_engine_pin(): pinned chunks outlive evictions until the time is over. */
#include "engine-test.h"

#define N_CHUNKS (N_TOKENS / CHUNK)
#define N_PINNED 3u
#define LONG 3600u

static const char *const small_storage[] = { "max_remote_size=0.0005", NULL };
static const char *const small_memory[] = {
    "remote_url=", "local_cpu=true", "max_local_cpu_size=0.0005", NULL };
static const char *const memory_and_small_storage[] = {
    "local_cpu=true", "max_remote_size=0.0005", NULL };

/* Pin the first N_PINNED chunks of a prompt. */
static int
pin(struct kvt_engine *engine, const struct kvt_seq *seq, uint32_t seconds, uint8_t *out)
{
    struct kvt_chunk chunks[N_PINNED];
    struct kvt_group_io io = { .n_chunks = N_PINNED, .chunks = chunks };

    assert_int_equal(kvt_seq_chunks(seq, 0, N_PINNED, chunks), 0);
    return kvt_engine_pin(engine, &io, seconds, out);
}

static void
must_pin(struct kvt_engine *engine, const struct kvt_seq *seq, uint32_t seconds,
         uint8_t medium)
{
    uint8_t out[N_PINNED];

    memset(out, 0xff, sizeof out);
    if (pin(engine, seq, seconds, out))
        fail_msg("%s", kvt_last_error());
    for (size_t i = 0; i < N_PINNED; i++)
        assert_int_equal(out[i], medium);
}

/* Return the number of the first N_PINNED chunks that the medium holds. */
static size_t
n_present(const struct fixture *f, const struct kvt_seq *seq, uint8_t medium)
{
    struct kvt_chunk chunks[N_PINNED];
    struct kvt_group_io io = { .n_chunks = N_PINNED, .chunks = chunks };
    uint8_t media[N_PINNED];
    size_t n = 0;

    assert_int_equal(kvt_seq_chunks(seq, 0, N_PINNED, chunks), 0);
    assert_int_equal(kvt_engine_media(f->engine, &io, media), 0);
    for (size_t i = 0; i < N_PINNED; i++)
        n += (media[i] & medium) != 0;
    return n;
}

/* Store so many chunks of other prompts that only a pin keeps an older chunk. */
static void
store_others(struct fixture *f)
{
    wait_for_tick(); /* chunks of one tick are evicted in any order */
    for (int prompt = 0; prompt < 5; prompt++) {
        for (uint32_t i = 0; i < N_TOKENS; i++)
            f->tokens[i] += 1;
        store_prefix(f, N_CHUNKS);
    }
}

static void
check_pins_in(struct fixture *f, const char *const *settings, uint8_t medium)
{
    fixture_open(f, settings);
    store_prefix(f, N_PINNED);
    struct kvt_seq *pinned = new_seq(f, N_TOKENS);
    must_pin(f->engine, pinned, LONG, medium);
    store_others(f);
    assert_int_equal(n_present(f, pinned, medium), N_PINNED);
    assert_true(counter(f, "evicted_chunks") > N_CHUNKS);
    kvt_seq_free(pinned);
}

static void
pinned_chunks_outlive_evictions_from_storage(void **state)
{
    check_pins_in(*state, small_storage, KVT_MEDIUM_STORAGE);
}

static void
pinned_chunks_outlive_evictions_from_memory(void **state)
{
    check_pins_in(*state, small_memory, KVT_MEDIUM_MEMORY);
}

static void
pins_are_in_storage_if_memory_and_storage_hold_the_chunk(void **state)
{
    check_pins_in(*state, memory_and_small_storage, KVT_MEDIUM_STORAGE);
}

static void
pins_outlive_the_engine(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, small_storage);
    store_prefix(f, N_PINNED);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    must_pin(f->engine, seq, LONG, KVT_MEDIUM_STORAGE);
    kvt_seq_free(seq);
    reopen(f, small_storage);
    seq = new_seq(f, N_TOKENS);
    store_others(f);
    assert_int_equal(n_present(f, seq, KVT_MEDIUM_STORAGE), N_PINNED);
    kvt_seq_free(seq);
}

static void
a_lookup_does_not_end_a_pin(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, small_storage);
    store_prefix(f, N_PINNED);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    must_pin(f->engine, seq, LONG, KVT_MEDIUM_STORAGE);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_PINNED * CHUNK);
    kvt_engine_release(f->engine, seq);
    store_others(f);
    assert_int_equal(n_present(f, seq, KVT_MEDIUM_STORAGE), N_PINNED);
    kvt_seq_free(seq);
}

/* A lookup during the pin lengthens the lease, and the end of the pin ends the lease. */
static void
a_pin_ends_after_its_time(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, small_storage);
    store_prefix(f, N_PINNED);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    must_pin(f->engine, seq, 1, KVT_MEDIUM_STORAGE);
    assert_int_equal(lookup(f, seq, 0, N_TOKENS), N_PINNED * CHUNK);
    kvt_engine_release(f->engine, seq);
    kvt_engine_end_pins(f->engine); /* too early */
    usleep(1100000);
    kvt_engine_end_pins(f->engine);
    store_others(f);
    assert_int_equal(n_present(f, seq, KVT_MEDIUM_STORAGE), 0);
    kvt_seq_free(seq);
}

static void
a_second_pin_lengthens_the_first_and_does_not_shorten_it(void **state)
{
    struct fixture *f = *state;

    fixture_open(f, small_storage);
    store_prefix(f, N_PINNED);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    must_pin(f->engine, seq, 1, KVT_MEDIUM_STORAGE);
    must_pin(f->engine, seq, LONG, KVT_MEDIUM_STORAGE);
    must_pin(f->engine, seq, 1, KVT_MEDIUM_STORAGE);
    usleep(1100000);
    kvt_engine_end_pins(f->engine);
    store_others(f);
    assert_int_equal(n_present(f, seq, KVT_MEDIUM_STORAGE), N_PINNED);
    kvt_seq_free(seq);
}

static void
chunks_that_are_not_stored_are_not_pinned(void **state)
{
    struct fixture *f = *state;
    uint8_t out[N_PINNED];

    fixture_open(f, small_storage);
    store_prefix(f, 1);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(pin(f->engine, seq, LONG, out), 0);
    assert_int_equal(out[0], KVT_MEDIUM_STORAGE);
    for (size_t i = 1; i < N_PINNED; i++)
        assert_int_equal(out[i], 0);
    kvt_seq_free(seq);
}

static void
storage_that_other_hosts_delete_from_takes_no_pins(void **state)
{
    struct fixture *f = *state;
    uint8_t out[N_PINNED];

    fixture_open_shared(f, NULL);
    store_prefix(f, N_PINNED);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    assert_int_equal(pin(f->engine, seq, LONG, out), 0);
    for (size_t i = 0; i < N_PINNED; i++)
        assert_int_equal(out[i], 0);
    kvt_seq_free(seq);
}

static void
store_first(struct kvt_engine *worker, const struct kvt_seq *seq, uint32_t n)
{
    struct io io;

    make_io(&io, seq, 0, 0, n, 1);
    store_by(worker, &io.io, 1);
}

static void
store_others_by(struct fixture *f, struct kvt_engine *worker)
{
    wait_for_tick();
    for (int prompt = 0; prompt < 5; prompt++) {
        for (uint32_t i = 0; i < N_TOKENS; i++)
            f->tokens[i] += 1;
        struct kvt_seq *other = new_seq(f, N_TOKENS);
        store_first(worker, other, N_CHUNKS);
        kvt_seq_free(other);
    }
    wait_for_tick();
}

static void
a_chunk_that_a_rank_lacks_is_pinned_for_no_rank(void **state)
{
    struct fixture *f = *state;
    struct kvt_engine *workers[2] = { open_of_two(f, KVT_ROLE_WORKER, 0, small_storage, NULL),
                                      open_of_two(f, KVT_ROLE_WORKER, 1, small_storage, NULL) };
    uint8_t out[N_PINNED];

    f->engine = open_of_two(f, KVT_ROLE_SCHEDULER, 0, small_storage, NULL);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    store_first(workers[0], seq, N_PINNED);
    assert_int_equal(pin(f->engine, seq, LONG, out), 0);
    for (size_t i = 0; i < N_PINNED; i++)
        assert_int_equal(out[i], 0);
    store_others_by(f, workers[0]);
    store_first(workers[1], seq, N_PINNED);
    assert_int_equal(n_present(f, seq, KVT_MEDIUM_STORAGE), 0); /* rank 0's parts were evicted */
    store_first(workers[0], seq, N_PINNED);
    must_pin(f->engine, seq, LONG, KVT_MEDIUM_STORAGE);
    store_others_by(f, workers[0]);
    store_others_by(f, workers[1]);
    assert_int_equal(n_present(f, seq, KVT_MEDIUM_STORAGE), N_PINNED);
    kvt_engine_close(workers[0]);
    kvt_engine_close(workers[1]);
    kvt_seq_free(seq);
}

static void
wrong_arguments_are_refused(void **state)
{
    struct fixture *f = *state;
    struct kvt_group_io io = { .group = 1 };
    uint8_t none[1];

    fixture_open(f, NULL);
    assert_int_equal(kvt_engine_pin(f->engine, &io, 1, NULL), -EINVAL);
    io = (struct kvt_group_io){ 0 };
    assert_int_equal(kvt_engine_pin(f->engine, &io, 0, NULL), -EINVAL);
    assert_int_equal(kvt_engine_pin(f->engine, &io, KVT_PIN_MAX_S + 1, NULL), -EINVAL);
    assert_non_null(strstr(kvt_last_error(), "82801"));
    assert_int_equal(kvt_engine_pin(f->engine, &io, KVT_PIN_MAX_S, none), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pinned_chunks_outlive_evictions_from_storage),
        TEST(pinned_chunks_outlive_evictions_from_memory),
        TEST(pins_are_in_storage_if_memory_and_storage_hold_the_chunk),
        TEST(pins_outlive_the_engine),
        TEST(a_lookup_does_not_end_a_pin),
        TEST(a_pin_ends_after_its_time),
        TEST(a_second_pin_lengthens_the_first_and_does_not_shorten_it),
        TEST(chunks_that_are_not_stored_are_not_pinned),
        TEST(storage_that_other_hosts_delete_from_takes_no_pins),
        TEST(a_chunk_that_a_rank_lacks_is_pinned_for_no_rank),
        TEST(wrong_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
