/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier.h - the public interface of libkvtier.
 *
 * kvtier stores the KV cache of a language model outside the inference engine and loads the KV
 * cache again: after a restart, in another process, on another host.  The header has four parts:
 *
 *   configuration  kvt_config_*: defaults, YAML file, environment, explicit settings
 *   store          kvt_store_*: maps keys to bytes; used by the command line
 *   codecs         kvt_codec_*: measures the encodings of a stored chunk
 *   engine         kvt_engine_*, kvt_seq_*, kvt_load_*: maps tokens to paged KV; used by an
 *                  inference engine
 *
 * docs/glossary.md explains the terms: chunk, block, group, rank, tier, lease, hit.
 *
 * Conventions of every function, unless the function's comment says otherwise:
 *
 *   - A function of type int returns 0 or a negative errno.  After an error, kvt_last_error()
 *     returns a sentence for the user.
 *   - Any thread may call any function, and calls on a handle may overlap.  A function waits for
 *     storage only if the comment says "Blocks."
 *   - A function borrows its pointer arguments until the function returns: a store or an engine
 *     does not use the configuration after the open.  The caller owns the object in *out and ends
 *     the object with the matching close or free function.  After an error, *out has no object.
 *   - Sizes are in bytes; positions and lengths are in tokens if the name says so; times are in
 *     milliseconds (_ms).
 *   - A struct that may grow begins with struct_size.  The caller sets struct_size to sizeof the
 *     struct (KVT_INIT does).  Fields that an older header of the caller lacks count as 0.
 *   - In a forked child, calls on a handle of the parent return -ESTALE, and close functions do
 *     nothing.
 *
 * Error codes:
 *   -EINVAL    an argument or a setting is out of range
 *   -ENOMEM    an allocation failed
 *   -ENOSPC    the tier's limit leaves no room, or the disk is full
 *   -EIO       the storage failed
 *   -EBADMSG   the stored bytes are corrupt, or belong to another chunk
 *   -ENOENT    the store has no such chunk (the engine part counts a miss instead)
 *   -EAGAIN    the result is not known yet; call again
 *   -ECANCELED the request was cancelled, or the handle is closing
 *   -ETIMEDOUT the deadline passed
 *   -ENODEV    a required library, device or tier is absent
 *   -ENOTSUP   the build, the tier or the format does not support the operation
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

/* Initialiser of a struct: set struct_size, and all other fields to 0. */
#ifdef __cplusplus
#define KVT_INIT(type) { sizeof(type) }
#else
#define KVT_INIT(type) { .struct_size = sizeof(type) }
#endif

/* Return the version of the loaded library, such as "0.1.0".  Static storage. */
KVT_API const char *kvt_version(void);

/* Return the sentence of the calling thread's last failed call: the event, the object, and the
 * remedy.  Never NULL.  Valid until the thread's next call of kvtier. */
KVT_API const char *kvt_last_error(void);

/* Return the bytes of memory that the process can still allocate: the available memory of the host,
 * or the rest of the memory control group's limit if less remains there.  UINT64_MAX: both are
 * unknown. */
KVT_API uint64_t kvt_memory_available(void);

/* ------------------------------------------------------------------ logging */

enum kvt_log_level {
    KVT_LOG_ERROR = 0,
    KVT_LOG_WARN = 1,
    KVT_LOG_INFO = 2,
    KVT_LOG_DEBUG = 3,
    KVT_LOG_DEFAULT = 4, /* only for kvt_set_log(): the level in KVTIER_LOG_LEVEL or
                          * LMCACHE_LOG_LEVEL, else INFO */
    KVT_LOG_TRACE = 5,   /* each request to storage, with result and duration */
};

/* Receive a log line without newline.  line is valid during the call.  Called by any thread, one
 * call at a time; must not call kvtier. */
typedef void (*kvt_log_fn)(void *ctx, enum kvt_log_level level, const char *line);

/* Send log lines of max_level and below to fn, for the whole process.  fn NULL: standard error.
 * Without a call, lines of KVT_LOG_DEFAULT go to standard error.  Waits until a call of the former
 * fn has returned; afterwards the former ctx is unused. */
KVT_API void kvt_set_log(kvt_log_fn fn, void *ctx, enum kvt_log_level max_level);

/* ------------------------------------------------------------ configuration */

struct kvt_config;

/* The sources of settings.  If several sources set a key, the last source in this order counts:
 * defaults, file, LMCACHE_* environment, KVTIER_* environment, connector_json, settings. */
struct kvt_config_sources {
    size_t struct_size;
    const char *file;               /* YAML; NULL: $KVTIER_CONFIG_FILE, then
                                     * $LMCACHE_CONFIG_FILE, else none */
    const char *const *environment; /* "NAME=value", NULL-terminated; also holds the
                                     * variables of AWS and of proxies;
                                     * NULL: the process's environment */
    const char *connector_json;     /* a JSON object, keys with or without
                                     * the prefix "lmcache."; NULL: none */
    const char *const *settings;    /* "key=value", NULL-terminated; NULL: none */
    int strict;                     /* 1: unknown keys are errors */
};

/* Read all sources.  Log a warning for each unknown key; with strict, or strict_config in the
 * configuration, an unknown key is an error.  Blocks (reads the file).  kvt_config_free() ends
 * *out.
 *   -EINVAL  a value has the wrong type or is out of range; the sentence names the key, the
 *            file and line or the variable, and the allowed values
 *   -ENOENT, -EACCES, ...  the file cannot be read */
KVT_API KVT_MUST_CHECK int
kvt_config_open(const struct kvt_config_sources *sources, struct kvt_config **out);

/* Free the configuration.  NULL is allowed. */
KVT_API void kvt_config_free(struct kvt_config *config);

/* Return the effective settings as a JSON object: {"key": {"value": ..., "origin": "..."}}.
 * Secrets appear as "***".  The caller frees the text with kvt_free().  NULL: the allocation
 * failed. */
KVT_API char *kvt_config_json(const struct kvt_config *config);

/* Return the bytes of /dev/shm that each worker allocates for the configured storage, for example
 * the memory that the worker shares with the daemon of 3FS.  0: none. */
KVT_API uint64_t kvt_config_shm_bytes(const struct kvt_config *config);

