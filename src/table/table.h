/* SPDX-License-Identifier: Apache-2.0
 *
 * The table: an index of the chunks in a store, by name.  All processes of a host share one
 * table through a file mapping; a process can also have a table in private memory.  Design:
 * ARCHITECTURE.md, Index.
 *
 * A find or a lease takes no lock and makes no system call except a read of the clock.  A
 * change is a transaction under one lock, which a writer holds for about a microsecond and
 * never during I/O.  If a process is killed at any instruction, the process leaves at most a
 * redo record, and the next writer applies the record.
 *
 * All calls may be made on any thread, several at once, unless the call's comment says
 * otherwise.  In a forked child, and after another process has replaced the table, a handle
 * finds nothing, and calls that return int return -ESTALE.  If the handle is a reader, the
 * calls for writers return -EINVAL.  Every byte of the mapping may be garbage: garbage never
 * makes a call loop, crash or write outside the mapping.  A writer that finds garbage marks
 * the table replaced. */
#ifndef KVT_TABLE_TABLE_H
#define KVT_TABLE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key/key.h"

struct kvt__table;

/* The order of evictions.  LRU: the least recently used entry first; LFU: the least often used;
 * FIFO: the oldest; MRU: the most recently used. */
enum kvt__order { KVT__EVICT_LRU, KVT__EVICT_LFU, KVT__EVICT_FIFO, KVT__EVICT_MRU };

/* Return the order for a value of the setting cache_policy, for example "LFU"; LRU for an
 * unknown name. */
enum kvt__order kvt__order_from_name(const char *name);

struct kvt__table_params {
    uint64_t limit_bytes;  /* budget; 0: none */
    uint64_t max_entries;  /* 0: the maximum of a table, 2^25 */
    bool writer;           /* the handle claims and evicts; a reader only finds and leases */
    bool wide_hashes;      /* entries have room for hashes of 256 bits */
    bool of_memory;        /* the table describes chunks in memory, and the table's directory
                            * is on a tmpfs.  The entry of a dead owner's new claim becomes
                            * FREE; in a table of objects the entry becomes UNREAD, because the
                            * object may exist */
    enum kvt__order order; /* order of this handle's evictions; FIFO also keeps the time of an
                            * entry when this handle uses the entry */
    bool keep_version;     /* fail on a table of another version instead of replacing the
                            * table */
    const char *shm;       /* directory on a tmpfs; NULL: /dev/shm */

    /* The area: memory for the caller in the file of a table of memory.  New memory is zeros. */
    uint64_t area_bytes;   /* 0: no area, or an area of any size, see kvt__table_open() */
    uint32_t area_version; /* layout of the area, chosen by the caller; 0: no area */
    int (*make_area)(void *ctx, struct kvt__table *table); /* initializes the area of a new
                            * table before another process can open the table; may call only
                            * the functions of the area.  Returns 0, or -errno with a sentence,
                            * which makes the open fail.  NULL: the area stays zeros */
    void *area_ctx;
};

/* Open the table of a store; make the table if the store has none.  dirfd: the store's private
 * directory, which contains the file `lock`; borrowed during the call.  The table is a file of
 * the tmpfs.  Without a tmpfs, or without room there, the table is a file of the directory, and
 * kvtier logs a warning.  A table is replaced if the table has another version, a corrupt
 * header or no room for wide hashes that params want.  The table is private, and kvtier logs
 * the reason, if the files cannot be made, if 256 other writers have the table open, or while
 * an older kvtier writes to the store.  The call waits at most 60 s for another process that
 * makes the table.  0; -ENOMEM with a sentence.
 *
 * With an area the table is shared, or the open fails with an error and a sentence.  Only a
 * writer with area_bytes makes or replaces such a table.  A reader, or a writer whose
 * area_bytes is 0, opens an existing table with an area of this version and of any size;
 * -ENOENT: there is no such table.  A writer with area_bytes replaces a table without an
 * area, or with an area of another size or version, if no other handle has the table open.
 * If another handle has the table open, the writer accepts an area of another size, and the
 * open fails with -EBUSY for another version.  -EUSERS: 256 writers have the table open. */
int kvt__table_open(const struct kvt__table_params *params, int dirfd,
                    struct kvt__table **out);

/* Open a table in private memory, which ends with the handle.  0; -ENOMEM, -EINVAL (the area
 * is too large), or the error of make_area(), with a sentence. */
