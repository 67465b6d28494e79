/* SPDX-License-Identifier: Apache-2.0
 *
 * Multipart upload, where one PUT may not be so large: it begins, its parts are stored
 * several at once, and it is completed or aborted. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/parts.h"

static int
take_answer(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_op *o = (struct s3_op *)call;

    (void)head;
    call->http.into = (unsigned char *)o->parts->answer;
    call->http.room = sizeof o->parts->answer;
    return 0;
}

static void
end_upload(struct s3_op *o, int err)
{
    if (err)
        kvt__set_why(o->parts->why);
    kvt__s3_free_parts(o);
    kvt__s3_end(o, err);
}

/* Whether the parts could be taken away does not matter: the store's rules for unfinished
 * uploads do it otherwise. */
static void
was_aborted(struct s3_call *call, int err)
{
    struct s3_op *o = (struct s3_op *)call;

    (void)err;
    end_upload(o, o->parts->err);
}

static void
abort_upload(struct s3_op *o)
{
    kvt__s3_op_call(o, "DELETE");
    kvt__s3_add_query(&o->call, "uploadId", o->parts->upload);
    o->call.ended = was_aborted;
    kvt__s3_call(&o->call);
}

/* The one answer that can say 200 and mean an error. */
static void
was_completed(struct s3_call *call, int err)
{
    struct s3_op *o = (struct s3_op *)call;
    struct s3_parts *all = o->parts;
    struct kvt__s3_error error;

    if (!err && !kvt__s3_read_error(all->answer, call->http.received_bytes, &error))
        err = kvt__fail(EIO, "%s: the upload in parts ended with %s, request %s: %s.",
                        o->name, error.code, error.request_id, error.message);
    if (!err) {
        kvt__s3_wrote(o->tier, o->op->slot.bytes);
        end_upload(o, 0);
        return;
    }
    all->err = err;
    snprintf(all->why, sizeof all->why, "%s", kvt__why());
    abort_upload(o);
}

/* NULL: no memory. */
static char *
list_of(const struct s3_parts *all)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    if (!out)
        return NULL;
    fputs("<CompleteMultipartUpload "
          "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">", out);
    for (size_t i = 0; i < all->n; i++)
        fprintf(out, "<Part><PartNumber>%zu</PartNumber><ETag>%s</ETag></Part>", i + 1,
                all->part[i].etag);
    fputs("</CompleteMultipartUpload>", out);
    if (fclose(out) == EOF) {
        free(text);
        return NULL;
    }
    return text;
}

static void
complete(struct s3_op *o)
{
    struct s3_parts *all = o->parts;

    all->list = list_of(all);
    if (!all->list) {
        all->err = -ENOMEM;
        abort_upload(o);
        return;
    }
    kvt__s3_op_call(o, "POST");
    kvt__s3_add_query(&o->call, "uploadId", all->upload);
    o->call.body = all->list;
    o->call.body_bytes = strlen(all->list);
    o->call.good = take_answer;
    o->call.ended = was_completed;
    kvt__s3_call(&o->call);
}

static int
take_etag(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_part *p = kvt__s3_part_of(call);

    return kvt__s3_copy_etag(head, p->etag) && !strpbrk(p->etag, "<>&") ? 0 :
        kvt__fail(EIO, "%s: a part was stored without an ETag.", p->o->name);
}

static void
part_was_put(struct s3_call *call, int err)
{
    struct s3_op *o = kvt__s3_part_of(call)->o;

    if (!kvt__s3_is_last_part(kvt__s3_part_of(call), err))
        return;
    if (o->parts->err)
        abort_upload(o);
    else
        complete(o);
}

static void
was_begun(struct s3_call *call, int err)
{
    struct s3_op *o = (struct s3_op *)call;
    struct s3_parts *all = o->parts;

    if (!err)
        err = kvt__s3_read_text(all->answer, call->http.received_bytes, "UploadId",
                                all->upload, sizeof all->upload);
    if (!err && !*all->upload)
        err = kvt__fail(EIO, "%s: an upload in parts began without an id.", o->name);
    if (err) {
        snprintf(all->why, sizeof all->why, "%s", kvt__why());
        end_upload(o, err);
        return;
    }
    for (size_t i = 0, n = all->n; i < n; i++) { /* the last to end may free them */
        struct s3_part *p = &all->part[i];

        kvt__s3_part_call(p, "PUT");
        snprintf(p->number, sizeof p->number, "%zu", i + 1);
        kvt__s3_add_query(&p->call, "partNumber", p->number);
        kvt__s3_add_query(&p->call, "uploadId", all->upload);
        p->call.body = o->op->slot.payload + p->at;
        p->call.body_bytes = p->bytes;
        p->call.stores = true;
        p->call.good = take_etag;
        p->call.ended = part_was_put;
        kvt__s3_call(&p->call);
    }
}

void
kvt__s3_put_parts(struct s3_op *o)
{
    if (!kvt__s3_divide(o))
        return;
    kvt__s3_op_call(o, "POST");
    kvt__s3_add_query(&o->call, "uploads", "");
    kvt__s3_put_headers(o, &o->call, false);
    o->call.good = take_answer;
    o->call.ended = was_begun;
    kvt__s3_call(&o->call);
}