/* Free memory that kvtier allocated for the caller.  NULL is allowed. */
KVT_API void kvt_free(void *p);

/* An error or a warning about the sources. */
struct kvt_config_problem {
    const char *key;    /* NULL: the problem belongs to no key */
    const char *origin; /* "file lmcache.yaml:3", "LMCACHE_CHUNK_SIZE"; or NULL */
    const char *text;   /* a sentence with the key and the origin */
    int is_error;       /* 0: a warning */
};

/* Receive a problem from kvt_config_check().  The problem is valid during the call. */
typedef void (*kvt_config_problem_fn)(void *ctx,
                                      const struct kvt_config_problem *problem);

/* Read all sources as kvt_config_open() does with strict, and call fn for each problem, also
 * after the first error.  Logs nothing.  Blocks (reads the file).
 *   -EINVAL  at least one problem is an error
 *   -ENOENT, -EACCES, ...  the file cannot be read; fn was not called */
KVT_API KVT_MUST_CHECK int
kvt_config_check(const struct kvt_config_sources *sources,
                 kvt_config_problem_fn fn, void *ctx);

/* Check the address of each configured storage as an open of the storage does, and call fn for
 * each invalid address.  Does not access the storage.  Blocks (reads AWS's profile).
 *   -EINVAL, ...  at least one address is invalid */
KVT_API KVT_MUST_CHECK int
kvt_config_check_storage(const struct kvt_config *config, kvt_config_problem_fn fn, void *ctx);

/* The description of a setting.  All strings are static. */
struct kvt_param_info {
    const char *section;
    const char *name;
    const char *type;     /* "bool", "int", "float", "text", "ints", ... */
    const char *fallback; /* default in the syntax of the YAML file; NULL: unset */
    const char *text;     /* effect of the setting */
    const char *not_done; /* completes "kvtier does not ..."; "": the setting works */
    char allowed[160];    /* "a whole number from 1 to 1048576 tokens" */
    char old_names[96];   /* earlier names, comma-separated; "": none */
    int has_effect;       /* 0: accepted for LMCache's files, without effect */
    int in_extra_config;  /* 1: belongs inside extra_config */
};

/* Describe setting i.  -ENOENT: fewer settings exist. */
KVT_API KVT_MUST_CHECK int kvt_param(size_t i, struct kvt_param_info *out);

/* -------------------------------------------------------------------- store */

struct kvt_store; /* the configured tiers, addressed by key */

/* Open the tiers of the configuration without an engine.  Never creates shared host memory
 * (shared_cpu): if no engine has created the memory, the store has the other tiers only.
 * Blocks.  kvt_store_close() ends *out.
 *   -ENOENT  only shared_cpu is configured, and the memory does not exist
 *   ...      as kvt_engine_open() */
KVT_API KVT_MUST_CHECK int
kvt_store_open(const struct kvt_config *config, struct kvt_store **out);

/* Close the store.  No other call on the store may be in progress.  Blocks: waits for the submitted
 * requests, at most blocking_timeout_secs.  Requests that have not started by then, and requests to
 * S3 without a response, end with -ECANCELED; the call waits for started reads and writes of files
 * without a limit.  Afterwards each request has a status and belongs to the caller, also a request
 * that kvt_store_poll() has not returned.  NULL is allowed. */
KVT_API void kvt_store_close(struct kvt_store *store);

enum kvt_op_kind {
    KVT_OP_PUT = 1,    /* store buf under key in every tier that store_location selects */
    KVT_OP_GET = 2,    /* read into buf from the first tier that has the key */
    KVT_OP_STAT = 3,   /* report presence and size in the first tier that has the key */
    KVT_OP_DELETE = 4, /* delete from every tier */
    KVT_OP_VERIFY = 5, /* as GET, but discard the bytes after the check of the checksum */
};

/* kvt_op.found */
#define KVT_FOUND_CHECKED 1u /* the object has a checksum, and the checksum matches (GET, VERIFY) */
#define KVT_FOUND_ID 2u      /* the object has an identity and a checksum */
#define KVT_FOUND_KEY_ID 4u  /* the identity is of the key: a PUT by key stored the object */
#define KVT_FOUND_SHAPE 8u   /* GET: the object has a header; format, dtype and dims are from the
                              * header */

/* kvt_op.flags: key is the name of an S3 object with any bytes, not a key text.  -EINVAL unless
 * all tiers are s3. */
#define KVT_OP_NAME 1u

/* kvt_op.flags: key comes from kvt_store_list(), which may write '_' in place of '/'.  GET then
 * accepts a chunk that was stored under another key with the same object name, as VERIFY always
 * does.  Without the flag, GET refuses the chunk. */
#define KVT_OP_LISTED 2u

/* kvt_op.flags: a PUT copies a chunk of another store.  id, tokens and found are results of a GET
 * in the other store, so that engines hit the copy; key is the chunk's whole key text.  Without
 * the flag, a PUT stores an identity of the key, which no engine hits.  If found has
 * KVT_FOUND_SHAPE, the header of the copy is the header of the source (format, dtype, dims); else
 * the header has no shape of the KV, and LMCache cannot read the copy.  -EINVAL unless found has
 * KVT_FOUND_ID. */
#define KVT_OP_WITH_ID 4u

/* A request.  The struct, key and buf belong to the store from kvt_store_submit() until
 * kvt_store_poll() returns the request or kvt_store_close() returns. */
struct kvt_op {
    size_t struct_size;
    uint32_t kind;     /* enum kvt_op_kind */
    uint32_t flags;    /* KVT_OP_* */
    const char *key;   /* key text as LMCache writes the key */
    void *buf;         /* PUT: read; GET: written */
    uint64_t bytes;    /* PUT: bytes to store; GET: size of buf */
    void *user;        /* for the caller; kvtier does not use the field */

