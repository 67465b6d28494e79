/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <unistd.h>

/* Close all descriptors above standard error.  kvtier's descriptors have O_CLOEXEC; descriptors of
 * the host program may not have O_CLOEXEC. */
static int
close_all(posix_spawn_file_actions_t *actions)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int err = 0;

    while (dir && !err && (entry = readdir(dir))) {
        int fd = atoi(entry->d_name);

        if (fd > STDERR_FILENO)
            err = posix_spawn_file_actions_addclose(actions, fd);
    }
    if (dir)
        closedir(dir);
    return err;
}

static int
set_file(posix_spawn_file_actions_t *actions, int from, int to)
{
    return from < 0 ? posix_spawn_file_actions_addopen(actions, to, "/dev/null", O_RDWR, 0)
                    : posix_spawn_file_actions_adddup2(actions, from, to);
}

static int
set_files(posix_spawn_file_actions_t *actions, int out_fd, int err_fd)
{
    int err = set_file(actions, out_fd, STDOUT_FILENO);

    if (!err)
        err = set_file(actions, err_fd, STDERR_FILENO);
    if (!err)
        err = set_file(actions, -1, STDIN_FILENO);
    return err ? err : close_all(actions);
}

static int
set_attributes(posix_spawnattr_t *attr)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attr, &none);
    posix_spawnattr_setsigdefault(attr, &all);
    posix_spawnattr_setpgroup(attr, 0);
    return posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
}

int
kvt__spawn(char *const *words, const char *const *environment, int out_fd, int err_fd,
           pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;

    if (posix_spawn_file_actions_init(&actions))
        return ENOMEM;
    int err = posix_spawnattr_init(&attr);
    if (!err) {
        err = set_files(&actions, out_fd, err_fd);
        if (!err)
            err = set_attributes(&attr);
        if (!err)
            err = posix_spawnp(pid, words[0], &actions, &attr, words,
                               environment ? (char *const *)environment : environ);
        posix_spawnattr_destroy(&attr);
    }
    posix_spawn_file_actions_destroy(&actions);
    return err;
}
