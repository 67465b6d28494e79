/* SPDX-License-Identifier: Apache-2.0
 *
 * The handle, and the functions that the files of this room share. */
#ifndef KVT_TABLE_PRIVATE_H
#define KVT_TABLE_PRIVATE_H

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fork.h"
#include "table/layout.h"

/* The longest wait of a transaction for the lock; shorter in a table of memory without an area,
 * because a thread of the engine waits there. */
#define TB_LOCK_WAIT_NS (INT64_C(100) * 1000000)
#define TB_MEMORY_LOCK_WAIT_NS INT64_C(1000000)
#define TB_OPEN_LOCK_WAIT_NS (INT64_C(5) * 1000000000) /* longest wait of an opener */

/* The end of a claim that found the lock held. */
struct tb_queued_end {
    struct kvt__claim claim;
    bool done; /* the object is stored, or deleted; false: the claim is undone */
};

struct kvt__table {
    struct tb_header *header; /* start of the mapping */
    struct tb_owner *owners;
    struct tb_claim *claims;  /* see tb_claim_at() */
    struct tb_space *spaces;
    uint32_t *heads;
    struct tb_hot *hot;
    struct tb_cold *cold;
    struct tb_wide *wide;     /* NULL: no room for wide hashes */
    size_t map_bytes;         /* bytes of the parts, without the area */
    char *area;               /* NULL: no area */
    uint64_t area_bytes;
    uint64_t max_entries;
    uint32_t n_mapped;        /* entries whose pages are mapped in this process */
    bool of_memory;
    enum kvt__order order;
    int64_t lock_wait_ns;     /* longest wait of claims and of their ends for the lock */
    bool warned_full;         /* kvt__tb_warn_full() has warned; atomic */
    unsigned generation;      /* number of the process, see base/fork.h */
    unsigned owner;           /* number of this writer; TB_N_OWNERS: a reader */
    int map_fd;               /* file of the table; -1: private memory */
    int lock_fd;              /* the file `lock`; -1: private memory */
    int v3_fd;                /* the file `lock`, while this private table waits for the end of
                               * the writers of index version 3; otherwise -1 */

    pthread_mutex_t mutex;    /* guards the fields below, and is held by transactions */
    struct tb_queued_end queued[TB_N_CLAIMS];
    uint32_t n_queued;
    int64_t recovered_ns;     /* time of the last search for dead owners; atomic */
    uint32_t timed_out;       /* number of the last acquisition of the lock that outlasted a wait;
                               * 0: none.  Later transactions do not wait for this acquisition */
    bool is_listing;          /* this handle lists, and holds TB_LIST_BYTE of a shared table */
    uint32_t n_listing_requests; /* header->n_listing_requests at the begin of the listing */
};

/* Return true if the process is not a forked child and the table was not replaced. */
static inline bool
tb_is_usable(const struct kvt__table *t)
{
    return kvt__fork_generation_now() == t->generation &&
           TB_LOAD(&t->header->use) == TB_IN_USE;
}

/* Return true if an open neither makes nor replaces a table. */
static inline bool
tb_only_existing(const struct kvt__table_params *params)
{
    return params->area_version && (!params->writer || !params->area_bytes);
}

/* Return the time of a use.  A table with an area reads the precise clock, which orders uses
 * within one tick of the coarse clock too: chunks are few and large, so the clock costs
 * little. */
static inline int64_t
tb_wall_ns(const struct kvt__table *t)
{
    return t->area ? kvt__clock_ns(CLOCK_REALTIME) : kvt__wall_ns();
}

static inline bool
tb_is_writer(const struct kvt__table *t)
{
    return t->owner < TB_N_OWNERS;
}

/* Return the end of a time to live for tb_pack(), and note in the table that an entry has a time to
 * live.  0 ns: no end. */
static inline uint64_t
tb_note_expiry(const struct kvt__table *t, int64_t expires_ns)
{
    if (expires_ns)
        TB_STORE(&t->header->expires, 1);
    return tb_expiry_from_ns(expires_ns, kvt__wall_ns());
}

