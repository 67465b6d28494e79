/* SPDX-License-Identifier: Apache-2.0
 *
 * The index: which chunks a store holds, shared by all processes on a host
 * through one file mapping.  Layout and state machine: docs/formats.md, Index.
 *
 * Any thread.  Nothing here blocks on other processes or takes a lock in a
 * lookup; only open, close, recover and a claim of a new space take the
 * lock of the file, and a claim that meets another owner's asks the kernel
 * whether that one lives.  Every byte of the mapping may be garbage: values are
 * range-checked before they are used, and nothing in it can make a call loop,
 * fault or write out of bounds.
 *
 * After a fork, in the child, and when another version of kvtier has replaced
 * the file, a handle finds nothing, and calls that return int answer -ESTALE;
 * close it and open another.  Calls that only a writer may make answer -EINVAL
 * to a reader. */
#ifndef KVT_INDEX_INDEX_H
#define KVT_INDEX_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key/key.h"

struct kvt__index;

/* Which entries are evicted first: those unused longest, used least often, made
 * first, or used last. */
enum kvt__policy { KVT__LRU, KVT__LFU, KVT__FIFO, KVT__MRU };

/* As cache_policy names it; LRU for any other name. */
enum kvt__policy kvt__policy_named(const char *name);

struct kvt__index_params {
    /* The store's private directory, open; -1: a table of this process alone,
     * in anonymous memory. */
    int dirfd;
    uint64_t n_entries;   /* wanted when the file is made; rounded up */
    uint64_t limit_bytes; /* 0: none */
    bool writer;          /* claims entries and evicts; else finds and leases */
    bool wide_hashes;     /* entries must have room for them */
    bool keep_version;    /* a file of another version is an error, not replaced */
    enum kvt__policy policy; /* of this handle's uses and evictions */
};

/* Open or make the table.  A file of another version, of wrong size, with a damaged
 * header or without room for the wanted wide hashes is replaced; if the file cannot be
 * made (disk full, read-only) the table is private and one message says so; a 65th
 * writer also gets a private table.  A private table does not share the limit of other
 * processes, so the store then writes nothing.  Blocks on the "lock" file's byte 4096 for
 * as long as another process makes or recounts the file (at most 60 s, then a private
 * table).  The first writer counts all entries. */
int kvt__index_open(const struct kvt__index_params *params,
                    struct kvt__index **out);

/* Claims and reservations of this handle are given back.  No other call may be
 * under way.  In a child of fork it only frees memory. */
void kvt__index_close(struct kvt__index *ix);

/* Free the writer's place of an index that is not current any more.  The handle stays open
 * for other threads. */
void kvt__index_retire(struct kvt__index *ix);

bool kvt__index_is_shared(const struct kvt__index *ix);

/* Return true if the directory still holds the files of this handle; false after another
 * process replaced or deleted a file.  From then on the handle finds nothing, and calls
 * return -ESTALE.  Makes two system calls. */
bool kvt__index_is_current(struct kvt__index *ix);

/* Whether a writer of it lives: a few system calls. */
bool kvt__index_has_writer(const struct kvt__index *ix);

/* Whether every file of the directory is in the table, and saying so.  It is no
 * longer true, and unset, when an owner died or closed amid a store or eviction:
 * a file may be there of which no entry tells. */
bool kvt__index_scanned(const struct kvt__index *ix);
void kvt__index_set_scanned(struct kvt__index *ix, bool scanned);

/* Call before and after reading the directory.  The end sets scanned unless a process
 * cleared scanned since the begin: the scan may have passed a file that lost its entry
 * afterwards. */
uint32_t kvt__index_begin_scan(const struct kvt__index *ix);
void kvt__index_end_scan(struct kvt__index *ix, uint32_t began);

/* ------------------------------------------------------------------- pauses */

enum kvt__index_pause { KVT__READS, KVT__WRITES };

