/* SPDX-License-Identifier: Apache-2.0
 *
 * One attempt of a call: the request's head, and the fields of the response that the call keeps. */
#include "tier/s3/call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tier/s3/s3.h"
#include "tier/s3/verdict.h"

/* ----------------------------------------------------------------------- request */

/* Write the path of the object or, without a name, of the bucket. */
static int
path_of(const struct s3_call *call, char *out, size_t room)
{
    const struct kvt__s3_address *a = &call->target->address;
    int n = call->name ? snprintf(out, room, "%s%s", a->object_path, call->name)
                       : snprintf(out, room, "%s", a->bucket_path);

    return n < (int)room ? 0 : kvt__fail(ENAMETOOLONG, "the path of %s", call->name);
}

/* Collect the call's headers and the headers of s3_headers.  headers: signed, plain: not signed.
 * Return the number of signed headers. */
static size_t
add_extra(const struct s3_call *call, struct kvt__s3_pair *headers,
          struct kvt__s3_pair *plain, size_t *n_plain)
{
    const struct s3_tier *t = call->tier;
    size_t n = call->n_headers;

    *n_plain = 0;
    memcpy(headers, call->headers, n * sizeof *headers);
    for (size_t i = 0; i < t->n_headers; i++) {
        const struct s3_header *h = &t->headers[i];

        if (h->only_put && strcmp(call->method, "PUT"))
            continue;
        if (h->is_signed)
            headers[n++] = h->pair;
        else
            plain[(*n_plain)++] = h->pair;
    }
    return n;
}

static int
write_head(struct kvt__http_request *http, char *out, size_t room)
{
    struct s3_call *call = kvt__s3_call_of(http);
    const struct kvt__s3_address *a = &call->target->address;
    char path[sizeof a->object_path + KVT__S3_NAME_ROOM];
    bool has_body = *call->method == 'P'; /* PUT, POST */
    struct kvt__s3_pair headers[KVT__S3_CALL_HEADERS + KVT__S3_EXTRA_HEADERS];
    struct kvt__s3_pair plain[KVT__S3_EXTRA_HEADERS];
    size_t n_plain, n = add_extra(call, headers, plain, &n_plain);
    int err = path_of(call, path, sizeof path);
    struct kvt__s3_head head = {
        .method = call->method, .host = a->host, .path = path,
        .query = call->query, .n_query = call->n_query,
        .headers = headers, .n_headers = n, .plain = plain, .n_plain = n_plain,
        .content_length = has_body ? (int64_t)call->body_bytes : -1,
        .expect_continue = http->expect_continue,
        .keys = call->keys, .region = a->region,
        .service = a->express ? "s3express" : "s3",
        .session = a->express && !call->use_keys,
        .time_s = kvt__s3_now_s(call->tier) };

    return err ? err : kvt__s3_write_head(&head, out, room);
}

/* ------------------------------------------------------------------------- response */

static void
copy_field(const struct kvt__http_head *head, const char *name, char *out, size_t room)
{
    const struct kvt__http_field *f = kvt__http_field(head, name);
    size_t n = f ? f->value_bytes : 0;

    if (n >= room)
        n = 0; /* too long: no valid value has this length */
    memcpy(out, f ? f->value : "", n);
    out[n] = '\0';
}

/* Copy the start of Location.  The end of a long path may be lost, because only scheme, host and
 * port are needed. */
static void
copy_host(const struct kvt__http_head *head, char *out, size_t room)
{
    const struct kvt__http_field *f = kvt__http_field(head, "location");

    snprintf(out, room, "%.*s", f ? (int)f->value_bytes : 0, f ? f->value : "");
}

/* Parse "Sun, 22 Nov 2026 01:02:03 GMT".  Return seconds since 1970, or 0: not such a date.
 * strptime() is unsuitable, because the names of months would depend on the process's locale. */
