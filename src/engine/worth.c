/* SPDX-License-Identifier: Apache-2.0
 *
 * load_policy: faster.  A lookup ends the hit where the load and the computation of the rest take
 * least time together:
 *
 *   load(n)    = the slowest storage's latency + bytes / rate + wait for loads in progress
 *   compute(n) = time of the tokens behind n, by the measured time of prefill steps
 *
 * The workers measure the storage, the scheduler measures the steps, and the indexes keep both
 * (store/speed.c).  Without a measurement of the storage or of the steps, the hit is loaded.  While
 * a load is late and the storage's reads in progress have no result, the storage counts as stalled
 * and hits end before the chunks of the storage.  A storage that is left out is measured again by
 * prefetches that no request waits for. */
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "engine/worth.h"

#define LATE_NS (KVT__NS_PER_S / 2)
#define LATE_CHUNKS 8 /* chunks that a storage may read at a time before the first is complete */
#define TRIAL_PAUSE_NS (2 * KVT__NS_PER_S)
#define TRIAL_NS (KVT__NS_PER_S / 4) /* expected time of the reads of a trial */
#define MAX_TRIAL 64
#define KEEP 0.9 /* weight of the earlier steps */
#define MOST_TOKENS 512 /* a step of so many tokens counts, also if other steps are larger */

void
kvt__worth_init(struct kvt_engine *e, const struct kvt_config *config)
{
    e->worth.is_on = !strcmp(config->load_policy, "faster");
    pthread_mutex_init(&e->worth.lock, NULL);
}

/* ------------------------------------------------------------------------ prefill */

/* Return the bytes of KV of a token that a rank loads, without sliding windows. */
static uint64_t
bytes_per_token(const struct kvt_engine *e)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind == KVT_GROUP_FULL)
            bytes += kvt__largest_part(e, g, e->chunk_tokens);
    return bytes / e->chunk_tokens;
}

static uint64_t
key_of_model(const struct kvt_engine *e)
{
    uint64_t key;

    memcpy(&key, kvt__keyspace(e, 0, 0)->digest, sizeof key);
    return key ? key : 1;
}

/* Begin with the times of earlier processes.  worth.lock is held. */
static void
open_prefill(struct kvt_engine *e)
{
    struct kvt__table_prefill known;

    if (e->worth.is_prefill_open)
        return;
    e->worth.is_prefill_open = true;
    known = kvt__store_get_prefill(e->store, key_of_model(e));
    if (!known.key)
        return;
    e->worth.prefill = (struct kvt__fit){ .a = known.ns_per_position, .b = known.ns_per_token };
    e->worth.enough_tokens = known.enough_tokens < MOST_TOKENS ? known.enough_tokens : MOST_TOKENS;
}

void
kvt_engine_note_prefill(struct kvt_engine *engine, uint64_t n_tokens, uint64_t sum_positions,
                        int64_t ns)
{
    struct kvt__worth *w = &engine->worth;
    struct kvt__table_prefill out = { .ns_per_token = 0 };

    if (kvt__engine_check(engine, "kvt_engine_note_prefill") || !w->is_on || !n_tokens || ns <= 0)
        return;
    pthread_mutex_lock(&w->lock);
    open_prefill(engine);
    /* The constant cost of a step dominates a small step: such a step says nothing about the cost
     * of a token.  But if all steps are small now, small steps count again. */
    bool counts = n_tokens >= w->enough_tokens;
    if (!counts)
        w->enough_tokens--;
    else if (n_tokens / 2 > w->enough_tokens)
        w->enough_tokens = n_tokens / 2 < MOST_TOKENS ? n_tokens / 2 : MOST_TOKENS;
    if (counts)
        kvt__fit_add(&w->prefill, (double)sum_positions, (double)n_tokens, (double)ns, KEEP);
    out.enough_tokens = w->enough_tokens;
    out.ns_per_position = w->prefill.a;
    out.ns_per_token = w->prefill.b;
    pthread_mutex_unlock(&w->lock);
    if (!counts)
        return;
    size_t length = strlen(engine->model), most = sizeof out.model - 1;
    out.key = key_of_model(engine);
    out.bytes_per_token = bytes_per_token(engine);
    strcpy(out.model, engine->model + (length > most ? length - most : 0));
    kvt__store_set_prefill(engine->store, &out);
}

