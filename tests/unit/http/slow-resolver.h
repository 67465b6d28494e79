/* SPDX-License-Identifier: Apache-2.0
 *
 * A resolver that takes as long as a test wants, in place of libc's.  For one file of a
 * program. */
#ifndef HTTP_SLOW_RESOLVER_H
#define HTTP_SLOW_RESOLVER_H

#include <netdb.h>
#include <semaphore.h>

static sem_t may_resolve; /* main() makes it; once for each name */

int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
            struct addrinfo **out)
{
    (void)name;
    (void)service;
    (void)hints;
    (void)out;
    sem_wait(&may_resolve);
    return EAI_NONAME;
}

#endif
