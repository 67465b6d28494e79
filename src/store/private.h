/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's own parts. */
#ifndef KVT_STORE_PRIVATE_H
#define KVT_STORE_PRIVATE_H

#include <errno.h>
#include <pthread.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "conf/conf.h"
#include "store/store.h"

struct kvt__host_memory;

/* An index that was replaced by another one. */
struct kvt__retired {
    struct kvt__table *index;
    struct kvt__retired *next;
};

/* One storage and its index. */
struct kvt__level {
    struct kvt__store *store;
    struct kvt__tier *tier;
    char *url;
    char *location;  /* LMCache's name of the storage */
    bool of_host;    /* other hosts cannot read it */
    bool keeps_free; /* no limit is configured: a part of the file system stays free */
    bool no_get;     /* retrieve_locations leaves it out */
    bool no_put;     /* store_location is another */

    /* renew.c: the index.  A replaced handle is closed with the store. */
    _Atomic(struct kvt__table *) index;
    struct kvt__table_params index_params;
    int dirfd; /* the tier's directory of the index; -1: the index is private */
    struct kvt__retired *retired;
    atomic_bool reads_only; /* the index is not shared, so no limit could be held */
    atomic_bool is_renewing;
    _Atomic int64_t renew_from_ns; /* after a renewal that failed: no renewal before */
    struct kvt__job renewal;

    /* circuit.c: operations under way, when the last one was answered or the first of
     * them begun, and how many failed in a row. */
    atomic_uint under_way[2], failures[2];
    _Atomic int64_t answered_ns[2];

    _Atomic int64_t tags_evicted_ns; /* kvt__level_evict_tags() */
    _Atomic int64_t list_from_ns;    /* kvt__level_list(): no listing before */
};

struct kvt__store {
    struct kvt__exec *exec;
    struct kvt__counters *counters;
    bool refuse_unverified;
    char *store_location; /* as configured, or NULL */
    atomic_bool stopping; /* a listing gives up */
    struct kvt__host_memory *memory; /* NULL: chunks do not stay in host memory */
    struct kvt__store_traits traits;
    size_t n_levels;
    struct kvt__level levels[KVT__MAX_LEVELS];

    /* list.c: the thread of kvt__store_keep() */
    pthread_t upkeep;
    bool is_kept;
    pthread_mutex_t upkeep_lock; /* held while `stopping` is set */
    pthread_cond_t upkeep_stop;
};

/* One storage that a configuration names. */
struct kvt__storage {
    const char *name;     /* the setting, for messages */
    char url[4096 + 32];
    char location[256];   /* LMCache's name for it */
    uint64_t limit_bytes; /* as configured: 0: not */
    bool of_each;         /* that limit is each worker's */
    bool of_host;         /* other hosts cannot read it, unless the tier says otherwise */
};

/* Tell them one by one, until fn returns what is not 0.  That, or -errno with a
 * sentence. */
typedef int (*kvt__storage_fn)(void *ctx, const struct kvt__storage *storage);
int kvt__each_storage(const struct kvt_config *config, kvt__storage_fn fn, void *ctx);

/* Set which of LMCache's back ends `location` is: return in *no_get and *no_put if the
 * configuration leaves the back end out. */
void kvt__use_location(const struct kvt_config *config, const char *location,
                       bool *no_get, bool *no_put);

/* ------------------------------------------------------------------- name.c */

/* The space of a key text: the text without its hash, and the hash; without digests.  0 or
 * -EINVAL. */
int kvt__space_of(const char *key, struct kvt__space *space, struct kvt__hash *hash);

/* Copy a text and change it to the spelling of the level's tier: the text of a key when the
 * tier lists the key. */
void kvt__level_spell(const struct kvt__level *level, const char *text,
                      char out[KVT__KEY_TEXT_MAX + 1]);

/* The name in an index of a hash in a space with this digest.  Key text has one spelling for
 * both forms of a hash below 2^63, so the form of the name is SIGNED. */
static inline struct kvt__name
kvt__name_of(uint64_t digest, const struct kvt__hash *hash)
{
    struct kvt__name name = { digest, *hash };

    if (hash->form == KVT__HASH_UNSIGNED && !(hash->bits[0] >> 63))
        name.hash.form = KVT__HASH_SIGNED;
    return name;
}

/* The name of a chunk in a level's index. */
static inline struct kvt__name
kvt__level_name(const struct kvt__level *level, const struct kvt__space *space,
                const struct kvt__hash *hash)
{
    return kvt__name_of(space->digests[level - level->store->levels], hash);
}

/* ------------------------------------------------------------------- circuit.c */

/* Whether no process on this host reads the level now, or writes it: it failed. */
bool kvt__level_is_paused(const struct kvt__level *level, enum kvt__table_pause what);

/* Around each operation on a tier.  0, or -EIO with a sentence: the level is paused, and there
 * is nothing to end.  err: the operation's outcome, its sentence not yet overwritten;
 * -ECANCELED: the tier was not asked. */
