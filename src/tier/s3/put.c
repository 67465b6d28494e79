/* SPDX-License-Identifier: Apache-2.0
 *
 * Storing objects.  A PUT has If-None-Match, so the store does not replace an existing object.  If
 * an object exists, a HEAD reads the object's description.  If the object is the chunk, the
 * operation ends.  The object is overwritten if the object is another chunk with the same name, an
 * object of LMCache without a description, or a known corrupt object. */
#include <errno.h>

#include "tier/s3/s3.h"

#define MAX_ROUNDS 3
#define MAX_OBJECT ((size_t)5 << 30) /* maximum size of a PUT at AWS and most stores */

static struct s3_op *
op_of(struct s3_call *call)
{
    return (struct s3_op *)call;
}

static void
add_headers(struct s3_op *o, bool conditional)
{
    const struct s3_tier *t = o->tier;
    struct s3_call *call = &o->call;

    kvt__s3_add_header(call, "content-type", "application/octet-stream");
    kvt__s3_add_header(call, KVT__S3_META, o->meta);
    kvt__s3_add_header(call, KVT__S3_META_MODEL, o->model);
    if (!kvt__s3_address_of(t)->express) /* S3 Express: encryption is set in the session */
        kvt__s3_add_encryption(call);
    kvt__s3_add_header(call, "x-amz-storage-class", t->storage_class);
    if (conditional && !atomic_load(&t->no_conditions))
        kvt__s3_add_header(call, "if-none-match", "*");
}

static void put(struct s3_op *o, bool overwrite);

/* After a PUT found an existing object: compare the object with the chunk. */
static void
on_existing_head(struct s3_call *call, int err)
{
    struct s3_op *o = op_of(call);
    struct kvt__found *found = &o->op->found;

    if (!err && found->has_id && kvt__id_equal(&found->id, &o->id) &&
        found->crc == o->op->crc && found->payload_bytes == o->op->slot.bytes) {
        *found = (struct kvt__found){ 0 };
        kvt__s3_op_end(o, 0);
    } else if ((!err || err == -ENOENT) && o->n_rounds < MAX_ROUNDS) {
        put(o, !err || call->head_err); /* head_err: an archived object exists too */
    } else {
        kvt__s3_op_end(o, err && err != -ENOENT ? err :
                       kvt__fail(EBUSY, "%s: other processes repeatedly store and delete the "
                                 "object.", o->name));
    }
}

static void
on_put_end(struct s3_call *call, int err)
{
    struct s3_op *o = op_of(call);

    if (err == -EEXIST) {
        if (call->n_attempts > 1) /* an earlier attempt of this call may have stored the object */
            kvt__s3_note_stored(o->tier, o->op->slot.bytes);
        kvt__s3_head_object(o, on_existing_head);
        return;
    }
    if (!err)
        kvt__s3_note_stored(o->tier, o->op->slot.bytes);
    kvt__s3_op_end(o, err);
}

static void
put(struct s3_op *o, bool overwrite)
{
    struct s3_tier *t = o->tier;

    o->n_rounds++;
    kvt__s3_op_call(o, "PUT");
    add_headers(o, !overwrite);
    if (!atomic_load(&t->no_checksums))
        kvt__s3_add_header(&o->call, "x-amz-checksum-crc32c", o->checksum);
    o->call.body = o->op->slot.payload;
    o->call.body_bytes = o->op->slot.bytes;
    o->call.is_store = true;
    o->call.on_end = on_put_end;
    kvt__s3_call(&o->call);
}

void
kvt__s3_put(struct s3_op *o)
{
    if (o->op->slot.bytes > MAX_OBJECT)
        kvt__s3_op_end(o, kvt__fail(EFBIG, "%s: %zu bytes exceed the limit of 5 GiB for an "
                                    "object.", o->name, o->op->slot.bytes));
    else
        put(o, o->op->overwrite || kvt__s3_corrupt_remove(&o->tier->corrupt, o->name));
}
