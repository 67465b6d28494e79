/* SPDX-License-Identifier: Apache-2.0
 *
 * What one kind of storage can do.  A tier moves whole chunks between slots and
 * storage under the names of their keys; it knows nothing of budgets, eviction,
 * indexes or engines.  One folder and one const table a kind. */
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

/* Receives one thing that a tier needs of this machine, as kvt_look_fn. */
typedef void (*kvt__tier_look_fn)(void *ctx, const char *about, int status,
                                  const char *text);

/* How the payload is described in a header, where a layout has one. */
struct kvt__shape {
    uint32_t format; /* LMCache's memory format: 1 KV_2LTD, 4 BINARY, 6 KV_MLA_FMT */
    uint32_t dtype;  /* LMCache's dtype code */
    uint32_t dims[4];
};

/* One chunk, as a tier sees it. */
struct kvt__object {
    const char *key;     /* key text */
    struct kvt__hash hash; /* its chunk hash: chooses among directories */
    bool opaque;         /* lives apart, where LMCache never looks */
    bool is_name;        /* key is the name of an object as it is, of a tier that
                          * takes_any */
    bool whole;          /* of chunk_tokens tokens */
    uint32_t tokens;
    uint32_t rank;       /* of the worker whose chunk it is */
    struct kvt__id id;
    bool id_of_key;      /* id was made from the key text, not from tokens */
    struct kvt__shape shape;
};

/* What was found in storage. */
struct kvt__found {
    uint64_t payload_bytes;
    uint64_t stored_bytes; /* on disk, for budgets */
    bool has_id;           /* what follows is what was stored with it */
    struct kvt__id id;
    bool id_of_key;
    uint32_t crc;          /* CRC32C of the payload */
    uint32_t tokens;
    bool has_read_crc;     /* get: what follows is known already */
    uint32_t read_crc;     /* CRC32C of the bytes that are in the slot now */
    bool checked;          /* get: they have a checksum that was stored with them */
    bool has_shape;        /* without identity: what follows is what its header tells;
                            * what LMCache has no number for is 0 there */
    struct kvt__shape shape;
};

struct kvt__tier {
    const struct kvt__tier_ops *ops;
    /* Set by open(). */
    bool shared;        /* other hosts may delete there what this one's index knows */
    bool several_disks; /* its directories lie on more than one file system, of which one may
                         * be full while the others have room */
    bool keeps_damaged; /* a chunk that was damaged is not removed: the next put of it
                         * takes its place */
    bool takes_any;     /* slots may be any memory, without rooms; and names any text */
    bool unlisted;      /* more may lie there than an index knows: that learns of a chunk
                         * when it is asked for, and the tier itself keeps
                         * max_remote_size */
};

/* An operation that nobody waits for: one tier can have many under way without a thread
 * for each.  The caller's until start(), the tier's until done is called. */
enum kvt__tier_what { KVT__TIER_PUT, KVT__TIER_GET, KVT__TIER_PROBE, KVT__TIER_REMOVE };

struct kvt__tier_op {
    enum kvt__tier_what what;
    enum kvt__prio prio;
    const struct kvt__object *object; /* until start() returns */
    struct kvt__slot slot;   /* PUT, GET */
    bool shorter;            /* GET: the chunk may be shorter than the slot */
    bool overwrite;          /* PUT: in place of whatever is there */
    uint32_t crc;            /* PUT */
    struct kvt__found found; /* GET, PROBE; PUT: has_id: what it took the place of */
    /* Called once, on a thread of the tier that must not be kept waiting, perhaps before
     * start() has returned.  err: as of the blocking call, its sentence kvt__why(). */
    void (*done)(struct kvt__tier_op *op, int err);
};

/* What a tier is opened with. */
struct kvt__tier_params {
    const struct kvt_config *config;
    const char *name;     /* the setting it came from, for messages */
    const char *url;      /* SCHEME://REST */
    const char *rest;     /* filled in by kvt__tier_open() */
    uint32_t local_ranks; /* workers on this host that share the store; 0: not known */
    struct kvt__counters *counters; /* NULL: nothing is counted */
    bool transfers;       /* this process stores and loads chunks: the tier makes what the
                           * first transfer needs now, in the background */
    bool tells;           /* whoever opens it tells what its operations answer: that is
                           * not logged too */
};

/* Receives one name that list() found; path: number of the directory. */
typedef void (*kvt__tier_list_fn)(void *ctx, const char *key, bool opaque,
                                  uint32_t path, uint64_t stored_bytes,
                                  int64_t mtime_ns);

/* All calls may block and run on executor threads, several at once, also for
 * one key; a key's file changes only as a whole.  They return 0 or -errno with a
 * sentence:
 *   -ENOENT   no such chunk
 *   -EBUSY    remove: it is in use, ask again later
 *   -EBADMSG  there is one, damaged or of another length or form
 *   -ENOSPC, -EROFS, -EACCES, -EIO ... the storage said so */
struct kvt__tier_ops {
    const char *name;    /* the word in messages and statistics */
    const char *schemes; /* URL schemes it serves, blank-separated */

