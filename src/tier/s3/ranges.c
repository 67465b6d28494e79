/* SPDX-License-Identifier: Apache-2.0
 *
 * Large objects are read in ranges, several at once.  They are of one object, or the read
 * fails; a store that sends no ranges is asked for the whole of it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "tier/s3/parts.h"

/* Whether the answer is just this range of an object of the slot's size. */
static bool
is_range(const struct kvt__http_head *head, const struct s3_part *p)
{
    const struct kvt__http_field *f = kvt__http_field(head, "content-range");
    uint64_t first, last, total;
    char text[80];

    if (!f || f->value_bytes >= sizeof text || head->content_length != (int64_t)p->bytes)
        return false;
    memcpy(text, f->value, f->value_bytes);
    text[f->value_bytes] = '\0';
    return sscanf(text, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &first, &last,
                  &total) == 3 && first == p->at && last == p->at + p->bytes - 1 &&
           total == p->o->op->slot.bytes;
}

/* The first part that is answered says which object it is. */
static bool
is_same_object(struct s3_part *p, const struct kvt__http_head *head)
{
    struct s3_parts *all = p->o->parts;
    char etag[KVT__S3_ETAG_ROOM];
    bool same = true;

    if (!kvt__s3_copy_etag(head, etag))
        return true;
    pthread_mutex_lock(&all->lock);
    if (!*all->etag)
        snprintf(all->etag, sizeof all->etag, "%s", etag);
    else
        same = !strcmp(all->etag, etag);
    pthread_mutex_unlock(&all->lock);
    return same;
}

static int
take_range(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_part *p = kvt__s3_part_of(call);
    struct s3_op *o = p->o;

    if (head->status == 200) {
        atomic_store(&o->parts->whole, true);
        return kvt__fail(EOPNOTSUPP, "%s: the store sends no ranges.", o->name);
    }
    if (!is_range(head, p))
        return kvt__fail(EBADMSG, "%s: an object of another size than the %zu bytes of "
                         "payload.", o->name, o->op->slot.bytes);
    if (!is_same_object(p, head))
        return kvt__fail(EIO, "%s: was replaced while it was read.", o->name);
    p->crc = 0;
    call->http.into = o->op->slot.payload + p->at;
    call->http.room = p->bytes;
    return p->at ? 0 : kvt__s3_found(o, head, o->op->slot.bytes, &o->op->found);
}

static void
add_to_crc(struct s3_call *call, size_t at, size_t n)
{
    struct s3_part *p = kvt__s3_part_of(call);

    p->crc = kvt__crc32c(p->crc, call->http.into + at, n);
}

/* All parts are there, or some are not. */
static int
join(struct s3_op *o)
{
    struct kvt__found *found = &o->op->found;
    struct s3_parts *all = o->parts;

    if (all->err) {
        kvt__set_why(all->why);
        return all->err;
    }
    for (size_t i = 0; i < all->n; i++)
        found->read_crc = kvt__crc32c_join(found->read_crc, all->part[i].crc,
                                           all->part[i].bytes);
    found->has_read_crc = true;
    return found->has_id && found->read_crc != found->crc
        ? kvt__fail(EBADMSG, "%s: the checksum is wrong.", o->name) : 0;
}

static void
range_was_read(struct s3_call *call, int err)
{
    struct s3_op *o = kvt__s3_part_of(call)->o;

    if (!kvt__s3_is_last_part(kvt__s3_part_of(call), err))
        return;
    bool whole = atomic_load(&o->parts->whole);
    err = join(o);
    kvt__s3_free_parts(o);
    if (err == -EBADMSG)
        kvt__s3_is_damaged(&o->tier->damaged, o->name);
    if (whole) {
        atomic_store(&o->tier->no_ranges, true);
        o->op->found = (struct kvt__found){ 0 };
        kvt__s3_get(o);
    } else {
        kvt__s3_end(o, err);
    }
}

void
kvt__s3_get_ranges(struct s3_op *o)
{
    if (!kvt__s3_divide(o))
        return;
    struct s3_parts *all = o->parts;
    for (size_t i = 0, n = all->n; i < n; i++) { /* the last to end frees them */
        struct s3_part *p = &all->part[i];

        kvt__s3_part_call(p, "GET");
        snprintf(p->range, sizeof p->range, "bytes=%zu-%zu", p->at,
                 p->at + p->bytes - 1);
        kvt__s3_add_header(&p->call, "range", p->range);
        p->call.hedged = true;
        p->call.good = take_range;
        p->call.received = add_to_crc;
        p->call.ended = range_was_read;
        kvt__s3_call(&p->call);
    }
}
