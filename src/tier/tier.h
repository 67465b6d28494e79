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

struct kvt__tier {
    const struct kvt__tier_ops *ops;
    /* Set by open(). */
    bool shared;        /* other hosts may delete chunks that this host's index has */
    bool several_disks; /* the directories are on several file systems: a file system may
                         * be full while another has room */
    bool keeps_damaged; /* a damaged chunk is not removed: the next put replaces the
                         * chunk */
    bool takes_any;     /* a slot may be any memory, without rooms, and a name any text */
    bool unlisted;      /* the storage may have chunks without an entry in the index: a
                         * lookup makes the entry.  The tier enforces max_remote_size. */
};

/* An asynchronous operation: a tier can have many operations in flight without a thread
 * for each.  Owner: the caller until start(), then the tier until the call of done. */
enum kvt__tier_what { KVT__TIER_PUT, KVT__TIER_GET, KVT__TIER_PROBE, KVT__TIER_REMOVE };

struct kvt__tier_op {
    enum kvt__tier_what what;
    enum kvt__prio prio;
    const struct kvt__object *object; /* until start() returns */
    struct kvt__slot slot;   /* PUT, GET */
    bool shorter;            /* GET: the chunk may be shorter than the slot */
    bool overwrite;          /* PUT: replace an existing chunk */
    uint32_t crc;            /* PUT */
    struct kvt__found found; /* GET, PROBE; PUT: the replaced chunk if has_id */
    /* Called once, on a thread of the tier, perhaps before start() has returned.  done must
     * not block.  err: as of the blocking call; kvt__why() has the sentence. */
    void (*done)(struct kvt__tier_op *op, int err);
};

/* Parameters of kvt__tier_open(). */
struct kvt__tier_params {
    const struct kvt_config *config;
    const char *name;     /* the setting with the URL, for messages */
    const char *url;      /* SCHEME://REST */
    const char *rest;     /* filled in by kvt__tier_open() */
    uint32_t local_ranks; /* workers on this host that share the store; 0: not known */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    bool transfers;       /* this process stores and loads chunks: the tier prepares the
                           * first transfer now, in the background */
    bool tells;           /* the caller reports the results of operations: the tier does
                           * not log them */
};

/* Receive a name found by list().  path: number of the directory. */
typedef void (*kvt__tier_list_fn)(void *ctx, const char *key, bool opaque,
                                  uint32_t path, uint64_t stored_bytes,
                                  int64_t mtime_ns);

/* All calls may block and run on executor threads, several at once, also for
 * equal keys; a key's file changes only as a whole.  Calls return 0 or -errno with a
 * sentence:
 *   -ENOENT   the chunk does not exist
 *   -EBUSY    remove: the chunk is in use, retry later
 *   -EBADMSG  the chunk exists but is damaged, or has another length or form
 *   -ENOSPC, -EROFS, -EACCES, -EIO ... the error of the storage */
struct kvt__tier_ops {
    const char *name; /* the word in messages and statistics, and the scheme of URLs */

    /* Open the tier and make missing directories.  NULL: not opened by URL. */
    int (*open)(const struct kvt__tier_params *params, struct kvt__tier **out);
    /* Check each requirement of open() on this machine, without opening, and report each
     * requirement to fn.  NULL: open() reports the first failure. */
    void (*look)(const struct kvt__tier_params *params, kvt__tier_look_fn fn, void *ctx);
    /* Make operations in flight end soon and later operations end at once, with
     * -ECANCELED.  NULL: operations always end soon. */
    void (*stop)(struct kvt__tier *tier);
    /* Close the tier.  The caller has no operation in flight. */
    void (*close)(struct kvt__tier *tier);

