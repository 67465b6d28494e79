/* SPDX-License-Identifier: Apache-2.0
 *
 * Start a program.  The program gets a new process group, so that the caller can kill the program
 * with all its children.  The program inherits no other descriptor of this process, and no
 * blocked or ignored signal.  Any thread. */
#ifndef KVT_BASE_SPAWN_H
#define KVT_BASE_SPAWN_H

#include <sys/types.h>

/* Start the program words[0] with the arguments words, terminated by NULL.  A name without a slash
 * is searched in PATH.  out_fd and err_fd: descriptors for standard output and standard error;
 * -1: /dev/null.  Standard input is /dev/null.  environment: NULL: the environment of this
 * process.  The caller waits for *pid.  Return 0 or an errno (positive, without a sentence). */
int kvt__spawn(char *const *words, const char *const *environment, int out_fd, int err_fd,
               pid_t *pid);

#endif
