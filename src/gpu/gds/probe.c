/* SPDX-License-Identifier: Apache-2.0
 *
 * Start the helper program, read its output until the result or until the deadline, and kill the
 * helper.  The helper may hang in the kernel, where no signal ends a process: then kvtier does not
 * wait for its end. */
#include "gpu/gds/probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/spawn.h"
#include "gpu/gds/library.h"

#define HELPER "kvtier-gds-probe"
#define POLL_MS 20     /* interval between checks whether the helper has ended */
#define N_LAST_POLLS 5 /* checks after the kill */

/* A running helper. */
struct helper {
    pid_t pid;
    int output; /* pipe with the helper's output */
    int64_t deadline_ns;
    enum kvt__gds_layer step; /* the step that the helper has begun last */
    bool has_result;          /* the helper has reported the result */
    size_t n;
    char line[2048]; /* n bytes of an incomplete line */
};

/* -------------------------------------------------------------------- paths of files */

/* Find the helper: next to this library (in a wheel or a build directory), or in the installed
 * directory of helpers. */
static int
find_helper(char *out, size_t size)
{
    const char *const places[] = { "", kvt__gds_helper_dir };
    Dl_info info;

    if (!dladdr((void *)(uintptr_t)kvt__gds_probe, &info) || !info.dli_fname)
        return -ENOENT;
    const char *slash = strrchr(info.dli_fname, '/');
    int n = slash ? (int)(slash - info.dli_fname) : 1;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bool absolute = places[i][0] == '/';

        snprintf(out, size, "%.*s%s%s/" HELPER, absolute ? 0 : n,
                 slash ? info.dli_fname : ".", absolute ? "" : "/", places[i]);
        if (!access(out, X_OK))
            return 0;
    }
    return -ENOENT;
}

/* Choose a path for the scratch file: in the directory of temporary files if this directory
 * exists, else in the probed directory. */
static void
choose_scratch(const char *path, char *out, size_t size)
{
    char temp[PATH_MAX];
    uint64_t random = 0;
    struct stat st;

    snprintf(temp, sizeof temp, "%s/.kvtier/tmp", path);
    bool there = !stat(temp, &st) && S_ISDIR(st.st_mode);
    if (getrandom(&random, sizeof random, 0) < 0) /* random: other hosts may probe here too */
        random = (uint64_t)kvt__now_ns();
    snprintf(out, size, "%s/.kvtier-probe-%016" PRIx64, there ? temp : path, random);
}

/* ------------------------------------------------------------------- reading output */

/* Fill in a failure whose sentence is kvt__why().  Return err. */
static int
set_failure(struct kvt__gds_finding *f, enum kvt__gds_layer layer, int err)
{
    f->layer = layer;
    f->code = -err;
    snprintf(f->text, sizeof f->text, "%s", kvt__why());
    return err;
}

/* Parse one line of JSON: the beginning of a step, or the result. */
static void
parse_line(struct helper *run, const char *line, size_t n, struct kvt__gds_finding *f)
{
    const char *word, *library, *file, *text;
    json_t *json = json_loadb(line, n, 0, NULL);
    int code, p2pdma, n_gpus;

    if (!json_unpack(json, "{s:s, s:i}", "step", &word, "gpus", &n_gpus)) {
        kvt__gds_layer_from_word(word, &run->step);
        f->n_gpus = n_gpus;
    } else if (!json_unpack(json, "{s:s, s:i, s:i, s:b, s:s, s:s, s:s}", "layer", &word,
                            "code", &code, "gpus", &n_gpus, "p2pdma", &p2pdma, "library",
                            &library, "file", &file, "text", &text) &&
               kvt__gds_layer_from_word(word, &f->layer)) {
        f->n_gpus = n_gpus;
        f->code = code;
        f->p2pdma = p2pdma;
        snprintf(f->library, sizeof f->library, "%s", library);
        snprintf(f->file, sizeof f->file, "%s", file);
        snprintf(f->text, sizeof f->text, "%s", text);
        run->has_result = true;
    }
    json_decref(json);
}

/* Read and parse the available output.  False: end of the output, or a read error. */
static bool
read_output(struct helper *run, struct kvt__gds_finding *f)
{
    ssize_t got = read(run->output, run->line + run->n, sizeof run->line - run->n);

    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    run->n += (size_t)got;
    for (char *end; (end = memchr(run->line, '\n', run->n));) {
        size_t n = (size_t)(end - run->line) + 1;

        parse_line(run, run->line, n, f);
        run->n -= n;
        memmove(run->line, end + 1, run->n);
    }
    if (run->n == sizeof run->line)
        run->n = 0;
    return got > 0;
}

/* Return true if the helper has ended.  If another part of the process has reaped the child, the
 * exit status is unknown and *status is 0. */
static bool
has_ended(const struct helper *run, int *status)
{
    pid_t got = waitpid(run->pid, status, WNOHANG);

    if (got < 0)
        *status = 0;
    return got == run->pid || (got < 0 && errno == ECHILD);
}

