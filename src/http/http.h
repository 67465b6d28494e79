/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/1.1 client.  The client sends bodies from the caller's memory and receives bodies into
 * the caller's memory, without a copy in between.
 *
 * The client has a few threads; each thread has an epoll and connections of its own.  A request
 * stays on one thread, and only this thread calls the request's callbacks.  A callback must not
 * block.  All functions may be called from any thread and do not block, unless the function's
 * comment says otherwise.
 *
 * A request is one exchange: the client does not judge the response's status and does not retry.
 * One exception: if the server closes a kept connection before a byte of the response arrives,
 * the client sends the request once more on a new connection. */
#ifndef KVT_HTTP_HTTP_H
#define KVT_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/timers.h"
#include "io/exec.h"

struct kvt__http;        /* a client: threads, connections */
struct kvt__http_origin; /* scheme, host and port; lives as long as its client */

struct kvt__http_params {
    unsigned n_threads;    /* at least 1; the client starts at most max_requests threads */
    unsigned max_requests; /* requests under way at a time, at least 1; more requests wait in
                            * queues by priority.  Also the limit of open connections; a hedge
                            * may exceed the limit */
    bool no_verify;        /* accept any server certificate */
    const char *ca_file;   /* PEM: trusted certificates instead of the system's; NULL: the
                            * system's */
    const char *more_ca_file; /* PEM: additional trusted certificates; NULL: none */
    const char *cert_file; /* PEM: the client's certificate and chain; NULL: none */
    const char *key_file;  /* PEM: the private key; NULL: cert_file contains the key */
    const char *http_proxy, *https_proxy; /* [http://][USER:PASSWORD@]HOST[:PORT] with 1080
                            * as the default port; NULL: none.  Checked by the
                            * proxy's first origin */
    const char *no_proxy;  /* hosts and domains without a proxy, separated by commas, with curl's
                            * rules; NULL: none */
    int64_t stall_ns;      /* limit for a connection without a byte sent or received, while
                            * a request is under way; 0: 10 s */
    int64_t connect_ns;    /* limit for an address to accept a connection; 0: 3 s */
};

/* Start a client.  The client copies the strings of params.  Return 0, -ENOMEM or another -errno
 * with a sentence. */
int kvt__http_open(const struct kvt__http_params *params, struct kvt__http **out);

/* End all requests with -ECANCELED, also all requests that are submitted later.  Return at once;
 * the client's threads call the callbacks. */
void kvt__http_stop(struct kvt__http *http);

/* Free the client and its origins; NULL is allowed.  Call kvt__http_stop() first, or wait until
 * all requests are done.  Blocks until on_done() has been called for all requests, and until a name
 * lookup under way has ended. */
void kvt__http_close(struct kvt__http *http);

#define KVT__HTTP_HOST_ROOM 256

/* Split HOST[:PORT], the n bytes of text.  name gets the host, an IPv6 address in brackets; port
 * gets 0 if the text has no port.  Return NULL, or why the text is invalid: a clause that
 * completes the sentence "it ...". */
const char *kvt__http_split_host(const char *text, size_t n,
                                 char name[KVT__HTTP_HOST_ROOM], uint16_t *port);

struct kvt__http_target {
    const char *host;    /* name or address, IPv6 in brackets */
    uint16_t port;
    bool tls;
    const char *address; /* connect to this name or address; NULL: to host */
};

/* Find or create the origin; do not connect.  The client copies the strings of target, and owns
 * the origin.  Return 0, -ENOMEM, or -EINVAL with a sentence: a certificate or key file, or the
 * proxy of this origin, is invalid. */
int kvt__http_origin(struct kvt__http *http, const struct kvt__http_target *target,
                     struct kvt__http_origin **out);

/* Return the name, for messages, of the peer of the origin's connections: "HOST:PORT", or "the
 * proxy HOST:PORT for HOST:PORT".  Valid as long as the origin. */
const char *kvt__http_connect_label(const struct kvt__http_origin *origin);

/* ----------------------------------------------------------------- responses */

#define KVT__HTTP_MAX_FIELDS 64

struct kvt__http_field {
    const char *name, *value; /* not terminated by NUL */
    uint16_t name_bytes, value_bytes;
};

/* The head of a response.  The head and its text are valid only during the callback that gets
 * the head. */
struct kvt__http_head {
    int status;
    /* Bytes of the body that follows; in a response to HEAD, the value of Content-Length.  -1:
     * the body is chunked, or ends with the connection. */
    int64_t content_length;
    size_t n_fields;
    struct kvt__http_field fields[KVT__HTTP_MAX_FIELDS];
};

