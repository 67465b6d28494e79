/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared files and the handle.
 *
 * A slot is used exactly if an entry of the table that is not FREE names the slot in
 * slot_of[] and the slot's word names the entry.  A process takes a slot for an entry that
 * the process has claimed: slot_of[entry] first, then the word by compare-and-swap.  So a
 * killed process leaves no used slot: when the table frees the entry, the slot is free, and
 * any process may clear the word (a sweep).  The count in the word makes a late
 * compare-and-swap fail. */
#ifndef KVT_SHARE_PRIVATE_H
#define KVT_SHARE_PRIVATE_H

#include <pthread.h>

#include "base/fork.h"
#include "share/share.h"

#define SH_MAGIC "KVTSHARE"
#define SH_VERSION 1u
#define SH_PAGE 4096u /* a slot is a multiple */
#define SH_N_SEGMENTS 256u
#define SH_SEGMENT_BYTES (UINT64_C(64) << 20) /* the least, if the limit is large */
#define SH_MAX_LIMIT (UINT64_C(1) << 43)
#define SH_STEP_BYTES (UINT64_C(8) << 20) /* allocated at once */
#define SH_STEP_ENTRIES 65536u

#ifndef SH_STEP
#define SH_STEP(p) ((void)0) /* tests compile with another */
#endif
#define SH_LOAD(p) (SH_STEP(p), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define SH_STORE(p, v) (SH_STEP(p), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))
#define SH_SWAP(p, old, v) (SH_STEP(p), __atomic_compare_exchange_n((p), (old), (v), false, \
                            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))

struct sh_header {
    char magic[8];       /* written last */
    uint32_t version;
    uint32_t n_segments;
    uint64_t limit_bytes;
    uint64_t segment_bytes;
    uint64_t max_entries;
    uint64_t used_ns;    /* wall clock of the last use, about a second coarse */
    uint64_t hand;       /* slot at which the next sweep begins */
    uint32_t sample;     /* start of the next sample of victims */
    uint32_t n_slot_of;  /* numbers of slot_of[] that have memory */
};

/* word: bits 0-23 pages of a slot (0: the segment has no size), 24 draining: the owner in
 * bits 25-33 evicts all chunks, 34-63 count of changes. */
struct sh_segment {
    uint64_t word;
    uint64_t made_bytes; /* with memory */
    uint64_t used_ns;    /* wall clock of the last use, about a second coarse */
    uint32_t has_free;   /* 0: no slot was free at the last look */
    uint32_t hand;       /* slot at which the next search begins */
    uint64_t rest[4];
};

/* The entries whose slots an owner reads.  A set bit of `used` makes a pin valid. */
struct sh_pins {
    uint64_t used[KVT__SHARE_PINS / 64];
    uint64_t rest[4];
    uint32_t entry[KVT__SHARE_PINS];
};

/* word: bits 0-31 entry + 1 (0: none), 32-63 count of changes. */
struct sh_slot {
    uint64_t word;
    uint64_t bytes;
    uint32_t crc;
    uint32_t tokens;
    uint32_t flags;
    uint32_t rest;
};

#define SH_DAMAGED 0x80000000u /* of flags: lookups miss */

_Static_assert(sizeof(struct sh_segment) == 64, "segment");
_Static_assert(sizeof(struct sh_slot) == 32, "slot");

struct sh_parts {
    uint64_t segments, pins, slot_of, slots, end;
};

struct kvt__share {
    struct kvt__table *table;
    struct sh_header *header;
    struct sh_segment *segments;
    struct sh_pins *pins;        /* [owner] */
    uint32_t *slot_of;           /* [entry]: slot + 1 */
    struct sh_slot *slots;       /* [segment * segment_slots + number] */
    unsigned char *payload;
    struct sh_parts parts;       /* of the file of records */
    uint64_t limit_bytes, segment_bytes, max_entries;
    uint32_t n_segments;
    uint32_t segment_slots;      /* the most of a segment */
    unsigned owner, generation;
    int dir_fd, payload_dir_fd, records_fd, payload_fd, lock_fd;
    const char *key, *dir;
    uint64_t keep_bytes;
    bool huge_pages;

    pthread_mutex_t growth;      /* held while memory is allocated or given back */
    int64_t retry_ns;            /* no growth before; guarded by growth */
    bool reported[SH_N_SEGMENTS]; /* by kvt__share_segments() */
    bool has_reported;
};

static inline bool
sh_usable(const struct kvt__share *s)
{
    return s->generation == kvt__fork_generation_now();
}

/* ----------------------------------------------------------------- segments */

static inline uint32_t
sh_pages(uint64_t word)
{
    return (uint32_t)(word & 0xffffff);
}

#define SH_DRAINING (UINT64_C(1) << 24)

static inline unsigned
sh_drainer(uint64_t word)
{
    return (unsigned)(word >> 25 & 0x1ff);
}

/* The word after `word`. */
static inline uint64_t
sh_segment_word(uint64_t word, uint32_t pages)
{
    return ((word >> 34) + 1) << 34 | pages;
}

/* Number of slots of a segment within the first `bytes`. */
static inline uint32_t
sh_n_slots(uint64_t word, uint64_t bytes)
{
    return sh_pages(word) ? (uint32_t)(bytes / ((uint64_t)sh_pages(word) * SH_PAGE)) : 0;
}

