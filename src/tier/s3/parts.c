/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranges and parts have in common: how a payload is divided, and who is the last. */
#include "tier/s3/parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 10000

void
kvt__s3_free_parts(struct s3_op *o)
{
    pthread_mutex_destroy(&o->parts->lock);
    free(o->parts->list);
    free(o->parts);
    o->parts = NULL;
}

bool
kvt__s3_divide(struct s3_op *o)
{
    size_t bytes = o->op->slot.bytes, each = o->tier->part_bytes;

    if (bytes / each >= MAX_PARTS)
        each = bytes / MAX_PARTS + 1;
    size_t n = (bytes + each - 1) / each;
    o->parts = calloc(1, sizeof *o->parts + n * sizeof *o->parts->part);
    if (!o->parts) {
        kvt__s3_end(o, kvt__fail(ENOMEM, "S3: %s", o->name));
        return false;
    }
    pthread_mutex_init(&o->parts->lock, NULL);
    o->parts->n = o->parts->left = n;
    for (size_t i = 0; i < n; i++) {
        struct s3_part *p = &o->parts->part[i];

        p->o = o;
        p->at = i * each;
        p->bytes = bytes - p->at < each ? bytes - p->at : each;
    }
    return true;
}

void
kvt__s3_part_call(struct s3_part *p, const char *method)
{
    kvt__s3_op_call(p->o, method);
    p->call = p->o->call;
}

bool
kvt__s3_is_last_part(struct s3_part *p, int err)
{
    struct s3_parts *all = p->o->parts;

    pthread_mutex_lock(&all->lock);
    if (err && !all->err) {
        all->err = err;
        snprintf(all->why, sizeof all->why, "%s", kvt__why());
    }
    bool last = !--all->left;
    pthread_mutex_unlock(&all->lock);
    return last;
}

bool
kvt__s3_copy_etag(const struct kvt__http_head *head, char out[KVT__S3_ETAG_ROOM])
{
    const struct kvt__http_field *f = kvt__http_field(head, "etag");

    if (!f || f->value_bytes >= KVT__S3_ETAG_ROOM)
        return false;
    memcpy(out, f->value, f->value_bytes);
    out[f->value_bytes] = '\0';
    return true;
}
