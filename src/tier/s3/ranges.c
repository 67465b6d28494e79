/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a large object in concurrent ranges.  If the object changes between ranges, the read
 * fails.  If the store does not support ranges, the whole object is read.
 *
 * For chunks above 64 MiB, such as 256 tokens of Llama 3.1 70B without tensor parallelism (80 MiB):
 * a store limits the rate of each connection, and a load of one chunk would use one connection. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "tier/s3/s3.h"

#define MAX_RANGES 10000
#define ETAG_ROOM 136

struct s3_range {
    struct s3_call call;
    struct s3_op *o;
    size_t at, bytes;
    uint64_t received;
    uint32_t crc;
    char text[64];      /* value of the Range header */
};

/* The ranges of an object; lock guards left, err, why and etag. */
struct s3_ranges {
    pthread_mutex_t lock;
    size_t left;        /* number of ranges that have not ended */
    int err;            /* error of the first failed range */
    char why[512];
    char etag[ETAG_ROOM]; /* ETag of the first response; all ranges must have this ETag */
    atomic_bool whole;  /* the store sent the whole object instead of a range */
    size_t n;
    struct s3_range range[];
};

static struct s3_range *
range_of(struct s3_call *call)
{
    return (struct s3_range *)call;
}

/* Divide the slot into ranges of equal size; the last range may be shorter.  NULL: out of memory,
 * with a sentence. */
static struct s3_ranges *
divide(struct s3_op *o)
{
    size_t bytes = o->op->slot.bytes, range_bytes = o->tier->range_bytes;

    if (bytes / range_bytes >= MAX_RANGES)
        range_bytes = bytes / MAX_RANGES + 1;
    size_t n = (bytes + range_bytes - 1) / range_bytes;
    struct s3_ranges *ranges = calloc(1, sizeof *ranges + n * sizeof *ranges->range);
    if (!ranges) {
        (void)kvt__fail(ENOMEM, "S3: %s", o->name);
        return NULL;
    }
    pthread_mutex_init(&ranges->lock, NULL);
    ranges->n = ranges->left = n;
    for (size_t i = 0; i < n; i++) {
        struct s3_range *r = &ranges->range[i];

        r->o = o;
        r->at = i * range_bytes;
        r->bytes = bytes - r->at < range_bytes ? bytes - r->at : range_bytes;
    }
    return ranges;
}

static void
free_ranges(struct s3_op *o)
{
    pthread_mutex_destroy(&o->ranges->lock);
    free(o->ranges);
    o->ranges = NULL;
}

/* Note the end of a range.  Return true if this was the last range. */
static bool
note_end(struct s3_range *r, int err)
{
    struct s3_ranges *ranges = r->o->ranges;

    pthread_mutex_lock(&ranges->lock);
    if (err && !ranges->err) {
        ranges->err = err;
        snprintf(ranges->why, sizeof ranges->why, "%s", kvt__why());
    }
    bool last = !--ranges->left;
    pthread_mutex_unlock(&ranges->lock);
    return last;
}

/* ---------------------------------------------------------------------- responses */

/* Return true if the response is exactly this range of an object of the slot's size. */
static bool
is_range(const struct kvt__http_head *head, const struct s3_range *r)
{
    const struct kvt__http_field *f = kvt__http_field(head, "content-range");
    uint64_t first, last, total;
    char text[80];

    if (!f || f->value_bytes >= sizeof text || head->content_length != (int64_t)r->bytes)
        return false;
    memcpy(text, f->value, f->value_bytes);
    text[f->value_bytes] = '\0';
    return sscanf(text, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &first, &last,
                  &total) == 3 && first == r->at && last == r->at + r->bytes - 1 &&
           total == r->o->op->slot.bytes;
}

