/* SPDX-License-Identifier: Apache-2.0
 *
 * The setting s3_headers: additional request headers.  Values may be secret, so messages identify
 * an entry by number. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"
#include "tier/s3/s3.h"

/* Headers set by kvtier or the HTTP client; '*' matches any suffix. */
static const char *const reserved[] = {
    "host", "content-length", "content-type", "content-md5", "content-encoding",
    "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
    "user-agent", "accept-encoding", "authorization",
    "proxy-*", "date", "range", "if-*", "x-amz-date",
    "x-amz-content-sha256", "x-amz-security-token", "x-amz-s3session-token",
    "x-amz-checksum-*", "x-amz-sdk-checksum-algorithm", "x-amz-meta-kvtier*",
    "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-*", "x-amz-storage-class",
    "x-amz-request-payer", "x-amz-create-session-mode", "x-amz-copy-*" };

/* Headers that describe an object: sent with a PUT only. */
static const char *const put_only[] = {
    "x-amz-tagging", "x-amz-acl", "x-amz-grant-*", "x-amz-object-lock-*", "x-amz-meta-*",
    "x-amz-server-side-encryption-*", "x-amz-website-*", "cache-control", "content-*",
    "expires" };

static bool
is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t front = strcspn(names[i], "*");

        if (names[i][front] ? !strncmp(name, names[i], front) : !strcmp(name, names[i]))
            return true;
    }
    return false;
}

#define IS_ONE_OF(name, names) is_one_of(name, names, sizeof names / sizeof *(names))

/* Split "Name: value" in place and convert the name to lower case.  Return false if the text is not
 * a valid header. */
static bool
split(char *text, struct s3_header *out)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    char *colon = strchr(text, ':');

    if (!colon || colon == text)
        return false;
    for (char *c = text; c < colon; c++) {
        if (!isalnum((unsigned char)*c) && !strchr(others, *c))
            return false;
        *c = (char)tolower((unsigned char)*c);
    }
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " ");
    for (char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return false;
    for (size_t n = strlen(value); n && value[n - 1] == ' '; n--)
        value[n - 1] = '\0';
    *out = (struct s3_header){ .pair = { text, value },
                               .is_signed = !strncmp(text, "x-amz-", 6),
                               .only_put = IS_ONE_OF(text, put_only) };
    return *value;
}

static bool
is_duplicate(const struct s3_tier *t, const char *name)
{
    for (size_t i = 0; i < t->n_headers; i++)
        if (!strcmp(t->headers[i].pair.name, name))
            return true;
    return false;
}

int
kvt__s3_headers_open(struct s3_tier *t, const struct kvt_config *config)
{
    for (size_t i = 0; i < config->s3_headers.n; i++) {
        struct s3_header header;

        if (i == KVT__S3_EXTRA_HEADERS)
            return kvt__fail(EINVAL, "s3_headers: there are more than %d entries.",
                             KVT__S3_EXTRA_HEADERS);
        char *text = strdup(config->s3_headers.items[i]);
        if (!text)
            return kvt__fail(ENOMEM, "s3_headers");
        t->header_texts[i] = text;
        if (!split(text, &header))
            return kvt__fail(EINVAL, "s3_headers: entry %zu is not of the form 'Name: "
                             "value', or has control characters.", i + 1);
        if (IS_ONE_OF(text, reserved) || is_duplicate(t, text))
            return kvt__fail(EINVAL, "s3_headers: entry %zu is the header %s, which %s.",
                             i + 1, text, is_duplicate(t, text) ? "is already in the list"
                                                                : "kvtier sets itself");
        t->headers[t->n_headers++] = header;
    }
    return 0;
}

void
kvt__s3_headers_close(struct s3_tier *t)
{
    for (size_t i = 0; i < KVT__S3_EXTRA_HEADERS; i++)
        free(t->header_texts[i]);
}