int kvt__level_begin(struct kvt__level *level, enum kvt__table_pause what);
void kvt__level_end(struct kvt__level *level, enum kvt__table_pause what, int err);

/* ------------------------------------------------------------------- key.c */

/* A level's part of a request by key, as kvt__level_ask() and kvt__level_answer().  For a PUT
 * of a key, kvt__key_begin() only sets the slot of req->tier_op. */
int kvt__key_begin(struct kvt__store_req *req, struct kvt__level *level);
int kvt__key_end(struct kvt__store_req *req, struct kvt__level *level, int err);

/* Release the memory of a request by key. */
void kvt__key_release(struct kvt__store_req *req);

/* ------------------------------------------------------------------- level.c */

/* Begin a level's part of a request.  0: the caller submits req->tier_op to the level's tier
 * and calls kvt__level_answer() at its end.  -ENOENT, -EEXIST: the level has no part in the
 * request; -errno with a sentence. */
int kvt__level_ask(struct kvt__store_req *req, struct kvt__level *level);

/* End a level's part of a request.  err: the result of the tier's operation, with its sentence
 * in kvt__why(); req->tier_op.found describes the object.  Returns the level's result: 0;
 * KVT__LEVEL_AGAIN: the level's part has another operation and begins again; or -errno with a
 * sentence. */
#define KVT__LEVEL_AGAIN 1
int kvt__level_answer(struct kvt__store_req *req, struct kvt__level *level, int err);

/* Copy the verified payload of a GET from storage into shared host memory too, if there is
 * such memory and room. */
void kvt__level_share(struct kvt__store_req *req);

/* As kvt__memory_borrow(), of shared host memory. */
bool kvt__level_borrow(struct kvt__level *level, struct kvt__store_req *req);

/* Look up the entry of a request's name in the level's index: fill in index, was_seen and seen,
 * and the entry of the object, which the tier of shared host memory needs. */
void kvt__level_look_up(struct kvt__level *level, struct kvt__store_req *req);

/* Return true if a request may use a chunk without identity, of which only the name tells
 * the content.  An LMCache beside kvtier may replace a chunk's file.  Files of LMCache are
 * served if the file name determines the chunk completely. */
static inline bool
kvt__store_takes_foreign(const struct kvt__store *store, const struct kvt__space *space,
                         bool own_only)
{
    return !store->refuse_unverified && !own_only && !space->opaque;
}

/* Return true unless the entry is of a chunk without identity that a request may not use. */
static inline bool
kvt__store_takes(const struct kvt__store *store, const struct kvt__space *space, bool own_only,
                 const struct kvt__record *record)
{
    return !(record->flags & KVT__TABLE_FOREIGN) ||
           kvt__store_takes_foreign(store, space, own_only);
}

/* Return true if a load takes the chunk that an entry of the level's index describes. */
bool kvt__store_matches(const struct kvt__store *store, int level,
                        const struct kvt__chunk_key *key, const struct kvt__record *record);

/* As kvt__store_covers(). */
bool kvt__level_covers(const struct kvt__level *level, enum kvt__where where,
                       const struct kvt__space *space);

/* Return true if PUTs of this process store the space's chunks in the level. */
static inline bool
kvt__level_may_put(const struct kvt__level *level, const struct kvt__space *space)
{
    return !level->no_put && (space->puts == KVT__PUTS_ALL ||
                              (space->puts == KVT__PUTS_HOST && level->of_host));
}

/* Return true if PUTs of this process store the space's chunks in any storage. */
bool kvt__store_puts_in_storage(const struct kvt__store *store,
                                const struct kvt__space *space);

/* Return true if the level's tier need not compute the CRC32C of the payload of a GET. */
static inline bool
kvt__level_sums_later(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return req->consume || (req->early && !level->tier->multi_host);
}

/* Compare the payload with a CRC32C, in the copy of the request's owner if there is one.
 * 0 or -EBADMSG with a sentence. */
static inline int
kvt__store_check_crc(struct kvt__store_req *req, uint32_t crc)
{
    int err = req->consume ? req->consume(req, crc) : -EAGAIN;

    if (err == -EAGAIN)
        err = kvt__crc32c_cold(0, req->slot.payload, req->slot.bytes) == crc ? 0 : -EBADMSG;
    return err ? kvt__fail(EBADMSG, "the checksum is wrong.") : 0;
}

/* ------------------------------------------------------------------- memory.c */

void kvt__memory_close(struct kvt__host_memory *memory);

/* Return true if chunks of a space that lie in host memory may be read there: this process
 * knows of the memory of the space's rank. */
bool kvt__memory_covers(const struct kvt__store *store, const struct kvt__space *space);

/* Return the index of the memory of a space's rank, whatever retrieve_locations says; NULL: not
 * known to this process, or the process with the memory has ended. */
struct kvt__table *kvt__memory_index(const struct kvt__store *store,
                                     const struct kvt__space *space);

/* The name of a chunk in the index of host memory: the identity's first 64 bits stand for the
 * hash. */