/* Return true if the response has the ETag of the first response. */
static bool
is_same_object(struct s3_range *r, const struct kvt__http_head *head)
{
    const struct kvt__http_field *f = kvt__http_field(head, "etag");
    struct s3_ranges *ranges = r->o->ranges;
    bool same = true;

    if (!f || f->value_bytes >= ETAG_ROOM)
        return true; /* ETags of all known stores are shorter */
    pthread_mutex_lock(&ranges->lock);
    if (!*ranges->etag)
        memcpy(ranges->etag, f->value, f->value_bytes); /* etag is zeroed, so a NUL follows */
    else
        same = strlen(ranges->etag) == f->value_bytes &&
               !memcmp(ranges->etag, f->value, f->value_bytes);
    pthread_mutex_unlock(&ranges->lock);
    return same;
}

static int
on_range_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_range *r = range_of(call);
    struct s3_op *o = r->o;

    if (head->status == 200) {
        atomic_store(&o->ranges->whole, true);
        return kvt__fail(EOPNOTSUPP, "%s: the store does not support ranges.", o->name);
    }
    if (!is_range(head, r))
        return kvt__fail(EBADMSG, "%s: the object does not have the chunk's %zu bytes.",
                         o->name, o->op->slot.bytes);
    if (!is_same_object(r, head))
        return kvt__fail(EIO, "%s: the object was replaced during the read.", o->name);
    r->crc = 0;
    call->http.into = o->op->slot.payload + r->at;
    call->http.room = r->bytes;
    return r->at ? 0 : kvt__s3_read_description(o, head, o->op->slot.bytes, &o->op->found);
}

static void
add_to_crc(struct s3_call *call, size_t at, size_t n)
{
    struct s3_range *r = range_of(call);

    r->crc = kvt__crc32c(r->crc, call->http.into + at, n);
}

/* Join the checksums of all ranges, or return the first error. */
static int
join(struct s3_op *o)
{
    struct kvt__found *found = &o->op->found;
    struct s3_ranges *ranges = o->ranges;
    uint64_t received = 0;

    if (ranges->err) {
        kvt__set_why(ranges->why);
        return ranges->err;
    }
    for (size_t i = 0; i < ranges->n; i++) {
        found->read_crc = kvt__crc32c_join(found->read_crc, ranges->range[i].crc,
                                           ranges->range[i].bytes);
        received += ranges->range[i].received;
    }
    int err = kvt__s3_set_received(o, o->op->slot.bytes, received);
    if (err)
        return err;
    found->has_read_crc = true;
    return found->has_id && found->read_crc != found->crc
        ? kvt__fail(EBADMSG, "%s: the checksum is wrong.", o->name) : 0;
}

static void
on_range_end(struct s3_call *call, int err)
{
    struct s3_range *r = range_of(call);
    struct s3_op *o = r->o;

    r->received = err ? 0 : call->http.received_bytes;
    if (!note_end(r, err))
        return;
    bool whole = atomic_load(&o->ranges->whole);
    err = join(o);
    free_ranges(o);
    if (err == -EBADMSG)
        kvt__s3_corrupt_add(&o->tier->corrupt, o->name);
    if (whole) {
        atomic_store(&o->tier->no_ranges, true);
        o->op->found = (struct kvt__found){ 0 };
        kvt__s3_get(o);
    } else {
        kvt__s3_op_end(o, err);
    }
}

void
kvt__s3_get_ranges(struct s3_op *o)
{
    struct s3_ranges *ranges = o->ranges = divide(o);

    if (!ranges) {
        kvt__s3_op_end(o, -ENOMEM);
        return;
    }
    for (size_t i = 0, n = ranges->n; i < n; i++) { /* the end of the last range frees all ranges */
        struct s3_range *r = &ranges->range[i];

        kvt__s3_op_call(o, "GET");
        r->call = o->call;
        snprintf(r->text, sizeof r->text, "bytes=%zu-%zu", r->at,
                 r->at + r->bytes - 1);
        kvt__s3_add_header(&r->call, "range", r->text);
        r->call.can_hedge = true;
        r->call.on_head = on_range_head;
        r->call.on_received = add_to_crc;
        r->call.on_end = on_range_end;
        kvt__s3_call(&r->call);
    }
}
