/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared host memory: chunks in one mapping that all processes of the user on this host
 * share.  The first process makes the memory; a killed process leaves the memory whole; the
 * memory stays when the last process ends.  Design: docs/core-design.md, Shared host memory.
 *
 * Any thread.  In a forked child, and after the table was replaced, a handle finds nothing,
 * and calls that return int return -ESTALE.  Times are nanoseconds. */
#ifndef KVT_SHARE_SHARE_H
#define KVT_SHARE_SHARE_H

#include "table/table.h"

struct kvt__share;

struct kvt__share_params {
    uint64_t limit_bytes;    /* bound for the chunks of all processes of the host */
    uint64_t chunk_bytes;    /* payload of this process's usual chunk; 0: unknown.  The maker
                              * chooses segments without waste for this size. */
    int64_t ttl_ns;          /* an open deletes chunks of a memory without user and without
                              * use for this time; 0: never */
    bool writer;             /* stores and reads; another handle looks and leases, and opens
                              * an existing memory only */
    bool huge_pages;         /* require huge pages in the file system of the payload */
    enum kvt__order order;   /* of this handle's evictions and uses */
    const char *key;         /* setting of limit_bytes, for messages; outlives the handle */
    const char *dir;         /* a tmpfs; NULL: /dev/shm */
    const char *payload_dir; /* a hugetlbfs or a tmpfs; NULL: dir */
    uint64_t keep_bytes;     /* of the payload's tmpfs that stay free; 0: 10 %, at least
                              * 1 GiB */
};

/* Open or make the memory of the user.  A memory of another limit or version is replaced if
 * no process uses the memory; otherwise the limit stays, and a message says so.  Waits at
 * most 60 s for another process that opens.  0, or -errno with a sentence:
 *   -ENOENT  a handle without `writer`, and there is no memory
 *   -ENOMEM  the host or the control group has less available memory than a new memory may
 *            take
 *   -ENOSPC  the tmpfs is too small
 *   -ENOTSUP a directory is no tmpfs, or lacks required huge pages
 *   -EINVAL  other processes have the payload in another directory
 *   -EUSERS  256 writers have the memory open */
int kvt__share_open(const struct kvt__share_params *params, struct kvt__share **out);

/* End the handle's claims and pins and free the handle.  No other call may be in progress
 * and no read open.  In a forked child the call only frees memory. */
void kvt__share_close(struct kvt__share *share);

/* Return false if the handle must be closed and opened again: the memory was replaced or
 * deleted.  Makes two system calls. */
bool kvt__share_is_current(struct kvt__share *share);

/* ------------------------------------------------------------------- lookups */

/* Return true if the chunk is in memory. */
bool kvt__share_has(struct kvt__share *share, const struct kvt__id *id);

/* As kvt__table_lease(), unlease, hold and touch. */
bool kvt__share_lease(struct kvt__share *share, const struct kvt__id *id, int64_t until_ns);
void kvt__share_unlease(struct kvt__share *share, const struct kvt__id *id);
void kvt__share_hold(struct kvt__share *share, const struct kvt__id *id, int64_t until_ns);
void kvt__share_touch(struct kvt__share *share, const struct kvt__id *id);

/* ------------------------------------------------------------------ transfers */

struct kvt__share_chunk {
    const void *payload;
    uint64_t bytes;
    uint32_t crc;    /* CRC32C of the payload */
    uint32_t tokens;
    uint32_t flags;  /* of the caller, below 2^31 */
};

/* Copy a chunk into the memory.  Evicts other chunks; does not wait for readers or leases.
 * May allocate up to 8 MiB, or one chunk, of the file system.
 *   -EEXIST  the chunk is in memory
 *   -EBUSY   another thread or process stores the chunk
 *   -ENOSPC  no memory: all chunks are leased, read or being stored, or the host has no
 *            more memory
 *   -EFBIG   the chunk is larger than a segment
 *   -EAGAIN, -ETIMEDOUT as kvt__table_claim(); -EINVAL: a handle without `writer` */
int kvt__share_put(struct kvt__share *share, const struct kvt__id *id,
                   const struct kvt__share_chunk *chunk);

/* An open read: chunk.payload points into the mapping and does not change before the end of
 * the read. */
struct kvt__share_read {
    struct kvt__share_chunk chunk;
    unsigned pin;
};

/* Find a chunk and pin the slot until kvt__share_end_read() or the end of the process.  The
 * caller compares the CRC of the bytes that it copies.  Marks the chunk used.
 * -ENOENT: a miss; -EAGAIN: this handle has KVT__SHARE_PINS open reads. */
int kvt__share_begin_read(struct kvt__share *share, const struct kvt__id *id,
                          struct kvt__share_read *out);
void kvt__share_end_read(struct kvt__share *share, struct kvt__share_read *read);

#define KVT__SHARE_PINS 256

/* Copy a chunk of exactly these bytes and verify the CRC.  -ENOENT: a miss, or another size;
 * -EBADMSG with a sentence: the chunk was corrupt and is deleted. */
int kvt__share_get(struct kvt__share *share, const struct kvt__id *id, void *payload,
                   uint64_t bytes, struct kvt__share_chunk *out);

/* Delete a corrupt chunk.  Lookups miss at once; a slot that another reader pins is free
 * after the read. */
void kvt__share_forget(struct kvt__share *share, const struct kvt__id *id);

/* Delete all chunks, also leased chunks; chunks that are read stay.  If no other handle is
 * open and kvt__share_segments() was not called, give the memory back to the host.  Returns
 * the number of chunks that stay, or -errno. */
int64_t kvt__share_clear(struct kvt__share *share);

/* --------------------------------------------------------------------- status */

struct kvt__share_info {
    struct kvt__id id;
    uint64_t bytes;
    uint32_t crc, tokens, flags;
    int64_t recency_ns; /* wall clock */
};

/* Call fn for each chunk until fn returns false.  May miss chunks that change. */
void kvt__share_each(struct kvt__share *share,
                     bool (*fn)(void *ctx, const struct kvt__share_info *info), void *ctx);

struct kvt__share_totals {
    uint64_t n_chunks;     /* also of puts in progress */
    uint64_t used_bytes;   /* payload of the chunks */
    uint64_t memory_bytes; /* taken from the host */
    uint64_t limit_bytes;
};

void kvt__share_get_totals(struct kvt__share *share, struct kvt__share_totals *out);

/* Populate the page tables of this process and call fn for each segment that has all its
 * memory and that earlier calls did not report, for registration with a GPU's driver: no
 * chunk spans two segments.  fn returns false: the next call reports the segment again.  One
 * thread at a time. */
void kvt__share_segments(struct kvt__share *share,
                         bool (*fn)(void *ctx, void *at, uint64_t bytes), void *ctx);

#endif