static void
kill_helper(const struct helper *run)
{
    int status;

    if (has_ended(run, &status))
        return;
    kill(run->pid, SIGKILL);
    for (int i = 0; i < N_LAST_POLLS && !has_ended(run, &status); i++)
        poll(NULL, 0, POLL_MS);
}

/* Read output until the result, the helper's end or the deadline.  False: the deadline has passed.
 * status: the exit status, if the helper has ended without a result. */
static bool
wait_for_result(struct helper *run, struct kvt__gds_finding *f, int *status)
{
    bool open = true;

    for (;;) {
        struct pollfd p = { .fd = open ? run->output : -1, .events = POLLIN };
        int64_t left_ns = run->deadline_ns - kvt__now_ns();

        if (poll(&p, 1, POLL_MS) > 0)
            open = read_output(run, f);
        if (run->has_result)
            return true;
        if (!open && has_ended(run, status))
            return true;
        if (left_ns <= 0)
            return false;
    }
}

/* Fill in the result: from the helper's output, or from the way the helper failed. */
static int
fill_result(struct helper *run, const struct kvt__gds_probe_params *params, bool ended,
            int status, struct kvt__gds_finding *f)
{
    if (run->has_result)
        return f->layer ? kvt__gds_add_layer(f->layer, f->code, -ENODEV) : 0;
    const char *at = kvt__gds_layer_name(run->step);
    if (!ended)
        return set_failure(f, run->step,
                           kvt__fail(ETIMEDOUT, HELPER " hangs: no answer for %g s, at %s; "
                                     "kvtier doctor probes again.",
                                     (double)params->timeout_ms / 1000, at));
    if (WIFSIGNALED(status))
        return set_failure(f, run->step,
                           kvt__fail(EIO, HELPER " was ended by signal %d, at %s.",
                                     WTERMSIG(status), at));
    return set_failure(f, KVT__GDS_HELPER,
                       kvt__fail(EIO, HELPER " ended without a result (exit status %d).",
                                 WEXITSTATUS(status)));
}

/* ----------------------------------------------------------------- running the helper */

static int
run_helper(const struct kvt__gds_probe_params *params, char *const *words,
           struct kvt__gds_finding *f)
{
    struct helper run = {
        .deadline_ns = kvt__now_ns() + params->timeout_ms * KVT__NS_PER_MS,
        .step = KVT__GDS_HELPER,
    };
    int ends[2], status = 0;

    if (pipe2(ends, O_CLOEXEC))
        return set_failure(f, KVT__GDS_HELPER, kvt__fail(errno, HELPER ": pipe"));
    int err = kvt__spawn(words, NULL, ends[1], -1, &run.pid);
    close(ends[1]);
    if (err) {
        close(ends[0]);
        return set_failure(f, KVT__GDS_HELPER, kvt__fail(err, "start %s", words[0]));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    run.output = ends[0];
    bool ended = wait_for_result(&run, f, &status);
    if (!ended || run.has_result)
        kill_helper(&run);
    close(ends[0]);
    return fill_result(&run, params, ended, status, f);
}

static int
probe_now(const struct kvt__gds_probe_params *params, enum kvt__gds_kind kind, int ordinal,
          const char *path, char *file, struct kvt__gds_finding *f)
{
    static char *const kinds[] = { "cufile", "hipfile" };
    char helper[PATH_MAX], scratch[PATH_MAX + 64], number[16];

    if (params->helper)
        snprintf(helper, sizeof helper, "%s", params->helper);
    else if (find_helper(helper, sizeof helper))
        return set_failure(f, KVT__GDS_HELPER,
                           kvt__fail(ENOENT, HELPER " is not installed with this library, so "
                                     "direct transfers are not used: reinstall kvtier."));
    choose_scratch(path, scratch, sizeof scratch);
    snprintf(number, sizeof number, "%d", ordinal);
    char *words[] = { helper, kinds[kind], file, number, scratch, NULL };
    int err = run_helper(params, words, f);
    unlink(scratch);
    return err;
}

int
kvt__gds_probe(const struct kvt__gds_probe_params *params, enum kvt__gds_kind kind,
               int ordinal, const char *path, struct kvt__gds_finding *out)
{
    char file[256], key[4096];

    *out = (struct kvt__gds_finding){ 0 };
    kvt__gds_file_name(kind, file, sizeof file);
    bool can_cache = kvt__gds_cache_key(kind, ordinal, path, file, key, sizeof key);
    int err = -ENODEV;
    if (!can_cache || params->no_cache || !kvt__gds_cache_read(params->cache_dir, key, out)) {
        err = probe_now(params, kind, ordinal, path, file, out);
        if (can_cache && (!err || err == -ETIMEDOUT))
            kvt__gds_cache_write(params->cache_dir, key, out);
    }
    if (!out->layer)
        return 0;
    kvt__set_why(out->text);
    return kvt__gds_add_layer(out->layer, out->code, err);
}