    /* Makes missing directories.  NULL: not opened by URL. */
    int (*open)(const struct kvt__tier_params *params, struct kvt__tier **out);
    /* Look at what opening needs of this machine, without opening, and tell it thing by
     * thing.  NULL: opening tells it. */
    void (*look)(const struct kvt__tier_params *params, kvt__tier_look_fn fn, void *ctx);
    /* What is under way ends soon, what begins from now on at once, with -ECANCELED.
     * NULL: it ends soon anyway. */
    void (*stop)(struct kvt__tier *tier);
    /* Nothing is in flight. */
    void (*close)(struct kvt__tier *tier);

    /* Address modulo 4096 that payloads should have, and an open directory for
     * the index, borrowed (-1: none). */
    size_t (*phase)(const struct kvt__tier *tier);
    int (*private_dir)(const struct kvt__tier *tier);
    /* Bytes it may fill when no limit is configured; 0: leave it alone. */
    uint64_t (*default_limit)(const struct kvt__tier *tier);
    /* Return the bytes to delete before a store of an object of `bytes`, so that a tenth of
     * the object's file system stays free, files of other programs included.  Quick.  NULL:
     * always 0. */
    uint64_t (*shortage)(const struct kvt__tier *tier, const struct kvt__object *object,
                         uint64_t bytes);
    /* Return true if removing gone makes room where object is stored: not where the two lie
     * on different file systems.  Quick.  NULL: always. */
    bool (*makes_room)(const struct kvt__tier *tier, const struct kvt__object *gone,
                       const struct kvt__object *object);
    /* What a payload of this size will take on disk. */
    uint64_t (*stored_bytes)(const struct kvt__tier *tier,
                             const struct kvt__object *object, uint64_t payload);

    /* The engine's KV lies on this GPU (NULL: on none) until the tier is closed: where
     * bytes can move between its memory and the storage without a way through the host's,
     * lend that from now on, most bytes of it at a time (0: nothing will be asked for).
     * The tier tells which way they go.  0; -errno with a sentence: the configuration
     * demands what is not to be had here.  NULL: they always go through host memory. */
    int (*use_gpu)(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most);

    /* A slot in memory between which and the storage bytes move without a copy, of a
     * tier that has such memory; released as those of the pool.  Stores leave half of it
     * to loads.  Never blocks; false: there is none now.  NULL: there never is. */
    bool (*lend)(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                 struct kvt__slot *out);

    /* The same four as below without waiting for them.  NULL: callers have to wait. */
    void (*start)(struct kvt__tier *tier, struct kvt__tier_op *op);
    /* Publish the slot's payload, whole or not at all.  crc: its CRC32C.  The
     * slot's rooms may be overwritten. */
    int (*put)(struct kvt__tier *tier, const struct kvt__object *object,
               const struct kvt__slot *slot, uint32_t crc);
    /* Read into the slot, whose size must be the payload's.  The payload is
     * not yet checked against found->crc. */
    int (*get)(struct kvt__tier *tier, const struct kvt__object *object,
               const struct kvt__slot *slot, struct kvt__found *found);
    /* A share of the slot that has the payload, of a tier that keeps chunks in the
     * pool; the caller ends it with kvt__pool_release().  NULL: there is none. */
    int (*borrow)(struct kvt__tier *tier, const struct kvt__object *object,
                  struct kvt__slot *slot, struct kvt__found *found);
    /* Look what is there, without the payload. */
    int (*probe)(struct kvt__tier *tier, const struct kvt__object *object,
                 struct kvt__found *found);
    int (*remove)(struct kvt__tier *tier, const struct kvt__object *object);
    /* List each chunk in the store with a listed key beginning with prefix.  The tier may
     * list other chunks too. */
    int (*list)(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx);
    /* Change a key text, or one without its hash, to what list() calls that key, which
     * is no longer and means the same to the tier.  NULL: it is the same. */
    void (*listed_key)(const struct kvt__tier *tier, char *key);
};

/* Open the tier for a URL.  -ENODEV: no kind serves its scheme. */
int kvt__tier_open(const struct kvt__tier_params *params, struct kvt__tier **out);

/* As ops->look, of the tier for a URL, if there is one. */
void kvt__tier_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn,
                    void *ctx);

/* Start and wait.  For the tables of tiers that have start(): their put, get, probe and
 * remove. */
int kvt__tier_wait(struct kvt__tier *tier, struct kvt__tier_op *op);
int kvt__tier_wait_put(struct kvt__tier *tier, const struct kvt__object *object,
                       const struct kvt__slot *slot, uint32_t crc);
int kvt__tier_wait_get(struct kvt__tier *tier, const struct kvt__object *object,
                       const struct kvt__slot *slot, struct kvt__found *found);
int kvt__tier_wait_probe(struct kvt__tier *tier, const struct kvt__object *object,
                         struct kvt__found *found);
int kvt__tier_wait_remove(struct kvt__tier *tier, const struct kvt__object *object);

#endif
