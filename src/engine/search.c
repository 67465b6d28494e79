/* SPDX-License-Identifier: Apache-2.0
 *
 * Search the tiers, in the background, for chunks of a sequence that the indexes lack.
 *
 * In prefix order (KVT__SEARCH_ALL, KVT__SEARCH_GUARANTEED): probe several objects at a time, until
 * an object is missing.  The window begins with 2 objects and doubles with each found object.
 *
 * By a gallop (KVT__SEARCH_GALLOP), if a promise needs a read of all chunks: probe objects of the
 * first rank, one at a time: of chunks 1, 2, 4, ... of the range until an object is missing, then
 * of the chunk halfway.  The chunks below an existing chunk, of all ranks, enter the index as
 * unread.  Workers read these chunks during the search, and a read of a missing chunk deletes the
 * entry.
 *
 * search->lock guards the fields that change.  No other lock is taken under search->lock. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/seq.h"

#define FIRST_WINDOW 2
#define MAX_WINDOW 64
#define MAX_WINDOWS 4 /* searches KVT__SEARCH_WINDOWS of a sequence, for shorter and shorter hits */

/* A probe of an object. */
struct part_probe {
    struct kvt__store_req req; /* must be the first member */
    struct kvt__search *search;
    struct kvt__space space; /* space with the sequence's tags; unused without tags */
    size_t part;
};

/* A search.  The sequence and the requests in progress share the struct. */
struct kvt__search {
    struct kvt_engine *engine;
    pid_t pid; /* copy of engine->pid: the engine may be closed before the sequence is freed */
    char tags[KVT__KEY_TAGS_MAX + 1];
    enum kvt__search_kind kind;
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
is_done_locked(const struct kvt__search *s)
{
    return !s->n_in_progress && (s->is_abandoned || s->next >= s->end);
}

bool
kvt__search_is_running(struct kvt__search *search, bool *gallops, size_t *known)
{
    pthread_mutex_lock(&search->lock);
    bool done = is_done_locked(search);
    *gallops = search->kind == KVT__SEARCH_GALLOP;
    *known = search->next;
    pthread_mutex_unlock(&search->lock);
    return !done;
}

/* Drop a reference, and unlock s->lock, which the caller holds. */
static void
unref_locked(struct kvt__search *search)
{
    assert(search->refs);
    bool last = !--search->refs;

    assert(!last || (search->is_abandoned && !search->n_in_progress));
    pthread_mutex_unlock(&search->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&search->lock);
    free(search);
}

void
kvt__search_abandon(struct kvt__search *search)
{
    if (!search || search->pid != getpid())
        return;
    pthread_mutex_lock(&search->lock);
    assert(!search->is_abandoned);
    search->is_abandoned = true;
    unref_locked(search);
}

/* Find rank and group of a part.  Return false if no probe is needed: a hit does not need the part,
 * or the ranks of a stage share the object of the stage's first rank. */
static bool
find_part(const struct kvt__search *s, size_t part, uint32_t *rank, uint32_t *group)
{
    const struct kvt_engine *e = s->engine;
    uint32_t i = (uint32_t)(part % kvt__n_keyspaces(e));

    *rank = i / e->n_groups;
    *group = i % e->n_groups;
    return *rank >= e->first_rank && *rank < e->end_rank &&
           (!e->groups[*group].replicated || *rank == e->first_rank ||
            *rank == kvt__first_of_stage(e, *rank));
}

/* Fill in a request for the object of a chunk, by its number in s->chunks.  own: memory for
 * the space, as long as req. */
static void
describe(struct kvt__search *s, size_t chunk, uint32_t rank, uint32_t group,
         struct kvt__space *own, struct kvt__store_req *req)
{
    const struct kvt__space *space = kvt__engine_space(s->engine, rank, group, s->tags, own);

