/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to services for keys.  A request has at most one retry.
 *
 * The requests use kvtier's HTTP client, which the data path has in any case.  libcurl would
 * replace this file and client.c (200 lines) by options and callbacks, and would cost more:
 *   - two sets of rules for proxies, certificates, addresses and deadlines; for example plain HTTP
 *     goes to this host and link-local addresses only, and never through a proxy;
 *   - buffers on the heap that are not wiped, so that keys would be in core dumps;
 *   - Debian's libcurl loads 27 libraries besides OpenSSL and libc, and the wheel would contain
 *     libcurl with its security updates. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/secret.h"
#include "base/sha256.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/encode.h"
#include "tier/s3/xml.h"

#define MAX_ATTEMPTS 2
#define PAUSE_NS (100 * KVT__NS_PER_MS)

struct exchange {
    struct kvt__http_request req;
    struct kvt__s3_fetch *fetch;
    char body_hash[2 * KVT__SHA256_BYTES + 1];
};

struct kvt__s3_fetch *
kvt__s3_fetch_new(void)
{
    struct kvt__s3_fetch *fetch = kvt__secret_alloc(sizeof *fetch);

    if (!fetch)
        kvt__fail(ENOMEM, "request for keys");
    return fetch;
}

void
kvt__s3_fetch_free(struct kvt__s3_fetch *fetch)
{
    kvt__secret_free(fetch);
}

static int
write_head(struct kvt__http_request *req, char *out, size_t room)
{
    const struct exchange *x = (const struct exchange *)req;
    const struct kvt__s3_fetch *fetch = x->fetch;
    struct kvt__s3_head head = {
        .method = fetch->method, .host = fetch->url->host,
        .path = fetch->path ? fetch->path : fetch->url->path, .headers = fetch->headers,
        .n_headers = fetch->n_headers,
        .content_length = strcmp(fetch->method, "GET") ? (int64_t)req->body_bytes : -1,
        .payload_hash = x->body_hash, .keys = fetch->keys, .region = fetch->region,
        .service = "sts", .time_s = time(NULL) };

    return kvt__s3_write_head(&head, out, room);
}

static int
on_head(struct kvt__http_request *req, const struct kvt__http_head *head)
{
    (void)head;
    req->into = (unsigned char *)((struct exchange *)req)->fetch->text;
    req->room = KVT__S3_FETCH_ROOM;
    return 0;
}

static void
hash_body(struct exchange *x)
{
    uint8_t digest[KVT__SHA256_BYTES];
    struct kvt__sha256 sha;

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, x->req.body, x->req.body_bytes);
    kvt__sha256_end(&sha, digest);
    kvt__s3_hex(digest, sizeof digest, x->body_hash);
}

/* Return true if a retry may succeed. */
static bool
may_retry(int err, int http_status)
{
    switch (err) {
    case 0:
        return http_status >= 500 || http_status == 429;
    case -ECANCELED:
    case -EKEYREJECTED:
    case -EMSGSIZE:
    case -EINVAL:
        return false;
    default:
        return true;
    }
}

static int
send_once(struct kvt__http *http, struct kvt__http_origin *origin, int64_t begin_ns,
          struct kvt__s3_fetch *fetch)
{
    const char *body = fetch->body ? fetch->body : "";
    struct exchange x = {
        .req = { .origin = origin, .prio = KVT__PRIO_LOOKUP, .not_before_ns = begin_ns,
                 .deadline_ns = begin_ns + fetch->timeout_ms * KVT__NS_PER_MS,
                 .body = body, .body_bytes = strlen(body), .write_head = write_head,
                 .on_head = on_head }, .fetch = fetch };

    hash_body(&x);
    int err = kvt__http_run(http, &x.req);
    fetch->http_status = x.req.http_status;
    fetch->n = err ? 0 : x.req.received_bytes;
    fetch->text[fetch->n] = '\0';
    if (err)
        kvt__set_why(x.req.why);
    return err;
}

int
kvt__s3_fetch(struct kvt__http *http, struct kvt__s3_fetch *fetch)
{
    const struct kvt__s3_url *url = fetch->url;
    struct kvt__http_target target = { .host = url->name, .port = url->port,
                                       .tls = url->tls,
                                       .address = *url->address ? url->address : NULL };
    struct kvt__http_origin *origin;
    int err = kvt__http_origin(http, &target, &origin);

    if (err)
        return err;
    for (int i = 0; i < MAX_ATTEMPTS; i++) {
        err = send_once(http, origin, kvt__now_ns() + i * PAUSE_NS, fetch);
        if (!may_retry(err, fetch->http_status))
            break;
    }
    return err;
}

int
kvt__s3_fetch_fail(struct kvt__s3_fetch *fetch, const char *secret)
{
    struct kvt__s3_error error;
    char reason[160] = "", start[17];

    /* If the response contains the start of the secret, the sentence leaves out the response. */
    snprintf(start, sizeof start, "%s", secret ? secret : "");
    if (!*start || !strstr(fetch->text, start)) {
        kvt__s3_error_from_json(fetch->text, fetch->n, reason, sizeof reason);
        if (!*reason && !kvt__s3_read_error(fetch->text, fetch->n, &error))
            snprintf(reason, sizeof reason, "%s%s%.*s", error.code,
                     *error.message ? ": " : "", 90, error.message);
        kvt__s3_make_printable(reason);
    }
    return kvt__fail(EACCES, "%s answered %d%s%s.", fetch->url->host, fetch->http_status,
                     *reason ? " " : "", reason);
}
