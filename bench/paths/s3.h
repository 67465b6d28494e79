/* SPDX-License-Identifier: Apache-2.0
 *
 * What the s3 family of `kvtier-bench` is made of: a server on a core of its own, and
 * bare loops over sockets. */
#ifndef KVT_BENCH_S3_H
#define KVT_BENCH_S3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

/* ----------------------------------------------------------------- server.c */

/* Where objects are, and the core that this process was pinned to meanwhile. */
struct bench_server {
    struct bench_program program; /* pid 0: it was running already */
    char host[64];
    int port, tls_port; /* tls_port 0: there is no TLS */
    char bucket[64];
    char ca_file[4096]; /* of its TLS */
    bool pinned;
    struct bench_cores *cores; /* what the process was allowed before */
};

struct bench_server_params {
    size_t object_bytes;
    bool tls;
    unsigned head_delay_ms;
};

/* Start the program of bench->server, or take the server that it names.  The calling
 * thread, and those that it starts from now on, stay on another core.  0, BENCH_LEFT_OUT
 * or an exit code, after saying why; to be closed also then. */
int bench_server_open(const struct bench *bench, const struct bench_server_params *params,
                      struct bench_server *out);

/* End it.  n_connections (or NULL): how many it took. */
int bench_server_close(struct bench_server *server, uint64_t *n_connections);

/* Make a certificate for 127.0.0.1 and its key, PEM.  0 or an exit code. */
int bench_certificate(const char *cert_file, const char *key_file);

/* ----------------------------------------------------------------- socket.c */

enum bench_socket_kind { BENCH_GET, BENCH_PUT, BENCH_HEAD };

/* Requests that nobody signs or checks, on connections that stay open: recv() and send()
 * of all that remains, or SSL_read() and SSL_write(), and one epoll. */
struct bench_socket {
    const struct bench_server *server;
    enum bench_socket_kind kind;
    bool tls;
    unsigned n_conns;
    size_t object_bytes;
    unsigned char *buffers;  /* of object_bytes for each connection */
    int lowat;               /* plain GET: SO_RCVLOWAT while more is to come */
    size_t read_buffer;      /* TLS: of OpenSSL's, which reads ahead */

    int epoll;
    struct ssl_ctx_st *context;
    struct bench_socket_conn *conns;
    size_t n_started, n_done, n_wanted; /* requests of a run */
};

/* With the fields of the first part set.  0 or an exit code, after saying why; to be
 * closed also then. */
int bench_socket_open(struct bench_socket *s);
void bench_socket_close(struct bench_socket *s);

/* n requests; of HEAD every second one for what is not there. */
int bench_socket_run(struct bench_socket *s, size_t n, struct bench_cost *out);

/* Find the shape that takes the least CPU, or the least time. */
int bench_socket_tune(struct bench_socket *s, size_t n, bool by_cpu);

/* ----------------------------------------------------------- bench-s3-rig.c */

/* A store over the server, and requests to it of one kind. */
struct bench_s3 {
    /* What the case sets. */
    enum bench_socket_kind kind;
    bool tls;
    unsigned n_slots;       /* under way at a time, each with a buffer and a name */
    size_t object_bytes, n_objects; /* a run has so many */
    unsigned head_delay_ms;
    bool all_miss;          /* HEAD: not only every second one */

    struct bench_server server;
    struct kvt_store *store;
    struct bench_index_dir index;
    unsigned char *memory;  /* object_bytes for each slot */
    struct kvt_op *ops;
    char (*keys)[32];
    size_t n_started, n_done;
    void (*watch)(struct bench_s3 *r); /* called every 2 ms during a run; or NULL */
    size_t most_kib;        /* watch's */
};

/* Start the server and map the buffers; then open the store.  0, BENCH_LEFT_OUT or an
 * exit code, after saying why; to be closed also then. */
int bench_s3_open(struct bench_s3 *r, const struct bench *bench);
int bench_s3_open_store(struct bench_s3 *r);
int bench_s3_close(struct bench_s3 *r, uint64_t *n_connections);

/* A run.  Fails if a byte that came was not verified. */
int bench_s3_run(struct bench_s3 *r, struct bench_cost *out);

#endif