/* Return the time in which the model computes the tokens from `begin` to `end`. */
static double
compute_ns(const struct kvt__fit *prefill, uint64_t begin, uint64_t end)
{
    double b = (double)begin, e = (double)end;

    return e > b ? prefill->b * (e - b) + prefill->a * (e * e - b * b) / 2 : 0;
}

/* ------------------------------------------------------------------------ loads */

/* The chunks of a hit in a storage. */
struct part {
    struct kvt__table_speed speed; /* bytes_per_s 0: unknown */
    uint64_t bytes;
    double wait_ns; /* until the loads in progress end */
    bool is_seen, is_stalled;
};

/* Return the number of the storage that holds a chunk of the hit, of the first rank and group that
 * has no lease in host memory.  -1: all parts are in host memory, or have no lease. */
static int
storage_of(const struct kvt_seq *seq, size_t chunk, int *level)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;

    if (chunk >= p->max_leased_chunks)
        return -1;
    for (size_t i = kvt__lease_index(e, chunk, 0, 0), end = kvt__lease_index(e, chunk + 1, 0, 0);
         i < end; i++)
        if (p->leases[i].level && !kvt__store_is_memory(e->store, p->leases[i].level - 1)) {
            *level = p->leases[i].level - 1;
            return kvt__store_storage(e->store, *level);
        }
    return -1;
}

static double
load_ns(const struct part *part)
{
    if (!part->bytes || !part->speed.bytes_per_s)
        return 0;
    if (part->is_stalled)
        return INFINITY;
    return part->wait_ns + (double)part->speed.latency_ns +
           (double)part->bytes * 1e9 / (double)part->speed.bytes_per_s;
}

/* Return the time of a load from all storage: the storages work at the same time. */
static double
slowest_ns(const struct part *parts)
{
    double ns = 0;

    for (int i = 0; i < KVT__MAX_STORAGES; i++)
        ns = fmax(ns, load_ns(&parts[i]));
    return ns;
}

/* Fill in the state of a storage: its speed, and the loads of other sequences. */
static void
see_storage(const struct kvt_seq *seq, int storage, int level, struct part *part)
{
    struct kvt_engine *e = seq->engine;
    int64_t now = kvt__now_ns();

    part->is_seen = true;
    part->speed = kvt__store_speed(e->store, level);
    int64_t since = part->speed.reading_since_ns;
    pthread_mutex_lock(&e->worth.lock);
    for (const struct kvt_seq *s = e->worth.loading; s; s = s->flight.next) {
        const struct kvt__flight *f = &s->flight;
        int64_t silent_from = since > f->begun_ns ? since : f->begun_ns;

        if (s == seq || f->storage != storage)
            continue;
        part->wait_ns = fmax(part->wait_ns, (double)(f->begun_ns + f->expected_ns - now));
        part->is_stalled |= since && now - silent_from > LATE_NS + f->patience_ns;
    }
    pthread_mutex_unlock(&e->worth.lock);
}

/* Return the bytes of a chunk that a rank loads for a hit with this chunk, in the full-attention
 * groups. */
static uint64_t
full_bytes(const struct kvt_seq *seq, size_t chunk)
{
    const struct kvt_engine *e = seq->engine;
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < e->n_groups; g++)
        if (e->groups[g].kind == KVT_GROUP_FULL)
            bytes += kvt__largest_part(e, g, seq->chunks[chunk].n_tokens);
    return bytes;
}

/* Return the bytes of the sliding windows of a hit that ends before chunk n. */
static uint64_t
window_bytes(const struct kvt_seq *seq, size_t n)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;
    uint64_t bytes = 0;

    for (uint32_t g = 0; e->has_windows && g < e->n_groups; g++)
        if (e->groups[g].kind == KVT_GROUP_SLIDING)
            bytes += kvt__largest_part(e, g, e->chunk_tokens) *
                     (n - kvt__first_needed_chunk(e, p->max_hit, g, p->first, n));
    return bytes;
}

