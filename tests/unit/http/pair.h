/* SPDX-License-Identifier: Apache-2.0
 *
 * A server and a client, for tests that need no other. */
#ifndef HTTP_PAIR_H
#define HTTP_PAIR_H

#include "unit/http/script.h"

#define BIG ((size_t)5 << 20)

extern struct script server;
extern struct kvt__http *http;
extern struct kvt__http_origin *origin; /* of the server */
extern unsigned char *into;             /* BIG bytes for responses, zeroed by begin() */

void begin(void (*const *plays)(struct peer *), unsigned n_threads, unsigned max_requests);
void end(void);

/* Run GET /x from `origin` to `into`.  Return the request's status. */
int get(struct ask *ask);

/* Return a number that increases with the number of open descriptors of this process. */
unsigned count_descriptors(void);

/* Fork a child that keeps copies of all descriptors until end_idle_child(). */
pid_t start_idle_child(void);
void end_idle_child(pid_t child);

#endif
