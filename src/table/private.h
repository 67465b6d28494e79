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

/* How long a transaction waits for the lock: in a table of memory without an area the thread of
 * an engine waits. */
#define TB_LOCK_WAIT_NS (INT64_C(100) * 1000000)
#define TB_MEMORY_LOCK_WAIT_NS INT64_C(1000000)
#define TB_OPEN_LOCK_WAIT_NS (INT64_C(5) * 1000000000) /* of an opener */

struct tb_late {
    struct kvt__claim claim;
    bool done; /* the object is stored, or deleted */
};

struct kvt__table {
    struct tb_header *header; /* start of the mapping */
    struct tb_owner *owners;
    struct tb_claim *claims;  /* tb_claim_at() */
    struct tb_space *spaces;
    uint32_t *heads;
    struct tb_hot *hot;
    struct tb_cold *cold;
    struct tb_wide *wide;     /* NULL: no room for wide hashes */
    size_t map_bytes;         /* of the parts, without the area */
    char *area;               /* NULL: none */
    uint64_t area_bytes;
    uint64_t max_entries;
    uint32_t n_mapped;        /* entries whose pages this process has prepared */
    bool of_memory;
    enum kvt__order order;
    int64_t lock_wait_ns;     /* of claims and their ends */
    bool warned_full;         /* kvt__tb_warn_full(); atomic */
    unsigned generation;      /* of the process, see base/fork.h */
    unsigned owner;           /* number of this writer; TB_N_OWNERS: a reader */
    int map_fd;               /* of the file in /dev/shm; -1: private memory */
    int lock_fd;              /* of the file `lock`; -1: private memory */
    int v3_fd;                /* of the file `lock`, while this private table waits for the
                               * writers of index version 3 to end; else -1 */

    pthread_mutex_t mutex;    /* guards the rest, and is held by transactions */
    struct tb_late late[TB_N_CLAIMS]; /* ends of claims that found the lock held */
    uint32_t n_late;
    int64_t looked_ns;        /* time of the last search for dead owners */
    uint32_t stuck;           /* acquisition of the lock that a transaction waited for in vain */
    bool is_listing;          /* this handle holds the byte of the lister */
    uint32_t lists;           /* header->n_relists at the begin of the listing */
};

/* Same process as at open, and the table was not replaced. */
static inline bool
tb_usable(const struct kvt__table *t)
{
    return kvt__fork_generation_now() == t->generation &&
           TB_LOAD(&t->header->use) == TB_IN_USE;
}

/* The handle opens only a table that exists, and does not replace a table. */
static inline bool
tb_only_existing(const struct kvt__table_params *params)
{
    return params->area_version && (!params->writer || !params->area_bytes);
}

/* The time of a use.  In an area, chunks are few and large, so the precise clock costs little,
 * and also chunks of one tick of the coarse clock have an order. */
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

static inline struct tb_claim *
tb_claim_at(const struct kvt__table *t, unsigned owner, uint32_t number)
{
    return &t->claims[(size_t)owner * TB_N_CLAIMS + number];
}

/* ------------------------------------------------------------------- lock.c */

/* The lock word from this bit on: number of the acquisition. */
#define TB_LOCK_NUMBER_SHIFT 10

/* Lock the table.  The caller holds t->mutex.  0; -ETIMEDOUT.  Applies a redo record that
 * a dead owner left; -ESTALE if the record is garbage. */
int kvt__tb_lock(struct kvt__table *t, int64_t wait_ns);
void kvt__tb_unlock(struct kvt__table *t);

/* ------------------------------------------------------------------- bytes.c */

/* How long an open waits for another process that opens. */
#define TB_OPEN_WAIT_NS (INT64_C(60) * 1000000000)

/* Lock a byte of the file `lock`; type: F_RDLCK or F_WRLCK.  0; -EAGAIN: another process
 * holds the byte; -errno. */
int kvt__tb_lock_byte(int lock_fd, short type, off_t byte);
void kvt__tb_unlock_byte(int lock_fd, off_t byte);

