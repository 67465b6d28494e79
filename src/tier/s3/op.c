/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions for all operations: the call for an object, the description in a response, the end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tier/s3/encode.h"
#include "tier/s3/s3.h"

void
kvt__s3_op_call(struct s3_op *o, const char *method)
{
    struct s3_tier *t = o->tier;
    bool puts = o->op->kind == KVT__TIER_PUT;

    o->call = (struct s3_call){
        .tier = t, .method = method, .name = o->name, .prio = o->op->prio,
        .timeout_ns = puts ? t->write_ns : t->read_ns };
    if (t->request_payer)
        kvt__s3_add_header(&o->call, "x-amz-request-payer", "requester");
}

void
kvt__s3_op_end(struct s3_op *o, int err)
{
    struct kvt__tier_op *op = o->op;

    free(o);
    kvt__tier_end(op, err);
}

/* ------------------------------------------------------------------- description */

static bool
read_meta(const struct kvt__http_field *f, struct kvt__trailer *out)
{
    unsigned char bytes[KVT__TRAILER_BYTES];

    return kvt__s3_unbase64(f->value, f->value_bytes, bytes, sizeof bytes) ==
               sizeof bytes && kvt__trailer_get(bytes, out);
}

static void
read_checksum(struct s3_op *o, const struct kvt__http_head *head)
{
    const struct kvt__http_field *f = kvt__http_field(head, "x-amz-checksum-crc32c");
    uint8_t b[4];

    o->has_server_crc = f && kvt__s3_unbase64(f->value, f->value_bytes, b, 4) == 4;
    if (o->has_server_crc)
        o->server_crc = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 |
                        (uint32_t)b[2] << 8 | b[3];
}

int
kvt__s3_read_description(struct s3_op *o, const struct kvt__http_head *head, uint64_t payload_bytes,
                         struct kvt__found *found)
{
    const struct kvt__http_field *meta = kvt__http_field(head, KVT__S3_META);
    struct kvt__trailer trailer;

    *found = (struct kvt__found){ .payload_bytes = payload_bytes,
                                  .stored_bytes = payload_bytes };
    if (meta && read_meta(meta, &trailer) && trailer.payload_bytes == payload_bytes)
        kvt__found_from_trailer(&trailer, found);
    read_checksum(o, head);
    kvt__s3_check_collision(o, head);
    if (found->has_id || o->op->kind != KVT__TIER_GET || (!meta && !o->opaque))
        return 0;
    return meta ? kvt__fail(EBADMSG, "%s: " KVT__S3_META " does not match the object.",
                            o->name)
                : kvt__fail(EBADMSG, "%s: the object was overwritten by another program.", o->name);
}

int
kvt__s3_set_received(struct s3_op *o, uint64_t announced, uint64_t received)
{
    struct kvt__found *found = &o->op->found;

    found->payload_bytes = found->stored_bytes = received;
    return received == announced ? 0 :
        kvt__fail(EIO, "%s: the response announced %llu bytes, %llu arrived.", o->name,
                  (unsigned long long)announced, (unsigned long long)received);
}

void
kvt__s3_check_collision(struct s3_op *o, const struct kvt__http_head *head)
{
    const struct kvt__http_field *f = kvt__http_field(head, KVT__S3_META_MODEL);

    if (!f || !*o->model || o->by_key || (f->value_bytes == strlen(o->model) &&
                             !memcmp(f->value, o->model, f->value_bytes)))
        return;
    kvt__s3_count(o->tier, KVT__N_name_collisions);
    if (!atomic_exchange(&o->tier->warned_collision, true))
        kvt__log(KVT_LOG_WARN, "S3: the objects of two models have equal names: %s and "
                 "%.*s. Each model overwrites the other's chunks. Set another "
                 "s3_file_prefix for one of the models.", o->model, (int)f->value_bytes, f->value);
}
