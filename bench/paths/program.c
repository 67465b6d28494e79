/* SPDX-License-Identifier: Apache-2.0
 *
 * Start other programs, communicate with them over pipes, and end them.  A started program ends
 * when its standard input is closed, and when this process ends or is killed. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

bool
bench_program_path(const char *name, char *out, size_t size)
{
    char self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    snprintf(out, size, "%s/%s", *name == '/' ? "" : self, name);
    return !access(out, R_OK);
}

bool
bench_program_test_path(const char *name, char *out, size_t size)
{
    char below[256];

    snprintf(below, sizeof below, "tests/%s", name);
    return bench_program_path(below, out, size);
}

static void
run(char **args, int in, int out, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0); /* SIGINT of the terminal must not end the program before */
    if (getppid() == parent && dup2(in, 0) >= 0 && dup2(out, 1) >= 0)
        execv(args[0], args);
    _exit(127);
}

int
bench_program_start(struct bench_program *program, char **args)
{
    int in[2], out[2];
    pid_t parent = getpid();

    if (pipe2(in, O_CLOEXEC) < 0)
        return errno;
    if (pipe2(out, O_CLOEXEC) < 0) {
        int err = errno;
        close(in[0]);
        close(in[1]);
        return err;
    }
    program->pid = fork();
    if (!program->pid)
        run(args, in[0], out[1], parent);
    int err = program->pid < 0 ? errno : 0;

    close(in[0]);
    close(out[1]);
    program->in = in[1];
    program->out = out[0];
    return err;
}

json_t *
bench_program_read_json(const struct bench_program *program)
{
    char line[2048];
    size_t n = 0;

    while (n < sizeof line - 1 && read(program->out, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    return json_loads(line, 0, NULL);
}

void
bench_program_close_input(struct bench_program *program)
{
    if (program->in >= 0)
        close(program->in);
    program->in = -1;
}

int
bench_program_end(struct bench_program *program)
{
    int status = 0;

    bench_program_close_input(program);
    while (program->pid > 0 && waitpid(program->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (program->out >= 0)
        close(program->out);
    *program = BENCH_NO_PROGRAM;
    return status;
}
