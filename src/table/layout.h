/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of the mapping, and the packing of an entry.  All fields that other processes may
 * change are read and written only with the atomic helpers below. */
#ifndef KVT_TABLE_LAYOUT_H
#define KVT_TABLE_LAYOUT_H

#include <string.h>

#include "table/table.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the table is little-endian and so must be the machine"
#endif

#define TB_MAGIC "KVTTABLE"
#define TB_VERSION 4u
#define TB_PAGE 4096u
#define TB_N_OWNERS ((unsigned)KVT__TABLE_OWNERS)
#define TB_N_CLAIMS 1024u /* records of claims of each owner */
#define TB_N_SPACES 4096u
#define TB_N_UNTAGGED 1024u /* the first spaces: only for texts without tags */
#define TB_TEXT_WORDS 60u
#define TB_MAX_ENTRIES (UINT64_C(1) << 25)
#define TB_STEP_ENTRIES (UINT64_C(1) << 16) /* entries by which a table grows */
#define TB_MIN_HEADS 1024u
#define TB_MAX_BYTES (UINT64_C(1) << 40) /* the bytes of an object are below this value */
#define TB_MAX_CHAIN 58u /* entries of the longest chain: a split fits the redo record */
#define TB_REDO_MAX 64u
#define TB_DIR_MAX 1024u
#define TB_AREA_ALIGN (UINT64_C(2) << 20) /* a huge page */
#define TB_MAX_AREA (UINT64_C(1) << 46)

enum tb_use { TB_MAKING, TB_IN_USE, TB_REPLACED };

#define TB_N_RATES 6
#define TB_N_LOAD 3
#define TB_N_PREFILLS ((unsigned)KVT__TABLE_PREFILLS)
#define TB_PREFILL_WORDS 10

/* A value that a transaction writes.  offset: offset in the mapping; bit 0: 1 for a value of 8
 * bytes, 0 for a value of 4 bytes. */
struct tb_redo {
    uint64_t offset, value;
};

struct tb_header {
    char magic[8];
    uint32_t version;
    uint32_t use; /* enum tb_use */
    uint64_t max_entries;
    uint32_t wide_hashes;  /* 1: entries have room for hashes of 256 bits */
    uint32_t of_memory;    /* 1: the table describes chunks in memory */
    uint64_t number[2];    /* equal to the number in the file `lock` */
    uint64_t hash_key;     /* random, so that clients cannot make long chains */
    uint64_t area_bytes;   /* 0: the file has no area */
    uint64_t paused_until[2]; /* end of the pause of reads, of writes: monotonic clock, ns */
    uint32_t listed;       /* equal to n_listing_requests + 1 if every object of the store was
                            * listed */
    uint32_t touched;      /* 1: the recency of an entry changed since the last snapshot */
    uint32_t next_sample;  /* start of the next sample of victims */
    uint32_t snapshot_acquisition; /* number of the lock's acquisition at the last snapshot */
    uint32_t n_listing_requests; /* calls of kvt__table_request_listing() */
    uint32_t restored;     /* 1: this table has read or written the file `snapshot` */
    uint32_t area_version; /* version of the area's layout; 0: the file has no area */
    uint32_t expires;      /* 1: an entry has, or had, a time to live */
    uint32_t expired_s;    /* monotonic time, in seconds, of the last search for expired entries */
    uint32_t reserved1[3];

    uint32_t lock;         /* word of the lock, see lock.c */
    uint32_t n_redo;       /* values of the redo record that must be applied */
    uint8_t reserved2[56];

    /* Written by transactions: */
    uint64_t limit_bytes;
    uint64_t used_bytes;
    uint64_t n_entries;    /* READY and CLAIMED entries */
    uint64_t n_unread;
    uint32_t n_made;       /* entries whose pages are allocated */
    uint32_t n_heads;      /* heads of chains in use */
    uint32_t free;         /* first entry of the free list, or TB_NONE */
    uint32_t n_fresh;      /* number of entries that were used at least once; the entries from this
                            * number on are free and not in the free list */
    uint32_t split;        /* twice the number of splits; odd: a split is in progress */
    uint32_t reserved3[3];

    struct tb_redo redo[TB_REDO_MAX];
    char dir[TB_DIR_MAX];  /* path of the directory of `lock`; "": unknown */
    uint64_t rates[TB_N_RATES]; /* members of struct kvt__table_rates, in order */
    uint64_t load[TB_N_LOAD]; /* members of struct kvt__table_speed, in order */
    uint64_t prefills[TB_N_PREFILLS][TB_PREFILL_WORDS]; /* as struct kvt__table_prefill */
    uint8_t reserved[TB_PAGE - 256 - TB_REDO_MAX * 16 - TB_DIR_MAX - TB_N_RATES * 8 -
                     TB_N_LOAD * 8 - TB_N_PREFILLS * TB_PREFILL_WORDS * 8];
};

