/* SPDX-License-Identifier: Apache-2.0
 *
 * How a chunk lies in a file: its name, its directory, what frames the payload, and
 * how that is read back.  Bytes only, no I/O: any thread.  docs/formats.md is the norm. */
#ifndef KVT_TIER_LAYOUT_H
#define KVT_TIER_LAYOUT_H

#include <limits.h>
#include <stdatomic.h>

#include "tier/tier.h"
#include "tier/trailer.h"

#define KVT__XATTR_NAME "user.kvtier"
#define KVT__XATTR_BYTES (KVT__TRAILER_BYTES + 16)
/* Length of the attribute's value on a file whose identity is in a trailer. */
#define KVT__XATTR_MARK_BYTES 1

/* ------------------------------------------------------------------ header */

#define KVT__FS_HEADER_BYTES 28

/* LMCache's RemoteMetadata in front of a payload. */
void kvt__fs_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                        unsigned char out[KVT__FS_HEADER_BYTES]);

/* The payload length that a header tells, or -1. */
int64_t kvt__fs_header_get(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* Whether length and shape of a header agree, as those of a payload's first bytes
 * hardly do by chance. */
bool kvt__fs_header_agrees(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* ----------------------------------------------------------------- layouts */

/* The directories among which a store's chunks are shared out. */
struct kvt__places {
    size_t n;
    bool by_local_rank;
    uint32_t local_ranks; /* 0: not known */
    atomic_uint device;   /* of this worker: 1 + its number; 0: it has none */
    const char *setting;  /* that says how, for messages */
};

/* What stands around a payload in its file. */
struct kvt__form {
    size_t header_bytes;
    size_t trailer_bytes; /* 0 or KVT__TRAILER_BYTES */
    bool has_id; /* the identity stands there too; else in an attribute of the file */
};

struct kvt__layout {
    const char *suffix;           /* of a chunk's file */
    enum kvt__key_encoding names; /* what comes before */
    bool spread;                  /* below directories that the hash names */
    const char *beside;           /* after the name of a chunk's file, that of a second one:
                                   * a copy of the header, which others look for; NULL:
                                   * there is none */
    /* The number of the directory where a chunk is written. */
    size_t (*place)(const struct kvt__places *places, const struct kvt__object *object);

    /* How a chunk is written.  header: as save_chunk_meta says. */
    struct kvt__form (*form)(const struct kvt__object *object, bool header);
    /* As what it may be read. */
    const struct kvt__form *forms;
    size_t n_forms;
    /* Write what stands around the slot's payload.  0 or -errno with a sentence. */
    int (*frame)(const struct kvt__form *form, const struct kvt__object *object,
                 const struct kvt__slot *slot, uint32_t crc);
    /* Check what stands there, and tell what was found.  0; -EBADMSG; -ENOENT: it is no
     * chunk that anybody here knows to read. */
    int (*unframe)(const struct kvt__form *form, const struct kvt__object *object,
                   const struct kvt__slot *slot, struct kvt__found *found);
    /* The same by a file's size and first bytes, of which it wants look_bytes.  trailers:
     * they may be at the end instead. */
    int (*look)(const unsigned char *start, size_t n, uint64_t file_bytes,
                struct kvt__found *found);
    size_t look_bytes;
    bool trailers;
};

extern const struct kvt__layout kvt__layout_fs, kvt__layout_local_disk;

/* At least any layout's look_bytes. */
#define KVT__LOOK_BYTES 4096

/* Room for the name of a chunk's file, below its directory. */
#define KVT__FILE_NAME_BYTES (sizeof "12/34/" + NAME_MAX)

/* The name of the file of a key text; hash: of it, for where files are spread.  0 or
 * -errno. */
int kvt__layout_name(const struct kvt__layout *layout, const char *key,
                     const struct kvt__hash *hash, char *out, size_t size);

/* The name of the file beside one of that name.  False: the layout has none. */
#define KVT__BESIDE_BYTES (KVT__FILE_NAME_BYTES + 16)
bool kvt__beside(const struct kvt__layout *layout, const char *name,
                 char out[KVT__BESIDE_BYTES]);

/* The key text that such a name tells: one that has the same name.  parts: what it
 * says.  0, or -errno when it is no name of a chunk. */
int kvt__layout_key(const struct kvt__layout *layout, const char *name, char *out,
                    size_t size, struct kvt__key_parts *parts);

/* What else lies among files of chunks: a copy beside one, or what LMCache was writing when
 * it ended.  chunk: the name of the chunk's file that a copy is beside. */
enum kvt__other { KVT__NEITHER, KVT__BESIDE, KVT__UNFINISHED };
enum kvt__other kvt__layout_other(const struct kvt__layout *layout, const char *name,
                                  char chunk[KVT__FILE_NAME_BYTES]);

/* The directories of a hash where files are spread: "18/97/". */
#define KVT__SPREAD_BYTES sizeof "12/34/"
void kvt__layout_spread(const struct kvt__hash *hash, char out[KVT__SPREAD_BYTES]);

/* How a file of this size frames a payload of that size.  False: not at all, the file
 * holds something else. */
bool kvt__layout_form_of(const struct kvt__layout *layout, uint64_t file_bytes,
                         uint64_t payload_bytes, struct kvt__form *form);

/* The directories a worker has for itself: n of them from first on, as LMCache's path
 * sharder shares them out.  rank: of all workers.  When more workers share each
 * directory by_local_rank, as many must share every one: -EINVAL. */
struct kvt__share {
    size_t first, n;
};
int kvt__share_of(const struct kvt__places *places, uint32_t rank,
                  struct kvt__share *out);

size_t kvt__place_by_hash(const struct kvt__places *places,
                          const struct kvt__object *object);
size_t kvt__place_by_rank(const struct kvt__places *places,
                          const struct kvt__object *object);

#endif
