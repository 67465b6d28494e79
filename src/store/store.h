/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: chunks under their keys over all configured tiers.  It keeps the
 * indexes true, the budgets and the promise that no wrong byte is handed out.
 * It knows neither tokens nor KV views.
 *
 * Requests are submitted without blocking and run on the executor's threads;
 * everything else is quick and for any thread, unless it says otherwise. */
#ifndef KVT_STORE_STORE_H
#define KVT_STORE_STORE_H

#include "base/counters.h"
#include "io/exec.h"
#include "table/table.h"
#include "tier/tier.h"

#define KVT__MAX_LEVELS 8

struct kvt_config;
struct kvt__store;

/* Open each tier that the configuration names, and the tier's index.  params: for all tiers,
 * without name and url.  Blocks. */
int kvt__store_open(const struct kvt__tier_params *params, struct kvt__store **out);

/* No request may be in flight. */
void kvt__store_close(struct kvt__store *store);

/* What the configured tiers have in common.  kvt__store_add_memory() changes n_tiers and
 * has_memory later. */
struct kvt__store_traits {
    size_t n_tiers;  /* storage, shared host memory and host memory */
    size_t phase;    /* address modulo 4096 that payloads should have */
    bool multi_host; /* there is storage that is read and that other hosts delete from */
    bool has_storage; /* not only host memory, shared or not */
    bool has_memory; /* chunks stay in host memory of this host's workers, and are read there */
    bool takes_any;  /* every tier moves bytes from and to any memory, and a name may be any
                      * text */
    bool wants_crc;  /* a PUT needs the payload's CRC32C: host memory does not */
};

const struct kvt__store_traits *kvt__store_traits(const struct kvt__store *store);

struct kvt__memory_params {
    const struct kvt_config *config; /* borrowed until return */
    struct kvt__pool *pool;  /* of this worker; NULL: this process has none */
    const char *instance;    /* as in struct kvt_engine_params */
    uint32_t rank, n_ranks;
    bool looks_up;           /* what the other ranks have too */
    bool passing;            /* only what lookups have read ahead stays, until it is
                              * loaded or its place is wanted */
    uint64_t limit_bytes;    /* of each worker's pool */
    uint64_t object_bytes;   /* the smallest payload that is usual */
};

/* Let chunks stay in host memory too, in front of all tiers. */
int kvt__store_add_memory(struct kvt__store *store,
                          const struct kvt__memory_params *params);

/* Which tiers get what this process puts.  Others are put by another rank, which has
 * the same bytes. */
enum kvt__puts {
    KVT__PUTS_ALL,
    KVT__PUTS_HOST,   /* those that other hosts cannot read */
    KVT__PUTS_MEMORY, /* none but host memory */
};

/* All keys of a rank that differ only in the hash. */
struct kvt__space {
    char text[KVT__TABLE_TEXT_MAX + 1]; /* key text with an empty hash */
    size_t own_tag; /* where kvtier's own tag begins in text, or where text ends: tags of
                     * requests go there */
    bool opaque;
    uint32_t rank;        /* in the text: whose chunks they are */
    uint32_t memory_rank; /* whose host memory is meant */
    enum kvt__puts puts;
    uint64_t digests[KVT__MAX_LEVELS]; /* of the text as each storage spells it */
};

/* Insert tags ("" for none) into the space's text and set the digests.  Requests and lookups
 * take only such spaces.  0; -ENAMETOOLONG with a sentence. */
int kvt__store_set_tags(const struct kvt__store *store, struct kvt__space *space,
                        const char *tags);

/* What lookups know of a chunk.  An index of storage finds the chunk by space and hash, the
 * index of host memory by identity. */
struct kvt__chunk_key {
    const struct kvt__space *space;
    struct kvt__hash hash;
    struct kvt__id id;
    bool own_only; /* no chunk without identity */
};

/* Before a lookup: memory whose process has died is gone. */
void kvt__store_look_who_lives(struct kvt__store *store);

/* Reopen indexes after another process replaced or deleted an index.  Makes two system calls
 * for each storage; never blocks if the store has an executor. */
void kvt__store_look_after_indexes(struct kvt__store *store);

#define KVT__STORE_PREFETCHED 32u

/* Prefetch what lookups of these chunks of one space, at most KVT__STORE_PREFETCHED, read
 * first. */
void kvt__store_prefetch(const struct kvt__store *store, const struct kvt__chunk_key *keys,
                         size_t n);

/* Where to look for a chunk. */
enum kvt__where {
    KVT__ANYWHERE,
    KVT__IN_MEMORY,
    KVT__IN_STORAGE,
    /* Where nobody but this host deletes.  Of a rank whose memory is not seen, or not
     * used, anywhere: its chunks are verified nowhere before a load. */
    KVT__CERTAIN,
    /* In all other storage: the space's chunks are promised only after a read into host
     * memory. */
    KVT__READ_FIRST,
};

