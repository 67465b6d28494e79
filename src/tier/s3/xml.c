/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers of S3 and STS documents.  Stores add their own elements, namespaces and order, so unknown
 * elements are skipped and the order is ignored.  Any thread. */
#include "tier/s3/xml.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tier/s3/encode.h"
#include "tier/s3/xml-scan.h"

/* Start the scan and check the root's name: name or other.  0 or -EBADMSG with a sentence. */
static int
open_root(struct kvt__xml *xml, char *text, size_t n, const char *name, const char *other)
{
    kvt__xml_begin(xml, text, n, false);
    int rc = kvt__xml_next(xml);
    if (rc < 0)
        return rc;
    if (kvt__xml_is(xml, 0, name) || kvt__xml_is(xml, 0, other))
        return 0;
    size_t n_root = xml->open[0].n;
    return kvt__fail(EBADMSG, "S3: a response is <%.*s>, but <%s> was expected.",
                     (int)(n_root < 64 ? n_root : 64), xml->open[0].text, name);
}

/* Return true if the undecoded text is this word, with optional white space around the word. */
static bool
is_word(const char *text, size_t n, const char *word)
{
    static const char blanks[] = " \t\r\n";

    for (; n && memchr(blanks, *text, 4); text++)
        n--;
    while (n && memchr(blanks, text[n - 1], 4))
        n--;
    return n == strlen(word) && !memcmp(text, word, n);
}

/* Scan the whole document unchanged.  Return -EBADMSG with a sentence: incomplete or badly nested;
 * 1: an element NAME at any depth contains this word; 0 otherwise. */
static int
scan_whole(char *text, size_t n, const char *name, const char *word)
{
    struct kvt__xml xml;
    int event, found = 0;

    kvt__xml_begin(&xml, text, n, true);
    while ((event = kvt__xml_next(&xml)) > 0)
        if (event == KVT__XML_CLOSE && kvt__xml_is(&xml, 0, name))
            found |= is_word(xml.text, xml.n_text, word);
    return event < 0 ? event : found;
}

/* Return the text of the closed element without leading and trailing white space. */
static char *
trimmed(struct kvt__xml *xml)
{
    char *text = xml->text + strspn(xml->text, " \t\r\n");
    size_t n = strlen(text);

    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    text[n] = '\0';
    return text;
}

/* Replace control characters by blanks, so that a store cannot add lines to messages and logs. */
static char *
printable(char *text)
{
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = ' ';
    return text;
}

/* Copy the text of the first such element, truncated between characters. */
static void
take(char *to, size_t room, struct kvt__xml *xml)
{
    const char *text = printable(trimmed(xml));
    size_t n = strlen(text);

    if (*to)
        return;
    if (n >= room)
        for (n = room - 1; n && ((unsigned char)text[n] & 0xc0) == 0x80; n--)
            continue;
    memcpy(to, text, n);
    to[n] = '\0';
}

int
kvt__s3_read_error(char *text, size_t n, struct kvt__s3_error *out)
{
    struct kvt__xml xml;
    bool found;
    int event;

    memset(out, 0, sizeof *out);
    int rc = open_root(&xml, text, n, "Error", "ErrorResponse");
    if (rc)
        return rc;
    found = kvt__xml_is(&xml, 0, "Error");
    while ((event = kvt__xml_next(&xml)) > 0) {
        bool inside = kvt__xml_is(&xml, 1, "Error");

        found |= kvt__xml_is(&xml, 0, "Error");
        if (event != KVT__XML_CLOSE)
            continue;
        if (inside && kvt__xml_is(&xml, 0, "Code"))
            take(out->code, sizeof out->code, &xml);
        else if (inside && kvt__xml_is(&xml, 0, "Message"))
            take(out->message, sizeof out->message, &xml);
        else if (inside && kvt__xml_is(&xml, 0, "Region"))
            take(out->region, sizeof out->region, &xml);
        else if (inside && kvt__xml_is(&xml, 0, "Endpoint"))
            take(out->endpoint, sizeof out->endpoint, &xml);
        else if (kvt__xml_is(&xml, 0, "RequestId"))
            take(out->request_id, sizeof out->request_id, &xml);
    }
    if (!event && !found)
        return kvt__fail(EBADMSG, "S3: a response is <ErrorResponse> without <Error>.");
    return event;
}

/* ---------------------------------------------------------------------- list */

struct list {
    struct kvt__xml xml;
    bool encoded, truncated;
    bool has_key, has_bytes; /* of the present object */
    struct kvt__s3_listed object;
    void (*fn)(void *ctx, const struct kvt__s3_listed *listed);
    void *ctx;
    const char *token;
};

/* Parse a number of bytes.  Return false if the text is not a number or exceeds off_t. */
static bool
read_bytes(const char *text, uint64_t *out)
{
    uint64_t value = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > (uint64_t)INT64_MAX / 10 - 1)
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *out = value;
    return true;
}

/* Set the object's key.  Some stores encode a blank as '+'; a plus sign is always %2B. */
static int
read_key(struct list *l)
{
    char *key = l->xml.text;

    if (l->encoded) {
        for (char *at = key; (at = strchr(at, '+')); at++)
            *at = ' ';
        int n = kvt__s3_decode(key, strlen(key));
        if (n < 0)
            return kvt__fail(EBADMSG, "S3: a key in a list has an invalid percent-encoding.");
        key[n] = '\0';
    }
    l->object.key = key;
    l->has_key = *key != '\0';
    return 0;
}

