/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of a kind of storage.  A tier moves whole chunks between slots and storage; key
 * texts name the chunks.  A tier has no knowledge of budgets, eviction or engines, and only a
 * tier with in_memory uses the index.  Each kind of storage has a folder and a const table. */
#ifndef KVT_TIER_TIER_H
#define KVT_TIER_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/counters.h"
#include "base/error.h"
#include "io/exec.h"
#include "key/key.h"
#include "mem/pool.h"

struct kvt_config;
struct kvt__gpu;
struct kvt_tier_info;
struct kvt__table;
struct kvt__table_params;

/* The receiver of the results of checks.  A check tests one requirement of a tier on this
 * machine. */
struct kvt__reporter {
    void (*fn)(void *ctx, const char *about, int status, const char *text); /* a kvt_look_fn */
    void *ctx;
    const char *kind; /* first word of `about`; NULL: the subject alone */
    const char *path; /* each text begins with this path; NULL: no path */
};

/* The description of the payload in a header, for a layout with a header. */
struct kvt__shape {
    uint32_t format; /* LMCache's memory format: 1 KV_2LTD, 4 BINARY, 6 KV_MLA_FMT */
    uint32_t dtype;  /* LMCache's dtype code */
    uint32_t dims[4];
};

/* The description of a chunk for a tier. */
struct kvt__object {
    const char *key;     /* key text */
    struct kvt__hash hash; /* the chunk hash, which chooses one of several directories */
    bool opaque;         /* an opaque chunk: stored under a name that LMCache never reads */
    bool is_name;        /* key is the unchanged name of an object; only for a tier with
                          * any_name */
    bool is_full;        /* the chunk has chunk_tokens tokens */
    uint32_t tokens;
    uint32_t rank;       /* rank of the worker that owns the chunk */
    struct kvt__id id;
    bool id_of_key;      /* id was made from the key text, not from tokens */
    bool expires;        /* PUT: the chunk has a time to live, which only the index knows.  The tier
                          * marks the object; see kvt__found.expires */
    struct kvt__shape shape;
    /* For a tier with in_memory: the index, and the entry of the chunk.  For a PUT the caller
     * has claimed the entry; for a GET word is the entry's word.  index NULL: no entry. */
    const struct kvt__table *index;
    uint32_t entry;
    uint64_t word;
    bool skips_crc;      /* GET: the caller computes the payload's CRC32C, so the tier need not */
};

/* The description of a chunk in storage. */
struct kvt__found {
    uint64_t payload_bytes;
    uint64_t stored_bytes; /* bytes on disk, for budgets */
    bool has_id;           /* id, id_of_key, crc and tokens were stored with the chunk */
    struct kvt__id id;
    bool id_of_key;
    bool expires;          /* the object was stored with a time to live */
    uint32_t crc;          /* stored CRC32C of the payload */
    uint32_t tokens;
    bool has_read_crc;     /* GET: read_crc is valid */
    uint32_t read_crc;     /* CRC32C of the present bytes of the slot */
    bool checked;          /* GET: the bytes equal a checksum stored with the chunk */
    bool has_shape;        /* GET, and PROBE without identity: shape is from the chunk's header;
                            * 0 stands for a format or dtype without a number in LMCache */
    struct kvt__shape shape;
};

enum kvt__tier_op_kind { KVT__TIER_PUT, KVT__TIER_GET, KVT__TIER_PROBE, KVT__TIER_REMOVE };