int kvt__table_open_private(const struct kvt__table_params *params,
                            struct kvt__table **out);

/* End this handle's claims and free the handle.  No other call may be in progress.  In a
 * forked child the call only frees memory. */
void kvt__table_close(struct kvt__table *table);

/* Return true if other processes can share the table. */
bool kvt__table_is_shared(const struct kvt__table *table);

/* Return true if the directory still names the table of this handle; false after a process
 * replaced the table or deleted `lock`.  For a table that is private because an older kvtier
 * writes to the store, return true until the older kvtier has ended.  After false the caller
 * opens another handle.  Makes two system calls. */
bool kvt__table_is_current(struct kvt__table *table);

/* Free the owner's number of a handle whose table was replaced.  The handle stays open for
 * other threads.  Does nothing while the table is in use, and for a reader. */
void kvt__table_retire(struct kvt__table *table);

/* Delete the file of a table of memory if no other handle has the table open.  The memory
 * returns to the host when this handle closes; kvt__table_is_current() is false from now on.
 * dirfd: the store's directory.  Waits at most 60 s for a process that opens the table.  0;
 * -EBUSY with a sentence: another handle has the table open; -ESTALE: the table was replaced;
 * -EINVAL: the table is private, or is no table of memory; other errors with a sentence. */
int kvt__table_delete(struct kvt__table *table, int dirfd);

/* Return true if a process has the table open as a writer, this handle included.  Makes a
 * system call for each owner. */
bool kvt__table_has_writer(const struct kvt__table *table);

#define KVT__TABLE_OWNERS 256

/* Return the number of this writer, below KVT__TABLE_OWNERS; for a reader
 * KVT__TABLE_OWNERS.  The number has no other owner until the handle closes. */
unsigned kvt__table_owner(const struct kvt__table *table);

/* Return true if the process of the owner lives, or if the table was replaced.  Makes a system
 * call. */
bool kvt__table_owner_lives(const struct kvt__table *table, unsigned owner);

/* --------------------------------------------------------------------- area */

/* Return the area, which begins at a multiple of 2 MiB of the file; bytes: the area's size.
 * The area is mapped until the handle closes.  NULL, and 0 bytes: the table has no area, or
 * the process is a forked child. */
void *kvt__table_area(const struct kvt__table *table, uint64_t *bytes);

/* Allocate pages of the file system for a part of the area, before a process accesses the
 * part: if the file system is full, an access to a page without memory raises SIGBUS.  Pages
 * that were allocated before keep their bytes.  Does nothing in a private table.  0; -EINVAL:
 * the part is outside the area; -ESTALE: a forked child; -ENOSPC and other errors with a
 * sentence. */
int kvt__table_allocate_area(struct kvt__table *table, uint64_t offset, uint64_t bytes);

/* Lock a word of the area for one thread of one process; wait at most wait_ns.  A word is 0
 * before the first lock.  If the process with the lock dies, the lock is free.  The handle must
 * be a writer.  timed_out: a variable of this process for this word, 0 before the first call.
 * After a timeout the variable contains the number of the acquisition that holds the lock, and
 * later calls do not wait again for this acquisition.  0; -ETIMEDOUT: another thread holds the
 * lock, or the word is garbage. */
int kvt__table_lock_word(const struct kvt__table *table, uint32_t *word, int64_t wait_ns,
                         uint32_t *timed_out);
void kvt__table_unlock_word(uint32_t *word);

/* Unlock the word if the last process with this handle's owner number died with the lock.
 * Call this function before the handle locks the word. */
void kvt__table_unlock_dead_word(const struct kvt__table *table, uint32_t *word);

/* ------------------------------------------------------------------- spaces */

#define KVT__TABLE_TEXT_MAX 479

/* A space is a key text with an empty hash, at most KVT__TABLE_TEXT_MAX bytes.  An entry stores
 * the number of the entry's space. */

/* Return the digest of a space's text: the first 8 bytes of the SHA-256, never 0. */
uint64_t kvt__table_digest(const char *text);

/* Copy the text of a space, and a zero byte, into out.  The text stays valid while the caller
 * holds a claim of an entry of the space; without a claim another process may give the space
 * another text at any time.  0; -ENOENT: the space has no text, or out is too small. */
int kvt__table_space_text(const struct kvt__table *table, uint32_t space, char *out,
                          size_t size);

