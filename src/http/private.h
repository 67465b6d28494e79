/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal structs and functions: threads, origins, connections.  A thread of the client owns
 * connections and the requests on these connections, and no other thread accesses a connection
 * or a request.  Other threads append requests to the thread's inbox, which has a lock.
 *
 * A turn of a connection is one call of kvt__http_conn_run(), which reads a limited number of
 * bytes, so that a fast connection does not delay the other connections of the thread.  Unless
 * the comment says otherwise, call a function on the thread that owns the connection or the
 * request. */
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
#include "http/timers.h"

#define KVT__HTTP_CONNECT_NS (3 * KVT__NS_PER_S)  /* default of params.connect_ns */
#define KVT__HTTP_STAGGER_NS (250 * KVT__NS_PER_MS) /* between attempts: RFC 8305, section 8 */
#define KVT__HTTP_STALL_NS (10 * KVT__NS_PER_S)   /* default of params.stall_ns */
#define KVT__HTTP_IDLE_NS (60 * KVT__NS_PER_S)    /* limit of an idle connection */
#define KVT__HTTP_CONTINUE_NS (200 * KVT__NS_PER_MS) /* longest wait for a response 100 */
#define KVT__HTTP_DRAIN_NS (1 * KVT__NS_PER_S) /* limit of DRAIN without a byte received */
#define KVT__HTTP_DRAIN_BYTES 16384 /* largest rest of an unwanted body that a connection reads */
#define KVT__HTTP_OUT_BYTES 16384 /* longest head of a request */
#define KVT__HTTP_IN_BYTES 32768  /* longest head of a response */
#define KVT__HTTP_MAX_ADDRESSES 32

/* ----------------------------------------------------------------- origins */

struct kvt__http_address {
    union {
        struct sockaddr sa;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } to;
    int64_t bad_until_ns; /* monotonic; after a failed or slow attempt: before this time,
                           * connections try this address last */
};

struct kvt__http_proxy {
    char *host; /* NULL: no proxy */
    uint16_t port;
    bool is_invalid; /* the setting is not a valid proxy */
    char *authorization; /* value of Proxy-Authorization; NULL: no such field */
};

struct kvt__http_origin {
    struct kvt__http *http;
    struct kvt__http_origin *next;
    char *host;     /* without brackets */
    char *label;    /* host:port, for messages */
    char *address;  /* target.address; NULL: none */
    uint16_t port;
    bool tls;

    const struct kvt__http_proxy *proxy; /* NULL: connect directly */
    char *connect_name;  /* name or address to connect to: address, proxy or host */
    char *connect_label; /* for messages */
    uint16_t connect_port;
    bool is_literal;    /* connect_name is an address */

    /* Guarded by http->dns_lock. */
    struct kvt__http_address addresses[KVT__HTTP_MAX_ADDRESSES];
    size_t n_addresses;
    size_t n_orders;      /* calls of kvt__http_pick() that returned addresses; rotates addresses */
    int64_t resolved_ns;  /* monotonic time of the last lookup; a failed attempt sets an earlier
                           * time, so that the next connection starts a lookup */
    unsigned n_lookups;   /* lookups that have ended */
    bool lookup_pending;  /* a lookup is queued or under way */
    char dns_why[160];    /* cause of the last failed lookup */
    struct kvt__http_origin *next_lookup;

    SSL_SESSION *sessions[]; /* newest session of each thread, to resume; NULL: none yet */
};

/* ------------------------------------------------------------- connections */

enum kvt__http_state {
    KVT__HTTP_RESOLVE, /* waits for the name lookup */
    KVT__HTTP_CONNECT,
    KVT__HTTP_TUNNEL,  /* sends CONNECT to the proxy and reads the proxy's response */
    KVT__HTTP_HANDSHAKE,
    KVT__HTTP_EXCHANGE,  /* sends the request, and reads the head of the response */
    KVT__HTTP_BODY,
    KVT__HTTP_DRAIN,   /* reads the rest of an unwanted body */
    KVT__HTTP_IDLE,
    KVT__HTTP_CLOSED   /* the thread frees the connection after all events of epoll_wait() */
};

