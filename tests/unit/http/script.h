/* SPDX-License-Identifier: Apache-2.0
 *
 * A server on 127.0.0.1 that does to each connection what a test wants: the functions of
 * the list in turn, the last one for all that come later, each on a thread of its own. */
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

/* The monotonic clock of this program.  It stands still, so that no deadline passes while
 * the machine runs other programs, until a test puts it forward.  A test of what the client
 * does by itself after a short time sets clock_runs before the client is opened. */
extern atomic_llong clock_ahead_s;
extern atomic_bool clock_runs;

struct peer {
    struct script *script;
    unsigned nth; /* connection of the server */
    int fd;
    SSL *ssl;
    char head[65536]; /* of the last request */
    size_t at, end;   /* bytes in it that are behind the head */
};

#define SCRIPT_MAX_PEERS 2000

struct script {
    void (*plays[8])(struct peer *peer); /* NULL at the end */
    SSL_CTX *tls;                            /* NULL: plain */
    uint16_t port;
    atomic_uint n_accepted, n_open, max_open;
    sem_t go, came; /* for a test to say when, and to hear when */
    int listener;
    pthread_t thread;
    pthread_mutex_t lock;
    struct peer *peers[SCRIPT_MAX_PEERS];
    pthread_t threads[SCRIPT_MAX_PEERS];
    atomic_uint n_peers;
};

void script_start(struct script *script, void (*const *plays)(struct peer *), SSL_CTX *tls);
#define PLAYS(...) ((void (*const[])(struct peer *)){ __VA_ARGS__, NULL })

/* At another address of 127.0.0.0/8 or at ::1, and at this port, if it is not 0.  Skips
 * the test where there is no ::1. */
void script_start_at(struct script *script, void (*const *plays)(struct peer *),
                     const char *address, uint16_t port);
/* Ends the connections that are open. */
void script_stop(struct script *script);
/* Return a port of this address that refuses connections.  The program keeps the port, so
 * no other process can listen there.  Skips the test if the machine has no ::1. */
uint16_t refusing_port(const char *address);

/* A server whose queue of connections is full: nobody gets an answer. */
struct full {
    uint16_t port;
    int listener, clients[16];
};

void full_start(struct full *full, const char *address, uint16_t port);
void full_stop(struct full *full);

/* Read a head.  False: the client closed instead. */
bool peer_head(struct peer *peer);
/* Read a body of n bytes of the pattern.  How many came. */
size_t peer_body(struct peer *peer, size_t n);
void peer_send(struct peer *peer, const char *text);
void peer_send_bytes(struct peer *peer, const void *bytes, size_t n);
/* Bytes of the pattern, from the at-th. */
void peer_send_pattern(struct peer *peer, size_t at, size_t n);
/* Wait until the client closes. */
void peer_gone(struct peer *peer);
void peer_reset(struct peer *peer);
/* Answer every request with this until the client closes. */
void peer_serve(struct peer *peer, const char *answer);

unsigned char pattern(size_t at);
void fill_pattern(unsigned char *bytes, size_t n);
void assert_pattern(const unsigned char *bytes, size_t n);

/* ------------------------------------------------------------------ requests */

/* A request of a test: what it asks for and all that was seen of it. */
struct ask {
    struct kvt__http_request req;
    const char *method, *path, *more; /* more: fields, each with CRLF */
    int refuse;                       /* what answer() returns */
    unsigned n_heads, n_answers, n_done;
    struct kvt__http_head seen;
    int64_t length;
    size_t next_at; /* received() came in order up to here */
    unsigned char small[16]; /* place for an answer */
    sem_t done;
};

void ask_init(struct ask *ask, struct kvt__http_origin *origin, const char *method,
              const char *path, void *into, size_t room);
/* Submit, wait for it; its status. */
int ask_run(struct kvt__http *http, struct ask *ask);
int ask_wait(struct ask *ask);

struct kvt__http *open_client(unsigned n_threads, unsigned max_requests);
struct kvt__http_origin *origin_at(struct kvt__http *http, const char *host, uint16_t port,
                                   bool tls);
struct kvt__http_origin *origin_of(struct kvt__http *http, const struct script *script);
/* Wait until the only thread of the origin's client has begun all requests submitted so
 * far, and has handled all wake-ups. */
void settle(struct kvt__http_origin *origin);
/* Settle, put the clock forward, and wait until the client has done all that is due. */
void put_forward(struct kvt__http_origin *origin, long long seconds);

#endif
