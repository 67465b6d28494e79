/* SPDX-License-Identifier: Apache-2.0
 *
 * credential_process: the words of the command line, and the program. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "files.h"
#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "tier/s3/credentials/private.h"

#define LONG_MS 60000

/* ---------------------------------------------------------------------- words */

/* Check the words of a line; words: expected words, separated by |. */
static void
expect_words(const char *line, const char *joined)
{
    char text[256] = "", **words;

    assert_int_equal(kvt__s3_split_words(line, &words), 0);
    for (size_t i = 0; words[i]; i++) {
        strcat(text, i ? "|" : "");
        strcat(text, words[i]);
    }
    free(words);
    assert_string_equal(text, joined);
}

static void
words_are_split_as_a_shell_does(void **state)
{
    (void)state;
    expect_words("a", "a");
    expect_words("  a\tb  c \n", "a|b|c");
    expect_words("\"/opt/my program/x\" --name 'a b'", "/opt/my program/x|--name|a b");
    expect_words("a\\ b \\\"c\\\"", "a b|\"c\"");
    expect_words("\"a\\\"b\\\\c\\d\" 'e\\'", "a\"b\\c\\d|e\\");
    expect_words("a\"b\"'c'd \"\" ''", "abcd||");
    expect_words("x\\", "x\\");
}

static void
nothing_is_expanded(void **state)
{
    (void)state;
    expect_words("a $HOME ~/x `id` $(id) *; b && c | d > e",
                 "a|$HOME|~/x|`id`|$(id)|*;|b|&&|c|||d|>|e");
}

static void
an_open_quote_or_no_word_is_an_error(void **state)
{
    char **words;

    (void)state;
    assert_int_equal(kvt__s3_split_words("a 'b", &words), -EINVAL);
    assert_int_equal(kvt__s3_split_words("a \"b\\\"", &words), -EINVAL);
    assert_int_equal(kvt__s3_split_words("\"", &words), -EINVAL);
    assert_int_equal(kvt__s3_split_words(" \t", &words), -ENOENT);
    assert_int_equal(kvt__s3_split_words("", &words), -ENOENT);
}

/* ------------------------------------------------------------------- programs */

struct fixture {
    struct temp_dir dir;
    char path[512]; /* path of the program */
};

static int
setup(void **state)
{
    static struct fixture f;

    temp_dir_make(&f.dir);
    snprintf(f.path, sizeof f.path, "%s/a program", f.dir.path);
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    temp_dir_remove(&f->dir);
    return 0;
}

/* Run a shell script as the program, with one argument. */
static int
run(const struct fixture *f, const char *script, int64_t timeout_ms, char **out, size_t *n)
{
    char text[1024], command[600];

    snprintf(text, sizeof text, "#!/bin/sh\n%s\n", script);
    write_file(f->path, text, strlen(text));
    assert_int_equal(chmod(f->path, 0700), 0);
    snprintf(command, sizeof command, "'%s' \"$one; argument\"", f->path);
    return kvt__s3_run_process(command, NULL, timeout_ms, NULL, out, n);
}

/* Check that the program fails with err, and that the sentence contains the text. */
static void
expect_failure(const struct fixture *f, const char *script, int64_t timeout_ms, int err,
               const char *why)
{
    size_t n = 0;
    char *out = NULL;

    assert_int_equal(run(f, script, timeout_ms, &out, &n), -err);
    if (!strstr(kvt__why(), why))
        fail_msg("%s: not in: %s", why, kvt__why());
}

static void
the_output_of_a_program_is_read(void **state)
{
    const struct fixture *f = *state;
    size_t n;
    char *out;

    assert_int_equal(run(f, "printf '%s' \"$#$1\"; echo noise >&2", LONG_MS, &out, &n), 0);
    assert_string_equal(out, "1$one; argument");
    assert_int_equal(n, strlen(out));
    free(out);
    assert_int_equal(run(f, "exec head -c 65536 /dev/zero", LONG_MS, &out, &n), 0);
    assert_int_equal(n, 65536);
    free(out);
}

