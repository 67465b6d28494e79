/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking the tiers, in the background, for the chunks of a sequence that the indexes
 * lack: in prefix order, some at a time, until one is missing.  The more were there, the
 * more are asked for at once; at first hardly more than are needed to see that there is
 * nothing.
 *
 * probe->lock guards all that changes; it is a leaf. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/private.h"

#define FIRST_WINDOW 2
#define MAX_WINDOW 64

/* One object that is being asked for. */
struct asked {
    struct kvt__store_req req;
    struct kvt__probe *probe;
    size_t part;
    struct asked *next_free;
};

/* Shared by the sequence and the requests under way. */
struct kvt__probe {
    struct kvt_engine *engine;
    char tags[KVT__KEY_TAGS_MAX + 1];
    pthread_mutex_t lock;
    unsigned refs;    /* the sequence's, and one for each request */
    bool alone;       /* its sequence is no more: nobody waits for the answer */
    size_t next;      /* part to ask for: chunk after chunk, each of all ranks and groups */
    size_t end;       /* from here on nothing is asked for: a chunk is missing */
    size_t n_asked;   /* under way */
    size_t window;
    struct asked *free;
    struct kvt_chunk chunks[];
};

static size_t
parts_of_chunk(const struct kvt_engine *e)
{
    return (size_t)e->world_size * e->n_groups;
}

static bool
is_done_locked(const struct kvt__probe *p)
{
    return !p->n_asked && (p->alone || p->next >= p->end);
}

bool
kvt__probe_is_done(struct kvt__probe *probe)
{
    pthread_mutex_lock(&probe->lock);
    bool done = is_done_locked(probe);
    pthread_mutex_unlock(&probe->lock);
    return done;
}

/* Give back one reference; the lock is held, and is not any more. */
static void
unref_locked(struct kvt__probe *probe)
{
    bool last = !--probe->refs;

    pthread_mutex_unlock(&probe->lock);
    if (!last)
        return;
    while (probe->free) {
        struct asked *a = probe->free;

        probe->free = a->next_free;
        free(a);
    }
    pthread_mutex_destroy(&probe->lock);
    free(probe);
}

void
kvt__probe_leave(struct kvt__probe *probe)
{
    pthread_mutex_lock(&probe->lock);
    probe->alone = true;
    unref_locked(probe);
}

/* What a part is of.  False: it need not be asked for, the first rank's object is every
 * rank's. */
static bool
find_part(const struct kvt__probe *p, size_t part, uint32_t *rank, uint32_t *group)
{
    const struct kvt_engine *e = p->engine;
    uint32_t i = (uint32_t)(part % parts_of_chunk(e));

    *rank = i / e->n_groups;
    *group = i % e->n_groups;
    return !*rank || !e->groups[*group].replicated;
}

/* Fill in what is asked for. */
static void
describe(struct asked *a, uint32_t rank, uint32_t group)
{
    struct kvt__probe *p = a->probe;
    const struct kvt_engine *e = p->engine;

    kvt__load_request(e, rank, group, p->tags, &p->chunks[a->part / parts_of_chunk(e)],
                      &a->req);
    a->req.op = KVT__STORE_PROBE;
}

/* From the chunk of a part on there is no hit. */
static void
end_at_locked(struct kvt__probe *p, size_t part)
{
    size_t end = part - part % parts_of_chunk(p->engine);

    if (end < p->end)
        p->end = end;
}

static void was_asked(struct kvt__store_req *req);

/* The next request, described; NULL: none now. */
static struct asked *
next_locked(struct kvt__probe *p)
{
    uint32_t rank, group;

    while (p->next < p->end && !find_part(p, p->next, &rank, &group))
        p->next++;
    if (p->alone || p->next >= p->end || p->n_asked >= p->window)
        return NULL;
    struct asked *a = p->free ? p->free : malloc(sizeof *a);
    if (a == p->free && a)
        p->free = a->next_free;
    if (!a) { /* what is not known is a miss */
        end_at_locked(p, p->next);
        return NULL;
    }
    *a = (struct asked){ .probe = p, .part = p->next, .req.done = was_asked };
    describe(a, rank, group);
    p->next++;
    p->n_asked++;
    p->refs++;
    return a;
}

/* Ask for as much as the window lets. */
static void
pump(struct kvt__probe *p)
{
    struct asked *a;

    do {
        pthread_mutex_lock(&p->lock);
        a = next_locked(p);
        pthread_mutex_unlock(&p->lock);
        if (a)
            kvt__store_submit(p->engine->store, &a->req);
    } while (a);
}

/* Sliding groups have gaps: a miss there does not end the prefix. */
static void
was_asked(struct kvt__store_req *req)
{
    struct asked *a = (struct asked *)req;
    struct kvt__probe *p = a->probe;
    const struct kvt_engine *e = p->engine;
    bool full = e->groups[a->part % e->n_groups].kind == KVT_GROUP_FULL;

    pthread_mutex_lock(&p->lock);
    p->n_asked--;
    if (!req->status)
        p->window = p->window * 2 < MAX_WINDOW ? p->window * 2 : MAX_WINDOW;
    else if (full)
        end_at_locked(p, a->part);
    a->next_free = p->free;
    p->free = a;
    pthread_mutex_unlock(&p->lock);
    pump(p);
    pthread_mutex_lock(&p->lock);
    unref_locked(p);
}

int
kvt__probe_start(struct kvt_seq *seq, size_t first, size_t n)
{
    struct kvt__probe *probe = calloc(1, sizeof *probe + n * sizeof *probe->chunks);

    if (!probe)
        return kvt__fail(ENOMEM, "kvt_engine_lookup");
    pthread_mutex_init(&probe->lock, NULL);
    probe->engine = seq->engine;
    memcpy(probe->tags, seq->tags, sizeof probe->tags);
    probe->refs = 1;
    probe->end = n * parts_of_chunk(seq->engine);
    probe->window = FIRST_WINDOW;
    memcpy(probe->chunks, seq->chunks + first, n * sizeof *probe->chunks);
    seq->probe = probe;
    seq->probe_until_ns = kvt__now_ns() + seq->engine->lookup_timeout_ns;
    pump(probe);
    return 0;
}