    int status;        /* out: 0, -ENOENT, -EBADMSG, -ENOSPC, -EMSGSIZE (GET: buf is
                        * smaller than found_bytes), -ECANCELED (the store was
                        * closed), ... */
    uint32_t found;    /* out: KVT_FOUND_*; with KVT_OP_WITH_ID also in */
    uint64_t found_bytes; /* out: payload bytes */
    uint32_t tokens;   /* out: tokens in the chunk; 0: unknown; with KVT_OP_WITH_ID: in */
    uint8_t id[16];    /* out, with KVT_FOUND_ID: identity of the chunk; with KVT_OP_WITH_ID:
                        * in */
    char why[320];     /* out: a sentence if status is not 0 */
    uint32_t tier;     /* 0: all tiers; i + 1: only tier i of kvt_store_tier() */
    /* out, with KVT_FOUND_SHAPE: the shape in the object's header; with KVT_OP_WITH_ID: in */
    uint32_t format;   /* LMCache's code of the memory format */
    uint32_t dtype;    /* LMCache's code of the dtype */
    uint32_t dims[4];  /* dimensions; unused: 0 */
    int64_t expires_ns; /* out: end of the chunk's time to live, wall clock; 0: none */
};

/* Start n requests, all or none.  Requests run at the same time and in any order, also requests for
 * one key.
 *   -EINVAL  a request lacks key, buf or struct_size; no request was started
 *   -ENOMEM  no request was started */
KVT_API KVT_MUST_CHECK int
kvt_store_submit(struct kvt_store *store, struct kvt_op *const *ops, size_t n);

/* Write at most max completed requests to done and return their number; 0: no request has
 * completed.  Each request is returned once and then belongs to the caller. */
KVT_API size_t
kvt_store_poll(struct kvt_store *store, struct kvt_op **done, size_t max);

/* Return an eventfd that is readable while kvt_store_poll() can return a request.  The store
 * owns the descriptor, and kvt_store_poll() resets the eventfd: the caller only waits with poll()
 * or epoll, and neither reads nor closes the descriptor. */
KVT_API int kvt_store_eventfd(const struct kvt_store *store);

/* Run a request on the calling thread and return op->status.  kvt_store_poll() does not return the
 * request.  Blocks.  -EINVAL for an invalid request, and -ESTALE in a forked child, leave *op as it
 * was. */
KVT_API int kvt_store_run(struct kvt_store *store, struct kvt_op *op);

/* A chunk that kvt_store_list() found. */
struct kvt_listed {
    size_t struct_size;
    const char *key;       /* valid during the call.  local_disk and s3 replace '/' in
                            * object names ('-', '_'); key then is a key with the same
                            * object name */
    const char *tier;      /* name of the tier, valid during the call */
    uint64_t stored_bytes; /* bytes of the object, header and trailer included */
    int64_t mtime_ns;      /* wall clock: time of writing; in shared host memory time of the last
                            * use */
    uint32_t tier_index;   /* i of kvt_store_tier() */
};

/* Call fn on the calling thread for each chunk whose key begins with prefix ("": every chunk), once
 * for each tier, in any order.  In a tier that replaces '/' in keys, '/' in prefix also stands for
 * the replacement.  A value of fn other than 0 ends the listing without error; the first error of a
 * tier also ends the listing.  Blocks. */
KVT_API KVT_MUST_CHECK int
kvt_store_list(struct kvt_store *store, const char *prefix,
               int (*fn)(void *ctx, const struct kvt_listed *listed), void *ctx);

/* The contents and the limits of a tier. */
struct kvt_tier_info {
    size_t struct_size;
    char tier[16];
    char url[512];
    uint64_t n_chunks;
    uint64_t used_bytes;
    uint64_t limit_bytes; /* 0: no limit */
    uint64_t n_entries;   /* capacity of the index in chunks */
    int index_shared;     /* 0: the index is private to the process */
    uint64_t allocated_bytes; /* shared host memory: allocated bytes; other tiers: 0 */
    int64_t last_use_ns;  /* shared host memory: time of the last use, wall clock, 0: never;
                           * other tiers: 0 */
    int takes_puts;       /* 1: storage in which PUTs without a tier store chunks; 0: shared host
                           * memory, or store_location names other storage */
    char serde[16];       /* encoding of new chunks of engines, as in remote_serde */
    char serde_reason[192]; /* remote_serde: auto: the present choice and its reason; else "" */
    uint64_t load_latency_ns; /* measured: the load of n bytes of KV takes load_latency_ns + n /
                               * load_bytes_per_s */
    uint64_t load_bytes_per_s; /* 0: not measured, or shared host memory */
};

/* Describe tier i.  Lookups read the tiers in this order.  -ENOENT: fewer tiers exist. */
KVT_API KVT_MUST_CHECK int
kvt_store_tier(const struct kvt_store *store, size_t i, struct kvt_tier_info *out);

/* The times in which an engine's model computes prompts: the token at position p takes
 * ns_per_token + p * ns_per_position. */
struct kvt_prefill_info {
    size_t struct_size;
    char model[40]; /* the end of the model's name */
    double ns_per_token, ns_per_position;
    uint64_t bytes_per_token; /* KV of a token that a worker loads */
    uint64_t break_even_tokens; /* shortest prompt that loads faster from this tier than the model
                                 * computes the prompt; 0: none, or the tier is not measured */
};

/* Describe prefill times number j in the index of tier i.  -ENOENT: fewer times or tiers exist. */
KVT_API KVT_MUST_CHECK int
kvt_store_prefill(const struct kvt_store *store, size_t i, size_t j, struct kvt_prefill_info *out);

/* Delete all chunks in shared host memory (shared_cpu), leased chunks too, and free the memory.
 * Chunks in storage and in the private memory of engines stay.  Afterwards the caller may only
 * close the store.  Blocks.
 *   -ENOENT  the host has no shared host memory
 *   -EBUSY   the chunks are deleted, but other processes map the memory, so the memory stays
 *   -ESTALE  another process has replaced the memory: open the store again and repeat the call */
KVT_API KVT_MUST_CHECK int kvt_store_clear(struct kvt_store *store);

/* Receive the result of a check from kvt_store_look().  about: the checked object in two words,
 * such as "3fs mount" or "GPU 3".  status 0: the requirement is met; a negative errno: the
 * requirement is not met; 1: the next check may block or end the process, and text is the remedy
 * if no further call of fn follows.  text: a sentence.  Strings are valid during the call.
 * Instances of storage with equal requirements may report a requirement twice. */
typedef void (*kvt_look_fn)(void *ctx, const char *about, int status, const char *text);

