/* SPDX-License-Identifier: Apache-2.0
 *
 * No load returns bytes that differ from the stored bytes: the load fails or reads the next
 * tier, the corrupt file is deleted, the next lookup misses, and stores work again. */
#include "files.h"
#include "system/system-test.h"

#include <stdatomic.h>

#include "gpu/copy.h"

#define HEADER 28u
#define TRAILER 64u
#define PAYLOAD (N_LAYERS * CHUNK_BLOCKS * BLOCK_BYTES)

static const char *const with_header[] = { NULL };
static const char *const without_header[] = {
    "extra_config={\"save_chunk_meta\": false}", NULL };

struct store {
    struct fixture f;
    uint32_t header; /* bytes in front of the payload */
};

static int
setup_with(void **state, const char *const *settings, uint32_t header)
{
    static struct store s;

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    fixture_init(&s.f);
    fixture_open(&s.f, settings);
    read_index(&s.f, true); /* a look through the directory counts files too */
    s.header = header;
    *state = &s;
    return 0;
}

static int
setup(void **state)
{
    return setup_with(state, with_header, HEADER);
}

static int
setup_without_header(void **state)
{
    return setup_with(state, without_header, 0);
}

static int
teardown(void **state)
{
    fixture_fini(&((struct store *)*state)->f);
    return 0;
}

/* Store one chunk and return the chunk's file. */
static struct usage
store_one(const struct fixture *f)
{
    write_chunks(f, 0, 1);
    struct usage usage = usage_of(f);
    assert_int_equal(usage.n_files, 1);
    return usage;
}

/* The damaged chunk is not loaded, and is gone. */
static void
expect_refused(const struct fixture *f, const char *path)
{
    uint64_t corrupt = counter(f, "load_corrupt");
    struct outcome got = load_prompt(f);

    assert_int_equal(got.promised, 1);
    assert_int_equal(got.first_error, -EBADMSG);
    assert_int_equal(counter(f, "load_corrupt"), corrupt + 1);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(load_prompt(f).promised, 0);
    assert_int_equal(index_totals(f).used_bytes, 0);
}

static void
a_flipped_byte_is_found(void **state)
{
    const struct store *s = *state;
    uint32_t end = s->header + PAYLOAD + TRAILER;

    for (uint32_t at = 0; at < end; at++) {
        if (at == s->header + 8)
            at = s->header + PAYLOAD - 8; /* the middle is tried below */
        if (at >= 4 && at < s->header)
            continue; /* bytes for LMCache only: the payload is intact */
        struct usage usage = store_one(&s->f);
        flip_byte(usage.last, at);
        expect_refused(&s->f, usage.last);
    }
    for (uint32_t at = 1; at < PAYLOAD; at += 1021) {
        struct usage usage = store_one(&s->f);
        flip_byte(usage.last, s->header + at);
        expect_refused(&s->f, usage.last);
    }
}

static void
a_damaged_description_does_no_harm(void **state)
{
    const struct store *s = *state;

    for (uint32_t at = 4; at < s->header; at++) {
        struct usage usage = store_one(&s->f);
        flip_byte(usage.last, at);
        assert_int_equal(load_prompt(&s->f).loaded, 1);
        flip_byte(usage.last, at);
    }
}

static void
a_file_of_another_length_is_found(void **state)
{
    const struct store *s = *state;
    const uint32_t lengths[] = {
        0, 1, HEADER - 1, HEADER, HEADER + 1, TRAILER, PAYLOAD / 2, PAYLOAD - 1,
        PAYLOAD, PAYLOAD + 1, PAYLOAD + HEADER - 1, PAYLOAD + HEADER,
        PAYLOAD + HEADER + 1, PAYLOAD + TRAILER - 1, PAYLOAD + TRAILER,
        PAYLOAD + TRAILER + 1, PAYLOAD + HEADER + TRAILER - 1,
        PAYLOAD + HEADER + TRAILER, PAYLOAD + HEADER + TRAILER + 1, 2 * PAYLOAD };

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] == s->header + PAYLOAD + TRAILER)
            continue;
        struct usage usage = store_one(&s->f);
        assert_int_equal(truncate(usage.last, lengths[i]), 0);
        expect_refused(&s->f, usage.last);
    }
}

