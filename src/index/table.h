/* SPDX-License-Identifier: Apache-2.0
 *
 * The handle, and what the files of this room share. */
#ifndef KVT_INDEX_TABLE_H
#define KVT_INDEX_TABLE_H

#include <pthread.h>

#include "base/fork.h"
#include "index/layout.h"

struct kvt__index {
    struct ix_map *map;
    uint64_t n_entries;
    struct ix_hash_rest *rests; /* of n_entries; NULL: wide hashes have no room */
    uint64_t group_mask;
    uint64_t limit_bytes;
    enum kvt__policy policy;
    int64_t search_from_ns; /* earliest next search for unused spaces; under the lock */
    int lock_fd;           /* -1: a table of this process alone */
    int owner;             /* number of the owner record, -1: a reader */
    unsigned generation;   /* of the process, see base/fork.h */
    uint64_t n_claims;     /* claims and evictions that are not ended */
    pthread_mutex_t mutex; /* lock_fd's byte 4096 is the handle's, not a
                              thread's */
};

/* How long a call waits for the lock of a process that makes or recounts the table. */
#define IX_LOCK_WAIT_NS (INT64_C(5) * 1000000000)

/* How long an open waits: after a reboot the holder reads the whole file from a disk that may
 * be busy. */
#define IX_OPEN_WAIT_NS (INT64_C(60) * 1000000000)

/* ----------------------------------------------------------------- policy.c */

/* The entry with the smallest key is evicted first. */
uint64_t kvt__ix_policy_key(enum kvt__policy policy, uint64_t recency);

/* It was used now. */
void kvt__ix_used(const struct kvt__index *ix, struct ix_entry *e);

/* ------------------------------------------------------------------- lock.c */

/* Same process as at open, and the file was not replaced. */
static inline bool
ix_usable(const struct kvt__index *ix)
{
    return kvt__fork_generation_now() == ix->generation
           && IX_LOAD(&ix->map->header.state) == IX_IN_USE;
}

/* Open the lock file.  A descriptor or -errno. */
int kvt__ix_lock_open(int dirfd);

/* Get or set the id of the lock file's index; the creator of an index sets the id under the
 * lock.  0 or -errno. */
int kvt__ix_lock_get_id(int lock_fd, uint64_t id[2]);
int kvt__ix_lock_set_id(int lock_fd, const uint64_t id[2]);

/* The lock of those that make, replace, recount: 0, or -ETIMEDOUT. */
int kvt__ix_lock(struct kvt__index *ix, int64_t wait_ns);
void kvt__ix_unlock(struct kvt__index *ix);

/* Take an owner's byte for as long as lock_fd is open. */
bool kvt__ix_lock_owner(struct kvt__index *ix, unsigned owner);
void kvt__ix_unlock_owner(struct kvt__index *ix, unsigned owner);

/* Whether an owner lives.  A system call unless it is the handle's own. */
bool kvt__ix_owner_lives(const struct kvt__index *ix, unsigned owner);

/* Owners that live, as bits. */
uint64_t kvt__ix_live_owners(const struct kvt__index *ix);

/* ------------------------------------------------------------------- file.c */

/* Map the directory's file, or a new one (*made).  0 or -errno.  Locked. */
int kvt__ix_map_file(struct kvt__index *ix, const struct kvt__index_params *params,
                     bool *made);
int kvt__ix_map_private(struct kvt__index *ix, const struct kvt__index_params *params);
void kvt__ix_unmap(struct kvt__index *ix);

/* This boot's id; zeros when the system does not tell it. */
void kvt__ix_boot_id(uint8_t out[16]);

/* ------------------------------------------------------------------ space.c */

/* Return the number of the space with this text (key text with an empty hash).  If the
 * table lacks the text, make a space under the lock of the file.
 *   -ENFILE     entries use all spaces for this kind of text
 *   -EINVAL     the text is empty or too long
 *   -ETIMEDOUT  another process held the lock for 5 s
 *   -ESTALE     as for every call on the handle */
int kvt__ix_space(struct kvt__index *ix, const char *text);

/* Return true if the space is valid and has this text.  The caller has written the space's
 * number to an entry before: then the space keeps the text until the entry is free. */
bool kvt__ix_space_has(const struct kvt__index *ix, uint32_t space, const char *text);

/* ------------------------------------------------------------------- read.c */

/* A ready entry's fields, read whole; false when it is not ready, changes all
 * the time or is out of range. */
bool kvt__ix_read(const struct kvt__index *ix, const struct ix_entry *e,
                  uint64_t *word, struct kvt__index_entry *out);

/* The ready entry of an identity, read whole, or NULL. */
struct ix_entry *kvt__ix_find(const struct kvt__index *ix,
                              const struct kvt__id *id, uint64_t *word,
                              struct kvt__index_entry *out);

/* The groups of an identity; returns their number, 1 or 2. */
unsigned kvt__ix_groups(const struct kvt__index *ix, const uint64_t id[2],
                        struct ix_entry *groups[2]);

/* ------------------------------------------------------------------ sweep.c */

/* Changes of the header's numbers stand between these two. */
static inline void
ix_begin(struct kvt__index *ix)
{
    IX_ADD(&ix->map->owners[ix->owner].begun, 1);
}

static inline void
ix_done(struct kvt__index *ix)
{
    IX_ADD(&ix->map->owners[ix->owner].done, 1);
}

/* Free what owners that are not in live left, then recount.  Locked.  Returns
 * the entries freed. */
size_t kvt__ix_sweep(struct kvt__index *ix, uint64_t live, bool void_leases);

void kvt__ix_free_owner(struct kvt__index *ix, unsigned owner);

/* Owner records in use that have no bit in live. */
bool kvt__ix_any_dead(const struct kvt__index *ix, uint64_t live);

/* The smallest limit of all owners becomes the table's.  Locked. */
void kvt__ix_set_limit(struct kvt__index *ix);

#endif
