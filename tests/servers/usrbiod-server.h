/* SPDX-License-Identifier: Apache-2.0
 *
 * usrbiod for tests in C: start usrbiod over a new directory, inject faults (usrbiod --help lists
 * them), read counters, kill usrbiod and start it again.  usrbiod ends with the test program,
 * also after a crash of the test program.  One thread. */
#ifndef KVT_USRBIOD_SERVER_H
#define KVT_USRBIOD_SERVER_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <jansson.h>

#include "kvt-test.h"
#include "temp-dir.h"

struct usrbiod {
    pid_t pid; /* 0: usrbiod does not run */
    int in;
    FILE *output;
    struct temp_dir dir;
    char backing[300], mount[300];
    char submit[128]; /* name of the semaphore of normal priority, for sem_open() */
};

static inline bool
usrbiod_spawn(struct usrbiod *u, char **argv)
{
    posix_spawn_file_actions_t actions;
    int in[2], out[2];

    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    int err = posix_spawn(&u->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    u->in = in[1];
    u->output = fdopen(out[0], "r");
    return !err;
}

/* Read a response.  NULL: usrbiod has ended, or the response is no JSON. */
static inline json_t *
usrbiod_read_response(struct usrbiod *u)
{
    char line[4096];

    return fgets(line, sizeof line, u->output) ? json_loads(line, 0, NULL) : NULL;
}

/* Close the input and wait for the end of usrbiod.  Return the exit status. */
static inline int
usrbiod_wait(struct usrbiod *u)
{
    int status = -1;

    close(u->in);
    while (waitpid(u->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    fclose(u->output);
    u->pid = 0;
    return status;
}

/* Run usrbiod.  arguments: at most 16 options, terminated by NULL; or NULL.  Return false if
 * usrbiod did not start; usrbiod has then printed the reason, usually that FUSE cannot be
 * mounted. */
static inline bool
usrbiod_run(struct usrbiod *u, const char *const *arguments)
{
    char program[] = KVT_USRBIOD, *argv[20] = { program };
    int n = 1;

    while (arguments && *arguments && n < 17)
        argv[n++] = (char *)(uintptr_t)*arguments++;
    argv[n++] = u->backing;
    argv[n] = u->mount;
    assert_true(usrbiod_spawn(u, argv));
    json_t *ready = usrbiod_read_response(u);
    const char *name = json_string_value(json_object_get(ready, "submit_ios"));
    if (name)
        snprintf(u->submit, sizeof u->submit, "/%s", name);
    else
        usrbiod_wait(u);
    json_decref(ready);
    return u->pid != 0;
}

/* Run usrbiod in a new directory, which usrbiod_end() removes.  Call usrbiod_end() also after
 * false. */
static inline bool
usrbiod_start(struct usrbiod *u, const char *const *arguments)
{
    *u = (struct usrbiod){ 0 };
    temp_dir_make(&u->dir);
    snprintf(u->backing, sizeof u->backing, "%s/backing", u->dir.path);
    snprintf(u->mount, sizeof u->mount, "%s/mount", u->dir.path);
    assert_int_equal(mkdir(u->backing, 0777), 0);
    assert_int_equal(mkdir(u->mount, 0777), 0);
    return usrbiod_run(u, arguments);
}

/* Kill usrbiod as a crash does.  Mount and semaphores remain until the next run. */
static inline void
usrbiod_kill(struct usrbiod *u)
{
    kill(u->pid, SIGKILL);
    usrbiod_wait(u);
}

/* End usrbiod, if running; unmount and remove the directory.  Return the exit status. */
static inline int
usrbiod_end(struct usrbiod *u)
{
    int status = u->pid ? usrbiod_wait(u) : 0;

    while (!umount2(u->mount, MNT_DETACH))
        continue;
    temp_dir_remove(&u->dir);
    return status;
}

/* Start usrbiod.  Return NULL, or the reason why usrbiod cannot run on this machine; then all
 * files are removed. */
static inline const char *
usrbiod_try(struct usrbiod *u)
{
    if (access(KVT_USRBIOD, X_OK) < 0)
        return "usrbiod is not built (libfuse3 is missing)";
    if (access("/dev/fuse", R_OK | W_OK) < 0)
        return "/dev/fuse cannot be used here";
    if (usrbiod_start(u, NULL))
        return NULL;
    usrbiod_end(u);
    return "FUSE cannot be mounted here";
}

/* The main() of a program whose tests share a daemon.  Without a daemon the tests are skipped.  A
 * failure of the daemon, for example by a sanitizer, is a failure of the program. */
static inline int
usrbiod_run_tests(struct usrbiod *u, const char *name, const struct CMUnitTest *tests,
                  size_t n_tests, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const char *missing = usrbiod_try(u);

    if (missing) {
        printf("skipped: %s: %s\n", name, missing);
        return 77;
    }
    int failed = _cmocka_run_group_tests(name, tests, n_tests, setup, teardown);
    int status = usrbiod_end(u);
    return failed || status;
}

/* Send a command and return the response, which the caller ends with json_decref(). */
static inline json_t *
usrbiod_request(struct usrbiod *u, const char *line)
{
    if (dprintf(u->in, "%s\n", line) < 0)
        fail_msg("usrbiod has ended");
    json_t *answer = usrbiod_read_response(u);
    if (!answer)
        fail_msg("usrbiod has ended");
    return answer;
}

/* Send a command and require the response "ok". */
static inline void
usrbiod_command(struct usrbiod *u, const char *line)
{
    json_t *answer = usrbiod_request(u, line);

    if (!json_is_true(json_object_get(answer, "ok")))
        fail_msg("%s: %s", line, json_string_value(json_object_get(answer, "error")));
    json_decref(answer);
}

/* Return a number of the command "stats". */
static inline double
usrbiod_count(struct usrbiod *u, const char *name)
{
    json_t *stats = usrbiod_request(u, "stats"), *value = json_object_get(stats, name);

    if (!json_is_number(value))
        fail_msg("usrbiod does not count %s", name);
    double n = json_number_value(value);
    json_decref(stats);
    return n;
}

#endif
