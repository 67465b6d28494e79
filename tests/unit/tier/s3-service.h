/* SPDX-License-Identifier: Apache-2.0
 *
 * A service that provides keys, on a thread of the test: each connection serves one request,
 * answered by a function of the test.  Also the chain that sends the requests. */
#ifndef KVT_S3_SERVICE_H
#define KVT_S3_SERVICE_H

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "tier/s3/credentials/private.h"

/* The monotonic clock of this program replaces libc's and is slow: requests have timeouts of one to
 * five seconds, and the threads of a service on a busy machine may need more time.  A test of a
 * service that hangs sets clock_is_right. */
#define CLOCK_IS_SLOWER 20

static atomic_bool clock_is_right;

int
clock_gettime(clockid_t clock, struct timespec *t)
{
    int err = (int)syscall(SYS_clock_gettime, clock, t);

    if (clock == CLOCK_MONOTONIC && !clock_is_right) {
        int64_t ns = (t->tv_sec * INT64_C(1000000000) + t->tv_nsec) / CLOCK_IS_SLOWER;

        t->tv_sec = ns / 1000000000;
        t->tv_nsec = ns % 1000000000;
    }
    return err;
}

/* Part of every secret in these tests; no message may contain this text. */
#define SECRET "s3cr3t"

/* A time in the far future, as text and as number. */
#define LATER "2099-01-02T03:04:05Z"
#define LATER_S INT64_C(4071006245)

struct service;

/* Answer a request (the whole text): write the body to out and return the status. */
typedef int service_fn(struct service *service, const char *request, char *out,
                       size_t room);

struct service {
    service_fn *answer;
    int fd;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    char log[32768]; /* all requests, concatenated */
    unsigned n;
};

/* Read a request up to the end of the body.  Return false if no complete request arrives. */
static inline bool
service_read(int fd, char *request, size_t room)
{
    size_t n = 0;

    while (n < room - 1) {
        ssize_t got = read(fd, request + n, room - 1 - n);

        if (got <= 0)
            return false;
        n += (size_t)got;
        request[n] = '\0';
        const char *body = strstr(request, "\r\n\r\n");
        const char *length = strcasestr(request, "\r\ncontent-length:");
        size_t more = length ? strtoul(length + 17, NULL, 10) : 0;
        if (body && n >= (size_t)(body + 4 - request) + more)
            return true;
    }
    return false;
}

static inline void
service_serve(struct service *s, int fd)
{
    char request[16384], body[4096] = "", head[256];

    if (!service_read(fd, request, sizeof request))
        return;
    pthread_mutex_lock(&s->lock);
    s->n++;
    strncat(s->log, request, sizeof s->log - strlen(s->log) - 1);
    strncat(s->log, "\n\n", sizeof s->log - strlen(s->log) - 1);
    pthread_mutex_unlock(&s->lock);
    int status = s->answer(s, request, body, sizeof body);
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d Whatever\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n", status, strlen(body));
    if (send(fd, head, (size_t)n, MSG_NOSIGNAL) == n)
        send(fd, body, strlen(body), MSG_NOSIGNAL);
}

static inline void *
service_main(void *arg)
{
    struct service *s = arg;
    int fd;

    while ((fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        service_serve(s, fd);
        close(fd);
    }
    return NULL;
}

static inline void
service_listen(struct service *s)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof address;

    *s = (struct service){ .lock = PTHREAD_MUTEX_INITIALIZER };
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&address, n), 0);
    assert_int_equal(listen(s->fd, 8), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&address, &n), 0);
    s->port = ntohs(address.sin_port);
}

static inline void
service_start(struct service *s, service_fn *answer)
{
    service_listen(s);
    s->answer = answer;
    assert_int_equal(pthread_create(&s->thread, NULL, service_main, s), 0);
}

static inline void
service_stop(struct service *s)
{
    shutdown(s->fd, SHUT_RDWR);
    if (s->answer)
        pthread_join(s->thread, NULL);
    close(s->fd);
}

/* Return true if a request so far contained this text. */
static inline bool
service_saw(struct service *s, const char *text)
{
    pthread_mutex_lock(&s->lock);
    bool saw = strstr(s->log, text) != NULL;
    pthread_mutex_unlock(&s->lock);
    return saw;
}