    kvt__fill_request(s->engine, rank, group, space, &s->chunks[chunk], req);
    req->op = KVT__TIER_PROBE;
    req->where = s->kind == KVT__SEARCH_GUARANTEED ? KVT__GUARANTEED : KVT__ANYWHERE;
}

/* -------------------------------------------------------------- expected chunks */

/* Enter a group's chunks from .. end - 1 of s->chunks, of all ranks, as unread. */
static void
enter_unread(struct kvt__search *s, uint32_t group, size_t from, size_t end)
{
    const struct kvt_engine *e = s->engine;
    uint32_t step = e->groups[group].replicated ? e->world_size / e->n_stages : 1;

    for (size_t c = from; c < end && !atomic_load(&s->is_abandoned); c++) {
        for (uint32_t rank = e->first_rank; rank < e->end_rank; rank += step) {
            struct kvt__store_req req = { 0 };
            struct kvt__space own;

            describe(s, c, rank, group, &own, &req);
            kvt__store_enter_unread(e->store, &req);
        }
    }
}

static void
enter_full_groups(struct kvt__search *s, size_t from, size_t end)
{
    for (uint32_t g = 0; g < s->engine->n_groups; g++)
        if (s->engine->groups[g].kind == KVT_GROUP_FULL)
            enter_unread(s, g, from, end);
}

/* Job of KVT__SEARCH_WINDOWS: enter the windows of a hit of all chunks as unread. */
static void
enter_windows(struct kvt__job *job)
{
    struct kvt__search *s = (struct kvt__search *)
        ((char *)job - offsetof(struct kvt__search, job));
    const struct kvt_engine *e = s->engine;
    size_t n = s->first + s->end;

    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind != KVT_GROUP_FULL)
            enter_unread(s, g, kvt__first_needed_chunk(e, s->max_hit, g, s->first, n) - s->first,
                         s->end);
    pthread_mutex_lock(&s->lock);
    assert(s->n_in_progress == 1 && !s->next);
    s->next = s->end;
    s->n_in_progress--;
    unref_locked(s);
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
next_part_locked(struct kvt__search *s, size_t *part)
{
    uint32_t rank, group;

    if (s->kind == KVT__SEARCH_GALLOP) {
        size_t n = s->has_miss ? (s->next + s->end + 1) / 2 : s->next ? 2 * s->next : 1;

        n = n < s->end ? n : s->end;
        *part = s->next < s->end
            ? kvt__lease_index(s->engine, n - 1, s->engine->first_rank,
                               first_full_group(s->engine)) : 0;
        return s->next < s->end && !s->n_in_progress;
    }
    while (s->next < s->end && !find_part(s, s->next, &rank, &group))
        s->next++;
    *part = s->next;
    return s->next < s->end && s->n_in_progress < s->window;
}

static void on_probed(struct kvt__store_req *req);

/* Allocate and fill in the next request.  NULL: no request may start now. */
static struct part_probe *
next_locked(struct kvt__search *s)
{
    uint32_t rank, group;
    size_t part;

    if (s->is_abandoned || !next_part_locked(s, &part))
        return NULL;
    struct part_probe *a = malloc(sizeof *a);
    if (!a) { /* without memory, the search ends here */
        s->end = s->next;
        return NULL;
    }
    *a = (struct part_probe){ .search = s, .part = part, .req.on_done = on_probed };
    (void)find_part(s, part, &rank, &group);
    describe(s, part / kvt__n_keyspaces(s->engine), rank, group, &a->space, &a->req);
    if (s->kind != KVT__SEARCH_GALLOP)
        s->next++;
    s->n_in_progress++;
    s->refs++;
    return a;
}

/* Start requests until the window is full. */
static void
start_requests(struct kvt__search *s)
{
    struct part_probe *a;

    do {
        pthread_mutex_lock(&s->lock);
        a = next_locked(s);
        pthread_mutex_unlock(&s->lock);
        if (a)
            kvt__store_submit(s->engine->store, &a->req);
    } while (a);
}

/* Note a probed part of a search in prefix order.  A missing chunk ends the prefix, except in a
 * sliding group: sliding groups store only some chunks. */
static void
note_part_locked(struct kvt__search *s, size_t part, bool exists)
{
    const struct kvt_engine *e = s->engine;
    size_t chunk_begin = part - part % kvt__n_keyspaces(e);

    assert(part < s->next);
    if (exists)
        s->window = s->window * 2 < MAX_WINDOW ? s->window * 2 : MAX_WINDOW;
    else if (e->groups[part % e->n_groups].kind == KVT_GROUP_FULL && chunk_begin < s->end)
        s->end = chunk_begin;
}

/* Note a probed chunk of a gallop. */
static void
note_chunk_locked(struct kvt__search *s, size_t chunk, bool exists)
{
    assert(!s->n_in_progress && s->next <= chunk && chunk < s->end);
    if (exists) {
        s->next = chunk + 1;
    } else {
        s->end = chunk;
        s->has_miss = true;
    }
}

static void
on_probed(struct kvt__store_req *req)
{
    struct part_probe *a = (struct part_probe *)req;
    struct kvt__search *s = a->search;
    size_t chunk = a->part / kvt__n_keyspaces(s->engine);
    bool gallops = s->kind == KVT__SEARCH_GALLOP, exists = !req->error.code;

    if (gallops && exists) /* no other request is in progress, so s->next does not change */
        enter_full_groups(s, s->next, chunk + 1);
    pthread_mutex_lock(&s->lock);
    assert(s->n_in_progress);
    s->n_in_progress--;
    if (gallops)
        note_chunk_locked(s, chunk, exists);
    else
        note_part_locked(s, a->part, exists);
    pthread_mutex_unlock(&s->lock);
    free(a);
    start_requests(s);
    pthread_mutex_lock(&s->lock);
    unref_locked(s);
}

/* -------------------------------------------------------------------- searches */

/* Start a search for chunks first .. end - 1.  0; -ENOMEM with a sentence. */
static int
begin(struct kvt_seq *seq, enum kvt__search_kind kind, size_t first, size_t end)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *promise = &seq->promise;
    size_t n = end - first;

