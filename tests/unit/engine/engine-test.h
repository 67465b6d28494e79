/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine over a directory, with blocks in host memory or in the memory of a device. */
#ifndef KVT_ENGINE_TEST_H
#define KVT_ENGINE_TEST_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>

#include "config.h"
#include "files.h"
#include "device.h"
#include "kvt-test.h"
#include "kvtier.h"
#include "temp-dir.h"

#define CHUNK 64u        /* tokens */
#define BLOCK 32u        /* tokens */
#define N_LAYERS 3u
#ifndef BLOCK_BYTES
#define BLOCK_BYTES 4096u /* bytes of a block in one layer */
#endif
#ifndef N_BLOCKS
#define N_BLOCKS 64u
#endif
#define N_TOKENS 640u     /* ten chunks, twenty blocks */

struct fixture {
    struct temp_dir dir;
    struct kvt_engine *engine;
    unsigned char *memory; /* [layer][block][BLOCK_BYTES] */
    int32_t tokens[N_TOKENS];
};

/* Return the setting that begins with key ("name="), or NULL. */
static inline const char *
setting_of(const char *const *settings, const char *key)
{
    for (; settings && *settings; settings++)
        if (!strncmp(*settings, key, strlen(key)))
            return *settings;
    return NULL;
}

static inline bool
is_set(const char *const *settings, const char *setting)
{
    char key[64];

    snprintf(key, sizeof key, "%.*s", (int)strcspn(setting, "=") + 1, setting);
    return setting_of(settings, key) != NULL;
}

/* Without a limit, the index of a directory has a million entries, and each opened engine walks
 * over the entries several times.  So the tests set a limit that no test reaches: the index then
 * has 16384 entries.  On S3 a limit would start a cleaner.  Deadlines are long, so that a machine
 * that does not run a thread for some seconds ends no load and no lookup. */
static inline struct kvt_config *
open_config(const char *dir, const char *const *more)
{
    const char *remote = setting_of(more, "remote_url=");
    char url[300];
    const char *ours[] = { url, "local_cpu=false", "max_local_cpu_size=0.02",
                           "chunk_size=64", "lookup_timeout_ms=600000",
                           "blocking_timeout_secs=600", "max_remote_size=0.1" };
    size_t n_ours = sizeof ours / sizeof *ours - (remote && strstr(remote, "=s3://"));
    const char *settings[32] = { NULL };
    size_t n = 0;

    snprintf(url, sizeof url, "remote_url=fs://%.255s", dir);
    for (size_t i = 0; i < n_ours; i++)
        if (!is_set(more, ours[i]))
            settings[n++] = ours[i];
    if (getenv("KVTIER_TEST_COPIES"))
        settings[n++] = getenv("KVTIER_TEST_COPIES");
    for (; more && *more; more++)
        if (strcmp(*more, "remote_url=")) /* none at all */
            settings[n++] = *more;
    return config_with(settings);
}

static inline struct kvt_group
opaque_group(void)
{
    struct kvt_group group = KVT_INIT(struct kvt_group);

    group.kind = KVT_GROUP_FULL;
    group.block_tokens = BLOCK;
    group.format = KVT_FORMAT_OPAQUE;
    group.n_layers = N_LAYERS;
    group.block_bytes = BLOCK_BYTES;
    group.layout = "test";
    group.layers = "0,1,2";
    return group;
}

/* As opaque_group(), in LMCache's format: the chunks have equal sizes. */
static inline struct kvt_group
plain_group(void)
{
    struct kvt_group group = opaque_group();

    group.format = KVT_FORMAT_MLA;
    group.n_heads = 1;
    group.head_bytes = BLOCK_BYTES / BLOCK;
    group.block_bytes = 0;
    group.layout = NULL;
    return group;
}

/* Parameters of an engine.  Fields of 0: both roles, an opaque group, a world of one rank, no
 * settings. */
struct opening {
    uint32_t role, n_groups, world_size, rank, local_ranks, n_stages;
    const struct kvt_group *groups;
    const char *const *settings;
    const char *instance;
    const char *fingerprint;
};

/* Open an engine.  Return the result of kvt_engine_open(). */
static inline int
try_open(const char *dir, const struct opening *o, struct kvt_engine **out)
{
    struct kvt_config *config = open_config(dir, o->settings);
    struct kvt_group group = opaque_group();
    struct kvt_model model = KVT_INIT(struct kvt_model);
    struct kvt_engine_params params = KVT_INIT(struct kvt_engine_params);

    model.name = "test/model";
    model.fingerprint = o->fingerprint;
    model.kv_dtype = "bfloat16";
    model.world_size = o->world_size ? o->world_size : 1;
    model.rank = o->rank;
    params.config = config;
    params.role = o->role ? o->role : KVT_ROLE_BOTH;
    params.model = &model;
    params.groups = o->groups ? o->groups : &group;
    params.n_groups = o->groups ? o->n_groups : 1;
    params.local_ranks = o->local_ranks;
    params.n_stages = o->n_stages;
    params.instance = o->instance;
    *out = NULL;
    int err = kvt_engine_open(&params, out);
    kvt_config_free(config);
    return err;
}