static void
a_program_has_the_configured_environment(void **state)
{
    const struct fixture *f = *state;
    static const char script[] = "#!/bin/sh\necho \"$WORD.$HOME\"\n";
    const char *const environment[] = { "PATH=/usr/bin:/bin", "WORD=a b", NULL };
    char command[600], *out;
    size_t n;

    write_file(f->path, script, strlen(script));
    assert_int_equal(chmod(f->path, 0700), 0);
    snprintf(command, sizeof command, "'%s'", f->path);
    assert_int_equal(kvt__s3_run_process(command, environment, LONG_MS, NULL, &out,
                                         &n), 0);
    assert_string_equal(out, "a b.\n");
    free(out);
}

static void
the_program_inherits_no_descriptor(void **state)
{
    const struct fixture *f = *state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int leaks = fcntl(fd, F_DUPFD, 200); /* exec does not close this descriptor */
    char script[128], *out;
    size_t n;

    assert_true(leaks >= 200);
    snprintf(script, sizeof script, "[ -e /proc/$$/fd/%d ] && echo open; "
             "read line || echo no input", leaks);
    assert_int_equal(run(f, script, LONG_MS, &out, &n), 0);
    close(fd);
    close(leaks);
    assert_string_equal(out, "no input\n");
    free(out);
}

static void
the_program_inherits_no_blocked_or_ignored_signal(void **state)
{
    const struct fixture *f = *state;
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    void (*was)(int) = signal(SIGPIPE, SIG_IGN);
    expect_failure(f, "kill -PIPE $$; echo alive", LONG_MS, EIO, "ended by signal 13");
    expect_failure(f, "kill -TERM $$; echo alive", LONG_MS, EIO, "ended by signal 15");
    signal(SIGPIPE, was);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void
the_first_line_of_standard_error_is_reported(void **state)
{
    const struct fixture *f = *state;

    expect_failure(f, "echo hidden; "
                      "printf 'please log in\\tnow\\r\\nsecond\\n' >&2; exit 3",
                   LONG_MS, EIO, "exited with 3: please log in?now.");
    assert_null(strstr(kvt__why(), "second"));
    assert_null(strstr(kvt__why(), "hidden"));
    expect_failure(f, "exit 1", LONG_MS, EIO, "exited with 1.");
    expect_failure(f, "while :; do echo long; done | head -c 200000 | tr '\\n' ' ' >&2; "
                      "exit 1",
                   LONG_MS, EIO, "exited with 1: long long");
    assert_true(strlen(kvt__why()) < 200);
}

static void
more_output_than_keys_have_is_an_error(void **state)
{
    const struct fixture *f = *state;

    expect_failure(f, "exec head -c 65537 /dev/zero", LONG_MS, EMSGSIZE, "64 KiB");
    expect_failure(f, "while :; do echo endless; done", LONG_MS, EMSGSIZE, "64 KiB");
}

/* Wait until the process has ended.  The process that adopts an orphan may reap the orphan or
 * not. */
static void
wait_until_ended(int pid)
{
    char name[64], text[256];

    snprintf(name, sizeof name, "/proc/%d/stat", pid);
    for (bool ended = false; !ended;) {
        FILE *file = fopen(name, "r");

        ended = !file || !fgets(text, sizeof text, file) || strstr(text, ") Z");
        if (file)
            fclose(file);
    }
}

static void
a_program_that_hangs_is_killed_with_its_children(void **state)
{
    const struct fixture *f = *state;
    char path[600], script[700];
    int pid = 0;

    snprintf(path, sizeof path, "%s/pid", f->dir.path);
    snprintf(script, sizeof script, "sleep 1000 & echo $! >'%s'; wait", path);
    expect_failure(f, script, 500, ETIMEDOUT, "longer than 0.5 s");
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &pid) == 1) /* otherwise the script was killed before the echo */
        wait_until_ended(pid);
    if (file)
        fclose(file);
    expect_failure(f, "while :; do echo endless >&2; done", 300, ETIMEDOUT, "longer than");
}

struct stopper {
    char path[600]; /* path of the file with the program's process id */
    atomic_bool stop;
    int pid;
};

static void *
stop_when_it_runs(void *arg)
{
    struct stopper *s = arg;

    while (s->pid <= 0) {
        FILE *file = fopen(s->path, "r");

        if (!file || fscanf(file, "%d\n", &s->pid) != 1)
            usleep(1000);
        if (file)
            fclose(file);
    }
    atomic_store(&s->stop, true);
    return NULL;
}

