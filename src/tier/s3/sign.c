/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS Signature Version 4.  A request is prepared once: parameters are encoded and sorted, headers
 * are sorted.  The canonical form is hashed, and the head is written, from the prepared request.
 * Any thread. */
#include "tier/s3/sign.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/sha256.h"
#include "kvtier.h"
#include "tier/s3/encode.h"
#include "tier/s3/signing-key.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define OWN_HEADERS 4       /* host, x-amz-content-sha256, x-amz-date, a token */
#define QUERY_ROOM 8192     /* room for a prefix and a token of 1024 bytes each, encoded */

struct prepared {
    const struct kvt__s3_head *head;
    struct kvt__s3_pair headers[KVT__S3_MAX_HEADERS + OWN_HEADERS];
    size_t n_headers;
    struct kvt__s3_pair query[KVT__S3_MAX_QUERY]; /* encoded, points into `encoded` */
    size_t n_query;
    char encoded[QUERY_ROOM];
    char time[17];            /* YYYYMMDDTHHMMSSZ */
    char day[9];
    char scope[KVT__S3_SCOPE_ROOM];
};

/* An output: memory, or a hash. */
struct sink {
    char *out;
    size_t room, n;
    bool full;
    struct kvt__sha256 *hash; /* if set, replaces out */
};

static void
put(struct sink *sink, const char *text, size_t n)
{
    if (sink->hash) {
        kvt__sha256_add(sink->hash, text, n);
    } else if (sink->full || n >= sink->room - sink->n) {
        sink->full = true;
    } else {
        memcpy(sink->out + sink->n, text, n);
        sink->n += n;
    }
}

static void
put_text(struct sink *sink, const char *text)
{
    put(sink, text, strlen(text));
}

/* Add the NUL, for which put() left room.  Return the length, or -EMSGSIZE with a sentence. */
static int
finish(struct sink *sink)
{
    if (sink->full || !sink->room)
        return kvt__fail(EMSGSIZE, "S3: the head of a request needs more than %zu bytes.",
                         sink->room);
    sink->out[sink->n] = '\0';
    return (int)sink->n;
}

/* ------------------------------------------------------------------- prepare */

/* Return true if the text is allowed in a head: a control character could end the line.  ascii:
 * only printable ASCII without blanks is allowed, for the request line and the host. */
static bool
is_clean(const char *text, bool ascii)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < ' ' || c == 0x7f || (ascii && (c == ' ' || c > 0x7f)))
            return false;
    }
    return true;
}

static int
check(const struct kvt__s3_head *h)
{
    const char *bad = NULL;

    if (!is_clean(h->method, true))
        bad = "method";
    else if (!is_clean(h->host, true) || !*h->host)
        bad = "host";
    else if (!is_clean(h->path, true) || *h->path != '/')
        bad = "path";
    else if (h->keys && (!is_clean(h->keys->access, false) || !*h->keys->access))
        bad = "access key";
    else if (h->keys && h->keys->token && !is_clean(h->keys->token, false))
        bad = "session token";
    else if (h->keys && !is_clean(h->region, false))
        bad = "region";
    for (size_t i = 0; !bad && i < h->n_plain; i++)
        if (!is_clean(h->plain[i].name, true) || !is_clean(h->plain[i].value, false))
            bad = "header of s3_headers";
    if (bad)
        return kvt__fail(EINVAL, "S3: the %s is empty or has control characters.", bad);
    return 0;
}

static int
add_header(struct prepared *p, const char *name, const char *value)
{
    size_t at = p->n_headers;

    if (!value)
        return 0;
    if (at == sizeof p->headers / sizeof *p->headers)
        return kvt__fail(EMSGSIZE, "S3: a request has more than %d headers.",
                         KVT__S3_MAX_HEADERS);
    if (!is_clean(value, false))
        return kvt__fail(EINVAL, "S3: the value of the header %s has control characters.",
                         name);
    /* Compare names only.  A comparison of NAME:VALUE lines would sort a name after a longer name
     * that continues with '-'. */
    for (; at && strcmp(p->headers[at - 1].name, name) > 0; at--)
        p->headers[at] = p->headers[at - 1];
    p->headers[at] = (struct kvt__s3_pair){ name, value };
    p->n_headers++;
    return 0;
}

