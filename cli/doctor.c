/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier doctor: check the configuration, the processor, the limits, the memory, the storage and
 * the tiers for an engine on this host, and print a remedy for each problem. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common.h"
#include "doctor.h"

#define PROBE_BYTES ((size_t)1 << 20)

void
add_finding(struct findings *f, enum verdict verdict, const char *check, const char *fmt, ...)
{
    static const char *const words[] = { "ok", "warn", "BAD" };
    static const char *const names[] = { "ok", "warning", "bad" };
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    f->n_bad += verdict == BAD;
    json_array_append_new(f->all, json_pack("{s:s, s:s, s:o}", "check", check, "verdict",
                                            names[verdict], "text", cli_json_text(text)));
    if (f->json)
        return;
    printf("%-5s %-14s ", words[verdict], check);
    cli_print_text(stdout, text);
}

/* ------------------------------------------------------------ configuration */

struct problems {
    struct findings *findings;
    int n;
};

static void
on_problem(void *ctx, const struct kvt_config_problem *problem)
{
    struct problems *p = ctx;

    p->n++;
    add_finding(p->findings, problem->is_error ? BAD : WARN, "configuration", "%s",
                problem->text);
}

static void
check_config(struct findings *f, const struct kvt_config_sources *sources)
{
    struct problems p = { f, 0 };

    if (kvt_config_check(sources, on_problem, &p) < 0 && !p.n)
        add_finding(f, BAD, "configuration", "%s", kvt_last_error());
    else if (!p.n)
        add_finding(f, OK, "configuration", "no problem found");
}

/* Return the value of a setting as a new reference, or NULL if the setting is unknown or the
 * allocation failed. */
static json_t *
setting(const struct kvt_config *config, const char *name)
{
    char *text = kvt_config_json(config);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    json_t *value = json_incref(json_object_get(json_object_get(all, name), "value"));

    json_decref(all);
    kvt_free(text);
    return value;
}

static double
number(const struct kvt_config *config, const char *name)
{
    json_t *value = setting(config, name);
    double n = json_number_value(value);

    json_decref(value);
    return n;
}

/* Return true if a setting is true. */
static bool
is_set(const struct kvt_config *config, const char *name)
{
    json_t *value = setting(config, name);
    bool set = json_is_true(value);

    json_decref(value);
    return set;
}

/* -------------------------------------------------------------------- tiers */

/* Look up an absent chunk, as an engine does: the result must be a miss.  A bucket policy without
 * the right to list, for example, causes an error.  Return 0 or a negative errno. */
static int
try_lookup(struct kvt_store *store, struct kvt_op *op)
{
    op->kind = KVT_OP_STAT;
    int status = kvt_store_run(store, op);

    return status == -ENOENT ? 0 : status;
}

/* Look up, put, get, compare and remove a test chunk.  *done: a static text about the steps
 * before a failure, such as "stored, but not read back".  why: the reason of the failure.  Return
 * WARN if only the removal fails. */
static enum verdict
try_store(struct kvt_store *store, const char **done, char *why, size_t size)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);
    unsigned char *sent = malloc(PROBE_BYTES), *got = malloc(PROBE_BYTES);
    char key[64];
    enum verdict verdict = OK;
    int status = -ENOMEM;

    *done = "not looked up";
    snprintf(key, sizeof key, "kvtier-doctor@1@0@%lx@uint8", (unsigned long)getpid());
    op.key = key;
    for (size_t i = 0; sent && i < PROBE_BYTES; i++)
        sent[i] = (unsigned char)(i * 31 + i / 997);
    if (sent && got)
        status = try_lookup(store, &op);
    if (!status) {
        *done = "not stored";
        op.kind = KVT_OP_PUT;
        op.buf = sent;
        op.bytes = PROBE_BYTES;
        status = kvt_store_run(store, &op);
    }
    if (!status) {
        *done = "stored, but not read back";
        op.kind = KVT_OP_GET;
        op.buf = got;
        status = kvt_store_run(store, &op);
        if (!status && memcmp(sent, got, PROBE_BYTES))
            status = -EBADMSG;
    }
    snprintf(why, size, "%s", op.why[0] ? op.why : strerror(-status));
    if (sent && got) {
        op.kind = KVT_OP_DELETE;
        if (kvt_store_run(store, &op) && !status) {
            *done = "stored and read back, but not removed";
            snprintf(why, size, "%s", op.why);
            verdict = WARN; /* an engine that only stores and loads needs no right to delete */
        }
    }
    free(sent);
    free(got);
    return status ? BAD : verdict;
}

/* Report the measured speed of loads, and each model's break-even length. */
static void
report_speed(struct findings *f, struct kvt_store *store, size_t i, const struct kvt_tier_info *t)
{
    struct kvt_prefill_info prefill = KVT_INIT(struct kvt_prefill_info);
    char text[CLI_PREFILL_BYTES], rate[24];

    if (t->load_bytes_per_s)
        add_finding(f, OK, t->tier, "%s: loads run at %s/s after %.2f ms", t->url,
                    cli_size_text(t->load_bytes_per_s, rate), (double)t->load_latency_ns / 1e6);
    for (size_t j = 0; t->load_bytes_per_s && !kvt_store_prefill(store, i, j, &prefill); j++)
        add_finding(f, OK, t->tier, "%s: %s", t->url, cli_prefill_text(t, &prefill, text));
}

