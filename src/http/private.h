/* SPDX-License-Identifier: Apache-2.0
 *
 * The room's own: threads, origins, connections.  What a thread has is touched by that
 * thread only, but for its inbox. */
#ifndef KVT_HTTP_PRIVATE_H
#define KVT_HTTP_PRIVATE_H

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/error.h"
#include "http/http.h"
#include "http/parse.h"
#include "http/times.h"

#define KVT__HTTP_CONNECT_NS (3 * KVT__NS_PER_S)  /* for an address, the default */
#define KVT__HTTP_STAGGER_NS (250 * KVT__NS_PER_MS) /* between addresses: RFC 8305, 8 */
#define KVT__HTTP_STALL_NS (10 * KVT__NS_PER_S)   /* without a byte, the default */
#define KVT__HTTP_IDLE_NS (60 * KVT__NS_PER_S)    /* a connection is kept */
#define KVT__HTTP_CONTINUE_NS (200 * KVT__NS_PER_MS)
#define KVT__HTTP_DRAIN_NS (1 * KVT__NS_PER_S)
#define KVT__HTTP_DRAIN_BYTES 16384
#define KVT__HTTP_OUT_BYTES 16384 /* the longest head of a request */
#define KVT__HTTP_IN_BYTES 32768  /* of an answer */
#define KVT__HTTP_MAX_ADDRESSES 32

/* ----------------------------------------------------------------- origins */

struct kvt__http_address {
    union {
        struct sockaddr sa;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } to;
    int64_t bad_until_ns; /* did not connect */
};

struct kvt__http_proxy {
    char *host; /* NULL: there is none */
    uint16_t port;
    bool wrong; /* the setting's text is no proxy's */
    char *authorization; /* NULL: none is asked for */
};

struct kvt__http_origin {
    struct kvt__http *http;
    struct kvt__http_origin *next;
    char *host;     /* without brackets */
    char *label;    /* host:port, for messages */
    char *address;  /* as it was asked for; NULL: none */
    uint16_t port;
    bool tls;

    const struct kvt__http_proxy *proxy; /* NULL: none between */
    char *connect_name;  /* what is connected to */
    char *connect_label; /* for messages */
    uint16_t connect_port;
    bool literal;       /* it is an address */

    /* Under http->dns_lock. */
    struct kvt__http_address addresses[KVT__HTTP_MAX_ADDRESSES];
    size_t n_addresses, turn;
    int64_t resolved_ns;  /* when it last was; the addresses are old later */
    unsigned n_lookups;   /* that ended */
    bool looking;
    char dns_why[160];    /* of the last one, if it failed */
    struct kvt__http_origin *next_lookup;

    SSL_SESSION *sessions[]; /* to be resumed: each thread's own; NULL: none yet */
};

/* ------------------------------------------------------------- connections */

enum kvt__http_state {
    KVT__HTTP_RESOLVE, /* waits for the name */
    KVT__HTTP_CONNECT,
    KVT__HTTP_TUNNEL,  /* asks the proxy to connect */
    KVT__HTTP_HANDSHAKE,
    KVT__HTTP_ANSWER,  /* sends, and reads the head */
    KVT__HTTP_BODY,
    KVT__HTTP_DRAIN,   /* reads what nobody wants */
    KVT__HTTP_IDLE,
    KVT__HTTP_CLOSED   /* until the thread has seen all events of this turn */
};

struct kvt__http_conn {
    struct kvt__http_time time;
    struct kvt__http_thread *thread;
    struct kvt__http_origin *origin;
    struct kvt__http_request *req; /* NULL: idle or drained */
    struct kvt__http_conn *next, *prev;
    enum kvt__http_state state;
    int fd;
    SSL *ssl;            /* NULL: plain, or not yet */
    uint32_t events;     /* epoll looks for */
    bool want_write;     /* TLS does, to go on */
    bool broken;         /* TLS is */
    bool readable;       /* so it said */
    bool reused;
    bool any;            /* byte came since the head was written */
    bool lost;           /* the other side is gone, or its answer makes no sense */
    bool eof;            /* it ended the stream in an orderly way */
    bool keep;
    bool again;          /* has more to read than one turn may */
    size_t turn_bytes;   /* so much it read in this one */
    int lowat;
    int64_t progress_ns; /* when a byte went or came */

    struct kvt__http_race *race; /* the attempts to connect; NULL: none is under way */
    unsigned n_lookups;  /* of the origin, when it began to wait */

    size_t out_bytes, out_sent, body_sent;
    bool hold_body;      /* until 100 */
    bool send_failed;
    int64_t sent_ns, first_byte_ns;

