/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of kvtier doctor: the requests that an engine sends, on a small object of their own,
 * one by one; and the facts that the requests show. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "conf/conf.h"
#include "tier/s3/s3.h"

#define BODY "written by kvtier doctor"
#define BODY_BYTES (sizeof BODY - 1)
#define TIMEOUT_NS (10 * KVT__NS_PER_S)
#define CLOCK_S 5 /* a smaller difference of the clocks is not reported */

struct check {
    struct s3_call call;   /* first: on_head() casts */
    const struct kvt_config *config;
    const struct kvt__reporter *to;
    struct s3_tier *t;
    char name[64];         /* of the object */
    char got[BODY_BYTES];  /* body of the GET */
};

/* ------------------------------------------------------------------ requests */

/* Take the body of a GET. */
static int
on_head(struct s3_call *call, const struct kvt__http_head *head)
{
    struct check *c = (struct check *)call;

    if (head->content_length != (int64_t)BODY_BYTES)
        return kvt__fail(EBADMSG, "%s: the object has another size.", call->name);
    call->http.into = (unsigned char *)c->got;
    call->http.room = sizeof c->got;
    return 0;
}

/* Send a request for the object and wait for the response.  As kvt__s3_call_wait(). */
static int
request(struct check *c, const char *method)
{
    struct s3_call *call = &c->call;

    *call = (struct s3_call){ .tier = c->t, .method = method, .name = c->name,
                              .prio = KVT__PRIO_LOOKUP, .timeout_ns = TIMEOUT_NS };
    if (c->t->request_payer)
        kvt__s3_add_header(call, "x-amz-request-payer", "requester");
    if (!strcmp(method, "GET"))
        call->on_head = on_head;
    if (!strcmp(method, "PUT")) {
        kvt__s3_add_header(call, "content-type", "application/octet-stream");
        if (!kvt__s3_address_of(c->t)->express)
            kvt__s3_add_encryption(call);
        kvt__s3_add_header(call, "x-amz-storage-class", c->t->storage_class);
        if (!atomic_load(&c->t->no_conditions))
            kvt__s3_add_header(call, "if-none-match", "*");
        call->body = BODY;
        call->body_bytes = BODY_BYTES;
    }
    kvt__report(c->to, "s3 request", 1, "%s: the store does not respond; check the endpoint, the "
                "proxy and the firewall", method);
    return kvt__s3_call_wait(call);
}

/* ------------------------------------------------------------------ facts */

static void
check_address(const struct check *c)
{
    char target[KVT__S3_TARGET_TEXT];
    bool tls = kvt__s3_address_of(c->t)->tls;

    kvt__s3_target_text(atomic_load(&c->t->target), target);
    kvt__report(c->to, "s3 address", 0, "%s%s", target, !tls ? "" : c->config->s3_verify_tls
                ? ", certificates are verified" : ", certificates are not verified");
}

static void
check_keys(const struct check *c)
{
    struct s3_keyring *k = &c->t->keyring;
    char source[64] = "", expires[64] = "do not expire";
    struct tm tm;

    if (c->t->is_unsigned) {
        kvt__report(c->to, "s3 keys", 0, "requests are not signed (s3_unsigned)");
        return;
    }
    pthread_mutex_lock(&k->lock);
    if (k->base) {
        time_t end = (time_t)k->base->expires_s;

        snprintf(source, sizeof source, "%s", k->base->source);
        if (k->base->expires_s != INT64_MAX && gmtime_r(&end, &tm))
            strftime(expires, sizeof expires, "expire at %Y-%m-%d %H:%M:%S UTC", &tm);
    }
    pthread_mutex_unlock(&k->lock);
    if (*source)
        kvt__report(c->to, "s3 keys", 0, "the keys come from: %s; they %s", source, expires);
}

static void
check_clock(const struct check *c, int64_t date_s)
{
    int64_t ahead = date_s - (int64_t)time(NULL);

    if (date_s && (ahead > CLOCK_S || ahead < -CLOCK_S))
        kvt__report(c->to, "s3 clock", 0, "the store's clock is %lld s %s this host's; kvtier "
                    "signs by the store's clock", (long long)(ahead < 0 ? -ahead : ahead),
                    ahead < 0 ? "behind" : "ahead of");
}

/* ------------------------------------------------------------------ steps */

static void
ignore_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    (void)ctx;
    (void)listed;
}