static void
a_program_is_killed_when_the_store_closes(void **state)
{
    const struct fixture *f = *state;
    struct stopper s = { .pid = 0 };
    char script[2048], *out;
    pthread_t thread;
    size_t n;

    snprintf(s.path, sizeof s.path, "%s/pid", f->dir.path);
    snprintf(script, sizeof script, "#!/bin/sh\necho $$ >'%s.new'; mv '%s.new' '%s'; "
             "exec sleep 1000\n", s.path, s.path, s.path);
    write_file(f->path, script, strlen(script));
    assert_int_equal(chmod(f->path, 0700), 0);
    assert_int_equal(pthread_create(&thread, NULL, stop_when_it_runs, &s), 0);
    snprintf(script, sizeof script, "'%s'", f->path);
    int err = kvt__s3_run_process(script, NULL, LONG_MS, &s.stop, &out, &n);
    pthread_join(thread, NULL);
    assert_int_equal(err, -ECANCELED);
    assert_int_equal(kill(s.pid, 0), -1);
    assert_int_equal(errno, ESRCH);
}

/* A program may start an agent that continues to run and keeps standard error open. */
static void
remaining_children_are_not_waited_for(void **state)
{
    const struct fixture *f = *state;
    char *out;
    size_t n;

    assert_int_equal(run(f, "sleep 1000 >/dev/null & echo $!", LONG_MS, &out, &n), 0);
    assert_true(atoi(out) > 1);
    kill(atoi(out), SIGKILL);
    free(out);
}

static void
a_program_that_cannot_start_is_an_error(void **state)
{
    size_t n;
    char *out;

    (void)state;
    int err = kvt__s3_run_process("/no/such/program x", NULL, LONG_MS, NULL, &out, &n);
    if (err != -EIO) { /* under an emulator, the start succeeds and the program fails */
        assert_int_equal(err, -ENOENT);
        assert_non_null(strstr(kvt__why(), "/no/such/program"));
    }
    assert_int_equal(kvt__s3_run_process("a 'b", NULL, LONG_MS, NULL, &out, &n), -EINVAL);
}

static void
without_free_descriptors_no_other_descriptor_is_closed(void **state)
{
    struct rlimit was, none;
    char *out;
    size_t n;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    for (none.rlim_cur = 3; fcntl((int)none.rlim_cur, F_GETFD) >= 0;)
        none.rlim_cur++;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int err = kvt__s3_run_process("true", NULL, LONG_MS, NULL, &out, &n);
    none.rlim_cur += 3; /* enough for a single pipe */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int err_of_second = kvt__s3_run_process("true", NULL, LONG_MS, NULL, &out, &n);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(err, -EMFILE);
    assert_int_equal(err_of_second, -EMFILE);
    for (int fd = 0; fd < 3; fd++)
        assert_true(fcntl(fd, F_GETFD) >= 0);
}

/* Some host programs let the kernel reap children, or reap all children themselves. */
static void
a_program_that_was_reaped_counts_as_success(void **state)
{
    const struct fixture *f = *state;
    void (*was)(int) = signal(SIGCHLD, SIG_IGN);
    char *out;
    size_t n;

    assert_int_equal(run(f, "echo good; exit 1", LONG_MS, &out, &n), 0);
    signal(SIGCHLD, was);
    assert_string_equal(out, "good\n");
    free(out);
}

#define PROGRAM(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_split_as_a_shell_does),
        cmocka_unit_test(nothing_is_expanded),
        cmocka_unit_test(an_open_quote_or_no_word_is_an_error),
        PROGRAM(the_output_of_a_program_is_read),
        PROGRAM(a_program_has_the_configured_environment),
        PROGRAM(the_program_inherits_no_descriptor),
        PROGRAM(the_program_inherits_no_blocked_or_ignored_signal),
        PROGRAM(the_first_line_of_standard_error_is_reported),
        PROGRAM(more_output_than_keys_have_is_an_error),
        PROGRAM(a_program_that_hangs_is_killed_with_its_children),
        PROGRAM(a_program_is_killed_when_the_store_closes),
        PROGRAM(remaining_children_are_not_waited_for),
        PROGRAM(a_program_that_cannot_start_is_an_error),
        cmocka_unit_test(without_free_descriptors_no_other_descriptor_is_closed),
        PROGRAM(a_program_that_was_reaped_counts_as_success),
    };

    return cmocka_run_group_tests_name("s3, credential_process", tests, NULL, NULL);
}