static int
close_in_object(struct list *l)
{
    if (kvt__xml_is(&l->xml, 0, "Key"))
        return read_key(l);
    if (kvt__xml_is(&l->xml, 0, "Size")) {
        l->has_bytes = read_bytes(trimmed(&l->xml), &l->object.bytes);
    } else if (kvt__xml_is(&l->xml, 0, "LastModified")) {
        int64_t ns = 0, s = kvt__s3_time(trimmed(&l->xml), &ns);
        bool in_range = s > 0 && s < INT64_MAX / KVT__NS_PER_S;
        l->object.modified_ns = in_range ? s * KVT__NS_PER_S + ns : 0;
    }
    return 0;
}

static int
close_in_list(struct list *l)
{
    struct kvt__xml *xml = &l->xml;

    if (xml->depth == 3 && kvt__xml_is(xml, 1, "Contents"))
        return close_in_object(l);
    if (xml->depth != 2)
        return 0;
    if (kvt__xml_is(xml, 0, "Contents")) {
        if (!l->has_key || !l->has_bytes)
            return kvt__fail(EBADMSG, "S3: a list has an object without a key or a size.");
        l->fn(l->ctx, &l->object);
    } else if (kvt__xml_is(xml, 0, "IsTruncated")) {
        l->truncated = !strcmp(trimmed(xml), "true");
    } else if (kvt__xml_is(xml, 0, "NextContinuationToken")) {
        l->token = xml->text;
    }
    return 0;
}

int
kvt__s3_read_list(char *text, size_t n,
                  void (*fn)(void *ctx, const struct kvt__s3_listed *listed), void *ctx,
                  char *token, size_t token_room)
{
    /* MinIO sends EncodingType after the objects, so look for EncodingType first. */
    int event, rc = scan_whole(text, n, "EncodingType", "url");
    struct list l = { .encoded = rc > 0, .fn = fn, .ctx = ctx, .token = "" };

    if (rc >= 0)
        rc = open_root(&l.xml, text, n, "ListBucketResult", "ListBucketResult");
    while (!rc && (event = kvt__xml_next(&l.xml)) != KVT__XML_END) {
        if (event == KVT__XML_OPEN && l.xml.depth == 2 &&
            kvt__xml_is(&l.xml, 0, "Contents")) {
            l.object = (struct kvt__s3_listed){ 0 };
            l.has_key = l.has_bytes = false;
        }
        rc = event < 0 ? event : event == KVT__XML_CLOSE ? close_in_list(&l) : 0;
    }
    if (rc)
        return rc;
    if (!l.truncated)
        l.token = "";
    if ((l.truncated && !*l.token) || strlen(l.token) >= token_room)
        return kvt__fail(EBADMSG, "S3: a list with more pages has no token, or a token of "
                         "more than %zu bytes.", token_room);
    strcpy(token, l.token);
    return 0;
}

/* ----------------------------------------------------------- other documents */

int
kvt__s3_read_deleted(char *text, size_t n,
                     void (*fn)(void *ctx, const char *key, const char *code,
                                const char *message),
                     void *ctx)
{
    const char *key = "", *code = "", *message = "";
    struct kvt__xml xml;
    int event, rc = scan_whole(text, n, "", "");

    if (rc >= 0)
        rc = open_root(&xml, text, n, "DeleteResult", "DeleteResult");
    if (rc)
        return rc;
    while ((event = kvt__xml_next(&xml)) > 0) {
        bool inside = xml.depth == 3 && kvt__xml_is(&xml, 1, "Error");

        if (event == KVT__XML_OPEN && xml.depth == 2)
            key = code = message = "";
        else if (event == KVT__XML_CLOSE && xml.depth == 2 && kvt__xml_is(&xml, 0, "Error"))
            fn(ctx, key, code, message);
        else if (event == KVT__XML_CLOSE && inside && kvt__xml_is(&xml, 0, "Key"))
            key = xml.text;
        else if (event == KVT__XML_CLOSE && inside && kvt__xml_is(&xml, 0, "Code"))
            code = printable(trimmed(&xml));
        else if (event == KVT__XML_CLOSE && inside && kvt__xml_is(&xml, 0, "Message"))
            message = printable(trimmed(&xml));
    }
    return event;
}

int
kvt__s3_read_credentials(char *text, size_t n, struct kvt__s3_xml_credentials *out)
{
    const char *expires = "";
    struct kvt__xml xml;
    int event;

    *out = (struct kvt__s3_xml_credentials){ "", "", "", INT64_MIN };
    kvt__xml_begin(&xml, text, n, false);
    while ((event = kvt__xml_next(&xml)) > 0) {
        if (event != KVT__XML_CLOSE || !kvt__xml_is(&xml, 1, "Credentials"))
            continue;
        if (kvt__xml_is(&xml, 0, "AccessKeyId"))
            out->access = trimmed(&xml);
        else if (kvt__xml_is(&xml, 0, "SecretAccessKey"))
            out->secret = trimmed(&xml);
        else if (kvt__xml_is(&xml, 0, "SessionToken"))
            out->token = trimmed(&xml);
        else if (kvt__xml_is(&xml, 0, "Expiration"))
            expires = trimmed(&xml);
    }
    if (event)
        return event;
    out->expires_s = kvt__s3_time(expires, NULL);
    if (*out->access && *out->secret && *out->token && out->expires_s != INT64_MIN)
        return 0;
    size_t n_root = xml.open[0].n;
    return kvt__fail(EBADMSG, "S3: a response is <%.*s> without complete <Credentials>.",
                     (int)(n_root < 64 ? n_root : 64), xml.open[0].text);
}