/* Return the time in which a load of the chunks promise.first .. n - 1 ends, if windows of the hit
 * are where chunk n - 1 is.  parts: the chunks before, without windows. */
static double
time_of_load(const struct kvt_seq *seq, struct part *parts, int storage, size_t n)
{
    if (storage < 0)
        return slowest_ns(parts);
    uint64_t windows = window_bytes(seq, n);
    parts[storage].bytes += windows;
    double ns = slowest_ns(parts);
    parts[storage].bytes -= windows;
    return ns;
}

/* Count a chunk among the parts of a hit, and return its storage. */
static int
add_chunk(const struct kvt_seq *seq, size_t chunk, struct part *parts)
{
    int level, storage = storage_of(seq, chunk, &level);

    if (storage < 0)
        return -1;
    if (!parts[storage].is_seen)
        see_storage(seq, storage, level, &parts[storage]);
    parts[storage].bytes += full_bytes(seq, chunk);
    return storage;
}

/* ------------------------------------------------------------------------ loads in progress */

static void
set_expectation(struct kvt_seq *seq, struct kvt__flight *f)
{
    struct part parts[KVT__MAX_STORAGES] = { { .bytes = 0 } };
    int last = -1;

    for (size_t c = seq->promise.first; c < seq->promise.n; c++) {
        int storage = add_chunk(seq, c, parts);

        last = storage < 0 ? last : storage;
    }
    f->storage = -1;
    if (last < 0)
        return;
    parts[last].bytes += window_bytes(seq, seq->promise.n);
    for (int i = 0; i < KVT__MAX_STORAGES; i++)
        if (parts[i].bytes && parts[i].speed.bytes_per_s && !parts[i].is_stalled &&
            (f->storage < 0 || load_ns(&parts[i]) > load_ns(&parts[f->storage])))
            f->storage = i;
    if (f->storage < 0)
        return;
    const struct part *part = &parts[f->storage];
    double few_ns = (double)part->speed.latency_ns + LATE_CHUNKS *
        (double)seq->engine->largest_chunk * 1e9 / (double)part->speed.bytes_per_s;
    f->expected_ns = (int64_t)fmin(load_ns(part), 1e15);
    f->patience_ns = (int64_t)fmin((double)f->expected_ns, few_ns);
}

void
kvt__flight_begin(struct kvt_seq *seq)
{
    struct kvt__worth *w = &seq->engine->worth;
    struct kvt__flight f = { .is_on = true, .begun_ns = kvt__now_ns() };

    if (!w->is_on || seq->flight.is_on)
        return;
    set_expectation(seq, &f);
    if (f.storage < 0)
        return;
    pthread_mutex_lock(&w->lock);
    f.next = w->loading;
    if (f.next)
        f.next->flight.previous = seq;
    seq->flight = f;
    w->loading = seq;
    pthread_mutex_unlock(&w->lock);
}

void
kvt__flight_end(struct kvt_seq *seq)
{
    struct kvt__worth *w = &seq->engine->worth;
    struct kvt__flight *f = &seq->flight;

    if (!f->is_on)
        return;
    pthread_mutex_lock(&w->lock);
    if (f->next)
        f->next->flight.previous = f->previous;
    if (f->previous)
        f->previous->flight.next = f->next;
    else
        w->loading = f->next;
    pthread_mutex_unlock(&w->lock);
    *f = (struct kvt__flight){ .is_on = false };
}

void
kvt_engine_begin_load(struct kvt_engine *engine, struct kvt_seq *seq)
{
    if (!kvt__engine_check(engine, "kvt_engine_begin_load") &&
        seq->promise.state == KVT__PROMISE_HELD)
        kvt__flight_begin(seq);
}

/* ------------------------------------------------------------------------ decision */

/* Choose chunks whose prefetch measures a storage that the hit leaves out from chunk `at` on,
 * unless the storage was measured lately. */
