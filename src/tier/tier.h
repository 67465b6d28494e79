/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of a kind of storage.  A tier moves whole chunks between slots and
 * storage, under the names of the chunks' keys.  A tier has no knowledge of budgets,
 * eviction, indexes or engines.  Each kind has a folder and a const table. */
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

/* Receive a requirement of a tier on this machine.  Arguments: as for kvt_look_fn, also the
 * status 1 before a call that may block or end the process. */
typedef void (*kvt__tier_look_fn)(void *ctx, const char *about, int status,
                                  const char *text);

/* The description of the payload in a header, for a layout with a header. */
struct kvt__shape {
    uint32_t format; /* LMCache's memory format: 1 KV_2LTD, 4 BINARY, 6 KV_MLA_FMT */
    uint32_t dtype;  /* LMCache's dtype code */
    uint32_t dims[4];
};

/* A chunk, as a tier sees the chunk. */
struct kvt__object {
    const char *key;     /* key text */
    struct kvt__hash hash; /* the chunk hash: chooses among directories */
    bool opaque;         /* stored apart, in a place that LMCache never reads */
    bool is_name;        /* key is the unchanged name of an object; only for a tier with
                          * takes_any */
    bool whole;          /* the chunk has chunk_tokens tokens */
    uint32_t tokens;
    uint32_t rank;       /* of the worker that owns the chunk */
    struct kvt__id id;
    bool id_of_key;      /* id was made from the key text, not from tokens */
    struct kvt__shape shape;
    /* For a tier with in_memory: the index, and the entry of the chunk, which a PUT has
     * claimed; GET: also the word of the entry.  index NULL: there is no entry. */
    const struct kvt__table *index;
    uint32_t entry;
    uint64_t word;
    bool unsummed;       /* GET: the caller computes the payload's CRC32C, so that the tier
                          * need not.  PUT to host memory: the payload was not compared with
                          * the CRC32C */
};

/* A chunk found in storage. */
struct kvt__found {
    uint64_t payload_bytes;
    uint64_t stored_bytes; /* on disk, for budgets */
    bool has_id;           /* id, id_of_key, crc and tokens were stored with the chunk */
    struct kvt__id id;
    bool id_of_key;
    uint32_t crc;          /* CRC32C of the payload */
    uint32_t tokens;
    bool has_read_crc;     /* get: read_crc is valid */
    uint32_t read_crc;     /* CRC32C of the present bytes of the slot */
    bool checked;          /* get: the bytes equal a checksum stored with the chunk */
    bool has_shape;        /* without identity: shape is from the chunk's header; 0 stands
                            * for a format or dtype without a number in LMCache */
    struct kvt__shape shape;
};

/* One transfer.  Owner: the caller until submit(), then the tier until the call of done. */
enum kvt__tier_what { KVT__TIER_PUT, KVT__TIER_GET, KVT__TIER_PROBE, KVT__TIER_REMOVE };

struct kvt__tier_op {
    enum kvt__tier_what what;
    enum kvt__prio prio;
    const struct kvt__object *object; /* and its key: unchanged until done */
    /* PUT: the payload; the rooms may be overwritten.  GET: a slot of the payload's size. */
    struct kvt__slot slot;
    bool shorter;            /* GET: the chunk may be shorter than the slot */
    bool overwrite;          /* PUT: replace an existing chunk */
    bool waits;              /* the calling thread waits for the end: a tier that blocks runs
                              * the operation inside submit() */
    uint32_t crc;            /* PUT: CRC32C of the payload */
    /* GET, PROBE: the stored chunk.  After a GET the payload is not yet compared with
     * found.crc.  A failed PROBE with -ENOENT and found.stored_bytes: the object exists and
     * is no chunk known here. */
    struct kvt__found found;
    /* The end:
     *   -ENOENT   the chunk does not exist
     *   -EBUSY    REMOVE: the chunk is in use, retry later
     *   -EBADMSG  the chunk exists but is damaged, or has another length or form
     *   -ENOSPC, -EROFS, -EACCES, -EIO ... the error of the storage */
    struct kvt__error error;
    /* Called once, on a thread of the tier, of the executor, or inside submit().  done must
     * not block.  The operation may be freed in done. */
    void (*done)(struct kvt__tier_op *op);

