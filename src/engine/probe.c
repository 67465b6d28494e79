/* SPDX-License-Identifier: Apache-2.0
 *
 * Search the tiers, in the background, for chunks of a sequence that the indexes lack.
 *
 * In prefix order (KVT__PROBE_ALL, KVT__PROBE_GUARANTEED): probe several objects at a time, until
 * an object is missing.  The window begins with 2 objects and doubles with each found object.
 *
 * By a gallop (KVT__PROBE_GALLOP), if a promise needs a read of all chunks: probe objects of the
 * first rank, one at a time: of chunks 1, 2, 4, ... of the range until an object is missing, then
 * of the chunk halfway.  The chunks below an existing chunk, of all ranks, enter the index as
 * unread.  Workers read these chunks during the search, and a read of a missing chunk deletes the
 * entry.
 *
 * probe->lock guards the fields that change.  No other lock is taken under probe->lock. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/seq.h"

#define FIRST_WINDOW 2
#define MAX_WINDOW 64
#define MAX_WINDOWS 4 /* searches KVT__PROBE_WINDOWS of a sequence, for shorter and shorter hits */

/* A probe of an object. */
struct part_probe {
    struct kvt__store_req req; /* must be the first member */
    struct kvt__probe *probe;
    struct kvt__space space; /* space with the sequence's tags; unused without tags */
    size_t part;
};

/* A search.  The sequence and the requests in progress share the struct. */
struct kvt__probe {
    struct kvt_engine *engine;
    pid_t pid; /* copy of engine->pid: the engine may be closed before the sequence is freed */
    char tags[KVT__KEY_TAGS_MAX + 1];
    enum kvt__probe_kind kind;
    uint64_t max_hit;   /* WINDOWS: as in struct kvt__promise */
    size_t first;       /* the number of chunks[0] in the sequence */
    struct kvt__job job; /* WINDOWS */
    pthread_mutex_t lock;
    unsigned refs;    /* a reference of the sequence, and of each request in progress */
    atomic_bool is_abandoned; /* the sequence has left the search */
    size_t next;      /* next part to probe; parts are numbered chunk by chunk, each chunk with all
                       * ranks and groups.  GALLOP: number of chunks that exist */
    size_t end;       /* end of the parts to probe: a chunk is missing there.  GALLOP: number of
                       * chunks that may exist */
    bool has_miss;    /* GALLOP: the chunk at end is missing */
    size_t n_in_progress; /* requests in progress */
    size_t window;    /* largest n_in_progress */
    struct kvt_chunk chunks[];
};

static bool
is_done_locked(const struct kvt__probe *p)
{
    return !p->n_in_progress && (p->is_abandoned || p->next >= p->end);
}

bool
kvt__probe_is_running(struct kvt__probe *probe, bool *gallops, size_t *known)
{
    pthread_mutex_lock(&probe->lock);
    bool done = is_done_locked(probe);
    *gallops = probe->kind == KVT__PROBE_GALLOP;
    *known = probe->next;
    pthread_mutex_unlock(&probe->lock);
    return !done;
}

/* Drop a reference, and unlock p->lock, which the caller holds. */
static void
unref_locked(struct kvt__probe *probe)
{
    assert(probe->refs);
    bool last = !--probe->refs;

    assert(!last || (probe->is_abandoned && !probe->n_in_progress));
    pthread_mutex_unlock(&probe->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&probe->lock);
    free(probe);
}

void
kvt__probe_abandon(struct kvt__probe *probe)
{
    if (!probe || probe->pid != getpid())
        return;
    pthread_mutex_lock(&probe->lock);
    assert(!probe->is_abandoned);
    probe->is_abandoned = true;
    unref_locked(probe);
}

/* Find rank and group of a part.  Return false if no probe is needed: all ranks share the object of
 * the first rank. */
static bool
find_part(const struct kvt__probe *p, size_t part, uint32_t *rank, uint32_t *group)
{
    const struct kvt_engine *e = p->engine;
    uint32_t i = (uint32_t)(part % kvt__n_parts(e));

    *rank = i / e->n_groups;
    *group = i % e->n_groups;
    return !*rank || !e->groups[*group].replicated;
}

/* Fill in a request for the object of a chunk, by its number in p->chunks.  own: memory for
 * the space, as long as req. */
static void
describe(struct kvt__probe *p, size_t chunk, uint32_t rank, uint32_t group,
         struct kvt__space *own, struct kvt__store_req *req)
{
    const struct kvt__space *space = kvt__engine_space(p->engine, rank, group, p->tags, own);