static inline struct tb_claim *
tb_claim_at(const struct kvt__table *t, unsigned owner, uint32_t number)
{
    return &t->claims[(size_t)owner * TB_N_CLAIMS + number];
}

/* ------------------------------------------------------------------- lock.c */

/* First bit of the acquisition's number in the lock word. */
#define TB_LOCK_NUMBER_SHIFT 10

/* Lock the table, and apply the redo record that a dead owner left.  The caller holds t->mutex.
 * 0; -ETIMEDOUT: other processes held the lock for wait_ns; -ESTALE: the redo record or a size
 * is garbage, and the table is marked replaced. */
int kvt__tb_lock(struct kvt__table *t, int64_t wait_ns);
void kvt__tb_unlock(struct kvt__table *t);

/* ------------------------------------------------------------------- bytes.c */

/* The longest wait of an open for another process that opens. */
#define TB_OPEN_WAIT_NS (INT64_C(60) * 1000000000)

/* Lock a byte of the file `lock`; type: F_RDLCK or F_WRLCK.  0; -EAGAIN: another handle
 * holds the byte; -errno. */
int kvt__tb_lock_byte(int lock_fd, short type, off_t byte);
void kvt__tb_unlock_byte(int lock_fd, off_t byte);

/* Lock a byte like kvt__tb_lock_byte(), and wait up to TB_OPEN_WAIT_NS for the byte.  0;
 * -ETIMEDOUT or another -errno, with a sentence. */
int kvt__tb_lock_byte_wait(int lock_fd, short type, off_t byte);

/* Return true if another handle locks one of n bytes, or if the system call fails.  Makes a system
 * call. */
bool kvt__tb_is_locked(int lock_fd, off_t first, off_t n);

/* Read the location of the table from the file `lock`.  False: the file has no valid record. */
bool kvt__tb_get_location(int lock_fd, struct tb_location *out);

/* Compute location->crc, and write the location of the table to the file `lock`.  0, or -errno
 * with a sentence. */
int kvt__tb_set_location(int lock_fd, struct tb_location *location);

/* Take the shared flock of a table's file.  Wait up to TB_OPEN_WAIT_NS for a process that checks
 * if the file is stale.  False: no flock. */
bool kvt__tb_flock_shared(int fd);

/* Take the exclusive flock of a table's file.  False: another handle has the file open, and the
 * caller keeps the shared flock.  The caller has the shared flock and TB_OPEN_BYTE. */
bool kvt__tb_flock_exclusive(int fd);

/* Read the id of this boot; zeros if the system does not report the id.  0; -EMFILE, -ENFILE or
 * -ENOMEM with a sentence: this process cannot ask the system. */
int kvt__tb_boot_id(uint8_t out[16]);

/* Return true if the process of an owner lives.  Makes a system call. */
bool kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner);

/* Lock an owner's byte until kvt__tb_unlock_owner() or the end of the process.  False: another
 * process holds the byte. */
bool kvt__tb_lock_owner(const struct kvt__table *t, unsigned owner);
void kvt__tb_unlock_owner(const struct kvt__table *t, unsigned owner);

/* Return true if the process lacks descriptors or memory: the error says nothing about the
 * file that the process tried to open. */
static inline bool
tb_is_shortage(int err)
{
    return err == EMFILE || err == ENFILE || err == ENOMEM;
}

/* ------------------------------------------------------------------- redo.c */

/* A transaction.  kvt__tb_begin() locks; tb_set64() and tb_set32() add values to the redo record;
 * kvt__tb_commit() writes the values to the table; kvt__tb_end() unlocks.  A transaction may commit
 * several changes, one after the other. */
struct tb_change {
    struct kvt__table *table;
    uint32_t n; /* values of the change in progress */
};

/* Write the values of the redo record to the table.  The caller holds the lock of the table.
 * False: the record is garbage. */
bool kvt__tb_redo(struct kvt__table *t);

/* Write the values of the change in progress to the table.  No effect without values. */
void kvt__tb_commit(struct tb_change *c);