static inline struct kvt_engine *
must_open(const struct fixture *f, const struct opening *o)
{
    struct kvt_engine *engine;

    if (try_open(f->dir.path, o, &engine))
        fail_msg("%s", kvt_last_error());
    return engine;
}

static inline struct kvt_engine *
open_engine(const struct fixture *f, uint32_t role, const struct kvt_group *groups,
            uint32_t n_groups, const char *const *settings)
{
    struct opening o = { .role = role, .groups = groups, .n_groups = n_groups,
                         .settings = settings };

    return must_open(f, &o);
}

static inline void
set_view(struct kvt_engine *engine, uint32_t group, unsigned char *memory)
{
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    void *base[N_LAYERS];

    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        base[layer] = memory + (size_t)layer * N_BLOCKS * BLOCK_BYTES;
    view.base = base;
    view.n_kv = 1;
    view.n_blocks = N_BLOCKS;
    view.block_stride = BLOCK_BYTES;
    view.token_stride = BLOCK_BYTES / BLOCK;
    view.null_block = 0;
    view.memory = device_memory();
    if (kvt_engine_set_view(engine, group, &view) ||
        kvt_engine_set_stream(engine, device_stream()))
        fail_msg("%s", kvt_last_error());
}

static inline unsigned char *
block_at(const struct fixture *f, uint32_t layer, uint32_t block)
{
    return f->memory + ((size_t)layer * N_BLOCKS + block) * BLOCK_BYTES;
}

/* Set all bytes of all blocks. */
static inline void
set_blocks(const struct fixture *f, int value)
{
    device_set(f->memory, value, (size_t)N_LAYERS * N_BLOCKS * BLOCK_BYTES);
}

/* Make bytes that depend on layer, block and seed. */
static inline void
make_block(unsigned char bytes[BLOCK_BYTES], uint32_t layer, uint32_t block, uint32_t seed)
{
    for (uint32_t i = 0; i < BLOCK_BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 251 + layer * 31 + block * 13 + seed);
}

static inline void
fill_block(const struct fixture *f, uint32_t block, uint32_t seed)
{
    unsigned char bytes[BLOCK_BYTES];

    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        make_block(bytes, layer, block, seed);
        device_put(block_at(f, layer, block), bytes, BLOCK_BYTES);
    }
}

/* Return true if a block holds the bytes that fill_block() writes for block `from` and seed. */
static inline bool
block_holds(const struct fixture *f, uint32_t block, uint32_t from, uint32_t seed)
{
    unsigned char want[BLOCK_BYTES], got[BLOCK_BYTES];
    bool holds = true;

    for (uint32_t layer = 0; holds && layer < N_LAYERS; layer++) {
        make_block(want, layer, from, seed);
        device_get(got, block_at(f, layer, block), BLOCK_BYTES);
        holds = memcmp(got, want, BLOCK_BYTES) == 0;
    }
    return holds;
}

static inline void
fixture_init(struct fixture *f)
{
    temp_dir_make(&f->dir);
    f->memory = device_alloc((size_t)N_LAYERS * N_BLOCKS * BLOCK_BYTES);
    assert_non_null(f->memory);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        f->tokens[i] = (int32_t)(i * 2654435761u % 32000);
}

static inline void
fixture_open(struct fixture *f, const char *const *settings)
{
    struct opening o = { .settings = settings };

    f->engine = must_open(f, &o);
    set_view(f->engine, 0, f->memory);
}

static inline void
fixture_open_plain(struct fixture *f, const char *const *settings)
{
    struct kvt_group group = plain_group();

    f->engine = open_engine(f, KVT_ROLE_BOTH, &group, 1, settings);
    set_view(f->engine, 0, f->memory);
}

/* Open the engine over a directory from which other hosts delete.  more: a setting, or NULL. */
static inline void
fixture_open_shared(struct fixture *f, const char *more)
{
    char url[400];
    const char *const settings[] = { url, more, NULL };

    snprintf(url, sizeof url, "remote_url=fault://shared=1/fs://%s", f->dir.path);
    fixture_open(f, settings);
}

/* Open the scheduler, or a worker, of an engine of two ranks. */
static inline struct kvt_engine *
open_of_two(const struct fixture *f, uint32_t role, uint32_t rank, const char *const *settings,
            const char *instance)
{
    struct opening o = { .role = role, .world_size = 2, .rank = rank, .settings = settings,
                         .instance = instance };
    struct kvt_engine *engine = must_open(f, &o);

    if (role == KVT_ROLE_WORKER)
        set_view(engine, 0, f->memory);
    return engine;
}