struct kvt__http_conn {
    struct kvt__http_timer timer;
    struct kvt__http_thread *thread;
    struct kvt__http_origin *origin;
    struct kvt__http_request *req; /* NULL in IDLE and DRAIN */
    struct kvt__http_conn *next, *prev;
    enum kvt__http_state state;
    int fd;
    SSL *ssl;            /* NULL: plain, or before the handshake */
    uint32_t events;     /* events that epoll watches */
    bool tls_wants_write; /* TLS waits until the socket is writable */
    bool tls_failed;     /* TLS failed: no more calls for this session */
    bool readable;       /* epoll reported bytes, and no read has found the socket empty since */
    bool is_reused;      /* the connection was idle before this request */
    bool has_received;   /* a byte of the response has arrived */
    bool is_lost;        /* the peer closed the connection, or the socket failed */
    bool eof;            /* the peer ended the stream in an orderly way */
    bool can_keep;       /* the connection may become idle after the response */
    bool has_unread;     /* more bytes may be readable: this turn has reached the limit of bytes */
    size_t turn_bytes;   /* bytes read in this turn */
    int lowat;           /* SO_RCVLOWAT of the socket, bytes */
    int64_t progress_ns; /* monotonic time of the last byte sent or received, or of the last
                          * change of state */

    struct kvt__http_race *race; /* parallel attempts to connect (RFC 8305); NULL: none under way */
    unsigned n_lookups;  /* origin->n_lookups when the connection began to wait */

    size_t out_bytes, out_sent, body_sent;
    bool hold_body;      /* do not send the body before a response 100 */
    bool send_failed;    /* send no more bytes of this request */
    int64_t sent_ns, first_byte_ns;

    size_t in_bytes;     /* bytes in `in`: the head, and bytes received with the head */
    size_t in_used;      /* bytes of `in` that were ever written; the close wipes these bytes */
    bool chunked;
    int64_t body_left;   /* bytes of the body still to arrive; -1: until the end of the stream */
    struct kvt__http_chunks chunks;
    char out[KVT__HTTP_OUT_BYTES];
    char in[KVT__HTTP_IN_BYTES];
};

/* The return value of a step; a negative value is an -errno with a sentence: the step failed. */
enum kvt__http_outcome {
    KVT__HTTP_WAITS,   /* the state waits for the socket, the resolver or the next turn */
    KVT__HTTP_GOES_ON, /* the caller calls the step of this state again */
    KVT__HTTP_DONE     /* the state has ended; run.c chooses the next state */
};

/* The steps, one or two for each state.  Only run.c calls the steps, changes the state, and ends
 * the request or the connection. */
int kvt__http_resolve(struct kvt__http_conn *conn);
int kvt__http_connect(struct kvt__http_conn *conn);
int kvt__http_tunnel(struct kvt__http_conn *conn);
int kvt__http_handshake(struct kvt__http_conn *conn);
/* DONE: *response is the final response's head, whose text is still in the connection's
 * buffer. */
int kvt__http_exchange(struct kvt__http_conn *conn, struct kvt__http_response *response);
int kvt__http_receive_body(struct kvt__http_conn *conn);
int kvt__http_drain(struct kvt__http_conn *conn);

/* Change the state, and the thread's count of connections in RESOLVE. */
void kvt__http_set_state(struct kvt__http_conn *conn, enum kvt__http_state state);
/* Return the race's next deadline: of an attempt, or for the next attempt to begin. */
int64_t kvt__http_race_due_ns(const struct kvt__http_conn *conn);
/* Close the sockets of all attempts and free the race. */
void kvt__http_race_end(struct kvt__http_conn *conn);
/* Close a socket in the thread's epoll. */
void kvt__http_close_fd(struct kvt__http_thread *thread, int fd);

/* Assign a connection to the request, an idle connection of the origin or a new connection, and run
 * the first steps.  The request may end during the call.  slot: index in req->own.conn.  fresh: use
 * only a new connection. */
void kvt__http_conn_begin(struct kvt__http_thread *thread, struct kvt__http_request *req,
                          int slot, bool fresh);
/* Run steps until the connection waits.  The request may end, and the connection may close. */
void kvt__http_conn_run(struct kvt__http_conn *conn);
/* Return an idle connection of the origin or a new connection.  fresh: return only a new
 * connection.  The caller sets timer.run.  NULL: no memory. */
struct kvt__http_conn *kvt__http_conn_take(struct kvt__http_thread *thread,
                                           struct kvt__http_origin *origin, bool fresh);
