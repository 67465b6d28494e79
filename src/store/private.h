/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs and functions that only the files of src/store share. */
#ifndef KVT_STORE_PRIVATE_H
#define KVT_STORE_PRIVATE_H

#include <errno.h>
#include <pthread.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/fit.h"
#include "conf/conf.h"
#include "store/store.h"

struct kvt__host_memory;

/* An index that another process has replaced.  The level keeps the handle open for other
 * threads. */
struct kvt__retired {
    struct kvt__table *index;
    struct kvt__retired *next;
};

/* The choice between lossless and naive chunks, see choice.c.  Arrays are indexed by enum
 * kvt__table_pause. */
struct kvt__choice {
    bool is_measured;    /* remote_serde: auto; constant */
    atomic_bool encodes; /* new chunks are lossless */
    atomic_uint n_naive; /* chunks that the choice left naive */
    struct kvt__table_rates rates; /* only the upkeep thread */
    pthread_mutex_t lock; /* guards the fields below: measurements since the last revision */
    unsigned n[2];       /* operations in progress */
    int64_t busy_ns[2];  /* time in which an operation was in progress */
    int64_t counted_ns[2]; /* busy_ns counts the time until counted_ns */
    uint64_t bytes[2];   /* stored bytes */
    uint64_t decoded[2], encoded[2]; /* bytes of codecs */
    int64_t codec_ns[2];
};

/* The measurement of loads from a storage, see speed.c. */
struct kvt__speed {
    pthread_mutex_t lock; /* guards the fields below */
    bool is_open;         /* fit has the results of earlier processes */
    unsigned n, n_done;   /* reads in progress; reads that ended since begun_ns */
    uint64_t bytes_begun; /* of the reads in progress */
    uint64_t bytes;       /* read since begun_ns */
    int64_t begun_ns;     /* begin of the present measurement */
    int64_t result_ns;    /* time of the last result in the index */
    struct kvt__fit fit;  /* a: latency in ns, b: ns of a byte */
};

/* One storage and its index; or the objects of a storage in another encoding.  Each storage has a
 * level for the encoding of new chunks, its owner, and a level for each other encoding that the
 * store reads.  A store with lossy encodings also reads the exact chunks of other stores, and never
 * writes such a chunk.  The levels of a storage share the tier, the index and the fields of the
 * owner. */
struct kvt__level {
    struct kvt__store *store;
    struct kvt__level *owner;
    enum kvt__serde serde; /* encoding of the objects */
    bool is_inexact; /* naive or lossless in a store with lossy encodings: the chunks may be
                      * computed on inexact KV, so the names differ from those of exact stores */
    /* Fields of the storage, equal in all levels of the storage. */
    struct kvt__tier *tier;
    char *url;
    char *location;  /* LMCache's name of the storage */
    bool is_host_only; /* other hosts cannot read the storage */
    bool keeps_free; /* no limit is configured: PUTs leave a tenth of the file system free */
    bool no_get;     /* retrieve_locations leaves the storage out */
    bool no_put;     /* store_location names another storage */

    /* Fields of the owner. */
    struct kvt__choice choice;
    struct kvt__speed speed;

    /* renew.c: the index.  A replaced handle is closed with the store. */
    _Atomic(struct kvt__table *) index;
    struct kvt__table_params index_params;
    int dirfd; /* the tier's directory of the index; -1: the index is private */
    struct kvt__retired *retired;
    atomic_bool reads_only; /* the index is private, so this process cannot keep the limit */
    atomic_bool was_shared; /* the level had a shared index */
    atomic_bool is_renewing;
    _Atomic int64_t renew_from_ns; /* after a failed renewal: time of the next attempt */
    struct kvt__job renewal;

    /* circuit.c, indexed by enum kvt__table_pause */
    atomic_uint n_in_progress[2]; /* operations in progress */
    atomic_uint n_failures[2];    /* consecutive failures */
    _Atomic int64_t response_ns[2]; /* monotonic time of the last response, or of the begin of the
                                     * first operation in progress */

