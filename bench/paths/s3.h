/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the s3 family of kvtier-bench: an S3 server on a separate core, a baseline loop over
 * sockets, and a store over the server.
 *
 * Functions that return int return 0 or an exit code after a message, unless their comment says
 * otherwise. */
#ifndef KVT_BENCH_S3_H
#define KVT_BENCH_S3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

/* -------------------------------------------------------------- s3-server.c */

/* An S3 server, and the CPU affinity of this process while the server is open. */
struct bench_s3_server {
    struct bench_program program; /* pid 0: the server was running before the case */
    char host[64]; /* an IPv4 address */
    int port, tls_port; /* tls_port 0: no TLS */
    char bucket[64];
    char ca_file[4096]; /* PEM certificate of the server's TLS */
    bool pinned;        /* the calling thread is pinned to another core than the server */
    struct bench_cores *cores; /* CPU affinity of the calling thread before the pinning */
};

struct bench_s3_server_params {
    size_t object_bytes;    /* bytes of each object that a GET returns */
    bool tls;               /* open a TLS port too */
    unsigned head_delay_ms; /* delay of each response to a HEAD */
};

/* Start the server program of `bench` (or the default), or use the running server if
 * bench->server is a URL.  Pins the calling thread, and the threads that the calling thread
 * starts later, to another core than the server's, if there are two cores.  Return 0,
 * BENCH_SKIPPED or an exit code, after a message.  Call bench_s3_server_close() even after an
 * error. */
int bench_s3_server_open(const struct bench *bench, const struct bench_s3_server_params *params,
                      struct bench_s3_server *out);

/* End the server program and restore the CPU affinity.  If n_connections is not NULL, write the
 * number of connections that the server accepted; an error if the server does not report the
 * number. */
int bench_s3_server_close(struct bench_s3_server *server, uint64_t *n_connections);

/* Create a self-signed certificate for 127.0.0.1 and write the certificate and the key as PEM
 * files. */
int bench_s3_certificate(const char *cert_file, const char *key_file);

/* ------------------------------------------------------- baseline-sockets.c */

enum bench_socket_kind { BENCH_GET, BENCH_PUT, BENCH_HEAD };

/* The baseline loop over sockets: one thread sends HTTP requests over persistent connections
 * with one epoll.  The loop calls recv() and send() with all remaining bytes, or SSL_read() and
 * SSL_write().  The requests are not signed, and no checksum is verified. */
struct bench_socket {
    /* Fields that the caller sets before bench_socket_open(). */
    const struct bench_s3_server *server;
    enum bench_socket_kind kind;
    bool tls;
    unsigned n_conns;
    size_t object_bytes;
    unsigned char *buffers;  /* object_bytes for each connection; the caller's */

    /* Fields that bench_socket_tune() sets. */
    int lowat;               /* GET without TLS: SO_RCVLOWAT during the body; 0: the default */
    size_t read_buffer;      /* TLS: bytes of OpenSSL's read-ahead buffer */

    int epoll; /* -1 before bench_socket_open() */
    struct ssl_ctx_st *context;
    struct bench_socket_conn *conns;
    size_t n_started, n_done, n_wanted; /* requests of a run */
};

/* Open the connections.  Call bench_socket_close() even after an error. */
int bench_socket_open(struct bench_socket *s);
void bench_socket_close(struct bench_socket *s);

/* Run n requests and measure the run.  Every second HEAD asks for an absent object.  An error if
 * a response has an unexpected status or length, or does not arrive in 30 seconds. */
int bench_socket_run(struct bench_socket *s, size_t n, struct bench_cost *out);

/* For GET, try several values of lowat or read_buffer with n requests each, and set the value
 * with the least CPU time (by_cpu) or the least wall-clock time.  Does nothing for other kinds. */
int bench_socket_tune(struct bench_socket *s, size_t n, bool by_cpu);

/* --------------------------------------------------------------- s3-store.c */

/* A server, a store over the server, and runs of operations of one kind. */
struct bench_s3 {
    /* Fields that the case sets before bench_s3_open(). */
    enum bench_socket_kind kind;
    bool tls;
    unsigned n_slots;       /* operations in flight; each slot has a buffer and an object name */
    size_t object_bytes;
    size_t n_objects;       /* operations of a run */
    unsigned head_delay_ms; /* the server's delay of each response to a HEAD */
    bool all_absent;          /* all HEADs ask for absent objects, not only every second HEAD */

    struct bench_s3_server server;
    struct kvt_store *store;
    struct bench_index_dir index;
    unsigned char *memory;  /* buffers: object_bytes for each slot */
    struct kvt_op *ops;
    char (*keys)[32];
    size_t n_started, n_done; /* operations of the current run */
    void (*on_progress)(struct bench_s3 *r); /* called at least every 2 ms during a run; or NULL */
    size_t max_kib;        /* for `on_progress`: the maximum of resident memory */
};

/* Start the server and allocate the buffers.  Return 0, BENCH_SKIPPED or an exit code, after a
 * message.  Call bench_s3_close() even after an error. */
int bench_s3_open(struct bench_s3 *r, const struct bench *bench);

/* Open the store over the server, after bench_s3_open(). */
int bench_s3_open_store(struct bench_s3 *r);

/* Close the store, end the server and free the buffers.  n_connections as in
 * bench_s3_server_close(). */
int bench_s3_close(struct bench_s3 *r, uint64_t *n_connections);

/* Run n_objects operations and measure the run.  An error if an operation fails, or if the store
 * did not verify the bytes of a GET. */
int bench_s3_run(struct bench_s3 *r, struct bench_cost *out);

#endif
