/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the whole engine: chunks whose bytes are computed from the keys, so that every
 * process can recognise wrong bytes; and functions that inspect a store's directory. */
#ifndef KVT_SYSTEM_TEST_H
#define KVT_SYSTEM_TEST_H

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/crc32c.h"
#include "table/table.h"
#include "tier/layout/layout.h"
#include "unit/engine/engine-test.h"

#define N_CHUNKS (N_TOKENS / CHUNK)
#define CHUNK_BLOCKS (CHUNK / BLOCK)
#define SKIPPED 77

/* Return $KVTIER_TEST_ROUNDS (for slow builds), or `normal`; five times as many for
   `make test-all`, which sets KVTIER_TEST_ALL. */
static inline unsigned
rounds(unsigned normal)
{
    const char *text = getenv("KVTIER_TEST_ROUNDS");

    if (text && *text)
        return (unsigned)strtoul(text, NULL, 10);
    return getenv("KVTIER_TEST_ALL") ? 5 * normal : normal;
}

static inline uint64_t
next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Return four random bfloat16 numbers of similar magnitude, which a codec makes smaller. */
static inline uint64_t
next_numbers(uint64_t *state)
{
    return (next_random(state) & UINT64_C(0x80ff80ff80ff80ff)) | UINT64_C(0x3f003f003f003f00);
}

/* ---------------------------------------------------------------- contents */

/* Another prompt. */
static inline void
set_tokens(struct fixture *f, uint32_t prompt)
{
    for (uint32_t i = 0; i < N_TOKENS; i++)
        f->tokens[i] = (int32_t)((i + prompt * 7919u) * 2654435761u % 32000);
}

/* Write a chunk's bytes to the blocks, or compare the blocks with the chunk's bytes. */
static inline bool
chunk_bytes(const struct fixture *f, const struct kvt_chunk *chunk,
            const int32_t *blocks, bool compare)
{
    uint64_t state, want[BLOCK_BYTES / sizeof state], got[BLOCK_BYTES / sizeof state];

    memcpy(&state, chunk->prefix, sizeof state);
    for (uint32_t b = 0; b < CHUNK_BLOCKS; b++) {
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            unsigned char *at = block_at(f, layer, (uint32_t)blocks[b]);

            for (size_t i = 0; i < BLOCK_BYTES / sizeof state; i++)
                want[i] = test_serde() ? next_numbers(&state) : next_random(&state);
            if (!compare)
                device_put(at, want, BLOCK_BYTES);
            else
                device_get(got, at, BLOCK_BYTES);
            if (compare && memcmp(got, want, BLOCK_BYTES))
                return false;
        }
    }
    return true;
}

static inline void
fill_io(const struct fixture *f, const struct io *io)
{
    for (uint32_t c = 0; c < io->io.n_chunks; c++)
        chunk_bytes(f, &io->chunks[c], io->blocks + c * CHUNK_BLOCKS, false);
}

static inline bool
chunk_is_right(const struct fixture *f, const struct io *io, uint32_t c)
{
    return chunk_bytes(f, &io->chunks[c], io->blocks + c * CHUNK_BLOCKS, true);
}

/* Overwrite all blocks, so that no block has the right bytes by chance. */
static inline void
wipe(const struct fixture *f)
{
    set_blocks(f, 0xee);
}

/* Store chunks first ... of the fixture's prompt, without waiting. */
static inline void
store_chunks(const struct fixture *f, size_t first, uint32_t n)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    make_io(&io, seq, 0, first, n, 1);
    fill_io(f, &io);
    if (kvt_engine_store(f->engine, &io.io, 1))
        fail_msg("%s", kvt_last_error());
    device_settle(); /* the blocks are the next chunks' */
    kvt_seq_free(seq);
}

/* Store n chunks and wait until the chunks are written. */
static inline void
write_chunks(const struct fixture *f, size_t first, uint32_t n)
{
    store_chunks(f, first, n);
    assert_int_equal(kvt_engine_flush(f->engine, -1), 0);
}

/* The result of a lookup and a load of a prompt. */
struct outcome {
    uint32_t promised, loaded;
    int first_error; /* status of the first chunk that was not loaded */
};

/* Look up the fixture's prompt and load the promised chunks.  The test fails if a chunk reported
 * as loaded holds wrong bytes. */
