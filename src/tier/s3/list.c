/* SPDX-License-Identifier: Apache-2.0
 *
 * Listings of the objects under the tier's prefix.  These functions block.  A page is a call like
 * any other (call.c), so libcurl would replace nothing here: signatures, retries, redirects and
 * limits of the request rate belong to the call. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

#define PAGE_BYTES ((size_t)4 << 20) /* room for 1000 encoded keys of 1024 bytes */
#define TOKEN_BYTES 2048
/* With a prefix of this length, the encoded query has room for a token and the tier's prefix. */
#define PREFIX_MAX 128

struct s3_walk {
    struct s3_call call;
    struct s3_tier *tier;
    kvt__s3_walk_fn fn;
    void *ctx;
    size_t prefix; /* length of the tier's prefix */
    char under[KVT__S3_KEY_MAX + 1];
    char token[TOKEN_BYTES]; /* continuation token of the next page */
    char body[PAGE_BYTES];
};

struct s3_walk *
kvt__s3_walk_begin(struct s3_tier *t, const char *under, kvt__s3_walk_fn fn, void *ctx)
{
    const char *prefix = kvt__s3_address_of(t)->prefix;
    struct s3_walk *w = malloc(sizeof *w);

    if (!w) {
        (void)kvt__fail(ENOMEM, "S3: list");
        return NULL;
    }
    w->tier = t;
    w->fn = fn;
    w->ctx = ctx;
    w->prefix = strlen(prefix);
    snprintf(w->under, sizeof w->under, "%s%s", prefix, under);
    w->token[0] = '\0';
    return w;
}

void
kvt__s3_walk_end(struct s3_walk *w)
{
    free(w);
}

int64_t
kvt__s3_walk_date(const struct s3_walk *w)
{
    return w->call.date_s;
}

static int
on_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct s3_walk *w = (struct s3_walk *)call;

    (void)head;
    call->http.into = (unsigned char *)w->body;
    call->http.room = sizeof w->body;
    return 0;
}

static void
on_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    struct s3_walk *w = ctx;
    struct kvt__s3_listed one = *listed;

    if (strncmp(listed->key, w->under, strlen(w->under)))
        return;
    one.key += w->prefix;
    w->fn(w->ctx, &one);
}

int
kvt__s3_walk_page(struct s3_walk *w)
{
    struct s3_tier *t = w->tier;
    char next[TOKEN_BYTES];

    w->call = (struct s3_call){
        .tier = t, .method = "GET", .prio = KVT__PRIO_STORE, .on_head = on_head,
        .timeout_ns = 3 * t->read_ns };
    kvt__s3_add_query(&w->call, "list-type", "2");
    kvt__s3_add_query(&w->call, "encoding-type", "url");
    if (*w->under)
        kvt__s3_add_query(&w->call, "prefix", w->under);
    if (*w->token)
        kvt__s3_add_query(&w->call, "continuation-token", w->token);
    if (t->request_payer)
        kvt__s3_add_header(&w->call, "x-amz-request-payer", "requester");
    int err = kvt__s3_call_wait(&w->call);
    if (!err)
        err = kvt__s3_read_list(w->body, w->call.http.received_bytes, on_listed, w, next,
                                sizeof next);
    if (err)
        return err;
    if (*next && !strcmp(next, w->token))
        return kvt__fail(EBADMSG, "S3: the store's list repeats a page.");
    memcpy(w->token, next, sizeof next);
    return *next != '\0';
}

/* ------------------------------------------------------------------ list of chunks */

struct names {
    kvt__tier_list_fn fn;
    void *ctx;
};

static void
on_listed_chunk(void *ctx, const struct kvt__s3_listed *listed)
{
    const struct names *names = ctx;
    char key[KVT__KEY_TEXT_MAX + 1];
    bool opaque;

    if (!kvt__s3_key_from_name(listed->key, key, sizeof key, &opaque))
        names->fn(names->ctx, key, opaque, listed->bytes, listed->modified_ns, false);
}

static int
list_under(struct s3_tier *t, const char *under, struct names *names)
{
    struct s3_walk *w = kvt__s3_walk_begin(t, under, on_listed_chunk, names);
    int more = w ? 1 : -ENOMEM;

    while (more > 0)
        more = kvt__s3_walk_page(w);
    kvt__s3_walk_end(w);
    return more;
}

/* Copy the start of the prefix that every store accepts as a parameter.  A directory bucket accepts
 * only prefixes that end with '/', so copy nothing. */
static void
copy_usable(const struct s3_tier *t, const char *prefix, char out[PREFIX_MAX + 1])
{
    size_t n = 0;

    while (!kvt__s3_address_of(t)->express && n < PREFIX_MAX && prefix[n] > ' ' &&
           prefix[n] < 0x7f)
        n++;
    memcpy(out, prefix, n);
    out[n] = '\0';
}

int
kvt__s3_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    struct s3_tier *t = (struct s3_tier *)tier;
    struct names names = { fn, ctx };
    char under[sizeof KVT__S3_OPAQUE_PREFIX + PREFIX_MAX] = KVT__S3_OPAQUE_PREFIX;
    char *usable = under + sizeof KVT__S3_OPAQUE_PREFIX - 1;

    copy_usable(t, prefix, usable);
    int err = list_under(t, usable, &names);
    /* The keys of opaque chunks begin with KVT__S3_OPAQUE_PREFIX, so a second listing finds these
     * chunks.  If KVT__S3_OPAQUE_PREFIX begins with the prefix, the first listing has found the
     * chunks. */
    if (!err && strncmp(KVT__S3_OPAQUE_PREFIX, usable, strlen(usable)))
        err = list_under(t, under, &names);
    return err;
}