    /* Of submit()'s default. */
    struct kvt__job job;
    struct kvt__tier *tier;
};

/* Parameters of kvt__tier_open(). */
struct kvt__tier_params {
    const struct kvt_config *config;
    const char *name;     /* the setting with the URL, for messages */
    const char *url;      /* SCHEME://REST */
    const char *rest;     /* filled in by kvt__tier_open() */
    uint32_t local_ranks; /* workers on this host that share the store; 0: not known */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    struct kvt__exec *exec; /* runs the operations of a tier that blocks, open until the last
                             * operation has ended; NULL: the calling threads do */
    bool transfers;       /* this process stores and loads chunks: the tier prepares the
                           * first transfer now, in the background */
    bool only_existing;   /* a tier with in_memory opens existing memory and makes none */
    bool tells;           /* the caller reports the results of operations: the tier does
                           * not log them */
};

/* Receive a name found by list(). */
typedef void (*kvt__tier_list_fn)(void *ctx, const char *key, bool opaque,
                                  uint64_t stored_bytes, int64_t mtime_ns);

/* Calls run on any thread, several at once, also for equal keys; a key's file changes only
 * as a whole.  Calls may block unless the text says otherwise, and return 0 or -errno with a
 * sentence.  A tier may leave out a row with a default: kvt__tier_open() fills in the
 * default, so callers call every row. */
struct kvt__tier_ops {
    const char *name; /* the word in messages and statistics, and the scheme of URLs */

    /* Open the tier and make missing directories.  NULL: not opened by URL. */
    int (*open)(const struct kvt__tier_params *params, struct kvt__tier **out);
    /* Check each requirement of open() on this machine, without opening, and report each
     * requirement to fn.  Default: open() reports the first failure. */
    void (*look)(const struct kvt__tier_params *params, kvt__tier_look_fn fn, void *ctx);
    /* Make operations in flight end soon and later operations end at once, with
     * -ECANCELED.  Default: nothing, operations always end soon. */
    void (*stop)(struct kvt__tier *tier);
    /* Close the tier.  The caller has no operation in flight. */
    void (*close)(struct kvt__tier *tier);

    /* Return the descriptor of the directory for the index, borrowed.  The store calls this
     * before each open of the index: a tier whose directory was deleted makes the directory
     * again, under the same descriptor.  Default: -1, none. */
    int (*private_dir)(const struct kvt__tier *tier);
    /* Change the parameters of the tier's index before the index is opened.  Default:
     * nothing. */
    void (*set_index)(const struct kvt__tier *tier, struct kvt__table_params *params);
    /* The index was opened; the store uses the index after this call, and before
     * leave_index().  Called again after another process has replaced the index.  Defaults:
     * nothing. */
    int (*use_index)(struct kvt__tier *tier, struct kvt__table *index);
    void (*leave_index)(struct kvt__tier *tier, struct kvt__table *index);
    /* Return the bytes to delete before a store of an object of `bytes`, so that a tenth of
     * the object's file system stays free, files of other programs included.  Quick.
     * Default: 0. */
    uint64_t (*shortage)(const struct kvt__tier *tier, const struct kvt__object *object,
                         uint64_t bytes);
    /* Return true if removing gone makes room for object: false if the two are on different
     * file systems.  Quick.  Default: true. */
    bool (*makes_room)(const struct kvt__tier *tier, const struct kvt__object *gone,
                       const struct kvt__object *object);
    /* Return the bytes on disk of a payload of this size.  Default: the payload's. */
    uint64_t (*stored_bytes)(const struct kvt__tier *tier,
                             const struct kvt__object *object, uint64_t payload);

    /* The engine's KV is in the memory of this GPU (NULL: of no GPU) until the tier is
     * closed.  If bytes can move between the GPU's memory and the storage without host
     * memory, lend slots of GPU memory from now on, at most `most` bytes at a time (0: no
     * caller will borrow a slot).  The tier logs the data path.  0; -errno with a sentence:
     * the configuration requires a data path that this host lacks.  Default: 0, bytes
     * always move through host memory. */
    int (*use_gpu)(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most);

