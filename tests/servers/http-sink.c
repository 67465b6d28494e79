/* SPDX-License-Identifier: Apache-2.0
 *
 * A fast server for benchmarks: it implements as much of S3 as a client needs, checks nothing,
 * discards PUT bodies and answers every GET with one object in memory.  Names that end with ".miss"
 * do not exist.  One thread, one epoll; listens on 127.0.0.1 only.  A signal ends the server.  If
 * standard input is a pipe, the end of the pipe ends the server too, and the server prints the
 * number of connections. */
#include "http-sink.h"

#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static int epoll, timer;
static unsigned long n_connections;
/* Sorted by due_ns, because all delays are equal. */
static struct conn *first_due, **last_due = &first_due;

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
set_timer(void)
{
    struct itimerspec at = {0};

    if (!first_due)
        return;
    at.it_value.tv_sec = first_due->due_ns / 1000000000;
    at.it_value.tv_nsec = first_due->due_ns % 1000000000;
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void
wait_until_due(struct conn *c)
{
    c->due_ns = now_ns() + sink.delay_ns;
    c->next_due = NULL;
    *last_due = c;
    last_due = &c->next_due;
    if (first_due == c)
        set_timer();
}

/* ------------------------------------------------------------------- connections */

static int
read_head(struct conn *c)
{
    for (;;) {
        char *end = memmem(c->head, c->head_end, "\r\n\r\n", 4);
        ssize_t got;

        if (end) {
            size_t used = (size_t)(end + 4 - c->head), more = c->head_end - used;
            char first = c->head[used];

            c->head[used] = '\0'; /* head has one byte more than the maximum received */
            if (!sink_prepare(c))
                return WIRE_GONE;
            if (c->head[0] == 'H' && sink.delay_ns > 0)
                wait_until_due(c);
            c->head[used] = first;
            if (more > c->discard)
                more = c->discard;
            c->discard -= more;
            c->head_end -= used + more;
            memmove(c->head, c->head + used + more, c->head_end);
            return 0;
        }
        if (c->head_end == MAX_HEAD - 1)
            return WIRE_GONE;
        got = wire_read(&c->wire, c->head + c->head_end, MAX_HEAD - 1 - c->head_end);
        if (got < 0)
            return (int)got;
        c->head_end += (size_t)got;
    }
}

static int
write_answer(struct conn *c)
{
    while (c->reply_start < c->reply_end) {
        ssize_t put = wire_write(&c->wire, c->reply + c->reply_start,
                                 c->reply_end - c->reply_start);

        if (put < 0)
            return (int)put;
        c->reply_start += (size_t)put;
    }
    while (c->body_left > 0) {
        size_t at = c->body_at % sink.block_bytes, n = sink.block_bytes - at;
        ssize_t put = wire_write(&c->wire, sink.block + at,
                                 n < c->body_left ? n : c->body_left);

        if (put < 0)
            return (int)put;
        c->body_at += (size_t)put;
        c->body_left -= (size_t)put;
    }
    return wire_flush(&c->wire);
}

/* Advance the connection until a call would block.  Return WIRE_AGAIN, with writing set, or
 * WIRE_GONE. */
static int
advance(struct conn *c)
{
    for (;;) {
        int failed;

        c->writing = false;
        while (c->discard > 0) {
            ssize_t got = wire_discard(&c->wire, c->discard);

            if (got < 0)
                return (int)got;
            c->discard -= (size_t)got;
        }
        if (c->due_ns > 0)
            return WIRE_AGAIN;
        c->writing = true;
        failed = write_answer(c);
        if (failed)
            return failed;
        if (c->close_after)
            return WIRE_GONE;
        c->writing = false;
        c->reply_end = c->reply_start = 0;
        failed = read_head(c);
        if (failed)
            return failed;
    }
}

static void
run(struct conn *c)
{
    bool wrote = c->writing;
    struct epoll_event event = {.data.ptr = c};

    if (advance(c) == WIRE_GONE && c->due_ns == 0) {
        wire_close(&c->wire);
        free(c);
        return;
    }
    if (c->writing == wrote)
        return;
    event.events = c->writing ? EPOLLOUT : EPOLLIN;
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->wire.fd, &event);
}

static void
run_due(void)
{
    uint64_t times;
    ssize_t got = read(timer, &times, sizeof(times));

    (void)got;
    while (first_due && first_due->due_ns <= now_ns()) {
        struct conn *c = first_due;

        first_due = c->next_due;
        if (!first_due)
            last_due = &first_due;
        c->due_ns = 0;
        run(c);
    }
    set_timer();
}