/* Log that a part of the table is corrupt, and mark the table replaced.  part: for the message, for
 * example "a chain". */
void kvt__tb_mark_corrupt(struct kvt__table *t, const char *part);

/* Add to a change: the word at this address of the mapping gets the value. */
static inline void
tb_set(struct tb_change *c, void *at, uint64_t value, bool wide)
{
    struct tb_header *h = c->table->header;
    size_t offset = (size_t)((char *)at - (char *)h) | wide;

    __atomic_store_n(&h->redo[c->n].offset, offset, __ATOMIC_RELAXED);
    __atomic_store_n(&h->redo[c->n].value, value, __ATOMIC_RELAXED);
    c->n++;
}

static inline void
tb_set64(struct tb_change *c, uint64_t *at, uint64_t value)
{
    tb_set(c, at, value, true);
}

static inline void
tb_set32(struct tb_change *c, uint32_t *at, uint32_t value)
{
    tb_set(c, at, value, false);
}

/* Add to a change: a counter decreases by n.  If the counter is below n, mark the table
 * replaced. */
void kvt__tb_decrease(struct tb_change *c, uint64_t *counter, uint64_t n);

/* ------------------------------------------------------------------- chain.c */

/* Return the hash of a name in this table; only tb_bucket() and tb_link_bits() use the hash. */
uint64_t kvt__tb_hash(const struct kvt__table *t, const struct kvt__name *name);

/* Return the head of a hash in a table of n heads (linear hashing). */
static inline uint32_t
tb_bucket(uint64_t hash, uint32_t n)
{
    uint32_t mask = UINT32_MAX >> __builtin_clz(n | 1);
    uint32_t b = (uint32_t)hash & mask;

    return b < n ? b : b & mask >> 1;
}

/* Return the entry that a link leads to; TB_NONE: the link ends the chain, or is garbage. */
static inline uint32_t
tb_linked(const struct kvt__table *t, uint32_t link)
{
    uint32_t entry = link & TB_ENTRY;

    return !(link & TB_END) && entry < t->max_entries ? entry : TB_NONE;
}

#define TB_PREFETCHED 32

/* Prefetch the cache lines that walks to at most TB_PREFETCHED hashes read first: in a first
 * round the heads, in a second round the first entries of the chains, and in a third round the
 * second entries where the first entry has another name.  The addresses of a round are in the
 * cache lines of the round before.  Needs no lock. */
void kvt__tb_prefetch(const struct kvt__table *t, const uint64_t *hashes, size_t n);

/* Find the READY entry of a name; id: NULL: with any identity.  Returns the number of the entry
 * and sets *word to the entry's word; TB_NONE: there is no such entry.  Needs no lock. */
uint32_t kvt__tb_find(const struct kvt__table *t, const struct kvt__name *name,
                      const struct kvt__id *id, uint64_t *word);

/* Find the entry of a name in the state READY or CLAIMED; kvt__tb_find() finds only READY entries.
 * The caller holds the lock.  Returns the number of the entry; TB_NONE: the name has no entry, or
 * the chain is garbage, and the table is marked replaced. */
uint32_t kvt__tb_find_locked(struct kvt__table *t, const struct kvt__name *name);

/* Add to a change: link a free entry into the chain of a hash. */
void kvt__tb_link(struct tb_change *c, uint32_t entry, uint64_t hash);

/* Add to a change: remove an entry from the entry's chain and put the entry on the free list.
 * bytes: the bytes that used_bytes counts for the entry.  False: the chain is garbage, and the
 * table is marked replaced. */
bool kvt__tb_free(struct tb_change *c, uint32_t entry, uint64_t bytes);

/* If the table has at least as many entries as heads, split one chain, and commit. */
void kvt__tb_split_chain(struct tb_change *c);

/* Return the hash of an entry's name. */
uint64_t kvt__tb_entry_hash(const struct kvt__table *t, uint32_t entry);

/* ------------------------------------------------------------------- read.c */