/* Bytes of the file `lock`.  The locks belong to open file descriptions: a lock ends with the
 * process, and two handles of one process are two owners.  A kvtier with index version 3 locks
 * TB_V3_MAIN to make and to open an index.  A writer with version 3 also locks one of the first
 * TB_V3_OWNERS bytes. */
#define TB_V3_OWNERS 64
#define TB_V3_MAIN 4096    /* all handles hold a read lock */
#define TB_OPEN_BYTE 4097  /* locked by the process that makes tables and takes owners' numbers */
#define TB_LIST_BYTE 4098  /* locked by the process that lists the store */
#define TB_SNAPSHOT_BYTE 4099 /* locked by the process that writes a snapshot */
#define TB_LOCATION_AT 8192   /* offset of struct tb_location */
#define TB_OWNER_BYTE 16384 /* byte of owner 0; owner i locks byte i from here while alive */

enum tb_where { TB_SHM = 1, TB_DIR };

/* The location of the table, stored in the file `lock`. */
struct tb_location {
    uint64_t number[2]; /* number of the table; version 3 stores the number of an index here */
    uint8_t boot_id[16];
    uint64_t device;    /* device and inode of the tmpfs directory, see location.c */
    uint32_t where;     /* enum tb_where */
    uint32_t crc;       /* CRC32C of the bytes before */
};

struct tb_owner {
    uint64_t incarnation; /* random; 0: the record is free */
    uint64_t limit_bytes;
    uint64_t pid;         /* for messages */
    uint64_t reserved;
};

#define TB_NO_CLAIM 0u

/* The record of an owner's claim.  packed: the kind in bits 0-7, the lowest bits of the entry's
 * version in bits 8-31, the entry from bit 32 on.  The record describes the entry as long as the
 * entry is CLAIMED by the owner in this version. */
struct tb_claim {
    uint64_t packed;
    uint64_t bytes; /* KVT__CLAIM_REPLACE: bytes that the claim added to used_bytes */
};

struct tb_space {
    uint64_t digest; /* digest of the text; 0: the space was never used */
    uint32_t n_entries;
    uint32_t n_bytes;
    uint64_t text[TB_TEXT_WORDS];
    uint64_t reserved[2];
};

/* The fields of an entry that each find reads.  word: bits 0-1 state, 2 unread, 3 foreign, 4-11
 * owner, 12-27 space, 28-63 version.  next: link of the chain, or the next entry of the free
 * list.  lease: bits 0-5 number of holders, 6-9 life, 10-31 end in seconds.
 *
 * A life is a number of 4 bits that changes with each claim of an entry without a lease.  So a
 * late reader neither ends nor extends the lease of the next chunk in the entry.  Lives repeat
 * after 16 chunks.  If an entry gets 16 other chunks while a thread is between two instructions
 * of a lease, or before the thread ends an expired lease, the thread ends or extends the lease
 * of another chunk.  If the lease ended early, the chunk may be evicted before the load, and the
 * load is a miss; if the lease was extended, the chunk stays longer. */
struct tb_hot {
    uint64_t word;
    uint64_t id[2];
    uint32_t next;
    uint32_t lease;
};

/* The other fields of an entry.
 * packed: bits 0-39 bytes of the object, 40-61 end of the time to live (see tb_expires_ns()), 62-63
 * form of the hash.
 * recency: time of the last use (FIFO: of the claim), wall clock, ns; bits 0-11: number of
 * uses. */
struct tb_cold {
    uint64_t hash;
    uint64_t packed;
    uint64_t recency;
};

struct tb_wide {
    uint64_t bits[KVT__HASH_WORDS - 1];
};

_Static_assert(KVT__TABLE_UNREAD == 1 && KVT__TABLE_FOREIGN == 2, "flags");
_Static_assert(offsetof(struct tb_header, lock) == 128, "header");
_Static_assert(offsetof(struct tb_header, limit_bytes) == 192, "header");
_Static_assert(offsetof(struct tb_header, redo) == 256, "header");
_Static_assert(sizeof(struct tb_header) == TB_PAGE, "header");
_Static_assert(sizeof(struct tb_location) == 48, "location");
_Static_assert(sizeof(struct tb_owner) == 32, "owner");
_Static_assert(sizeof(struct tb_space) == 512, "space");
_Static_assert(sizeof(struct tb_hot) == 32, "hot");
_Static_assert(sizeof(struct tb_cold) == 24, "cold");