static int
prepare_headers(struct prepared *p)
{
    const struct kvt__s3_head *h = p->head;
    int rc = 0;

    for (size_t i = 0; !rc && i < h->n_headers; i++)
        rc = add_header(p, h->headers[i].name, h->headers[i].value);
    if (!rc && p->n_headers > KVT__S3_MAX_HEADERS)
        rc = kvt__fail(EMSGSIZE, "S3: a request has more than %d headers.",
                       KVT__S3_MAX_HEADERS);
    if (!rc)
        rc = add_header(p, "host", h->host);
    if (rc || !h->keys)
        return rc;
    rc = add_header(p, "x-amz-content-sha256",
                    h->payload_hash ? h->payload_hash : "UNSIGNED-PAYLOAD");
    if (!rc)
        rc = add_header(p, "x-amz-date", p->time);
    if (!rc)
        rc = add_header(p, h->session ? "x-amz-s3session-token" : "x-amz-security-token",
                        h->keys->token);
    return rc;
}

/* Encode text into the free part of p->encoded.  NULL: no room. */
static const char *
encode(struct prepared *p, size_t *used, const char *text)
{
    char *at = p->encoded + *used;
    int n = kvt__s3_encode(text, strlen(text), false, at, sizeof p->encoded - *used);

    if (n < 0)
        return NULL;
    *used += (size_t)n + 1;
    return at;
}

static int
prepare_query(struct prepared *p)
{
    const struct kvt__s3_head *h = p->head;
    size_t used = 0;

    for (size_t i = 0; i < h->n_query; i++) {
        struct kvt__s3_pair pair;
        size_t at = p->n_query;

        if (!h->query[i].value)
            continue;
        pair.name = encode(p, &used, h->query[i].name);
        pair.value = encode(p, &used, h->query[i].value);
        if (!pair.name || !pair.value || at == KVT__S3_MAX_QUERY)
            return kvt__fail(EMSGSIZE, "S3: a request's query has more than %d parameters "
                             "or %d bytes.", KVT__S3_MAX_QUERY, QUERY_ROOM);
        for (; at; at--) {
            const struct kvt__s3_pair *before = &p->query[at - 1];
            int order = strcmp(before->name, pair.name);
            if (order < 0 || (!order && strcmp(before->value, pair.value) <= 0))
                break;
            p->query[at] = *before;
        }
        p->query[at] = pair;
        p->n_query++;
    }
    return 0;
}

static int
prepare(struct prepared *p, const struct kvt__s3_head *head)
{
    time_t time_s = (time_t)head->time_s;
    struct tm tm;

    p->head = head;
    p->n_headers = p->n_query = 0;
    int rc = check(head);
    if (rc)
        return rc;
    if (head->keys) {
        if (head->time_s < 0 || !gmtime_r(&time_s, &tm) ||
            !strftime(p->time, sizeof p->time, "%Y%m%dT%H%M%SZ", &tm))
            return kvt__fail(EINVAL, "S3: %lld s is not a valid time for a request.",
                             (long long)head->time_s);
        memcpy(p->day, p->time, 8);
        p->day[8] = '\0';
        int n = snprintf(p->scope, sizeof p->scope, "%s/%s/%s/aws4_request", p->day,
                         head->region, head->service);
        if (n < 0 || (size_t)n >= sizeof p->scope)
            return kvt__fail(EMSGSIZE, "S3: the name of the region is too long.");
    }
    rc = prepare_headers(p);
    return rc ? rc : prepare_query(p);
}

/* --------------------------------------------------------------------- write */

static void
put_query(struct sink *sink, const struct prepared *p)
{
    for (size_t i = 0; i < p->n_query; i++) {
        put(sink, "&", i ? 1 : 0);
        put_text(sink, p->query[i].name);
        put(sink, "=", 1);
        put_text(sink, p->query[i].value);
    }
}

static void
put_names(struct sink *sink, const struct prepared *p)
{
    for (size_t i = 0; i < p->n_headers; i++) {
        put(sink, ";", i ? 1 : 0);
        put_text(sink, p->headers[i].name);
    }
}

/* Write a value without leading and trailing blanks; inner runs of blanks become one blank. */
static void
put_folded(struct sink *sink, const char *value)
{
    bool first = true;

    for (;;) {
        value += strspn(value, " ");
        size_t n = strcspn(value, " ");
        if (!n)
            return;
        if (!first)
            put(sink, " ", 1);
        put(sink, value, n);
        value += n;
        first = false;
    }
}