    size_t in_bytes;     /* of the head, and what came with it */
    size_t in_used;      /* of in, for so much was received there */
    bool chunked;
    int64_t left;        /* of a body with a length; -1: it ends with the stream */
    struct kvt__http_chunks chunks;
    char out[KVT__HTTP_OUT_BYTES];
    char in[KVT__HTTP_IN_BYTES];
};

/* The outcome of a step; -errno with a sentence: the step failed. */
enum kvt__http_outcome {
    KVT__HTTP_WAITS,   /* for an event of the socket, the resolver, or the next turn */
    KVT__HTTP_GOES_ON, /* in the same state */
    KVT__HTTP_DONE     /* with the state; run.c chooses the next state */
};

/* The steps, one or two for each state.  A step never calls another step, never changes the
 * state, and never ends the request or the connection: run.c does. */
int kvt__http_resolve(struct kvt__http_conn *conn);
int kvt__http_connected(struct kvt__http_conn *conn);
int kvt__http_tunnel(struct kvt__http_conn *conn);
int kvt__http_handshake(struct kvt__http_conn *conn);
/* DONE: *answer is the final response's head, whose text is still in the connection's
 * buffer. */
int kvt__http_exchange(struct kvt__http_conn *conn, struct kvt__http_answer *answer);
int kvt__http_receive_body(struct kvt__http_conn *conn);
int kvt__http_drain(struct kvt__http_conn *conn);

/* Change the state, and the thread's count of connections in RESOLVE. */
void kvt__http_set_state(struct kvt__http_conn *conn, enum kvt__http_state state);
/* The race's next deadline: of an attempt, or for the next attempt to begin. */
int64_t kvt__http_race_due_ns(const struct kvt__http_conn *conn);
/* Close the sockets of all attempts and free the race. */
void kvt__http_race_end(struct kvt__http_conn *conn);
/* Close a socket in the thread's epoll. */
void kvt__http_close_fd(struct kvt__http_thread *thread, int fd);

/* One for the request, kept or new; the request may end meanwhile.  slot: of
 * req->own.conn.  fresh: only a new one. */
void kvt__http_conn_begin(struct kvt__http_thread *thread, struct kvt__http_request *req,
                          int slot, bool fresh);
/* Take all steps that can be. */
void kvt__http_conn_run(struct kvt__http_conn *conn);
/* An idle connection of the origin or a new one; fresh: only a new one.  The caller sets
 * time.run.  NULL: no memory. */
struct kvt__http_conn *kvt__http_conn_take(struct kvt__http_thread *thread,
                                           struct kvt__http_origin *origin, bool fresh);
/* Separate the connection from its request. */
void kvt__http_conn_detach(struct kvt__http_conn *conn);
/* The answer is whole, or nobody wants the rest: keep the connection or close it. */
void kvt__http_conn_release(struct kvt__http_conn *conn);
void kvt__http_conn_close(struct kvt__http_conn *conn);
/* Whether an idle one is as it was left. */
bool kvt__http_conn_quiet(struct kvt__http_conn *conn);

/* Write the head, and reset the record of the exchange.  0 or -errno with a sentence. */
int kvt__http_send_begin(struct kvt__http_conn *conn);
void kvt__http_send(struct kvt__http_conn *conn);
bool kvt__http_sending(const struct kvt__http_conn *conn);

/* Bytes, 0: none now, -errno with a sentence. */
ssize_t kvt__http_recv(struct kvt__http_conn *conn, void *to, size_t n);
/* The same, at most n behind what is in its own buffer. */
ssize_t kvt__http_recv_in(struct kvt__http_conn *conn, size_t n);
/* Remove the first n bytes, a head, from the buffer. */
void kvt__http_drop_head(struct kvt__http_conn *conn, size_t n);
void kvt__http_set_lowat(struct kvt__http_conn *conn, int64_t left);
/* Whether it has to wait until the others had their turn. */
bool kvt__http_turn_is_over(struct kvt__http_conn *conn);

/* Hand the head to the request and remove the head from the buffer, which then begins with
 * the body.  The value of req->answer(). */
int kvt__http_take_head(struct kvt__http_conn *conn, struct kvt__http_answer *answer);
/* Take the body's bytes from the buffer.  0 or -errno with a sentence. */
int kvt__http_begin_body(struct kvt__http_conn *conn);
/* Return true if a small rest of an unwanted body is to be read, so that the connection can
 * be kept.  False: nothing is left, or keep is false now. */
bool kvt__http_can_drain(struct kvt__http_conn *conn);

/* ---------------------------------------------------------------- requests */

struct kvt__http_list {
    struct kvt__http_request *first, *last;
};

struct kvt__http_waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
};

void kvt__http_put(struct kvt__http_list *list, struct kvt__http_request *req);
void kvt__http_unlink(struct kvt__http_request *req);

