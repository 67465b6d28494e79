/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon for tests and measurements: shows a directory through FUSE as 3FS does, serves
 * USRBIO's rings, and injects faults on demand.  The daemon serves a single mount, ends on a
 * signal or at the end of its standard input, and leaves no files and no mount behind.  After a
 * killed daemon, the next daemon on the mount point cleans up. */
#include "usrbiod.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

struct options opt = { .n_workers = 2, .max_iovs = 1 << 20 };

int64_t
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int
report_failure(const char *what, int err)
{
    fprintf(stderr, "usrbiod: %s: %s\n", what, strerror(err));
    return 1;
}

/* ------------------------------------------------------------------------- options */

static const char usage[] =
    "usage: usrbiod [OPTION ...] BACKING MOUNT\n"
    "Shows the directory BACKING at MOUNT (fuse.hf3fs) and serves USRBIO for MOUNT.\n"
    "  --workers N          threads that move bytes (2)\n"
    "  --threads N          threads that process FUSE requests (16; 64 with --delay-us)\n"
    "  --rate BYTES         bytes per second of each I/O: delays the completion\n"
    "  --delay-us N         delay before each lookup, open and create of a file\n"
    "  --cache              the kernel caches as with the real daemon's defaults:\n"
    "                       entries and attributes 30 s, missing names 5 s, pages\n"
    "  --holes              an I/O of a ring is short if the I/O ends in a hole of the file\n"
    "  --lazy-length        bytes written through rings count in the length after flush, fsync\n"
    "                       or the last close, as on another node\n"
    "  --serial-lookups     the kernel looks up unknown names of a directory one after another,\n"
    "                       as with 3FS, which does not declare parallel lookups\n"
    "  --iov-limit N        links in 3fs-virt/iovs, at most (1048576)\n"
    "  --fault 'OP WHAT'    add a fault at the start; repeatable\n"
    "Prints a line of JSON when ready, and a line for each command on standard input:\n"
    "  fault OP WHAT        add a fault\n"
    "  clear                remove all faults\n"
    "  release              execute stuck requests and jobs\n"
    "  stats                print the counters since the start or the last reset\n"
    "  reset                reset the counters, except open files and I/Os in flight\n";

static bool
number(const char *text, uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno && *out <= most;
}

static bool
add_first_fault(const char *text)
{
    const char *wrong = fault_add(text);

    if (wrong)
        fprintf(stderr, "usrbiod: --fault '%s': %s\n", text, wrong);
    return !wrong;
}

static bool
parse_option(int o, const char *value)
{
    uint64_t n;
    bool ok = true;

    switch (o) {
    case 'w':
        ok = number(value, 256, &n) && n;
        opt.n_workers = (unsigned)n;
        return ok;
    case 't':
        ok = number(value, 1024, &n) && n;
        opt.n_threads = (unsigned)n;
        return ok;
    case 'i':
        ok = number(value, 1 << 20, &n);
        opt.max_iovs = (size_t)n;
        return ok;
    case 'r': return number(value, 1ULL << 50, &opt.rate);
    case 'd': return number(value, 3600000000, &opt.delay_us);
    case 'c': return opt.cache = true;
    case 'h': return opt.holes = true;
    case 'l': return opt.lazy_length = true;
    case 's': return opt.serial_lookups = true;
    case 'f': return add_first_fault(value);
    default: return false;
    }
}

static bool
parse(int argc, char **argv)
{
    static const struct option options[] = {
        { "workers", 1, NULL, 'w' },  { "threads", 1, NULL, 't' },
        { "rate", 1, NULL, 'r' },     { "delay-us", 1, NULL, 'd' },
        { "cache", 0, NULL, 'c' },    { "holes", 0, NULL, 'h' },
        { "lazy-length", 0, NULL, 'l' }, { "iov-limit", 1, NULL, 'i' },
        { "serial-lookups", 0, NULL, 's' },
        { "fault", 1, NULL, 'f' },    { "help", 0, NULL, 'H' },
        { NULL, 0, NULL, 0 },
    };
    int o;

    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (o == 'H') {
            printf("%s%s", usage, fault_help);
            exit(0);
        }
        if (!parse_option(o, optarg))
            return false;
    }
    if (!opt.n_threads)
        opt.n_threads = opt.delay_us ? 64 : 16;
    opt.backing = argv[optind];
    return argc - optind == 2;
}

