/* SPDX-License-Identifier: Apache-2.0
 *
 * s3.py for tests in C: start the server, configure faults (s3_faults.py lists the words), and read
 * the requests that the server has received.  The server ends with the test, also after a crash of
 * the test.  One thread. */
#ifndef KVT_S3_SERVER_H
#define KVT_S3_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "index-dir.h"
#include "kvt-test.h"

#include "base/private-dir.h"

#ifndef KVT_TEST_SERVERS
#define KVT_TEST_SERVERS "tests/servers" /* the build sets the absolute path */
#endif

#define S3_BUCKET "test"
#define S3_EXPRESS_BUCKET "kv--use1-az4--x-s3"
#define S3_ACCESS "AKTEST"
#define S3_SECRET "SKTEST"

/* Settings of timeouts that no request on a busy machine reaches. */
#define S3_PATIENT "blocking_timeout_secs=1000", "s3_stall_timeout_ms=300000", \
                   "s3_connect_timeout_ms=300000"

struct s3_server {
    pid_t pid;
    int in; /* the server ends when this descriptor is closed */
    uint16_t port, tls_port, control_port;
    char ca[PATH_MAX];
    char prefix[64]; /* prefix of the current test's objects */
    unsigned n_prefixes;
};

/* ------------------------------------------------------------------ start and stop */

static inline uint16_t
s3_port_of(const json_t *facts, const char *name)
{
    return (uint16_t)json_integer_value(json_object_get(facts, name));
}

/* Start the server.  arguments: of the server, ended by NULL, at most 16; or NULL.  Return false if
 * python3 is missing. */
