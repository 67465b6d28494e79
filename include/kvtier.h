/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier.h - the public interface of libkvtier.
 *
 * kvtier keeps the KV cache of a language model outside the engine that made
 * it and brings it back later: after a restart, in another process, on another
 * node.  This header has three parts:
 *
 *   configuration  defaults, YAML file, environment, explicit settings
 *   store          keys to bytes: what the command line uses
 *   engine         tokens to paged KV: what an inference engine uses
 *
 * Conventions, true for every call unless its comment says otherwise:
 *
 *   - Functions that return int return 0, or a negative errno; then
 *     kvt_last_error() has a sentence for people.  Other return types say what
 *     they return.
 *   - Any thread may call; calls on one handle may overlap.  Nothing blocks on
 *     storage except the functions that say "blocks".
 *   - Pointers passed in are borrowed until the call returns.  What a call
 *     returns in *out is owned by the caller and ended by the close/free named.
 *   - Sizes are in bytes, positions and lengths in tokens where the name says
 *     so, times in milliseconds (_ms).
 *   - Structs that may grow begin with struct_size: set it to sizeof the struct
 *     (KVT_INIT does).  Fields that a caller's older header lacks count as 0.
 *   - A handle used in a forked child answers -ESTALE.
 *
 * Error codes with one meaning everywhere:
 *   -EINVAL    an argument or a setting is out of its range
 *   -ENOMEM    memory could not be had
 *   -ENOSPC    the store has no room for it, or the disk is full
 *   -EIO       the storage failed
 *   -EBADMSG   bytes were found, but not the ones that were stored
 *   -ENOENT    it is not there (store level; the engine counts a miss)
 *   -EAGAIN    not known yet, ask again
 *   -ECANCELED the request was cancelled or the handle is closing
 *   -ETIMEDOUT the deadline passed
 *   -ENODEV    a library, device or tier that is needed is absent
 *   -ENOTSUP   this build, tier or format cannot do it
 *   -ESTALE    the handle belongs to another process
 */
#ifndef KVTIER_H
#define KVTIER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVT_API __attribute__((visibility("default")))
#define KVT_MUST_CHECK __attribute__((warn_unused_result))
#else
#define KVT_API
#define KVT_MUST_CHECK
#endif

/* Zero a struct that begins with struct_size, and fill that in. */
#ifdef __cplusplus
#define KVT_INIT(type) { sizeof(type) }
#else
#define KVT_INIT(type) { .struct_size = sizeof(type) }
#endif

/* "0.1.0": the library that is loaded, not the header. Static storage. */
KVT_API const char *kvt_version(void);

/* The sentence of the calling thread's last failed call: what happened, to
 * which thing, what to do.  Never NULL; valid until the thread's next call. */
KVT_API const char *kvt_last_error(void);

/* Bytes of memory that this process could still have: what the machine has available,
 * or its memory control group leaves if that is less; UINT64_MAX: neither is told. */
KVT_API uint64_t kvt_memory_available(void);

/* ------------------------------------------------------------------ logging */

enum kvt_log_level {
    KVT_LOG_ERROR = 0,
    KVT_LOG_WARN = 1,
    KVT_LOG_INFO = 2,
    KVT_LOG_DEBUG = 3,
    KVT_LOG_DEFAULT = 4, /* for kvt_set_log(): the environment's level, else INFO */
};

/* Receives one line without its newline; any thread, must not call kvtier. */
typedef void (*kvt_log_fn)(void *ctx, enum kvt_log_level level, const char *line);

/* Send log lines to fn (NULL: standard error, the default) up to max_level
 * (the default is KVT_LOG_DEFAULT: the level in KVTIER_LOG_LEVEL or
 * LMCACHE_LOG_LEVEL, else INFO).  Process-wide. */
KVT_API void kvt_set_log(kvt_log_fn fn, void *ctx, enum kvt_log_level max_level);

/* ------------------------------------------------------------ configuration */

struct kvt_config;

/* Where settings come from; later ones win:
 * defaults, file, LMCACHE_* environment, KVTIER_* environment, connector_json,
 * settings. */
