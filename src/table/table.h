/* SPDX-License-Identifier: Apache-2.0
 *
 * The table: which chunks a store holds, by name.  All processes of a host share one table
 * through a file mapping; a process can also have a table in private memory.  Design:
 * ARCHITECTURE.md, Index.
 *
 * Readers find and lease without a lock and without a system call but the clock.  A change
 * is a transaction under one lock, which a writer holds for about a microsecond and never
 * during I/O.  A process killed at any instruction leaves a redo record that the next
 * writer applies.
 *
 * Any thread.  In a forked child, and after the table was replaced, a handle finds nothing,
 * and calls that return int return -ESTALE.  Calls of writers return -EINVAL for a reader.
 * Every byte of the mapping may be garbage: a garbage value makes no call loop, crash or
 * write outside the mapping; a writer that meets one marks the table replaced. */
#ifndef KVT_TABLE_TABLE_H
#define KVT_TABLE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key/key.h"

struct kvt__table;

/* Which entries are evicted first: least recently used, least often used, first made, most
 * recently used. */
enum kvt__order { KVT__EVICT_LRU, KVT__EVICT_LFU, KVT__EVICT_FIFO, KVT__EVICT_MRU };

/* Convert the setting cache_policy; LRU for an unknown name. */
enum kvt__order kvt__order_named(const char *name);

struct kvt__table_params {
    uint64_t limit_bytes;  /* budget; 0: none */
    uint64_t max_entries;  /* 0: the most that a table can have */
    bool writer;           /* claims and evicts; a reader finds and leases */
    bool wide_hashes;      /* entries have room for hashes of 256 bits */
    bool of_memory;        /* the table describes memory, and its directory lies on a tmpfs:
                            * a claim of a dead owner is free; in a table of objects the
                            * object of such a claim may exist */
    enum kvt__order order; /* of this handle's evictions and uses */
    bool keep_version;     /* fail on a table of another version instead of replacing it */
    const char *shm;       /* directory on a tmpfs; NULL: /dev/shm */

    /* The area: memory for the caller in the file of a table of memory.  New memory is zeros. */
    uint64_t area_bytes;   /* 0: none, or see kvt__table_open() */
    uint32_t area_version; /* layout of the area, chosen by the caller; 0: no area */
    int (*make_area)(void *ctx, struct kvt__table *table); /* initializes the area of a new
                            * table before another process can open the table; calls only
                            * the functions of the area.  0, or -errno with a sentence: the
                            * open fails.  NULL: the area stays zeros */
    void *area_ctx;
};

/* Open or make the table of a store.  dirfd: the store's private directory, which contains
 * the file `lock`.  The table is a file of the tmpfs; without a tmpfs, or without room, a
 * file of the directory, and a message says so.  A table of another version, with a corrupt
 * header or without room for the wanted hashes is replaced.  If the files cannot be made,
 * for the 257th writer, and while an older kvtier writes to the store, the table is private
 * and a message says why.  Waits at most 60 s for another process that makes the table.
 * 0; -ENOMEM with a sentence.
 *
 * With an area the table is shared, or the open fails with an error and a sentence.  Only a
 * writer with area_bytes makes or replaces such a table.  A reader, or a writer whose
 * area_bytes is 0, opens an existing table with an area of this version and of any size;
 * -ENOENT: there is no such table.  A writer with area_bytes replaces a table without an
 * area, or with an area of another size or version, if no other handle has the table open.
 * If another handle has the table open, the writer uses an area of another size as the area
 * is, and the open fails with -EBUSY for another version.  -EUSERS: 256 writers have the
 * table open. */
int kvt__table_open(const struct kvt__table_params *params, int dirfd,
                    struct kvt__table **out);

/* Open a table in private memory.  0; -ENOMEM, or the error of make_area(), with a
 * sentence. */
int kvt__table_open_private(const struct kvt__table_params *params,
                            struct kvt__table **out);

/* End this handle's claims and free the handle.  No other call may be in progress.  In a
 * forked child the call only frees memory. */
void kvt__table_close(struct kvt__table *table);

/* Return true if other processes can share the table. */
bool kvt__table_is_shared(const struct kvt__table *table);

/* Return true if the directory still names the table of this handle; false after another
 * process replaced the table or deleted `lock`, and for a private table that waited for an
 * older kvtier to end.  After false the caller opens another handle.  Makes two system
 * calls. */
bool kvt__table_is_current(struct kvt__table *table);

/* Free the owner's number of a handle whose table was replaced.  The handle stays open for
 * other threads.  Does nothing while the table is in use. */
void kvt__table_retire(struct kvt__table *table);