    /* Return the best address of a payload, modulo 4096. */
    size_t (*phase)(const struct kvt__tier *tier);
    /* Return the descriptor of the directory for the index, borrowed; -1: none. */
    int (*private_dir)(const struct kvt__tier *tier);
    /* Return the limit in bytes if no limit is configured; 0: no limit. */
    uint64_t (*default_limit)(const struct kvt__tier *tier);
    /* Return the bytes to delete before a store of an object of `bytes`, so that a tenth of
     * the object's file system stays free, files of other programs included.  Quick.  NULL:
     * always 0. */
    uint64_t (*shortage)(const struct kvt__tier *tier, const struct kvt__object *object,
                         uint64_t bytes);
    /* Return true if removing gone makes room for object: false if the two are on different
     * file systems.  Quick.  NULL: always. */
    bool (*makes_room)(const struct kvt__tier *tier, const struct kvt__object *gone,
                       const struct kvt__object *object);
    /* Return the bytes on disk of a payload of this size. */
    uint64_t (*stored_bytes)(const struct kvt__tier *tier,
                             const struct kvt__object *object, uint64_t payload);

    /* The engine's KV is in the memory of this GPU (NULL: of no GPU) until the tier is
     * closed.  If bytes can move between the GPU's memory and the storage without host
     * memory, lend slots of GPU memory from now on, at most `most` bytes at a time (0: no
     * caller will borrow a slot).  The tier logs the data path.  0; -errno with a sentence:
     * the configuration requires a data path that this host lacks.  NULL: bytes always move
     * through host memory. */
    int (*use_gpu)(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most);

    /* Lend a slot of the tier's own memory: bytes move between this memory and the storage
     * without a copy.  The caller releases the slot as a slot of the pool.  Stores leave
     * half of the memory to loads.  Never blocks; false: no slot is free.  NULL: the tier
     * has no own memory. */
    bool (*lend)(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                 struct kvt__slot *out);

    /* Start a put, get, probe or remove, without waiting for the end.  NULL: only the
     * blocking calls below exist. */
    void (*start)(struct kvt__tier *tier, struct kvt__tier_op *op);
    /* Publish the slot's payload, whole or not at all.  crc: CRC32C of the payload.  The
     * slot's rooms may be overwritten. */
    int (*put)(struct kvt__tier *tier, const struct kvt__object *object,
               const struct kvt__slot *slot, uint32_t crc);
    /* Read into the slot.  The slot's size must be the payload's.  The payload is
     * not yet checked against found->crc. */
    int (*get)(struct kvt__tier *tier, const struct kvt__object *object,
               const struct kvt__slot *slot, struct kvt__found *found);
    /* Share the pool's slot with the payload, for a tier that keeps chunks in the pool.
     * The caller ends the share with kvt__pool_release().  NULL: the tier has no slots. */
    int (*borrow)(struct kvt__tier *tier, const struct kvt__object *object,
                  struct kvt__slot *slot, struct kvt__found *found);
    /* Describe the stored chunk, without the payload.  -ENOENT: there is none; with
     * found->stored_bytes there is an object that is no chunk known here. */
    int (*probe)(struct kvt__tier *tier, const struct kvt__object *object,
                 struct kvt__found *found);
    int (*remove)(struct kvt__tier *tier, const struct kvt__object *object);
    /* List each chunk in the store with a listed key beginning with prefix.  The tier may
     * list other chunks too. */
    int (*list)(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx);
    /* Change a key text, with or without the hash, to list()'s text for the key.  The new
     * text is not longer, and the tier treats both texts alike.  NULL: list() returns key
     * texts unchanged. */
    void (*listed_key)(const struct kvt__tier *tier, char *key);
};

/* Open the tier for a URL.  -ENODEV: no kind serves the URL's scheme. */
int kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out);

/* Call ops->look of the tier for a URL, if the tier has look. */
void kvt__tier_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn,
                    void *ctx);

/* Start an operation and wait for the end.  A tier with start() has the wait functions in
 * the table as put, get, probe and remove. */
int kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *op);
int kvt__tier_wait_put(struct kvt__tier *tier, const struct kvt__object *object,
                       const struct kvt__slot *slot, uint32_t crc);
int kvt__tier_wait_get(struct kvt__tier *tier, const struct kvt__object *object,
                       const struct kvt__slot *slot, struct kvt__found *found);
int kvt__tier_wait_probe(struct kvt__tier *tier, const struct kvt__object *object,
                         struct kvt__found *found);
int kvt__tier_wait_remove(struct kvt__tier *tier, const struct kvt__object *object);

#endif
