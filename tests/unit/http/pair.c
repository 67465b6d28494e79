/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/http/pair.h"

#include <stdlib.h>

struct script server;
struct kvt__http *http;
struct kvt__http_origin *origin;
unsigned char *into;

void
begin(void (*const *plays)(struct peer *), unsigned n_threads, unsigned max_requests)
{
    script_start(&server, plays, NULL);
    http = open_client(n_threads, max_requests);
    origin = origin_of(http, &server);
    into = calloc(1, BIG);
    assert_non_null(into);
}

void
end(void)
{
    kvt__http_close(http);
    script_stop(&server);
    free(into);
}

int
get(struct ask *ask)
{
    ask_init(ask, origin, "GET", "/x", into, BIG);
    return ask_run(http, ask);
}
