/* SPDX-License-Identifier: Apache-2.0
 *
 * The server of the s3 family on a separate core: a program that the case starts and ends, or a
 * server that is already running. */
#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "s3.h"
#include "cli.h"

struct bench_cores {
    cpu_set_t set;
};

/* ------------------------------------------------------------------------ cores */

/* Return the number of the n-th core of the set, counted from 0; -1: the set has fewer cores. */
static int
core(const cpu_set_t *set, int n)
{
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, set) && !n--)
            return i;
    return -1;
}

/* Pin the calling thread to the second core; the server uses the first. */
static void
pin(struct bench_s3_server *s)
{
    int ours = core(&s->cores->set, 1);
    cpu_set_t set;

    if (ours < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)ours, &set);
    s->pinned = !sched_setaffinity(0, sizeof set, &set);
}

/* ---------------------------------------------------------------------- program */

static const char missing[] =
    "kvtier-bench: the s3 cases need a server, and there is none at %s.\nBuild the server "
    "(ninja -C build tests/servers/http-sink) or name a server (--server).\n";

static int
find_program(const struct bench *bench, char *out, size_t size)
{
    if (bench->server)
        snprintf(out, size, "%s", bench->server);
    else
        bench_program_test_path("servers/http-sink", out, size);
    if (!access(out, X_OK))
        return 0;
    fprintf(stderr, missing, out);
    return bench->server ? CLI_ENVIRONMENT : BENCH_SKIPPED;
}

#define MAX_ARGS 16

static void
add_arg(char **args, size_t *n, const char *name, const char *value)
{
    args[(*n)++] = (char *)(uintptr_t)name;
    args[(*n)++] = (char *)(uintptr_t)value;
}

static int
read_ports(struct bench_s3_server *s)
{
    json_t *line = bench_program_read_json(&s->program);
    int bad = json_unpack(line, "{s:i, s:i}", "port", &s->port, "tls_port", &s->tls_port);

    json_decref(line);
    return bad ? EPROTO : 0;
}

static int
start_program(const struct bench *bench, const struct bench_s3_server_params *params,
              struct bench_s3_server *s)
{
    char program[4096], key[4096], size[32], delay[32], cpu[32], *args[MAX_ARGS];
    size_t n = 1;
    int code = find_program(bench, program, sizeof program);

    if (code)
        return code;
    args[0] = program;
    snprintf(size, sizeof size, "%zu", params->object_bytes);
    snprintf(delay, sizeof delay, "%u", params->head_delay_ms);
    snprintf(cpu, sizeof cpu, "%d", core(&s->cores->set, 0));
    snprintf(key, sizeof key, "%s/key.pem", bench->dir);
    snprintf(s->ca_file, sizeof s->ca_file, "%s/cert.pem", bench->dir);
    add_arg(args, &n, "--size", size);
    add_arg(args, &n, "--delay-ms", delay);
    add_arg(args, &n, "--cpu", cpu);
    if (params->tls) {
        code = bench_s3_certificate(s->ca_file, key);
        add_arg(args, &n, "--tls-port", "0");
        add_arg(args, &n, "--cert", s->ca_file);
        add_arg(args, &n, "--key", key);
    }
    args[n] = NULL;
    if (code)
        return code;
    int err = bench_program_start(&s->program, args);
    if (!err)
        err = read_ports(s);
    if (err) {
        fprintf(stderr, "kvtier-bench: start %s: %s\n", program, strerror(err));
        return CLI_ENVIRONMENT;
    }
    return 0;
}

/* ------------------------------------------------------------------ open and close */

/* Use the running server of a URL, http://ADDRESS:PORT/BUCKET. */
static int
use_running_server(const struct bench *bench, const struct bench_s3_server_params *params,
             struct bench_s3_server *s)
{
    if (sscanf(bench->server, "http://%63[0-9.]:%d/%63[^/]", s->host, &s->port,
               s->bucket) != 3) {
        fprintf(stderr, "kvtier-bench: --server %s: write http://ADDRESS:PORT/BUCKET or "
                "the path of a program\n", bench->server);
        return CLI_USAGE;
    }
    if (params->tls || params->head_delay_ms) {
        fprintf(stderr, "kvtier-bench: the case needs TLS or delayed responses, which "
                "--server with a URL does not have: skipped\n");
        return BENCH_SKIPPED;
    }
    return 0;
}

int
bench_s3_server_open(const struct bench *bench, const struct bench_s3_server_params *params,
                  struct bench_s3_server *s)
{
    int code;

    *s = (struct bench_s3_server){ .program = BENCH_NO_PROGRAM, .host = "127.0.0.1",
                                .bucket = "bench", .cores = calloc(1, sizeof *s->cores) };
    if (!s->cores || sched_getaffinity(0, sizeof s->cores->set, &s->cores->set)) {
        fprintf(stderr, "kvtier-bench: read the CPU affinity: %s\n", strerror(errno));
        return CLI_ENVIRONMENT;
    }
    if (bench->server && !strncmp(bench->server, "http://", 7))
        code = use_running_server(bench, params, s);
    else
        code = start_program(bench, params, s);
    if (!code)
        pin(s);
    return code;
}

int
bench_s3_server_close(struct bench_s3_server *s, uint64_t *n_connections)
{
    json_int_t n = -1;

    if (s->pinned)
        sched_setaffinity(0, sizeof s->cores->set, &s->cores->set);
    free(s->cores);
    s->cores = NULL;
    bench_program_close_input(&s->program);
    if (n_connections && s->program.pid > 0) {
        json_t *line = bench_program_read_json(&s->program);

        if (line && !json_unpack(line, "{s:I}", "connections", &n) && n >= 0)
            *n_connections = (uint64_t)n;
        json_decref(line);
    }
    bench_program_end(&s->program);
    if (!n_connections || n >= 0)
        return 0;
    fprintf(stderr, "kvtier-bench: the server did not report its connections\n");
    return CLI_ENVIRONMENT;
}
