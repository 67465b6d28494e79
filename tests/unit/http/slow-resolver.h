/* SPDX-License-Identifier: Apache-2.0
 *
 * A replacement of libc's getaddrinfo() that blocks until the test permits the lookup, and then
 * fails.  Include this header in a single file of a program. */
#ifndef HTTP_SLOW_RESOLVER_H
#define HTTP_SLOW_RESOLVER_H

#include <netdb.h>
#include <semaphore.h>

static sem_t may_resolve; /* initialized by main(); post once for each lookup */

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
