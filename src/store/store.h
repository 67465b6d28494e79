/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: maps keys to the bytes of chunks over all configured tiers.  The store keeps the
 * indexes correct, keeps the tiers within their limits, and never returns wrong bytes.  The store
 * knows neither tokens nor KV views.
 *
 * kvt__store_submit() does not block: a request runs on the executor's threads.  Any thread may
 * call any function, and no function blocks, unless its comment says otherwise. */
#ifndef KVT_STORE_STORE_H
#define KVT_STORE_STORE_H

#include "base/counters.h"
#include "codec/frame.h"
#include "io/exec.h"
#include "table/table.h"
#include "tier/tier.h"

#define KVT__MAX_STORAGES 8
/* Each storage in each encoding, the two exact encodings under two names each. */
#define KVT__MAX_LEVELS (KVT__MAX_STORAGES * (KVT__N_SERDES + 2))

struct kvt_config;
struct kvt__store;

/* Open each tier that the configuration names, and the tier's index.  params: the parameters of
 * all tiers, without name and url; borrowed until the return, but params->exec and
 * params->counters must outlive the store.  Blocks.  0; -errno with a sentence.
 * kvt__store_close() ends *out. */
int kvt__store_open(const struct kvt__tier_params *params, struct kvt__store **out);

/* Close the tiers and their indexes.  No request is in progress, and no upkeep thread runs: after
 * kvt__store_start_upkeep() the caller has called kvt__store_stop().  Blocks.  NULL is allowed. */
void kvt__store_close(struct kvt__store *store);

/* Properties of all configured tiers together.  kvt__store_add_memory() changes n_tiers and
 * has_memory later. */
struct kvt__store_traits {
    size_t n_tiers;   /* storage, shared host memory and host memory */
    size_t phase;     /* best address of a payload, modulo 4096: of the first storage */
    bool multi_host;  /* the store reads from storage that other hosts delete from */
    bool has_storage; /* a tier is neither host memory nor shared host memory */
    bool has_memory;  /* chunks stay in the host memory of this host's workers, and GETs read
                       * this memory */
    bool any_memory;  /* every tier moves bytes from and to any memory */
    bool any_name;    /* every tier accepts any text as the name of an object */
    bool is_lossy;    /* the store writes or accepts lossy chunks: all identities are lossy
                       * (kvt__id_toggle_lossy()), and GETs also accept exact chunks */
    size_t serde_text_bytes; /* most bytes that a level adds to a space's text for its encoding */
    bool wants_crc;   /* a PUT needs the payload's CRC32C: storage stores checksums, host memory
                       * does not */
};

/* The store owns the struct. */
const struct kvt__store_traits *kvt__store_traits(const struct kvt__store *store);

/* Parameters of host memory as level 0. */
struct kvt__memory_params {
    const struct kvt_config *config; /* borrowed until the return */
    struct kvt__pool *pool;  /* this worker's pool, outlives the store; NULL: this process has no
                              * pool */
    const char *instance;    /* as in struct kvt_engine_params */
    uint32_t rank, n_ranks;
    bool sees_all_ranks;     /* also open the indexes of the other ranks */
    bool prefetched_only;    /* keep only prefetched chunks, until a load or an eviction */
    uint64_t limit_bytes;    /* bytes of each worker's pool */
    uint64_t object_bytes;   /* bytes of the smallest full chunk: limit_bytes / object_bytes is the
                              * number of entries of the index */
};

/* Add host memory to the store, in front of all tiers.  Call once, before the first request.
 * Blocks.  0; -ENOMEM, ... with a sentence. */
int kvt__store_add_memory(struct kvt__store *store,
                          const struct kvt__memory_params *params);

/* The tiers that receive the PUTs of this process.  If all ranks have equal bytes (MLA), each
 * worker stores chunks in host memory, one rank of each host in tiers that only this host can
 * read, and the first rank in all tiers. */
enum kvt__puts {
    KVT__PUTS_ALL,    /* all tiers */
    KVT__PUTS_HOST,   /* host memory, and tiers that other hosts cannot read */
    KVT__PUTS_MEMORY, /* only host memory */
};

