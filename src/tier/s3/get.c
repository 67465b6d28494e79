/* SPDX-License-Identifier: Apache-2.0
 *
 * GET, HEAD and DELETE of objects. */
#include <errno.h>
#include <string.h>

#include "base/crc32c.h"
#include "tier/s3/s3.h"

static struct s3_op *
op_of(struct s3_call *call)
{
    return (struct s3_op *)call;
}

/* ----------------------------------------------------------------------------- get */

static int
on_object_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_op *o = op_of(call);
    struct kvt__tier_op *op = o->op;
    uint64_t bytes = (uint64_t)head->content_length;

    if (head->content_length < 0)
        return kvt__fail(EBADMSG, "%s: the response has no Content-Length.", o->name);
    if (bytes > op->slot.bytes || (bytes < op->slot.bytes && !op->may_be_shorter)) {
        op->found.payload_bytes = bytes;
        return op->may_be_shorter
            ? kvt__fail(EMSGSIZE, "%s: the object has %llu bytes, the buffer only %zu.",
                        o->name, (unsigned long long)bytes, op->slot.bytes)
            : kvt__fail(EBADMSG, "%s: the object has %llu bytes, the chunk %zu.",
                        o->name, (unsigned long long)bytes, op->slot.bytes);
    }
    o->crc = 0;
    call->http.into = op->slot.payload;
    call->http.room = bytes;
    return kvt__s3_read_description(o, head, bytes, &op->found);
}

static void
add_to_crc(struct s3_call *call, size_t at, size_t n)
{
    struct s3_op *o = op_of(call);

    o->crc = kvt__crc32c(o->crc, call->http.into + at, n);
}

static void
on_object_end(struct s3_call *call, int err)
{
    struct s3_op *o = op_of(call);
    struct kvt__found *found = &o->op->found;

    if (!err) /* the number of bytes in the slot counts, not the announced number */
        err = kvt__s3_set_received(o, found->payload_bytes, call->http.received_bytes);
    found->has_read_crc = !err;
    found->read_crc = o->crc;
    if (!err && ((found->has_id && o->crc != found->crc) ||
                 (o->has_server_crc && o->crc != o->server_crc)))
        err = kvt__fail(EBADMSG, "%s: the checksum is wrong.", o->name);
    found->checked = !err && (found->has_id || o->has_server_crc);
    if (err == -EBADMSG)
        kvt__s3_corrupt_add(&o->tier->corrupt, o->name);
    kvt__s3_op_end(o, err);
}

void
kvt__s3_get(struct s3_op *o)
{
    kvt__s3_op_call(o, "GET");
    kvt__s3_add_header(&o->call, "x-amz-checksum-mode", "ENABLED");
    o->call.can_hedge = true;
    o->call.on_head = on_object_head;
    o->call.on_received = add_to_crc;
    o->call.on_end = on_object_end;
    kvt__s3_call(&o->call);
}

/* --------------------------------------------------------------------------- probe */

/* Return true if the object is archived, so that a read fails or takes hours. */
static bool
is_archived(const struct kvt__http_head *head)
{
    static const char *const classes[] = { "GLACIER", "DEEP_ARCHIVE" };
    const struct kvt__http_field *c = kvt__http_field(head, "x-amz-storage-class");
    const struct kvt__http_field *r = kvt__http_field(head, "x-amz-restore");
    const char *back = "ongoing-request=\"false\"";

    if (r && memmem(r->value, r->value_bytes, back, strlen(back)))
        return false;
    for (size_t i = 0; c && i < sizeof classes / sizeof *classes; i++)
        if (c->value_bytes == strlen(classes[i]) &&
            !memcmp(c->value, classes[i], c->value_bytes))
            return true;
    return false;
}

static int
on_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_op *o = op_of(call);

    if (head->content_length < 0 || is_archived(head))
        return kvt__fail(ENOENT, "%s: the object is archived, or its length is unknown.", o->name);
    return kvt__s3_read_description(o, head, (uint64_t)head->content_length, &o->op->found);
}

void
kvt__s3_head_object(struct s3_op *o, void (*on_end)(struct s3_call *call, int err))
{
    kvt__s3_op_call(o, "HEAD");
    o->call.on_head = on_head;
    o->call.on_end = on_end;
    kvt__s3_call(&o->call);
}

static void
end_op(struct s3_call *call, int err)
{
    kvt__s3_op_end(op_of(call), err);
}

void
kvt__s3_probe(struct s3_op *o)
{
    kvt__s3_head_object(o, end_op);
}

/* -------------------------------------------------------------------------- remove */

/* Delete the object after a successful HEAD: the response to a DELETE does not show whether the
 * object existed. */
static void
on_head_before_delete(struct s3_call *call, int err)
{
    struct s3_op *o = op_of(call);

    if (err) {
        kvt__s3_op_end(o, err);
        return;
    }
    kvt__s3_op_call(o, "DELETE");
    o->call.on_end = end_op;
    kvt__s3_call(&o->call);
}

void
kvt__s3_remove(struct s3_op *o)
{
    kvt__s3_head_object(o, on_head_before_delete);
}
