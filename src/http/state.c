/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a connection, and closing a socket. */
#include <sys/epoll.h>
#include <unistd.h>

#include "http/private.h"

void
kvt__http_set_state(struct kvt__http_conn *conn, enum kvt__http_state state)
{
    conn->thread->n_resolving += state == KVT__HTTP_RESOLVE;
    conn->thread->n_resolving -= conn->state == KVT__HTTP_RESOLVE;
    conn->state = state;
    conn->progress_ns = kvt__now_ns();
}

/* Remove the socket from the epoll before the close: a forked process may hold a copy, and
 * the epoll would then report events of a freed connection. */
void
kvt__http_close_fd(struct kvt__http_thread *t, int fd)
{
    epoll_ctl(t->epoll, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
}