static void
a_file_with_its_beginning_cut_off_is_found(void **state)
{
    const struct store *s = *state;
    static unsigned char bytes[HEADER + PAYLOAD + TRAILER];

    for (uint32_t cut = 1; cut <= 2 * HEADER; cut++) {
        struct usage usage = store_one(&s->f);
        int fd = open(usage.last, O_RDWR | O_CLOEXEC);
        ssize_t n = read(fd, bytes, sizeof bytes);
        assert_int_equal(n, s->header + PAYLOAD + TRAILER);
        assert_int_equal(pwrite(fd, bytes + cut, (size_t)n - cut, 0), n - cut);
        assert_int_equal(ftruncate(fd, n - cut), 0);
        close(fd);
        expect_refused(&s->f, usage.last);
    }
}

static void
a_deleted_file_is_a_miss(void **state)
{
    const struct store *s = *state;
    struct usage usage = store_one(&s->f);

    assert_int_equal(unlink(usage.last), 0);
    struct outcome got = load_prompt(&s->f);
    assert_int_equal(got.promised, 1);
    assert_int_equal(got.first_error, -ENOENT);
    assert_int_equal(counter(&s->f, "load_missing"), 1);
    assert_int_equal(load_prompt(&s->f).promised, 0);
    store_one(&s->f);
    assert_int_equal(load_prompt(&s->f).loaded, 1);
}

static void
another_chunk_in_the_file_is_a_miss(void **state)
{
    struct store *s = *state;
    struct usage first = store_one(&s->f);
    char other[600];

    snprintf(other, sizeof other, "%s.other", first.last);
    assert_int_equal(rename(first.last, other), 0);
    set_tokens(&s->f, 1);
    struct usage second = store_one(&s->f);
    assert_int_equal(rename(other, second.last), 0);
    struct outcome got = load_prompt(&s->f);
    assert_int_equal(got.promised, 1);
    assert_int_equal(got.first_error, -ENOENT);
    assert_int_equal(load_prompt(&s->f).promised, 0);
    store_one(&s->f);
    assert_int_equal(load_prompt(&s->f).loaded, 1);
}

/* A FIFO or a directory with a chunk file's name does not block a load. */
static void
a_pipe_or_directory_in_the_place_of_a_file_is_no_chunk(void **state)
{
    const struct store *s = *state;
    struct usage usage = store_one(&s->f);

    assert_int_equal(unlink(usage.last), 0);
    assert_int_equal(mkfifo(usage.last, 0600), 0);
    assert_int_equal(load_prompt(&s->f).loaded, 0);
    assert_int_equal(unlink(usage.last), 0);
    assert_int_equal(mkdir(usage.last, 0700), 0);
    assert_int_equal(load_prompt(&s->f).loaded, 0);
}

/* A corrupt chunk in the middle ends the prefix.  The load that finds the damage, and the next
 * load, return the chunks before. */
static void
chunks_before_a_damaged_chunk_are_loaded(void **state)
{
    const struct store *s = *state;
    const uint32_t bad = 3;

    write_chunks(&s->f, bad, 1);
    struct usage usage = usage_of(&s->f);
    assert_int_equal(usage.n_files, 1);
    write_chunks(&s->f, 0, bad);
    write_chunks(&s->f, bad + 1, 2);
    struct outcome got = load_prompt(&s->f);
    assert_int_equal(got.loaded, 6);
    flip_byte(usage.last, 100);
    got = load_prompt(&s->f);
    assert_int_equal(got.promised, 6);
    assert_int_equal(got.first_error, -EBADMSG);
    assert_in_range(got.loaded, bad, 5); /* later chunks may be loaded too */
    got = load_prompt(&s->f);
    assert_int_equal(got.promised, bad);
    assert_int_equal(got.loaded, bad);
}

/* Load the fixture's first chunk, whose first block is block 1, except the `skipped` blocks.
 * Return the chunk's status. */
