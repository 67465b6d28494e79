/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of the file `snapshot`: a header, records of spaces and entries, an end record.
 * Each record begins with a word: the kind in bits 0-7, other fields from bit 8 on.  The record
 * of a space precedes the entries of the space.  All numbers are little-endian. */
#ifndef KVT_TABLE_SNAPSHOT_H
#define KVT_TABLE_SNAPSHOT_H

#include <stdint.h>

#define SN_NAME "snapshot"
#define SN_NEW_NAME "snapshot.new"
#define SN_MAGIC "KVTSNAP1"

struct sn_header {
    char magic[8];
    uint64_t of_memory;
};

enum sn_kind { SN_SPACE = 1, SN_ENTRY, SN_END };

/* SN_SPACE: bits 8-23: bytes of the text; 32-63: number of the space.  The text follows, padded
 * with zeros to a multiple of 8 bytes. */

/* SN_ENTRY: bits 8-15: KVT__TABLE_* flags; 32-63: number of the space, or TB_NO_SPACE. */
struct sn_entry {
    uint64_t head;
    uint64_t id[2];
    uint64_t packed;  /* as struct tb_cold */
    uint64_t recency; /* as struct tb_cold */
    uint64_t hash;    /* three more words follow if the hash is wide */
};

/* SN_END: bits 32-63: CRC32C of all bytes before this record. */
struct sn_end {
    uint64_t head;
    uint64_t n_entries;
};

#endif
