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
/* Length of the attribute's value on a file with the identity in a trailer. */
#define KVT__XATTR_MARK_BYTES 1

/* ------------------------------------------------------------------ header */

#define KVT__FS_HEADER_BYTES 28

/* Write the header of a payload, LMCache's RemoteMetadata. */
void kvt__fs_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                        unsigned char out[KVT__FS_HEADER_BYTES]);

/* Return the payload length in a header, in bytes; -1: the length is above INT32_MAX. */
int64_t kvt__fs_header_get(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* Return true if the length in a header matches the shape in the header.  The first bytes of a
 * payload without a header are very unlikely to match. */
bool kvt__fs_header_agrees(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* ----------------------------------------------------------------- layouts */

/* The distribution of chunks over the configured paths of a store.  A path number counts the paths
 * in the order of the setting, from 0. */
struct kvt__sharding {
    size_t n_paths;
    bool by_local_rank;   /* true: by_local_rank; false: by_gpu */
    uint32_t local_ranks; /* workers on this host; 0: unknown */
    atomic_uint device;   /* 1 + the number of this worker's GPU; 0: no GPU */
    const char *setting;  /* name of the setting that selects the rule, for messages */
};

/* The sizes of header and trailer of a file. */
struct kvt__form {
    size_t header_bytes;
    size_t trailer_bytes; /* 0 or KVT__TRAILER_BYTES */
    bool has_id;          /* true: header or trailer contains the identity; false: an extended
                           * attribute of the file contains the identity */
};

struct kvt__layout {
    const char *suffix;              /* suffix of the name of a chunk's file */
    enum kvt__key_encoding encoding; /* encoding of the key text, before the suffix */
    bool spread;                     /* files are in subdirectories named after the hash */
    const char *sidecar_suffix;      /* suffix of the sidecar, appended to the name of the chunk's
                                      * file.  A sidecar is a second file of a chunk, a copy of the
                                      * header for LMCache.  NULL: no sidecars */
    /* Return the path number of the directory to which a chunk is written. */
    size_t (*choose_path)(const struct kvt__sharding *sharding,
                          const struct kvt__object *object);

    /* Return the form in which a chunk is written.  header: the setting save_chunk_meta. */
    struct kvt__form (*form)(const struct kvt__object *object, bool header);
    /* The forms of readable files. */
    const struct kvt__form *forms;
    size_t n_forms;
    /* Write header and trailer into the margins around the slot's payload.  crc: CRC32C of the
     * payload.  0 or -errno with a sentence. */
    int (*frame)(const struct kvt__form *form, const struct kvt__object *object,
                 const struct kvt__slot *slot, uint32_t crc);
    /* Parse the header of a file without trailer, and fill in found.  start: the first n bytes of
     * the file: at least parse_bytes, or the whole file.  0; -EBADMSG: the header is corrupt;
     * -ENOENT: LMCache wrote the file in a form that kvtier does not read. */
    int (*parse)(const unsigned char *start, size_t n, uint64_t file_bytes,
                 struct kvt__found *found);
    size_t parse_bytes;
    bool trailers; /* a file may have a trailer at the end */
};

extern const struct kvt__layout kvt__layout_fs, kvt__layout_local_disk;

/* Upper bound of parse_bytes of all layouts. */
#define KVT__MAX_PARSE_BYTES 4096

/* Bytes for the name of a chunk's file, with the NUL.  Names are relative to the directory of the
 * path, for opaque chunks to the subdirectory kvtier/. */
#define KVT__FILE_NAME_BYTES (sizeof "12/34/" + NAME_MAX)

/* Write the name of a chunk's file.  hash: the hash in the key text.  0; -EINVAL, -ENAMETOOLONG
 * with a sentence. */
int kvt__layout_name(const struct kvt__layout *layout, const char *key,
                     const struct kvt__hash *hash, char *out, size_t size);

/* Write the name of a chunk's sidecar.  name: the name of the chunk's file.  False: the layout has
 * no sidecars. */
#define KVT__SIDECAR_BYTES (KVT__FILE_NAME_BYTES + 16)
bool kvt__layout_sidecar(const struct kvt__layout *layout, const char *name,
                         char out[KVT__SIDECAR_BYTES]);

/* Convert a file name to a key text that has this file name, and parse the key text.  0; -errno:
 * the name is not the name of a chunk's file. */
int kvt__layout_key(const struct kvt__layout *layout, const char *name, char *out,
                    size_t size, struct kvt__key_parts *parts);

/* Classify a file that is not a chunk's file: a sidecar, or a temporary file that LMCache did not
 * finish; KVT__OTHER_NONE: any other file.  chunk: receives the name of the chunk's file; may be
 * NULL. */
enum kvt__other_file { KVT__OTHER_NONE, KVT__OTHER_SIDECAR, KVT__OTHER_UNFINISHED };
enum kvt__other_file kvt__layout_other(const struct kvt__layout *layout, const char *name,
                                  char chunk[KVT__FILE_NAME_BYTES]);

/* Write the subdirectories of a hash, for example "18/97/", for a layout with `spread`. */
#define KVT__SPREAD_BYTES sizeof "12/34/"
void kvt__layout_spread(const struct kvt__hash *hash, char out[KVT__SPREAD_BYTES]);

/* Find the form of a file from the size of the file and the size of the payload.  False: no form
 * has these sizes. */
bool kvt__layout_form_of(const struct kvt__layout *layout, uint64_t file_bytes,
                         uint64_t payload_bytes, struct kvt__form *form);

/* Parse header and trailer in the margins of a slot, after a read of a file of this form, and fill
 * in found.  0, or an error of the layout's parse(). */
int kvt__layout_unframe(const struct kvt__layout *layout, const struct kvt__form *form,
                        const struct kvt__object *object, const struct kvt__slot *slot,
                        struct kvt__found *found);

/* The path numbers first .. first + n - 1. */
struct kvt__path_range {
    size_t first, n;
};

/* Set *out to the paths of a worker, by the rule of LMCache's path sharder.  rank: the worker's
 * rank among the workers of all hosts.  0; -EINVAL with a sentence: by_local_rank cannot give each
 * path an equal number of workers. */
int kvt__paths_of_rank(const struct kvt__sharding *sharding, uint32_t rank,
                       struct kvt__path_range *out);

/* Implement kvt__layout.choose_path: choose by the object's hash among all paths, or among the
 * paths of the object's rank. */
size_t kvt__path_by_hash(const struct kvt__sharding *sharding,
                         const struct kvt__object *object);
size_t kvt__path_by_rank(const struct kvt__sharding *sharding,
                         const struct kvt__object *object);

#endif
