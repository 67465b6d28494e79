/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/http/script.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "http/private.h"

#define MAX_WAIT_S 300 /* real time */

atomic_llong clock_ahead_s;
atomic_bool clock_runs;

int
clock_gettime(clockid_t clock, struct timespec *t)
{
    int err = (int)syscall(SYS_clock_gettime, clock, t);

    if (clock != CLOCK_MONOTONIC)
        return err;
    if (!clock_runs)
        *t = (struct timespec){ .tv_sec = 1000 };
    t->tv_sec += clock_ahead_s;
    return err;
}

unsigned char
pattern(size_t at)
{
    return (unsigned char)(at * 7 + (at >> 8) * 13 + (at >> 16));
}

void
fill_pattern(unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = pattern(i);
}

void
assert_pattern(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != pattern(i))
            fail_msg("byte %zu of %zu differs", i, n);
}

/* --------------------------------------------------------------- the server */

static ssize_t
read_some(struct peer *p, void *to, size_t n)
{
    return p->ssl ? SSL_read(p->ssl, to, (int)n) : recv(p->fd, to, n, 0);
}

bool
peer_head(struct peer *p)
{
    char *stop;

    memmove(p->head, p->head + p->at, p->end - p->at);
    p->end -= p->at;
    p->at = 0;
    while (!(stop = memmem(p->head, p->end, "\r\n\r\n", 4))) {
        ssize_t n = read_some(p, p->head + p->end, sizeof p->head - p->end);

        if (n <= 0)
            return false;
        p->end += (size_t)n;
    }
    stop[3] = '\0';
    p->at = (size_t)(stop + 4 - p->head);
    return true;
}

size_t
peer_body(struct peer *p, size_t n)
{
    unsigned char buffer[65536];
    size_t got = 0;

    while (got < n) {
        size_t want = n - got < sizeof buffer ? n - got : sizeof buffer;
        ssize_t some;

        if (p->at < p->end) {
            some = (ssize_t)(p->end - p->at < want ? p->end - p->at : want);
            memcpy(buffer, p->head + p->at, (size_t)some);
            p->at += (size_t)some;
        } else if ((some = read_some(p, buffer, want)) <= 0) {
            break;
        }
        for (ssize_t i = 0; i < some; i++)
            if (buffer[i] != pattern(got + (size_t)i))
                return 0;
        got += (size_t)some;
    }
    return got;
}

void
peer_send_bytes(struct peer *p, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n) {
        ssize_t some = p->ssl ? SSL_write(p->ssl, at, n < 65536 ? (int)n : 65536)
                              : send(p->fd, at, n, MSG_NOSIGNAL);
        if (some <= 0)
            return;
        at += some;
        n -= (size_t)some;
    }
}

void
peer_send(struct peer *p, const char *text)
{
    peer_send_bytes(p, text, strlen(text));
}

void
peer_send_pattern(struct peer *p, size_t at, size_t n)
{
    unsigned char buffer[65536];

    while (n) {
        size_t some = n < sizeof buffer ? n : sizeof buffer;

        for (size_t i = 0; i < some; i++)
            buffer[i] = pattern(at + i);
        peer_send_bytes(p, buffer, some);
        at += some;
        n -= some;
    }
}

void
peer_gone(struct peer *p)
{
    char buffer[4096];

    while (recv(p->fd, buffer, sizeof buffer, 0) > 0)
        continue;
}

