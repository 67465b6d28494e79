/* SPDX-License-Identifier: Apache-2.0
 *
 * A link of limited rate: a TCP relay on 127.0.0.1 that forwards at most RATE bytes a second in
 * each direction, all connections together.
 *
 *     kvtier-bench-link PORT RATE
 *
 * The relay connects to PORT of 127.0.0.1 for each connection that the relay accepts.  The first
 * line of output is {"port": N}, the relay's own port.  For each byte on standard input the relay
 * prints a line with the bytes forwarded so far, the times (CLOCK_MONOTONIC) of the first and the
 * last byte to a client since the last line, and the CPU time of the relay.  The end of standard
 * input ends the relay.
 *
 * A token bucket limits each direction.  splice() moves the bytes, so that the relay copies
 * nothing.  Connections with bytes take turns of at most TURN_BYTES.  The link adds no latency. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNS 1000
#define TURN_BYTES 65536
#define PIPE_BYTES (256 << 10)
#define QUANTA_A_SECOND 1000
/* The relay gets a processor late on a busy machine.  A direction that waits for tokens earns
 * tokens for at most this number of quanta. */
#define MAX_LATE_QUANTA 20

enum { UP, DOWN }; /* from client to server, from server to client */

/* The token bucket of a direction.  The direction closes at 0 tokens and opens at a quantum. */
struct bucket {
    int64_t tokens; /* bytes that may pass */
    int64_t filled_ns;
    bool is_closed;
    uint64_t n_forwarded;
    int64_t first_ns, last_ns; /* of the bytes since the last report; first_ns 0: no byte */
};

/* A direction of a connection. */
struct flow {
    int from, to;
    int pipe[2];
    size_t n_held; /* bytes in the pipe */
    bool has_ended;
};

struct conn {
    struct flow flows[2]; /* UP, DOWN */
};

static struct bucket buckets[2];
static struct conn *conns[MAX_CONNS];
static int n_conns;
static int64_t rate, quantum;
static uint16_t target_port;

static void
die(const char *call)
{
    perror(call);
    exit(1);
}

static int64_t
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ----------------------------------------------------------------------- tokens */

/* A closed bucket keeps the tokens of late quanta until they are spent.  An idle link earns at most
 * one quantum: its bucket is open, and no event came for the time of a quantum. */
static void
refill(struct bucket *b, int64_t now)
{
    int64_t ns = now - b->filled_ns;
    int64_t earned = (int64_t)((double)ns * (double)rate / 1e9);
    bool is_idle = !b->is_closed && ns > 1000000000 / QUANTA_A_SECOND;
    int64_t max = is_idle ? quantum : quantum * MAX_LATE_QUANTA;

    b->filled_ns = now;
    b->tokens = b->tokens + earned < max ? b->tokens + earned : max;
    if (b->tokens >= quantum)
        b->is_closed = false;
}

/* Return the time until a closed bucket opens; INT64_MAX: the bucket is open. */
static int64_t
wait_ns(const struct bucket *b)
{
    return b->is_closed ? (int64_t)((double)(quantum - b->tokens) * 1e9 / (double)rate) + 1
        : INT64_MAX;
}

/* ------------------------------------------------------------------ connections */