    _Atomic int64_t tags_evicted_ns; /* time of the last eviction for spaces with tags (evict.c) */
    _Atomic int64_t list_from_ns;    /* kvt__level_list(): time of the next attempt */
};

struct kvt__store {
    struct kvt__exec *exec;
    struct kvt__counters *counters;
    bool refuse_unverified;
    uint32_t max_ttl_s;   /* 0: no limit */
    char *store_location; /* as configured, or NULL */
    atomic_bool stopping; /* kvt__store_stop() was called: listings end */
    struct kvt__host_memory *memory; /* NULL: chunks do not stay in host memory */
    struct kvt__store_traits traits;
    size_t n_storages; /* owners */
    size_t n_levels;   /* the owners in search order, then the other levels of the storage */
    struct kvt__level levels[KVT__MAX_LEVELS]; /* levels[i] has the level number i + 1 */
    struct kvt__codec_gate *gate; /* codec.c; NULL: all levels are naive */
    unsigned codec_threads; /* threads that may be in codecs at the same time; 0: gate is NULL */

    /* list.c: the thread of kvt__store_start_upkeep() */
    pthread_t upkeep;
    bool has_upkeep;
    pthread_mutex_t upkeep_lock; /* held while `stopping` is set */
    pthread_cond_t upkeep_stop;
};

/* A storage that a configuration names. */
struct kvt__storage {
    const char *name;     /* the setting, for messages */
    char url[4096 + 32];
    char location[256];   /* LMCache's name of the storage */
    uint64_t limit_bytes; /* configured limit; 0: none */
    bool is_per_worker;   /* limit_bytes is the limit of each worker */
    const char *serde;    /* setting of the encoding of new chunks */
};

/* Call fn for each configured storage in search order, until fn returns a value other than 0.
 * Return this value; 0 after the last storage; -EINVAL, -ENAMETOOLONG with a sentence: a setting
 * is wrong.  The storage is valid during the call of fn. */
typedef int (*kvt__storage_fn)(void *ctx, const struct kvt__storage *storage);
int kvt__each_storage(const struct kvt_config *config, kvt__storage_fn fn, void *ctx);

/* Apply retrieve_locations and store_location of the configuration to the storage with LMCache's
 * name `location`: set *no_get and *no_put to true if the setting leaves out the storage. */
void kvt__apply_locations(const struct kvt_config *config, const char *location,
                          bool *no_get, bool *no_put);

/* ------------------------------------------------------------------- name.c */

/* Before the name of the encoding in a key: struct kvt__level, is_inexact. */
#define KVT__INEXACT "inexact-"

/* Split a key text into its space (the text without the hash, without digests) and its hash.
 * 0; -EINVAL, -ENAMETOOLONG with a sentence. */
int kvt__space_from_key(const char *key, struct kvt__space *space, struct kvt__hash *hash);

/* Write the text of a space for the objects of a level: with the name of the encoding in kvtier's
 * own tag.  0; -ENAMETOOLONG with a sentence. */
int kvt__level_text(const struct kvt__level *level, const struct kvt__space *space,
                    char out[KVT__TABLE_TEXT_MAX + 1]);

/* Write the text of a space as kvt__level_text(), in the spelling of the level's tier: the tier's
 * listing may replace '/'. */
int kvt__level_spell(const struct kvt__level *level, const struct kvt__space *space,
                     char out[KVT__TABLE_TEXT_MAX + 1]);

/* Fill in key, opaque and shape of req->object for the level.  0; -ENAMETOOLONG with a
 * sentence. */
int kvt__level_describe(const struct kvt__level *level, struct kvt__store_req *req);

/* Return the name in an index of a hash in the space with this digest.  Key text spells a hash
 * below 2^63 equally in both forms, so the form of the name is SIGNED. */