    assert(first < end && end <= seq->n_chunks + seq->tail_known);
    struct kvt__search *search = calloc(1, sizeof *search + n * sizeof *search->chunks);

    if (!search)
        return kvt__fail(ENOMEM, "kvt_engine_lookup");
    pthread_mutex_init(&search->lock, NULL);
    search->engine = e;
    search->pid = e->pid;
    memcpy(search->tags, seq->tags, sizeof search->tags);
    search->kind = kind;
    search->max_hit = promise->max_hit;
    search->first = first;
    search->refs = 1;
    search->end = kind == KVT__SEARCH_ALL || kind == KVT__SEARCH_GUARANTEED
        ? n * kvt__n_keyspaces(e) : n;
    search->window = FIRST_WINDOW;
    memcpy(search->chunks, seq->chunks + first, n * sizeof *search->chunks);
    kvt__search_abandon(promise->search);
    promise->search = search;
    promise->started_searches |= kind;
    promise->n_window_searches += kind == KVT__SEARCH_WINDOWS;
    if (kind != KVT__SEARCH_WINDOWS) {
        start_requests(search);
        return 0;
    }
    search->refs++;
    search->n_in_progress++;
    search->job.run = enter_windows;
    kvt__exec_submit(e->exec, KVT__PRIO_LOOKUP, &search->job);
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
    for (uint32_t rank = e->first_rank; rank < e->end_rank; rank++)
        if (!kvt__store_can_probe(e->store, KVT__READ_FIRST,
                                &kvt__keyspace(e, rank, group)->space))
            return false;
    return true;
}

int
kvt__search_start(struct kvt_seq *seq, size_t full, size_t end)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__space *space = &kvt__keyspace(e, e->first_rank, 0)->space;
    const struct kvt__promise *p = &seq->promise;
    uint32_t made = p->started_searches;

    assert(p->first <= p->n && p->n <= full && full <= end && p->n < end);
    if (made & KVT__SEARCH_ALL || !kvt__store_can_probe(e->store, KVT__ANYWHERE, space))
        return -ENOENT;
    if (!made && !can_gallop(e))
        return begin(seq, KVT__SEARCH_ALL, p->n, end);
    if (!made && kvt__store_can_probe(e->store, KVT__GUARANTEED, space))
        return begin(seq, KVT__SEARCH_GUARANTEED, p->n, end);
    if (made < KVT__SEARCH_GALLOP && full < end)
        return begin(seq, KVT__SEARCH_GALLOP, full, end);
    if (p->n_window_searches < MAX_WINDOWS && p->n < full)
        return begin(seq, KVT__SEARCH_WINDOWS, p->first, full);
    return -ENOENT;
}
