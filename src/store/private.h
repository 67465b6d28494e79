/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's own parts. */
#ifndef KVT_STORE_PRIVATE_H
#define KVT_STORE_PRIVATE_H

#include "base/crc32c.h"
#include "conf/conf.h"
#include "store/store.h"
#include "tier/cpu/cpu.h"

#define KVT__MAX_ENTRIES (UINT64_C(1) << 22) /* a file of 256 MiB */

/* An index that was replaced by another one. */
struct kvt__retired {
    struct kvt__index *index;
    struct kvt__retired *next;
};

/* One tier and its index. */
struct kvt__level {
    struct kvt__tier *tier;
    _Atomic(struct kvt__index *) index; /* chunks stored by this process; NULL: the
                               * process has no pool */
    char *url;
    char *location; /* LMCache's name for it; NULL: host memory */
    /* Host memory has an index for each rank; those not looked up have none. */
    bool in_memory;
    bool passing; /* keeps only what was read ahead */
    struct kvt__rank_memory *ranks;
    uint32_t n_ranks;
    bool of_host; /* other hosts cannot read it */
    bool keeps_free; /* no limit is configured: a part of the file system stays free */
    bool no_get; /* retrieve_locations leaves it out */
    bool no_put; /* store_location is another */

    /* renew.c: the index of storage.  A replaced handle is closed with the store. */
    struct kvt__index_params index_params;
    struct kvt__retired *retired;
    atomic_bool reads_only; /* the index is not shared, so no limit could be held */
    atomic_bool is_renewing;
    struct kvt__job renewal;
    struct kvt__store *store; /* for the renewal */

    /* circuit.c: operations under way, when the last one was answered or the first of
     * them begun, and how many failed in a row. */
    atomic_uint under_way[2], failures[2];
    _Atomic int64_t answered_ns[2];

    _Atomic int64_t tags_evicted_ns; /* kvt__level_evict_tags() */
};