struct kvt_config_sources {
    size_t struct_size;
    const char *file;               /* YAML; NULL: $KVTIER_CONFIG_FILE, then
                                     * $LMCACHE_CONFIG_FILE, else none */
    const char *const *environment; /* "NAME=value", ends with NULL; variables of AWS
                                     * and proxies count from there too;
                                     * NULL: the process's own */
    const char *connector_json;     /* one JSON object, keys with or without
                                     * the "lmcache." prefix; NULL: none */
    const char *const *settings;    /* "key=value", ends with NULL; NULL: none */
    int strict;                     /* unknown keys are errors */
};

/* Read all sources.  Unknown keys are one warning each (an error when strict or
 * when the configuration sets strict_config).  Blocks on reading the file.
 *   -EINVAL  a value of the wrong type or out of its range; the message names
 *            the key, the file and line or the variable, and what is allowed
 *   -ENOENT, -EACCES, ...  the file cannot be read */
KVT_API KVT_MUST_CHECK int
kvt_config_open(const struct kvt_config_sources *sources, struct kvt_config **out);

KVT_API void kvt_config_free(struct kvt_config *config);

/* Effective settings as one JSON object: {"key": {"value": ..., "origin": "..."}}.
 * Secrets are shown as "***".  malloc'ed, ended with kvt_free(); NULL: no memory. */
KVT_API char *kvt_config_json(const struct kvt_config *config);

/* Bytes of /dev/shm that a worker shares with 3FS's daemon, if the configuration names storage
 * in 3FS. */
KVT_API uint64_t kvt_hf3fs_shared_bytes(const struct kvt_config *config);

KVT_API void kvt_free(void *p);

/* Something wrong or doubtful in the sources. */
struct kvt_config_problem {
    const char *key;    /* NULL: not about one key */
    const char *origin; /* "file lmcache.yaml:3", "LMCACHE_CHUNK_SIZE"; or NULL */
    const char *text;   /* one sentence that names both */
    int is_error;       /* 0: a warning */
};

/* Called by kvt_config_check(), the problem is borrowed until it returns. */
typedef void (*kvt_config_problem_fn)(void *ctx,
                                      const struct kvt_config_problem *problem);

/* Read all sources as kvt_config_open() does and tell fn every problem, not only
 * the first error.  Always strict.  Logs nothing.
 *   -EINVAL  there was an error
 *   -ENOENT, -EACCES, ...  the file cannot be read; fn was not called */
KVT_API KVT_MUST_CHECK int
kvt_config_check(const struct kvt_config_sources *sources,
                 kvt_config_problem_fn fn, void *ctx);

/* What a setting is.  Strings are static. */
struct kvt_param_info {
    const char *section;
    const char *name;
    const char *type;     /* "bool", "int", "float", "text", "ints", ... */
    const char *fallback; /* default as a user would write it; NULL: unset */
    const char *text;     /* what it does */
    const char *not_done; /* completes "kvtier does not ..."; "": it does */
    char allowed[160];    /* "a whole number from 1 to 1048576 tokens" */
    char old_names[96];   /* with commas between; "": none */
    int has_effect;       /* 0: accepted, because LMCache has it */
    int in_extra_config;  /* 1: belongs inside extra_config */
};

/* Describe setting i.  Returns 0, or -ENOENT when there is no setting i. */
KVT_API KVT_MUST_CHECK int kvt_param(size_t i, struct kvt_param_info *out);

/* -------------------------------------------------------------------- store */

struct kvt_store; /* the configured tiers, keys to bytes */

/* Open the tiers the configuration names, without an engine: what the command
 * line does.  Blocks.  Errors as kvt_engine_open().  Shared host memory (shared_cpu) that no
 * engine has made yet is left out; -ENOENT: no other tier is configured. */
KVT_API KVT_MUST_CHECK int
kvt_store_open(const struct kvt_config *config, struct kvt_store **out);