/* The slots of a segment that have memory. */
static inline uint32_t
sh_n_made(const struct kvt__share *s, uint32_t segment, uint64_t word)
{
    uint64_t made = SH_LOAD(&s->segments[segment].made_bytes);

    return sh_n_slots(word, made < s->segment_bytes ? made : s->segment_bytes);
}

/* ------------------------------------------------------------------- slots.c */

/* Take the slot for an entry that the caller has claimed.  False: the slot's word names
 * another entry. */
bool kvt__sh_take(struct kvt__share *s, uint32_t slot, uint32_t entry);

/* Give back a slot of an entry that the caller has claimed. */
void kvt__sh_release(struct kvt__share *s, uint32_t slot, uint32_t entry);

/* Clear the word of a slot that no entry names. */
void kvt__sh_sweep_slot(struct kvt__share *s, uint32_t slot);

/* Sweep the next n slots; end the drains of dead owners. */
void kvt__sh_sweep(struct kvt__share *s, uint32_t n);

/* End the drain of a segment if its owner is dead, or is this handle. */
void kvt__sh_end_drain(struct kvt__share *s, uint32_t segment);

/* The slot and payload of a READY entry.  False: the records are garbage or change. */
bool kvt__sh_locate(const struct kvt__share *s, uint32_t entry, uint32_t *slot,
                    unsigned char **payload);

/* Note the use of a segment. */
void kvt__sh_note_use(struct kvt__share *s, uint32_t segment);

/* ------------------------------------------------------------------- pins.c */

/* Pin an entry.  Returns the number of the pin; -EAGAIN: all are in use. */
int kvt__sh_pin(struct kvt__share *s, uint32_t entry);
void kvt__sh_unpin(struct kvt__share *s, unsigned pin);

/* Return true if a living owner pins the entry.  The caller has made the entry CLAIMED. */
bool kvt__sh_is_pinned(const struct kvt__share *s, uint32_t entry);

/* ------------------------------------------------------------------- grow.c */

/* Give slot_of[] memory for an entry.  0; -ENOSPC. */
int kvt__sh_grow_entries(struct kvt__share *s, uint32_t entry);

/* Give a segment without a size the size of `pages` per slot.  Returns the segment;
 * -ENOSPC: all have a size. */
int kvt__sh_new_segment(struct kvt__share *s, uint32_t pages);

/* Give a segment memory for more slots.  0; -ENOSPC: the last try failed less than a second
 * ago; or an error with a sentence. */
int kvt__sh_extend(struct kvt__share *s, uint32_t segment);

/* Allocate the records of a segment's slots.  0; -ENOSPC. */
int kvt__sh_allocate_slots(struct kvt__share *s, uint32_t segment, uint32_t pages);

/* Give the memory of a segment back to the host.  The segment is draining, all its slots
 * are free, and no other process uses the memory. */
void kvt__sh_give_back(struct kvt__share *s, uint32_t segment);

/* Compare with the available memory of host and control group and with the room of the file
 * system.  0, or -ENOMEM or -ENOSPC with a sentence. */
int kvt__sh_check_room(const struct kvt__share *s, uint64_t bytes);

/* Fail unless the directories are in memory, with huge pages if they are required. */
int kvt__sh_check_dirs(const struct kvt__share *s);

/* ------------------------------------------------------------------- evict.c */

/* Free a READY entry and its slot.  0, or an error of kvt__table_evict(); -EBUSY also: a
 * reader pins the slot. */
int kvt__sh_evict(struct kvt__share *s, const struct kvt__record *seen, bool force);

/* Make room for a slot of this size: evict a chunk of the size, or give the size another
 * segment.  0; -ENOSPC. */
int kvt__sh_make_room(struct kvt__share *s, uint32_t pages);

/* Delete all chunks; with give_back, return the memory to the host. */
void kvt__sh_empty(struct kvt__share *s, bool give_back);

/* ------------------------------------------------------------------- alloc.c */

/* Take a slot for a claimed entry.  0, or -ENOSPC with a sentence. */
int kvt__sh_alloc(struct kvt__share *s, uint32_t entry, uint32_t pages, uint32_t *slot);

/* ------------------------------------------------------------------- files.c */

/* Open the directories and the file `users`. 0, or -errno with a sentence. */
int kvt__sh_open_dirs(struct kvt__share *s, const struct kvt__share_params *params);

/* Map the files of the table's number.  0; -ENOENT: there are none, or they are unusable;
 * -EXDEV: the payload is not in this directory; or an error with a sentence. */
int kvt__sh_map(struct kvt__share *s);

/* Make the files of the table's number and map them. */
int kvt__sh_make(struct kvt__share *s, const struct kvt__share_params *params);

void kvt__sh_unmap(struct kvt__share *s);

/* Delete the files of other numbers. */
void kvt__sh_remove_others(struct kvt__share *s);

/* Bytes of the file `users`: locks of open file descriptions. */
enum { SH_OPEN_BYTE, SH_USER_BYTE };

/* Lock, or end with F_UNLCK, a lock of the file `users`.  0; -EAGAIN; -errno. */
int kvt__sh_lock(const struct kvt__share *s, short type, off_t byte);

#endif
