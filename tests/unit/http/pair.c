/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/http/pair.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

unsigned
count_descriptors(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

pid_t
start_idle_child(void)
{
    pid_t child = fork();

    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    assert_true(child > 0);
    return child;
}

void
end_idle_child(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}