static inline void
fixture_fini(struct fixture *f)
{
    kvt_engine_close(f->engine);
    device_free(f->memory);
    temp_dir_remove(&f->dir);
}

/* cmocka's setup: a fixture without an engine. */
static inline int
fixture_setup(void **state)
{
    static struct fixture f;

    f = (struct fixture){ 0 };
    fixture_init(&f);
    *state = &f;
    return 0;
}

/* cmocka's setup: a fixture with an engine of default settings. */
static inline int
fixture_setup_open(void **state)
{
    fixture_setup(state);
    fixture_open(*state, NULL);
    return 0;
}

static inline int
fixture_teardown(void **state)
{
    fixture_fini(*state);
    return 0;
}

static inline void
reopen(struct fixture *f, const char *const *settings)
{
    kvt_engine_close(f->engine);
    fixture_open(f, settings);
}

static inline struct kvt_seq *
new_seq(const struct fixture *f, size_t n_tokens)
{
    struct kvt_seq *seq = NULL;

    if (kvt_seq_new(f->engine, f->tokens, n_tokens, NULL, &seq))
        fail_msg("%s", kvt_last_error());
    return seq;
}

/* Chunks first .. first + n - 1 of a sequence in blocks first_block ... */
struct io {
    struct kvt_chunk chunks[16];
    int32_t blocks[32];
    struct kvt_group_io io;
};

static inline void
make_io(struct io *io, const struct kvt_seq *seq, uint32_t group, size_t first,
        uint32_t n, int32_t first_block)
{
    uint32_t n_blocks = 0;

    assert_int_equal(kvt_seq_chunks(seq, first, n, io->chunks), 0);
    for (uint32_t i = 0; i < n; i++)
        n_blocks += (io->chunks[i].n_tokens + BLOCK - 1) / BLOCK;
    for (uint32_t i = 0; i < n_blocks; i++)
        io->blocks[i] = first_block + (int32_t)i;
    io->io = (struct kvt_group_io){ .group = group, .n_chunks = n,
                                    .chunks = io->chunks, .blocks = io->blocks,
                                    .n_blocks = n_blocks };
}

static inline void
store_by(struct kvt_engine *engine, const struct kvt_group_io *ios, size_t n)
{
    if (kvt_engine_store(engine, ios, n) || kvt_engine_flush(engine, 60000))
        fail_msg("%s", kvt_last_error());
}

static inline void
store_and_flush(const struct fixture *f, const struct kvt_group_io *ios, size_t n)
{
    store_by(f->engine, ios, n);
}

/* Store the first n chunks from blocks 1 ... */
static inline void
store_prefix(const struct fixture *f, uint32_t n)
{
    struct kvt_seq *seq = new_seq(f, N_TOKENS);
    struct io io;

    for (uint32_t b = 1; b <= 2 * n; b++)
        fill_block(f, b, 0);
    make_io(&io, seq, 0, 0, n, 1);
    store_and_flush(f, &io.io, 1);
    kvt_seq_free(seq);
}

/* Load, and wait for the end of the load. */
static inline struct kvt_load *
load_and_wait(const struct fixture *f, const struct kvt_group_io *ios, size_t n)
{
    struct pollfd fd = { .fd = kvt_engine_eventfd(f->engine), .events = POLLIN };
    struct kvt_load *load = NULL, *done = NULL;

    if (kvt_engine_load(f->engine, ios, n, 42, &load))
        fail_msg("%s", kvt_last_error());
    while (!kvt_engine_poll(f->engine, &done, 1))
        poll(&fd, 1, 1000);
    assert_ptr_equal(done, load);
    return load;
}

/* Repeat a lookup until the hit is known, and return the hit. */
static inline uint64_t
lookup(const struct fixture *f, struct kvt_seq *seq, uint64_t have, uint64_t max)
{
    uint64_t hit = 0;
    int err;

    while ((err = kvt_engine_lookup(f->engine, seq, have, max, &hit)) == -EAGAIN)
        usleep(200);
    assert_int_equal(err, 0);
    return hit;
}

static inline uint64_t
counter(const struct fixture *f, const char *name)
{
    uint64_t values[64];

    kvt_engine_counters(f->engine, values, 64);
    for (size_t i = 0; i < kvt_n_counters(); i++)
        if (!strcmp(kvt_counter(i)->name, name))
            return values[i];
    fail_msg("no counter %s", name);
    return 0;
}

/* Wait until a counter has a value: a lookup can promise a prefetched chunk before the counter
 * includes the chunk. */
static inline void
assert_comes_to(const struct fixture *f, const char *name, uint64_t n)
{
    for (int i = 0; counter(f, name) < n && i < 60 * 1000; i++)
        usleep(1000);
    assert_int_equal(counter(f, name), n);
}

#endif