/* Waits for requests under way, for blocking_timeout_secs.  Those that are not done by then
 * end with -ECANCELED: what was not begun, and what storage over the network (S3) has not
 * answered; a read or write of a file that was begun is waited for.  When it returns all
 * have a status, and those not polled, which are dropped, belong to the caller again.  Who
 * wants all of them polls them first. */
KVT_API void kvt_store_close(struct kvt_store *store);

enum kvt_op_kind {
    KVT_OP_PUT = 1,    /* bytes of buf under key, in every tier that is stored in */
    KVT_OP_GET = 2,    /* into buf, from the first tier that has the key */
    KVT_OP_STAT = 3,   /* is it there, and how large */
    KVT_OP_DELETE = 4, /* from every tier */
    KVT_OP_VERIFY = 5, /* read it whole, check it, leave it */
};

/* What is known of stored bytes. */
#define KVT_FOUND_CHECKED 1u /* a checksum was there and is right (GET, VERIFY) */
#define KVT_FOUND_ID 2u      /* carries an identity and a checksum */

/* kvt_op.flags: key is no key text but the name of an object, for bytes of any kind.
 * Only stores whose tiers are all s3 take it. */
#define KVT_OP_NAME 1u

/* kvt_op.flags: key is what kvt_store_list() told, which may be not all of it ('_' for
 * '/'): GET takes the chunk that lies there, as VERIFY always does.  Without this flag a
 * chunk that was stored by another key is refused. */
#define KVT_OP_LISTED 2u

/* One request.  key: key text as LMCache writes it.  The struct and what it
 * points to belong to the store from kvt_store_submit() until kvt_store_poll()
 * returns it, or kvt_store_close() has returned. */
struct kvt_op {
    size_t struct_size;
    uint32_t kind;     /* enum kvt_op_kind */
    uint32_t flags;    /* KVT_OP_* */
    const char *key;
    void *buf;         /* PUT: read, GET: written */
    uint64_t bytes;    /* PUT: how many; GET: room in buf */
    void *user;        /* yours */

    int status;        /* out: 0, -ENOENT, -EBADMSG, -ENOSPC, -EMSGSIZE (GET: buf is
                        * too small, found_bytes says for what), -ECANCELED (the
                        * store was closed), ... */
    uint32_t found;    /* out: KVT_FOUND_* */
    uint64_t found_bytes; /* out: payload bytes */
    uint32_t tokens;   /* out: tokens in the chunk; 0 unknown */
    uint8_t id[16];    /* out, with KVT_FOUND_ID: its identity */
    char why[320];     /* out: a sentence when status is not 0 */
};

/* Start n requests.  Never blocks on storage. */
KVT_API KVT_MUST_CHECK int
kvt_store_submit(struct kvt_store *store, struct kvt_op *const *ops, size_t n);

/* Up to max requests that are done; returns their number. */
KVT_API size_t
kvt_store_poll(struct kvt_store *store, struct kvt_op **done, size_t max);

/* Readable while kvt_store_poll() has something to return. */
KVT_API int kvt_store_eventfd(const struct kvt_store *store);

/* One request on the calling thread.  Blocks.  Returns op->status. */
KVT_API int kvt_store_run(struct kvt_store *store, struct kvt_op *op);

/* What kvt_store_list() found. */
struct kvt_listed {
    size_t struct_size;
    const char *key;       /* valid during the call; where names do not tell all of a
                            * key (local_disk: '-' for '/', s3: '_'), one with the same
                            * name */
    const char *tier;
    uint64_t stored_bytes; /* on disk, framing included */
    int64_t mtime_ns;      /* of writing, wall clock */
};

/* Call fn for each chunk in the store with a key (kvt_listed.key) that begins with prefix
 * ("": every chunk), in no order; fn returns 0 to go on.  Blocks. */
KVT_API KVT_MUST_CHECK int
kvt_store_list(struct kvt_store *store, const char *prefix,
               int (*fn)(void *ctx, const struct kvt_listed *listed), void *ctx);

