/* SPDX-License-Identifier: Apache-2.0
 *
 * A payload in parts, each with a call of its own: read in ranges (ranges.c) or stored
 * by a multipart upload (upload.c).  parts->lock guards what the parts have in common. */
#ifndef KVT_TIER_S3_PARTS_H
#define KVT_TIER_S3_PARTS_H

#include "tier/s3/s3.h"

#define KVT__S3_ETAG_ROOM 136

struct s3_part {
    struct s3_call call;
    struct s3_op *o;
    size_t at, bytes;
    uint32_t crc;
    char range[64], number[24], etag[KVT__S3_ETAG_ROOM];
};

struct s3_parts {
    pthread_mutex_t lock;
    size_t left;      /* not ended */
    int err;          /* the first that failed, and why */
    char why[512];
    char etag[KVT__S3_ETAG_ROOM]; /* GET: that all of them must have */
    atomic_bool whole; /* GET: the store sent all of the object for a part */
    char upload[1024];
    char answer[4096];
    char *list;       /* PUT: the document that names all parts */
    size_t n;
    struct s3_part part[];
};

static inline struct s3_part *
kvt__s3_part_of(struct s3_call *call)
{
    return (struct s3_part *)call;
}

/* Divide the payload into parts of one size; the last one alone may be smaller than
 * stores allow.  False: no memory; the operation has ended. */
bool kvt__s3_divide(struct s3_op *o);
void kvt__s3_free_parts(struct s3_op *o);

/* The call of a part begins as one of the operation. */
void kvt__s3_part_call(struct s3_part *p, const char *method);

/* Note how a part ended.  True: it was the last one. */
bool kvt__s3_is_last_part(struct s3_part *p, int err);

/* False: there is none, or one that is longer than any store's. */
bool kvt__s3_copy_etag(const struct kvt__http_head *head, char out[KVT__S3_ETAG_ROOM]);

#endif