/* ------------------------------------------------------------------ entries */

/* The name of a chunk in a store. */
struct kvt__name {
    uint64_t digest; /* kvt__table_digest() of the space's text; 0: a name in a table of
                      * memory, where the hash alone is the name */
    struct kvt__hash hash;
};

#define KVT__TABLE_UNREAD 1u  /* an object of this name may exist; its identity is unknown */
#define KVT__TABLE_FOREIGN 2u /* the object carries no identity */
#define KVT__TABLE_TTL_MAX_S (INT64_C(180) * 24 * 3600) /* the longest time to live */
#define KVT__EXPIRED INT64_C(1) /* an end of a time to live in the past */

#define KVT__TABLE_OVERWRITE 4u /* claim: the new object replaces the object of a READY entry of
                                 * the name even if the identity is equal or a lease holds */
#define KVT__TABLE_FOUND 8u /* claim: the object exists already, so the budget needs room only
                             * for the bytes that the name's entry does not count yet */

/* The lease of one holder on the chunk of an entry.  The lease is void after the chunk has left
 * the entry, or after the table was replaced. */
struct kvt__lease {
    uint32_t entry;
    uint16_t table; /* bits of the table's number */
    uint8_t life;   /* number of the chunk in the entry, see layout.h; 0: no lease */
    uint8_t level;  /* for the caller; the table does not use the field */
};

/* A copy of a READY entry. */
struct kvt__record {
    struct kvt__id id;  /* zeros if UNREAD */
    struct kvt__hash hash;
    uint64_t bytes;     /* on disk, below 2^40 */
    uint32_t space;     /* number of the space; 0xffff: a name without space */
    uint32_t flags;     /* KVT__TABLE_* */
    int64_t recency_ns; /* last use, wall clock, a multiple of 4096; FIFO: the claim */
    uint32_t n_uses;    /* at most 4095 */
    int64_t expires_ns; /* end of the time to live, wall clock, rounded down to 16 s; 0: none.
                         * The table finds and leases no entry after the end */
    uint32_t entry;     /* entry and word identify this version of the entry */
    uint64_t word;
    struct kvt__lease lease; /* after kvt__table_lease(): the new lease; otherwise no lease */
};

/* Prefetch the cache lines that a find of these names reads first.  A lookup of many names
 * prefetches 32 names, finds the 32 names, and goes on with the next 32 names. */
void kvt__table_prefetch(const struct kvt__table *table, const struct kvt__name *names,
                         size_t n);

/* Copy the READY entry of the name, expired or not, to out, and return true if the entry has not
 * expired; false also without an entry.  id: only an entry with this identity; NULL: an entry with
 * any identity, also an UNREAD entry.  out: may be NULL. */
bool kvt__table_find(const struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__id *id, struct kvt__record *out);

/* Find an entry like kvt__table_find(), lease the entry and mark the entry used.  The lease
 * lasts until until_ns (monotonic clock, rounded up to a second, at most 24 hours ahead), or
 * until all holders have ended their leases; a lease never becomes shorter.  Meanwhile only an
 * eviction with force takes the entry.  If until_ns has passed, the call only finds the entry.
 * out: may be NULL if no caller ends the lease.  True: an entry was found, and leased. */
bool kvt__table_lease(struct kvt__table *table, const struct kvt__name *name,
                      const struct kvt__id *id, int64_t until_ns,
                      struct kvt__record *out);

/* End one holder's lease.  Call once for each successful lease, before the lease's until_ns.
 * Does nothing if the lease is void. */
void kvt__table_unlease(struct kvt__table *table, const struct kvt__lease *lease);

/* Return true unless the lease is void. */
bool kvt__table_has_lease(const struct kvt__table *table, const struct kvt__lease *lease);

/* Give the READY entry `seen` a longer time to live: until expires_ns, or without end if expires_ns
 * is 0.  No effect if the entry lives at least as long, or has changed since the caller read
 * `seen`. */
void kvt__table_prolong(struct kvt__table *table, const struct kvt__record *seen,
                        int64_t expires_ns);

/* Return true if the time to live of a copied entry has ended. */
bool kvt__table_is_expired(const struct kvt__record *record);

/* Return true if it is time to search the table for expired entries: an entry has a time to live,
 * and no process has begun a search in the last 15 s.  The caller then calls kvt__table_each(),
 * which also reads expired entries. */
