/* SPDX-License-Identifier: Apache-2.0
 *
 * Naming what lies in the bucket under our prefix.  Runs on a thread that may wait. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

#define PAGE_BYTES ((size_t)4 << 20) /* 1000 keys of 1024 bytes, encoded */
#define TOKEN_BYTES 2048

/* A page of the list. */
struct page {
    struct s3_call call;
    struct s3_tier *tier;
    size_t prefix;
    kvt__tier_list_fn fn;
    void *ctx;
    char token[TOKEN_BYTES];
    char body[PAGE_BYTES];
};

static int
take_body(struct s3_call *call, const struct kvt__http_head *head)
{
    struct page *p = (struct page *)call;

    (void)head;
    call->http.into = (unsigned char *)p->body;
    call->http.room = sizeof p->body;
    return 0;
}

static void
tell(void *ctx, const struct kvt__s3_listed *listed)
{
    struct page *p = ctx;
    const char *prefix = kvt__s3_place_of(p->tier)->prefix;
    char key[KVT__KEY_TEXT_MAX + 1];
    bool opaque;

    if (strncmp(listed->key, prefix, p->prefix) ||
        kvt__s3_key_of(listed->key + p->prefix, key, sizeof key, &opaque))
        return;
    p->fn(p->ctx, key, opaque, 0, listed->bytes, listed->modified_ns);
}

/* Ask for the next page; p->token: where it begins, and where the next one does. */
static int
next_page(struct page *p)
{
    struct s3_tier *t = p->tier;
    const char *prefix = kvt__s3_place_of(t)->prefix;

    p->call = (struct s3_call){
        .tier = t, .method = "GET", .prio = KVT__PRIO_STORE, .good = take_body,
        .within_ns = 3 * t->read_ns };
    kvt__s3_add_query(&p->call, "list-type", "2");
    kvt__s3_add_query(&p->call, "encoding-type", "url");
    if (*prefix)
        kvt__s3_add_query(&p->call, "prefix", prefix);
    if (*p->token)
        kvt__s3_add_query(&p->call, "continuation-token", p->token);
    if (t->request_payer)
        kvt__s3_add_header(&p->call, "x-amz-request-payer", "requester");
    int err = kvt__s3_call_wait(&p->call);
    return err ? err : kvt__s3_read_list(p->body, p->call.http.received_bytes, tell, p,
                                         p->token, sizeof p->token);
}

int
kvt__s3_list(struct kvt__tier *tier, kvt__tier_list_fn fn, void *ctx)
{
    struct s3_tier *t = (struct s3_tier *)tier;
    struct page *p = malloc(sizeof *p);
    int err;

    if (!p)
        return kvt__fail(ENOMEM, "S3: list");
    p->tier = t;
    p->prefix = strlen(kvt__s3_place_of(t)->prefix);
    p->fn = fn;
    p->ctx = ctx;
    p->token[0] = '\0';
    do
        err = next_page(p);
    while (!err && *p->token);
    free(p);
    return err;
}