static int64_t
date_of(const char *text)
{
    static const char months[] = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    struct tm tm = { 0 };
    char month[4];
    int n = 0;

    if (sscanf(text, "%*3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d GMT%n", &tm.tm_mday,
               month, &tm.tm_year, &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &n) != 6 ||
        !n || text[n])
        return 0;
    const char *at = strstr(months, month);
    if (!at || strlen(month) != 3)
        return 0;
    tm.tm_mon = (int)(at - months) / 4;
    tm.tm_year -= 1900;
    return (int64_t)timegm(&tm);
}

static void
note_fields(struct s3_call *call, const struct kvt__http_head *head)
{
    char text[64];

    copy_field(head, "x-amz-request-id", call->request_id, sizeof call->request_id);
    copy_field(head, "x-amz-bucket-region", call->redirect_region, sizeof call->redirect_region);
    copy_host(head, call->redirect_host, sizeof call->redirect_host);
    copy_field(head, "date", text, sizeof text);
    call->date_s = date_of(text);
    copy_field(head, "retry-after", text, sizeof text);
    long seconds = strtol(text, NULL, 10);
    call->retry_after_ns = seconds > 0 && seconds < 3600 ? seconds * KVT__NS_PER_S : 0;
}

/* A successful PUT has no body by the standard, but some stores and proxies send a body. */
static int
on_http_head(struct kvt__http_request *http, const struct kvt__http_head *head)
{
    struct s3_call *call = kvt__s3_call_of(http);

    note_fields(call, head);
    http->into = NULL;
    http->room = 0;
    if (kvt__s3_is_good(call, head->status)) {
        call->head_err = call->on_head ? call->on_head(call, head) : 0;
        if (call->head_err || http->into)
            return call->head_err;
    }
    if (http->is_head || !head->content_length ||
        head->content_length > KVT__S3_BODY_MAX)
        return 0; /* the client ends the response; the status is enough */
    if (!call->error_body)
        call->error_body = malloc(KVT__S3_BODY_MAX);
    if (!call->error_body)
        return kvt__fail(ENOMEM, "S3: a response with status %d", head->status);
    http->into = (unsigned char *)call->error_body;
    http->room = KVT__S3_BODY_MAX;
    return 0;
}

/* Pass on the bytes of a successful response's body; a body in error_body is not for the caller. */
static void
on_http_received(struct kvt__http_request *http, size_t at, size_t n)
{
    struct s3_call *call = kvt__s3_call_of(http);

    if (call->on_received && http->into != (unsigned char *)call->error_body)
        call->on_received(call, at, n);
}

/* ---------------------------------------------------------------------------- send */

static bool
may_hedge(struct kvt__http_request *http)
{
    return kvt__s3_acquire_hedge(&kvt__s3_call_of(http)->tier->pace);
}

void
kvt__s3_send(struct s3_call *call, int64_t in_ns,
             void (*on_done)(struct kvt__http_request *http))
{
    struct s3_tier *t = call->tier;
    struct kvt__http_request *http = &call->http;

    if (!call->n_attempts++)
        call->deadline_ns = kvt__now_ns() + call->timeout_ns;
    call->target = call->redirect_target ? call->redirect_target : atomic_load(&t->target);
    call->head_err = 0;
    call->error = (struct kvt__s3_error){ 0 };
    *http = (struct kvt__http_request){
        .origin = call->target->origin, .prio = call->prio,
        .not_before_ns = in_ns ? kvt__now_ns() + in_ns : 0,
        .deadline_ns = call->deadline_ns,
        .hedge_ns = call->can_hedge ? kvt__s3_hedge_ns(&t->pace) : 0,
        .body = call->body, .body_bytes = call->body_bytes,
        .expect_continue = call->body_bytes > KVT__S3_BODY_MAX &&
                           atomic_load(&t->expect_continue),
        .is_head = !strcmp(call->method, "HEAD"),
        .write_head = write_head, .can_hedge = may_hedge, .on_head = on_http_head,
        .on_body = on_http_received,
        .on_done = on_done };
    kvt__s3_count(t, KVT__N_s3_requests);
    if (call->n_attempts > 1)
        kvt__s3_count(t, KVT__N_s3_repetitions);
    kvt__http_submit(t->http, http);
}