/* Check the requirements of the configured storage without opening the storage, and call fn for
 * each requirement.  (Opening the storage reports only the first failure.)  Checks 3FS mounts, the
 * access of GPUs to the directories of gds_path, and the room for shared host memory.  Blocks:
 * until a 3FS daemon responds, and at most 20 s for each directory.
 *   -ENOENT  the configuration has no storage */
KVT_API KVT_MUST_CHECK int
kvt_store_look(const struct kvt_config *config, kvt_look_fn fn, void *ctx);

/* ------------------------------------------------------------------- codecs */

/* Return the encoding in a key text: "naive" for a chunk that is stored as the chunk is, or the
 * name of a codec, such as "lossless".  Static storage. */
KVT_API const char *kvt_key_encoding(const char *key);

/* Parse the contents of a chunk's file, which was copied out of a store of files, and fill in the
 * results of op as a GET of the chunk does.  op: key is the name of the file, buf has the contents
 * and bytes the size.  The payload is moved to the start of buf.  The function verifies the
 * checksum if the file has a checksum.
 *   -EINVAL   op lacks key, buf or struct_size
 *   -EBADMSG  the file is truncated, corrupt or no chunk */
KVT_API KVT_MUST_CHECK int kvt_file_parse(struct kvt_op *op);

/* An encoded chunk: the payload of an object whose key has an encoding. */
struct kvt_frame {
    size_t struct_size;
    const char *codec; /* static storage */
    uint64_t bytes;    /* of the decoded chunk */
    int is_lossy;      /* 1: the decoded chunk differs from the chunk that the engine stored */
};

/* Verify and describe an encoded chunk of n bytes.  Unless chunk is NULL, also decode into chunk, a
 * buffer of out->bytes bytes, and verify the decoded chunk.  The caller sets out->struct_size.
 *   -EBADMSG  the bytes are no encoded chunk, or corrupt */
KVT_API KVT_MUST_CHECK int
kvt_frame_decode(const void *frame, size_t n, struct kvt_frame *out, void *chunk);

/* A chunk that kvt_codec_measure() measures. */
struct kvt_codec_chunk {
    size_t struct_size;
    const char *encoding; /* encoding of the stored chunk: "naive", ...; static storage */
    const char *dtype;    /* LMCache's name of the type of the elements, such as "bfloat16";
                           * static storage */
    uint64_t bytes;       /* of the decoded chunk */
    int is_lossy;         /* 1: the stored encoding is lossy, so errors are relative to the
                           * decoded chunk and not to the chunk that the engine stored */
    int has_layout;       /* 0: the numbers of layers and of channels are unknown.  If the chunk is
                           * not encoded, encoded_bytes is then the smallest size for several
                           * assumed numbers */
};

/* The result of a codec for a chunk. */
struct kvt_codec_result {
    size_t struct_size;
    const char *codec; /* name of the codec, as in the setting remote_serde; static storage */
    int status;        /* 0; -ENOTSUP: the codec cannot be measured; -ENOMEM */
    const char *why;   /* a sentence if status is not 0; valid during the call */
    /* Bytes that a store writes, without header and trailer of the object.  kvt_codec_chunk.bytes:
     * the codec cannot make the chunk smaller, and a store stores the chunk without encoding. */
    uint64_t encoded_bytes;
    int64_t encode_ns; /* time of the encoder on one thread; a lossy encoder also decodes */
    int64_t decode_ns; /* time of the decoder on one thread; 0: the chunk is not encoded */
    double rms_error;  /* root mean square of the errors of the elements, divided by the root mean
                        * square of the elements */
    double max_error;  /* largest error of an element, divided by the root mean square of the
                        * elements */
};

/* Receive the result of a codec.  chunk and result are valid during the call. */
typedef void (*kvt_codec_fn)(void *ctx, const struct kvt_codec_chunk *chunk,
                             const struct kvt_codec_result *result);

/* Encode and decode a chunk with each codec of the build on the calling thread, and call fn for
 * each codec.  op: a completed GET, or the result of kvt_file_parse().  An encoded chunk is decoded
 * first.  The type of the elements comes from the encoded chunk, from the object's header, or from
 * the key; the layout comes from the encoded chunk or from the header.  Allocates about three times
 * the bytes of the chunk.  Blocks for the time of the measurement.
 *   -EBADMSG  the encoded chunk is corrupt, or the size is no multiple of the size of an element
 *   -ENOTSUP  the type of the elements is unknown
 *   -ENOMEM   the chunk does not fit in memory */
KVT_API KVT_MUST_CHECK int
kvt_codec_measure(const struct kvt_op *op, kvt_codec_fn fn, void *ctx);

/* ------------------------------------------------------------------- engine */

struct kvt_engine; /* the cache as a process of an inference engine uses the cache */
struct kvt_seq;    /* the hashed tokens of a request of the inference engine */
struct kvt_load;   /* a load that kvt_engine_load() started */

/* An inference engine looks up hits in its scheduler process and transfers bytes in its worker
 * processes.  A handle without WORKER never allocates a pool. */
enum kvt_role {
    KVT_ROLE_SCHEDULER = 1, /* calls kvt_engine_lookup() */
    KVT_ROLE_WORKER = 2,    /* calls kvt_engine_store() and kvt_engine_load(); on another host than
                             * the scheduler also kvt_engine_lookup() */
    KVT_ROLE_BOTH = 3,
};

/* The model.  Each field is a part of the identity of a chunk: kvtier never returns a chunk that
 * was stored with another description. */
struct kvt_model {
    size_t struct_size;
    const char *name;        /* the inference engine's name; no '@', at most 255 bytes */
    const char *fingerprint; /* revision or digest of the weights; NULL: only the name
                              * identifies the weights.  If models of equal name may
                              * differ, call kvt_engine_reset() after the open */
    const char *kv_dtype;    /* LMCache's name: "bfloat16", "half", "uint8", ... */
    uint32_t world_size;     /* ranks, each with a part of every chunk; >= 1 */
    uint32_t rank;           /* the worker's rank, below world_size; scheduler: 0 */
};

/* The chunks of a group of layers that a hit of n tokens requires. */
enum kvt_group_kind {
    KVT_GROUP_FULL = 1,    /* all chunks of tokens below n */
    KVT_GROUP_SLIDING = 2, /* the chunks of the last window_tokens - 1 tokens below n */
};

