/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeping max_remote_size.  All of this waits: it runs on the cleaner's thread. */
#ifndef KVT_TIER_S3_CLEAN_H
#define KVT_TIER_S3_CLEAN_H

#include "tier/s3/s3.h"

/* A chunk's object that may go. */
struct s3_old {
    char *name; /* behind our prefix; on the heap */
    uint64_t bytes;
    int64_t modified_ns;
    bool kept;  /* the store did not delete it */
};

/* -------------------------------------------------------------------- oldest.c */

/* The oldest of all that were added, at most so many. */
struct s3_oldest {
    struct s3_old *olds; /* a heap, the youngest on top, until they are sorted */
    size_t n, room, most;
};

/* 0 or -ENOMEM with a sentence. */
int kvt__s3_oldest_add(struct s3_oldest *o, const char *name, uint64_t bytes,
                       int64_t modified_ns);
/* The oldest one first.  Nothing can be added any more. */
void kvt__s3_oldest_sort(struct s3_oldest *o);
void kvt__s3_oldest_free(struct s3_oldest *o);

/* --------------------------------------------------------------------- lease.c */

/* The right to clean, which one process has at a time.  It is the object with the highest
 * number under .kvtier/cleaner/ and lasts KVT__S3_LEASE_S from when that was written, by
 * the store's clock.  Who finds it free makes the object with the next number, which only
 * one can (If-None-Match), and then looks whether that is the highest: it always exists,
 * so no number comes twice.  An empty object is a lease that was given back. */
struct s3_lease {
    struct s3_tier *tier;
    uint64_t number;
    int64_t looked_ns; /* when it was last seen to be ours, monotonic */
};

#define KVT__S3_LEASE_S 300
#define KVT__S3_LEASE_LAST_S 120 /* in its last seconds nothing is begun, and what was begun
                                  * before has ended by then */

/* 0; -EBUSY: another has it, or gave it back just now; -EOPNOTSUPP: the store cannot give
 * any, t->no_conditions is set; -EACCES, -EIO ... with a sentence. */
int kvt__s3_lease_take(struct s3_tier *t, struct s3_lease *lease);
/* Look at it, and renew it in time.  0; -EBUSY: it is lost; -EACCES, -EIO ...; with a
 * sentence. */
int kvt__s3_lease_keep(struct s3_lease *lease);
void kvt__s3_lease_give_back(struct s3_lease *lease);

/* -------------------------------------------------------------------- delete.c */

#define KVT__S3_DELETE_MOST 1000

/* Delete objects, at most KVT__S3_DELETE_MOST, within KVT__S3_LEASE_LAST_S.  Returns how
 * many of them, the first ones, were tried, and sets kept of those; why: the first reason
 * of the store to keep one, else "".  Or -errno with a sentence; kept is set of all. */
int kvt__s3_delete(struct s3_tier *t, struct s3_old *olds, size_t n, char why[256]);

/* One object, by its encoded name. */
int kvt__s3_delete_one(struct s3_tier *t, const char *name);

/* --------------------------------------------------------------------- clean.c */

/* Count, and delete what is too much.  0; 1: more has to go; -EBUSY: another does it;
 * -errno with a sentence. */
int kvt__s3_keep_limit(struct s3_tier *t);

#endif