/* What one tier holds, and may. */
struct kvt_tier_info {
    size_t struct_size;
    char tier[16];
    char url[512];
    uint64_t n_chunks;
    uint64_t used_bytes;
    uint64_t limit_bytes; /* 0: none */
    uint64_t n_entries;   /* the most chunks that the index can have */
    int index_shared;     /* 0: the index is this process's alone */
    uint64_t allocated_bytes; /* of shared host memory; 0: another tier */
    int64_t last_use_ns;  /* of shared host memory: wall clock; 0: never, or another tier */
};

/* Tier number i, in the order they are asked.  -ENOENT: there are fewer. */
KVT_API KVT_MUST_CHECK int
kvt_store_tier(const struct kvt_store *store, size_t i, struct kvt_tier_info *out);

/* Delete all chunks in shared host memory (shared_cpu), leased chunks too, and return the
 * memory to the host.  Chunks in storage and in the private memory of engines stay.  -ENOENT:
 * there is no shared host memory; -EBUSY: the chunks are deleted, but other processes have the
 * memory open, so the memory stays.  After the call the store can only be closed.  Blocks. */
KVT_API KVT_MUST_CHECK int kvt_store_clear(struct kvt_store *store);

/* Receives one thing that storage needs of this machine.  about: what is meant, two words
 * as "3fs mount" or "GPU 3".  status: 0: the requirement is met; a negative errno: it is not met;
 * 1: the next check may block or end the process, and text is the remedy if no further call
 * follows.  text: a sentence, borrowed as all is.  Storage that has much in common may tell it
 * twice. */
typedef void (*kvt_look_fn)(void *ctx, const char *about, int status, const char *text);

/* Look at what the storage that a configuration names needs, one thing after the other,
 * without opening it: where several things are missing, opening tells the first only.
 * Today that is storage in 3FS, whether GPUs reach the directories of gds_path: a
 * sentence for each of both, the same for GPUs that are alike; and whether the host has room
 * for the shared host memory.  -ENOENT: the configuration names no storage.  Blocks: for as
 * long as a daemon of 3FS does not answer, and 20 s for each directory. */
KVT_API KVT_MUST_CHECK int
kvt_store_look(const struct kvt_config *config, kvt_look_fn fn, void *ctx);

/* ------------------------------------------------------------------- engine */

struct kvt_engine; /* one engine process's view of the cache */
struct kvt_seq;    /* the tokens of one request, hashed */
struct kvt_load;   /* one request's load in flight */

/* An engine asks for hits in one process and moves bytes in others.  The
 * scheduler's handle opens the index and never allocates a pool. */
enum kvt_role {
    KVT_ROLE_SCHEDULER = 1, /* kvt_engine_lookup */
    KVT_ROLE_WORKER = 2,    /* kvt_engine_store, kvt_engine_load */
    KVT_ROLE_BOTH = 3,
};

/* Whose KV cache it is.  Everything here enters the identity of every chunk:
 * a chunk made under another description is never returned. */
struct kvt_model {
    size_t struct_size;
    const char *name;        /* as the engine names it; no '@', at most 255 bytes */
    const char *fingerprint; /* revision or digest of the weights; NULL: none, the name
                              * alone tells the weights: kvt_engine_reset() after the
                              * open, if two models of equal name may differ */
    const char *kv_dtype;    /* LMCache's name: "bfloat16", "half", "uint8", ... */
    uint32_t world_size;     /* ranks that share every chunk, >= 1 */
    uint32_t rank;           /* this worker, below world_size; scheduler: 0 */
};

/* Which chunks a hit of n tokens needs from a group of layers. */
enum kvt_group_kind {
    KVT_GROUP_FULL = 1,    /* all chunks below n */
    KVT_GROUP_SLIDING = 2, /* those that cover the last window_tokens - 1 below n */
};

/* What a stored chunk holds. */
enum kvt_chunk_format {
    /* The engine's blocks as they lie in memory, block by block and in it layer
     * by layer.  Right for layouts that cannot be cut by token (vLLM on CPU). */
    KVT_FORMAT_OPAQUE = 1,
    /* LMCache's KV_2LTD: [2, layers, tokens, heads * head_size]. */
    KVT_FORMAT_2LTD = 2,
    /* LMCache's KV_MLA_FMT: [1, layers, tokens, head_size]. */
    KVT_FORMAT_MLA = 3,
};