/* One operation.  Owner: the caller until submit(), then the tier until the call of on_done. */
struct kvt__tier_op {
    enum kvt__tier_op_kind kind;
    enum kvt__prio prio;
    const struct kvt__object *object; /* the object and its key stay unchanged until on_done */
    /* PUT: the payload; the tier may write to the margins around the payload.  GET: a slot for the
     * payload. */
    struct kvt__slot slot;
    bool may_be_shorter;     /* GET: the chunk may be shorter than the slot, and found.payload_bytes
                              * is its length; not with in_memory, and not for a slot
                              * of a device */
    bool overwrite;          /* PUT: replace an existing chunk */
    bool is_sync;            /* the calling thread waits for the end, so a tier with run() runs
                              * the operation inside submit() */
    uint32_t crc;            /* PUT: CRC32C of the payload */
    /* GET, PROBE, out: the stored chunk.  After a GET the caller compares the payload with
     * found.crc.  If a PROBE fails with -ENOENT and found.stored_bytes is not 0, the object
     * exists and is no chunk that kvtier knows. */
    struct kvt__found found;
    /* The result: code 0, or
     *   -ENOENT   the chunk does not exist
     *   -EBUSY    REMOVE: the chunk is in use, retry later
     *   -EBADMSG  the chunk is corrupt, or has another length or form
     *   -EMSGSIZE  may_be_shorter: the chunk is longer than the slot
     *   -ECANCELED  the tier was stopped
     *   -ENOSPC, -EROFS, -EACCES, -EIO ... the error of the storage */
    struct kvt__error error;
    /* The tier calls on_done once, on a thread of the tier, on a thread of the executor, or inside
     * submit().  on_done must not block, and may free the operation. */
    void (*on_done)(struct kvt__tier_op *op);

    /* For the default of submit(). */
    struct kvt__job job;
    struct kvt__tier *tier;
};

/* Parameters of kvt__tier_open().  Strings and config must stay valid during the call; counters
 * and exec as long as the tier. */
struct kvt__tier_params {
    const struct kvt_config *config;
    const char *name;     /* name of the setting with the URL, for messages */
    const char *url;      /* SCHEME://REST */
    const char *rest;     /* kvt__tier_open() sets rest to the REST of url */
    uint32_t local_ranks; /* workers on this host that share the store; 0: not known */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    struct kvt__exec *exec; /* executor of the operations of a tier with run(); NULL: the
                             * calling threads run the operations */
    bool transfers;       /* this process stores and loads chunks: the tier prepares the
                           * first transfer now, in the background */
    bool only_existing;   /* a tier with in_memory opens existing memory and makes no memory */
    bool caller_reports;  /* the caller reports the results of operations, so the tier does not
                           * log them */
};

/* Receive a chunk that list() found.  The key is valid during the call.  expires: as in struct
 * kvt__found. */
typedef void (*kvt__tier_list_fn)(void *ctx, const char *key, bool opaque, uint64_t stored_bytes,
                                  int64_t mtime_ns, bool expires);

/* The operations of a tier, a table of functions.  Any thread may call, several at once, also for
 * equal keys.  Functions may block unless the comment says otherwise.  Functions of type int return
 * 0, or -errno with a sentence.  A tier may leave out a function with a default: kvt__tier_open()
 * fills in the default, so callers call every function without a test. */
struct kvt__tier_ops {
    const char *name; /* name in messages and statistics, and the scheme of URLs */

    /* Open the tier and make missing directories.  NULL: no URL opens the tier. */
    int (*open)(const struct kvt__tier_params *params, struct kvt__tier **out);
    /* Check the URL, and the settings that are a part of the address, as open() does, without
     * access to the storage.  0, or -errno with open()'s sentence.  NULL: open() accepts every
     * URL. */
    int (*check_url)(const struct kvt__tier_params *params);
    /* Check each requirement of open() and of transfers on this machine, and report each result to
     * `to`, on the calling thread.  The check may store a file or object, which the check deletes.
     * NULL: only open() reports a failure, the first one. */
    void (*check)(const struct kvt__tier_params *params, const struct kvt__reporter *to);
    /* Return the bytes of /dev/shm that a worker allocates for all its tiers of this kind.  NULL:
     * none. */
    uint64_t (*shm_bytes)(const struct kvt_config *config);
    /* Make operations in flight end soon and later operations end at once, with
     * -ECANCELED.  Must not block.  Default: do nothing, because operations always end soon. */
    void (*stop)(struct kvt__tier *tier);
    /* Close the tier.  The caller has no operation in flight, and has released all slots of the
     * tier. */
    void (*close)(struct kvt__tier *tier);