/* Delete the file of a table of memory if no other handle has the table open.  The memory
 * returns to the host when this handle closes; kvt__table_is_current() is false from now on.
 * dirfd: the store's directory.  0; -EBUSY with a sentence: another handle has the table
 * open; -ESTALE; -EINVAL: a private table, or not of memory; other errors with a sentence. */
int kvt__table_delete(struct kvt__table *table, int dirfd);

/* Return true if a writer of the table lives.  Makes a system call for each owner. */
bool kvt__table_has_writer(const struct kvt__table *table);

#define KVT__TABLE_OWNERS 256

/* Return the number of this writer, below KVT__TABLE_OWNERS; for a reader
 * KVT__TABLE_OWNERS.  The number has no other owner until the handle closes. */
unsigned kvt__table_owner(const struct kvt__table *table);

/* Return true if the process of the owner lives, or if the table was replaced.  Makes a system
 * call. */
bool kvt__table_owner_lives(const struct kvt__table *table, unsigned owner);

/* --------------------------------------------------------------------- area */

/* Return the area, mapped until the handle closes, at a multiple of 2 MiB of the file.  NULL:
 * the table has no area, or the process is a forked child. */
void *kvt__table_area(const struct kvt__table *table, uint64_t *bytes);

/* Allocate memory of the file system for a part of the area: an access to a page without
 * memory is a SIGBUS if the file system is full.  Keeps the bytes of allocated pages.  Does
 * nothing in a private table.  0; -EINVAL: the part is outside the area; -ESTALE: a forked
 * child; -ENOSPC and other errors with a sentence. */
int kvt__table_allocate_area(struct kvt__table *table, uint64_t offset, uint64_t bytes);

/* Lock a word of the area, which is 0 at first: one thread of all processes has the lock, and
 * the lock of a dead process is free.  For writers.  stuck: 0 at first, of this process; a call
 * does not wait again for an acquisition that an earlier call waited for in vain.  0; -ETIMEDOUT:
 * another thread held the lock for wait_ns, or the word is garbage. */
int kvt__table_lock_word(const struct kvt__table *table, uint32_t *word, int64_t wait_ns,
                         uint32_t *stuck);
void kvt__table_unlock_word(uint32_t *word);

/* Unlock the word if a process that had this handle's owner number before died with the lock.
 * Call this function before the handle locks the word. */
void kvt__table_free_word(const struct kvt__table *table, uint32_t *word);

/* ------------------------------------------------------------------- spaces */

#define KVT__TABLE_TEXT_MAX 479

/* A space is a key text with an empty hash.  An entry stores the space's number. */

/* Return the digest of a space's text: the first 8 bytes of the SHA-256, never 0. */
uint64_t kvt__table_digest(const char *text);

/* Copy the text of a space.  The caller holds a claim of an entry of the space; otherwise
 * the space may have another text at once.  0; -ENOENT. */
int kvt__table_space_text(const struct kvt__table *table, uint32_t space, char *out,
                          size_t size);

/* ------------------------------------------------------------------ entries */

/* The name of a chunk in a store. */
struct kvt__name {
    uint64_t digest; /* of the space's text; 0: a table of memory, where the hash alone
                      * is the name */
    struct kvt__hash hash;
};

#define KVT__TABLE_UNREAD 1u  /* an object of this name may exist; its identity is unknown */
#define KVT__TABLE_FOREIGN 2u /* the object carries no identity */
#define KVT__TABLE_OVERWRITE 4u /* of a claim: the new object replaces the object of any READY
                                 * entry of the name, with an equal identity or a lease too */
#define KVT__TABLE_FOUND 8u /* of a claim: the object exists, so it needs room only for the bytes
                             * that the entry of the name does not count */

/* A lease of one holder.  Identifies the chunk of the entry: after the chunk left the entry, or
 * the table was replaced, the lease is void. */
struct kvt__lease {
    uint32_t entry;
    uint16_t table; /* bits of the table's number */
    uint8_t life;   /* of the entry; 0: no lease */
    uint8_t level;  /* the caller's; the table does not use the field */
};

/* A copy of a READY entry. */
struct kvt__record {
    struct kvt__id id;  /* zeros if UNREAD */
    struct kvt__hash hash;
    uint64_t bytes;     /* on disk, below 2^40 */
    uint32_t space;
    uint32_t flags;     /* KVT__TABLE_* */
    int64_t recency_ns; /* wall clock, a multiple of 4096 */
    uint32_t n_uses;    /* at most 4095 */
    uint32_t entry;     /* entry and word identify this version of the entry */
    uint64_t word;
    struct kvt__lease lease; /* kvt__table_lease(): the new lease; else no lease */
};