static int
load_without(const struct fixture *f, size_t skipped)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, 0, 1, 1);
    io.blocks[skipped] = -1;
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    int status = kvt_load_status(load, 0, 0);
    kvt_load_free(load);
    kvt_seq_free(seq);
    return status;
}

static void
a_damaged_byte_of_a_skipped_block_is_found(void **state)
{
    const struct store *s = *state;

    for (uint32_t block = 0; block < CHUNK_BLOCKS; block++) {
        for (uint32_t at = 0; at < N_LAYERS * BLOCK_BYTES; at += 4095) {
            struct usage usage = store_one(&s->f);
            uint64_t corrupt = counter(&s->f, "load_corrupt");

            assert_int_equal(load_without(&s->f, block), 0);
            flip_byte(usage.last, s->header + block * N_LAYERS * BLOCK_BYTES + at);
            assert_int_equal(load_without(&s->f, block), -EBADMSG);
            assert_int_equal(counter(&s->f, "load_corrupt"), corrupt + 1);
            assert_int_equal(access(usage.last, F_OK), -1);
        }
    }
}

/* The blocks hold the damaged bytes when the store reads the next tier. */
static void
the_next_tier_serves_a_damaged_chunk(void **state)
{
    struct store *s = *state;
    struct temp_dir disk;
    char setting[300];
    const char *settings[] = { setting, "max_local_disk_size=1", NULL };
    const uint32_t places[] = { 0, PAYLOAD / 2, PAYLOAD - 1 };

    temp_dir_make(&disk);
    snprintf(setting, sizeof setting, "local_disk=%s", disk.path);
    reopen(&s->f, settings);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct usage first = { 0 };

        set_tokens(&s->f, (uint32_t)i + 1);
        write_chunks(&s->f, 0, 1);
        add_usage(disk.path, &first);
        if (!first.n_files) {
            char opaque[300];

            snprintf(opaque, sizeof opaque, "%s/kvtier", disk.path);
            add_usage(opaque, &first);
        }
        assert_int_equal(first.n_files, 1);
        flip_byte(first.last, places[i]); /* no header there */
        struct outcome got = load_prompt(&s->f);
        assert_int_equal(got.loaded, 1);
        assert_int_equal(access(first.last, F_OK), -1);
        assert_int_equal(counter(&s->f, "load_corrupt"), 0);
        assert_int_equal(counter(&s->f, "load_bytes"), (i + 1) * PAYLOAD);
    }
    kvt_engine_close(s->f.engine);
    s->f.engine = NULL;
    temp_dir_remove(&disk);
}

/* If not NULL, canceled at the end of the next copy into blocks of host memory. */
static struct kvt_load *to_cancel;

/* The number of copies to host memory that computed a checksum. */
static atomic_uint n_summed;

void __real_kvt__scatter(const struct kvt__view *view, const int32_t *blocks,
                         uint32_t n_tokens, const unsigned char *chunk, uint32_t *crc);
void __wrap_kvt__scatter(const struct kvt__view *view, const int32_t *blocks,
                         uint32_t n_tokens, const unsigned char *chunk, uint32_t *crc);

void
__wrap_kvt__scatter(const struct kvt__view *view, const int32_t *blocks, uint32_t n_tokens,
                    const unsigned char *chunk, uint32_t *crc)
{
    n_summed += crc != NULL;
    __real_kvt__scatter(view, blocks, n_tokens, chunk, crc);
    if (to_cancel)
        kvt_load_cancel(to_cancel);
}

/* Load the fixture's first chunk and cancel the load during the copy.  The chunk's status. */
static int
load_and_cancel(const struct fixture *f)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(f->engine), .events = POLLIN };
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct kvt_load *done = NULL;
    struct io io;

    make_io(&io, seq, 0, 0, 1, 1);
    assert_int_equal(kvt_engine_load(f->engine, &io.io, 1, 0, &to_cancel), 0);
    while (!kvt_engine_poll(f->engine, &done, 1))
        poll(&fd, 1, -1);
    assert_ptr_equal(done, to_cancel);
    int status = kvt_load_status(done, 0, 0);
    kvt_load_free(done);
    kvt_seq_free(seq);
    return status;
}

