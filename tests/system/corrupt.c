/* SPDX-License-Identifier: Apache-2.0
 *
 * A file whose bytes are not those that were stored is never handed out: the load
 * says so, the file goes, the next lookup misses, and storing works again. */
#include "files.h"
#include "system/system-test.h"

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

/* Store one chunk; its file. */
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
            continue; /* for LMCache only: the payload is right all the same */
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
another_chunk_under_its_name_is_a_miss(void **state)
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

/* What stands in the place of a file makes no load wait. */
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

/* A corrupt chunk in the middle ends the prefix; the chunks before are loaded, by the
 * load that finds the damage and by the next load. */
static void
chunks_before_a_damaged_one_are_loaded(void **state)
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
        T(another_chunk_under_its_name_is_a_miss),
        T(a_pipe_or_directory_in_the_place_of_a_file_is_no_chunk),
        T(chunks_before_a_damaged_one_are_loaded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