/* All keys of a rank that differ only in the hash. */
struct kvt__space {
    char text[KVT__TABLE_TEXT_MAX + 1]; /* key text with an empty hash */
    size_t own_tag; /* offset in text of kvtier's own tag, or of the end of text: the position
                     * for the tags of requests */
    bool opaque;
    bool is_key;          /* the text is of a key, which names one object: no level adds the name
                           * of its encoding */
    uint32_t rank;        /* rank in the text: the owner of the chunks */
    uint32_t memory_rank; /* rank whose host memory may hold the chunks */
    enum kvt__puts puts;
    uint64_t digests[KVT__MAX_LEVELS]; /* digests of the text in the spelling of each level */
};

/* Insert tags ("": no tags) into the space's text at own_tag, and set the digests.  Requests and
 * lookups need a space with digests.  0; -ENAMETOOLONG with a sentence. */
int kvt__store_set_tags(const struct kvt__store *store, struct kvt__space *space,
                        const char *tags);

/* The key of a chunk for lookups.  An index of storage finds the chunk by space and hash, the
 * index of host memory by identity. */
struct kvt__chunk_key {
    const struct kvt__space *space;
    struct kvt__hash hash;
    struct kvt__id id;
    bool needs_id; /* a chunk without identity is a miss */
};

/* Before a lookup: note for each other rank's host memory if the process of the memory lives.
 * Lookups ignore the memory of dead processes. */
void kvt__store_refresh_liveness(struct kvt__store *store);

/* Reopen indexes after another process replaced or deleted an index.  Makes two system calls
 * for each storage; never blocks if the store has an executor. */
void kvt__store_renew_indexes(struct kvt__store *store);

#define KVT__STORE_PREFETCHED 32u

/* Prefetch into the CPU's cache the words of the indexes that lookups of keys read first.  All
 * keys have the same space; n is at most KVT__STORE_PREFETCHED. */
void kvt__store_prefetch(const struct kvt__store *store, const struct kvt__chunk_key *keys,
                         size_t n);

/* The set of levels that a lookup or a probe uses. */
enum kvt__where {
    KVT__ANYWHERE,
    KVT__IN_MEMORY,  /* host memory and shared host memory */
    KVT__IN_STORAGE, /* all other levels */
    /* The levels from which only this host deletes chunks, so a hit there is guaranteed.  All
     * levels, if this process cannot read the host memory of the space's rank: then no read into
     * this memory can verify a chunk before the load. */
    KVT__GUARANTEED,
    /* The storage that KVT__GUARANTEED leaves out: lookups promise the space's chunks only after
     * a read into host memory. */
    KVT__READ_FIRST,
};

/* Level numbers (int level): KVT__LEVEL_MEMORY, then 1, 2, ... for the storage in search order. */
#define KVT__LEVEL_MEMORY 0

/* Return true if `where` includes the level for the space's chunks, and the level may be read
 * now: retrieve_locations includes the level, and the level is not paused. */
bool kvt__store_covers(const struct kvt__store *store, enum kvt__where where, int level,
                       const struct kvt__space *space);

/* Return the measured duration of loads from a level of storage. */
struct kvt__table_speed kvt__store_speed(const struct kvt__store *store, int level);

/* Return the storage of a level, a number below KVT__MAX_STORAGES: the levels of a storage's
 * encodings have equal numbers.  -1: the level is host memory. */
int kvt__store_storage(const struct kvt__store *store, int level);

/* Write the times of a model into the indexes of all storage, or read the times with this key.
 * get: key 0 if no index has the times. */
void kvt__store_set_prefill(struct kvt__store *store, const struct kvt__table_prefill *prefill);
struct kvt__table_prefill kvt__store_get_prefill(const struct kvt__store *store, uint64_t key);

/* Return true if the level is host memory, shared or not. */
bool kvt__store_is_memory(const struct kvt__store *store, int level);

/* Return true if `where` includes storage (no host memory) that may be read now for the space's
 * chunks. */
bool kvt__store_can_probe(const struct kvt__store *store, enum kvt__where where,
                        const struct kvt__space *space);

/* Return true if the index of a level in `where` that may be read has the chunk, and a load accepts
 * the chunk.  An unread entry counts only in the storage of KVT__READ_FIRST.  A chunk whose life
 * ends within KVT__STORE_LOAD_NS does not count. */
bool kvt__store_find(const struct kvt__store *store, const struct kvt__chunk_key *key,
                     enum kvt__where where);

