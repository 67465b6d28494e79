/* SPDX-License-Identifier: Apache-2.0
 *
 * A server on 127.0.0.1.  A test gives the server a list of functions: function n serves
 * connection n, and the last function serves all later connections.  Each connection has a
 * thread. */
#ifndef HTTP_SCRIPT_H
#define HTTP_SCRIPT_H

#include "kvt-test.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "http/http.h"

/* The monotonic clock of this program.  The clock stands still until a test puts the clock
 * forward, so that no deadline passes while the machine runs other programs.  A test of a
 * short timeout of the client sets clock_runs before the client is opened. */
extern atomic_llong clock_ahead_s;
extern atomic_bool clock_runs;

struct peer {
    struct script *script;
    unsigned nth; /* number of the connection */
    int fd;
    SSL *ssl;
    char head[65536]; /* head of the last request */
    size_t at, end;   /* bytes of `head` after the request's head */
};

#define SCRIPT_MAX_PEERS 2000

struct script {
    void (*plays[8])(struct peer *peer); /* NULL at the end */
    SSL_CTX *tls;                            /* NULL: plain */
    uint16_t port;
    atomic_uint n_accepted, n_open, max_open;
    sem_t go, came; /* from the test to a play, from a play to the test */
    int listener;
    pthread_t thread;
    pthread_mutex_t lock;
    struct peer *peers[SCRIPT_MAX_PEERS];
    pthread_t threads[SCRIPT_MAX_PEERS];
    atomic_uint n_peers;
};

void script_start(struct script *script, void (*const *plays)(struct peer *), SSL_CTX *tls);
#define PLAYS(...) ((void (*const[])(struct peer *)){ __VA_ARGS__, NULL })

/* Start a server at another address of 127.0.0.0/8 or at ::1.  port: 0 for any.  Skip the
 * test if the machine has no ::1. */
void script_start_at(struct script *script, void (*const *plays)(struct peer *),
                     const char *address, uint16_t port);
/* Stop the server and end open connections. */
void script_stop(struct script *script);
/* Return a port of this address that refuses connections.  The program keeps the port, so
 * no other process can listen there.  Skip the test if the machine has no ::1. */
uint16_t refusing_port(const char *address);

/* A server with a full queue of connections: further clients get no response. */
struct full {
    uint16_t port;
    int listener, clients[16];
};

void full_start(struct full *full, const char *address, uint16_t port);
void full_stop(struct full *full);

/* Read a head.  Return false if the client closed the connection. */
bool peer_head(struct peer *peer);
/* Read a body of n bytes of the pattern.  Return the number of received bytes. */
size_t peer_body(struct peer *peer, size_t n);
void peer_send(struct peer *peer, const char *text);
void peer_send_bytes(struct peer *peer, const void *bytes, size_t n);
/* Send n bytes of the pattern from offset `at`. */
void peer_send_pattern(struct peer *peer, size_t at, size_t n);
/* Wait until the client closes. */
void peer_gone(struct peer *peer);
void peer_reset(struct peer *peer);
/* Send `answer` to every request until the client closes the connection. */
void peer_serve(struct peer *peer, const char *answer);

unsigned char pattern(size_t at);
void fill_pattern(unsigned char *bytes, size_t n);
void assert_pattern(const unsigned char *bytes, size_t n);

/* ------------------------------------------------------------------ requests */

/* A request of a test, and the record of the client's callbacks. */
struct ask {
    struct kvt__http_request req;
    const char *method, *path, *more; /* more: fields, each with CRLF */
    int refuse;                       /* return value of on_head() */
    unsigned n_heads, n_answers, n_done;
    struct kvt__http_head seen;
    int64_t length;
    size_t next_at; /* offset expected by the next call of on_body() */
    unsigned char small[16]; /* room for a response */
    sem_t done;
};

void ask_init(struct ask *ask, struct kvt__http_origin *origin, const char *method,
              const char *path, void *into, size_t room);
/* Submit a request and wait for the end.  Return the request's status. */
int ask_run(struct kvt__http *http, struct ask *ask);
int ask_wait(struct ask *ask);

struct kvt__http *open_client(unsigned n_threads, unsigned max_requests);
struct kvt__http_origin *origin_at(struct kvt__http *http, const char *host, uint16_t port,
                                   bool tls);
struct kvt__http_origin *origin_of(struct kvt__http *http, const struct script *script);
/* Wait until the only thread of the origin's client has begun all requests submitted so
 * far, and has handled all wake-ups. */
void settle(struct kvt__http_origin *origin);
/* Settle, put the clock forward, and wait until the client has run all timers that are due. */
void put_forward(struct kvt__http_origin *origin, long long seconds);

#endif