/* Copies into blocks on a device are queued: the load ends before or after the cancel. */
static void
a_load_canceled_in_the_copy_of_a_damaged_chunk_fails(void **state)
{
    const struct store *s = *state;
    struct usage usage = store_one(&s->f);

    if (device_memory() != KVT_MEMORY_HOST)
        skip();
    assert_int_equal(load_and_cancel(&s->f), 0);
    flip_byte(usage.last, s->header + PAYLOAD / 2);
    assert_int_equal(load_and_cancel(&s->f), -ECANCELED);
    to_cancel = NULL;
}

/* Open an engine with empty host memory, and read the fixture's first chunk ahead. */
static void
read_ahead(struct fixture *f)
{
    static const char *const settings[] = { "local_cpu=true", NULL };

    reopen(f, settings);
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, 0, 1, 1);
    assert_int_equal(kvt_engine_prefetch(f->engine, &io.io, 1), 0);
    assert_comes_to(f, "prefetch_chunks", 1);
    kvt_seq_free(seq);
}

static void
the_first_copy_verifies_chunks_read_ahead(void **state)
{
    struct store *s = *state;

    store_one(&s->f);
    read_ahead(&s->f);
    for (unsigned i = 0; i < 3; i++) {
        unsigned before = n_summed;

        assert_int_equal(load_prompt(&s->f).loaded, 1);
        if (device_memory() == KVT_MEMORY_HOST)
            assert_int_equal(n_summed - before, i == 0);
        assert_int_equal(counter(&s->f, "memory_hits"), i + 1);
    }
    assert_int_equal(counter(&s->f, "load_bytes"), PAYLOAD); /* read once */
}

static void
damage_in_a_chunk_read_ahead_is_found(void **state)
{
    struct store *s = *state;
    const uint32_t places[] = { 0, PAYLOAD / 2, PAYLOAD - 1 };

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct usage usage = store_one(&s->f);

        flip_byte(usage.last, s->header + places[i]);
        read_ahead(&s->f);
        expect_refused(&s->f, usage.last);
        assert_int_equal(counter(&s->f, "memory_hits"), 0);
        assert_int_equal(counter(&s->f, "pool_used"), 0);
    }
}

/* The file was repaired after the chunk was read ahead. */
static void
a_damaged_chunk_read_ahead_is_read_again(void **state)
{
    struct store *s = *state;
    struct usage usage = store_one(&s->f);

    flip_byte(usage.last, s->header + 5);
    read_ahead(&s->f);
    flip_byte(usage.last, s->header + 5);
    assert_int_equal(load_prompt(&s->f).loaded, 1);
    assert_int_equal(counter(&s->f, "load_corrupt"), 0);
    assert_int_equal(counter(&s->f, "load_bytes"), 2 * PAYLOAD);
    assert_int_equal(access(usage.last, F_OK), 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define T_BARE(name)                                                            \
    { #name " (without header)", name, setup_without_header, teardown, NULL }
    const struct CMUnitTest tests[] = {
        T(a_flipped_byte_is_found),
        T_BARE(a_flipped_byte_is_found),
        T(a_damaged_description_does_no_harm),
        T(a_file_of_another_length_is_found),
        T_BARE(a_file_of_another_length_is_found),
        T(a_file_with_its_beginning_cut_off_is_found),
        T_BARE(a_file_with_its_beginning_cut_off_is_found),
        T(a_deleted_file_is_a_miss),
        T(another_chunk_in_the_file_is_a_miss),
        T(a_pipe_or_directory_in_the_place_of_a_file_is_no_chunk),
        T(chunks_before_a_damaged_chunk_are_loaded),
        T(a_damaged_byte_of_a_skipped_block_is_found),
        T_BARE(a_damaged_byte_of_a_skipped_block_is_found),
        T(a_load_canceled_in_the_copy_of_a_damaged_chunk_fails),
        T(the_first_copy_verifies_chunks_read_ahead),
        T(damage_in_a_chunk_read_ahead_is_found),
        T(a_damaged_chunk_read_ahead_is_read_again),
        T(the_next_tier_serves_a_damaged_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