static void
take_connection(int listener, SSL_CTX *context)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct conn *c = fd >= 0 ? calloc(1, sizeof(*c)) : NULL;

    if (!c)
        return;
    if (!wire_open(&c->wire, fd, context)) {
        wire_close(&c->wire);
        free(c);
        return;
    }
    event.data.ptr = c;
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    n_connections++;
}

/* ------------------------------------------------------------------------- start */

static int
listen_on(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
        bind(fd, (struct sockaddr *)&at, n) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&at, &n))
        die("listen on 127.0.0.1");
    *port = ntohs(at.sin_port);
    return fd;
}

static void
pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set))
        die("--cpu");
}

static void
watch(int fd, uint32_t events, const void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = (void *)(uintptr_t)what};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        die("epoll_ctl");
}

static void
serve(const int *listeners, SSL_CTX *const *contexts, int n_listeners)
{
    struct epoll_event events[64];
    struct stat in;

    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll < 0 || timer < 0)
        die("epoll");
    watch(timer, EPOLLIN, &timer);
    for (int i = 0; i < n_listeners; i++)
        watch(listeners[i], EPOLLIN, &listeners[i]);
    if (!fstat(0, &in) && (S_ISFIFO(in.st_mode) || S_ISSOCK(in.st_mode)))
        watch(0, EPOLLIN, NULL);
    for (;;) {
        int n = epoll_wait(epoll, events, 64, -1);
        bool due = false, end = false;

        for (int i = 0; i < n; i++) {
            void *what = events[i].data.ptr;
            char byte;

            if (!what)
                end = read(0, &byte, 1) <= 0;
            else if (what == &timer)
                due = true;
            else if (what == &listeners[0])
                take_connection(listeners[0], contexts[0]);
            else if (what == &listeners[1])
                take_connection(listeners[1], contexts[1]);
            else
                run(what);
        }
        if (due) /* last, because connections may be freed */
            run_due();
        if (end)
            return;
    }
}

static const char usage[] =
    "usage: http-sink [OPTION ...]\n"
    "  --port N             (0: a free one, as for --tls-port)\n"
    "  --tls-port N         serve TLS too; needs --cert and --key, PEM files\n"
    "  --cert FILE --key FILE\n"
    "  --size BYTES         of the object (33554432)\n"
    "  --body FILE          the object, in place of --size\n"
    "  --header 'NAME: X'   a field of its answers, such as x-amz-meta-...; repeatable\n"
    "  --delay-ms N         before each answer to HEAD\n"
    "  --cpu N              run on this one\n";

struct options {
    const char *cert, *key, *file;
    size_t bytes;
    int port, tls_port, cpu; /* -1: unset */
};

static bool
parse(int argc, char **argv, struct options *out)
{
    static const struct option options[] = {
        {"port", 1, NULL, 'p'},   {"tls-port", 1, NULL, 't'}, {"cert", 1, NULL, 'c'},
        {"key", 1, NULL, 'k'},    {"size", 1, NULL, 's'},     {"body", 1, NULL, 'b'},
        {"header", 1, NULL, 'h'}, {"delay-ms", 1, NULL, 'd'}, {"cpu", 1, NULL, 'C'},
        {NULL, 0, NULL, 0},
    };
    int o;

    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (o) {
        case 'p': out->port = atoi(optarg); break;
        case 't': out->tls_port = atoi(optarg); break;
        case 'c': out->cert = optarg; break;
        case 'k': out->key = optarg; break;
        case 's': out->bytes = strtoull(optarg, NULL, 10); break;
        case 'b': out->file = optarg; break;
        case 'h': sink_add_field(optarg); break;
        case 'd': sink.delay_ns = (int64_t)(strtod(optarg, NULL) * 1e6); break;
        case 'C': out->cpu = atoi(optarg); break;
        default: return false;
        }
    return optind == argc && out->bytes > 0 &&
           (out->tls_port < 0 || (out->cert && out->key));
}

int
main(int argc, char **argv)
{
    struct options o = {.bytes = 32 << 20, .tls_port = -1, .cpu = -1};
    SSL_CTX *contexts[2] = {NULL, NULL};
    int listeners[2], n = 1;

    if (!parse(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (o.cpu >= 0)
        pin(o.cpu);
    sink_make_object(o.file, o.bytes);
    listeners[0] = listen_on(&o.port);
    if (o.tls_port >= 0) {
        contexts[1] = wire_context(o.cert, o.key);
        if (!contexts[1])
            return 1;
        listeners[n++] = listen_on(&o.tls_port);
    }
    printf("{\"port\": %d, \"tls_port\": %d, \"size\": %zu}\n", o.port,
           n == 2 ? o.tls_port : 0, sink.object_bytes);
    fflush(stdout);
    serve(listeners, contexts, n);
    printf("{\"connections\": %lu}\n", n_connections);
    SSL_CTX_free(contexts[1]);
    return 0;
}