/* It came to the thread. */
void kvt__http_arrive(struct kvt__http_thread *thread, struct kvt__http_request *req);
void kvt__http_start(struct kvt__http_thread *thread, struct kvt__http_request *req);
/* Its last step: closes its connections, calls done. */
void kvt__http_finish(struct kvt__http_request *req, int status);
/* conn's answer is the one that counts. */
void kvt__http_chosen(struct kvt__http_conn *conn);

/* ----------------------------------------------------------------- threads */

struct kvt__http_conns {
    struct kvt__http_conn *first, *last;
};

struct kvt__http_thread {
    struct kvt__http *http;
    pthread_t id;
    int epoll, event;
    struct kvt__http_times times;
    struct kvt__http_list waiting; /* for their time */
    struct kvt__http_list queues[KVT__N_PRIOS];
    struct kvt__http_list under_way;
    unsigned n_under_way, max;
    struct kvt__http_conns busy, idle, dead; /* idle: the one used last first */
    unsigned n_conns;                        /* busy and idle */
    unsigned n_resolving;
    bool again;                              /* a connection has more to read */

    atomic_uint n_requests;
    pthread_mutex_t lock;
    struct kvt__http_list inbox; /* under lock */
    bool stopped, closing;       /* under lock */
};

struct kvt__http {
    unsigned n_threads;
    bool no_verify;
    int64_t connect_ns, stall_ns;
    char *ca_file, *more_ca_file, *cert_file, *key_file, *no_proxy; /* NULL: none */
    struct kvt__http_proxy http_proxy, https_proxy;
    pthread_mutex_t lock; /* of the list of origins and of tls */
    struct kvt__http_origin *origins;
    SSL_CTX *tls; /* once an origin wanted it */

    pthread_mutex_t dns_lock;
    pthread_cond_t dns_work;
    struct kvt__http_origin *lookups;
    pthread_t dns_thread;
    bool dns_started, dns_stop;

    atomic_uint_fast64_t n_connections, n_open, n_requests, n_hedges, n_resumed;
    struct kvt__http_thread threads[];
};

void *kvt__http_thread_main(void *arg);
void kvt__http_wake(struct kvt__http_thread *thread);
void kvt__http_link_conn(struct kvt__http_conns *list, struct kvt__http_conn *conn);
void kvt__http_unlink_conn(struct kvt__http_conns *list, struct kvt__http_conn *conn);

/* ------------------------------------------------------------------- hosts */

/* Without the brackets of IPv6; NULL: no memory. */
char *kvt__http_bare_host(const char *host);

/* -------------------------------------------------------------- TLS, proxies */

int kvt__http_tls_open(struct kvt__http *http);
void kvt__http_tls_close(struct kvt__http *http);
int kvt__http_tls_begin(struct kvt__http_conn *conn); /* 0 or -errno with a sentence */
ssize_t kvt__http_tls_recv(struct kvt__http_conn *conn, void *to, size_t n);
ssize_t kvt__http_tls_send(struct kvt__http_conn *conn, const struct iovec *parts,
                           size_t n_parts);
bool kvt__http_tls_quiet(struct kvt__http_conn *conn);
void kvt__http_tls_rest(struct kvt__http_conn *conn, bool rest);
void kvt__http_tls_end(struct kvt__http_conn *conn);

/* Read the setting's value.  Invalid text only sets wrong.  -ENOMEM. */
int kvt__http_proxy_open(const char *value, struct kvt__http_proxy *out);
void kvt__http_proxy_close(struct kvt__http_proxy *proxy);
bool kvt__http_no_proxy(const char *list, const char *host);
/* Rewrite a head of n bytes.  Its new length, or -errno with a sentence. */
int kvt__http_proxy_head(const struct kvt__http_origin *o, char *head, size_t n,
                         size_t room);
/* Write the request to the proxy.  0 or -errno with a sentence. */
int kvt__http_tunnel_begin(struct kvt__http_conn *conn);

/* --------------------------------------------------------------- resolving */

/* Take an address that is an address.  False: it is a name. */
bool kvt__http_literal(const char *text, uint16_t port, struct kvt__http_address *out);
/* Write the origin's addresses in the order of attempts, room for
 * KVT__HTTP_MAX_ADDRESSES.  Their number; 0: the thread is woken when the resolver has
 * news; -errno. */
int kvt__http_pick(struct kvt__http_conn *conn, struct kvt__http_address *out);
/* Try an address without a timely connection last for a while. */
void kvt__http_bad_address(struct kvt__http_origin *o,
                           const struct kvt__http_address *address);
void kvt__http_stop_resolver(struct kvt__http *http);

#endif