struct kvt__store {
    struct kvt__exec *exec;
    struct kvt__counters *counters;
    bool refuse_unverified;
    char *store_location; /* as configured, or NULL */
    atomic_bool stopping; /* a scan gives up */
    atomic_bool scans; /* this process scans storage for files without an entry */
    struct kvt__pool *pool; /* of the level in memory */
    size_t n_levels;
    struct kvt__level levels[KVT__MAX_LEVELS];
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

/* Whether chunks have wide hashes. */
static inline bool
kvt__wide_hashes(const struct kvt_config *config)
{
    return kvt__hash_form(kvt__hash_kind_named(config->pre_caching_hash_algorithm,
                                               config->lmcache_release)) ==
           KVT__HASH_WIDE;
}

/* Whether nobody on this host reads the level now, or writes it: it failed. */
bool kvt__level_is_paused(const struct kvt__level *level, enum kvt__index_pause what);

/* 0, or -EIO with a sentence: it is paused. */
int kvt__level_refuses(const struct kvt__level *level, enum kvt__index_pause what);

/* Around each operation on a tier.  As kvt__level_refuses(); then there is nothing to
 * end.  err: the operation's outcome, its sentence not yet overwritten. */
int kvt__level_begin(struct kvt__level *level, enum kvt__index_pause what);
void kvt__level_end(struct kvt__store *store, struct kvt__level *level,
                    enum kvt__index_pause what, int err);

/* Put the slot of req into one level.  0; -EEXIST it is there; -errno with a
 * sentence.  verified: its checksum was checked, or made. */
int kvt__level_put(struct kvt__store *store, struct kvt__level *level,
                   const struct kvt__object *object, const struct kvt__store_req *req,
                   bool verified);

/* What a request has to ask of a level.  0: object, which is as the key tells, is now as
 * it was stored, its key in stored_key if that is another; the tier is to be asked, then
 * kvt__level_answer() is owed.  -ENOENT, -EEXIST: it need not; -errno with a sentence. */
int kvt__level_ask(struct kvt__store_req *req, struct kvt__level *level,
                   struct kvt__object *object, char *stored_key, size_t size);

/* Whether a chunk that carries no identity, so that its name alone tells what it is, will
 * do. */
bool kvt__store_takes_foreign(const struct kvt__store *store,
                              const struct kvt__space *space, bool own_only);

/* err: the tier's answer, its sentence not yet overwritten; what it found is in
 * req->tier_op.found.  What that means for the request: 0 or -errno with a sentence. */
int kvt__level_answer(struct kvt__store_req *req, struct kvt__level *level,
                      const struct kvt__object *object, int err);

/* Return true if the level is storage that may be read now, and whose chunks of a space are
 * promised only after a read into host memory. */
bool kvt__level_is_read_first(const struct kvt__store *store, size_t level,
                              const struct kvt__space *space);

/* Whether this process puts the space's chunks there. */
static inline bool
kvt__level_may_put(const struct kvt__level *level, const struct kvt__space *space)
{
    return !level->no_put && (level->in_memory || space->puts == KVT__PUTS_ALL ||
                              (space->puts == KVT__PUTS_HOST && level->of_host));
}

/* Whether it puts them anywhere but in host memory. */
bool kvt__store_puts_in_storage(const struct kvt__store *store,
                                const struct kvt__space *space);

/* The same, or -EINVAL with a sentence that says why nothing is put. */
int kvt__store_check_puts(const struct kvt__store *store, const struct kvt__space *space);

/* The index that tells of a space's chunks; NULL: none here does. */
struct kvt__index *kvt__level_index(const struct kvt__level *level,
                                    const struct kvt__space *space);

/* Keep the slot of req in host memory.  As kvt__level_put(); -EEXIST too if it is not
 * to stay there; -ENODEV: there is no such level. */
int kvt__memory_keep(struct kvt__store *store, const struct kvt__store_req *req,
                     bool verified);

/* Verify the payload of a borrowed request.  0; -EBADMSG with a sentence: the chunk has left
 * host memory, and the request has no slot any more. */
int kvt__memory_verify(struct kvt__store *store, struct kvt__store_req *req);

/* Return true if the level's tier need not compute the CRC32C of the payload of a GET. */
static inline bool
kvt__level_sums_later(const struct kvt__level *level, const struct kvt__store_req *req)
{
    return req->consume || (req->early && !level->in_memory && !level->tier->shared);
}

/* Compare the payload with a CRC32C, in the copy of the request's owner if there is one.
 * 0 or -EBADMSG with a sentence. */
int kvt__level_check_crc(struct kvt__store_req *req, uint32_t crc);

void kvt__memory_close(struct kvt__level *level);

/* Open the index of storage.  0 or -errno with a sentence. */
int kvt__level_open_index(struct kvt__level *level, const struct kvt__index_params *params);

/* If another process has replaced or deleted the index, open the index again on a thread
 * of the executor. */
void kvt__level_look_after_index(struct kvt__store *store, struct kvt__level *level);

void kvt__level_close_index(struct kvt__level *level);

/* Enter the files without an entry. */
void kvt__level_scan(struct kvt__store *store, struct kvt__level *level);

/* The text of a space with a request's tags (NULL: none).  0 or -ENAMETOOLONG. */
int kvt__space_text(const struct kvt__space *space, const char *tags,
                    char out[KVT__INDEX_SPACE_TEXT_MAX + 1]);

/* Write the key text of a hash and a space's text.  0 or -ENAMETOOLONG. */
int kvt__space_key(const char *space_text, const struct kvt__hash *hash, char *out,
                   size_t size);

/* What the level's tier calls a key text, or a space's, when it lists it. */
void kvt__level_listed_key(const struct kvt__level *level, const char *key,
                           char out[KVT__KEY_TEXT_MAX + 1]);

/* Say which of LMCache's back ends the level is: whether it may be read and written. */
void kvt__level_set_location(struct kvt__level *level, const struct kvt_config *config,
                             const char *location);

/* Return true if evictions find the level's objects by the names in the level's index. */
static inline bool
kvt__level_needs_names(const struct kvt__level *level)
{
    return !level->in_memory && !level->tier->unlisted;
}

/* Take an entry's bytes from a level's budget and claim a place, evicting entries in the
 * policy's order if there is no room or no place.  text: as for
 * kvt__index_claim(), in the tier's spelling.  Blocks.  0; -EEXIST: the chunk is stored;
 * -ENFILE: the index has no space for the text; -ENOSPC with a sentence; ... */
int kvt__level_claim(struct kvt__store *store, struct kvt__level *level,
                     const struct kvt__index_entry *entry, const char *text,
                     struct kvt__index_claim *claim);

/* Evict the chunks of a 32nd of the spaces for texts with tags, chosen at random, so that the
 * spaces become free for new tags.  At most once a second.  Walks the index. */
void kvt__level_evict_tags(struct kvt__store *store, struct kvt__level *level);

/* Evict the least recently used entries until `bytes` are free, or no more entries are
 * found at once.  object: evict only in the directory that stores this object; NULL: evict
 * anywhere.  Return the evicted bytes. */
uint64_t kvt__level_evict(struct kvt__store *store, struct kvt__level *level,
                          const struct kvt__object *object, uint64_t bytes);

/* Before a put of so many bytes: evict if less than a tenth of the object's file system
 * would stay free, where no limit is configured.  0; -ENOSPC with a sentence: there is
 * nothing to evict.  Blocks. */
int kvt__level_keep_free(struct kvt__store *store, struct kvt__level *level,
                         const struct kvt__object *object, uint64_t bytes);

/* After full storage refused a put: evict as many bytes in the object's directory for the
 * next put.  Does nothing if this host must not delete files.  Blocks. */
void kvt__level_make_space(struct kvt__store *store, struct kvt__level *level,
                           const struct kvt__object *object, uint64_t bytes);

/* CRC32C of what a tier's get() left in the slot. */
static inline uint32_t
kvt__payload_crc(const struct kvt__slot *slot, const struct kvt__found *found)
{
    return found->has_read_crc ? found->read_crc
                               : kvt__crc32c_cold(0, slot->payload, slot->bytes);
}

/* Remove the entry of id.  object: also remove the object from the tier; NULL: keep the
 * object.  Return false if the removal failed. */
bool kvt__level_drop(struct kvt__level *level, const struct kvt__id *id,
                     const struct kvt__object *object);

/* Remove the entry `seen`; an entry stored anew since the caller read `seen` stays. */
bool kvt__level_drop_seen(struct kvt__level *level, const struct kvt__index_entry *seen,
                          bool remove_file);

/* The identity under which a chunk stands whose own is not read yet, and that of
 * a chunk that was stored by its key. */
void kvt__name_id(const char *key, struct kvt__id *out);
void kvt__key_id(const char *key, struct kvt__id *out);

/* The space of a key text: the text without its hash, and the hash.  0 or
 * -EINVAL. */
int kvt__space_of(const char *key, struct kvt__space *space, struct kvt__hash *hash);

/* Forget the entry of that kind for key, if there is one: its own identity takes
 * its place. */
void kvt__level_forget_name(struct kvt__level *level, const char *key);

#endif