/* Levels have numbers: KVT__LEVEL_MEMORY, then storage in the order in which it is asked. */
#define KVT__LEVEL_MEMORY 0

/* Return true if `where` means the level, for the space's chunks, and the level may be read
 * now. */
bool kvt__store_covers(const struct kvt__store *store, enum kvt__where where, int level,
                       const struct kvt__space *space);

/* Return true if the level is host memory, shared or not. */
bool kvt__store_is_memory(const struct kvt__store *store, int level);

/* Return true if the store has storage there that may be read now, for the space's
 * chunks. */
bool kvt__store_can_ask(const struct kvt__store *store, enum kvt__where where,
                        const struct kvt__space *space);

/* Return true if the index of a level there that may be read has the chunk, and a load takes
 * the chunk.  A chunk whose identity is not read yet counts only in storage that is read
 * before a promise. */
bool kvt__store_find(const struct kvt__store *store, const struct kvt__chunk_key *key,
                     enum kvt__where where);

/* Mark used now wherever it is.  Whether there is nothing to put: every tier that the
 * space is put in has it; host memory need not, where there are others. */
bool kvt__store_touch(struct kvt__store *store, const struct kvt__chunk_key *key);

/* Lease the chunk in the first level there that may be read and whose index has the chunk.
 * Return the number of the level; -1: no index has the chunk.  out: the lease, whose field
 * `level` is 1 + the level.  Each lease is ended once, before until_ns. */
int kvt__store_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                     enum kvt__where where, int64_t until_ns, struct kvt__lease *out);

/* End a lease of a chunk of this space. */
void kvt__store_unlease(struct kvt__store *store, const struct kvt__space *space,
                        const struct kvt__lease *lease);

/* Return true if the index of the lease's level has the chunk, and the lease is not void. */
bool kvt__store_has_lease(struct kvt__store *store, const struct kvt__chunk_key *key,
                          const struct kvt__lease *lease);

/* Let a chunk that was just read stay in host memory until somebody has had the time to
 * lease it. */
void kvt__store_hold(struct kvt__store *store, const struct kvt__chunk_key *key,
                     int64_t until_ns);

/* A slot in the memory of the only tier there is, which moves its bytes without a copy, for
 * a chunk that is not to stay in host memory.  Never blocks; false: there is none now. */
bool kvt__store_lend(struct kvt__store *store, enum kvt__prio prio, size_t bytes,
                     struct kvt__slot *out);

/* The KV that chunks are made of lies on this GPU, until the store is closed; as
 * ops->use_gpu of its tiers. */
int kvt__store_use_gpu(struct kvt__store *store, struct kvt__gpu *gpu, size_t most);

/* A request.  The caller fills in the first part and keeps it and what it points
 * to until done is called, once, on an executor thread; that of a PUT to nothing but
 * host memory, before kvt__store_submit() returns. */
struct kvt__store_req {
    /* PUT: slot and crc to every tier that the space is put in and that lacks the chunk; host
     * memory has the chunk when the request is submitted.
     * GET: into slot, from the first tier that has the chunk, verified, by consume or by the
     * store.
     * PROBE: ask the tiers, enter the objects that they have into the index.
     * REMOVE: by key only: delete object and entry, leased or not, in all tiers. */
    enum kvt__tier_what op;
    const struct kvt__space *space;
    struct kvt__id id;
    struct kvt__hash hash;
    uint32_t tokens;
    bool whole;
    bool own_only;         /* a chunk without identity is none */
    struct kvt__shape shape; /* GET, PROBE: one without identity that tells another is
                              * none */
    struct kvt__slot slot;
    uint32_t crc;          /* PUT: CRC32C of the payload, where it is wanted */
    uint64_t bytes;        /* payload bytes that it must have */
    enum kvt__where where; /* PROBE: only of these tiers */
    /* Asked when its turn comes; false: it ends with -ECANCELED.  NULL: yes. */
    bool (*wanted)(const struct kvt__store_req *req);
    void (*done)(struct kvt__store_req *req);
    /* GET: copy the slot's payload and compute the CRC32C of the whole payload in one pass.
     * Called on an executor thread for each tier that answers with a payload of the right
     * identity, until the checksum is right.  0: crc is the CRC32C of the payload; -EBADMSG:
     * crc is not, and the next tier is asked; -EAGAIN: nothing was copied, and the store
     * computes the CRC32C.  Not called if the payload is verified without a pass over the
     * bytes, or cannot be verified.  NULL: as -EAGAIN. */
    int (*consume)(struct kvt__store_req *req, uint32_t crc);
    bool borrowed;         /* by kvt__store_borrow(); else false */
    bool early;            /* GET: nobody waits for it yet; the payload of a chunk that stays
                            * in host memory is verified by its first load, unless the chunk
                            * is in storage that other hosts share */
    bool overwrite;        /* PUT: in place of whatever is there under the key */