void
peer_reset(struct peer *p)
{
    struct linger linger = { 1, 0 };

    setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

void
peer_serve(struct peer *p, const char *answer)
{
    while (peer_head(p))
        peer_send(p, answer);
}

static void
play(struct peer *p)
{
    struct script *s = p->script;
    unsigned n = 0;

    while (s->plays[n + 1] && n < p->nth)
        n++;
    if (s->tls) {
        p->ssl = SSL_new(s->tls);
        SSL_set_fd(p->ssl, p->fd);
        if (SSL_accept(p->ssl) == 1)
            s->plays[n](p);
        /* Without this, SSL_free() would make the session invalid for resumption. */
        SSL_set_shutdown(p->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        return;
    }
    s->plays[n](p);
}

static void *
peer_main(void *arg)
{
    struct peer *p = arg;
    struct script *s = p->script;
    unsigned open = atomic_fetch_add(&s->n_open, 1) + 1, max = atomic_load(&s->max_open);
    sigset_t pipe; /* raised by OpenSSL's writes */

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    while (open > max && !atomic_compare_exchange_weak(&s->max_open, &max, open))
        continue;
    play(p);
    atomic_fetch_sub(&s->n_open, 1);
    pthread_mutex_lock(&s->lock);
    if (p->ssl)
        SSL_free(p->ssl);
    close(p->fd);
    p->fd = -1;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *
accept_main(void *arg)
{
    struct script *s = arg;
    int fd;

    while ((fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct peer *p = calloc(1, sizeof *p);
        unsigned n = atomic_load(&s->n_peers);

        if (!p || n == SCRIPT_MAX_PEERS)
            abort();
        *p = (struct peer){ .script = s, .nth = atomic_fetch_add(&s->n_accepted, 1),
                            .fd = fd };
        s->peers[n] = p;
        if (pthread_create(&s->threads[n], NULL, peer_main, p))
            abort();
        atomic_fetch_add(&s->n_peers, 1);
    }
    return NULL;
}

static int
bind_at(const char *address, uint16_t *port)
{
    struct kvt__http_address at;
    socklen_t size = sizeof at.to;

    assert_true(kvt__http_address_from_text(address, *port, &at));
    int fd = socket(at.to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at.to.sa.sa_family == AF_INET6) {
        if (fd < 0 || bind(fd, &at.to.sa, sizeof at.to.in6))
            skip();
    } else {
        assert_true(fd >= 0);
        assert_int_equal(bind(fd, &at.to.sa, sizeof at.to.in4), 0);
    }
    assert_int_equal(getsockname(fd, &at.to.sa, &size), 0);
    *port = ntohs(at.to.sa.sa_family == AF_INET6 ? at.to.in6.sin6_port
                                                 : at.to.in4.sin_port);
    return fd;
}

static int
listen_at(const char *address, uint16_t *port, int backlog)
{
    int fd = bind_at(address, port);

    assert_int_equal(listen(fd, backlog), 0);
    return fd;
}

uint16_t
refusing_port(const char *address)
{
    uint16_t port = 0;

    bind_at(address, &port); /* without listen() */
    return port;
}

static void
start(struct script *s, void (*const *plays)(struct peer *), SSL_CTX *tls,
      const char *address, uint16_t port)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; plays[i]; i++)
        s->plays[i] = plays[i];
    s->tls = tls;
    pthread_mutex_init(&s->lock, NULL);
    sem_init(&s->go, 0, 0);
    sem_init(&s->came, 0, 0);
    s->port = port;
    s->listener = listen_at(address, &s->port, 512);
    assert_int_equal(pthread_create(&s->thread, NULL, accept_main, s), 0);
}

void
script_start(struct script *s, void (*const *plays)(struct peer *), SSL_CTX *tls)
{
    start(s, plays, tls, "127.0.0.1", 0);
}

void
script_start_at(struct script *s, void (*const *plays)(struct peer *), const char *address,
                uint16_t port)
{
    start(s, plays, NULL, address, port);
}

void
script_stop(struct script *s)
{
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
    for (unsigned i = 0; i < s->n_peers; i++) {
        pthread_mutex_lock(&s->lock);
        if (s->peers[i]->fd >= 0)
            shutdown(s->peers[i]->fd, SHUT_RDWR);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->threads[i], NULL);
        free(s->peers[i]);
    }
    pthread_mutex_destroy(&s->lock);
    sem_destroy(&s->go);
    sem_destroy(&s->came);
}

void
full_start(struct full *full, const char *address, uint16_t port)
{
    struct sockaddr_in in = { .sin_family = AF_INET,
                              .sin_addr.s_addr = inet_addr(address) };
    struct pollfd fds[16];

    full->port = port;
    full->listener = listen_at(address, &full->port, 0);
    in.sin_port = htons(full->port);
    for (int i = 0; i < 16; i++) {
        full->clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(full->clients[i], (struct sockaddr *)&in, sizeof in))
            assert_int_equal(errno, EINPROGRESS);
        fds[i] = (struct pollfd){ .fd = full->clients[i], .events = POLLOUT };
    }
    assert_true(poll(fds, 16, -1) > 0); /* the first connection fills the queue */
}