static inline struct outcome
load_prompt(const struct fixture *f)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct outcome got = { 0 };
    struct io io;

    got.promised = (uint32_t)(lookup(f, seq, 0, N_TOKENS) / CHUNK);
    if (got.promised) {
        make_io(&io, seq, 0, 0, got.promised, 1);
        wipe(f);
        struct kvt_load *load = load_and_wait(f, &io.io, 1);
        for (uint32_t c = 0; c < got.promised; c++) {
            int status = kvt_load_status(load, 0, c);

            if (status && !got.first_error)
                got.first_error = status;
            if (status)
                continue;
            if (chunk_is_right(f, &io, c))
                got.loaded++;
            else
                fail_msg("chunk %u was loaded with wrong bytes", c);
        }
        kvt_load_free(load);
    }
    kvt_engine_release(f->engine, seq);
    kvt_seq_free(seq);
    return got;
}

/* Store or load a random prompt, which other processes may store or load too.  Assert that every
 * promised chunk is loaded.  Return the number of loaded chunks. */
static inline unsigned
store_or_load(struct fixture *f, uint64_t *random, uint32_t n_prompts)
{
    uint64_t r = next_random(random);

    set_tokens(f, (uint32_t)(r % n_prompts));
    if (r >> 32 & 1) {
        write_chunks(f, 0, 1 + (uint32_t)(r >> 33) % N_CHUNKS);
        return 0;
    }
    struct outcome got = load_prompt(f);
    assert_int_equal(got.first_error, 0); /* a lease is a promise */
    return got.loaded;
}

/* Fill n chunks' blocks with bytes of a seed, and store chunks first ... of seq from these
 * blocks.  tags: of the sequence, or NULL. */
static inline void
store_seeded(const struct fixture *f, const struct kvt_seq *seq, const char *tags,
             size_t first, uint32_t n, uint32_t seed)
{
    struct io io;

    for (uint32_t b = 1; b <= CHUNK_BLOCKS * n; b++)
        fill_block(f, b, seed);
    make_io(&io, seq, 0, first, n, 1);
    io.io.tags = tags;
    store_and_flush(f, &io.io, 1);
}

/* Load chunks first ... of a hit, which must have the seed's bytes, and end the hit. */
static inline void
load_seeded(const struct fixture *f, struct kvt_seq *seq, const char *tags, size_t first,
            uint32_t n, uint32_t seed)
{
    struct io io;

    wipe(f);
    make_io(&io, seq, 0, first, n, 1);
    io.io.tags = tags;
    struct kvt_load *load = load_and_wait(f, &io.io, 1);
    for (uint32_t c = 0; c < n; c++)
        assert_int_equal(kvt_load_status(load, 0, c), 0);
    for (uint32_t b = 1; b <= CHUNK_BLOCKS * n; b++)
        assert_true(block_holds(f, b, b, seed));
    kvt_load_free(load);
    kvt_engine_release(f->engine, seq);
}

/* Look up seq and load the hit, which must have the seed's bytes.  Return the number of
 * chunks. */
static inline uint32_t
load_seeded_hit(const struct fixture *f, struct kvt_seq *seq, const char *tags, uint32_t seed)
{
    uint32_t n = (uint32_t)(lookup(f, seq, 0, N_TOKENS) / CHUNK);

    if (n)
        load_seeded(f, seq, tags, 0, n, seed);
    else
        kvt_engine_release(f->engine, seq);
    return n;
}

/* Return the sequence of the fixture's prompt with tags; tags: or NULL. */
static inline struct kvt_seq *
tagged_seq(const struct fixture *f, const char *tags)
{
    struct kvt_seq_extra extra = KVT_INIT(struct kvt_seq_extra);
    struct kvt_seq *seq = NULL;

    extra.tags = tags;
    if (kvt_seq_new(f->engine, f->tokens, N_TOKENS, &extra, &seq))
        fail_msg("%s", kvt_last_error());
    return seq;
}

/* Store the first n chunks of the prompt with bytes of a seed; tags: or NULL. */
static inline void
store_tagged(const struct fixture *f, const char *tags, uint32_t n, uint32_t seed)
{
    struct kvt_seq *seq = tagged_seq(f, tags);

    store_seeded(f, seq, tags, 0, n, seed);
    kvt_seq_free(seq);
}

/* Look up the prompt and load the hit, which must have the seed's bytes; tags: or NULL.
 * Return the number of chunks. */