/* Layers that share one block table. */
struct kvt_group {
    size_t struct_size;
    uint32_t kind;          /* enum kvt_group_kind */
    uint32_t window_tokens; /* KVT_GROUP_SLIDING: its window; else 0 */
    uint32_t block_tokens;  /* tokens a block; divides chunk_size */
    uint32_t format;        /* enum kvt_chunk_format; OPAQUE if there are several groups */
    uint32_t n_layers;
    uint32_t n_heads;       /* KV heads on this rank; OPAQUE: informative */
    uint32_t head_bytes;    /* head_size * item size; OPAQUE: informative */
    uint64_t block_bytes;   /* OPAQUE: bytes of one layer of one block */
    const char *layout;     /* text that tells this packing from every other, e.g. a
                             * digest of a packed test pattern; of other formats than
                             * OPAQUE: what kv_dtype does not tell of the elements */
    const char *layers;     /* text that names the layers, in order */
    uint32_t replicated;    /* 1: every rank has the same KV (MLA): its chunks are
                             * stored once, by the first rank, and loaded by all */
};

struct kvt_engine_params {
    size_t struct_size;
    const struct kvt_config *config; /* borrowed until return */
    uint32_t role;                   /* enum kvt_role */
    uint32_t n_groups;
    const struct kvt_group *groups;
    const struct kvt_model *model;
    /* Names the engine: its scheduler and workers on this host find each other's
     * chunks in host memory by it.  NULL: one process has both roles. */
    const char *instance;
    uint32_t local_ranks;            /* workers on this host; 0: all world_size */
};

/* Open the tiers the configuration names.  Blocks (directories are made and
 * indexes mapped, but no directory listed, before it returns).  WORKER starts threads
 * and begins to pre-fault the pool.
 *   -EINVAL  chunk_size is no multiple of a block size, or another setting or
 *            description is out of range
 *   -ENOMEM  the pool does not fit: the message names max_local_cpu_size, what
 *            was asked and what is available
 *   -ENODEV, -EACCES, -ENOTSUP ...  a tier cannot be opened */
KVT_API KVT_MUST_CHECK int
kvt_engine_open(const struct kvt_engine_params *params, struct kvt_engine **out);

/* Stop: loads are cancelled, queued stores finished, threads joined.  Blocks until
 * the I/O under way has ended.  Loads that kvt_engine_poll() has returned must have
 * been freed; the others are.  Nothing durable depends on this call. */
KVT_API void kvt_engine_close(struct kvt_engine *engine);

/* Tokens in one chunk, and what KVT_FORMAT_OPAQUE chunks are tagged with. */
KVT_API uint32_t kvt_engine_chunk_tokens(const struct kvt_engine *engine);

/* Where a group's paged KV lies.  All strides are in bytes and may be anything,
 * contiguity is never assumed.  Element order in memory is given by them:
 *
 *   address(kv, layer, block, head, token) = base[kv * n_layers + layer]
 *       + block * block_stride + head * head_stride + token * token_stride
 *
 * and head_bytes bytes there belong together.  OPAQUE needs base[layer],
 * n_blocks and block_stride only. */
struct kvt_kv_view {
    size_t struct_size;
    void *const *base;     /* n_kv * n_layers addresses; host memory */
    uint32_t n_kv;         /* 2: K and V apart; 1: MLA, or OPAQUE */
    uint32_t n_blocks;     /* block ids are 0 .. n_blocks - 1 */
    int64_t block_stride;
    int64_t head_stride;
    int64_t token_stride;
    int32_t null_block;    /* an id that is never read or written; -1: none */
    uint32_t memory;       /* enum kvt_memory: what base's addresses are of */
    int32_t device;        /* its number, as CUDA or HIP numbers it in this process */
};

enum kvt_memory {
    KVT_MEMORY_HOST = 0,
    KVT_MEMORY_CUDA = 1,
    KVT_MEMORY_HIP = 2,
};