/* The offsets of the parts.  The file is sparse: each part has the size for max_entries. */
struct tb_parts {
    size_t owners, claims, spaces, heads, hot, cold, wide, end;
};

static inline size_t
tb_page_up(size_t bytes)
{
    return (bytes + TB_PAGE - 1) & ~(size_t)(TB_PAGE - 1);
}

static inline struct tb_parts
tb_parts(uint64_t max_entries, bool wide_hashes)
{
    size_t n = (size_t)max_entries;
    struct tb_parts p = { .owners = sizeof(struct tb_header) };

    p.claims = p.owners + tb_page_up(TB_N_OWNERS * sizeof(struct tb_owner));
    p.spaces = p.claims + TB_N_OWNERS * TB_N_CLAIMS * sizeof(struct tb_claim);
    p.heads = p.spaces + TB_N_SPACES * sizeof(struct tb_space);
    p.hot = p.heads + tb_page_up(n * sizeof(uint32_t));
    p.cold = p.hot + tb_page_up(n * sizeof(struct tb_hot));
    p.wide = p.cold + tb_page_up(n * sizeof(struct tb_cold));
    p.end = p.wide + (wide_hashes ? tb_page_up(n * sizeof(struct tb_wide)) : 0);
    return p;
}

/* Return the offset of the area in a file whose parts end at `end`. */
static inline uint64_t
tb_area_at(size_t end)
{
    return (end + TB_AREA_ALIGN - 1) & ~(TB_AREA_ALIGN - 1);
}

/* Return the size of the file; area_bytes: 0: no area. */
static inline size_t
tb_file_bytes(size_t end, uint64_t area_bytes)
{
    return area_bytes ? (size_t)(tb_area_at(end) + area_bytes) : end;
}

/* ------------------------------------------------------------------ atomics */

/* Loads acquire and stores release.  If two sides each write one field and then read the field
 * of the other side (lease and word, the lock), all four accesses are sequentially consistent. */
#ifndef TB_STEP
#define TB_STEP(p) ((void)0) /* the model check has a definition of its own */
#endif
#define TB_LOAD(p) (TB_STEP(p), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define TB_STORE(p, v) (TB_STEP(p), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define TB_LOAD_SEQ(p) (TB_STEP(p), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define TB_STORE_SEQ(p, v) (TB_STEP(p), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))

/* Compare and swap.  Return true after a swap; otherwise tb_swap() sets *old to the present
 * value. */