/* Return the media that have the chunk of this rank, a set of KVT_MEDIUM_* as kvt_engine_media()
 * describes. */
uint32_t kvt__store_media(const struct kvt__store *store, const struct kvt__chunk_key *key);

/* Lease the chunk of this rank as kvt__store_lease(), but in storage from which only this host
 * deletes, or in host memory if the store has no such storage.  Return the medium, KVT_MEDIUM_*;
 * 0: the medium has no such chunk. */
uint32_t kvt__store_pin(struct kvt__store *store, const struct kvt__chunk_key *key,
                        int64_t until_ns, struct kvt__lease *out);

/* Mark the chunk as used now in all levels, and let the chunk live at least until expires_ns (0:
 * without end).  Return true if a PUT with this expires_ns has nothing to store: every tier that
 * takes the PUT has the chunk.  Host memory counts only if no tier takes the PUT. */
bool kvt__store_touch(struct kvt__store *store, const struct kvt__chunk_key *key,
                      int64_t expires_ns);

/* Return the end of the time to live (kvt__wall_ns()) of a chunk that is stored now; 0: no end.
 * ttl_s: the time to live that the request wants, 0: no end.  max_ttl_seconds limits the time. */
int64_t kvt__store_expiry(const struct kvt__store *store, uint32_t ttl_s);

/* The time that a lookup leaves for the load: the lookups of an engine find no chunk whose life
 * ends earlier. */
#define KVT__STORE_LOAD_NS (16 * KVT__NS_PER_S)

/* Find a chunk as kvt__store_find(), and lease the chunk in the first level with the chunk.  Return
 * the number of the level; -1: no level has the chunk.  out: the lease; the field `level` is 1 +
 * the level.  The caller ends each lease once with kvt__store_unlease().  At until_ns
 * (kvt__now_ns()) the lease expires.  *expires_ns, in and out: becomes the end of the chunk's life
 * (kvt__wall_ns()), if the chunk has an end and the end is earlier. */
int kvt__store_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                     enum kvt__where where, int64_t until_ns, struct kvt__lease *out,
                     int64_t *expires_ns);

/* End a lease of a chunk of this space.  Also allowed after the index was replaced. */
void kvt__store_unlease(struct kvt__store *store, const struct kvt__space *space,
                        const struct kvt__lease *lease);

/* Return true if the lease is still valid, and kvt__store_find() finds the chunk in the level of
 * the lease. */
bool kvt__store_has_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                          const struct kvt__lease *lease);

/* Protect a chunk in host memory from eviction until until_ns (kvt__now_ns()), so that a lookup
 * has time to lease a chunk that was just read. */
void kvt__store_protect(struct kvt__store *store, const struct kvt__chunk_key *key,
                        int64_t until_ns);

/* Acquire a slot in the memory of the store's only tier, if chunks do not stay in host memory: the
 * tier moves the bytes of the slot without a copy.  The caller releases *out with
 * kvt__pool_release().  Return false if no slot is free now. */
bool kvt__store_acquire_slot(struct kvt__store *store, enum kvt__prio prio, size_t bytes,
                             struct kvt__slot *out);

/* Let PUTs keep encoded chunks in a pool until a tier that does not block has the chunks.  Encoded
 * chunks leave keep_free bytes of the pool free.  Without a pool, or without room, a PUT of an
 * encoded chunk into such a tier fails with -ENOSPC.  Call before the first PUT; the pool must
 * outlive all requests. */
void kvt__store_use_pool(struct kvt__store *store, struct kvt__pool *pool, size_t keep_free);

/* Pass the GPU that holds the KV to all tiers (ops->use_gpu in tier/tier.h); NULL: the KV is in
 * host memory.  Call before the first PUT or GET of an engine.  The GPU must outlive the store.
 * most: largest sum of the bytes of all slots from kvt__store_acquire_slot() at a time.  0;
 * -errno with a sentence: the configuration requires a data path that this host lacks. */
int kvt__store_use_gpu(struct kvt__store *store, struct kvt__gpu *gpu, size_t most);

/* A request.  The request walks through the levels: host memory, then each storage in search order.
 * The caller fills in the fields before the results, and keeps the request and the objects of its
 * pointers valid until the call of on_done.  The store calls on_done once: for a PUT that only host
 * memory takes, in kvt__store_submit(); otherwise on an executor thread, or, for a request by key,
 * on a thread of a tier if all tiers have any_memory and any_name. */
