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
say(struct findings *f, enum verdict verdict, const char *what, const char *fmt, ...)
{
    static const char *const words[] = { "ok", "warn", "BAD" };
    static const char *const names[] = { "ok", "warning", "bad" };
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    f->n_bad += verdict == BAD;
    json_array_append_new(f->all, json_pack("{s:s, s:s, s:o}", "check", what, "verdict",
                                            names[verdict], "text", cli_json_text(text)));
    if (!f->json)
        printf("%-5s %-14s %s\n", words[verdict], what, text);
}

/* ------------------------------------------------------------ configuration */

struct problems {
    struct findings *findings;
    int n;
};

static void
tell_problem(void *ctx, const struct kvt_config_problem *problem)
{
    struct problems *p = ctx;

    p->n++;
    say(p->findings, problem->is_error ? BAD : WARN, "configuration", "%s",
        problem->text);
}

static void
look_at_config(struct findings *f, const struct kvt_config_sources *sources)
{
    struct problems p = { f, 0 };

    if (kvt_config_check(sources, tell_problem, &p) < 0 && !p.n)
        say(f, BAD, "configuration", "%s", kvt_last_error());
    else if (!p.n)
        say(f, OK, "configuration", "no problem found");
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

static void
look_at_tiers(struct findings *f, const struct kvt_config *config)
{
    struct kvt_tier_info t = KVT_INIT(struct kvt_tier_info);
    struct kvt_store *store;
    char why[320], used[24], limit[24];
    enum verdict verdict;
    const char *done;

    if (is_set(config, "local_cpu") && f->no_storage) {
        say(f, OK, "tiers", "host memory only (local_cpu): what is there ends with the "
            "engine");
        return;
    }
    int err = kvt_store_open(config, &store);
    if (err) {
        /* An engine makes the shared memory at its start. */
        say(f, err == -ENOENT && is_set(config, "shared_cpu") ? OK : BAD, "tiers", "%s",
            kvt_last_error());
        return;
    }
    for (size_t i = 0; !kvt_store_tier(store, i, &t); i++) {
        say(f, OK, t.tier, "%s: %" PRIu64 " chunks, %s of %s", t.url, t.n_chunks,
            cli_size_text(t.used_bytes, used),
            t.limit_bytes ? cli_size_text(t.limit_bytes, limit) : "no limit");
        if (!t.index_shared)
            say(f, BAD, t.tier, "%s: the index cannot be shared: a scheduler does not see "
                "what its workers store; look at the message above", t.url);
    }
    verdict = try_store(store, &done, why, sizeof why);
    if (verdict != OK)
        say(f, verdict, "store", "a chunk of 1 MiB was %s: %s", done, why);
    else
        say(f, OK, "store", "a chunk of 1 MiB was stored, read back and removed");
    kvt_store_close(store);
}

/* ----------------------------------------------------------------- machine */

static void
look_at_memory(struct findings *f, const struct kvt_config *config)
{
    double want = number(config, "max_local_cpu_size");
    uint64_t bytes = kvt_memory_available();
    double have = (double)bytes / (1 << 30);

    if (bytes == UINT64_MAX)
        say(f, WARN, "memory", "the system does not tell how much is available");
    else if (want > have)
        say(f, BAD, "memory", "max_local_cpu_size asks for %.1f GiB for each worker, %.1f "
            "GiB are available; lower it", want, have);
    else
        say(f, OK, "memory", "%.1f GiB for each worker, %.1f GiB available", want, have);
    if (is_set(config, "local_cpu") && access("/dev/shm", W_OK | X_OK))
        say(f, WARN, "memory", "/dev/shm cannot be written: a scheduler does not see what "
            "its workers have in host memory");
}

static void
look_at_limits(struct findings *f)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    if (files.rlim_cur < 256)
        say(f, WARN, "open files", "the limit is %" PRIu64 "; raise it to 1024 (ulimit -n)",
            (uint64_t)files.rlim_cur);
    else
        say(f, OK, "open files", "the limit is %" PRIu64, (uint64_t)files.rlim_cur);
}

static void
look_at_processor(struct findings *f)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        say(f, OK, "processor", "has the instructions for CRC32C");
    else
        say(f, WARN, "processor", "lacks SSE4.2 or PCLMULQDQ: checksums are slow");
#else
    say(f, OK, "processor", "not looked at on this architecture");
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
    say(&f, OK, "version", "kvtier %s", kvt_version());
    look_at_config(&f, &sources);
    look_at_processor(&f);
    look_at_limits(&f);
    cli_set_log(KVT_LOG_ERROR); /* kvt_config_check() has reported the warnings */
    int err = kvt_config_open(&sources, &config);
    cli_set_log(KVT_LOG_DEFAULT);
    if (!err) {
        look_at_memory(&f, config);
        if (doctor_storage(&f, config))
            look_at_tiers(&f, config);
        kvt_config_free(config);
    }
    if (c.json) {
        json_dumpf(f.all, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(f.all);
    return f.n_bad ? CLI_NO : CLI_DONE;
}

const struct cli_command cli_doctor = {
    .name = "doctor",
    .usage = "[OPTIONS]",
    .summary = "look at what an engine would meet on this machine",
    .help =
        "Checks the configuration and what its storage needs of this machine (3FS: mount, daemon,\n"
        "library, shared memory; gds_path: whether each GPU reaches the directories directly, by\n"
        "a small write and read; shared_cpu: room for the memory), opens the tiers, looks up,\n"
        "stores, reads and removes a chunk of 1 MiB, and looks at memory and limits.\n"
        "One line a finding.\n\n"
        CLI_COMMON_HELP,
    .no = "a check failed",
    .run = doctor_run,
};