/* Tell the worker's engine where group's KV lies; again after a reallocation.
 * No load or store of the group may be in flight.  The memory must stay until
 * kvt_engine_close().  All groups lie in memory of one kind, on one device; for the first
 * one on a device this blocks until kernels are there and the engine's own memory is
 * pinned, and this thread has used the device before.  -ENODEV: it cannot be reached. */
KVT_API KVT_MUST_CHECK int
kvt_engine_set_view(struct kvt_engine *engine, uint32_t group,
                    const struct kvt_kv_view *view);

/* The stream (a CUstream or hipStream_t; NULL, as at first: the default one) on which the
 * caller reads and writes KV on a device.  From here on stores read blocks after what is on
 * it when they are called, and what is put on it later does not come before that; loads
 * write after what is on it when they are called. */
KVT_API KVT_MUST_CHECK int
kvt_engine_set_stream(struct kvt_engine *engine, void *stream);

/* ------------------------------------------------ engine: tokens of a request */

/* A multimodal item: its placeholder tokens are [first_token, +n_tokens). */
struct kvt_mm_item {
    const char *id;
    uint64_t first_token;
    uint64_t n_tokens;
};

/* What besides the token ids decides the KV of a request. */
struct kvt_seq_extra {
    size_t struct_size;
    const char *lora;               /* adapter name; NULL: none */
    const char *cache_salt;         /* NULL: none */
    const struct kvt_mm_item *mm;   /* n_mm items in order of first_token */
    size_t n_mm;
    const char *tags;               /* "name%value@name%value"; NULL: none.  At most 255
                                     * bytes, fewer for KVT_FORMAT_OPAQUE and long names,
                                     * no control characters; no tag may be named kvt */
};

/* kvt_chunk.flags: LMCache's name of the chunk contains neither adapter, salt nor
 * weights.  A file of LMCache under this name may hold another chunk, and is a miss. */
#define KVT_CHUNK_OWN 1u

/* One chunk of a sequence, as the scheduler hands it to its workers: plain
 * bytes, valid in every process that runs the same libkvtier. */
struct kvt_chunk {
    uint8_t prefix[16];    /* chained digest of the weights, the tags and everything else
                            * up to the chunk's end */
    uint64_t name_hash[4]; /* LMCache's chunk hash, which names files and objects:
                            * 256 bits, or 64 and the others 0 */
    uint32_t n_tokens;     /* chunk_tokens, fewer for a partial tail */
    uint32_t flags;        /* KVT_CHUNK_* */
};

/* Hash tokens (int32, host memory, n_tokens of them).  extra may be NULL.
 * A sequence is used by one thread at a time.  The chunks belong to the engine's
 * current weights, also after a later kvt_engine_reset().  Opens and locks no file.
 *   -EINVAL  key text cannot have these tags */
KVT_API KVT_MUST_CHECK int
kvt_seq_new(struct kvt_engine *engine, const int32_t *tokens, size_t n_tokens,
            const struct kvt_seq_extra *extra, struct kvt_seq **out);

/* Append tokens, such as generated tokens, to a sequence.  The tokens extend the
 * sequence's partial chunk to a new chunk: a lease of the old chunk ends.
 *   -ENOMEM  some tokens are lost: the sequence keeps the existing chunks, and
 *            takes no more tokens */
KVT_API KVT_MUST_CHECK int
kvt_seq_append(struct kvt_seq *seq, const int32_t *tokens, size_t n_tokens);

KVT_API uint64_t kvt_seq_tokens(const struct kvt_seq *seq);

/* Copy the descriptions of chunks first .. first + n - 1 to out.  Where the tokens
 * do not fill the last chunk it is a partial one, with the n_tokens that are there.
 *   -EINVAL  the sequence has fewer */
KVT_API KVT_MUST_CHECK int
kvt_seq_chunks(const struct kvt_seq *seq, size_t first, size_t n,
               struct kvt_chunk *out);

KVT_API void kvt_seq_free(struct kvt_seq *seq);

/* ------------------------------------------------- engine: lookup, scheduler */

