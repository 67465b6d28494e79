/* SPDX-License-Identifier: Apache-2.0
 *
 * How a chunk lies in a file: its name, its directory, what frames the payload, and
 * how that is read back.  Bytes only, no I/O.  docs/formats.md is the norm. */
#ifndef KVT_TIER_FILE_LAYOUT_H
#define KVT_TIER_FILE_LAYOUT_H

#include "tier/tier.h"
#include "tier/trailer.h"

#define KVT__TRAILER_BYTES 64
#define KVT__XATTR_NAME "user.kvtier"
#define KVT__XATTR_BYTES (KVT__TRAILER_BYTES + 16)

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
    bool by_local_rank;   /* local_disk_path_sharding */
    uint32_t local_ranks; /* 0: not known */
};

struct kvt__layout {
    const char *suffix;           /* of a chunk's file */
    enum kvt__key_encoding names; /* what comes before */
    bool headers;                 /* LMCache's header may be in front of a payload */
    /* The number of the directory where a chunk is written. */
    size_t (*place)(const struct kvt__places *places, const struct kvt__object *object);
};

extern const struct kvt__layout kvt__layout_fs, kvt__layout_local_disk;

/* File name of a key text.  0 or -errno. */
int kvt__layout_name(const struct kvt__layout *layout, const char *key, char *out,
                     size_t size);

/* The key text that a file name tells: one that has the same name.  parts: what it
 * says.  0, or -errno when it is no name of a chunk. */
int kvt__layout_key(const struct kvt__layout *layout, const char *name, char *out,
                    size_t size, struct kvt__key_parts *parts);

/* The payload bytes of a file that LMCache wrote, from its size and first bytes. */
uint64_t kvt__layout_payload(const struct kvt__layout *layout, uint64_t file_bytes,
                             const unsigned char start[KVT__FS_HEADER_BYTES]);

/* How a file of this size frames a payload of that size. */
struct kvt__form {
    size_t header_bytes;  /* 0 or KVT__FS_HEADER_BYTES */
    size_t trailer_bytes; /* 0 or KVT__TRAILER_BYTES */
};

/* False: no form has that size, the file holds something else. */
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

#endif
