/* SPDX-License-Identifier: Apache-2.0
 *
 * One server and one client, for a test that needs no more. */
#ifndef HTTP_PAIR_H
#define HTTP_PAIR_H

#include "unit/http/script.h"

#define BIG ((size_t)5 << 20)

extern struct script server;
extern struct kvt__http *http;
extern struct kvt__http_origin *origin; /* the server's */
extern unsigned char *into;             /* BIG bytes for what comes, all 0 at first */

void begin(void (*const *plays)(struct peer *), unsigned n_threads, unsigned max_requests);
void end(void);

/* GET /x from origin into into; its status. */
int get(struct ask *ask);

/* Return a number that grows with the open descriptors of this process. */
unsigned count_descriptors(void);

/* Fork a child that keeps copies of all descriptors until end_idle_child(). */
pid_t start_idle_child(void);
void end_idle_child(pid_t child);

#endif