bool kvt__table_begin_expiry(struct kvt__table *table);

/* Extend the lease of an entry to until_ns (as kvt__table_lease()) without a new holder, and
 * mark the entry used.  The extension also ends when the last holder ends the lease.  No effect
 * if the name has no READY entry. */
void kvt__table_protect(struct kvt__table *table, const struct kvt__name *name,
                        const struct kvt__id *id, int64_t until_ns);

/* Mark the READY entry of the name, with this identity, used now; id: as kvt__table_find(). */
void kvt__table_touch(struct kvt__table *table, const struct kvt__name *name,
                      const struct kvt__id *id);

/* What was measured of a storage with remote_serde: auto, for all processes.  Rates are bytes in a
 * second; 0: not measured. */
struct kvt__table_rates {
    uint64_t read, write;     /* stored bytes, of the storage */
    uint64_t encode, decode;  /* decoded bytes, of a thread */
    uint64_t kept_permille;   /* encoded bytes of 1,000 decoded bytes */
    uint64_t choice;          /* 0: none; 1 + enum kvt__serde */
};

/* Write and read the rates of a table.  A reader may see members of two writers.  An unusable table
 * has no rates. */
void kvt__table_set_rates(struct kvt__table *table, const struct kvt__table_rates *rates);
struct kvt__table_rates kvt__table_get_rates(const struct kvt__table *table);

#define KVT__TABLE_MOST_BYTES_PER_S 1000000000000

/* The measured duration of loads from a storage: latency_ns + bytes / bytes_per_s.  bytes are of
 * chunks before the encoding.  bytes_per_s 0: not measured. */
struct kvt__table_speed {
    uint64_t latency_ns, bytes_per_s;
    int64_t reading_since_ns; /* monotonic time since which reads in progress have no result; 0: no
                               * read is in progress */
};

/* Write and read the speed of a table, as kvt__table_set_rates().  kvt__table_set_speed() does not
 * write reading_since_ns.  reading_since_ns has the value of the last writer, and 0 after the
 * recovery of a dead owner.  A speed above KVT__TABLE_MOST_BYTES_PER_S is read as not measured. */
void kvt__table_set_speed(struct kvt__table *table, const struct kvt__table_speed *speed);
void kvt__table_set_reading(struct kvt__table *table, int64_t since_ns);
struct kvt__table_speed kvt__table_get_speed(const struct kvt__table *table);

#define KVT__TABLE_PREFILLS 8

/* The measured time in which an engine computes a prompt: a token at position p takes ns_per_token
 * + p * ns_per_position.  The table keeps the times of a few models. */
struct kvt__table_prefill {
    uint64_t key; /* digest of the model's description; 0: not measured */
    double ns_per_token, ns_per_position;
    uint64_t enough_tokens; /* steps of fewer tokens do not count */
    uint64_t bytes_per_token; /* bytes of a rank's KV */
    char model[40]; /* the end of the model's name, for messages */
};

/* Write the times of a model, in place of another model's times if the table has no room.  Without
 * effect on an unusable table. */
void kvt__table_set_prefill(struct kvt__table *table, const struct kvt__table_prefill *prefill);

/* Read place i, from 0 to KVT__TABLE_PREFILLS - 1.  A reader may see members of two writers.
 * Impossible times are read as not measured. */
struct kvt__table_prefill kvt__table_get_prefill(const struct kvt__table *table, unsigned i);

/* Return the place for the times of the model with this key. */
static inline unsigned
kvt__table_prefill_place(uint64_t key)
{
    return (unsigned)(key % KVT__TABLE_PREFILLS);
}

enum kvt__claim_kind { KVT__CLAIM_NEW = 1, KVT__CLAIM_REPLACE, KVT__CLAIM_EVICT };

/* A claimed entry.  The caller ends the claim with kvt__table_publish(), kvt__table_evicted()
 * or kvt__table_abort() of the same handle; the end of the handle ends the claim too. */
struct kvt__claim {
    uint32_t entry;
    uint32_t number;      /* number of the claim in the owner's list of claims */
    uint64_t word;        /* word of the claimed entry */
    uint64_t bytes;       /* bytes of the new object */
    enum kvt__claim_kind kind;
    struct kvt__id id;
    uint32_t flags;
    int64_t expires_ns;
    const struct kvt__table *table; /* NULL: the claim ended */
};