/* The same; wait up to TB_OPEN_WAIT_NS.  0, or -errno with a sentence. */
int kvt__tb_wait_byte(int lock_fd, short type, off_t byte);

/* Return true if another handle locks one of n bytes.  Makes a system call. */
bool kvt__tb_is_locked(int lock_fd, off_t first, off_t n);

/* Read the place of the table.  False: the file has no valid record. */
bool kvt__tb_get_place(int lock_fd, struct tb_place *out);

/* Write the place of the table; sets crc.  0, or -errno with a sentence. */
int kvt__tb_set_place(int lock_fd, struct tb_place *place);

/* Take the shared flock of a table's file; wait up to TB_OPEN_WAIT_NS for a maker that looks
 * whether the file is stale. */
bool kvt__tb_share_file(int fd);

/* Return true if no other handle has the table's file open; the caller then holds the
 * exclusive flock.  The caller has the shared flock and TB_OPEN_BYTE. */
bool kvt__tb_is_alone(int fd);

/* This boot's id; zeros if the system does not report the id.  0; an error that tells nothing
 * about the system, with a sentence. */
int kvt__tb_boot_id(uint8_t out[16]);

/* Return true if the process of an owner lives.  Makes a system call. */
bool kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner);

/* Hold an owner's byte from now on.  False: another process holds the byte. */
bool kvt__tb_lock_owner(const struct kvt__table *t, unsigned owner);
void kvt__tb_unlock_owner(const struct kvt__table *t, unsigned owner);

/* Return true if an open failed because of the process and not of the file. */
static inline bool
tb_is_shortage(int err)
{
    return err == EMFILE || err == ENFILE || err == ENOMEM;
}

/* ------------------------------------------------------------------- redo.c */

/* A transaction.  begin locks; commit writes the redo record and then the values; end
 * unlocks.  A transaction may commit several times. */
struct tb_change {
    struct kvt__table *table;
    uint32_t n;
};

/* Apply the redo record.  The caller holds the lock of the table.  False: the record is
 * garbage. */
bool kvt__tb_redo(struct kvt__table *t);

/* Carry out the change. */
void kvt__tb_commit(struct tb_change *c);

/* Mark the table replaced: a writer met the impossible. */
void kvt__tb_garbage(struct kvt__table *t, const char *what);