    kvt__fill_request(p->engine, rank, group, space, &p->chunks[chunk], req);
    req->op = KVT__TIER_PROBE;
    req->where = p->kind == KVT__PROBE_GUARANTEED ? KVT__GUARANTEED : KVT__ANYWHERE;
}

/* -------------------------------------------------------------- expected chunks */

/* Enter a group's chunks from .. end - 1 of p->chunks, of all ranks, as unread. */
static void
enter_unread(struct kvt__probe *p, uint32_t group, size_t from, size_t end)
{
    const struct kvt_engine *e = p->engine;
    uint32_t n_ranks = e->groups[group].replicated ? 1 : e->world_size;

    for (size_t c = from; c < end && !atomic_load(&p->is_abandoned); c++) {
        for (uint32_t rank = 0; rank < n_ranks; rank++) {
            struct kvt__store_req req = { 0 };
            struct kvt__space own;

            describe(p, c, rank, group, &own, &req);
            kvt__store_enter_unread(e->store, &req);
        }
    }
}

static void
enter_full_groups(struct kvt__probe *p, size_t from, size_t end)
{
    for (uint32_t g = 0; g < p->engine->n_groups; g++)
        if (p->engine->groups[g].kind == KVT_GROUP_FULL)
            enter_unread(p, g, from, end);
}

/* Job of KVT__PROBE_WINDOWS: enter the windows of a hit of all chunks as unread. */
static void
enter_windows(struct kvt__job *job)
{
    struct kvt__probe *p = (struct kvt__probe *)
        ((char *)job - offsetof(struct kvt__probe, job));
    const struct kvt_engine *e = p->engine;
    size_t n = p->first + p->end;

    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind != KVT_GROUP_FULL)
            enter_unread(p, g, kvt__first_needed_chunk(e, p->max_hit, g, p->first, n) - p->first,
                         p->end);
    pthread_mutex_lock(&p->lock);
    assert(p->n_in_progress == 1 && !p->next);
    p->next = p->end;
    p->n_in_progress--;
    unref_locked(p);
}

/* -------------------------------------------------------------------- requests */

static uint32_t
first_full_group(const struct kvt_engine *e)
{
    uint32_t g = 0;

    while (g < e->n_groups && e->groups[g].kind != KVT_GROUP_FULL)
        g++;
    return g;
}

/* Choose the next part to probe.  Return false if no request may start now. */
static bool
next_part_locked(struct kvt__probe *p, size_t *part)
{
    uint32_t rank, group;

    if (p->kind == KVT__PROBE_GALLOP) {
        size_t n = p->has_miss ? (p->next + p->end + 1) / 2 : p->next ? 2 * p->next : 1;

        n = n < p->end ? n : p->end;
        *part = p->next < p->end
            ? (n - 1) * kvt__n_parts(p->engine) + first_full_group(p->engine) : 0;
        return p->next < p->end && !p->n_in_progress;
    }
    while (p->next < p->end && !find_part(p, p->next, &rank, &group))
        p->next++;
    *part = p->next;
    return p->next < p->end && p->n_in_progress < p->window;
}

static void on_probed(struct kvt__store_req *req);

/* Allocate and fill in the next request.  NULL: no request may start now. */
static struct part_probe *
next_locked(struct kvt__probe *p)
{
    uint32_t rank, group;
    size_t part;

    if (p->is_abandoned || !next_part_locked(p, &part))
        return NULL;
    struct part_probe *a = malloc(sizeof *a);
    if (!a) { /* without memory, the search ends here */
        p->end = p->next;
        return NULL;
    }
    *a = (struct part_probe){ .probe = p, .part = part, .req.on_done = on_probed };
    (void)find_part(p, part, &rank, &group);
    describe(p, part / kvt__n_parts(p->engine), rank, group, &a->space, &a->req);
    if (p->kind != KVT__PROBE_GALLOP)
        p->next++;
    p->n_in_progress++;
    p->refs++;
    return a;
}

/* Start requests until the window is full. */
static void
start_requests(struct kvt__probe *p)
{
    struct part_probe *a;

    do {
        pthread_mutex_lock(&p->lock);
        a = next_locked(p);
        pthread_mutex_unlock(&p->lock);
        if (a)
            kvt__store_submit(p->engine->store, &a->req);
    } while (a);
}

/* Note a probed part of a search in prefix order.  A missing chunk ends the prefix, except in a
 * sliding group: sliding groups store only some chunks. */
static void
note_part_locked(struct kvt__probe *p, size_t part, bool exists)
{
    const struct kvt_engine *e = p->engine;
    size_t chunk_begin = part - part % kvt__n_parts(e);

    assert(part < p->next);
    if (exists)
        p->window = p->window * 2 < MAX_WINDOW ? p->window * 2 : MAX_WINDOW;
    else if (e->groups[part % e->n_groups].kind == KVT_GROUP_FULL && chunk_begin < p->end)
        p->end = chunk_begin;
}