/* Clear the pointers between the connection and the request. */
void kvt__http_conn_detach(struct kvt__http_conn *conn);
/* End the connection's work for the request: the connection becomes idle, or the call closes the
 * connection. */
void kvt__http_conn_release(struct kvt__http_conn *conn);
/* Close the connection.  The thread frees the memory later.  The caller ends the request. */
void kvt__http_conn_close(struct kvt__http_conn *conn);
/* Return true if an idle connection is open, without unexpected bytes. */
bool kvt__http_conn_is_quiet(struct kvt__http_conn *conn);

/* Write the head, and reset the record of the exchange.  Return 0 or -errno with a sentence. */
int kvt__http_send_begin(struct kvt__http_conn *conn);
/* Send as much of the request as the socket accepts now. */
void kvt__http_send(struct kvt__http_conn *conn);
/* Return true if a part of the request is still to be sent. */
bool kvt__http_is_sending(const struct kvt__http_conn *conn);

/* Receive at most n bytes.  Return the number of bytes; 0: none now; -errno with a sentence. */
ssize_t kvt__http_recv(struct kvt__http_conn *conn, void *to, size_t n);
/* Like kvt__http_recv(), but append to the connection's buffer. */
ssize_t kvt__http_recv_in(struct kvt__http_conn *conn, size_t n);
/* Remove the first n bytes, a head, from the buffer. */
void kvt__http_drop_head(struct kvt__http_conn *conn, size_t n);
/* Set SO_RCVLOWAT, the number of bytes for which epoll wakes the thread.  left: bytes that are
 * still to arrive. */
void kvt__http_set_lowat(struct kvt__http_conn *conn, int64_t left);
/* Return true if the connection has read the maximum of bytes for a turn.  Then set has_unread: the
 * connection continues in the next turn. */
bool kvt__http_is_turn_over(struct kvt__http_conn *conn);

/* Pass the head to req->on_head() and remove the head from the buffer, which then begins with the
 * body.  Return the value of req->on_head(). */
int kvt__http_take_head(struct kvt__http_conn *conn, struct kvt__http_response *response);
/* Move the body's bytes from the buffer to the request.  Return 0 or -errno with a sentence. */
int kvt__http_begin_body(struct kvt__http_conn *conn);
/* Return true if the connection should read the small rest of an unwanted body, to become idle
 * afterwards.  False: no rest is left; or the rest is too large, and the call has cleared
 * can_keep. */
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

/* Append the request to a list.  A request is in at most one list. */
void kvt__http_append(struct kvt__http_list *list, struct kvt__http_request *req);
/* Remove the request from its list.  The request must be in a list. */
void kvt__http_unlink(struct kvt__http_request *req);

/* Accept a request from the inbox: queue the request, or let the request wait for its time. */
void kvt__http_enqueue(struct kvt__http_thread *thread, struct kvt__http_request *req);
/* Move the request from its queue to a connection. */
void kvt__http_start(struct kvt__http_thread *thread, struct kvt__http_request *req);
/* End the request: close its connections, and call on_done() or wake the waiter.  If status is not
 * 0, the request gets the calling thread's sentence. */
void kvt__http_finish(struct kvt__http_request *req, int status);
/* Choose the response of this connection: close the request's other connection. */
void kvt__http_choose(struct kvt__http_conn *conn);

/* ----------------------------------------------------------------- threads */

struct kvt__http_conns {
    struct kvt__http_conn *first, *last;
};

struct kvt__http_thread {
    struct kvt__http *http;
    pthread_t id;
    int epoll, event; /* event: an eventfd that wakes the thread */
    struct kvt__http_timers timers;
    struct kvt__http_list waiting; /* requests before not_before_ns */
    struct kvt__http_list queues[KVT__N_PRIOS];
    struct kvt__http_list under_way;
    unsigned n_under_way, max;               /* max: limit of n_under_way and of n_conns */
    struct kvt__http_conns busy, idle, dead; /* idle: the last used connection comes first */
    unsigned n_conns;                        /* number of busy and idle connections */
    unsigned n_resolving;                    /* connections in RESOLVE */
    bool has_unread;                         /* a connection has has_unread */

    atomic_uint n_requests;      /* submitted and not done */
    pthread_mutex_t lock;
    struct kvt__http_list inbox; /* guarded by lock */
    bool stopped, closing;       /* guarded by lock */
};

