/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared declarations of the credential sources.  Any thread may call any function at any time.
 * Functions that request keys or read files block.
 *
 * Secrets are only in memory that is wiped before free.  No message contains a secret: a message
 * has the code and message of a server or program, and the name of a file. */
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

/* A source.  Return 0 and new keys, which the caller releases; KVT__S3_NOT_SET: the source is not
 * configured; -errno with a short sentence, because the chain joins the sentences of several
 * sources. */
typedef int kvt__s3_source_fn(const struct kvt__s3_chain_params *params,
                              struct kvt__s3_keys **out);

kvt__s3_source_fn kvt__s3_keys_from_configuration;
kvt__s3_source_fn kvt__s3_keys_from_environment;
kvt__s3_source_fn kvt__s3_keys_from_profile;
kvt__s3_source_fn kvt__s3_keys_from_web_identity;
kvt__s3_source_fn kvt__s3_keys_from_container;
kvt__s3_source_fn kvt__s3_keys_from_metadata;

/* ---------------------------------------------------------------- secret.c */

/* Return the value of an environment variable; NULL: unset or empty. */
const char *kvt__s3_getenv(const struct kvt__s3_chain_params *params, const char *name);

/* Wipe and free a text.  NULL is allowed. */
void kvt__s3_wipe_free(char *text);

/* Read a regular file of at most max bytes without NUL bytes, to the heap, with a NUL at the end.
 * n: the length; may be NULL.  0; -ENOENT: no such file; -errno; all errors with a sentence.  The
 * caller frees *out with kvt__s3_wipe_free(). */
int kvt__s3_read_file(const char *path, size_t max, char **out, size_t *n);

/* Read a token from a file, without leading and trailing white space, to the heap.  -EBADMSG: white
 * space or control characters inside the token, or no token.  The caller frees *out with
 * kvt__s3_wipe_free(). */
int kvt__s3_read_token(const char *path, char **out);

/* Make a foreign text safe for a message, in place: keep the first line only, and replace all but
 * printable ASCII. */
void kvt__s3_make_printable(char *text);

/* ------------------------------------------------------------------ json.c */

/* The producer of the JSON: a credential_process, or a service (container agent, instance
 * metadata). */
enum kvt__s3_json { KVT__S3_JSON_PROCESS, KVT__S3_JSON_SERVICE };

/* Make keys from JSON.  0, or -errno with a sentence, which contains nothing of the text except a
 * service's Code. */
int kvt__s3_keys_from_json(const char *text, size_t n, enum kvt__s3_json kind,
                           const char *source, struct kvt__s3_keys **out);

/* Write "CODE: MESSAGE" of a JSON error document, safe for a message; "": not such a document. */
void kvt__s3_error_from_json(const char *text, size_t n, char *out, size_t room);

/* --------------------------------------------------------------- process.c */

static inline bool
kvt__s3_is_stopped(const atomic_bool *stop)
{
    return stop && atomic_load(stop);
}

/* Run a command line, without a shell, for at most timeout_ms, or until *stop is set.  *out: the
 * standard output, on the heap, *n bytes and a NUL; the caller wipes and frees *out.  0 or -errno
 * with a sentence. */
int kvt__s3_run_process(const char *command, const char *const *environment,
                        int64_t timeout_ms, const atomic_bool *stop, char **out,
                        size_t *n);

/* Split a command line as a POSIX shell does, without expansions.  *out: the words, ended by NULL,
 * in one heap allocation.  0; -EINVAL: a quote is not closed; -ENOENT: no words; -ENOMEM. */
int kvt__s3_split_words(const char *line, char ***out);

/* ------------------------------------------------------------------- url.c */

struct kvt__s3_url {
    bool tls;
    uint16_t port;
    char name[256];  /* host for connections, IPv6 in brackets */
    /* The address, if name is this host or a link-local address: connect directly, never through a
     * proxy.  Otherwise "". */
    char address[INET6_ADDRSTRLEN];
    char host[272];  /* value of the Host header */
    char path[1024]; /* with the query; begins with '/' */
};

/* Parse a URL.  what: the URL's name for messages.  0; -EINVAL: not such a URL; -EACCES: plain HTTP
 * to a host other than this host and link-local addresses; errors with a sentence. */
int kvt__s3_read_url(const char *text, const char *what, struct kvt__s3_url *out);

/* ----------------------------------------------------------------- fetch.c */

#define KVT__S3_FETCH_ROOM ((size_t)64 << 10)

/* A request to a service that provides keys.  Retried once after no response or a server error.
 * The caller sets the fields up to timeout_ms. */
struct kvt__s3_fetch {
    const struct kvt__s3_url *url;
    const char *method;
    const char *path;    /* NULL: the path of url */
    const struct kvt__s3_pair *headers;
    size_t n_headers;
    const char *body;    /* ended by NUL; NULL: no body */
    struct kvt__s3_keys *keys;       /* keys for the signature to STS; NULL: unsigned */
    const char *region;
    int64_t timeout_ms;  /* limit for each attempt */

    int http_status;     /* response; text has n bytes and a NUL */
    size_t n;
    char text[KVT__S3_FETCH_ROOM + 1];
};

/* Allocate a zeroed request in memory for secrets.  NULL: out of memory, with a sentence. */
struct kvt__s3_fetch *kvt__s3_fetch_new(void);
void kvt__s3_fetch_free(struct kvt__s3_fetch *fetch); /* wipe and free; NULL is allowed */

/* Send the request and wait.  0: a response with any status arrived; -errno with a sentence. */
int kvt__s3_fetch(struct kvt__http *http, struct kvt__s3_fetch *fetch);

/* Return -EACCES with a sentence about an error response.  The sentence has the response's code and
 * message, unless the response contains the start of `secret` (NULL: none), which the request
 * contained. */
int kvt__s3_fetch_fail(struct kvt__s3_fetch *fetch, const char *secret);

/* ------------------------------------------------------------------- sts.c */

struct kvt__s3_role {
    const char *arn;
    const char *session;     /* NULL: the default name */
    const char *external_id; /* NULL: none */
    const char *duration;    /* seconds, in digits; NULL: the service's default */
    const char *region;      /* region of the profile; NULL: none */
};

/* Request temporary keys of a role from STS, signed with keys. */
int kvt__s3_assume_role(const struct kvt__s3_chain_params *params,
                        const struct kvt__s3_role *role, struct kvt__s3_keys *keys,
                        struct kvt__s3_keys **out);

/* Request temporary keys of a role from STS, unsigned, with the token in a file. */
int kvt__s3_assume_role_by_token(const struct kvt__s3_chain_params *params,
                                 const struct kvt__s3_role *role, const char *token_file,
                                 const char *source, struct kvt__s3_keys **out);

/* ------------------------------------------------------------ service URLs */

/* Read the URL of the container's agent from the environment.  0; KVT__S3_NOT_SET; or an error of
 * kvt__s3_read_url(). */
int kvt__s3_container_url(const struct kvt__s3_chain_params *params,
                          struct kvt__s3_url *out);

/* Return the URL of the EC2 metadata service.  Errors of kvt__s3_read_url(). */
int kvt__s3_metadata_url(const struct kvt__s3_chain_params *params,
                         struct kvt__s3_url *out);

/* Return the URL of STS, and in region (64 bytes) the region of the signature.  0 or -errno with a
 * sentence. */
int kvt__s3_sts_url(const struct kvt__s3_chain_params *params, const char *profile_region,
                    char *region, struct kvt__s3_url *out);

#endif