/* Copy a READY entry.  False: the entry is not READY or changes. */
bool kvt__tb_read(const struct kvt__table *t, uint32_t entry, struct kvt__record *out);

/* Mark an entry used now. */
void kvt__tb_mark_used(const struct kvt__table *t, uint32_t entry);

/* ------------------------------------------------------------------- claim.c */

/* Return 0 if entries of a snapshot or of an older index may enter the table; -ESTALE; -EINVAL:
 * a reader; -ENOENT: the table has an area, and no entry of a file describes a chunk there. */
int kvt__tb_check_restore(const struct kvt__table *t);

/* Enter an entry of a snapshot or of an older index, unless the name has an entry: the present
 * entry is younger.  recency: as in struct tb_cold; a time in the future becomes now.
 * n_entered: incremented if the entry was entered.  0, also if the table has no room for this
 * entry; -ESTALE, -EINVAL, -ETIMEDOUT: the caller ends the reading. */
int kvt__tb_enter_saved(struct kvt__table *t, const struct kvt__name *name,
                        struct kvt__record *record, uint64_t recency, const char *text,
                        int64_t *n_entered);

/* ------------------------------------------------------------------- end.c */

/* Begin a transaction: lock the mutex and the table, and carry out the queued ends of this
 * handle's claims.  0; -ETIMEDOUT with a sentence; -ESTALE; -EINVAL: a reader.  After an error
 * nothing is locked. */
int kvt__tb_begin(struct kvt__table *t, struct tb_change *c);
void kvt__tb_end(struct tb_change *c);

/* End one claim of this handle, and commit.  done: the object is stored, or deleted; false: undo
 * the claim. */
void kvt__tb_end_claim(struct tb_change *c, const struct kvt__claim *claim, bool done);

/* End one claim of a dead owner, and commit.  The new state of the entry: ARCHITECTURE.md,
 * Index.  False: the owner has no claim with this number. */
bool kvt__tb_end_dead_claim(struct tb_change *c, unsigned owner, uint32_t number);

/* ------------------------------------------------------------------- space.c */

/* Return the number of the space with this text; TB_NO_SPACE for NULL.  If no space has the text,
 * an unused space gets the text.  The caller holds the lock.  -ENFILE: all spaces for texts with
 * (or without) tags have entries. */
int kvt__tb_intern_space(struct kvt__table *t, const char *text, uint64_t digest, bool has_tags);

/* Add to a change: the number of a space's entries changes by 1 or -1. */
void kvt__tb_count_space(struct tb_change *c, uint32_t space, int by);

/* ------------------------------------------------------------------- map.c */

/* Return the maximum number of entries of a new table. */
uint64_t kvt__tb_max_entries(const struct kvt__table_params *params);

/* Set the handle's pointers to the parts of a mapping.  area_bytes: 0: no area. */
void kvt__tb_set_parts(struct kvt__table *t, void *map, uint64_t max_entries,
                       bool wide_hashes, uint64_t area_bytes);

/* Map t->map_fd, a file that has the size for max_entries and the area; if map_fd is negative,
 * map private memory.  0, or -errno with a sentence. */
int kvt__tb_map(struct kvt__table *t, uint64_t max_entries, bool wide_hashes,
                uint64_t area_bytes);

/* Unmap the table and close the table's file.  Does nothing for a handle without mapping and
 * file. */
void kvt__tb_unmap(struct kvt__table *t);

/* Make an empty table in new, zeroed memory: the area, the heads and the header.  number: the
 * table's number; zeros in private memory.  store: path of the store's directory, or "".  0, or
 * the error of make_area(). */
int kvt__tb_init(struct kvt__table *t, const struct kvt__table_params *params,
                 const uint64_t number[2], const char *store);

/* Allocate pages of the mapped file; does nothing in private memory.  0; -errno. */
int kvt__tb_allocate_bytes(const struct kvt__table *t, off_t at, off_t bytes);

/* Allocate the pages of the mapped file for the parts before the entries and for n_made entries.
 * n_made: header->n_made; 0: a new table.  0; -ENOSPC and other errors with a sentence. */
