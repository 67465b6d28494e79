/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of http-sink.  One thread. */
#ifndef HTTP_SINK_H
#define HTTP_SINK_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ------------------------------------------------------------------------- wires
 *
 * A plain or TLS connection.  OpenSSL's records are collected, so that each write to the socket
 * has 256 KiB. */

enum { WIRE_BUFFER = 256 * 1024, WIRE_AGAIN = -1, WIRE_GONE = -2 };

struct wire {
    int fd;
    SSL *ssl;           /* NULL: plain */
    unsigned char *out; /* records not yet written to the socket */
    size_t out_start, out_end;
};

/* Load the certificate and the key.  NULL: unreadable; OpenSSL's reasons are printed. */
SSL_CTX *wire_context(const char *cert, const char *key);

/* Take ownership of the socket.  context NULL: plain.  Return false on failure. */
bool wire_open(struct wire *w, int fd, SSL_CTX *context);
void wire_close(struct wire *w);

/* Each function returns the number of bytes, more than 0, or WIRE_AGAIN or WIRE_GONE. */
ssize_t wire_read(struct wire *w, void *to, size_t n);
ssize_t wire_discard(struct wire *w, size_t n);
ssize_t wire_write(struct wire *w, const void *from, size_t n);

/* Write all collected records to the socket.  Return 0, WIRE_AGAIN or WIRE_GONE. */
int wire_flush(struct wire *w);

/* --------------------------------------------------------------------- responses */

enum { MAX_HEAD = 16 * 1024, MAX_FIELDS = 4096 };

struct conn {
    struct wire wire;
    bool writing; /* epoll waits for writability */
    bool close_after;

    char head[MAX_HEAD];
    size_t head_end;
    size_t discard; /* bytes of the request's body not yet received */

    int64_t due_ns; /* no response before this time; 0: respond at once */
    struct conn *next_due;

    char reply[MAX_FIELDS + 1024];
    size_t reply_start, reply_end;
    size_t body_at, body_left; /* position in the object */
};

/* Shared by all connections. */
extern struct sink {
    int64_t delay_ns;
    const unsigned char *block; /* the object is this block, repeated; a small block */
    size_t block_bytes;         /* stays in the CPU's caches */
    size_t object_bytes;
    char fields[MAX_FIELDS]; /* headers of the object, each with CR LF */
    char checksum[64];       /* header for responses with the whole object */
} sink;

/* Make the object from a file's bytes; file NULL: generate `bytes` bytes.  Ends the program on
 * failure. */
void sink_make_object(const char *file, size_t bytes);

/* Add a "NAME: VALUE" header to the object's responses. */
void sink_add_field(const char *text);

/* Parse the complete head, ended by NUL, set discard and prepare the response.  Return false for a
 * bad request. */
bool sink_prepare(struct conn *c);

#endif