struct kvt__store_req {
    /* PUT: store slot and crc in every tier that takes the space's PUTs and lacks the chunk.  Host
     * memory has the chunk when kvt__store_submit() returns.
     * GET: read into slot from the first tier that has the chunk.  consume or the store verifies
     * the payload.
     * PROBE: ask the tiers for the object, and enter the found objects into the indexes.
     * REMOVE: by key only: delete object and entry, leased or not, in all tiers. */
    enum kvt__tier_op_kind op;
    const struct kvt__space *space;
    struct kvt__id id;
    struct kvt__hash hash;
    uint32_t tokens;       /* tokens of the chunk; 0: unknown */
    bool is_full;          /* the chunk has chunk_size tokens; false: a partial chunk */
    bool needs_id;         /* a chunk without identity is a miss */
    struct kvt__shape shape; /* GET, PROBE: a chunk without identity but with another shape is
                              * a miss */
    struct kvt__chunk_shape layout; /* PUT: the elements, for codecs; n_planes 0: unknown */
    struct kvt__slot slot;
    uint32_t crc;          /* PUT: CRC32C of the payload, if kvt__store_traits.wants_crc */
    uint64_t bytes;        /* required payload bytes of the chunk */
    enum kvt__where where; /* PROBE: the levels to ask */
    /* Called when an executor thread starts the request.  False: the request ends with
     * -ECANCELED.  NULL: always true. */
    bool (*is_wanted)(const struct kvt__store_req *req);
    void (*on_done)(struct kvt__store_req *req);
    /* GET: copy the slot's payload and compute the CRC32C of the whole payload in one pass.
     * Called on an executor thread for each tier that returns a payload with the right
     * identity, until the checksum is right.  0: crc is the CRC32C of the payload; -EBADMSG:
     * crc is not the CRC32C, and the store reads the next tier; -EAGAIN: nothing was copied, and
     * the store computes the CRC32C.  Not called if the payload is verified without a pass over
     * the bytes, or cannot be verified.  NULL: as -EAGAIN. */
    int (*consume)(struct kvt__store_req *req, uint32_t crc);
    bool is_in_place;      /* GET: kvt__store_acquire_chunk() has set slot to the chunk itself in
                            * host memory; else false */
    bool is_prefetch;      /* GET: a prefetch.  The first load verifies the payload of a chunk that
                            * stays in host memory, unless the chunk is from storage that other
                            * hosts share */
    bool overwrite;        /* PUT: replace any chunk of the key */
    int64_t expires_ns;    /* end of the chunk's time to live (kvt__wall_ns()); 0: none.  PUT: set
                            * by the caller; else a result */

    /* The key text of a request of kvtier.h; NULL: a request of an engine.  Requests by key
     * use neither host memory nor retrieve_locations, and, but for a PUT, neither index nor
     * circuit: the tiers know their objects.  A request by key accepts every identity that
     * fits the key, does not remove a corrupt object, and ends at the first error but
     * -ENOENT; a PUT visits all levels.
     * slot: any memory.  A tier with any_memory moves the bytes from or to this memory; for
     * another tier the store copies.  GET: a buffer; -EMSGSIZE: the buffer is too small, and found
     * has the size. */
    const char *by_key;
    size_t only_level; /* by key: 0: all levels; i + 1: only levels[i] */
    bool id_of_key; /* by key: id is of the key text, not of tokens */
    bool is_name;  /* by_key is the unchanged name of an object (only with any_name) */
    bool listed;   /* by_key is a key of a listing, which may be another key of the object */
    bool verifies; /* GET: read and verify without a copy to the slot */

    /* Results, filled in before on_done.  0; -EEXIST: a PUT had nothing to store; -ENOENT,
     * -EBADMSG, -ENOSPC, ... with a sentence. */
    struct kvt__error error;
    bool verified; /* GET: checksum and identity match (by key: the checksum matches); false: only
                    * the length was compared */
    bool from_memory; /* GET: the payload is a copy from host memory, shared or not */
    struct kvt__found found; /* GET, PROBE by key */

