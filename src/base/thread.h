/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of a library in someone else's process: they block every signal, so
 * that the program's handlers run on its own threads. */
#ifndef KVT_BASE_THREAD_H
#define KVT_BASE_THREAD_H

#include <pthread.h>

/* name: at most 15 bytes.  0 or -errno with a sentence. */
int kvt__thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                      void *arg);

/* A condition whose waits with a time are on the clock of kvt__now_ns(). */
void kvt__cond_init(pthread_cond_t *cond);

#endif
