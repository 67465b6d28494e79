/* SPDX-License-Identifier: Apache-2.0
 *
 * Deletion of many objects, with one request (DeleteObjects).  If the store does not implement
 * DeleteObjects, or rejects the keys in a document, each object is deleted with an individual
 * DELETE. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "tier/s3/clean.h"
#include "tier/s3/encode.h"

#define MAX_RESPONSE ((size_t)4 << 20) /* room for 1000 errors with keys of 1024 bytes */
#define MD5_BYTES 16
#define WHY_BYTES 256

/* Time limit of a request, and of all individual deletions together.  The worst case is a rejected
 * DeleteObjects, then individual deletions, and a late last deletion: in sum less than
 * KVT__S3_LEASE_MARGIN_S. */
#define WITHIN_NS (KVT__S3_LEASE_MARGIN_S * KVT__NS_PER_S / 4)

/* ------------------------------------------------------------ individual requests */

int
kvt__s3_delete_one(struct s3_tier *t, const char *name)
{
    struct s3_call call = {
        .tier = t, .method = "DELETE", .name = name, .prio = KVT__PRIO_STORE,
        .timeout_ns = WITHIN_NS };

    if (t->request_payer)
        kvt__s3_add_header(&call, "x-amz-request-payer", "requester");
    return kvt__s3_call_wait(&call);
}

/* Delete each object with an individual request.  Parameters and return value: as for
 * kvt__s3_delete(). */
static int
delete_each(struct s3_tier *t, struct s3_victim *victims, size_t n, char why[WHY_BYTES])
{
    int64_t until = kvt__now_ns() + WITHIN_NS;
    char name[KVT__S3_NAME_ROOM];
    size_t i = 0;

    do {
        int err = kvt__s3_encode(victims[i].name, strlen(victims[i].name), true, name,
                                 sizeof name);
        if (err >= 0)
            err = kvt__s3_delete_one(t, name);
        if (err == -ECANCELED || err == -ETIMEDOUT || err == -EACCES)
            return err;
        victims[i].failed = err && err != -ENOENT;
        if (victims[i].failed && !*why)
            snprintf(why, WHY_BYTES, "%s", kvt__why());
    } while (++i < n && kvt__now_ns() < until);
    return (int)i;
}

/* -------------------------------------------------------------------- DeleteObjects */

struct batch {
    struct s3_call call;
    struct s3_victim *victims;
    size_t n;
    char *why;
    size_t prefix;
    char *xml;
    size_t xml_bytes;
    char md5[2 * MD5_BYTES], crc[12];
    char response[MAX_RESPONSE];
};

/* Return true if the document can contain all names: XML 1.0 has no control characters. */
static bool
has_writable_names(const struct s3_victim *victims, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (const char *c = victims[i].name; *c; c++)
            if ((unsigned char)*c < ' ')
                return false;
    return true;
}

static void
put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&apos;", out);
            break;
        default:
            putc(*text, out);
        }
    }
}

/* Write the document to b->xml, which the caller frees, also after an error.  0 or -ENOMEM with a
 * sentence. */
static int
write_xml(struct batch *b, const char *prefix)
{
    FILE *out = open_memstream(&b->xml, &b->xml_bytes);

    if (!out)
        return kvt__fail(ENOMEM, "S3: DeleteObjects");
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>",
          out);
    for (size_t i = 0; i < b->n; i++) {
        fputs("<Object><Key>", out);
        put_escaped(out, prefix);
        put_escaped(out, b->victims[i].name);
        fputs("</Key></Object>", out);
    }
    fputs("</Delete>", out);
    bool failed = ferror(out);
    return fclose(out) || failed ? kvt__fail(ENOMEM, "S3: DeleteObjects") : 0;
}

/* Add a checksum of the document.  All stores implement MD5, except directory buckets; OpenSSL has
 * no MD5 in FIPS mode.  Otherwise use CRC32C. */
