/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/1.1 client.  Bodies come from and go to memory of the caller: between the
 * socket and that memory nothing is copied.  A few threads, each with connections and an
 * epoll of its own; a request stays with one of them, which calls its functions.  They
 * must not block.  Everything else is quick and for any thread, unless it says otherwise.
 *
 * A request is one exchange.  Whether an answer is good, and whether to ask again, is for
 * the caller to say; only a kept connection that the server had closed meanwhile is
 * replaced without a word. */
#ifndef KVT_HTTP_HTTP_H
#define KVT_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/times.h"
#include "io/exec.h"

struct kvt__http;        /* a client: threads, connections */
struct kvt__http_origin; /* scheme, host and port; lives as long as its client */

struct kvt__http_params {
    unsigned n_threads;    /* at most; no more than max_requests */
    unsigned max_requests; /* under way at a time, the others queue by priority; never
                            * more connections either, but for hedges */
    bool no_verify;        /* of certificates */
    const char *ca_file;   /* PEM, trusted in place of the system's certificates; NULL */
    const char *more_ca_file; /* PEM, trusted as well; NULL: none */
    const char *cert_file; /* PEM: the client's certificate and chain; NULL: none */
    const char *key_file;  /* PEM: the private key; NULL: cert_file contains the key */
    const char *http_proxy, *https_proxy; /* [http://][USER:PASSWORD@]HOST[:PORT] with 1080
                            * as the default port; NULL: none.  Checked by the
                            * proxy's first origin */
    const char *no_proxy;  /* hosts and domains with commas between, as curl's; NULL */
    int64_t stall_ns;      /* limit for a connection without a byte sent or received, while
                            * a request is under way; 0: 10 s */
    int64_t connect_ns;    /* limit for an address to accept a connection; 0: 3 s */
};

int kvt__http_open(const struct kvt__http_params *params, struct kvt__http **out);

/* End all requests with -ECANCELED, and those that are submitted from now on. */
void kvt__http_stop(struct kvt__http *http);

/* After kvt__http_stop() or when no request is left.  Blocks until done was called for
 * all, and for a name that is just being resolved. */
void kvt__http_close(struct kvt__http *http);

#define KVT__HTTP_HOST_ROOM 256

/* HOST[:PORT], n bytes of text, all of them.  name: IPv6 in brackets; port: 0 where there
 * is none.  NULL, or what is wrong with it, which follows "it ". */
const char *kvt__http_split_host(const char *text, size_t n,
                                 char name[KVT__HTTP_HOST_ROOM], uint16_t *port);

struct kvt__http_target {
    const char *host;    /* name or address, IPv6 in brackets */
    uint16_t port;
    bool tls;
    const char *address; /* connect there; NULL: what the name resolves to */
};

/* Find or make the origin.  Connects to nothing.  -EINVAL with a sentence: a certificate
 * or key file, or the proxy of this origin, is wrong. */
int kvt__http_origin(struct kvt__http *http, const struct kvt__http_target *target,
                     struct kvt__http_origin **out);

/* Return the end of the origin's connections for messages: "HOST:PORT", or "the proxy HOST:PORT
 * for HOST:PORT".  Valid as long as the origin. */
const char *kvt__http_connect_label(const struct kvt__http_origin *origin);

/* ------------------------------------------------------------------- answers */

#define KVT__HTTP_MAX_FIELDS 64

struct kvt__http_field {
    const char *name, *value; /* not ended by NUL */
    uint16_t name_bytes, value_bytes;
};

/* The head of an answer; valid during the call that has it. */
struct kvt__http_head {
    int status;
    /* Bytes of the body that follows; for a HEAD the value of Content-Length.  -1: the
     * body is chunked, or ends with the connection. */
    int64_t content_length;
    size_t n_fields;
    struct kvt__http_field fields[KVT__HTTP_MAX_FIELDS];
};

/* The first field of that name (in any case); NULL: there is none. */
const struct kvt__http_field *
kvt__http_field(const struct kvt__http_head *head, const char *name);

/* ------------------------------------------------------------------ requests */

struct kvt__http_request {
    /* The caller fills in this part, and keeps it and what it points to until done. */
    struct kvt__http_origin *origin;
    enum kvt__prio prio;
    int64_t not_before_ns; /* monotonic; 0: now */
    int64_t deadline_ns;   /* monotonic: then it ends with -ETIMEDOUT; 0: never */
    int64_t hedge_ns;      /* without an answer for so long it is sent on a second
                            * connection too, and the first answer counts; 0: never */
    const void *body;
    size_t body_bytes;
    bool expect_continue;  /* wait for 100, at most 200 ms, before the body goes */
    bool is_head;          /* the answer has no body whatever it says */

    /* Write the head, from the request line, whose target begins with '/', to the empty
     * line.  Called for each connection it is sent on, just before.  Its length, or
     * -errno with a sentence, which ends the request. */
    int (*write_head)(struct kvt__http_request *req, char *out, size_t room);
    /* Asked when it is to be sent on a second connection.  NULL: it may. */
    bool (*may_hedge)(struct kvt__http_request *req);
    /* The answer's head is there (never 1xx), no byte of its body yet.  Sets into and
     * room: where the body goes.  Not 0: -errno with a sentence, which ends the request;
     * so does a body that is longer than room (-EMSGSIZE). */
    int (*answer)(struct kvt__http_request *req, const struct kvt__http_head *head);
    /* Bytes of the body were written to into + at; they are in this core's cache.  In
     * order.  NULL: not asked for. */
    void (*received)(struct kvt__http_request *req, size_t at, size_t n);
    /* It is the caller's again; no thread and no kernel uses its memory. */
    void (*done)(struct kvt__http_request *req);
    void *user;

    unsigned char *into;
    size_t room;

    /* The outcome.  status: 0, the answer came whole, whatever it says; -ETIMEDOUT;
     * -ECANCELED; -ECONNREFUSED, -ECONNRESET, -EHOSTUNREACH ... of the connection,
     * -EPROTO: no HTTP/1.1, -EKEYREJECTED: the certificate is not accepted; each with a
     * sentence. */
    int status;
    int http_status;       /* of the answer; 0: none came */
    bool early;            /* answered before the whole body was sent */
    bool hedged;           /* the second connection answered first */
    size_t received_bytes; /* of the answer's body */
    int64_t sent_ns;       /* when the head that was answered was sent, monotonic */
    int64_t first_byte_ns; /* when its answer began */
    char why[256];

    struct {
        struct kvt__http_thread *thread;
        struct kvt__http_conn *conn[2]; /* the second one: the hedge */
        struct kvt__http_list *list;
        struct kvt__http_request *next, *prev;
        struct kvt__http_waiter *waiter;
        struct kvt__http_time time;
        int64_t hedge_at_ns;
        bool replaced;
    } own; /* the client's */
};

void kvt__http_submit(struct kvt__http *http, struct kvt__http_request *req);

/* Submit and wait; done is not called.  Not on a thread of the client.  The status. */
int kvt__http_run(struct kvt__http *http, struct kvt__http_request *req);

/* ------------------------------------------------------------------- figures */

struct kvt__http_stats {
    uint64_t connections;   /* opened so far */
    uint64_t resumed;       /* of them, TLS sessions that were resumed */
    uint64_t open;          /* now */
    uint64_t requests;      /* sent so far, hedges and repetitions included */
    uint64_t hedges;
};

void kvt__http_stats(struct kvt__http *http, struct kvt__http_stats *out);

#endif
