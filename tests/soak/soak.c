/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: soak SECONDS KEY=VALUE...
 *
 * Run random put, get, stat and delete requests for SECONDS seconds in the store that the
 * settings KEY=VALUE (syntax of --set) describe.  AT_ONCE requests are in flight at a time.
 * A request may fail because the storage injects faults.  A get that succeeds must return
 * bytes of an earlier put of the key.  The program prints its resident memory each minute,
 * and fails if
 *  - a get returned wrong bytes,
 *  - the memory grew by MAX_GROWTH after the first twelfth of SECONDS,
 *  - no get completed, or the failed requests are more than half of the gets.
 * One thread. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtier.h"

#define AT_ONCE 24
#define KEYS 300u
#define MOST ((size_t)256 << 10) /* bytes of a chunk */
#define MAX_GROWTH 1024 /* KiB */

struct request {
    struct kvt_op op;
    char key[64];
    unsigned char *buf;
};

struct soak {
    struct kvt_store *store;
    struct request requests[AT_ONCE];
    uint64_t state; /* of the random number generator */
    uint64_t n_done[6], n_failed, n_wrong;
    char why[sizeof((struct kvt_op *)0)->why]; /* error of the latest failed request */
};

static uint64_t
next_random(struct soak *s)
{
    s->state ^= s->state << 13; /* xorshift64 */
    s->state ^= s->state >> 7;
    s->state ^= s->state << 17;
    return s->state;
}

static time_t
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* Return the resident memory in KiB, or 0 if /proc does not contain the value. */
static long
resident(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "VmRSS:", 6))
            kib = strtol(line + 6, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

/* ------------------------------------------------------------------------ requests */

/* Fill a chunk with bytes that is_right() can verify without a copy: the key's number, a seed
 * (`own`), and bytes that depend on the seed and the offset only. */
static void
fill(unsigned char *buf, size_t n, uint32_t key, uint32_t own)
{
    uint32_t words[2] = { key, own };

    memcpy(buf, words, sizeof words);
    for (size_t i = sizeof words; i < n; i++)
        buf[i] = (unsigned char)((own + i) * 2654435761u >> 24);
}

static bool
is_right(const unsigned char *buf, size_t n, uint32_t key)
{
    uint32_t words[2];

    if (n < sizeof words)
        return false;
    memcpy(words, buf, sizeof words);
    for (size_t i = sizeof words; i < n; i++)
        if (buf[i] != (unsigned char)((words[1] + i) * 2654435761u >> 24))
            return false;
    return words[0] == key;
}

static void
start(struct soak *s, struct request *r)
{
    static const uint32_t kinds[] = { KVT_OP_PUT, KVT_OP_PUT, KVT_OP_PUT, KVT_OP_GET,
                                      KVT_OP_GET, KVT_OP_GET, KVT_OP_GET, KVT_OP_STAT,
                                      KVT_OP_STAT, KVT_OP_DELETE };
    uint64_t bits = next_random(s);
    uint32_t key = 1 + (uint32_t)(bits % KEYS);
    struct kvt_op *op = &r->op;

    *op = (struct kvt_op)KVT_INIT(struct kvt_op);
    snprintf(r->key, sizeof r->key, "soak/model@1@0@%x@half", key);
    op->kind = kinds[(bits >> 16) % (sizeof kinds / sizeof *kinds)];
    op->key = r->key;
    op->buf = r->buf;
    op->bytes = MOST;
    op->user = r;
    if (op->kind == KVT_OP_PUT) {
        op->bytes = 8 + (bits >> 24) % (MOST - 8);
        fill(r->buf, op->bytes, key, (uint32_t)(bits >> 32));
    }
    if (kvt_store_submit(s->store, &op, 1)) {
        fprintf(stderr, "soak: %s\n", kvt_last_error());
        exit(3);
    }
}

static void
take(struct soak *s, const struct kvt_op *op)
{
    const struct request *r = op->user;
    uint32_t key = (uint32_t)strtoul(strchr(r->key, '@') + 5, NULL, 16);

    s->n_done[op->kind]++;
    if (op->status && op->status != -ENOENT) {
        s->n_failed++;
        snprintf(s->why, sizeof s->why, "%s", op->why);
    }
    if (!op->status && op->kind == KVT_OP_GET && !is_right(r->buf, op->found_bytes, key)) {
        s->n_wrong++;
        fprintf(stderr, "soak: %s: wrong bytes\n", r->key);
    }
}

/* Keep AT_ONCE requests in flight until `end`, then wait for all requests in flight. */
static void
run_until(struct soak *s, time_t end)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(s->store), .events = POLLIN };
    struct kvt_op *done[AT_ONCE];
    size_t running = 0;

    for (; running < AT_ONCE; running++)
        start(s, &s->requests[running]);
    while (running) {
        poll(&fd, 1, 1000);
        size_t n = kvt_store_poll(s->store, done, AT_ONCE);

        for (size_t i = 0; i < n; i++) {
            take(s, done[i]);
            if (now() < end)
                start(s, done[i]->user);
            else
                running--;
        }
    }
}