/* The layout of a chunk's bytes. */
enum kvt_chunk_format {
    /* Copies of the inference engine's blocks, block by block, each block layer by layer.  For
     * memory layouts that cannot be split by token (vLLM on CPU). */
    KVT_FORMAT_OPAQUE = 1,
    /* LMCache's KV_2LTD: [2, layers, tokens, heads * head_size]. */
    KVT_FORMAT_2LTD = 2,
    /* LMCache's KV_MLA_FMT: [1, layers, tokens, head_size]. */
    KVT_FORMAT_MLA = 3,
};

/* The order of the elements in a layer of a block with KVT_FORMAT_OPAQUE. */
enum kvt_packing {
    KVT_PACKING_UNKNOWN,
    /* For each head: K as [head_size][block_tokens], then V as [block_tokens][head_size] (vLLM on
     * CPUs without AMX). */
    KVT_PACKING_HEADS,
};

/* Layers that share a block table. */
struct kvt_group {
    size_t struct_size;
    uint32_t kind;          /* enum kvt_group_kind */
    uint32_t window_tokens; /* KVT_GROUP_SLIDING: window size; else 0 */
    uint32_t block_tokens;  /* tokens of a block; divides chunk_size */
    uint32_t format;        /* enum kvt_chunk_format; several groups must have OPAQUE */
    uint32_t n_layers;
    uint32_t n_heads;       /* KV heads on this rank; OPAQUE: informative */
    uint32_t head_bytes;    /* head_size * item size; OPAQUE: informative */
    uint64_t block_bytes;   /* OPAQUE: bytes of a layer of a block */
    const char *layout;     /* OPAQUE: a text that differs for each packing, such as a
                             * digest of a packed test pattern; other formats: facts about
                             * the elements that kv_dtype does not contain */
    const char *layers;     /* names of the layers, in order */
    uint32_t replicated;    /* 1: the ranks of a stage have equal KV (MLA): the first rank of
                             * the stage stores the chunks, and all its ranks load them */
    uint32_t packing;       /* OPAQUE: enum kvt_packing; lossy codecs need a known packing */
};

struct kvt_engine_params {
    size_t struct_size;
    const struct kvt_config *config;
    uint32_t role;                   /* enum kvt_role */
    uint32_t n_groups;
    const struct kvt_group *groups;
    const struct kvt_model *model;
    /* A name of the inference engine, unique on the host.  The scheduler finds the workers'
     * chunks in host memory by the name.  NULL: the process has both roles. */
    const char *instance;
    uint32_t local_ranks;            /* workers on the host; 0: world_size */
    /* Bytes of host memory that each worker's caller allocates, for example to stage KV of a device
     * that kvtier does not reach: the pool is smaller than max_local_cpu_size by these bytes.
     * A scheduler passes the largest value of its workers. */
    uint64_t staging_bytes;
    /* Stages of pipeline parallelism: stage s has the ranks s * world_size / n_stages and the
     * following ranks.  0: 1 stage.  A WORKER passes the groups of its own stage; with SCHEDULER,
     * groups has n_stages * n_groups elements, stage by stage.  Stages differ only in n_layers
     * and layers of their groups. */
    uint32_t n_stages;
};

/* Open the tiers of the configuration.  Blocks: creates directories and maps indexes, but does
 * not wait for listings of directories.  With WORKER, starts threads and begins to pre-fault the
 * pool.  kvt_engine_close() ends *out.
 *   -EINVAL  chunk_size is not a multiple of each block size, or another setting or
 *            description is out of range
 *   -ENOMEM  the pool does not fit in memory: the sentence contains max_local_cpu_size, the
 *            pool's size and the available memory
 *   -ENODEV, -EACCES, -ENOTSUP, ...  a tier cannot be opened */
KVT_API KVT_MUST_CHECK int
kvt_engine_open(const struct kvt_engine_params *params, struct kvt_engine **out);

/* Finish the queued stores, cancel all loads, and join all threads.  Requests to S3 without a
 * response after blocking_timeout_secs are cancelled.  No other call on the engine may be in
 * progress.  Blocks until the started I/O has ended.  Before, the caller frees the loads that
 * kvt_engine_poll() returned; the call frees all other loads.  A process that ends without the call
 * loses no stored chunk.  NULL is allowed. */
KVT_API void kvt_engine_close(struct kvt_engine *engine);

/* Return the number of tokens in a full chunk (setting chunk_size). */
KVT_API uint32_t kvt_engine_chunk_tokens(const struct kvt_engine *engine);

/* Addresses of a group's paged KV.  Strides are in bytes and may have any value; the memory need
 * not be contiguous:
 *
 *   address(kv, layer, block, head, token) = base[kv * n_layers + layer]
 *       + block * block_stride + head * head_stride + token * token_stride
 *
 * Each address has head_bytes contiguous bytes.  OPAQUE uses only base[layer], n_blocks and
 * block_stride. */
struct kvt_kv_view {
    size_t struct_size;
    void *const *base;     /* n_kv * n_layers addresses; the array is in host memory */
    uint32_t n_kv;         /* 2: separate K and V; 1: MLA, or OPAQUE */
    uint32_t n_blocks;     /* block ids are 0 .. n_blocks - 1 */
    int64_t block_stride;
    int64_t head_stride;
    int64_t token_stride;
    int32_t null_block;    /* id of a block that is never read or written; -1: none */
    uint32_t memory;       /* enum kvt_memory: kind of the memory at the addresses */
    int32_t device;        /* CUDA's or HIP's number of the device in this process */
};

enum kvt_memory {
    KVT_MEMORY_HOST = 0,
    KVT_MEMORY_CUDA = 1,
    KVT_MEMORY_HIP = 2,
};

/* Set the addresses of a group's KV, also after a reallocation.  No load or store of the group and
 * no other kvt_engine_set_view() of the engine is in progress during the call.  The memory must
 * stay mapped until kvt_engine_close().  All groups are in memory of the same kind and device.
 * The first call for a device must come from a thread that has used the device, and blocks until
 * the copy kernels are loaded and the pool is pinned.
 *   -EINVAL  the view is out of range
 *   -ENODEV  the device or its driver is unavailable */
KVT_API KVT_MUST_CHECK int
kvt_engine_set_view(struct kvt_engine *engine, uint32_t group,
                    const struct kvt_kv_view *view);