    /* Return the descriptor of the directory for the index; the tier owns the descriptor.  The
     * store calls this function before each open of the index.  If a user has deleted the
     * directory, the tier makes the directory again, under the same descriptor.  Default: -1, no
     * directory. */
    int (*private_dir)(const struct kvt__tier *tier);
    /* Change the parameters of the tier's index before the store opens the index.  Default:
     * change nothing. */
    void (*set_index)(const struct kvt__tier *tier, struct kvt__table_params *params);
    /* Prepare the use of an index that the store has opened.  The store uses the index after this
     * call and until leave_index().  After another process has replaced the index, the store calls
     * use_index() with the new index, and leave_index() with the old index when the store closes.
     * Defaults: do nothing. */
    int (*use_index)(struct kvt__tier *tier, struct kvt__table *index);
    void (*leave_index)(struct kvt__tier *tier, struct kvt__table *index);
    /* Return the bytes that must be deleted before a store of an object of `bytes`, so that a
     * tenth of the object's file system stays free; files of other programs count too.  Must
     * be fast.  Default: 0. */
    uint64_t (*shortage)(const struct kvt__tier *tier, const struct kvt__object *object,
                         uint64_t bytes);
    /* Return true if the removal of `gone` makes room for `object`; false if the two objects are
     * on different file systems.  Must be fast.  Default: true. */
    bool (*makes_room)(const struct kvt__tier *tier, const struct kvt__object *gone,
                       const struct kvt__object *object);
    /* Return the bytes on disk of an object with this payload.  Default: the payload's bytes. */
    uint64_t (*stored_bytes)(const struct kvt__tier *tier,
                             const struct kvt__object *object, uint64_t payload);

    /* Receive the GPU whose memory contains the engine's KV until the tier is closed; NULL: the
     * KV is not in a GPU's memory.  If bytes can move between the GPU's memory and the storage
     * without host memory, acquire_slot() returns slots of GPU memory from now on, at most `most`
     * bytes at a time (0: no caller acquires slots).  The tier logs the data path.  0; -errno with
     * a sentence: the configuration requires a data path that this host lacks.  Default: 0, bytes
     * always move through host memory. */
    int (*use_gpu)(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most);

    /* Acquire a slot of the tier's own memory; bytes move between this memory and the storage
     * without a copy.  The caller releases the slot with kvt__pool_release().  Stores may use at
     * most half of the memory; the rest is reserved for loads.  Never blocks.  False: no slot is
     * free.  Default: false, because the tier has no memory of its own. */
    bool (*acquire_slot)(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                         struct kvt__slot *out);

    /* Acquire a slot that is the stored chunk itself, in memory of the tier.  The tier keeps the
     * chunk unchanged until the caller releases the slot with kvt__pool_release().  The caller
     * only reads the slot, and the slot has no margins.  bytes: the exact size of the chunk.
     * Never blocks.  False: the entry has changed, or the tier cannot keep more chunks unchanged.
     * Default: false. */
    bool (*acquire_chunk)(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
                          struct kvt__slot *out);

    /* Begin an operation and do not wait for the end; the tier ends the operation with
     * kvt__tier_end().  Must not block.  A PUT is published whole or not at all.  Default: call
     * run() on the executor; if the calling thread waits or belongs to the executor, call run()
     * on the calling thread. */
    void (*submit)(struct kvt__tier *tier, struct kvt__tier_op *op);
    /* Run the operation to its end.  A tier whose transfers block has run() instead of
     * submit().  0, or -errno with a sentence: the values of op->error. */
    int (*run)(struct kvt__tier *tier, struct kvt__tier_op *op);