/* Prefetch the cache lines that a find of these names reads first.  A lookup of many names
 * calls this for 32 names and then finds the 32 names. */
void kvt__table_prefetch(const struct kvt__table *table, const struct kvt__name *names,
                         size_t n);

/* Find the READY entry of a name.  id: only an entry with this identity; NULL: any entry,
 * also UNREAD.  out: may be NULL. */
bool kvt__table_find(const struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__id *id, struct kvt__record *out);

/* Find and lease: no eviction without force takes the entry before until_ns (monotonic
 * clock, rounded up to a second, at most 24 hours ahead; a lease is never shortened), or
 * before all holders have ended the lease.  Mark the entry used.  out: may be NULL if the lease
 * ends by time. */
bool kvt__table_lease(struct kvt__table *table, const struct kvt__name *name,
                      const struct kvt__id *id, int64_t until_ns,
                      struct kvt__record *out);

/* End one holder's lease.  Call once for each successful lease, before its until_ns.  A lease
 * that is void ends no other lease. */
void kvt__table_unlease(struct kvt__table *table, const struct kvt__lease *lease);

/* Return true unless the lease is void. */
bool kvt__table_has_lease(const struct kvt__table *table, const struct kvt__lease *lease);

/* Extend the lease without becoming a holder: the last holder's end also ends this. */
void kvt__table_hold(struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__id *id, int64_t until_ns);

/* Mark the entry used now. */
void kvt__table_touch(struct kvt__table *table, const struct kvt__name *name,
                      const struct kvt__id *id);

enum kvt__claim_kind { KVT__CLAIM_NEW = 1, KVT__CLAIM_REPLACE, KVT__CLAIM_EVICT };

/* A claimed entry.  Owner: the claiming handle, until publish, evicted or abort. */
struct kvt__claim {
    uint32_t entry;
    uint32_t number;      /* in the owner's list of claims */
    uint64_t word;        /* of the claimed entry */
    uint64_t bytes;       /* that the claim added to used_bytes */
    enum kvt__claim_kind kind;
    struct kvt__id id;
    uint32_t flags;
    const struct kvt__table *table; /* NULL: the claim ended */
};

/* Claim a name for a new object.  record: id, bytes, flags; recency_ns 0: now.
 * text: the space's text, whose digest is name->digest; NULL: digest is 0.
 *   -EEXIST    the name has a READY entry with this identity and without UNREAD
 *   -EBUSY     another claim of the name is in progress, or the entry has a lease and
 *              another identity
 *   -ENOSPC    the budget or the table is full: evict, then claim again
 *   -ENFILE    all spaces for this kind of text have entries
 *   -EAGAIN    this process has too many claims
 *   -ETIMEDOUT other processes held the lock for 100 ms; in a table of memory without an area
 *              for 1 ms, because the thread of an engine waits
 *   -ENOTSUP   the table has no room for a wide hash */
int kvt__table_claim(struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__record *record, const char *text,
                     struct kvt__claim *out);

/* The claimed object exists: make the entry READY.  False: the handle's table was replaced
 * or the claim belongs to another handle. */
bool kvt__table_publish(struct kvt__table *table, struct kvt__claim *claim);

/* Claim the entry `seen` for the deletion of its object: lookups miss.  force: also a
 * leased entry.  0; -ENOENT: the entry has changed since the caller read `seen`; -EBUSY: a
 * lease holds; -EAGAIN, -ETIMEDOUT as above. */
int kvt__table_evict(struct kvt__table *table, const struct kvt__record *seen, bool force,
                     struct kvt__claim *out);

/* The object is deleted: free the entry. */
void kvt__table_evicted(struct kvt__table *table, struct kvt__claim *claim);

/* The object was not made, or not deleted: undo the claim.  An entry that was to be replaced or
 * deleted is READY and unchanged again. */
void kvt__table_abort(struct kvt__table *table, struct kvt__claim *claim);

/* Free a READY entry whose object does not exist or does not matter, in one transaction.
 * 0, or an error of evict. */
int kvt__table_forget(struct kvt__table *table, const struct kvt__record *seen, bool force);

/* Enter an object that a listing or a probe found: claim and publish.  Returns an error of
 * claim; -EEXIST also for an UNREAD record if the name has any entry.  With KVT__TABLE_FOUND,
 * the entry then counts the bytes of the record. */
int kvt__table_enter(struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__record *record, const char *text);

#define KVT__TABLE_VICTIMS 8

/* Return true if an entry may be a victim. */
typedef bool (*kvt__table_suits_fn)(void *ctx, const struct kvt__record *record);