/* Claim a name for a new object.  record: id, bytes, flags, n_uses, expires_ns and recency_ns (0:
 * now) of the object.  An expired entry of the name is replaced, leased or not, unless the record
 * is UNREAD.  text: the text of the name's space; NULL if name->digest is 0.  0; errors, which
 * leave no claim:
 *   -EEXIST    the name has a READY entry with this identity and without UNREAD.  In storage, an
 *              entry with an end does not count for a new object without end
 *   -EBUSY     another claim of the name is in progress, or the entry has a lease and the
 *              claim would replace the object
 *   -ENOSPC    the budget or the table is full: evict, then claim again
 *   -ENFILE    all spaces for this kind of text have entries
 *   -EAGAIN    this handle has 1024 claims
 *   -ETIMEDOUT other processes held the lock for 100 ms; in a table of memory without an area
 *              for 1 ms, because a thread of the engine waits
 *   -ENOTSUP   the table has no room for a wide hash
 *   -EINVAL    the handle is a reader, or record or text is out of range */
int kvt__table_claim(struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__record *record, const char *text,
                     struct kvt__claim *out);

/* End the claim of a new object, which exists now: make the entry READY.  The call does not
 * fail if the lock is held: a later transaction of the handle then ends the claim.  False: the
 * claim has ended already, the claim belongs to another handle, or the table was replaced. */
bool kvt__table_publish(struct kvt__table *table, struct kvt__claim *claim);

/* Claim the entry `seen` for the deletion of the entry's object; lookups miss from now on.
 * force: also claim a leased entry.  0; -ENOENT: the entry has changed since the caller read
 * `seen`; -EBUSY: a lease holds; -EAGAIN, -ETIMEDOUT as kvt__table_claim(). */
int kvt__table_evict(struct kvt__table *table, const struct kvt__record *seen, bool force,
                     struct kvt__claim *out);

/* End the claim of kvt__table_evict() after the deletion of the object: free the entry. */
void kvt__table_evicted(struct kvt__table *table, struct kvt__claim *claim);

/* End a claim because the object was not made, or not deleted.  The entry of a new name becomes
 * FREE; any other entry becomes READY again, unchanged. */
void kvt__table_abort(struct kvt__table *table, struct kvt__claim *claim);

/* Free a READY entry in one transaction, without a deletion: the entry's object does not exist
 * or does not matter.  0, or an error of kvt__table_evict(). */
int kvt__table_forget(struct kvt__table *table, const struct kvt__record *seen, bool force);

/* Enter an object that a listing or a probe found: claim and publish in one transaction.  0, or
 * an error of kvt__table_claim(); -EEXIST also for an UNREAD record if the name has a READY
 * entry.  If -EEXIST and the record has KVT__TABLE_FOUND, the present entry now counts the
 * bytes of the record. */
int kvt__table_enter(struct kvt__table *table, const struct kvt__name *name,
                     const struct kvt__record *record, const char *text);

#define KVT__TABLE_VICTIMS 8

/* Return true if the caller accepts the entry as a victim. */
typedef bool (*kvt__table_filter_fn)(void *ctx, const struct kvt__record *record);

/* Copy up to n (at most KVT__TABLE_VICTIMS) victims to out: expired entries, then the first victims
 * of the policy.  Victims are chosen from a sample of the READY entries without a lease.  filter:
 * choose only entries for which the function returns true; NULL: any entry.  Return the number of
 * victims; 0: the samples contain no victim.  Takes no lock. */
size_t kvt__table_victims(struct kvt__table *table, kvt__table_filter_fn filter, void *ctx,
                          struct kvt__record *out, size_t n);

/* Make the entry with this number the last victim of this handle's policy.  Call for an entry whose
 * object cannot be deleted now. */
void kvt__table_make_last_victim(struct kvt__table *table, uint32_t entry);

/* Return true if the entry with this number is READY without a lease, and copy the entry. */
bool kvt__table_is_victim(const struct kvt__table *table, uint32_t entry,
                          struct kvt__record *out);

/* Copy the READY entry with this number.  False: the entry is FREE, is CLAIMED, or changes. */
bool kvt__table_read(const struct kvt__table *table, uint32_t entry,
                     struct kvt__record *out);

/* Return true unless the entry with this number is FREE.  Also return true after the table was
 * replaced. */