#define KVT__INDEX_PAUSE_MAX_NS (INT64_C(120) * 1000000000)

/* Storage that fails is not read, or written, for a while, by no process that has the
 * table.  kvt__index_pause() begins that or makes it longer, kvt__index_resume() ends
 * it; true: there was none since the last one was ended, or there was one. */
bool kvt__index_is_paused(const struct kvt__index *ix, enum kvt__index_pause what);
bool kvt__index_pause(struct kvt__index *ix, enum kvt__index_pause what, int64_t ns);
bool kvt__index_resume(struct kvt__index *ix, enum kvt__index_pause what);

/* ------------------------------------------------------------------- spaces */

#define KVT__INDEX_SPACE_TEXT_MAX 479

#define KVT__INDEX_NO_SPACE UINT32_C(0xffff)

/* An entry names its file by its hash and by the number of a space: a key text with an
 * empty hash.  A claim finds or makes the space of its text.  If no space is free, an
 * unused space gets the new text.  Some spaces are reserved for texts without tags. */

/* Copy the text of an entry's space.  The caller has claimed the entry or is evicting
 * the entry; otherwise the space may have another text by now.  0, or -ENOENT. */
int kvt__index_space_text(const struct kvt__index *ix, uint32_t space, char *out,
                          size_t size);

/* Return the digest of a space's text: the first 8 bytes of its SHA-256, or 0 if the
 * space has no text. */
uint64_t kvt__index_space_digest(const struct kvt__index *ix, uint32_t space);
uint64_t kvt__index_text_digest(const char *text);

/* ------------------------------------------------------------------ entries */

#define KVT__INDEX_UNREAD 1u  /* found by name; identity not read yet */
#define KVT__INDEX_FOREIGN 2u /* carries no identity */
/* 4u is the table's own */
#define KVT__INDEX_EXPECTED 8u /* no process has seen the chunk in storage yet */

struct kvt__index_entry {
    struct kvt__id id;
    struct kvt__hash hash;
    uint64_t bytes;     /* on disk, below 2^40 */
    uint32_t space;     /* or KVT__INDEX_NO_SPACE */
    uint32_t path;      /* number of the directory, below 128 */
    uint32_t tokens;
    uint32_t flags;
    int64_t recency_ns; /* wall clock, a multiple of 4096 */
    uint32_t n_uses;    /* at most 4095; of an entry to claim: 0 */
    int64_t lease_ns;   /* monotonic clock */
    /* slot and word change when the entry is stored anew; a claim ignores both */
    uint64_t slot, word;
};

/* It will be looked for soon: the memory where it most likely is is fetched. */
void kvt__index_prefetch(const struct kvt__index *ix, const struct kvt__id *id);

/* A ready entry as it was at one instant.  out may be NULL. */
bool kvt__index_find(const struct kvt__index *ix, const struct kvt__id *id,
                     struct kvt__index_entry *out);

/* Find, and promise: no eviction takes the entry before until_ns (monotonic, at
 * most 24 hours ahead; a lease is never shortened), or before this holder and all
 * others have ended it.  Also marks it used now.  out may be NULL. */
bool kvt__index_lease(struct kvt__index *ix, const struct kvt__id *id,
                      int64_t until_ns, struct kvt__index_entry *out);

/* End one holder's lease early; the last one's end makes the entry evictable.
 * Once for each successful lease, and not after its until_ns: the lease of
 * another might end instead.  A holder that dies costs its time only. */
void kvt__index_unlease(struct kvt__index *ix, const struct kvt__id *id);

/* Lease it without being a holder: the end of the last holder ends this too. */
void kvt__index_hold(struct kvt__index *ix, const struct kvt__id *id, int64_t until_ns);

/* Mark used now. */
void kvt__index_touch(struct kvt__index *ix, const struct kvt__id *id);

/* An entry this handle has claimed, or is evicting. */
struct kvt__index_claim {
    uint64_t slot;
    uint64_t word;
    uint64_t bytes;
    const void *map; /* of the claiming handle; another handle cannot end the claim */
};