/* ------------------------------------------------------------------------- the whole */

static void
print_figures(const struct soak *s, time_t seconds, long kib)
{
    printf("%5lld s  %ld KiB  put %" PRIu64 " get %" PRIu64 " stat %" PRIu64 " delete %"
           PRIu64 "  failed %" PRIu64 "%s%s\n", (long long)seconds, kib,
           s->n_done[KVT_OP_PUT], s->n_done[KVT_OP_GET], s->n_done[KVT_OP_STAT],
           s->n_done[KVT_OP_DELETE], s->n_failed, *s->why ? ", last: " : "", s->why);
    fflush(stdout);
}

static int
soak(struct soak *s, time_t seconds)
{
    time_t began = now(), step = seconds < 720 ? seconds / 12 : 60;
    long first = 0, last = 0;

    for (time_t at = step; at <= seconds; at += step) {
        run_until(s, began + at);
        last = resident();
        if (!first && at >= seconds / 12)
            first = last;
        print_figures(s, at, last);
    }
    printf("%ld KiB more than after %lld s\n", last - first, (long long)(seconds / 12));
    if (s->n_wrong)
        fprintf(stderr, "soak: %" PRIu64 " chunks had wrong bytes\n", s->n_wrong);
    if (last - first >= MAX_GROWTH)
        fprintf(stderr, "soak: grown by %ld KiB\n", last - first);
    if (!s->n_done[KVT_OP_GET] || s->n_failed * 2 > s->n_done[KVT_OP_GET])
        fprintf(stderr, "soak: most requests failed\n");
    return s->n_wrong || last - first >= MAX_GROWTH || !s->n_done[KVT_OP_GET] ||
           s->n_failed * 2 > s->n_done[KVT_OP_GET];
}

int
main(int argc, char **argv)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config;
    struct soak s = { .state = 88172645463325252u };
    long seconds = argc > 1 ? strtol(argv[1], NULL, 10) : 0;

    if (seconds < 12) {
        fprintf(stderr, "usage: soak SECONDS KEY=VALUE... (12 seconds at least)\n");
        return 2;
    }
    sources.settings = (const char *const *)argv + 2;
    if (kvt_config_open(&sources, &config) || kvt_store_open(config, &s.store)) {
        fprintf(stderr, "soak: %s\n", kvt_last_error());
        return 2;
    }
    kvt_config_free(config);
    for (size_t i = 0; i < AT_ONCE; i++) {
        s.requests[i].buf = malloc(MOST);
        if (!s.requests[i].buf)
            return 3;
        memset(s.requests[i].buf, 1, MOST);
    }
    int rc = soak(&s, seconds);
    kvt_store_close(s.store);
    for (size_t i = 0; i < AT_ONCE; i++)
        free(s.requests[i].buf);
    return rc;
}