bool kvt__table_is_used(const struct kvt__table *table, uint32_t entry);

/* Return true if the entry is READY and unchanged since the caller read the word.  If an
 * eviction changes the entry after this call, the evicting process then sees all sequentially
 * consistent writes that the caller made before the call. */
bool kvt__table_is_unchanged(const struct kvt__table *table, uint32_t entry, uint64_t word);

/* Call fn on this thread for each READY entry until fn returns false.  May miss entries that
 * change meanwhile.  fn may call the table. */
void kvt__table_each(const struct kvt__table *table,
                     bool (*fn)(void *ctx, const struct kvt__record *record), void *ctx);

/* End the claims and limits of owners that died.  Returns the number of ended claims; 0 for a
 * reader.  Makes a system call for each other owner.  The store calls this function once a
 * second. */
size_t kvt__table_recover(struct kvt__table *table);

struct kvt__table_totals {
    uint64_t n_entries;   /* READY and CLAIMED */
    uint64_t n_unread;
    uint64_t max_entries;
    uint64_t used_bytes;
    uint64_t limit_bytes; /* 0: none */
};

/* Return the totals of the table; zeros after the table was replaced. */
void kvt__table_get_totals(const struct kvt__table *table, struct kvt__table_totals *out);

/* -------------------------------------------------------- listing, snapshot */

/* Return true if a process has listed every object of the store. */
bool kvt__table_is_listed(const struct kvt__table *table);

/* Request another listing.  A process calls this function if the process stored objects under a
 * table that was replaced, because the new table may lack these objects.  The store is not
 * listed until a listing that begins later has ended. */
void kvt__table_request_listing(struct kvt__table *table);

/* Begin to list the store.  0: the caller enters the index of version 3, the snapshot and then
 * each listed name, and calls kvt__table_end_list().  -EALREADY: the store is listed; -EBUSY:
 * another process or thread lists.  After the death of the lister another process can begin. */
int kvt__table_begin_list(struct kvt__table *table);

/* End the listing.  whole: the caller has entered every name. */
void kvt__table_end_list(struct kvt__table *table, bool whole);

/* Write the READY entries to the file `snapshot` of the store's directory, unless the file
 * is younger than min_age_s seconds.  0, or an error with a sentence; -EALREADY: the file is
 * younger, or no entry has changed since the last snapshot; -EBUSY: another process writes, a
 * process lists, or no process has read the file of an earlier table yet; -EINVAL: a reader,
 * a private table, or a table with an area, because its chunks do not outlive the table.
 * Waits for the disk.  One thread of a handle at a time. */
int kvt__table_write_snapshot(struct kvt__table *table, int dirfd, int64_t min_age_s);

/* Enter each entry of the file `snapshot` if the entry's name has no entry in the table.  A
 * table reads the file once; later calls return 0, also after the table has written the file.
 * Returns the number of entered entries; -ENOENT: there is no snapshot, or the table has an
 * area; -EBADMSG: the snapshot is corrupt, and nothing was entered; or another error. */
int64_t kvt__table_read_snapshot(struct kvt__table *table, int dirfd);

/* Enter each entry of the replaced index of version 3 if the entry's name has no entry in the
 * table, and delete the index.  Returns the number of entered entries; -ENOENT: there is no
 * index of version 3, or the table has an area; or another error. */
int64_t kvt__table_read_v3(struct kvt__table *table, int dirfd);

/* ------------------------------------------------------------------- pauses */

enum kvt__table_pause { KVT__PAUSE_READS, KVT__PAUSE_WRITES };

#define KVT__TABLE_PAUSE_MAX_NS (INT64_C(120) * 1000000000)

/* A pause: no process that shares the table reads from (or writes to) the failing storage of the
 * table until the pause ends.
 * kvt__table_pause() sets a pause of ns (above 0, at most KVT__TABLE_PAUSE_MAX_NS) from now on,
 * and returns true if no pause was set.  A pause that has expired counts as set until
 * kvt__table_resume(), which ends the pause and returns true if a pause was set. */
bool kvt__table_is_paused(const struct kvt__table *table, enum kvt__table_pause kind);
bool kvt__table_pause(struct kvt__table *table, enum kvt__table_pause kind, int64_t ns);
bool kvt__table_resume(struct kvt__table *table, enum kvt__table_pause kind);

#endif