static inline struct kvt__name
kvt__name_from_hash(uint64_t digest, const struct kvt__hash *hash)
{
    struct kvt__name name = { digest, *hash };

    if (hash->form == KVT__HASH_UNSIGNED && !(hash->bits[0] >> 63))
        name.hash.form = KVT__HASH_SIGNED;
    return name;
}

/* Return the index of a level.  Another thread may replace the index at any time. */
static inline struct kvt__table *
kvt__level_index(const struct kvt__level *level)
{
    return atomic_load(&level->owner->index);
}

/* Return the bit of the level's storage in a set of storage. */
static inline uint32_t
kvt__level_bit(const struct kvt__level *level)
{
    return UINT32_C(1) << (level->owner - level->store->levels);
}

/* Return true if the names of the level's objects contain the encoding, so that LMCache never reads
 * the objects. */
static inline bool
kvt__level_is_own(const struct kvt__level *level)
{
    return level->serde != KVT__SERDE_NAIVE || level->is_inexact;
}

/* Return the name of a chunk in a level's index. */
static inline struct kvt__name
kvt__level_name(const struct kvt__level *level, const struct kvt__space *space,
                const struct kvt__hash *hash)
{
    return kvt__name_from_hash(space->digests[level - level->store->levels], hash);
}

/* Return the encoding in a key text, as kvt__level_text() writes the encoding. */
enum kvt__serde kvt__serde_of_key(const char *key);

/* --------------------------------------------------------------- chunk-file.c */

/* Write the description of an object to the results of an operation.  verified: the object has a
 * checksum, and the checksum matches. */
struct kvt_op;
void kvt__op_report(struct kvt_op *op, const struct kvt__found *found, bool verified);

/* ------------------------------------------------------------------- codec.c */

/* Open the gate that limits the threads in codecs.  0; -ENOMEM with a sentence. */
int kvt__gate_open(struct kvt__store *store, int64_t codec_threads);
void kvt__gate_close(struct kvt__codec_gate *gate);

/* Encode the chunk of a PUT into req->staging.  Blocks while other threads encode and decode.  0;
 * -ENOTSUP: the codec cannot make the chunk smaller; -ENOMEM, -ENOSPC with a sentence: no memory
 * for the encoded chunk is free. */
int kvt__level_encode(struct kvt__level *level, struct kvt__store_req *req);

/* Release the memory of kvt__level_encode(). */
void kvt__encoded_release(struct kvt__store_req *req);

/* Decode the n bytes at the start of the slot of a GET, which were verified, into the slot, and set
 * *crc to the CRC32C of the chunk.  Blocks while other threads encode and decode.  0; -ECANCELED:
 * the request is not wanted any more; -ENOENT with a sentence: another version of kvtier encoded
 * the chunk; -EBADMSG, -ENOMEM with a sentence. */
int kvt__level_decode(struct kvt__level *level, struct kvt__store_req *req, size_t n,
                      uint32_t *crc);

/* ------------------------------------------------------------------- choice.c */

/* Functions for the owner of a storage's levels.  Without remote_serde: auto they do nothing. */

/* Measure the storage and the codec, and choose.  The storage holds a test object meanwhile.
 * Blocks, usually less than a second.  Only the upkeep thread. */
void kvt__choice_calibrate(struct kvt__level *owner);

/* Choose again if the operations since the last call say enough.  Only the upkeep thread. */
void kvt__choice_revise(struct kvt__level *owner);

/* Return true if the next new chunk stays naive without an attempt of the codec. */
bool kvt__choice_is_naive(struct kvt__level *owner);

/* Measure a read or a write.  end: bytes of the object, 0 after a failure. */
void kvt__choice_begin(struct kvt__level *owner, enum kvt__table_pause kind);
void kvt__choice_end(struct kvt__level *owner, enum kvt__table_pause kind, uint64_t bytes);

/* Count the work of a codec: a decoded (kind KVT__PAUSE_READS) or encoded chunk. */
void kvt__choice_count_codec(struct kvt__level *owner, enum kvt__table_pause kind,
                             uint64_t decoded, uint64_t encoded, int64_t ns);