static void
check_tiers(struct findings *f, const struct kvt_config *config)
{
    struct kvt_tier_info t = KVT_INIT(struct kvt_tier_info);
    struct kvt_store *store;
    char why[320], used[24], limit[24];
    enum verdict verdict;
    const char *done;

    if (is_set(config, "local_cpu") && f->no_storage) {
        add_finding(f, OK, "tiers", "host memory only (local_cpu): the chunks end with the engine");
        return;
    }
    int err = kvt_store_open(config, &store);
    if (err) {
        /* An engine makes the shared memory at its start. */
        add_finding(f, err == -ENOENT && is_set(config, "shared_cpu") ? OK : BAD, "tiers", "%s",
                    kvt_last_error());
        return;
    }
    for (size_t i = 0; !kvt_store_tier(store, i, &t); i++) {
        add_finding(f, OK, t.tier, "%s: %" PRIu64 " chunks, %s of %s", t.url, t.n_chunks,
                    cli_size_text(t.used_bytes, used),
                    t.limit_bytes ? cli_size_text(t.limit_bytes, limit) : "no limit");
        if (*t.serde_reason)
            add_finding(f, OK, t.tier, "%s: serde auto: %s", t.url, t.serde_reason);
        report_speed(f, store, i, &t);
        if (!t.index_shared)
            add_finding(f, BAD, t.tier, "%s: the index cannot be shared: a scheduler does not "
                        "see the chunks of its workers; the message above has the reason",
                        t.url);
    }
    verdict = try_store(store, &done, why, sizeof why);
    if (verdict != OK)
        add_finding(f, verdict, "store", "a chunk of 1 MiB was %s: %s", done, why);
    else
        add_finding(f, OK, "store", "a chunk of 1 MiB was stored, read back and removed");
    kvt_store_close(store);
}

/* ----------------------------------------------------------------- machine */

static void
check_memory(struct findings *f, const struct kvt_config *config)
{
    double want = number(config, "max_local_cpu_size");
    uint64_t bytes = kvt_memory_available();
    double have = (double)bytes / (1 << 30);

    if (bytes == UINT64_MAX)
        add_finding(f, WARN, "memory", "the system does not report the available memory");
    else if (want > have)
        add_finding(f, BAD, "memory", "max_local_cpu_size is %.1f GiB for each worker, %.1f GiB "
                    "are available; lower max_local_cpu_size", want, have);
    else
        add_finding(f, OK, "memory", "%.1f GiB for each worker, %.1f GiB available", want, have);
    if (is_set(config, "local_cpu") && access("/dev/shm", W_OK | X_OK))
        add_finding(f, WARN, "memory", "/dev/shm cannot be written: a scheduler does not see the "
                    "chunks in its workers' host memory");
}

static void
check_limits(struct findings *f)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    if (files.rlim_cur < 256)
        add_finding(f, WARN, "open files", "the limit is %" PRIu64 "; raise it to 1024 (ulimit -n)",
                    (uint64_t)files.rlim_cur);
    else
        add_finding(f, OK, "open files", "the limit is %" PRIu64, (uint64_t)files.rlim_cur);
}

static void
check_processor(struct findings *f)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        add_finding(f, OK, "processor", "has the instructions for CRC32C");
    else
        add_finding(f, WARN, "processor", "lacks SSE4.2 or PCLMULQDQ: checksums are slow");
#else
    add_finding(f, OK, "processor", "not checked on this architecture");
#endif
}

/* -------------------------------------------------------------- the command */

static int
doctor_run(int argc, char **argv)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct findings f = { .all = json_array() };
    struct kvt_config *config;
    struct cli_common c;
    int code = cli_parse(&cli_doctor, argc, argv, NULL, 0, 0, &c);

    if (code) {
        json_decref(f.all);
        return code;
    }
    f.json = c.json;
    sources.file = c.config_file;
    sources.settings = c.settings;
    add_finding(&f, OK, "version", "kvtier %s", kvt_version());
    check_config(&f, &sources);
    check_processor(&f);
    check_limits(&f);
    cli_set_log(KVT_LOG_ERROR); /* kvt_config_check() has reported the warnings */
    int err = kvt_config_open(&sources, &config);
    cli_set_log(KVT_LOG_DEFAULT);
    if (!err) {
        check_memory(&f, config);
        if (doctor_storage(&f, config))
            check_tiers(&f, config);
        kvt_config_free(config);
    }
    if (c.json) {
        json_dumpf(f.all, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(f.all);
    return f.n_bad ? CLI_NEGATIVE : CLI_DONE;
}

const struct cli_command cli_doctor = {
    .name = "doctor",
    .usage = "[OPTIONS]",
    .summary = "check this machine for an engine with the configuration",
    .help =
        "Checks the configuration and the requirements of the storage:\n"
        "\n"
        "  files       free space and inodes, O_DIRECT, io_uring, rename, flock, and the\n"
        "              speed of a write and a read\n"
        "  S3          endpoint, keys, clock, round trip, and each kind of request that an\n"
        "              engine sends\n"
        "  3FS         mount, daemon, library, shared memory\n"
        "  gds_path    whether each GPU reaches the directories directly, by a small write\n"
        "              and read\n"
        "  shared_cpu  room for the memory\n"
        "\n"
        "Then opens the tiers, looks up, stores, reads and removes a chunk of 1 MiB, and checks\n"
        "memory and limits. Prints a line for each finding.\n\n"
        CLI_COMMON_HELP,
    .negative = "a check failed",
    .run = doctor_run,
};
