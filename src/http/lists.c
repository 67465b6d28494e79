/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of a thread, and waking the thread. */
#include <unistd.h>

#include "http/private.h"

void
kvt__http_wake(struct kvt__http_thread *t)
{
    uint64_t one = 1;
    ssize_t n = write(t->event, &one, sizeof one);

    (void)n; /* the write fails if the counter is full, and then the thread wakes anyway */
}

void
kvt__http_append(struct kvt__http_list *list, struct kvt__http_request *req)
{
    req->own.list = list;
    req->own.next = NULL;
    req->own.prev = list->last;
    if (list->last)
        list->last->own.next = req;
    else
        list->first = req;
    list->last = req;
}

void
kvt__http_unlink(struct kvt__http_request *req)
{
    struct kvt__http_list *list = req->own.list;

    if (req->own.prev)
        req->own.prev->own.next = req->own.next;
    else
        list->first = req->own.next;
    if (req->own.next)
        req->own.next->own.prev = req->own.prev;
    else
        list->last = req->own.prev;
    req->own.list = NULL;
}

void
kvt__http_link_conn(struct kvt__http_conns *list, struct kvt__http_conn *conn)
{
    conn->prev = NULL;
    conn->next = list->first;
    if (list->first)
        list->first->prev = conn;
    else
        list->last = conn;
    list->first = conn;
}

void
kvt__http_unlink_conn(struct kvt__http_conns *list, struct kvt__http_conn *conn)
{
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        list->first = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    else
        list->last = conn->prev;
}