static bool
check_list(const struct check *c)
{
    /* A directory bucket accepts only prefixes that end with '/': list a page of all objects. */
    const char *under = kvt__s3_address_of(c->t)->express ? "" : c->name;
    struct s3_walk *walk = kvt__s3_walk_begin(c->t, under, ignore_listed, NULL);
    int err = walk ? kvt__s3_walk_page(walk) : -ENOMEM;

    if (err < 0)
        kvt__report(c->to, "s3 list", err, "%s%s", kvt__why(), err == -EACCES
                    ? " kvtier ls, kvtier verify and max_remote_size need s3:ListBucket." : "");
    else
        kvt__report(c->to, "s3 list", 0, "objects can be listed");
    kvt__s3_walk_end(walk);
    return err >= 0;
}

/* A HEAD of an absent object must be a miss.  Return false if further requests make no sense. */
static bool
check_lookup(struct check *c)
{
    int err = request(c, "HEAD");

    check_keys(c);
    if (err == -EACCES) {
        kvt__report(c->to, "s3 lookup", err, "%s Without s3:ListBucket the store refuses a HEAD "
                    "of an absent object, so that lookups of absent chunks count as failures, and "
                    "after eight failures kvtier reads nothing from the tier for a while.",
                    kvt__why());
        (void)check_list(c); /* a HEAD has no body; the response to a GET contains the reason */
        return false;
    }
    check_clock(c, c->call.date_s);
    int64_t begin = kvt__now_ns();
    if (err == -ENOENT)
        err = request(c, "HEAD"); /* over the connection of the first request */
    if (!err)
        err = kvt__fail(EBADMSG, "%s: the store reports an object that does not exist.", c->name);
    if (err != -ENOENT) {
        kvt__report(c->to, "s3 lookup", err, "%s", kvt__why());
        if (c->call.http.http_status == 400) /* for example a session token that has expired */
            (void)check_list(c);
        return false;
    }
    kvt__report(c->to, "s3 lookup", 0, "an absent object is a miss, after %.1f ms",
                (double)(kvt__now_ns() - begin) / 1e6);
    return true;
}

static bool
check_write(struct check *c)
{
    int err = request(c, "PUT");

    if (err) {
        kvt__report(c->to, "s3 write", err, "%s", kvt__why());
        return false;
    }
    err = request(c, "PUT");
    if (err && err != -EEXIST)
        kvt__report(c->to, "s3 write", err, "%s", kvt__why());
    else
        kvt__report(c->to, "s3 write", 0, err ? "objects can be stored, and the store supports "
                    "If-None-Match" : "objects can be stored; the store does not support "
                    "If-None-Match, so that a chunk that two hosts store is written twice");
    return true;
}

static void
check_read(struct check *c)
{
    int err = request(c, "GET");

    if (!err && (c->call.http.received_bytes != BODY_BYTES || memcmp(c->got, BODY, BODY_BYTES)))
        err = kvt__fail(EBADMSG, "%s: the object has other bytes than were stored.", c->name);
    if (err)
        kvt__report(c->to, "s3 read", err, "%s", kvt__why());
    else
        kvt__report(c->to, "s3 read", 0, "the object was read back");
}

/* An engine without max_remote_size needs no right to delete. */
static void
check_delete(struct check *c)
{
    int err = request(c, "DELETE");

    if (err && err != -ENOENT)
        kvt__report(c->to, "s3 delete", c->config->max_remote_size > 0 ? err : 0, "the object %s "
                    "was not deleted: %s kvtier rm and max_remote_size delete objects.", c->name,
                    kvt__why());
    else
        kvt__report(c->to, "s3 delete", 0, "objects can be deleted");
}

void
kvt__s3_check(const struct kvt__tier_ops *ops, const struct kvt__tier_params *params,
              const struct kvt__reporter *to)
{
    struct check c = { .config = params->config, .to = to };
    struct kvt__tier_params quiet = *params;
    struct kvt__tier *tier;

    quiet.caller_reports = true; /* at once: open() starts the thread that logs missing keys */
    int err = ops->open(&quiet, &tier);
    if (err) {
        kvt__report(to, "s3 address", err, "%s", kvt__why());
        return;
    }
    c.t = (struct s3_tier *)tier;
    snprintf(c.name, sizeof c.name, "kvtier-doctor-%ld-%lld", (long)getpid(),
             (long long)time(NULL));
    check_address(&c);
    if (check_lookup(&c) && check_list(&c) && check_write(&c)) {
        check_read(&c);
        check_delete(&c);
    }
    ops->close(tier);
}