static inline bool
tb_swap(uint32_t *at, uint32_t *old, uint32_t v)
{
    TB_STEP(at);
    return __atomic_compare_exchange_n(at, old, v, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

static inline bool
tb_swap64(uint64_t *at, uint64_t old, uint64_t v)
{
    TB_STEP(at);
    return __atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

/* --------------------------------------------------------------------- word */

enum tb_state { TB_FREE, TB_CLAIMED, TB_READY };

#define TB_UNREAD UINT64_C(4)
#define TB_FLAGS UINT64_C(12) /* unread and foreign, in a record from bit 0 on */
#define TB_FLAGS_SHIFT 2

static inline enum tb_state
tb_state(uint64_t word)
{
    return (word & 3) == 3 ? TB_FREE : (enum tb_state)(word & 3);
}

static inline unsigned
tb_owner(uint64_t word)
{
    return (unsigned)(word >> 4 & 0xff);
}

static inline uint32_t
tb_space(uint64_t word)
{
    return (uint32_t)(word >> 12 & 0xffff);
}

/* Return the bits of a word for the flags of a record or claim. */
static inline uint64_t
tb_flags(uint32_t flags)
{
    return (uint64_t)flags << TB_FLAGS_SHIFT & TB_FLAGS;
}

/* Return the word that follows `word`: the next version, with this state and owner, and the
 * flags and space of `word`. */
static inline uint64_t
tb_next_word(uint64_t word, enum tb_state state, unsigned owner)
{
    return ((word >> 28) + 1) << 28 | (word & UINT64_C(0xffff00c)) |
           (uint64_t)owner << 4 | (uint64_t)state;
}

/* Return the field packed of the record of a claim. */
static inline uint64_t
tb_pack_claim(enum kvt__claim_kind kind, uint32_t entry, uint64_t word)
{
    return (uint64_t)entry << 32 | (word >> 28 & 0xffffff) << 8 | (uint64_t)kind;
}

/* ------------------------------------------------------------------- fields */

#define TB_NO_SPACE 0xffffu /* the name has no space: a table of memory */

static inline uint64_t
tb_bytes(uint64_t packed)
{
    return packed & (TB_MAX_BYTES - 1);
}

/* The end of a time to live: wall clock in units of 16 s, modulo 2^22; 0: none.  An end is at most
 * TB_TTL_MAX ahead of the clock, and any other value is in the past.  An entry that stays for 596
 * days after its end would have an end in the future again; a search for expired entries runs
 * every TB_EXPIRED_S seconds.  If the clock is set back, the entry lives longer, but never longer
 * than TB_TTL_MAX. */
#define TB_EXPIRY_SHIFT 40
#define TB_EXPIRY UINT64_C(0x3fffff)
#define TB_TTL_UNIT_NS (INT64_C(16) * 1000000000)
#define TB_TTL_MAX (KVT__TABLE_TTL_MAX_S / 16)
#define TB_EXPIRED_S 15u

static inline uint64_t
tb_expiry(uint64_t packed)
{
    return packed >> TB_EXPIRY_SHIFT & TB_EXPIRY;
}

static inline uint64_t
tb_with_expiry(uint64_t packed, uint64_t expiry)
{
    return (packed & ~(TB_EXPIRY << TB_EXPIRY_SHIFT)) | expiry << TB_EXPIRY_SHIFT;
}

/* Return the field for a time in ns, rounded down; a time in the past becomes wall_ns, the present
 * time.  0 ns: no end. */
static inline uint64_t
tb_expiry_from_ns(int64_t expires_ns, int64_t wall_ns)
{
    int64_t now = wall_ns / TB_TTL_UNIT_NS, end = expires_ns / TB_TTL_UNIT_NS;

    if (!expires_ns)
        return 0;
    end = end < now ? now : end > now + TB_TTL_MAX ? now + TB_TTL_MAX : end;
    return (uint64_t)end & TB_EXPIRY ? (uint64_t)end & TB_EXPIRY : TB_EXPIRY;
}

/* Return the end of a time to live in ns; 0: none.  expiry: as tb_expiry(). */
static inline int64_t
tb_expires_ns(uint64_t expiry, int64_t wall_ns)
{
    int64_t now = wall_ns / TB_TTL_UNIT_NS;
    int64_t left = (int64_t)((expiry - (uint64_t)now) & TB_EXPIRY);

    if (!expiry)
        return 0;
    return (now + left - (left > TB_TTL_MAX ? (int64_t)TB_EXPIRY + 1 : 0)) * TB_TTL_UNIT_NS;
}

static inline uint64_t
tb_pack(uint64_t bytes, enum kvt__hash_form form, uint64_t expiry)
{
    return bytes | expiry << TB_EXPIRY_SHIFT | (uint64_t)form << 62;
}

/* A link of a chain: bits 0-24 entry, 25-30 the first bits of the hash of the entry's name,
 * 31: 0.  The link at the end of a chain is TB_END and the number of the chain's head.  Because
 * of the bits of the hash, a walk reads few entries with other names. */
#define TB_END UINT32_C(0x80000000)
#define TB_NONE UINT32_C(0xffffffff) /* end of the free list */
#define TB_ENTRY (UINT32_C(0x1ffffff))

static inline uint32_t
tb_link_bits(uint64_t hash)
{
    return (uint32_t)(hash >> 58) << 25;
}

/* ------------------------------------------------------------------ recency */

#define TB_USES UINT64_C(0xfff)

/* ------------------------------------------------------------------- leases */

#define TB_HOLDERS 0x3fu
#define TB_LIFE 0x3c0u
#define TB_LIFE_1 0x40u
#define TB_LEASE_END 10      /* first bit of the end */
#define TB_LEASE_S 0x3fffffu /* mask of an end */
#define TB_LEASE_MAX_S (24u * 3600u + 2)

/* Return the remaining seconds of a lease that ends at `end`; 0: the end has passed, or `end` is
 * 0, which means no lease.  Seconds are compared modulo 2^22, so a past end looks like a future
 * end only after 47 days. */
static inline uint32_t
tb_lease_left(uint32_t end, int64_t now_ns)
{
    uint32_t left = (end - (uint32_t)(now_ns / 1000000000)) & TB_LEASE_S;

    return end && left <= TB_LEASE_MAX_S ? left : 0;
}

/* Return the lease of an entry that begins the next life: no holder and no end. */
static inline uint32_t
tb_next_life(uint32_t lease)
{
    return (lease + TB_LIFE_1) & TB_LIFE;
}

static inline bool
tb_lease_holds(uint32_t lease, int64_t now_ns)
{
    return tb_lease_left(lease >> TB_LEASE_END, now_ns);
}

#endif