/* Take bytes from the budget.  0, or -ENOSPC: evict, then ask again. */
int kvt__index_reserve(struct kvt__index *ix, uint64_t bytes);
void kvt__index_unreserve(struct kvt__index *ix, uint64_t bytes);

/* Claim an entry for id; its bytes must have been reserved and belong to the
 * claim from now on.  entry's lease_ns is ignored; its recency_ns is kept, 0
 * stands for the time of publish.  text: the entry's key text with an empty hash, for
 * which entry->space is chosen; may take the lock of the file.  NULL: the caller has set
 * entry->space.
 *   -EEXIST  it is there, or a live owner (this one too) stores or evicts it
 *   -ENOSPC  all sixteen places are taken
 *   -ENFILE  no space is free for the text
 *   -ETIMEDOUT  another process held the lock of the file for 5 s
 *   -ENOTSUP a wide hash, for which the table has no room
 * On an error the reservation is still the caller's and *claim names no entry;
 * so it does after a claim is ended, and ending it again does nothing. */
int kvt__index_claim(struct kvt__index *ix, const struct kvt__index_entry *entry,
                     const char *text, struct kvt__index_claim *claim);

/* The claimed entry is ready.  Return false if the claim is another handle's: the index was
 * replaced since the claim. */
bool kvt__index_publish(struct kvt__index *ix, struct kvt__index_claim *claim);

/* The claimed entry is free again and its bytes are given back. */
void kvt__index_abort(struct kvt__index *ix, struct kvt__index_claim *claim);

/* Begin to evict the entry of id: nobody finds it any more; leased entries only
 * with force.  0 and the entry in out; -ENOENT, -EBUSY (leased, or another's).
 * Ended by kvt__index_removed() when the file is gone, or kvt__index_restore()
 * when it could not be removed. */
int kvt__index_evict(struct kvt__index *ix, const struct kvt__id *id, bool force,
                     struct kvt__index_entry *out, struct kvt__index_claim *claim);
/* Begin to evict the entry `seen`, leased or not.  0; -ENOENT: the entry was deleted or
 * stored anew since the caller read `seen`. */
int kvt__index_evict_seen(struct kvt__index *ix, const struct kvt__index_entry *seen,
                          struct kvt__index_claim *claim);
void kvt__index_removed(struct kvt__index *ix, struct kvt__index_claim *claim);
void kvt__index_restore(struct kvt__index *ix, struct kvt__index_claim *claim);

/* The up to n ready, unleased entries that the policy lets go first, in that order;
 * returns their number.  near: only the sixteen places where this identity could
 * stand (NULL: all).  Walks the table. */
size_t kvt__index_first(const struct kvt__index *ix, const struct kvt__id *near,
                         struct kvt__index_entry *out, size_t n);

/* Call fn with every ready entry until it returns false.  Walks the table;
 * entries that change meanwhile may be missed. */
void kvt__index_each(const struct kvt__index *ix,
                     bool (*fn)(void *ctx, const struct kvt__index_entry *entry),
                     void *ctx);

/* Free what dead owners left (claims, evictions, reservations) and recount
 * used_bytes; when others change it all the time, the next call counts again, and
 * until then used_bytes is too high.  Returns the entries freed.  Cheap when no
 * owner died: a system call for each other writer. */
size_t kvt__index_recover(struct kvt__index *ix);

/* Make every ready entry go, leased ones too (the directory is to be scanned
 * anew).  Writers only. */
void kvt__index_clear(struct kvt__index *ix);

struct kvt__index_totals {
    uint64_t n_entries;
    uint64_t n_ready;
    uint64_t n_unread;
    uint64_t used_bytes;
    uint64_t limit_bytes; /* 0: none */
};

void kvt__index_get_totals(const struct kvt__index *ix,
                           struct kvt__index_totals *out);

#endif