static void
plan_trial(struct kvt_seq *seq, size_t at, int storage, const struct part *part)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;
    int64_t now = kvt__now_ns();
    uint32_t group = 0;
    int level;

    while (group < e->n_groups && !p->leases[kvt__lease_index(e, at, 0, group)].level)
        group++;
    pthread_mutex_lock(&e->worth.lock);
    bool is_due = group < e->n_groups && now - e->worth.trial_ns[storage] >= TRIAL_PAUSE_NS;
    if (is_due)
        e->worth.trial_ns[storage] = now;
    pthread_mutex_unlock(&e->worth.lock);
    if (!is_due)
        return;
    double ns = (double)kvt__largest_part(e, group, e->chunk_tokens) * 1e9 /
                (double)part->speed.bytes_per_s;
    double most = fmin(fmax(TRIAL_NS / ns, 1), MAX_TRIAL);
    size_t n = 1;
    while (n < (size_t)most && at + n < p->n && storage_of(seq, at + n, &level) == storage &&
           p->leases[kvt__lease_index(e, at + n, 0, group)].level)
        n++;
    p->trial = (struct kvt_chunk_range){ .group = group, .first_chunk = at,
                                         .n_chunks = (uint32_t)n };
}

/* Return the number of leading chunks of the hit whose load wins.  The windows of a shorter hit may
 * be missing: with sliding windows the whole hit wins, or nothing.  A gallop may still extend the
 * hit: then end the hit only if the load of a hit of all chunks would lose too. */
static size_t
choose(struct kvt_seq *seq, const struct kvt__fit *prefill, struct part *parts)
{
    const struct kvt_engine *e = seq->engine;
    const struct kvt__promise *p = &seq->promise;
    uint64_t end = kvt__hit_end(e, p->max_hit, p->n);
    double best = compute_ns(prefill, p->have_tokens, end);
    size_t chosen = p->first;
    int storage = -1;

    for (size_t c = p->first; c < p->n; c++) {
        storage = add_chunk(seq, c, parts);
        double ns = time_of_load(seq, parts, storage, c + 1) +
                    compute_ns(prefill, kvt__hit_end(e, p->max_hit, c + 1), end);

        if (ns <= best && (!e->has_windows || c + 1 == p->n)) {
            best = ns;
            chosen = c + 1;
        }
    }
    if (!p->is_galloping || chosen == p->n || storage < 0)
        return chosen;
    parts[storage].bytes += full_bytes(seq, p->first) * (p->max_chunks - p->n);
    double all = compute_ns(prefill, p->have_tokens, p->max_hit);
    return time_of_load(seq, parts, storage, p->max_chunks) <= all ? p->n : chosen;
}

size_t
kvt__n_worth(struct kvt_seq *seq)
{
    struct kvt_engine *e = seq->engine;
    struct kvt__promise *p = &seq->promise;
    struct part parts[KVT__MAX_STORAGES] = { { .bytes = 0 } };
    int level;

    /* A worker's own lookup, of an engine on several hosts, does not know the computation. */
    if (!e->worth.is_on || !(e->role & KVT_ROLE_SCHEDULER) || p->n == p->first)
        return p->n;
    pthread_mutex_lock(&e->worth.lock);
    open_prefill(e);
    struct kvt__fit prefill = e->worth.prefill;
    pthread_mutex_unlock(&e->worth.lock);
    if (!(prefill.a > 0) && !(prefill.b > 0))
        return p->n;
    size_t n = choose(seq, &prefill, parts);
    if (n == p->n)
        return n;
    for (size_t c = n; c < p->n; c++) { /* chunks in host memory may come first */
        int storage = storage_of(seq, c, &level);

        if (storage < 0)
            continue;
        p->is_stalled = parts[storage].is_stalled;
        if (!p->is_stalled)
            plan_trial(seq, c, storage, &parts[storage]);
        break;
    }
    uint64_t from = kvt__hit_end(e, p->max_hit, n), end = kvt__hit_end(e, p->max_hit, p->n);
    p->n_skipped += end - (from > p->have_tokens ? from : p->have_tokens);
    return n;
}
