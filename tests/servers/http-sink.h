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
 * Plain, or TLS by OpenSSL with records collected so that the socket is written 256 KiB
 * at a time. */

enum { WIRE_BUFFER = 256 * 1024, WIRE_AGAIN = -1, WIRE_GONE = -2 };

struct wire {
    int fd;
    SSL *ssl;           /* NULL: plain */
    unsigned char *out; /* records that the socket has not taken yet */
    size_t out_start, out_end;
};

/* NULL: it cannot be read; OpenSSL's reasons are printed. */
SSL_CTX *wire_context(const char *cert, const char *key);

/* Takes the socket over.  context NULL: plain. */
bool wire_open(struct wire *w, int fd, SSL_CTX *context);
void wire_close(struct wire *w);

/* Each returns the bytes done, more than 0, or WIRE_AGAIN or WIRE_GONE. */
ssize_t wire_read(struct wire *w, void *to, size_t n);
ssize_t wire_discard(struct wire *w, size_t n);
ssize_t wire_write(struct wire *w, const void *from, size_t n);

/* All that was written has gone to the socket: 0, or as above. */
int wire_flush(struct wire *w);

/* ----------------------------------------------------------------------- answers */

enum { MAX_HEAD = 16 * 1024, MAX_FIELDS = 4096 };

struct conn {
    struct wire wire;
    bool writing; /* what epoll waits for */
    bool close_after;

    char head[MAX_HEAD];
    size_t head_end;
    size_t discard; /* bytes of the request's body that are to come */

    int64_t due_ns; /* no answer before; 0: at once */
    struct conn *next_due;

    char reply[MAX_FIELDS + 1024];
    size_t reply_start, reply_end;
    size_t body_at, body_left; /* of the object */
};

/* The same for all connections. */
extern struct sink {
    int64_t delay_ns;
    const unsigned char *block; /* the object is this over and over: a small one stays */
    size_t block_bytes;         /* in the caches */
    size_t object_bytes;
    char fields[MAX_FIELDS]; /* of the object, each with CR LF */
    char checksum[64];       /* likewise, when all of it is sent */
} sink;

/* The object is a file's bytes; file NULL: so many of our own.  Ends the program when
 * that fails. */
void sink_make_object(const char *file, size_t bytes);

/* "NAME: VALUE", for the object's answers. */
void sink_add_field(const char *text);

/* Reads the head, which is there up to its end and a '\0', and sets discard and the
 * answer.  False: it is no good. */
bool sink_prepare(struct conn *c);

#endif