static int
make_socket(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static struct sockaddr_in
loopback(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void
init_flow(struct flow *flow, int from, int to)
{
    *flow = (struct flow){ .from = from, .to = to };
    if (pipe2(flow->pipe, O_NONBLOCK | O_CLOEXEC))
        die("pipe2");
    fcntl(flow->pipe[0], F_SETPIPE_SZ, PIPE_BYTES);
    fcntl(from, F_SETFL, O_NONBLOCK);
}

static void
accept_conn(int listener)
{
    int one = 1, client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct sockaddr_in to = loopback(target_port);

    if (client < 0)
        return;
    int server = make_socket();
    if (server < 0 || n_conns == MAX_CONNS ||
        connect(server, (struct sockaddr *)&to, sizeof to)) {
        close(client);
        if (server >= 0)
            close(server);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        die("calloc");
    init_flow(&c->flows[UP], client, server);
    init_flow(&c->flows[DOWN], server, client);
    conns[n_conns++] = c;
}

static void
close_conn(int i)
{
    struct conn *c = conns[i];

    for (int d = 0; d < 2; d++) {
        close(c->flows[d].from);
        close(c->flows[d].pipe[0]);
        close(c->flows[d].pipe[1]);
    }
    free(c);
    conns[i] = conns[--n_conns];
}

/* ------------------------------------------------------------------- forwarding */

/* Move bytes into the pipe.  False: the connection is broken. */
static bool
fill(struct flow *flow, struct bucket *b)
{
    size_t max = b->tokens < TURN_BYTES ? (size_t)b->tokens : TURN_BYTES;
    ssize_t n = splice(flow->from, NULL, flow->pipe[1], NULL, max,
                       SPLICE_F_MOVE | SPLICE_F_NONBLOCK);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
        flow->has_ended = true;
        return !shutdown(flow->to, SHUT_WR);
    }
    flow->n_held = (size_t)n;
    b->n_forwarded += (uint64_t)n;
    b->last_ns = now_ns();
    if (!b->first_ns)
        b->first_ns = b->last_ns;
    b->tokens -= n;
    b->is_closed = b->tokens <= 0;
    return true;
}

/* False: the connection is broken. */
static bool
empty(struct flow *flow)
{
    while (flow->n_held) {
        ssize_t n = splice(flow->pipe[0], NULL, flow->to, NULL, flow->n_held,
                           SPLICE_F_MOVE | SPLICE_F_NONBLOCK);

        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR);
        flow->n_held -= (size_t)n;
    }
    return true;
}

/* Forward a turn of both flows.  False: the connection has ended. */
static bool
advance(struct conn *c)
{
    for (int d = 0; d < 2; d++) {
        struct flow *flow = &c->flows[d];

        if (!flow->n_held && !flow->has_ended && !buckets[d].is_closed &&
            !fill(flow, &buckets[d]))
            return false;
        if (!empty(flow))
            return false;
    }
    return !c->flows[UP].has_ended || !c->flows[DOWN].has_ended;
}

/* Set the events that a flow waits for, in the entries of its two sockets. */
static void
want(const struct flow *flow, bool is_closed, struct pollfd *from, struct pollfd *to)
{
    if (flow->n_held)
        to->events |= POLLOUT;
    else if (!flow->has_ended && !is_closed)
        from->events |= POLLIN;
}

/* Add the two sockets of a connection.  A socket without events has no entry, because poll() would
 * report its errors again and again. */
static void
watch(const struct conn *c, struct pollfd *fds)
{
    for (int d = 0; d < 2; d++)
        fds[d] = (struct pollfd){ .fd = c->flows[d].from };
    for (int d = 0; d < 2; d++)
        want(&c->flows[d], buckets[d].is_closed, &fds[d], &fds[!d]);
    for (int d = 0; d < 2; d++)
        if (!fds[d].events)
            fds[d].fd = -1;
}

/* ---------------------------------------------------------------------- program */

/* Print the counters for each byte of standard input.  False: the end of standard input. */
static bool
answer(void)
{
    char bytes[64];
    ssize_t n = read(0, bytes, sizeof bytes);
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    for (ssize_t i = 0; i < n; i++)
        printf("{\"up_bytes\": %llu, \"down_bytes\": %llu, \"down_first_s\": %.6f, "
               "\"down_last_s\": %.6f, \"cpu_s\": %.3f}\n",
               (unsigned long long)buckets[UP].n_forwarded,
               (unsigned long long)buckets[DOWN].n_forwarded,
               (double)buckets[DOWN].first_ns / 1e9, (double)buckets[DOWN].last_ns / 1e9,
               (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    fflush(stdout);
    buckets[DOWN].first_ns = 0;
    return n > 0;
}

static int
wait_for_events(struct pollfd *fds, nfds_t n)
{
    int64_t up = wait_ns(&buckets[UP]), down = wait_ns(&buckets[DOWN]);
    int64_t ns = up < down ? up : down;
    struct timespec timeout = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

    return ppoll(fds, n, ns == INT64_MAX ? NULL : &timeout, NULL);
}

/* Forward for all connections with events, in turns: each round begins with another connection. */
static void
forward(const struct pollfd *fds, int first)
{
    bool has_ended[MAX_CONNS] = { false };
    int n = n_conns;

    for (int k = 0; k < n; k++) {
        int i = (first + k) % n;
        if (fds[2 * i].revents | fds[2 * i + 1].revents)
            has_ended[i] = !advance(conns[i]);
    }
    for (int i = n - 1; i >= 0; i--)
        if (has_ended[i])
            close_conn(i);
}

static void
run(int listener)
{
    static struct pollfd fds[2 + 2 * MAX_CONNS];

    for (int first = 0;; first++) {
        fds[0] = (struct pollfd){ .fd = 0, .events = POLLIN };
        fds[1] = (struct pollfd){ .fd = listener, .events = POLLIN };
        for (int i = 0; i < n_conns; i++)
            watch(conns[i], fds + 2 + 2 * i);
        if (wait_for_events(fds, 2 + 2 * (nfds_t)n_conns) < 0 && errno != EINTR)
            die("ppoll");
        int64_t now = now_ns();
        refill(&buckets[UP], now);
        refill(&buckets[DOWN], now);
        forward(fds + 2, first);
        if (fds[1].revents)
            accept_conn(listener);
        if (fds[0].revents && !answer())
            return;
    }
}

static int
listen_on_loopback(void)
{
    struct sockaddr_in at = loopback(0);
    socklen_t bytes = sizeof at;
    int fd = make_socket();

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&at, &bytes))
        die("listen");
    printf("{\"port\": %d}\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

int
main(int argc, char **argv)
{
    if (argc != 3 || atoi(argv[1]) < 1 || atoi(argv[1]) > 65535 || atoll(argv[2]) < 1000000) {
        fprintf(stderr, "usage: kvtier-bench-link PORT RATE\n"
                "RATE is in bytes a second, at least 1000000.\n");
        return 2;
    }
    target_port = (uint16_t)atoi(argv[1]);
    rate = atoll(argv[2]);
    quantum = rate / QUANTA_A_SECOND;
    for (int d = 0; d < 2; d++)
        buckets[d] = (struct bucket){ .tokens = quantum, .filled_ns = now_ns() };
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    /* A link does not wait for a processor.  Without the right to a real-time priority the relay
     * runs at its normal priority. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 });
    run(listen_on_loopback());
    return 0;
}