int kvt__tb_allocate(struct kvt__table *t, uint64_t n_made);

/* Allocate memory for more entries, because all n_made entries are used.  The caller holds
 * t->mutex and not the lock.  0, also if another thread has grown the table; -EFBIG: the table
 * has max_entries; -ENOSPC: the file cannot grow; -ESTALE, -ETIMEDOUT. */
int kvt__tb_grow(struct kvt__table *t, uint32_t n_made);

/* Warn, once for each handle, that the file of the table cannot grow.  The caller holds no
 * lock. */
void kvt__tb_warn_full(struct kvt__table *t);

/* Map the pages of all allocated entries in this process, so that transactions have no page
 * faults.  The caller holds t->mutex, or is opening the handle. */
void kvt__tb_populate(struct kvt__table *t);

/* ------------------------------------------------------------------- area.c */

/* Return 0 if the size of the area is allowed; -EINVAL with a sentence: the area is too large. */
int kvt__tb_check_area(const struct kvt__table_params *params);

/* ------------------------------------------------------------------- owner.c */

/* Take a free owner's number and make the handle a writer with this limit (0: none).  Before,
 * complete the transaction and end the claims of the number's last owner.  In a shared table the
 * caller holds TB_OPEN_BYTE.  0; -EUSERS, -ETIMEDOUT, -ESTALE with a sentence. */
int kvt__tb_acquire_owner(struct kvt__table *t, uint64_t limit_bytes);

/* End the claims of this handle and free the handle's number.  The handle is a reader
 * afterwards. */
void kvt__tb_release_owner(struct kvt__table *t);

/* If an owner is dead, end the claims and the limit of the owner.  Returns the number of ended
 * claims; 0 also if the owner lives or the lock was not available. */
size_t kvt__tb_recover_owner(struct kvt__table *t, unsigned owner);

/* Call kvt__table_recover(), unless this handle did less than a second ago.  Returns the number
 * of ended claims. */
size_t kvt__tb_recover_if_due(struct kvt__table *t);

/* ------------------------------------------------------------------- make.c */

/* Make a file with an empty table, map the file and hold the file's shared flock.  dir and name:
 * location of the file; the name is from kvt__tb_shm_name(), or TB_DIR_NEW.  number: the table's
 * number.  store: path of the store's directory.  0, or -errno with a sentence: no file is
 * left. */
int kvt__tb_make(struct kvt__table *t, const struct kvt__table_params *params, int dir,
                 const char *name, const uint64_t number[2], const char *store);

/* Delete each table of the tmpfs that no process uses and no `lock` names.  lock and location:
 * status of `lock` and location of the table that this process has just made, which stays. */
void kvt__tb_remove_stale(int shm, const struct stat *lock, const struct tb_location *location);

#define TB_SHM_NAME_MAX 96
#define TB_DIR_NAME "table"
#define TB_DIR_NEW "table.new"

/* Write the name of a table's file in a tmpfs.  lock: status of the store's file `lock`. */
void kvt__tb_shm_name(const struct stat *lock, const uint64_t number[2],
                      char out[TB_SHM_NAME_MAX]);

/* ------------------------------------------------------------------- v3.c */

/* If `lock` names the index of version 3 in the directory, rename the index for
 * kvt__table_read_v3(); otherwise delete the index.  Call before a new location is written to
 * `lock`. */
void kvt__tb_keep_v3(int dirfd, int lock_fd);

/* ------------------------------------------------------------------- location.c */

/* Map the table that `lock` names; if no table is usable, make a table.  The caller holds
 * TB_OPEN_BYTE.  store: path of the store's directory.  0, or -errno with a sentence. */
int kvt__tb_open_location(struct kvt__table *t, const struct kvt__table_params *params,
                       int dirfd, const char *store);

/* ------------------------------------------------------------------- open.c */

/* Allocate a handle without a mapping and without an owner's number; NULL: no memory. */
struct kvt__table *kvt__tb_new(const struct kvt__table_params *params);

#endif