/* How many leading tokens can be loaded.  The partial chunk at the sequence's end
 * is looked for if save_unfull_chunk is set.
 *
 * What lies in storage that other hosts delete from is promised when it was read
 * into host memory and verified.  With enable_async_loading all that is promised lies in
 * host memory, if lookup_timeout_ms suffices for that.  A scheduler's caller has its
 * workers prefetch what kvt_engine_wanted() names; an engine of both roles does so
 * itself.
 *
 * have_tokens  The engine has these already; only chunks that reach beyond are
 *              looked for.
 * max_tokens   No hit longer than this (a prompt must leave one token to
 *              compute: pass its length - 1).
 * hit_tokens   Out: tokens promised, 0 or more than have_tokens.  A multiple of
 *              the chunk size and so of every group's block size, but with
 *              save_unfull_chunk: then the last chunk of a hit may be the partial
 *              one, or reach beyond max_tokens and count up to there.
 *
 * The promised chunks are leased: no eviction on this host takes them for
 * pin_timeout_sec, or until kvt_engine_release(), which the caller owes the lookup,
 * also one that was not answered yet, when the request has loaded, or will not.
 * Until the release, and for at most half of pin_timeout_sec, a lookup with the same
 * max_tokens and have_tokens that are not lower returns the same hit.
 * Takes no lock and does no I/O; tiers are asked for what the index lacks in
 * the background.
 *   -EAGAIN  not known yet, ask again.  What the tiers have is known
 *            lookup_timeout_ms after the first call at the latest.  What is to be read
 *            into host memory is waited for until nothing has come for that long, or
 *            blocking_timeout_secs have passed since the first call; then the answer
 *            is what can be promised */
KVT_API KVT_MUST_CHECK int
kvt_engine_lookup(struct kvt_engine *engine, struct kvt_seq *seq,
                  uint64_t have_tokens, uint64_t max_tokens,
                  uint64_t *hit_tokens);

/* Chunks of one group, by their places in a sequence. */
struct kvt_chunk_range {
    uint32_t group;
    uint32_t n_chunks;
    uint64_t first_chunk;
};

/* After a lookup that answered -EAGAIN: write the chunks that all workers are to
 * prefetch to out, which has room for one range a group, and return their number.
 * Each is named once, and again only if none has come for a while. */
KVT_API size_t
kvt_engine_wanted(struct kvt_engine *engine, struct kvt_seq *seq,
                  struct kvt_chunk_range *out);

/* Write for each of the chunks first .. first + n - 1 of the last lookup's hit to out: 1
 * if every rank holds the chunk in host memory, else 0.  After kvt_engine_release() all
 * are 0. */
KVT_API void
kvt_seq_in_memory(const struct kvt_seq *seq, size_t first, size_t n, uint8_t *out);

/* Give the leases of a lookup back. */
KVT_API void kvt_engine_release(struct kvt_engine *engine, struct kvt_seq *seq);

/* -------------------------------------------- engine: store and load, worker */

/* Chunks of one group and the blocks they lie in. */
struct kvt_group_io {
    uint32_t group;
    uint32_t n_chunks;
    const struct kvt_chunk *chunks;
    /* Block ids in token order, chunk after chunk, each chunk
     * ceil(n_tokens / block_tokens) of them.  An id that is negative or the
     * view's null block is skipped by a load; a store skips that chunk. */
    const int32_t *blocks;
    size_t n_blocks;
    const char *tags; /* the sequence's tags, see kvt_seq_extra */
};

/* Store chunks.  Their blocks are read before the call returns and may change
 * afterwards; writing goes on in the background.  A chunk that is stored
 * already, for which the pool or the store has no room, or that was refused, is
 * dropped and counted: storing never waits for storage.
 *   -EINVAL  a group, a block id or a count is out of range; nothing was stored
 *   -ENOMEM  nothing was stored */
KVT_API KVT_MUST_CHECK int
kvt_engine_store(struct kvt_engine *engine, const struct kvt_group_io *ios,
                 size_t n_ios);