/* Return the first field with this name, without regard to case; NULL: there is no such
 * field. */
const struct kvt__http_field *
kvt__http_field(const struct kvt__http_head *head, const char *name);

/* ------------------------------------------------------------------ requests */

struct kvt__http_request {
    /* The caller fills in this part.  The caller keeps the request, and all memory to which the
     * request points, until on_done(). */
    struct kvt__http_origin *origin;
    enum kvt__prio prio;
    int64_t not_before_ns; /* monotonic; 0: now */
    int64_t deadline_ns;   /* monotonic; at the deadline the request ends with -ETIMEDOUT;
                            * 0: no deadline */
    int64_t hedge_ns;      /* if no response has begun this long after the start of the request,
                            * send the request on a second connection too, and use the first
                            * response; 0: never */
    const void *body;
    size_t body_bytes;
    bool expect_continue;  /* send the body only after a response 100, or after 200 ms without
                            * progress; write_head() writes the field Expect */
    bool is_head;          /* the method is HEAD: the response has no body */

    /* Write the head to the `room` bytes at out: the request line, with a target that begins with
     * '/', the fields and the empty line.  Called once for each connection that sends the request,
     * just before the connection sends.  Return the length, or -errno with a sentence to end the
     * request. */
    int (*write_head)(struct kvt__http_request *req, char *out, size_t room);
    /* Return true if the client may send the request on a second connection, at this moment.
     * NULL: always true. */
    bool (*can_hedge)(struct kvt__http_request *req);
    /* The head of the final response (never 1xx) has arrived, and no byte of the body has been
     * delivered.  The callback sets into and room, the memory for the body.  Return 0, or -errno
     * with a sentence to end the request.  A body of more than room bytes ends the request with
     * -EMSGSIZE. */
    int (*on_head)(struct kvt__http_request *req, const struct kvt__http_head *head);
    /* n bytes of the body were written to into + at, in this core's cache.  Called in the order
     * of the body.  NULL: not called. */
    void (*on_body)(struct kvt__http_request *req, size_t at, size_t n);
    /* The request is done, and belongs to the caller again: no thread and no kernel uses its
     * memory.  The callback may free the request. */
    void (*on_done)(struct kvt__http_request *req);
    void *user;            /* for the caller's callbacks */

    unsigned char *into;   /* memory for the body; set by on_head() */
    size_t room;           /* bytes at into */

    /* The outcome.  status: 0, the whole response arrived, with any HTTP status; -ETIMEDOUT;
     * -ECANCELED; -ECONNREFUSED, -ECONNRESET, -EHOSTUNREACH and other errors of the connection;
     * -EPROTO, the response is not valid HTTP/1.1; -EKEYREJECTED, the certificate is not
     * accepted; -EMSGSIZE; or the error of a callback. */
    int status;
    int http_status;       /* of the response; 0: no response arrived */
    bool early;            /* the response arrived before the whole body was sent */
    bool hedged;           /* the response is that of the second connection */
    size_t received_bytes; /* of the response's body */
    int64_t sent_ns;       /* monotonic time at which the connection of the response began to
                            * send the head */
    int64_t first_byte_ns; /* monotonic time at which the response began */
    char why[256];         /* the sentence, if status is not 0 */

    struct {
        struct kvt__http_thread *thread;
        struct kvt__http_conn *conn[2]; /* conn[1]: the hedge */
        struct kvt__http_list *list;
        struct kvt__http_request *next, *prev;
        struct kvt__http_waiter *waiter; /* of kvt__http_run(); NULL: call on_done() */
        struct kvt__http_timer timer;
        int64_t hedge_at_ns;
        bool replaced;                  /* sent again after a stale connection */
    } own; /* the client's part */
};

/* Queue the request.  The client owns the request until on_done(), which is always called. */
void kvt__http_submit(struct kvt__http *http, struct kvt__http_request *req);

/* Submit the request and wait for its end; on_done() is not called.  Blocks: must not be called on
 * a thread of the client.  Return the request's status, with its sentence. */
int kvt__http_run(struct kvt__http *http, struct kvt__http_request *req);

/* ------------------------------------------------------------------- figures */

struct kvt__http_stats {
    uint64_t connections;   /* opened so far */
    uint64_t resumed;       /* TLS sessions resumed so far */
    uint64_t open;          /* connections that are open now */
    uint64_t requests;      /* sent so far, including hedges and repetitions */
    uint64_t hedges;
};

void kvt__http_stats(struct kvt__http *http, struct kvt__http_stats *out);

#endif