/* Write the choice and its reason. */
void kvt__choice_text(const struct kvt__table_rates *rates, char *out, size_t size);

/* ------------------------------------------------------------------- speed.c */

/* Measure a read of a chunk.  bytes: of the chunk before the encoding. */
void kvt__speed_begin(struct kvt__level *owner, uint64_t bytes);
void kvt__speed_end(struct kvt__level *owner, uint64_t bytes, bool is_read);

/* ------------------------------------------------------------------- circuit.c */

/* The circuit breaker of a level: after repeated failures, a pause of all reads or all writes. */

/* Return true if the level is paused after failures: no process of this host reads from the level
 * (or, by `kind`, writes to the level) now. */
bool kvt__level_is_paused(const struct kvt__level *level, enum kvt__table_pause kind);

/* Return 0; -EIO with a sentence: the level is paused.  Shared host memory is never paused. */
int kvt__circuit_check(const struct kvt__level *level, enum kvt__table_pause kind);

/* Count an operation of a level's tier: call begin before each operation, and end once after each
 * successful begin.  begin returns 0; -EIO with a sentence: the level is paused.  end: err is the
 * result of the operation, and kvt__why() still has the operation's sentence; -ECANCELED: the
 * tier got no request.  end pauses the level after 8 consecutive failures. */
int kvt__circuit_begin(struct kvt__level *level, enum kvt__table_pause kind);
void kvt__circuit_end(struct kvt__level *level, enum kvt__table_pause kind, int err);

/* ------------------------------------------------------------------- key.c */

/* Begin and end a level's part of a request by key, as kvt__level_prepare() and
 * kvt__level_complete().  For a PUT of a key, kvt__key_begin() only sets the slot of
 * req->tier_op. */
int kvt__key_begin(struct kvt__store_req *req, struct kvt__level *level);
int kvt__key_end(struct kvt__store_req *req, struct kvt__level *level, int err);

/* Release the memory of a request by key. */
void kvt__key_release(struct kvt__store_req *req);

/* Fail with -ENOENT and the reason why a request found no chunk. */
int kvt__key_fail_absent(const struct kvt__store_req *req);

/* ------------------------------------------------------------------- level.c */

/* Begin a level's part of a request.  0: the caller submits req->tier_op to the level's tier
 * and calls kvt__level_complete() at its end.  -ENOENT, -EEXIST: the level has no part in the
 * request; -errno with a sentence. */
int kvt__level_prepare(struct kvt__store_req *req, struct kvt__level *level);

/* End a level's part of a request.  err: the result of the tier's operation, with its sentence
 * in kvt__why(); req->tier_op.found describes the object.  Returns the level's result: 0;
 * KVT__LEVEL_AGAIN: the level's part has another operation and begins again; or -errno with a
 * sentence. */
#define KVT__LEVEL_AGAIN 1
int kvt__level_complete(struct kvt__store_req *req, struct kvt__level *level, int err);

/* Copy the verified payload of a GET from storage into shared host memory too, if the store has
 * shared host memory with room. */
void kvt__level_copy_to_shared(struct kvt__store_req *req);

/* If the level is shared host memory and holds the chunk of a GET: set req->slot to the chunk,
 * pinned in its place, and return true.  The caller releases the slot with
 * kvt__pool_release(). */
bool kvt__level_acquire_chunk(struct kvt__level *level, struct kvt__store_req *req);

/* Look up the entry of a request's name in the level's index: fill in req->index, has_entry and
 * seen, and index, entry and word of req->object for the tier of shared host memory. */
void kvt__level_look_up(struct kvt__level *level, struct kvt__store_req *req);

/* Return true if a request for the chunk `wanted` accepts the chunk `has`.  A store with lossy
 * chunks also accepts the exact chunk. */