static inline uint32_t
load_tagged(const struct fixture *f, const char *tags, uint32_t seed)
{
    struct kvt_seq *seq = tagged_seq(f, tags);
    uint32_t n = load_seeded_hit(f, seq, tags, seed);

    kvt_seq_free(seq);
    return n;
}

/* Store the first n chunks of the prompt with the bytes of weights, which are a seed. */
static inline void
store_weights(const struct fixture *f, uint32_t n, uint32_t weights)
{
    store_tagged(f, NULL, n, weights);
}

static inline uint32_t
load_weights(const struct fixture *f, uint32_t weights)
{
    return load_tagged(f, NULL, weights);
}

static inline void
reset_weights(const struct fixture *f)
{
    assert_int_equal(kvt_engine_reset(f->engine, NULL), 0);
}

/* ---------------------------------------------------------------- directory */

struct usage {
    uint64_t bytes; /* of chunk files, in whole units */
    size_t n_files;
    size_t n_damaged;
    char last[512]; /* path of a chunk's file */
};

/* Return true if a file ends with a trailer that matches the payload. */
static inline bool
file_is_whole(const char *path, size_t size)
{
    static unsigned char bytes[1 << 20];
    struct kvt__trailer trailer;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool whole = fd >= 0 && size < sizeof bytes && size > KVT__TRAILER_BYTES &&
                 read(fd, bytes, sizeof bytes) == (ssize_t)size &&
                 kvt__trailer_get(bytes + size - KVT__TRAILER_BYTES, &trailer) &&
                 trailer.payload_at + trailer.payload_bytes + KVT__TRAILER_BYTES == size &&
                 kvt__crc32c(0, bytes + trailer.payload_at, trailer.payload_bytes) ==
                     trailer.crc;

    if (fd >= 0)
        close(fd);
    return whole;
}

static inline void
add_usage(const char *dir, struct usage *usage)
{
    char path[1024];
    DIR *d = opendir(dir);
    struct dirent *e;
    struct stat st;

    while (d && (e = readdir(d))) {
        const char *suffix = strrchr(e->d_name, '.');

        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (!suffix || (strcmp(suffix, ".data") && strcmp(suffix, ".pt")) ||
            lstat(path, &st))
            continue;
        usage->bytes += ((uint64_t)st.st_size + 4095) / 4096 * 4096;
        usage->n_files++;
        usage->n_damaged += !file_is_whole(path, (size_t)st.st_size);
        snprintf(usage->last, sizeof usage->last, "%.511s", path);
    }
    if (d)
        closedir(d);
}

static inline struct usage
usage_of(const struct fixture *f)
{
    char opaque[300];
    struct usage usage = { 0 };

    snprintf(opaque, sizeof opaque, "%s/kvtier", f->dir.path);
    add_usage(f->dir.path, &usage);
    add_usage(opaque, &usage);
    return usage;
}

static inline size_t
n_temporary_files(const struct fixture *f)
{
    char path[300];
    struct dirent *e;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/.kvtier/tmp", f->dir.path);
    DIR *d = opendir(path);
    while (d && (e = readdir(d)))
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Return the totals of the shared index, read as another process.  listed: first wait until a
 * process has listed the directory. */
static inline struct kvt__table_totals
read_index(const struct fixture *f, bool listed)
{
    struct kvt__table_params params = { .writer = false };
    struct kvt__table_totals totals = { 0 };
    struct kvt__table *index = NULL;
    char path[300];

    snprintf(path, sizeof path, "%s/.kvtier", f->dir.path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(kvt__table_open(&params, fd, &index), 0);
    assert_true(kvt__table_is_shared(index));
    while (listed && !kvt__table_is_listed(index))
        usleep(1000);
    kvt__table_get_totals(index, &totals);
    kvt__table_close(index);
    close(fd);
    return totals;
}

static inline struct kvt__table_totals
index_totals(const struct fixture *f)
{
    return read_index(f, false);
}

/* ---------------------------------------------------------------- processes */

/* Run fn in a child process.  The child ends with this process, or at a failed assertion. */
static inline pid_t
start_child(void (*fn)(void *arg), void *arg)
{
    fflush(NULL);
    pid_t pid = fork();

    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        fn(arg);
        _exit(0);
    }
    assert_true(pid > 0);
    return pid;
}

/* Wait for a child; return the child's wait status. */
static inline int
end_child(pid_t pid)
{
    int status = -1;

    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return status;
}

#endif
