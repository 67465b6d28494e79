/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of the chain among themselves.  All functions may be called by any thread
 * at any time, except that those which ask block.
 *
 * A secret is in memory that is wiped before it is freed, and in no message: what a
 * server or a program says is told by its code and message, a file by its name. */
#ifndef KVT_TIER_S3_CREDENTIALS_PRIVATE_H
#define KVT_TIER_S3_CREDENTIALS_PRIVATE_H

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/s3/credentials.h"

/* ------------------------------------------------------------------- sources */

#define KVT__S3_NOT_SET 1

/* Each source: 0 and keys; KVT__S3_NOT_SET: nobody configured it; -errno with a sentence
 * that is short, since several are told together. */
typedef int kvt__s3_source_fn(const struct kvt__s3_chain_params *params,
                              struct kvt__s3_keys **out);

kvt__s3_source_fn kvt__s3_ask_configured;
kvt__s3_source_fn kvt__s3_ask_environment;
kvt__s3_source_fn kvt__s3_ask_profile;
kvt__s3_source_fn kvt__s3_ask_web_identity;
kvt__s3_source_fn kvt__s3_ask_container;
kvt__s3_source_fn kvt__s3_ask_metadata;

/* ---------------------------------------------------------------- secret.c */

/* Of the environment; NULL: not set, or empty. */
const char *kvt__s3_variable(const struct kvt__s3_chain_params *params, const char *name);

/* Texts on the heap, ended by NUL; NULL is allowed. */
void kvt__s3_wipe(char *text);

/* A regular file of at most max bytes without a NUL, on the heap; *n may be NULL.
 * -ENOENT: it is not there; all with a sentence. */
int kvt__s3_read_file(const char *path, size_t max, char **out, size_t *n);

/* A token from a file: without blanks around it, none and no control characters in it. */
int kvt__s3_read_token(const char *path, char **out);

/* Make a foreign text fit for a message: printable ASCII, the first line only.  In place. */
void kvt__s3_clean(char *text);

/* ------------------------------------------------------------------ json.c */

/* What a container, the metadata service or a program answers with. */
enum kvt__s3_json { KVT__S3_JSON_PROCESS, KVT__S3_JSON_SERVICE };

/* 0 or -errno with a sentence without the text. */
int kvt__s3_read_json(const char *text, size_t n, enum kvt__s3_json kind,
                      const char *source, struct kvt__s3_keys **out);

/* The code and message of an error document, as "CODE: MESSAGE", fit for a message; "": it is
 * none. */
void kvt__s3_json_error(const char *text, size_t n, char *out, size_t room);

/* --------------------------------------------------------------- process.c */

static inline bool
kvt__s3_is_stopped(const atomic_bool *stop)
{
    return stop && atomic_load(stop);
}

/* Run a command line, without a shell, for at most timeout_ms and until stop is set; what
 * it wrote to its standard output, on the heap. */
int kvt__s3_run_process(const char *command, const char *const *environment,
                        int64_t timeout_ms, const atomic_bool *stop, char **out,
                        size_t *n);

/* Split it as a POSIX shell does, without expanding anything: words, NULL at the end, in
 * one piece of the heap.  -EINVAL: a quote is open; -ENOENT: there is no word. */
int kvt__s3_split_words(const char *line, char ***out);

/* ------------------------------------------------------------------- url.c */

struct kvt__s3_url {
    bool tls;
    uint16_t port;
    char name[256];  /* to connect to, IPv6 in brackets */
    char address[INET6_ADDRSTRLEN]; /* for a name of this host or the local link:
                      * connect directly, never through a proxy; else "" */
    char host[272];  /* the Host header */
    char path[1024]; /* with the query, begins with '/' */
};

/* Parse a URL.  what: the URL's name in the message.  -EINVAL with a sentence; -EACCES:
 * plain HTTP to a host other than this host and the local link. */
int kvt__s3_read_url(const char *text, const char *what, struct kvt__s3_url *out);

/* ----------------------------------------------------------------- fetch.c */

#define KVT__S3_FETCH_ROOM ((size_t)64 << 10)

/* One question to a service, and again if it did not answer or had a fault. */
struct kvt__s3_fetch {
    const struct kvt__s3_url *url;
    const char *method;
    const char *path;    /* NULL: the URL's */
    const struct kvt__s3_pair *headers;
    size_t n_headers;
    const char *body;    /* NULL: none */
    struct kvt__s3_keys *keys;       /* to sign with, for STS; NULL: unsigned */
    const char *region;
    int64_t timeout_ms;  /* of each try */

    int http_status;     /* the answer; text is ended by NUL */
    size_t n;
    char text[KVT__S3_FETCH_ROOM + 1];
};

/* In memory for secrets, all zero; NULL with the sentence. */
struct kvt__s3_fetch *kvt__s3_fetch_new(void);
void kvt__s3_fetch_free(struct kvt__s3_fetch *fetch); /* wiped; NULL is allowed */

/* 0: there is an answer, whatever it says.  Blocks. */
int kvt__s3_fetch(struct kvt__http *http, struct kvt__s3_fetch *fetch);

/* The sentence for an answer that is none, with what it says, unless the secret that was
 * sent (NULL: none) is in it. */
int kvt__s3_fetch_refused(struct kvt__s3_fetch *fetch, const char *secret);

/* ------------------------------------------------------------------- sts.c */

struct kvt__s3_role {
    const char *arn;
    const char *session;     /* NULL: ours */
    const char *external_id; /* NULL: none */
    const char *duration;    /* seconds, in digits; NULL: the service's */
    const char *region;      /* of the profile; NULL: none */
};

/* Signed with keys. */
int kvt__s3_assume_role(const struct kvt__s3_chain_params *params,
                        const struct kvt__s3_role *role, struct kvt__s3_keys *keys,
                        struct kvt__s3_keys **out);

/* Unsigned, with the token in a file. */
int kvt__s3_assume_role_by_token(const struct kvt__s3_chain_params *params,
                                 const struct kvt__s3_role *role, const char *token_file,
                                 const char *source, struct kvt__s3_keys **out);

/* --------------------------------------------------------------- addresses */

/* Read the URL of the container's keys from the environment.  KVT__S3_NOT_SET, or an error
 * of kvt__s3_read_url(). */
int kvt__s3_container_url(const struct kvt__s3_chain_params *params,
                          struct kvt__s3_url *out);

/* Where the metadata service is. */
int kvt__s3_metadata_url(const struct kvt__s3_chain_params *params,
                         struct kvt__s3_url *out);

/* Where STS is, and the region to sign for (room 64). */
int kvt__s3_sts_url(const struct kvt__s3_chain_params *params, const char *profile_region,
                    char *region, struct kvt__s3_url *out);

#endif