void
full_stop(struct full *full)
{
    for (int i = 0; i < 16; i++)
        close(full->clients[i]);
    close(full->listener);
}

/* ------------------------------------------------------------------ requests */

static int
write_head(struct kvt__http_request *req, char *out, size_t room)
{
    struct ask *ask = req->user;
    int n = snprintf(out, room, "%s %s HTTP/1.1\r\nHost: test\r\n%s", ask->method,
                     ask->path, ask->more);

    ask->n_heads++;
    if (req->body)
        n += snprintf(out + n, room - (size_t)n, "Content-Length: %zu\r\n",
                      req->body_bytes);
    return n + snprintf(out + n, room - (size_t)n, "\r\n");
}

static int
answer(struct kvt__http_request *req, const struct kvt__http_head *head)
{
    struct ask *ask = req->user;

    ask->n_answers++;
    ask->length = head->content_length;
    return ask->refuse ? kvt__fail(-ask->refuse, "the test refuses it.") : 0;
}

static void
received(struct kvt__http_request *req, size_t at, size_t n)
{
    struct ask *ask = req->user;

    if (at == ask->next_at && n)
        ask->next_at += n;
}

static void
done(struct kvt__http_request *req)
{
    struct ask *ask = req->user;

    ask->n_done++;
    sem_post(&ask->done);
}

void
ask_init(struct ask *ask, struct kvt__http_origin *origin, const char *method,
         const char *path, void *into, size_t room)
{
    memset(ask, 0, sizeof *ask);
    ask->method = method;
    ask->path = path;
    ask->more = "";
    ask->length = -2;
    sem_init(&ask->done, 0, 0);
    ask->req = (struct kvt__http_request){
        .origin = origin, .prio = KVT__PRIO_LOAD, .write_head = write_head,
        .on_head = answer, .on_body = received, .on_done = done, .user = ask,
        .into = into, .room = room, .is_head = !strcmp(method, "HEAD"),
        .deadline_ns = kvt__now_ns() + 60 * KVT__NS_PER_S };
}

int
ask_wait(struct ask *ask)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MAX_WAIT_S;
    while (sem_timedwait(&ask->done, &until))
        if (errno != EINTR)
            fail_msg("%s %s did not end within %d s", ask->method, ask->path, MAX_WAIT_S);
    sem_destroy(&ask->done);
    assert_int_equal(ask->n_done, 1);
    if (!ask->req.status) {
        assert_int_equal(ask->n_answers, 1);
        assert_int_equal(ask->next_at, ask->req.received_bytes);
        assert_string_equal(ask->req.why, "");
    } else {
        assert_true(strlen(ask->req.why) > 10);
    }
    return ask->req.status;
}

int
ask_run(struct kvt__http *http, struct ask *ask)
{
    kvt__http_submit(http, &ask->req);
    return ask_wait(ask);
}

/* A request with a past deadline ends when the thread runs its timers, before the thread starts
 * requests from its queues.  The second request ends a turn later. */
void
settle(struct kvt__http_origin *origin)
{
    struct ask ask;

    assert_int_equal(origin->http->n_threads, 1);
    for (int i = 0; i < 2; i++) {
        ask_init(&ask, origin, "GET", "/x", NULL, 0);
        ask.req.deadline_ns = 1;
        assert_int_equal(ask_run(origin->http, &ask), -ETIMEDOUT);
    }
}

void
put_forward(struct kvt__http_origin *origin, long long seconds)
{
    settle(origin);
    clock_ahead_s += seconds;
    settle(origin);
}

struct kvt__http *
open_client(unsigned n_threads, unsigned max_requests)
{
    struct kvt__http_params params = { .n_threads = n_threads,
                                       .max_requests = max_requests };
    struct kvt__http *http;

    assert_int_equal(kvt__http_open(&params, &http), 0);
    return http;
}

struct kvt__http_origin *
origin_at(struct kvt__http *http, const char *host, uint16_t port, bool tls)
{
    struct kvt__http_target target = { .host = host, .port = port, .tls = tls };
    struct kvt__http_origin *origin;

    assert_int_equal(kvt__http_origin(http, &target, &origin), 0);
    return origin;
}

struct kvt__http_origin *
origin_of(struct kvt__http *http, const struct script *script)
{
    return origin_at(http, "127.0.0.1", script->port, script->tls != NULL);
}