struct kvt__http {
    unsigned n_threads;
    bool no_verify;
    int64_t connect_ns, stall_ns;
    char *ca_file, *more_ca_file, *cert_file, *key_file, *no_proxy; /* NULL: none */
    struct kvt__http_proxy http_proxy, https_proxy;
    pthread_mutex_t lock; /* guards origins and tls */
    struct kvt__http_origin *origins;
    SSL_CTX *tls; /* created for the first origin with TLS */

    pthread_mutex_t dns_lock;
    pthread_cond_t dns_work;
    struct kvt__http_origin *lookups; /* queue of name lookups */
    pthread_t dns_thread;
    bool dns_started, dns_stop;

    atomic_uint_fast64_t n_connections, n_open, n_requests, n_hedges, n_resumed;
    struct kvt__http_thread threads[];
};

void *kvt__http_thread_main(void *arg);
/* Wake the thread; any thread may call this. */
void kvt__http_wake(struct kvt__http_thread *thread);
/* Put the connection at the front of a list. */
void kvt__http_link_conn(struct kvt__http_conns *list, struct kvt__http_conn *conn);
void kvt__http_unlink_conn(struct kvt__http_conns *list, struct kvt__http_conn *conn);

/* ------------------------------------------------------------------- hosts */

/* Return a copy of host without the brackets of IPv6; the caller frees the copy.  NULL: no
 * memory. */
char *kvt__http_bare_host(const char *host);

/* -------------------------------------------------------------- TLS, proxies */

/* Create the TLS context, unless it exists.  http->lock is held.  Return 0 or -errno with a
 * sentence. */
int kvt__http_tls_open(struct kvt__http *http);
void kvt__http_tls_close(struct kvt__http *http);
/* Prepare the handshake on a connected socket.  Return 0 or -errno with a sentence. */
int kvt__http_tls_begin(struct kvt__http_conn *conn);
/* Receive or send bytes.  Return the number of bytes; 0: the socket is not ready; -errno with a
 * sentence. */
ssize_t kvt__http_tls_recv(struct kvt__http_conn *conn, void *to, size_t n);
ssize_t kvt__http_tls_send(struct kvt__http_conn *conn, const struct iovec *parts,
                           size_t n_parts);
/* Return true if an idle connection is open and only session tickets have arrived. */
bool kvt__http_tls_is_quiet(struct kvt__http_conn *conn);
/* idle true: OpenSSL frees the connection's buffers while the buffers are empty; false: OpenSSL
 * keeps the buffers. */
void kvt__http_tls_release_buffers(struct kvt__http_conn *conn, bool idle);
/* Send the closing alert if possible, and free the session. */
void kvt__http_tls_end(struct kvt__http_conn *conn);

/* Read the setting's value.  Invalid text only sets is_invalid.  Return 0 or -ENOMEM. */
int kvt__http_proxy_open(const char *value, struct kvt__http_proxy *out);
void kvt__http_proxy_close(struct kvt__http_proxy *proxy);
/* Return true if list, the setting no_proxy, contains host. */
bool kvt__http_is_in_no_proxy(const char *list, const char *host);
/* Rewrite a head of n bytes for the origin's proxy.  Return the new length, or -errno with a
 * sentence. */
int kvt__http_proxy_head(const struct kvt__http_origin *o, char *head, size_t n,
                         size_t room);
/* Write the head of the CONNECT request to conn->out.  Return 0 or -errno with a sentence. */
int kvt__http_tunnel_begin(struct kvt__http_conn *conn);

/* --------------------------------------------------------------- resolving */

/* Convert the text of an IPv4 or IPv6 address.  Return false if text is not an address. */
bool kvt__http_address_from_text(const char *text, uint16_t port, struct kvt__http_address *out);
/* Write the origin's addresses in the order of attempts; out has room for
 * KVT__HTTP_MAX_ADDRESSES.  Return the number of addresses; 0: the resolver wakes the thread
 * when the lookup has ended; -errno with a sentence. */
int kvt__http_pick(struct kvt__http_conn *conn, struct kvt__http_address *out);
/* Move an address to the end of the order of attempts for some time, because an attempt to connect
 * failed or was slow.  Any thread. */
void kvt__http_bad_address(struct kvt__http_origin *o,
                           const struct kvt__http_address *address);
/* Stop the resolver's thread.  Blocks until a lookup under way has ended. */
void kvt__http_stop_resolver(struct kvt__http *http);

#endif