/* ------------------------------------------------------------------------ commands */

static void
run_command(const char *line)
{
    const char *wrong = NULL;

    if (!strcmp(line, "stats")) {
        count_print(stdout);
        return;
    }
    if (!strncmp(line, "fault ", 6)) {
        wrong = fault_add(line + 6);
    } else if (!strcmp(line, "clear")) {
        fault_clear();
    } else if (!strcmp(line, "release")) {
        printf("{\"ok\": true, \"released\": %zu}\n", work_release());
        fflush(stdout);
        return;
    } else if (!strcmp(line, "reset")) {
        count_reset();
    } else {
        wrong = "unknown command; see --help";
    }
    if (wrong)
        printf("{\"ok\": false, \"error\": \"%s\"}\n", wrong);
    else
        printf("{\"ok\": true}\n");
    fflush(stdout);
}

/* Read and run commands.  Return false at the end of the input. */
static bool
read_commands(void)
{
    static char text[8192];
    static size_t n;
    ssize_t got = read(0, text + n, sizeof text - 1 - n);

    if (got <= 0)
        return got < 0 && errno == EINTR;
    n += (size_t)got;
    for (char *end; (end = memchr(text, '\n', n));) {
        size_t used = (size_t)(end - text) + 1;

        *end = '\0';
        run_command(text);
        memmove(text, text + used, n -= used);
    }
    return n < sizeof text - 1;
}

/* The end of /dev/null is ignored: a shell gives /dev/null to a background process. */
static bool
input_is_watched(void)
{
    struct stat st;

    return fstat(0, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(0));
}

static void
serve(int signals)
{
    struct pollfd fds[2] = { { .fd = signals, .events = POLLIN },
                             { .fd = input_is_watched() ? 0 : -1, .events = POLLIN } };

    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return;
        if (fds[0].revents || (fds[1].revents && !read_commands()))
            return;
    }
}

static void
print_ready(void)
{
    json_t *line = json_pack("{s:i, s:s, s:s, s:s, s:s}", "pid", (int)getpid(), "mount",
                             opt.mount, "submit_ios", sems_name(PRIO_NORMAL),
                             "submit_ios.ph", sems_name(PRIO_HIGH), "submit_ios.pl",
                             sems_name(PRIO_LOW));

    json_dumpf(line, stdout, JSON_COMPACT);
    json_decref(line);
    putchar('\n');
    fflush(stdout);
}

/* ---------------------------------------------------------------------------- main */

/* Raise the limit of descriptors: each file that the kernel knows needs a descriptor. */
static void
raise_limits(void)
{
    struct rlimit limit = { 1 << 20, 1 << 20 };

    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 && !getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    prctl(PR_SET_TIMERSLACK, 1UL);
}

static int
take_signals(void)
{
    sigset_t set;

    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_SETMASK, &set, NULL); /* independent of the mask of the parent process */
    return signalfd(-1, &set, SFD_CLOEXEC);
}

/* Execute delayed and stuck jobs now, and end the threads. */
static void
end_rings(void)
{
    watch_stop();
    fault_clear();
    table_fini();
    timers_hurry();
    do
        work_release();
    while (count_in_flight() && !usleep(1000));
    timers_stop();
    work_stop();
    dirs_fini();
    nodes_fini();
}

static int
start_threads(void)
{
    int err = timers_start();

    if (!err)
        err = work_start();
    return err ? err : watch_start();
}

int
main(int argc, char **argv)
{
    int err;

    if (!parse(argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    raise_limits();
    umask(0);
    int signals = take_signals();
    err = nodes_init(opt.backing);
    if (err)
        return report_failure(opt.backing, err);
    err = mount_point(argv[optind + 1]);
    if (err)
        return report_failure(argv[optind + 1], err);
    err = sems_open();
    if (err) {
        sems_close();
        return report_failure("semaphores in /dev/shm", err);
    }
    err = start_threads();
    if (err) /* the next daemon removes the semaphores */
        return report_failure("start threads", err);
    err = mount_start();
    if (!err) {
        print_ready();
        serve(signals);
        mount_stop();
    }
    end_rings();
    sems_close();
    return err;
}