/* Set the stream (a CUstream or hipStream_t) on which the caller reads and writes KV on a
 * device.  The stream must exist until the next call of this function or kvt_engine_close().
 * NULL, also without a call: the default stream.  Later stores read blocks after all work that
 * the stream has at the call of kvt_engine_store() and before all work that the caller adds
 * after the call; later loads write blocks after all work that the stream has at the call of
 * kvt_engine_load(). */
KVT_API KVT_MUST_CHECK int
kvt_engine_set_stream(struct kvt_engine *engine, void *stream);

/* ------------------------------------------------ engine: tokens of a request */

/* A multimodal item with placeholder tokens first_token .. first_token + n_tokens - 1. */
struct kvt_mm_item {
    const char *id;
    uint64_t first_token;
    uint64_t n_tokens;
};

/* Inputs of a request, besides the token ids, that the KV depends on. */
struct kvt_seq_extra {
    size_t struct_size;
    const char *lora;               /* adapter name; NULL: none */
    const char *cache_salt;         /* NULL: none */
    const struct kvt_mm_item *mm;   /* items in order of first_token */
    size_t n_mm;
    const char *tags;               /* "name%value@name%value"; NULL: none.  At most 255
                                     * bytes, fewer for KVT_FORMAT_OPAQUE and long model
                                     * names; no control characters; the tag name kvt is
                                     * reserved */
};

/* kvt_chunk.flags: the chunk depends on an adapter, a salt or weights that LMCache's name of the
 * chunk does not contain.  A file of LMCache with the name may hold another chunk, and counts as
 * a miss. */
#define KVT_CHUNK_OWN 1u

/* A chunk of a sequence.  The scheduler sends the struct to the workers as plain bytes, which are
 * valid in every process with the same version of libkvtier. */
struct kvt_chunk {
    uint8_t prefix[16];    /* digest of the weights, the tags and all tokens up to the
                            * end of the chunk */
    uint64_t name_hash[4]; /* LMCache's chunk hash, a part of file and object names: 256
                            * bits, or 64 bits and three words of 0 */
    uint32_t n_tokens;     /* chunk size; less for a partial chunk at the end */
    uint32_t flags;        /* KVT_CHUNK_* */
};

/* Hash n_tokens tokens in host memory.  extra may be NULL.  At most one thread at a time uses a
 * sequence.  The chunks belong to the engine's current weights, also after a later
 * kvt_engine_reset().  Opens and locks no file.  kvt_seq_free() ends *out.
 *   -EINVAL  the tags do not fit in a key text */
KVT_API KVT_MUST_CHECK int
kvt_seq_new(struct kvt_engine *engine, const int32_t *tokens, size_t n_tokens,
            const struct kvt_seq_extra *extra, struct kvt_seq **out);

/* Make a sequence from chunks 0 .. n - 1 of a sequence of the scheduler, for lookups by a WORKER.
 * The last chunk may be partial.  tags: the tags of the scheduler's sequence; NULL: none.
 * kvt_seq_free() ends *out.
 *   -EINVAL  a chunk before the last is partial, or the chunk size is another; the tags do not fit
 *            in a key text */
KVT_API KVT_MUST_CHECK int
kvt_seq_from_chunks(struct kvt_engine *engine, const struct kvt_chunk *chunks, size_t n,
                    const char *tags, struct kvt_seq **out);

/* Append tokens, such as generated tokens, to a sequence.  The tokens extend the sequence's
 * partial chunk to a new chunk: a lease of the old chunk ends.
 *   -ENOMEM  some tokens are lost: the sequence keeps the existing chunks, and
 *            accepts no more tokens
 *   -EINVAL  the sequence was made from chunks */
KVT_API KVT_MUST_CHECK int
kvt_seq_append(struct kvt_seq *seq, const int32_t *tokens, size_t n_tokens);

/* Return the number of tokens in the sequence. */
KVT_API uint64_t kvt_seq_tokens(const struct kvt_seq *seq);

/* Copy chunks first .. first + n - 1 to out.  If the tokens do not fill the last chunk, the last
 * chunk is partial: n_tokens says how many tokens the chunk has.
 *   -EINVAL  the sequence has fewer chunks */
KVT_API KVT_MUST_CHECK int
kvt_seq_chunks(const struct kvt_seq *seq, size_t first, size_t n,
               struct kvt_chunk *out);

/* Free a sequence.  The caller has called kvt_engine_release() if a lookup was made.  Also allowed
 * after kvt_engine_close().  NULL is allowed. */
KVT_API void kvt_seq_free(struct kvt_seq *seq);

/* ------------------------------------------------- engine: lookup, scheduler */

/* Find the longest hit: the leading tokens that all ranks can load.  The hit may end with the
 * sequence's partial chunk if save_unfull_chunk is set.
 *
 * A WORKER finds the longest hit that its own rank can load, by a sequence of
 * kvt_seq_from_chunks(): so a scheduler asks workers on other hosts.  A worker's lookups are not
 * counted.
 *
 * Chunks in storage that other hosts delete from become part of a hit after kvtier has read the
 * chunks into host memory and verified the checksums.  With enable_async_loading, kvtier reads
 * all chunks of a hit into host memory, as far as lookup_timeout_ms suffices.  The caller in a
 * scheduler makes the workers prefetch the chunks that kvt_engine_wanted() returns; a worker or
 * an engine with both roles prefetches by itself.
 *
 * have_tokens  Leading tokens that the inference engine has computed.  The lookup skips chunks
 *              that end at or before have_tokens.
 * max_tokens   Longest allowed hit.  An inference engine must compute at least the last token of
 *              a prompt: pass the prompt's length - 1.
 * hit_tokens   Out: tokens of the hit; 0, or more than have_tokens; 0 after an error and after
 *              -EAGAIN.  Without save_unfull_chunk, a multiple of the chunk size, and so of every
 *              group's block size.  With save_unfull_chunk, the last chunk may be partial, or may
 *              extend beyond max_tokens and then counts up to max_tokens.
 *
 * The chunks of a hit are leased: this host does not evict the chunks for pin_timeout_sec, or
 * until kvt_engine_release().  The caller must release each lookup, also a lookup that returned
 * -EAGAIN, after the request has loaded the chunks or has been dropped.  Until the release, and
 * for at most half of pin_timeout_sec, a lookup with equal max_tokens and with have_tokens at
 * least as high returns the same hit.  A lookup leaves the load 16 s: a hit has no chunk in the
 * last 16 s of the chunk's time to live, and is returned no longer than until then.
 *
 * Takes no lock and does no I/O: executor threads ask the tiers for chunks that the index lacks.
 *   -EAGAIN  the hit is not known yet; call again.  Whether the tiers have the chunks is known
 *            at most lookup_timeout_ms after the first call.  For reads into host memory the
 *            lookup waits until no chunk has arrived for lookup_timeout_ms, or until
 *            blocking_timeout_secs after the first call; the hit then consists of the chunks
 *            that have arrived */