    /* The key text of a request of kvtier.h; NULL: a request of an engine.  Requests by key
     * use neither host memory nor retrieve_locations, and, but for a PUT, neither index nor
     * circuit: the tiers know their objects.  A request by key accepts every identity that
     * fits the key, does not remove a corrupt object, and ends at the first error but
     * -ENOENT; a PUT visits all levels.
     * slot: any memory.  A tier with takes_any moves the bytes from or to this memory; for
     * another tier the store copies.  GET: room; -EMSGSIZE: found has the size. */
    const char *by_key;
    size_t only_level; /* by key: 0: all levels; i + 1: only level i */
    bool is_name;  /* by_key is the unchanged name of an object (only with takes_any) */
    bool listed;   /* by_key is a key of a listing, which may be another key of the object */
    bool verifies; /* GET: read and verify without a copy to the slot */

    /* Filled in before done: 0; -EEXIST nothing to put; -ENOENT, -EBADMSG,
     * -ENOSPC, ... with a sentence. */
    struct kvt__error error;
    bool verified; /* GET: by checksum and identity, not only by length; by key: by
                    * checksum */
    bool from_memory; /* GET: the payload is a copy from host memory, shared or not */
    struct kvt__found found; /* GET, PROBE by key */

    /* The store's, while it is under way. */
    struct kvt__store *store;
    struct kvt__job job;
    size_t level;  /* that is asked now */
    char key[KVT__KEY_TEXT_MAX + 1]; /* the level's name of the chunk */
    struct kvt__object object;
    struct kvt__tier_op tier_op;
    atomic_bool met; /* either the walk has left the thread or the tier has ended tier_op */
    bool any;      /* a level has, or had, the chunk */
    bool waits;    /* the walk stays on the thread of kvt__store_run() */
    bool looked;   /* GET by key: found is the level's; the payload is to be read */
    struct kvt__slot own; /* by key: memory for a tier without takes_any; payload NULL: none */
    void *heap;    /* by key: allocated memory of own */
    struct kvt__claim claim; /* PUT: of the name, in the level's index */
    bool unsummed; /* GET: the payload was not compared with crc */
    struct kvt__record seen; /* GET, PROBE: the level's entry at the lookup */
    bool was_seen;           /* the lookup found an entry of the name */
    struct kvt__table *index; /* GET, PROBE: of the lookup */
};

static inline struct kvt__chunk_key
kvt__request_key(const struct kvt__store_req *req)
{
    return (struct kvt__chunk_key){ .space = req->space, .hash = req->hash, .id = req->id,
                                    .own_only = req->own_only };
}

void kvt__store_submit(struct kvt__store *store, struct kvt__store_req *req);

/* Enter the chunk of a request as unread, without a request to a tier, into the index of all
 * storage that is read before a promise.  A GET finds the chunk there, or deletes the entry.
 * A PUT and a PROBE replace the entry.  May block. */
void kvt__store_expect(struct kvt__store *store, const struct kvt__store_req *req);

/* After a load that took too long: storage that has answered nothing for that time is
 * not read for a while. */
void kvt__store_look_for_hangs(struct kvt__store *store, int64_t patience_ns);

/* The same on the calling thread.  Blocks; done is not called. */
void kvt__store_run(struct kvt__store *store, struct kvt__store_req *req);

/* Fill in slot, a share of that in host memory, if it is there; then the request, a
 * GET, ends without being read.  The slot is given back with kvt__pool_release().  If the
 * payload is not verified yet, the request verifies it; a damaged chunk leaves host memory,
 * and the request ends with -EBADMSG and without a slot: read the chunk from storage. */
bool kvt__store_borrow(struct kvt__store *store, struct kvt__store_req *req);

/* Make some bytes of the pool free that chunks of no use now stay in.  False: none. */
bool kvt__store_reclaim(struct kvt__store *store, uint64_t bytes);

/* Start a thread that lists at once, and every second ends the claims of dead processes, and
 * every five minutes saves the indexes for a restart of the host. */
void kvt__store_keep(struct kvt__store *store);

/* End the thread of kvt__store_keep().  A listing gives up soon, and so do requests that tiers
 * still answer.  Call before the executor closes.  Blocks. */
void kvt__store_stop(struct kvt__store *store);

#endif
