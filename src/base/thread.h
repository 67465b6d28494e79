/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the library in the process of a host program.  The library's threads block all
 * signals, so signal handlers run on the host program's threads only. */
#ifndef KVT_BASE_THREAD_H
#define KVT_BASE_THREAD_H

#include <pthread.h>

/* Start a thread; the caller joins the thread.  name: at most 15 bytes.  Return 0, or -errno with
 * a sentence. */
int kvt__thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                      void *arg);

/* Initialize a condition variable whose timed waits use the clock of kvt__now_ns(). */
void kvt__cond_init(pthread_cond_t *cond);

#endif
