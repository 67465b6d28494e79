/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a chunk in a file: name, directory, header and trailer.  Bytes only, no I/O:
 * any thread.  docs/formats.md is the norm. */
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

/* Return the payload length of a header, or -1. */
int64_t kvt__fs_header_get(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* Return true if length and shape of a header agree.  The first bytes of a payload hardly
 * agree by chance. */
bool kvt__fs_header_agrees(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* ----------------------------------------------------------------- layouts */

/* The directories of a store, among which chunks are distributed. */
struct kvt__places {
    size_t n;
    bool by_local_rank;
    uint32_t local_ranks; /* 0: not known */
    atomic_uint device;   /* GPU of this worker: 1 + its number; 0: no GPU */
    const char *setting;  /* the setting of the sharing, for messages */
};

/* Header and trailer of a file. */
struct kvt__form {
    size_t header_bytes;
    size_t trailer_bytes; /* 0 or KVT__TRAILER_BYTES */
    bool has_id; /* header or trailer has the identity; else an attribute of the file */
};

struct kvt__layout {
    const char *suffix;           /* suffix of a chunk's file */
    enum kvt__key_encoding names; /* encoding of the name before the suffix */
    bool spread;                  /* files are in subdirectories named after the hash */
    const char *beside;           /* suffix of a second file, after the name of the chunk's
                                   * file: a copy of the header for LMCache; NULL: no
                                   * second file */
    /* The number of the directory where a chunk is written. */
    size_t (*place)(const struct kvt__places *places, const struct kvt__object *object);

    /* Return the form in which a chunk is written.  header: save_chunk_meta. */
    struct kvt__form (*form)(const struct kvt__object *object, bool header);
    /* The forms of readable files. */
    const struct kvt__form *forms;
    size_t n_forms;
    /* Write header and trailer around the slot's payload.  0 or -errno with a sentence. */
    int (*frame)(const struct kvt__form *form, const struct kvt__object *object,
                 const struct kvt__slot *slot, uint32_t crc);
    /* Fill in found from the first n bytes of a file, at least parse_bytes or the whole file,
     * that has no trailer.  trailers: a file may have a trailer at the end.  0; -EBADMSG:
     * corrupt; -ENOENT: the file has another version. */
    int (*parse)(const unsigned char *start, size_t n, uint64_t file_bytes,
                 struct kvt__found *found);
    size_t parse_bytes;
    bool trailers;
};

extern const struct kvt__layout kvt__layout_fs, kvt__layout_local_disk;

/* Upper bound of parse_bytes of all layouts. */
#define KVT__MAX_PARSE_BYTES 4096

/* Room for the name of a chunk's file, below its directory. */
#define KVT__FILE_NAME_BYTES (sizeof "12/34/" + NAME_MAX)

/* Write the name of the file of a key text; hash: of the key, for spread files.  0 or
 * -errno with a sentence. */
int kvt__layout_name(const struct kvt__layout *layout, const char *key,
                     const struct kvt__hash *hash, char *out, size_t size);

/* Write the name of the second file of a chunk.  False: the layout has no second file. */
#define KVT__BESIDE_BYTES (KVT__FILE_NAME_BYTES + 16)
bool kvt__beside(const struct kvt__layout *layout, const char *name,
                 char out[KVT__BESIDE_BYTES]);

/* Write a key text with this file name, and the parts of the key text.  0; -errno: the name
 * is no name of a chunk. */
int kvt__layout_key(const struct kvt__layout *layout, const char *name, char *out,
                    size_t size, struct kvt__key_parts *parts);

/* Return the kind of a file that is no chunk: a second file, or a file that LMCache did not
 * finish.  chunk: the name of the chunk's file. */
enum kvt__other { KVT__NEITHER, KVT__BESIDE, KVT__UNFINISHED };
enum kvt__other kvt__layout_other(const struct kvt__layout *layout, const char *name,
                                  char chunk[KVT__FILE_NAME_BYTES]);

/* Write the directories of a hash for spread files: "18/97/". */
#define KVT__SPREAD_BYTES sizeof "12/34/"
void kvt__layout_spread(const struct kvt__hash *hash, char out[KVT__SPREAD_BYTES]);

/* Get the form of a file of this size with a payload of payload_bytes.  False: no form has
 * these sizes. */
bool kvt__layout_form_of(const struct kvt__layout *layout, uint64_t file_bytes,
                         uint64_t payload_bytes, struct kvt__form *form);

/* Fill in found from header and trailer around a slot's payload, of a file of this form.  0, or
 * an error of the layout's parse(). */
int kvt__layout_unframe(const struct kvt__layout *layout, const struct kvt__form *form,
                        const struct kvt__object *object, const struct kvt__slot *slot,
                        struct kvt__found *found);

/* Write the directories of a worker: n directories, beginning with `first`, as LMCache's path
 * sharder assigns them.  rank: of all workers.  With by_local_rank, if several workers share a
 * directory, each directory must have the same number of workers; otherwise the function returns
 * -EINVAL with a sentence. */
struct kvt__share {
    size_t first, n;
};
int kvt__share_of(const struct kvt__places *places, uint32_t rank,
                  struct kvt__share *out);

/* Functions for kvt__layout.place: return the number of the directory by the object's hash, or by
 * rank and hash. */
size_t kvt__place_by_hash(const struct kvt__places *places,
                          const struct kvt__object *object);
size_t kvt__place_by_rank(const struct kvt__places *places,
                          const struct kvt__object *object);

#endif
