/* SPDX-License-Identifier: Apache-2.0
 *
 * The start of an operation of the tier. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/encode.h"
#include "tier/s3/s3.h"

/* Set the model's name, encoded for a header; "" if the key has no model. */
static void
find_model(const struct kvt__object *object, struct s3_op *o)
{
    size_t n = strcspn(object->key, "@");

    if (!object->key[n] ||
        kvt__s3_encode(object->key, n, true, o->model, sizeof o->model) < 0)
        o->model[0] = '\0';
}

/* Make the operation.  NULL: out of memory, or an invalid name; *err is set, with a sentence. */
static struct s3_op *
new_op(struct s3_tier *t, struct kvt__tier_op *op, int *err)
{
    char name[KVT__S3_KEY_MAX + 1], encoded[KVT__S3_NAME_ROOM];
    int n = kvt__s3_name(t, op->object, name, sizeof name);

    *err = n;
    if (n >= 0)
        *err = n = kvt__s3_encode(name, (size_t)n, true, encoded, sizeof encoded);
    if (n < 0)
        return NULL;
    struct s3_op *o = calloc(1, sizeof *o + (size_t)n + 1);
    if (!o) {
        *err = kvt__fail(ENOMEM, "S3: %s", name);
        return NULL;
    }
    o->tier = t;
    o->op = op;
    o->id = op->object->id;
    o->opaque = op->object->opaque;
    o->by_key = op->object->id_of_key || op->object->is_name ||
                op->kind == KVT__TIER_REMOVE; /* the names in an index also come from listings */
    memcpy(o->name, encoded, (size_t)n + 1);
    find_model(op->object, o);
    return o;
}

/* Prepare the headers that describe the object. */
static void
describe(struct s3_op *o)
{
    const struct kvt__tier_op *op = o->op;
    unsigned char bytes[KVT__TRAILER_BYTES], crc[4];
    struct kvt__trailer trailer = {
        .payload_bytes = op->slot.bytes, .crc = op->crc, .tokens = op->object->tokens,
        .id = op->object->id, .id_of_key = op->object->id_of_key };

    kvt__trailer_put(&trailer, bytes);
    kvt__s3_base64(bytes, sizeof bytes, o->meta);
    for (int i = 0; i < 4; i++)
        crc[i] = (unsigned char)(op->crc >> (24 - 8 * i));
    kvt__s3_base64(crc, sizeof crc, o->checksum);
}

static void
get(struct s3_op *o)
{
    if (o->op->slot.bytes > KVT__S3_RANGES_ABOVE && !o->op->may_be_shorter &&
        !atomic_load(&o->tier->no_ranges))
        kvt__s3_get_ranges(o);
    else
        kvt__s3_get(o);
}

void
kvt__s3_submit(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct s3_tier *t = (struct s3_tier *)tier;
    int err;
    struct s3_op *o = new_op(t, op, &err);

    op->found = (struct kvt__found){ 0 };
    if (!o) {
        kvt__tier_end(op, err);
        return;
    }
    switch (op->kind) {
    case KVT__TIER_PUT:
        describe(o);
        kvt__s3_put(o);
        break;
    case KVT__TIER_GET:
        get(o);
        break;
    case KVT__TIER_PROBE:
        kvt__s3_probe(o);
        break;
    case KVT__TIER_REMOVE:
        kvt__s3_remove(o);
        break;
    }
}