KVT_API KVT_MUST_CHECK int
kvt_engine_lookup(struct kvt_engine *engine, struct kvt_seq *seq,
                  uint64_t have_tokens, uint64_t max_tokens,
                  uint64_t *hit_tokens);

/* Chunks of a group, numbered by their positions in a sequence. */
struct kvt_chunk_range {
    uint32_t group;
    uint32_t n_chunks;
    uint64_t first_chunk;
};

/* After a lookup that returned -EAGAIN: write the chunks that all workers must prefetch to out,
 * at most one range for each group, and return the number of ranges.  out has room for n_groups
 * ranges.  Each chunk is returned once, and again if no chunk has arrived for at least a
 * quarter of lookup_timeout_ms.  After a lookup with kvt_seq_skipped_tokens(), sometimes return
 * chunks whose prefetch measures the storage again.  After any other result of the lookup, return
 * 0. */
KVT_API size_t
kvt_engine_wanted(struct kvt_engine *engine, struct kvt_seq *seq,
                  struct kvt_chunk_range *out);

/* For each of chunks first .. first + n - 1 of the last lookup's hit, write 1 to out if every
 * rank holds the chunk in host memory, else 0.  After kvt_engine_release() all values are 0. */
KVT_API void
kvt_seq_in_memory(const struct kvt_seq *seq, size_t first, size_t n, uint8_t *out);

/* Return the stored tokens that the hit of the last lookup leaves out because of the setting
 * load_policy: the computation is faster than the load. */
KVT_API uint64_t kvt_seq_skipped_tokens(const struct kvt_seq *seq);

/* Note that the workers begin to load the hit of the last lookup.  With load_policy: faster, later
 * lookups count the time of the load until kvt_engine_release(). */
KVT_API void kvt_engine_begin_load(struct kvt_engine *engine, struct kvt_seq *seq);

/* With load_policy: faster, note that the model has computed n_tokens tokens of prompts in ns
 * nanoseconds.  sum_positions: sum of the tokens' positions in their sequences.  Storage keeps the
 * times of the model for the next process. */
KVT_API void kvt_engine_note_prefill(struct kvt_engine *engine, uint64_t n_tokens,
                                     uint64_t sum_positions, int64_t ns);

/* End the leases of a lookup.  Does nothing without a lookup.  A later lookup asks the tiers again,
 * and so finds what another host has stored meanwhile. */
KVT_API void kvt_engine_release(struct kvt_engine *engine, struct kvt_seq *seq);

/* -------------------------------------------- engine: store and load, worker */

/* Chunks of a group, and the blocks that hold the chunks in the inference engine. */
struct kvt_group_io {
    uint32_t group;
    uint32_t n_chunks;
    const struct kvt_chunk *chunks;
    /* Block ids in token order, chunk after chunk: ceil(n_tokens / block_tokens) ids for each
     * chunk.  A load skips a block of which the id is negative or the view's null block; a
     * store skips the whole chunk. */
    const int32_t *blocks;
    size_t n_blocks;
    const char *tags; /* the sequence's tags; see struct kvt_seq_extra */
    /* A store: seconds from the store until the end of the chunks' time to live, at most
     * KVT_TTL_MAX_S; 0: no end, or as max_ttl_seconds of the configuration says.  The end is
     * rounded down to 16 s.  kvtier then serves the chunks no more, whatever leases or pins them,
     * and deletes them within a minute.  If another store of a chunk wants a longer time, the
     * longer time counts.  Chunks with a time to live are stored only in host memory and in
     * storage from which only this host deletes. */
    uint32_t ttl_seconds;
};

#define KVT_TTL_MAX_S 15552000u

/* Media of kvt_engine_media(). */
#define KVT_MEDIUM_MEMORY 1u         /* host memory, private or shared */
#define KVT_MEDIUM_STORAGE 2u        /* storage from which only this host deletes */
#define KVT_MEDIUM_SHARED_STORAGE 4u /* storage from which other hosts delete too */

/* For the scheduler: write the media that hold chunk i of io to out[i], a set of KVT_MEDIUM_*.  A
 * medium holds a chunk if all ranks have the chunk there.  io needs no blocks.  The call reads only
 * the indexes: a chunk counts once the chunk is stored or read completely, and as long as this host
 * knows of no deletion.  Host memory that keeps chunks only between a prefetch and a load, storage
 * that retrieve_locations leaves out, and objects whose identity is unknown do not count.
 *   -EINVAL  the group or the tags are out of range; out is unchanged */
KVT_API KVT_MUST_CHECK int
kvt_engine_media(struct kvt_engine *engine, const struct kvt_group_io *io, uint8_t *out);

#define KVT_PIN_MAX_S 82800u

/* For the scheduler: pin the chunks of io for `seconds`, 1 to KVT_PIN_MAX_S: no process of this
 * host evicts a pinned chunk.  A deletion by name and kvt_store_clear() ignore pins.  Chunks are
 * pinned in storage from which only this host deletes, or in host memory if the engine has no such
 * storage.  out[i] is this medium, KVT_MEDIUM_*, if chunk i of io is pinned for all ranks.  Else
 * out[i] is 0, and the call pins no part of the chunk: a rank has not stored its part.  A pin
 * cannot be shortened.  io needs no blocks.  Does not block.
 *
 * kvt_engine_end_pins() ends the pins whose time is over.  Call kvt_engine_end_pins() at least once
 * a minute; without the call, and after the engine's end, a pin ends up to a minute late, and each
 * lookup of the chunk before that end delays the end.
 *   -EINVAL  the group, the tags or seconds are out of range; out is unchanged
 *   -ENOMEM  nothing is pinned; out is unchanged */