static inline bool
kvt__store_accepts_id(const struct kvt__store *store, const struct kvt__id *wanted,
                      const struct kvt__id *has)
{
    struct kvt__id exact = *wanted;

    if (kvt__id_equal(wanted, has))
        return true;
    kvt__id_toggle_lossy(&exact);
    return store->traits.is_lossy && kvt__id_equal(&exact, has);
}

/* Return true if a request may use a foreign chunk, a chunk without identity.  Only the name
 * describes the content of a foreign chunk, and an LMCache on the same storage may replace the
 * chunk's file.  So a request uses a foreign chunk only if the name determines the chunk
 * completely. */
static inline bool
kvt__store_accepts_foreign(const struct kvt__store *store, const struct kvt__space *space,
                           bool needs_id)
{
    return !store->refuse_unverified && !needs_id && !space->opaque;
}

/* Return false if the entry describes a foreign chunk that the request may not use. */
static inline bool
kvt__store_accepts(const struct kvt__store *store, const struct kvt__space *space, bool needs_id,
                   const struct kvt__record *record)
{
    return !(record->flags & KVT__TABLE_FOREIGN) ||
           kvt__store_accepts_foreign(store, space, needs_id);
}

/* Return true if the tier has found an object with a time to live, and the request's entry has no
 * end: the index was lost, or the entry describes an older object. */
static inline bool
kvt__lacks_expiry(const struct kvt__store_req *req)
{
    return req->tier_op.found.expires && !(req->has_entry && req->seen.expires_ns);
}

/* Return true if a load of key accepts the chunk that an entry of the level's index describes.
 * level: a level number. */
bool kvt__store_matches(const struct kvt__store *store, int level,
                        const struct kvt__chunk_key *key, const struct kvt__record *record);

/* Return true if the life of an entry's chunk ends within KVT__STORE_LOAD_NS. */
bool kvt__store_ends_soon(const struct kvt__record *record);

/* As kvt__store_covers(), for a level other than KVT__LEVEL_MEMORY. */
bool kvt__level_covers(const struct kvt__level *level, enum kvt__where where,
                       const struct kvt__space *space);

/* Return true if the level keeps chunks with a time to live.  Other hosts do not know the time, and
 * serve a chunk in multi-host storage for ever. */
static inline bool
kvt__level_can_expire(const struct kvt__level *level)
{
    return !level->tier->multi_host;
}

/* Return true if a PUT without end must replace the object of an entry with an end: the object has
 * a mark, and such an object is never served without an end.  A later end needs no PUT, and memory
 * has no marks. */
static inline bool
kvt__level_must_rewrite(const struct kvt__level *level, const struct kvt__record *record,
                        int64_t expires_ns)
{
    return record->expires_ns && !expires_ns && !level->tier->in_memory;
}

/* Return true if PUTs of this process store the space's chunks in the level.  expires_ns: as in
 * struct kvt__store_req. */
static inline bool
kvt__level_may_put(const struct kvt__level *level, const struct kvt__space *space,
                   int64_t expires_ns)
{
    bool is_for_level = space->puts == KVT__PUTS_ALL ||
                        (space->puts == KVT__PUTS_HOST && level->is_host_only);

    return !level->no_put && level->owner == level && is_for_level &&
           (!expires_ns || kvt__level_can_expire(level));
}

/* Return true if a chunk in the level makes a PUT into the level's storage needless: the chunk is
 * exact, or has the encoding of new chunks. */
static inline bool
kvt__level_replaces_put(const struct kvt__level *level)
{
    return level->owner == level || !kvt__serde_is_lossy(level->serde);
}

/* Return true if PUTs of this process store the space's chunks in any storage.  expires_ns: as in
 * struct kvt__store_req. */
bool kvt__store_puts_in_storage(const struct kvt__store *store, const struct kvt__space *space,
                                int64_t expires_ns);

/* Return true if the level's tier need not compute the CRC32C of the payload of a GET. */
static inline bool
kvt__level_defers_crc(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return level->serde == KVT__SERDE_NAIVE &&
           (req->consume || (req->is_prefetch && !level->tier->multi_host));
}

