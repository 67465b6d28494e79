/* SPDX-License-Identifier: Apache-2.0
 *
 * The names of corrupt objects, as hashes.  A hash collision only causes an unnecessary
 * overwrite. */
#include "tier/s3/s3.h"

/* Return the FNV-1a hash, but never 0, which marks a free element. */
static uint64_t
hash_of(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h ? h : 1;
}

static uint64_t *
find_locked(struct s3_corrupt *d, uint64_t h)
{
    for (unsigned i = 0; i < KVT__S3_CORRUPT; i++)
        if (d->names[i] == h)
            return &d->names[i];
    return NULL;
}

void
kvt__s3_corrupt_add(struct s3_corrupt *d, const char *name)
{
    uint64_t h = hash_of(name);

    pthread_mutex_lock(&d->lock);
    if (!find_locked(d, h))
        d->names[d->next++ % KVT__S3_CORRUPT] = h;
    pthread_mutex_unlock(&d->lock);
}

bool
kvt__s3_corrupt_remove(struct s3_corrupt *d, const char *name)
{
    pthread_mutex_lock(&d->lock);
    uint64_t *at = find_locked(d, hash_of(name));
    if (at)
        *at = 0;
    pthread_mutex_unlock(&d->lock);
    return at != NULL;
}
