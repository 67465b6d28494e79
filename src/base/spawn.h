/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting a program.  It gets a process group of its own, so that all of it can be ended;
 * no descriptor of this process, whoever opened it; and no signal blocked or ignored.
 * Any thread. */
#ifndef KVT_BASE_SPAWN_H
#define KVT_BASE_SPAWN_H

#include <sys/types.h>

/* Start words[0], looked for in PATH if there is no slash in it, with its standard output
 * and error in the two descriptors (-1: nowhere) and nothing to read.  environment: NULL:
 * this process's.  0 or an errno. */
int kvt__spawn(char *const *words, const char *const *environment, int out, int complaints,
               pid_t *pid);

#endif