static inline struct kvt__name
kvt__memory_name(const struct kvt__id *id)
{
    return (struct kvt__name){ .hash.bits = { kvt__get_le64(id->b) } };
}

/* Return true if chunks stay there although no lookup has read them ahead. */
bool kvt__memory_keeps(const struct kvt__store *store);

/* Return true if PUTs keep chunks there. */
bool kvt__memory_may_put(const struct kvt__store *store);

/* Keep the slot of a request in host memory.  verified: the checksum was checked, or made.
 * 0; -EEXIST: the chunk is there, or is not to stay there; -ENODEV: there is no such memory;
 * -ENOSPC ... with a sentence. */
int kvt__memory_keep(struct kvt__store *store, const struct kvt__store_req *req,
                     bool verified);

/* Copy a chunk that came to host memory after the request of a GET was made into the
 * request's slot.  0; -ENOENT: host memory does not have the chunk. */
int kvt__memory_get(struct kvt__store *store, struct kvt__store_req *req);

/* As kvt__store_borrow(), of the host memory of this process. */
bool kvt__memory_borrow(struct kvt__store *store, struct kvt__store_req *req);

/* Verify the payload of a borrowed request.  0; -EBADMSG with a sentence: the chunk has left
 * host memory, and the request has no slot any more. */
int kvt__memory_verify(struct kvt__store *store, struct kvt__store_req *req);

/* ------------------------------------------------------------------- renew.c */

/* Open the index of storage in the tier's directory; without a directory a private index.  0 or
 * -errno with a sentence. */
int kvt__level_open_index(struct kvt__level *level, const struct kvt__table_params *params);

/* If another process has replaced or deleted the index, open the index again on a thread
 * of the executor. */
void kvt__level_look_after_index(struct kvt__level *level);

void kvt__level_close_index(struct kvt__level *level);

/* ------------------------------------------------------------------- evict.c */

/* Evict an entry.  False: the entry has changed, has a lease, or cannot be evicted. */
typedef bool (*kvt__evict_fn)(void *ctx, const struct kvt__record *record);

/* Evict entries of an index in the policy's order until `bytes` are free, or no more entries
 * are found at once.  suits: as for kvt__table_victims().  An entry of 0 bytes counts as 1
 * byte: a place in the index.  Return the evicted bytes. */
uint64_t kvt__evict_victims(struct kvt__table *index, kvt__table_suits_fn suits,
                            kvt__evict_fn evicts, void *ctx, uint64_t bytes);

static inline void
kvt__count_evicted(const struct kvt__store *store, uint64_t bytes)
{
    kvt__count(store->counters, KVT__N_evicted_chunks, 1);
    kvt__count(store->counters, KVT__N_evicted_bytes, bytes);
}

/* Claim the name of a request's chunk for an object, evicting entries in the policy's order if
 * there is no room.  Blocks.  0; -EEXIST: the chunk is stored, or is being stored; -ENOSPC ...
 * with a sentence. */
int kvt__level_claim(struct kvt__level *level, const struct kvt__store_req *req,
                     const struct kvt__record *record, struct kvt__claim *claim);

/* Enter an object that exists, evicting as kvt__level_claim().  index: the level's, or an index
 * that the caller fills and that may be replaced by now.  0; an error of
 * kvt__table_enter(). */
int kvt__level_enter(struct kvt__level *level, struct kvt__table *index,
                     const struct kvt__name *name, const struct kvt__record *record,
                     const char *text);

/* Evict entries in the policy's order until `bytes` are free, or no more entries are
 * found at once.  object: evict only in the directory that stores this object; NULL: evict
 * anywhere.  Return the evicted bytes. */
uint64_t kvt__level_evict(struct kvt__level *level, const struct kvt__object *object,
                          uint64_t bytes);

/* Before a put of so many bytes: evict if less than a tenth of the object's file system
 * would stay free, where no limit is configured.  0; -ENOSPC with a sentence: there is
 * nothing to evict.  Blocks. */
int kvt__level_keep_free(struct kvt__level *level, const struct kvt__object *object,
                         uint64_t bytes);

/* After full storage refused a put: evict as many bytes in the object's directory for the
 * next put.  Keeps the sentence of the refusal.  Does nothing if this host must not delete
 * objects.  Blocks. */
void kvt__level_make_space(struct kvt__level *level, const struct kvt__object *object,
                           uint64_t bytes);

/* Delete a damaged object and its entry `seen` of an index; keep_object: only the entry.  An
 * entry that has changed since the caller read `seen` stays, with its object.  Return false if the
 * object cannot be deleted. */
bool kvt__level_drop(struct kvt__level *level, struct kvt__table *index,
                     const struct kvt__record *seen, const struct kvt__object *object,
                     bool keep_object);

/* ------------------------------------------------------------------- list.c */

/* Enter the chunks of a level that no process has listed yet: of the last snapshot, and the
 * chunks that the tier lists, by name and size, if a limit needs them.  Blocks for long. */
void kvt__level_list(struct kvt__level *level);

#endif