static inline unsigned
service_count(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    unsigned n = s->n;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* An STS that returns the keys AK1, AK2 ... */
static inline int
sts(struct service *s, const char *request, char *out, size_t room)
{
    const char *body = strstr(request, "\r\n\r\n") + 4;
    const char *action = strncmp(body, "Action=AssumeRole&", 18)
                             ? "AssumeRoleWithWebIdentity" : "AssumeRole";

    if (strncmp(request, "POST / HTTP/1.1\r\n", 17) || !strstr(body, action)) {
        snprintf(out, room, "<ErrorResponse><Error><Code>InvalidAction</Code>"
                 "<Message>what</Message></Error></ErrorResponse>");
        return 400;
    }
    unsigned n = service_count(s);
    snprintf(out, room, "<%sResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
             "<%sResult><Credentials><AccessKeyId>AK%u</AccessKeyId>"
             "<SecretAccessKey>" SECRET "%u</SecretAccessKey>"
             "<SessionToken>" SECRET "t%u</SessionToken><Expiration>" LATER "</Expiration>"
             "</Credentials></%sResult></%sResponse>", action, action, n, n, n, action,
             action);
    return 200;
}

/* ------------------------------------------------------------------- sources */

#define MAX_VARIABLES 16

/* An empty home directory, an HTTP client, and the parameters of the sources under test. */
struct asking {
    struct temp_dir dir;
    char variables[MAX_VARIABLES][512];
    const char *environment[MAX_VARIABLES + 1];
    size_t n_variables;
    struct kvt__s3_chain_params params;
    struct service service;
};

static inline void
set(struct asking *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static inline void
set(struct asking *a, const char *fmt, ...)
{
    va_list ap;
    char *text = a->variables[a->n_variables];

    assert_true(a->n_variables < MAX_VARIABLES);
    va_start(ap, fmt);
    vsnprintf(text, sizeof a->variables[0], fmt, ap);
    va_end(ap);
    a->environment[a->n_variables++] = text;
}

/* Keep only HOME and PATH. */
static inline void
unset_all(struct asking *a)
{
    memset(a->environment, 0, sizeof a->environment);
    a->n_variables = 0;
    set(a, "HOME=%s", a->dir.path);
    set(a, "PATH=/usr/bin:/bin");
}

static inline int
asking_setup(void **state)
{
    static struct asking a;
    char path[512];

    a = (struct asking){ 0 };
    temp_dir_make(&a.dir);
    snprintf(path, sizeof path, "%s/.aws", a.dir.path);
    assert_int_equal(mkdir(path, 0700), 0);
    a.params.environment = a.environment;
    unset_all(&a);
    assert_int_equal(kvt__s3_open_key_client(a.environment, 0, &a.params.http), 0);
    *state = &a;
    return 0;
}

static inline int
asking_teardown(void **state)
{
    struct asking *a = *state;

    kvt__http_close(a->params.http);
    temp_dir_remove(&a->dir);
    return 0;
}

static inline void
put_file(const struct asking *a, const char *name, const char *text)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", a->dir.path, name);
    write_file(path, text, strlen(text));
}

/* Check that the last sentence contains text, and no secret. */
static inline void
expect_why(const char *text)
{
    if (!strstr(kvt__why(), text))
        fail_msg("\"%s\" is not in: %s", text, kvt__why());
    if (strstr(kvt__why(), SECRET) || strstr(kvt__why(), "s%2"))
        fail_msg("a secret is in: %s", kvt__why());
}

static inline void
expect_failure(const struct asking *a, kvt__s3_source_fn *ask, const char *why)
{
    struct kvt__s3_keys *keys = NULL;

    assert_true(ask(&a->params, &keys) < 0);
    expect_why(why);
}

static inline void
expect_not_set(const struct asking *a, kvt__s3_source_fn *ask)
{
    struct kvt__s3_keys *keys = NULL;

    assert_int_equal(ask(&a->params, &keys), KVT__S3_NOT_SET);
}

/* Compare and release the keys. */
static inline void
expect_keys(struct kvt__s3_keys *keys, const char *access, const char *secret,
            const char *token, int64_t expires_s)
{
    assert_string_equal(keys->access, access);
    assert_string_equal(keys->secret, secret);
    if (token)
        assert_string_equal(keys->token, token);
    else
        assert_null(keys->token);
    assert_int_equal(keys->expires_s, expires_s);
    kvt__s3_keys_unref(keys);
}

static inline void
expect_answer(const struct asking *a, kvt__s3_source_fn *ask, const char *access,
              const char *secret, const char *token, int64_t expires_s)
{
    struct kvt__s3_keys *keys;

    if (ask(&a->params, &keys))
        fail_msg("%s", kvt__why());
    expect_keys(keys, access, secret, token, expires_s);
}

#define ASKING(fn) cmocka_unit_test_setup_teardown(fn, asking_setup, asking_teardown)

#endif