static inline bool
s3_server_start(struct s3_server *s, const char *const *arguments)
{
    static char script[] = KVT_TEST_SERVERS "/s3.py";
    char *argv[20] = { "python3", "-B", script };
    posix_spawn_file_actions_t actions;
    int in[2], out[2], n = 3;
    char line[4096];

    *s = (struct s3_server){ 0 };
    while (arguments && *arguments && n < 19)
        argv[n++] = (char *)*arguments++;
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    int err = posix_spawnp(&s->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    s->in = in[1];
    if (err) {
        close(s->in);
        close(out[0]);
        return false;
    }
    FILE *said = fdopen(out[0], "r");
    bool told = said && fgets(line, sizeof line, said);
    if (said)
        fclose(said);
    json_t *facts = told ? json_loads(line, 0, NULL) : NULL;
    if (!facts)
        fail_msg("the S3 server did not start");
    s->port = s3_port_of(facts, "port");
    s->tls_port = s3_port_of(facts, "tls_port");
    s->control_port = s3_port_of(facts, "control_port");
    const char *ca = json_string_value(json_object_get(facts, "ca"));
    snprintf(s->ca, sizeof s->ca, "%s", ca ? ca : "");
    json_decref(facts);
    return true;
}

static inline void
s3_server_stop(struct s3_server *s)
{
    if (!s->pid)
        return;
    close(s->in);
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    s->pid = 0;
}

/* --------------------------------------------------------------------- control port */

/* Send a request and receive the whole response.  Return the response's body, on the heap. */
static inline char *
s3_exchange(const struct s3_server *s, const char *method, const char *path,
            const char *body)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(s->control_port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char *text = NULL, *request, *start = NULL;
    size_t n = 0;

    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int length = asprintf(&request, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                          "Content-Length: %zu\r\n\r\n%s", method, path, strlen(body),
                          body);
    assert_true(length > 0 && send(fd, request, (size_t)length, MSG_NOSIGNAL) == length);
    free(request);
    for (;;) {
        text = realloc(text, n + 65537);
        assert_non_null(text);
        ssize_t got = read(fd, text + n, 65536);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    text[n] = '\0';
    if (strncmp(text, "HTTP/1.1 200", 12) || !(start = strstr(text, "\r\n\r\n")))
        fail_msg("%s %s: %s", method, path, text);
    char *found = strdup(start + 4);
    free(text);
    assert_non_null(found);
    return found;
}

/* Return the response's JSON; the caller releases the JSON with json_decref(). */
static inline json_t *
s3_request_json(const struct s3_server *s, const char *method, const char *path, const char *body)
{
    char *text = s3_exchange(s, method, path, body);
    json_t *json = json_loads(text, 0, NULL);

    assert_non_null(json);
    free(text);
    return json;
}

static inline void
s3_request(const struct s3_server *s, const char *method, const char *path, const char *body)
{
    free(s3_exchange(s, method, path, body));
}

/* Set the server's faults: a fault of s3_faults.py, or a list of faults. */
static inline void
s3_fault(const struct s3_server *s, const char *faults)
{
    s3_request(s, "POST", "/faults", faults);
}

static inline void
s3_no_faults(const struct s3_server *s)
{
    s3_request(s, "DELETE", "/faults", "");
}

static inline void
s3_config(const struct s3_server *s, const char *words)
{
    s3_request(s, "POST", "/config", words);
}

/* ------------------------------------------------------------- received requests */

static inline void
s3_forget(const struct s3_server *s)
{
    s3_request(s, "DELETE", "/stats", "");
}

/* Return /stats after all requests have a status: the server may note the status after the
 * client has the response.  At most a minute. */
static inline json_t *
s3_stats(const struct s3_server *s)
{
    json_t *stats = s3_request_json(s, "GET", "/stats", "");

    for (int i = 0; i < 30000 && json_object_get(json_object_get(stats, "statuses"), "0");
         i++) {
        json_decref(stats);
        usleep(2000);
        stats = s3_request_json(s, "GET", "/stats", "");
    }
    return stats;
}

/* Return a number of /stats: group and name, for example statuses 503, operations GetObject. */
static inline unsigned
s3_count(const struct s3_server *s, const char *group, const char *name)
{
    json_t *stats = strcmp(group, "statuses") ? s3_request_json(s, "GET", "/stats", "")
                                              : s3_stats(s);
    json_t *of = json_object_get(stats, group);
    unsigned n = (unsigned)json_integer_value(name ? json_object_get(of, name) : of);

    json_decref(stats);
    return n;
}

static inline unsigned
s3_n_requests(const struct s3_server *s)
{
    json_t *stats = s3_request_json(s, "GET", "/stats", "");
    unsigned n = (unsigned)json_array_size(json_object_get(stats, "requests"));

    json_decref(stats);
    return n;
}

/* Return the value of a header of the last request with this operation; "": no such header. */
static inline const char *
s3_header(const struct s3_server *s, const char *operation, const char *name)
{
    static char value[1024];
    json_t *stats = s3_request_json(s, "GET", "/stats", ""), *request;
    size_t i;

    value[0] = '\0';
    json_array_foreach(json_object_get(stats, "requests"), i, request) {
        const char *is = json_string_value(json_object_get(request, "operation"));
        json_t *headers = json_object_get(request, "headers");
        const char *text = json_string_value(json_object_get(headers, name));

        if (is && !strcmp(is, operation))
            snprintf(value, sizeof value, "%s", text ? text : "");
    }
    json_decref(stats);
    return value;
}

/* Return the number of distinct objects in requests with this operation: a late read may be sent
 * twice. */
static inline unsigned
s3_n_objects(const struct s3_server *s, const char *operation)
{
    json_t *stats = s3_request_json(s, "GET", "/stats", ""), *request, *keys = json_object();
    size_t i;

    json_array_foreach(json_object_get(stats, "requests"), i, request)
        if (!strcmp(json_string_value(json_object_get(request, "operation")), operation))
            json_object_set(keys, json_string_value(json_object_get(request, "key")),
                            json_object_get(request, "key"));
    unsigned n = (unsigned)json_object_size(keys);
    json_decref(keys);
    json_decref(stats);
    return n;
}

/* Write the key of request number nth with this operation, from 0. */
static inline void
s3_key(const struct s3_server *s, const char *operation, unsigned nth, char *key,
       size_t room)
{
    json_t *stats = s3_request_json(s, "GET", "/stats", ""), *request;
    size_t i;

    key[0] = '\0';
    json_array_foreach(json_object_get(stats, "requests"), i, request)
        if (!strcmp(json_string_value(json_object_get(request, "operation")), operation) &&
            !nth--)
            snprintf(key, room, "%s", json_string_value(json_object_get(request, "key")));
    json_decref(stats);
    assert_string_not_equal(key, "");
}

/* Return true if the last request with this operation signed the header. */
static inline bool
s3_signed(const struct s3_server *s, const char *operation, const char *name)
{
    json_t *stats = s3_request_json(s, "GET", "/stats", ""), *request, *header;
    bool found = false;
    size_t i, j;

    json_array_foreach(json_object_get(stats, "requests"), i, request) {
        const char *is = json_string_value(json_object_get(request, "operation"));

        if (!is || strcmp(is, operation))
            continue;
        found = false;
        json_array_foreach(json_object_get(json_object_get(request, "signed"), "headers"),
                           j, header)
            found = found || !strcmp(json_string_value(header), name);
    }
    json_decref(stats);
    return found;
}

/* ------------------------------------------------------------------------ per test */

/* Reset the server to the initial state, and choose an unused prefix for objects. */
static inline void
s3_server_reset(struct s3_server *s)
{
    s3_no_faults(s);
    s3_config(s, "{\"clock_offset_s\": 0, \"clock_stands\": false, \"delay_ms\": 0, "
                 "\"chunked\": false, \"idle_ms\": 0, \"region\": \"us-east-1\", "
                 "\"session_seconds\": 300}");
    s3_forget(s);
    snprintf(s->prefix, sizeof s->prefix, "t%ld-%u", (long)getpid(), ++s->n_prefixes);
}

/* Remove the index directory of a bucket, which a tier leaves behind.  A host has an index for each
 * spelling of the server's name. */
static inline void
s3_remove_index_of(const struct s3_server *s, const char *host, uint16_t port,
                   const char *bucket)
{
    char thing[256];
    int n = snprintf(thing, sizeof thing, "s3://%s:%u/%s/%s/", host, port, bucket, s->prefix);
    int fd = kvt__private_dir_open_for(KVT__LOCAL_DIR, thing, (size_t)n);

    assert_true(fd >= 0);
    index_dir_remove(fd);
    close(fd);
}

#endif
