/* SPDX-License-Identifier: Apache-2.0
 *
 * The responses of http-sink. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http-sink.h"

#define ETAG "ETag: \"00000000000000000000000000000001\"\r\n"

/* Return the value of a header, which ends at CR; NULL: no such header. */
static const char *
field(const struct conn *c, const char *name)
{
    size_t n = strlen(name);
    const char *line = strstr(c->head, "\r\n");

    for (; line && line[2] != '\r'; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, n) && line[2 + n] == ':')
            return line + 3 + n + strspn(line + 3 + n, " \t");
    return NULL;
}

static void
answer(struct conn *c, const char *status, const char *fields, const char *text)
{
    c->reply_start = 0;
    c->reply_end = (size_t)snprintf(
        c->reply, sizeof(c->reply),
        "HTTP/1.1 %s\r\nx-amz-request-id: 1\r\n%sContent-Length: %zu\r\n\r\n%s", status,
        fields, strlen(text), text);
}

static void
answer_object(struct conn *c, bool with_body)
{
    const char *range = with_body ? field(c, "range") : NULL;
    size_t start = 0, last = sink.object_bytes - 1;
    char span[128] = "";

    if (range && sscanf(range, "bytes=%zu-%zu", &start, &last) >= 1) {
        if (last >= sink.object_bytes)
            last = sink.object_bytes - 1;
        if (start > last) {
            answer(c, "416 Requested Range Not Satisfiable", "",
                   "<Error><Code>InvalidRange</Code></Error>");
            return;
        }
        snprintf(span, sizeof(span), "Content-Range: bytes %zu-%zu/%zu\r\n", start, last,
                 sink.object_bytes);
    }
    c->reply_start = 0;
    c->reply_end = (size_t)snprintf(
        c->reply, sizeof(c->reply),
        "HTTP/1.1 %s\r\nx-amz-request-id: 1\r\n" ETAG "%s%s%s"
        "Content-Length: %zu\r\n\r\n", *span ? "206 Partial Content" : "200 OK",
        sink.fields, *span ? "" : sink.checksum, span, last - start + 1);
    if (with_body) {
        c->body_at = start;
        c->body_left = last - start + 1;
    }
}

static void
answer_get(struct conn *c, const char *target, bool is_head)
{
    size_t path = strcspn(target, "? ");

    if (path >= 5 && !memcmp(target + path - 5, ".miss", 5))
        answer(c, "404 Not Found", "",
               is_head ? "" : "<Error><Code>NoSuchKey</Code></Error>");
    else if (!strncmp(target + path, "?list-type=2", 12))
        answer(c, "200 OK", "",
               "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
    else
        answer_object(c, !is_head);
}

static void
answer_post(struct conn *c, const char *target)
{
    size_t path = strcspn(target, "? ");

    if (!strncmp(target + path, "?uploads", 8))
        answer(c, "200 OK", "", "<InitiateMultipartUploadResult><UploadId>1</UploadId>"
                                "</InitiateMultipartUploadResult>");
    else if (!strncmp(target + path, "?delete", 7))
        answer(c, "200 OK", "", "<DeleteResult></DeleteResult>");
    else
        answer(c, "200 OK", "", "<CompleteMultipartUploadResult><ETag>\"1-1\"</ETag>"
                                "</CompleteMultipartUploadResult>");
}

bool
sink_prepare(struct conn *c)
{
    const char *target = strchr(c->head, ' ');
    const char *length = field(c, "content-length");
    const char *expect = field(c, "expect");
    const char *connection = field(c, "connection");
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";

    if (!target++)
        return false;
    c->discard = length ? strtoull(length, NULL, 10) : 0;
    c->close_after = connection && !strncasecmp(connection, "close", 5);
    if (!strncmp(c->head, "GET ", 4))
        answer_get(c, target, false);
    else if (!strncmp(c->head, "HEAD ", 5))
        answer_get(c, target, true);
    else if (!strncmp(c->head, "PUT ", 4))
        answer(c, "200 OK", ETAG, "");
    else if (!strncmp(c->head, "POST ", 5))
        answer_post(c, target);
    else if (!strncmp(c->head, "DELETE ", 7))
        c->reply_end = (size_t)sprintf(c->reply, "HTTP/1.1 204 No Content\r\n\r\n");
    else
        return false;
    if (!expect || strncasecmp(expect, "100-continue", 12))
        return true;
    return wire_write(&c->wire, go_on, sizeof(go_on) - 1) == sizeof(go_on) - 1;
}