    /* Lend a slot of the tier's own memory: bytes move between this memory and the storage
     * without a copy.  The caller releases the slot as a slot of the pool.  Stores leave
     * half of the memory to loads.  Never blocks; false: no slot is free.  Default:
     * false, the tier has no own memory. */
    bool (*lend)(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                 struct kvt__slot *out);

    /* Fill in a slot that is the chunk itself, of exactly these bytes, in memory that the
     * tier keeps unchanged until the slot is released as a slot of the pool.  The caller only
     * reads the slot, which has no rooms.  Never blocks; false: the entry has changed, or the
     * tier cannot keep more chunks unchanged.  Default: false. */
    bool (*borrow)(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
                   struct kvt__slot *out);

    /* Begin an operation, without waiting for the end; kvt__tier_end() ends it.  Must not
     * block.  A PUT is published whole or not at all.  Default: run() on the executor, or on
     * the calling thread if the thread waits or is the executor's. */
    void (*submit)(struct kvt__tier *tier, struct kvt__tier_op *op);
    /* In place of submit(), for a tier whose transfers block: run the operation to its end.
     * 0; -errno with a sentence, as op->error. */
    int (*run)(struct kvt__tier *tier, struct kvt__tier_op *op);

    /* List each chunk in the store with a listed key beginning with prefix.  The tier may
     * list other chunks too.  Default: no chunks. */
    int (*list)(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx);

    /* Change the description of the tier for kvt_store_tier().  Default: nothing. */
    void (*info)(const struct kvt__tier *tier, struct kvt_tier_info *info);
    /* Only for a tier with in_memory: as kvt_store_clear(). */
    int (*clear)(struct kvt__tier *tier);
};

/* An open tier. */
struct kvt__tier {
    const struct kvt__tier_ops *ops;
    struct kvt__tier_ops filled; /* ops with defaults, by kvt__tier_open() */
    struct kvt__exec *exec;      /* params->exec, unless open() has set another executor */
    /* Set by open(). */
    size_t phase;       /* best address of a payload, modulo 4096 */
    char slash;         /* what keys of list() have in place of '/'; the tier treats both texts
                         * alike; 0: '/' */
    uint64_t default_limit; /* in bytes, if no limit is configured; 0: no limit */
    bool in_memory;     /* the chunks lie in host memory, in the area of the index: all are
                         * listed, and none outlives a restart of the host */
    bool multi_host;    /* other hosts may delete chunks that this host's index has */
    bool several_disks; /* the directories are on several file systems: a file system may
                         * be full while another has room */
    bool keeps_damaged; /* a damaged chunk is not removed: the next put replaces the
                         * chunk */
    bool takes_any;     /* a slot may be any memory, without rooms, and a name any text */
    bool unlisted;      /* the storage may have chunks without an entry in the index: a
                         * lookup makes the entry.  The tier enforces max_remote_size. */
};

/* Open the tier for a URL.  -ENODEV: no kind serves the URL's scheme. */
int kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out);

/* Call ops->look of the tier for a URL, if the tier has look. */
void kvt__tier_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn,
                    void *ctx);

/* End an operation.  err: 0, or -errno with its sentence in kvt__why(). */
void kvt__tier_end(struct kvt__tier_op *op, int err);

/* Submit an operation and wait for the end: 0, or -errno with a sentence. */
int kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *op);
int kvt__tier_put(struct kvt__tier *tier, const struct kvt__object *object,
                  const struct kvt__slot *slot, uint32_t crc);
int kvt__tier_get(struct kvt__tier *tier, const struct kvt__object *object,
                  const struct kvt__slot *slot, struct kvt__found *found);
int kvt__tier_probe(struct kvt__tier *tier, const struct kvt__object *object,
                    struct kvt__found *found);
int kvt__tier_remove(struct kvt__tier *tier, const struct kvt__object *object);

#endif
