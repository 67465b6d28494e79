/* SPDX-License-Identifier: Apache-2.0
 *
 * Large objects: read in ranges, several at once, and stored in parts where one PUT may
 * not be so large.  parts->lock guards what the parts have in common. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "tier/s3/s3.h"

#define MAX_PARTS 10000
#define ETAG_ROOM 136
#define ANSWER_ROOM 4096

struct s3_part {
    struct s3_call call;
    struct s3_op *o;
    size_t at, bytes;
    uint32_t crc;
    char range[64], number[24], etag[ETAG_ROOM];
};

struct s3_parts {
    pthread_mutex_t lock;
    size_t left;      /* not ended */
    int err;          /* the first that failed, and why */
    char why[512];
    char etag[ETAG_ROOM]; /* GET: that all of them must have */
    atomic_bool whole; /* GET: the store sent all of the object for a part */
    char upload[1024];
    char answer[ANSWER_ROOM];
    char *list;       /* PUT: the document that names all parts */
    size_t n;
    struct s3_part part[];
};

static struct s3_part *
part_of(struct s3_call *call)
{
    return (struct s3_part *)call;
}

static void
free_parts(struct s3_op *o)
{
    pthread_mutex_destroy(&o->parts->lock);
    free(o->parts->list);
    free(o->parts);
    o->parts = NULL;
}

/* Divide the payload into parts of one size; the last one alone may be smaller than
 * stores allow.  False: no memory; the operation has ended. */
static bool
divide(struct s3_op *o)
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

/* The call of a part begins as one of the operation. */
static void
part_call(struct s3_part *p, const char *method)
{
    kvt__s3_op_call(p->o, method);
    p->call = p->o->call;
}

/* Note how a part ended.  True: it was the last one. */
static bool
is_last(struct s3_part *p, int err)
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

static bool
copy_etag(const struct kvt__http_head *head, char out[ETAG_ROOM])
{
    const struct kvt__http_field *f = kvt__http_field(head, "etag");

    if (!f || f->value_bytes >= ETAG_ROOM)
        return false;
    memcpy(out, f->value, f->value_bytes);
    out[f->value_bytes] = '\0';
    return true;
}

/* -------------------------------------------------------------------------- ranges */

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
    char etag[ETAG_ROOM];
    bool same = true;

    if (!copy_etag(head, etag))
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
    struct s3_part *p = part_of(call);
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
    struct s3_part *p = part_of(call);

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
    struct s3_op *o = part_of(call)->o;

    if (!is_last(part_of(call), err))
        return;
    bool whole = atomic_load(&o->parts->whole);
    err = join(o);
    free_parts(o);
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
    if (!divide(o))
        return;
    struct s3_parts *all = o->parts;
    for (size_t i = 0, n = all->n; i < n; i++) { /* the last to end frees them */
        struct s3_part *p = &all->part[i];

        part_call(p, "GET");
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

/* ------------------------------------------------------------------ multipart upload */

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
    free_parts(o);
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
    struct s3_part *p = part_of(call);

    return copy_etag(head, p->etag) && !strpbrk(p->etag, "<>&") ? 0 :
        kvt__fail(EIO, "%s: a part was stored without an ETag.", p->o->name);
}

static void
part_was_put(struct s3_call *call, int err)
{
    struct s3_op *o = part_of(call)->o;

    if (!is_last(part_of(call), err))
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

        part_call(p, "PUT");
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
    if (!divide(o))
        return;
    kvt__s3_op_call(o, "POST");
    kvt__s3_add_query(&o->call, "uploads", "");
    kvt__s3_put_headers(o, &o->call, false);
    o->call.good = take_answer;
    o->call.ended = was_begun;
    kvt__s3_call(&o->call);
}