static inline void
tb_set(struct tb_change *c, void *at, uint64_t value, bool wide)
{
    struct tb_header *h = c->table->header;
    size_t place = (size_t)((char *)at - (char *)h) | wide;

    __atomic_store_n(&h->redo[c->n].place, place, __ATOMIC_RELAXED);
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

/* Add to a change: a counter is lower by n.  A counter below n is garbage. */
void kvt__tb_lower(struct tb_change *c, uint64_t *counter, uint64_t n);

/* ------------------------------------------------------------------- chain.c */

uint64_t kvt__tb_hash(const struct kvt__table *t, const struct kvt__name *name);

/* The head of a hash in a table of n heads. */
static inline uint32_t
tb_bucket(uint64_t hash, uint32_t n)
{
    uint32_t mask = UINT32_MAX >> __builtin_clz(n | 1);
    uint32_t b = (uint32_t)hash & mask;

    return b < n ? b : b & mask >> 1;
}

/* The entry of a link; TB_NONE: the link ends the chain, or is garbage. */
static inline uint32_t
tb_linked(const struct kvt__table *t, uint32_t link)
{
    uint32_t entry = link & TB_ENTRY;

    return !(link & TB_END) && entry < t->max_entries ? entry : TB_NONE;
}

#define TB_PREFETCHED 32

/* Prefetch what a walk to at most TB_PREFETCHED hashes reads, in three rounds, each of cache
 * lines whose addresses the round before fetched: the heads, the first entries, and the
 * second entries where the first has another name.  Needs no lock. */
void kvt__tb_prefetch(const struct kvt__table *t, const uint64_t *hashes, size_t n);

/* Find the READY entry of a name; id: NULL: of any identity.  Returns the entry and its word,
 * or TB_NONE.  Needs no lock. */
uint32_t kvt__tb_find(const struct kvt__table *t, const struct kvt__name *name,
                      const struct kvt__id *id, uint64_t *word);

/* Find the entry of a name in the state READY or CLAIMED.  The caller holds the lock.
 * Returns the entry, or TB_NONE: no entry, or a garbage chain. */
uint32_t kvt__tb_locate(struct kvt__table *t, const struct kvt__name *name);

/* Add to a change: link a free entry into the chain of a hash. */
void kvt__tb_link(struct tb_change *c, uint32_t entry, uint64_t hash);

/* Add to a change: take an entry out of its chain and free the entry.  bytes: of the entry
 * in used_bytes.  False: the table is garbage, and marked replaced. */
bool kvt__tb_free(struct tb_change *c, uint32_t entry, uint64_t bytes);

/* If the table has more entries than heads, split one chain; a change of its own. */
void kvt__tb_split(struct tb_change *c);

/* The hash of an entry's name. */
uint64_t kvt__tb_entry_hash(const struct kvt__table *t, uint32_t entry);

/* ------------------------------------------------------------------- read.c */

/* Copy a READY entry.  False: the entry is not READY or changes. */
bool kvt__tb_read(const struct kvt__table *t, uint32_t entry, struct kvt__record *out);

/* Mark an entry used now. */
void kvt__tb_used(const struct kvt__table *t, uint32_t entry);

/* ------------------------------------------------------------------- claim.c */

/* Return 0 if the table takes the entries of a file; -ESTALE; -EINVAL: a reader; -ENOENT: the
 * table has an area, which has no objects of other tables. */
int kvt__tb_takes_saved(const struct kvt__table *t);

/* Enter an entry of a file unless the name has an entry, which is younger.  recency: as in
 * struct tb_cold; a time in the future becomes now.  0, or an error that ends the reading. */
int kvt__tb_enter_saved(struct kvt__table *t, const struct kvt__name *name,
                        struct kvt__record *record, uint64_t recency, const char *text,
                        int64_t *n_entered);

/* ------------------------------------------------------------------- end.c */

/* Begin: lock the mutex and the table, and end the claims of this handle whose end found the
 * lock held.  0; -ETIMEDOUT; -ESTALE. */
int kvt__tb_begin(struct kvt__table *t, struct tb_change *c);
void kvt__tb_end(struct tb_change *c);

/* End one claim of this handle in a change of its own.  done: the object is stored, or
 * deleted. */
void kvt__tb_end_one(struct tb_change *c, const struct kvt__claim *claim, bool done);

/* End a claim of a dead owner in a change of its own; the entry becomes what
 * ARCHITECTURE.md, Index, says.  False: there is no such claim. */
bool kvt__tb_end_dead(struct tb_change *c, unsigned owner, uint32_t number);

/* ------------------------------------------------------------------- space.c */

/* Return the number of the text's space, which may get the text now; TB_NO_SPACE for NULL.
 * The caller holds the lock.  -ENFILE: all spaces for this kind of text have entries. */
int kvt__tb_space(struct kvt__table *t, const char *text, uint64_t digest, bool has_tags);

/* Add to a change: a space has one entry more (1) or less (-1). */
void kvt__tb_count_space(struct tb_change *c, uint32_t space, int by);

/* ------------------------------------------------------------------- map.c */

/* The number of entries that a new table can have. */
uint64_t kvt__tb_max_entries(const struct kvt__table_params *params);

/* Set the pointers of the handle to the parts of a mapping.  area_bytes: 0: no area. */
void kvt__tb_set_parts(struct kvt__table *t, void *map, uint64_t max_entries,
                       bool wide_hashes, uint64_t area_bytes);

/* Map t->map_fd, a file that has the size for max_entries and the area, or, if negative,
 * private memory.  0, or -errno with a sentence. */
int kvt__tb_map(struct kvt__table *t, uint64_t max_entries, bool wide_hashes,
                uint64_t area_bytes);

/* Unmap the table, if it is mapped, and close its file, if any. */
void kvt__tb_unmap(struct kvt__table *t);

/* Make an empty table of new, zeroed memory: the area, the heads and the header.  number: zeros
 * in private memory.  store: path of the store's directory.  0, or the error of make_area(). */
int kvt__tb_init(struct kvt__table *t, const struct kvt__table_params *params,
                 const uint64_t number[2], const char *store);

/* Allocate pages of the mapped file; does nothing in private memory.  0; -errno. */
int kvt__tb_allocate_bytes(const struct kvt__table *t, off_t at, off_t bytes);

/* Allocate the memory of the mapped file that the header records: the parts before the
 * entries and n_made entries.  0; -ENOSPC and other errors with a sentence. */
int kvt__tb_allocate(struct kvt__table *t, uint64_t n_made);

/* Give the table memory for more entries than n_made, which the caller has found used.  The
 * caller holds t->mutex and not the lock.  0, also if another thread has done that; -EFBIG: the
 * table has max_entries; -ENOSPC: its file cannot grow; -ESTALE, -ETIMEDOUT. */
int kvt__tb_grow(struct kvt__table *t, uint32_t n_made);

/* Warn, once for each handle, that the file of the table cannot grow.  The caller holds no
 * lock. */
void kvt__tb_warn_full(struct kvt__table *t);

/* Prepare the page tables of this process for all entries that have memory.  The caller
 * holds t->mutex. */
void kvt__tb_populate(struct kvt__table *t);

/* ------------------------------------------------------------------- area.c */

/* Return 0 if an area of this size can be made; -EINVAL with a sentence. */
int kvt__tb_check_area(const struct kvt__table_params *params);

/* ------------------------------------------------------------------- owner.c */

/* Take a free owner's number, after the lock, the redo record and the claims of the last
 * owner of the number are settled.  In a shared table the caller holds TB_OPEN_BYTE.
 * 0; -EUSERS, -ETIMEDOUT, -ESTALE with a sentence. */
int kvt__tb_take_owner(struct kvt__table *t, uint64_t limit_bytes);

/* Give the number back: end the claims of this handle. */
void kvt__tb_leave_owner(struct kvt__table *t);

/* If an owner is dead, end the claims and the limit of the owner.  Returns the number of
 * claims. */
size_t kvt__tb_recover_owner(struct kvt__table *t, unsigned owner);

/* Recover all owners, unless this handle did so less than a second ago. */
size_t kvt__tb_recover_rarely(struct kvt__table *t);

/* ------------------------------------------------------------------- make.c */

/* Make a table for `lock`, with a new number, in the directory dir under a name that
 * kvt__tb_shm_name() or TB_DIR_NEW gives; map the table and lock its file shared.
 * store: path of the store's directory.  0, or -errno with a sentence. */
int kvt__tb_make(struct kvt__table *t, const struct kvt__table_params *params, int dir,
                 const char *name, const uint64_t number[2], const char *store);

/* Delete tables of the tmpfs that no process uses and that no `lock` names.  lock and place:
 * of the table just made. */
void kvt__tb_remove_stale(int shm, const struct stat *lock, const struct tb_place *place);

#define TB_SHM_NAME_MAX 96
#define TB_DIR_NAME "table"
#define TB_DIR_NEW "table.new"

void kvt__tb_shm_name(const struct stat *lock, const uint64_t number[2],
                      char out[TB_SHM_NAME_MAX]);

/* ------------------------------------------------------------------- v3.c */

/* Rename an index of version 3 that `lock` names, for kvt__table_read_v3(); delete another
 * one.  The caller has not written a new place yet. */
void kvt__tb_keep_v3(int dirfd, int lock_fd);

/* ------------------------------------------------------------------- place.c */

/* Map the table that `lock` names, or a new table.  The caller holds TB_OPEN_BYTE.  0, or
 * -errno with a sentence. */
int kvt__tb_open_place(struct kvt__table *t, const struct kvt__table_params *params,
                       int dirfd, const char *store);

/* ------------------------------------------------------------------- open.c */

/* Allocate a handle without a mapping; NULL: no memory. */
struct kvt__table *kvt__tb_new(const struct kvt__table_params *params);

#endif
