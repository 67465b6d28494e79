/* SPDX-License-Identifier: Apache-2.0
 *
 * How a chunk lies in a file: its name, what frames the payload, and how that is
 * read back.  Bytes only, no I/O.  docs/formats.md is the norm. */
#ifndef KVT_TIER_FILE_LAYOUT_H
#define KVT_TIER_FILE_LAYOUT_H

#include "tier/tier.h"

#define KVT__TRAILER_BYTES 64
#define KVT__XATTR_NAME "user.kvtier"
#define KVT__XATTR_BYTES (KVT__TRAILER_BYTES + 16)

/* ----------------------------------------------------------------- trailer */

/* What is in a trailer. */
struct kvt__trailer {
    uint64_t payload_bytes;
    uint32_t payload_at;
    uint32_t crc;
    uint32_t tokens;
    bool id_of_key;
    struct kvt__id id;
};

void kvt__trailer_put(const struct kvt__trailer *t,
                      unsigned char out[KVT__TRAILER_BYTES]);

/* False: not a trailer, or damaged. */
bool kvt__trailer_get(const unsigned char in[KVT__TRAILER_BYTES],
                      struct kvt__trailer *t);

/* ---------------------------------------------------------------------- fs */

#define KVT__FS_HEADER_BYTES 28

/* LMCache's RemoteMetadata in front of a payload. */
void kvt__fs_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                        unsigned char out[KVT__FS_HEADER_BYTES]);

/* The payload length that a header tells, or -1. */
int64_t kvt__fs_header_get(const unsigned char in[KVT__FS_HEADER_BYTES]);

/* File name of a key text, and back.  0 or -errno. */
int kvt__fs_name(const char *key, char *out, size_t size);
int kvt__fs_key(const char *name, char *out, size_t size);

/* The payload bytes of a file that LMCache wrote, from its size and first bytes. */
uint64_t kvt__fs_payload(uint64_t file_bytes,
                         const unsigned char start[KVT__FS_HEADER_BYTES]);

/* How a file of this size frames a payload of that size. */
struct kvt__fs_form {
    size_t header_bytes;  /* 0 or KVT__FS_HEADER_BYTES */
    size_t trailer_bytes; /* 0 or KVT__TRAILER_BYTES */
};

/* False: no form has that size, the file holds something else. */
bool kvt__fs_form_of(uint64_t file_bytes, uint64_t payload_bytes,
                     struct kvt__fs_form *form);

#endif