    /* Call fn, on the calling thread, for each stored chunk whose key begins with prefix; see
     * slash of struct kvt__tier for the keys.  The tier may list other chunks too.  Default:
     * list no chunks. */
    int (*list)(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx);

    /* Change the description of the tier for kvt_store_tier().  Default: change nothing. */
    void (*info)(const struct kvt__tier *tier, struct kvt_tier_info *info);
    /* Delete all chunks and the memory, for kvt_store_clear(); only for a tier with
     * in_memory. */
    int (*clear)(struct kvt__tier *tier);
};

/* An open tier. */
struct kvt__tier {
    const struct kvt__tier_ops *ops;
    struct kvt__tier_ops filled; /* the tier's ops and the defaults, by kvt__tier_open() */
    struct kvt__exec *exec;      /* params->exec, unless open() has set another executor */
    /* Set by open(), constant afterwards. */
    size_t phase;       /* preferred address of a payload, modulo 4096 */
    char slash;         /* the character for '/' in the keys of list(); the tier accepts keys in
                         * both forms; 0: '/' */
    uint64_t default_limit; /* limit in bytes if no limit is configured; 0: no limit */
    bool in_memory;     /* the chunks are in host memory, in the area of the index: every chunk
                         * has an entry, and no chunk outlives a restart of the host */
    bool multi_host;    /* other hosts may delete chunks that have an entry in this host's
                         * index.  Such a tier receives no object with a time to live */
    bool several_disks; /* the directories are on several file systems: a file system may
                         * be full while another file system has room */
    bool keeps_corrupt; /* a corrupt chunk is not removed; the next PUT replaces the chunk */
    bool any_memory;    /* the tier accepts slots in any memory, without margins */
    bool any_name;      /* the tier accepts any text as the name of an object */
    bool enforces_limit; /* the tier enforces max_remote_size, and the index has no limit: the
                          * storage may have chunks without an entry, which a lookup enters */
};

/* Open the tier for a URL.  The caller closes the tier with ops->close().  0; -EINVAL: the text
 * is no URL; -ENODEV: no kind of storage has the URL's scheme; an error of ops->open(); all with
 * a sentence. */
int kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out);

/* Check a URL with ops->check_url().  Errors as kvt__tier_open(). */
int kvt__tier_check_url(const struct kvt__tier_params *params);

/* Check the requirements of the tier for a URL with ops->check().  Do nothing if the URL is invalid
 * or the tier has no check(). */
void kvt__tier_check(const struct kvt__tier_params *params, const struct kvt__reporter *to);

/* Report the result of a check of `subject`.  status as in kvt_look_fn: 0, -errno, or 1 if the next
 * check may block or end the process.  fmt: a sentence. */
void kvt__report(const struct kvt__reporter *to, const char *subject, int status,
                 const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Return ops->shm_bytes() of the tier for a URL; 0 if the URL is invalid. */
uint64_t kvt__tier_shm_bytes(const struct kvt__tier_params *params);

/* End an operation: set op->error and call op->on_done.  err: 0, or -errno, whose sentence is in
 * kvt__why() of this thread. */
void kvt__tier_end(struct kvt__tier_op *op, int err);

/* Submit an operation and wait for the end.  op->on_done is not called.  0, or -errno with a
 * sentence.  The functions below wait for an operation of each kind. */
int kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *op);
int kvt__tier_put(struct kvt__tier *tier, const struct kvt__object *object,
                  const struct kvt__slot *slot, uint32_t crc);
int kvt__tier_get(struct kvt__tier *tier, const struct kvt__object *object,
                  const struct kvt__slot *slot, struct kvt__found *found);
int kvt__tier_probe(struct kvt__tier *tier, const struct kvt__object *object,
                    struct kvt__found *found);
int kvt__tier_remove(struct kvt__tier *tier, const struct kvt__object *object);

#endif