static void
add_checksum(struct batch *b, bool express)
{
    uint8_t md5[EVP_MAX_MD_SIZE], crc[4];
    uint32_t value;
    unsigned n = 0;

    if (!express && EVP_Digest(b->xml, b->xml_bytes, md5, &n, EVP_md5(), NULL) == 1 &&
        n == MD5_BYTES) {
        kvt__s3_base64(md5, MD5_BYTES, b->md5);
        kvt__s3_add_header(&b->call, "content-md5", b->md5);
        return;
    }
    value = kvt__crc32c(0, b->xml, b->xml_bytes);
    for (int i = 0; i < 4; i++)
        crc[i] = (uint8_t)(value >> (24 - 8 * i));
    kvt__s3_base64(crc, sizeof crc, b->crc);
    kvt__s3_add_header(&b->call, "x-amz-checksum-crc32c", b->crc);
}

static int
on_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct batch *b = (struct batch *)call;

    (void)head;
    call->http.into = (unsigned char *)b->response;
    call->http.room = sizeof b->response;
    return 0;
}

static void
set_failed(struct s3_victim *victims, size_t n, bool failed)
{
    for (size_t i = 0; i < n; i++)
        victims[i].failed = failed;
}

static void
on_not_deleted(void *ctx, const char *key, const char *code, const char *message)
{
    struct batch *b = ctx;
    const char *name = strlen(key) < b->prefix ? "" : key + b->prefix;
    bool known = false;

    if (!strcmp(code, "NoSuchKey"))
        return;
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->victims[i].name, name))
            known = b->victims[i].failed = true;
    if (!known) /* unknown key: any object may be meant */
        set_failed(b->victims, b->n, true);
    if (!*b->why)
        snprintf(b->why, WHY_BYTES, "%s: %s%s", code, message,
                 strcmp(code, "AccessDenied") ? "" : ". The keys need s3:DeleteObject");
}

static int
send_batch(struct s3_tier *t, struct batch *b)
{
    const struct kvt__s3_address *a = kvt__s3_address_of(t);

    b->prefix = strlen(a->prefix);
    int err = write_xml(b, a->prefix);
    if (err)
        return err;
    b->call = (struct s3_call){
        .tier = t, .method = "POST", .prio = KVT__PRIO_STORE, .on_head = on_head,
        .timeout_ns = WITHIN_NS, .body = b->xml, .body_bytes = b->xml_bytes };
    kvt__s3_add_query(&b->call, "delete", "");
    kvt__s3_add_header(&b->call, "content-type", "application/xml");
    add_checksum(b, a->express);
    if (t->request_payer)
        kvt__s3_add_header(&b->call, "x-amz-request-payer", "requester");
    err = kvt__s3_call_wait(&b->call);
    if (err)
        return err;
    set_failed(b->victims, b->n, false);
    err = kvt__s3_read_deleted(b->response, b->call.http.received_bytes, on_not_deleted, b);
    if (err)
        set_failed(b->victims, b->n, true);
    return err;
}

/* Send DeleteObjects.  status: HTTP status of a failed request; 0 after success. */
static int
delete_at_once(struct s3_tier *t, struct s3_victim *victims, size_t n, char *why, int *status)
{
    struct batch *b = malloc(sizeof *b);

    if (!b)
        return kvt__fail(ENOMEM, "S3: DeleteObjects");
    b->call.http.http_status = 0;
    b->victims = victims;
    b->n = n;
    b->why = why;
    b->xml = NULL;
    int err = send_batch(t, b);
    *status = err ? b->call.http.http_status : 0;
    free(b->xml);
    free(b);
    return err;
}

int
kvt__s3_delete(struct s3_tier *t, struct s3_victim *victims, size_t n, char why[WHY_BYTES])
{
    int status = 0;

    *why = '\0';
    set_failed(victims, n, true);
    if (!t->cleaner.no_delete_objects && has_writable_names(victims, n)) {
        int err = delete_at_once(t, victims, n, why, &status);

        if (status == 405 || status == 501)
            t->cleaner.no_delete_objects = true;
        else if (status != 400)
            return err ? err : (int)n;
    }
    return delete_each(t, victims, n, why);
}