/* Compare the payload of a GET with a CRC32C: req->consume computes the CRC32C in its copy, else
 * this function computes the CRC32C.  0; -EBADMSG with a sentence. */
static inline int
kvt__store_check_crc(struct kvt__store_req *req, uint32_t crc)
{
    int err = req->consume ? req->consume(req, crc) : -EAGAIN;

    if (err == -EAGAIN)
        err = kvt__crc32c_cold(0, req->slot.payload, req->slot.bytes) == crc ? 0 : -EBADMSG;
    return err ? kvt__fail(EBADMSG, "the checksum is wrong.") : 0;
}

/* ------------------------------------------------------------------- memory.c */

/* Close the indexes and release all slots.  NULL is allowed. */
void kvt__memory_close(struct kvt__host_memory *memory);

/* Return true if GETs may read the space's chunks in host memory: retrieve_locations includes host
 * memory, and this process sees the memory of the space's rank. */
bool kvt__memory_covers(const struct kvt__store *store, const struct kvt__space *space);

/* Return the index of the host memory of the space's rank, also if retrieve_locations leaves out
 * host memory.  NULL: this process does not see the memory, or the memory's process has ended. */
struct kvt__table *kvt__memory_index(const struct kvt__store *store,
                                     const struct kvt__space *space);

/* Return the name of a chunk in the index of host memory: the identity's first 64 bits are the
 * hash. */
static inline struct kvt__name
kvt__memory_name(const struct kvt__id *id)
{
    return (struct kvt__name){ .hash.bits = { kvt__get_le64(id->b) } };
}

/* Return true if host memory keeps all chunks, not only prefetched chunks. */
bool kvt__memory_keeps(const struct kvt__store *store);

/* Return true if host memory takes PUTs. */
bool kvt__memory_may_put(const struct kvt__store *store);

/* Enter the chunk of a request into host memory with a share of the request's slot.  verified: the
 * chunk has a checksum, and the entry gets the identity.  0; -EEXIST: host memory holds the chunk,
 * or does not keep chunks of this request; -ENODEV: the store has no host memory; -ENOSPC, -EIO
 * with a sentence. */
int kvt__memory_keep(struct kvt__store *store, const struct kvt__store_req *req,
                     bool verified);

/* Copy a chunk from host memory into the slot of a GET: the chunk came to host memory after the
 * caller's kvt__store_acquire_chunk().  0; -ENOENT: host memory does not hold the chunk, or the
 * chunk is corrupt and was removed. */
int kvt__memory_get(struct kvt__store *store, struct kvt__store_req *req);

/* As kvt__store_acquire_chunk(), only for the host memory of this process. */
bool kvt__memory_acquire_chunk(struct kvt__store *store, struct kvt__store_req *req);

/* Verify the payload of a request with is_in_place.  0; -EBADMSG with a sentence: the chunk was
 * corrupt and is removed from host memory, and the request has no slot. */
int kvt__memory_verify(struct kvt__store *store, struct kvt__store_req *req);

/* Release the expired chunks of this process, leased or not. */
void kvt__memory_expire(struct kvt__store *store);

/* ------------------------------------------------------------------- renew.c */

/* Open the level's index in the tier's directory, or a private index if the tier has no directory.
 * Blocks.  0; -errno with a sentence. */
int kvt__level_open_index(struct kvt__level *level, const struct kvt__table_params *params);

/* If another process has replaced or deleted the index, open the index again on a thread of the
 * executor.  If no shared index can be opened, retry after a minute.  Does not block. */
void kvt__level_renew_index(struct kvt__level *level);

/* Close the index and all replaced indexes.  No other thread uses the level. */
void kvt__level_close_index(struct kvt__level *level);

/* ------------------------------------------------------------------- evict.c */

/* kvt__level_claim() and kvt__level_delete_corrupt() accept every level; the other functions
 * require the owner of the storage's levels. */