    /* Private fields of the store while the request is in progress. */
    struct kvt__store *store;
    struct kvt__job job;
    size_t level;  /* index in store->levels of the current storage: the level number - 1 */
    char key[KVT__KEY_TEXT_MAX + 1]; /* key text; unused by key */
    struct kvt__object object;
    struct kvt__tier_op tier_op;
    /* The first of two events has happened: ops->submit() has returned on the thread that walks, or
     * the tier has ended tier_op.  The thread of the second event continues the walk. */
    atomic_bool first_event;
    bool has_success; /* the request has succeeded at a level */
    /* By key: why a level's object with a time to live counts as absent. */
    enum { KVT__END_NONE, KVT__END_PAST, KVT__END_UNKNOWN } end;
    uint32_t found_in; /* PROBE: the storage that has the chunk; bit i: levels[i] is the owner */
    bool is_sync;     /* the walk stays on the thread of kvt__store_run() */
    bool is_probed;   /* GET by key: the size of the level's object is known; the read follows */
    /* Memory of the object, if the memory is not `slot`: by key, for a tier without any_memory; for
     * a PUT, the encoded chunk.  payload NULL: none. */
    struct kvt__slot staging;
    void *staging_heap; /* by key: allocated memory of staging */
    struct kvt__scratch *scratch; /* PUT: allocated memory of the encoded chunk; NULL: staging is a
                                   * slot of the pool */
    uint32_t stores_raw; /* PUT: the storage that receives the naive chunk, because the codec cannot
                          * make the chunk smaller; bit i: levels[i] is the owner */
    struct kvt__claim claim; /* PUT, REMOVE: claim of the name in the level's index */
    bool crc_pending; /* GET: the payload was not compared with crc yet */
    struct kvt__record seen; /* GET, PROBE, REMOVE: the level's entry at the lookup */
    bool has_entry;          /* the lookup found an entry of the name */
    struct kvt__table *index; /* GET, PROBE, REMOVE: the index of the lookup */
};

static inline struct kvt__chunk_key
kvt__request_key(const struct kvt__store_req *req)
{
    return (struct kvt__chunk_key){ .space = req->space, .hash = req->hash, .id = req->id,
                                    .needs_id = req->needs_id };
}

/* Start a request.  Never blocks, and never fails: req->error has the result when the store calls
 * req->on_done. */
void kvt__store_submit(struct kvt__store *store, struct kvt__store_req *req);

/* Enter the chunk of a request as unread into the index of each storage of KVT__READ_FIRST,
 * without an operation of a tier.  A later GET completes or deletes the entry; a PUT and a PROBE
 * replace the entry.  Blocks if the index must evict. */
void kvt__store_enter_unread(struct kvt__store *store, const struct kvt__store_req *req);

/* After a load reached its deadline: pause reads from each storage that has reads in progress and
 * has ended no read for min_silence_ns. */
void kvt__store_pause_hung_tiers(struct kvt__store *store, int64_t min_silence_ns);

/* Run a request on the calling thread.  Blocks.  Does not call on_done: req->error has the
 * result. */
void kvt__store_run(struct kvt__store *store, struct kvt__store_req *req);

/* If host memory, shared or not, holds the chunk of a GET: set req->slot to a share of the chunk's
 * slot, set req->is_in_place, and return true.  The caller then submits the request as for a read,
 * and ends the share with kvt__pool_release().  If req->crc_pending, the submitted request verifies
 * the payload.
 * If the chunk is corrupt, the request removes the chunk from host memory and ends with -EBADMSG
 * and without a slot: the caller reads the chunk from storage. */
bool kvt__store_acquire_chunk(struct kvt__store *store, struct kvt__store_req *req);

/* Evict chunks from this process's host memory until `bytes` are free, or no more chunk can be
 * evicted.  Return false if no chunk was evicted. */
bool kvt__store_evict_memory(struct kvt__store *store, uint64_t bytes);

/* Start the upkeep thread.  The thread lists each storage whose index has no complete listing,
 * ends the claims of dead processes every second, and saves the indexes every five minutes for a
 * restart of the host.  Logs a warning if the thread cannot start. */
void kvt__store_start_upkeep(struct kvt__store *store);

/* Stop the upkeep thread and the tiers: a listing and requests in progress end soon, with
 * -ECANCELED if the tier can cancel.  Call before the executor closes.  Blocks until the thread
 * has ended. */
void kvt__store_stop(struct kvt__store *store);

#endif
