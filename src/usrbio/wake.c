/* SPDX-License-Identifier: Apache-2.0
 *
 * Waking of a session's transfers. */
#include "usrbio/private.h"

void
kvt__usrbio_wake(struct kvt__usrbio_transfer *transfer)
{
    transfer->is_woken = true;
    pthread_cond_signal(&transfer->wake);
}

void
kvt__usrbio_wake_first(struct kvt__usrbio_session *session)
{
    if (session->first_waiting)
        kvt__usrbio_wake(session->first_waiting);
}

void
kvt__usrbio_wake_all(struct kvt__usrbio_session *session)
{
    for (struct kvt__usrbio_transfer *t = session->transfers; t; t = t->next)
        kvt__usrbio_wake(t);
}

void
kvt__usrbio_session_mark_dead(struct kvt__usrbio_session *session)
{
    pthread_mutex_lock(&session->lock);
    session->dead = true;
    for (uint32_t i = 0; i < session->n_rings; i++)
        pthread_cond_signal(&session->rings[i].work);
    kvt__usrbio_wake_all(session);
    pthread_mutex_unlock(&session->lock);
}