/* Note a probed chunk of a gallop. */
static void
note_chunk_locked(struct kvt__probe *p, size_t chunk, bool exists)
{
    assert(!p->n_in_progress && p->next <= chunk && chunk < p->end);
    if (exists) {
        p->next = chunk + 1;
    } else {
        p->end = chunk;
        p->has_miss = true;
    }
}

static void
on_probed(struct kvt__store_req *req)
{
    struct part_probe *a = (struct part_probe *)req;
    struct kvt__probe *p = a->probe;
    size_t chunk = a->part / kvt__n_parts(p->engine);
    bool gallops = p->kind == KVT__PROBE_GALLOP, exists = !req->error.code;

    if (gallops && exists) /* no other request is in progress, so p->next does not change */
        enter_full_groups(p, p->next, chunk + 1);
    pthread_mutex_lock(&p->lock);
    assert(p->n_in_progress);
    p->n_in_progress--;
    if (gallops)
        note_chunk_locked(p, chunk, exists);
    else
        note_part_locked(p, a->part, exists);
    pthread_mutex_unlock(&p->lock);
    free(a);
    start_requests(p);
    pthread_mutex_lock(&p->lock);
    unref_locked(p);
}

/* -------------------------------------------------------------------- searches */

/* Start a search for chunks first .. end - 1.  0; -ENOMEM with a sentence. */
static int
begin(struct kvt_seq *seq, enum kvt__probe_kind kind, size_t first, size_t end)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *promise = &seq->promise;
    size_t n = end - first;

    assert(first < end && end <= seq->n_chunks + seq->tail_known);
    struct kvt__probe *probe = calloc(1, sizeof *probe + n * sizeof *probe->chunks);

    if (!probe)
        return kvt__fail(ENOMEM, "kvt_engine_lookup");
    pthread_mutex_init(&probe->lock, NULL);
    probe->engine = e;
    probe->pid = e->pid;
    memcpy(probe->tags, seq->tags, sizeof probe->tags);
    probe->kind = kind;
    probe->max_hit = promise->max_hit;
    probe->first = first;
    probe->refs = 1;
    probe->end = kind == KVT__PROBE_ALL || kind == KVT__PROBE_GUARANTEED
        ? n * kvt__n_parts(e) : n;
    probe->window = FIRST_WINDOW;
    memcpy(probe->chunks, seq->chunks + first, n * sizeof *probe->chunks);
    kvt__probe_abandon(promise->probe);
    promise->probe = probe;
    promise->started_probes |= kind;
    promise->n_window_probes += kind == KVT__PROBE_WINDOWS;
    if (kind != KVT__PROBE_WINDOWS) {
        start_requests(probe);
        return 0;
    }
    probe->refs++;
    probe->n_in_progress++;
    probe->job.run = enter_windows;
    kvt__exec_submit(e->exec, KVT__PRIO_LOOKUP, &probe->job);
    return 0;
}

/* Return true if a gallop is allowed: some storage needs a read before a promise, for each rank, so
 * no promise relies on an unread entry. */
static bool
can_gallop(const struct kvt_engine *e)
{
    uint32_t group = first_full_group(e);

    if (!e->lookups_wait || group == e->n_groups)
        return false;
    for (uint32_t rank = 0; rank < e->world_size; rank++)
        if (!kvt__store_can_probe(e->store, KVT__READ_FIRST,
                                &kvt__keyspace(e, rank, group)->space))
            return false;
    return true;
}

int
kvt__probe_start(struct kvt_seq *seq, size_t full, size_t end)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__space *space = &kvt__keyspace(e, 0, 0)->space;
    const struct kvt__promise *p = &seq->promise;
    uint32_t made = p->started_probes;

    assert(p->first <= p->n && p->n <= full && full <= end && p->n < end);
    if (made & KVT__PROBE_ALL || !kvt__store_can_probe(e->store, KVT__ANYWHERE, space))
        return -ENOENT;
    if (!made && !can_gallop(e))
        return begin(seq, KVT__PROBE_ALL, p->n, end);
    if (!made && kvt__store_can_probe(e->store, KVT__GUARANTEED, space))
        return begin(seq, KVT__PROBE_GUARANTEED, p->n, end);
    if (made < KVT__PROBE_GALLOP && full < end)
        return begin(seq, KVT__PROBE_GALLOP, full, end);
    if (p->n_window_probes < MAX_WINDOWS && p->n < full)
        return begin(seq, KVT__PROBE_WINDOWS, p->first, full);
    return -ENOENT;
}