/* Evict an entry.  Return false if the entry has changed, has a lease, or cannot be evicted. */
typedef bool (*kvt__evict_fn)(void *ctx, const struct kvt__record *record);

/* Evict entries of an index in the policy's order until `bytes` are free, or a search finds no
 * victim.  filter: as for kvt__table_victims(); ctx: for filter and evict_one.  An entry of 0 bytes
 * counts as 1 byte, because the eviction frees an entry of the index.  Return the evicted bytes. */
uint64_t kvt__evict_victims(struct kvt__table *index, kvt__table_filter_fn filter,
                            kvt__evict_fn evict_one, void *ctx, uint64_t bytes);

static inline void
kvt__count_evicted(const struct kvt__store *store, uint64_t bytes)
{
    kvt__count(store->counters, KVT__N_evicted_chunks, 1);
    kvt__count(store->counters, KVT__N_evicted_bytes, bytes);
}

/* Claim the name of a request's chunk for an object; record: describes the object, as for
 * kvt__table_claim().  Evict entries in the policy's order if the index or the limit has no room.
 * The caller publishes or aborts *claim.  Blocks.  0; -EEXIST: the index has the chunk, or another
 * thread or process is storing or evicting the chunk; -ENOSPC, -ESTALE, -ENOTSUP, ... with a
 * sentence. */
int kvt__level_claim(struct kvt__level *level, const struct kvt__store_req *req,
                     const struct kvt__record *record, struct kvt__claim *claim);

/* Enter an existing object into an index of the level; evict as kvt__level_claim().  index: the
 * level's index, or a replaced index of the level.  Blocks.  0; an error of
 * kvt__table_enter(). */
int kvt__level_enter(struct kvt__level *level, struct kvt__table *index,
                     const struct kvt__name *name, const struct kvt__record *record,
                     const char *text);

/* Evict entries in the policy's order until `bytes` are free, or a search finds no victim.  object:
 * evict only in the directory that stores this object; NULL: evict anywhere.  Blocks.  Return the
 * evicted bytes. */
uint64_t kvt__level_evict(struct kvt__level *level, const struct kvt__object *object,
                          uint64_t bytes);

/* Before a PUT of `bytes`, if no limit is configured: evict if less than a tenth of the object's
 * file system would stay free.  Blocks.  0; -ENOSPC with a sentence: no victim was found. */
int kvt__level_keep_free(struct kvt__level *level, const struct kvt__object *object,
                         uint64_t bytes);

/* After a PUT failed because the storage is full: evict `bytes` in the object's directory for the
 * next PUT.  Keeps the sentence in kvt__why().  No effect if this host must not delete objects.
 * Blocks. */
void kvt__level_make_space(struct kvt__level *level, const struct kvt__object *object,
                           uint64_t bytes);

/* Delete a corrupt object and its entry `seen` of an index, leased or not; with keep_object, only
 * the entry.  An entry that has changed since the caller read `seen` stays, with its object.
 * Blocks.  Return false if the object cannot be deleted. */
bool kvt__level_delete_corrupt(struct kvt__level *level, struct kvt__table *index,
                               const struct kvt__record *seen, const struct kvt__object *object,
                               bool keep_object);

/* Delete each expired chunk of the level with its entry, leased or not.  In storage with a private
 * index another process may know a later end, and in multi-host storage such objects are copies;
 * these chunks stay.  Blocks. */
void kvt__level_expire(struct kvt__level *level);

static inline void
kvt__count_expired(const struct kvt__store *store)
{
    kvt__count(store->counters, KVT__N_expired_chunks, 1);
}

/* ------------------------------------------------------------------- list.c */

/* If no process has listed the level: enter the chunks of the last snapshot, and, if the level has
 * a limit, the names and sizes that the tier lists.  Blocks, for minutes if the storage has many
 * objects.  Logs failures; after a failure a later call lists again. */
void kvt__level_list(struct kvt__level *level);

#endif