KVT_API KVT_MUST_CHECK int
kvt_engine_pin(struct kvt_engine *engine, const struct kvt_group_io *io, uint32_t seconds,
               uint8_t *out);
KVT_API void kvt_engine_end_pins(struct kvt_engine *engine);

/* Store chunks.  The call copies the blocks; the caller may change the blocks after the return,
 * blocks on a device only by work on the stream of kvt_engine_set_stream().  Executor threads write
 * the copies to the tiers.  A chunk is dropped and counted if a tier has the chunk, or if the pool
 * or the tiers have no room: storing never waits for storage.
 *   -EINVAL  a group, a block id or a count is out of range; no chunk was stored
 *   -ENOMEM  no chunk was stored */
KVT_API KVT_MUST_CHECK int
kvt_engine_store(struct kvt_engine *engine, const struct kvt_group_io *ios,
                 size_t n_ios);

/* Wait until each chunk of earlier kvt_engine_store() calls is published or has failed.  Blocks,
 * at most timeout_ms; timeout_ms < 0: without limit.
 *   -ETIMEDOUT  some chunks are still being stored */
KVT_API KVT_MUST_CHECK int
kvt_engine_flush(struct kvt_engine *engine, int64_t timeout_ms);

/* Start to read chunks into host memory, where a later load finds the chunks.  ios need no
 * blocks.  If host memory has no room, a chunk waits for room, at most blocking_timeout_secs.  The
 * caller is not informed of the end: a chunk that cannot be read is a miss of the next lookup.
 *   -EINVAL  a group or a count is out of range; no read was started
 *   -ENOMEM  no read was started */
KVT_API KVT_MUST_CHECK int
kvt_engine_prefetch(struct kvt_engine *engine, const struct kvt_group_io *ios,
                    size_t n_ios);

/* Start to load chunks into blocks.  The load takes at most blocking_timeout_secs.  The copy into
 * blocks verifies the checksum of a chunk.  Until the load completes, a block may hold any bytes,
 * also corrupt bytes; after the load, the blocks of a chunk may still do so if kvt_load_status()
 * of the chunk is not 0.  cookie: any value, which kvt_load_cookie() returns.
 * kvt_engine_poll() returns the completed load, on another thread possibly before this call
 * returns.  Only a load that kvt_engine_poll() has returned can be freed.
 *   -EINVAL  a group, a block id or a count is out of range; no load was started
 *   -ENOMEM  no load was started */
KVT_API KVT_MUST_CHECK int
kvt_engine_load(struct kvt_engine *engine, const struct kvt_group_io *ios,
                size_t n_ios, uint64_t cookie, struct kvt_load **out);

/* Write at most max completed loads to done and return their number.  No thread or device writes
 * to the blocks of a completed load.  Each load is returned once; the caller frees the load with
 * kvt_load_free(). */
KVT_API size_t
kvt_engine_poll(struct kvt_engine *engine, struct kvt_load **done, size_t max);

/* Return an eventfd that is readable while kvt_engine_poll() can return a load.  The engine owns
 * the descriptor, and kvt_engine_poll() resets the eventfd: the caller only waits with poll() or
 * epoll, and neither reads nor closes the descriptor. */
KVT_API int kvt_engine_eventfd(const struct kvt_engine *engine);

/* Cancel a load that is not freed: the load leaves blocks that are not written yet unchanged.
 * kvt_engine_poll() returns the load.  No effect on a completed load. */
KVT_API void kvt_load_cancel(struct kvt_load *load);

/* Return the cookie that the caller passed to kvt_engine_load(). */
KVT_API uint64_t kvt_load_cookie(const struct kvt_load *load);

/* Return the result of chunk number `chunk` of ios[io] of a completed load.  0: the blocks hold
 * the chunk.  -ENOENT, -EBADMSG, -EIO, -ETIMEDOUT, -ECANCELED: the blocks do not hold the chunk.
 * -EINVAL: the load has no such chunk.  Does not set kvt_last_error(). */
KVT_API int
kvt_load_status(const struct kvt_load *load, size_t io, size_t chunk);

/* Return the bytes that a completed load read from storage, also corrupt bytes. */
KVT_API uint64_t kvt_load_bytes(const struct kvt_load *load);

/* Free a load that kvt_engine_poll() returned.  NULL is allowed. */
KVT_API void kvt_load_free(struct kvt_load *load);

/* Change the weights of all sequences that this engine creates after the call.  Call the function
 * after the model's weights were replaced, or to make earlier chunks misses.
 *
 * fingerprint  Identifies the new weights, as in struct kvt_model: engines with equal
 *              description and fingerprint share their chunks.  NULL or "": a random
 *              fingerprint; only this engine finds the chunks that are stored after the call,
 *              until the engine is closed or reset.
 *
 * Earlier sequences keep their weights, also in stores and loads in progress.  Only the engine
 * that creates the sequences (the scheduler's) needs the call; other engines and earlier chunks
 * lose nothing.  After the call, chunks of LMCache are misses, because they do not identify their
 * weights. */
KVT_API KVT_MUST_CHECK int
kvt_engine_reset(struct kvt_engine *engine, const char *fingerprint);

/* ----------------------------------------------------------------- counters */

enum kvt_counter_kind {
    KVT_COUNTER_SUM = 1,   /* never decreases */
    KVT_COUNTER_GAUGE = 2, /* current value */
};

struct kvt_counter_info {
    const char *name; /* "store_bytes" */
    const char *unit; /* "bytes", "chunks", "tokens", "ns", "" */
    const char *text; /* a sentence */
    uint32_t kind;    /* enum kvt_counter_kind */
};

/* Return the number of counters, and describe counter i (NULL: fewer counters exist). */
KVT_API size_t kvt_n_counters(void);
KVT_API const struct kvt_counter_info *kvt_counter(size_t i);

/* Copy the values of counters 0 .. n - 1 of the engine to out; 0 for numbers from kvt_n_counters()
 * on. */
KVT_API void
kvt_engine_counters(const struct kvt_engine *engine, uint64_t *out, size_t n);

#ifdef __cplusplus
}
#endif

#endif
