/* SPDX-License-Identifier: Apache-2.0
 *
 * The enforcement of max_remote_size.  All functions block, and run on the cleaner's thread. */
#ifndef KVT_TIER_S3_CLEAN_H
#define KVT_TIER_S3_CLEAN_H

#include "tier/s3/s3.h"

/* An object that may be deleted. */
struct s3_victim {
    char *name; /* key without the prefix; on the heap */
    uint64_t bytes;
    int64_t modified_ns;
    bool failed; /* the store did not delete the object */
};

/* -------------------------------------------------------------------- oldest.c */

/* The oldest of all added objects, at most `max`.  Zeroed memory with `max` set is a valid, empty
 * list. */
struct s3_oldest {
    struct s3_victim *victims; /* a heap with the youngest object first; sorted later */
    size_t n, room, max;
};

/* Add an object, or drop the object if `max` older objects are known.  Copies the name.  0 or
 * -ENOMEM with a sentence. */
int kvt__s3_oldest_add(struct s3_oldest *o, const char *name, uint64_t bytes,
                       int64_t modified_ns);
/* Sort by age, the oldest first.  No object may be added later. */
void kvt__s3_oldest_sort(struct s3_oldest *o);
void kvt__s3_oldest_free(struct s3_oldest *o);

/* --------------------------------------------------------------------- lease.c */

/* The cleaner's lease: the right to delete objects.  One process at a time has the lease.
 *
 * The lease is the object with the highest number under .kvtier/cleaner/.  The lease expires
 * KVT__S3_LEASE_S after the object was written, by the store's clock.  A process that finds an
 * expired lease creates the object with the next number, with If-None-Match, so only one process
 * succeeds.  The process then checks that the new number is the highest.  The object with the
 * highest number is never deleted, so no number is used twice.  An empty object is a released
 * lease. */
struct s3_lease {
    struct s3_tier *tier;
    uint64_t number;
    int64_t checked_ns; /* time of the last check that the lease is still held; monotonic */
};

#define KVT__S3_LEASE_S 300
/* Length of the lease's last part, in which no deletion starts.  Every deletion that started
 * earlier ends in this part, so before another process can acquire the lease. */
#define KVT__S3_LEASE_MARGIN_S 120

/* Acquire the lease.  0; -EBUSY: another process has the lease or has just released the lease;
 * -EOPNOTSUPP: the store ignores If-None-Match (sets t->no_conditions); -EACCES, -EIO ...; all with
 * a sentence. */
int kvt__s3_lease_acquire(struct s3_tier *t, struct s3_lease *lease);
/* Check that the lease is still held, and renew the lease if a third of the time has passed.  0;
 * -EBUSY: the lease is lost; -EACCES, -EIO ...; all with a sentence. */
int kvt__s3_lease_renew(struct s3_lease *lease);
/* Release the lease.  If the request fails, the lease expires later. */
void kvt__s3_lease_release(struct s3_lease *lease);

/* -------------------------------------------------------------------- delete.c */

#define KVT__S3_MAX_DELETES 1000

/* Delete at most KVT__S3_MAX_DELETES objects, within KVT__S3_LEASE_MARGIN_S.  Return the number of
 * objects that were tried, counted from victims[0]; `failed` of these objects is valid, and why has
 * the store's first reason not to delete an object, or "".  On error return -errno with a sentence;
 * `failed` of all objects is valid. */
int kvt__s3_delete(struct s3_tier *t, struct s3_victim *victims, size_t n, char why[256]);

/* Delete one object.  name: encoded, without the prefix.  0 or -errno with a sentence. */
int kvt__s3_delete_one(struct s3_tier *t, const char *name);

/* --------------------------------------------------------------------- clean.c */

/* Run one round: list all objects and delete the oldest if their sum exceeds the limit.  0; 1: the
 * limit is still exceeded, run again; -EBUSY: another process runs a round; -errno with a
 * sentence. */
int kvt__s3_enforce_limit(struct s3_tier *t);

#endif