/* Wait until what was stored so far is published or has failed.  Blocks.
 * timeout_ms < 0: for ever.  -ETIMEDOUT: some is still under way. */
KVT_API KVT_MUST_CHECK int
kvt_engine_flush(struct kvt_engine *engine, int64_t timeout_ms);

/* Start to bring chunks to host memory, where a load will find them; ios need no
 * blocks.  A chunk for which there is no room now waits for it, at most
 * blocking_timeout_secs.  -ENOMEM: nothing was started. */
KVT_API KVT_MUST_CHECK int
kvt_engine_prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios,
                    size_t n_ios);

/* Start to load chunks into blocks; at most blocking_timeout_secs.  The copy into
 * blocks verifies the bytes of a chunk.  Until the load is done, a block may hold any bytes,
 * also damaged bytes.  After the load is done, this is still true for the blocks of a chunk
 * whose kvt_load_status() is not 0.
 * cookie comes back in kvt_load_cookie().  When the load is done kvt_engine_poll() returns it. */
KVT_API KVT_MUST_CHECK int
kvt_engine_load(struct kvt_engine *engine, const struct kvt_group_io *ios,
                size_t n_ios, uint64_t cookie, struct kvt_load **out);

/* Write up to max loads that are done to done and return their number.  From
 * then on no thread or device writes to their blocks.  Each is returned once and
 * ended with kvt_load_free(). */
KVT_API size_t
kvt_engine_poll(struct kvt_engine *engine, struct kvt_load **done, size_t max);

/* An eventfd that is readable while kvt_engine_poll() has something to return.
 * Owned by the engine. */
KVT_API int kvt_engine_eventfd(const struct kvt_engine *engine);

/* Finish early: blocks not yet written stay as they are.  The load is still
 * returned by kvt_engine_poll(). */
KVT_API void kvt_load_cancel(struct kvt_load *load);

KVT_API uint64_t kvt_load_cookie(const struct kvt_load *load);

/* The outcome of chunk number chunk of ios[io]: 0 its blocks hold it;
 * -ENOENT, -EBADMSG, -EIO, -ETIMEDOUT, -ECANCELED they do not. */
KVT_API int
kvt_load_status(const struct kvt_load *load, size_t io, size_t chunk);

/* Bytes brought from storage, whether good or not. */
KVT_API uint64_t kvt_load_bytes(const struct kvt_load *load);

KVT_API void kvt_load_free(struct kvt_load *load);

/* Give other weights to the sequences made by this engine from now on.  Call this function
 * after the model's weights were replaced, or to make earlier chunks misses.
 *
 * fingerprint  Names the new weights, as in struct kvt_model: engines with the same
 *              description and fingerprint share their chunks.  NULL or "": a random
 *              name; this engine alone finds the chunks stored from now on, until the
 *              engine is closed or reset.
 *
 * Earlier sequences keep their weights, also in stores and loads under way.  Only the
 * scheduler's engine, which makes the sequences, needs the call; other engines and earlier
 * chunks lose nothing.  Afterwards chunks of LMCache, which have no weights id, are
 * misses. */
KVT_API KVT_MUST_CHECK int
kvt_engine_reset(struct kvt_engine *engine, const char *fingerprint);

/* ----------------------------------------------------------------- counters */

enum kvt_counter_kind {
    KVT_COUNTER_SUM = 1,   /* only grows */
    KVT_COUNTER_GAUGE = 2, /* a level */
};

struct kvt_counter_info {
    const char *name; /* "store_bytes" */
    const char *unit; /* "bytes", "chunks", "tokens", "ns", "" */
    const char *text; /* one sentence */
    uint32_t kind;    /* enum kvt_counter_kind */
};

/* How many counters there are, and what counter i is (NULL: no such). */
KVT_API size_t kvt_n_counters(void);
KVT_API const struct kvt_counter_info *kvt_counter(size_t i);

/* Copy the values of counters 0 .. n - 1 of this handle to out. */
KVT_API void
kvt_engine_counters(const struct kvt_engine *engine, uint64_t *out, size_t n);

#ifdef __cplusplus
}
#endif

#endif