static void
put_canonical(struct sink *sink, const struct prepared *p)
{
    const struct kvt__s3_head *h = p->head;

    put_text(sink, h->method);
    put(sink, "\n", 1);
    put_text(sink, h->path);
    put(sink, "\n", 1);
    put_query(sink, p);
    put(sink, "\n", 1);
    for (size_t i = 0; i < p->n_headers; i++) {
        put_text(sink, p->headers[i].name);
        put(sink, ":", 1);
        put_folded(sink, p->headers[i].value);
        put(sink, "\n", 1);
    }
    put(sink, "\n", 1);
    put_names(sink, p);
    put(sink, "\n", 1);
    put_text(sink, h->payload_hash ? h->payload_hash : "UNSIGNED-PAYLOAD");
}

static void
sign(const struct prepared *p, char signature[2 * KVT__SHA256_BYTES + 1])
{
    const struct kvt__s3_head *h = p->head;
    char hash_hex[2 * KVT__SHA256_BYTES + 1];
    char text[sizeof ALGORITHM + sizeof p->time + sizeof p->scope + sizeof hash_hex];
    uint8_t key[KVT__SHA256_BYTES], hash[KVT__SHA256_BYTES];
    struct kvt__sha256 sha256;
    struct sink sink = { .hash = &sha256 };

    kvt__sha256_init(&sha256);
    put_canonical(&sink, p);
    kvt__sha256_end(&sha256, hash);
    kvt__s3_hex(hash, sizeof hash, hash_hex);
    int n = snprintf(text, sizeof text, ALGORITHM "\n%s\n%s\n%s", p->time, p->scope,
                     hash_hex);
    kvt__s3_signing_key(h->keys, p->day, h->region, h->service, p->scope, key);
    kvt__s3_hmac(key, sizeof key, text, (size_t)n, hash);
    explicit_bzero(key, sizeof key);
    kvt__s3_hex(hash, sizeof hash, signature);
}

static void
put_header(struct sink *sink, const char *name, const char *value)
{
    put_text(sink, name);
    put(sink, ": ", 2);
    put_text(sink, value);
    put(sink, "\r\n", 2);
}

static void
put_authorization(struct sink *sink, const struct prepared *p)
{
    char signature[2 * KVT__SHA256_BYTES + 1];

    sign(p, signature);
    put_text(sink, "Authorization: " ALGORITHM " Credential=");
    put_text(sink, p->head->keys->access);
    put(sink, "/", 1);
    put_text(sink, p->scope);
    put_text(sink, ", SignedHeaders=");
    put_names(sink, p);
    put_text(sink, ", Signature=");
    put_text(sink, signature);
    put(sink, "\r\n", 2);
}

int
kvt__s3_write_head(const struct kvt__s3_head *head, char *out, size_t room)
{
    struct sink sink = { .out = out, .room = room };
    struct prepared p;
    char length[24];
    int rc = prepare(&p, head);

    if (rc)
        return rc;
    put_text(&sink, head->method);
    put(&sink, " ", 1);
    put_text(&sink, head->path);
    put(&sink, "?", p.n_query ? 1 : 0);
    put_query(&sink, &p);
    put_text(&sink, " HTTP/1.1\r\n");
    for (size_t i = 0; i < p.n_headers; i++)
        put_header(&sink, p.headers[i].name, p.headers[i].value);
    for (size_t i = 0; i < head->n_plain; i++)
        put_header(&sink, head->plain[i].name, head->plain[i].value);
    if (head->content_length >= 0) {
        snprintf(length, sizeof length, "%lld", (long long)head->content_length);
        put_header(&sink, "Content-Length", length);
    }
    if (head->expect_continue)
        put_header(&sink, "Expect", "100-continue");
    put_text(&sink, "User-Agent: kvtier/");
    put_text(&sink, kvt_version());
    put(&sink, "\r\n", 2);
    if (head->keys)
        put_authorization(&sink, &p);
    put(&sink, "\r\n", 2);
    return finish(&sink);
}

int
kvt__s3_canonical(const struct kvt__s3_head *head, char *out, size_t room)
{
    struct sink sink = { .out = out, .room = room };
    struct prepared p;
    int rc = prepare(&p, head);

    if (rc)
        return rc;
    put_canonical(&sink, &p);
    return finish(&sink);
}