/* Choose up to n (at most KVT__TABLE_VICTIMS) READY entries without a lease that the policy
 * evicts first, from a sample of the table, best first.  suits: only entries for which the
 * function returns true; NULL: any entry.  Returns their number.  No lock. */
size_t kvt__table_victims(struct kvt__table *table, kvt__table_suits_fn suits, void *ctx,
                          struct kvt__record *out, size_t n);

/* Copy the entry of a number if the entry is READY without a lease. */
bool kvt__table_is_victim(const struct kvt__table *table, uint32_t entry,
                          struct kvt__record *out);

/* Copy the READY entry of a number.  False: the entry is FREE, CLAIMED or changes. */
bool kvt__table_read(const struct kvt__table *table, uint32_t entry,
                     struct kvt__record *out);

/* Return true unless the entry of a number is FREE.  Also true after the table was
 * replaced. */
bool kvt__table_is_used(const struct kvt__table *table, uint32_t entry);

/* Return true if the entry is READY and unchanged since the caller read the word.  An
 * eviction that this call does not see sees the caller's earlier writes, if they are
 * sequentially consistent. */
bool kvt__table_is_same(const struct kvt__table *table, uint32_t entry, uint64_t word);

/* Call fn for each READY entry until fn returns false.  May miss entries that change. */
void kvt__table_each(const struct kvt__table *table,
                     bool (*fn)(void *ctx, const struct kvt__record *record), void *ctx);

/* End the claims and limits of owners that died.  Returns the number of ended claims.  Makes a
 * system call for each other owner.  Call once a second. */
size_t kvt__table_recover(struct kvt__table *table);

struct kvt__table_totals {
    uint64_t n_entries;   /* READY and CLAIMED */
    uint64_t n_unread;
    uint64_t max_entries;
    uint64_t used_bytes;
    uint64_t limit_bytes; /* 0: none */
};

void kvt__table_get_totals(const struct kvt__table *table, struct kvt__table_totals *out);

/* -------------------------------------------------------- listing, snapshot */

/* Return true if a process has listed every object of the store. */
bool kvt__table_is_listed(const struct kvt__table *table);

/* The store may have objects without an entry, which this process stored while it used a table
 * that was replaced: the store is not listed until a listing that begins later ends. */
void kvt__table_relist(struct kvt__table *table);

/* Begin to list the store.  0: the caller enters an index of version 3, the snapshot and then
 * each listed name, and calls end_list.  -EALREADY: the store is listed; -EBUSY: another process
 * or thread lists.  After the death of the lister another process can begin. */
int kvt__table_begin_list(struct kvt__table *table);

/* End the listing.  whole: every name was entered. */
void kvt__table_end_list(struct kvt__table *table, bool whole);

/* Write the READY entries to the file `snapshot` of the store's directory, unless the file
 * is younger than min_age_s seconds.  0, or an error with a sentence; -EALREADY: the file is
 * younger, or nothing changed since the last snapshot; -EBUSY: another process writes, a
 * process lists, or no process has read the file of an earlier table yet; -EINVAL: a reader,
 * a private table, or a table with an area, whose chunks are in the area.  Waits for the
 * disk.  One thread of a handle at a time. */
int kvt__table_write_snapshot(struct kvt__table *table, int dirfd, int64_t min_age_s);

/* Enter the entries of the file `snapshot` whose names have no entry, once for each table: a
 * file that the table has saved or read holds no news.  Returns the number of entered
 * entries; -ENOENT: there is no snapshot, or the table has an area; -EBADMSG: the snapshot is
 * corrupt, and nothing was entered; or another error. */
int64_t kvt__table_read_snapshot(struct kvt__table *table, int dirfd);

/* Enter the entries of the index of version 3 that the table replaced, whose names have no
 * entry, and delete the index.  Returns the number of entered entries; -ENOENT: there is no
 * such index, or the table has an area; or another error. */
int64_t kvt__table_read_v3(struct kvt__table *table, int dirfd);

/* ------------------------------------------------------------------- pauses */

enum kvt__table_pause { KVT__PAUSE_READS, KVT__PAUSE_WRITES };

#define KVT__TABLE_PAUSE_MAX_NS (INT64_C(120) * 1000000000)

/* Failing storage is not read, or not written, until the pause ends, by all processes that
 * share the table.  pause: start or extend a pause; return true if none was set.  resume:
 * end a pause; return true if one was set. */
bool kvt__table_is_paused(const struct kvt__table *table, enum kvt__table_pause what);
bool kvt__table_pause(struct kvt__table *table, enum kvt__table_pause what, int64_t ns);
bool kvt__table_resume(struct kvt__table *table, enum kvt__table_pause what);

#endif
