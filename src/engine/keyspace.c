/* SPDX-License-Identifier: Apache-2.0
 *
 * What the keys of a (rank, group, tags) have in common, and its digest.  Readers
 * take no lock; the lock orders those who add a set of tags or meet a new epoch. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/private.h"

static struct kvt__space_desc
describe(const struct kvt_engine *e, const char *tags, uint32_t rank, uint32_t group,
         uint64_t epoch)
{
    static const char *const formats[] = {
        [KVT_FORMAT_OPAQUE] = "opaque", [KVT_FORMAT_2LTD] = "kv_2ltd",
        [KVT_FORMAT_MLA] = "kv_mla" };
    const struct kvt__group *g = &e->groups[group];

    return (struct kvt__space_desc){
        .model = e->model, .fingerprint = e->fingerprint, .kv_dtype = e->kv_dtype,
        .world_size = g->world_size, .rank = g->replicated ? 0 : rank, .serde = "naive",
        .chunk_tokens = e->chunk_tokens, .group = group,
        .kind = g->kind == KVT_GROUP_FULL ? "full" : "sliding",
        .window_tokens = g->window_tokens, .n_layers = g->view.n_layers,
        .n_heads = g->view.n_heads, .head_bytes = g->view.head_bytes,
        .block_tokens = g->view.opaque ? g->view.block_tokens : 0,
        .block_bytes = g->view.opaque ? g->view.block_bytes : 0,
        .format = formats[g->format], .layout = g->layout,
        .layers = g->layers, .tags = tags, .epoch = epoch };
}

/* Key text with an empty hash. */
static int
space_text(const struct kvt_engine *e, const struct kvt__space_desc *desc,
           bool opaque, char *out, size_t size)
{
    char layout[32] = "";

    if (opaque)
        snprintf(layout, sizeof layout, "@kvt%%%016" PRIx64,
                 kvt__layout_fingerprint(desc));
    int n = snprintf(out, size, "%s@%u@%u@@%s%s%s%s", e->model, desc->world_size,
                     desc->rank, e->kv_dtype, *desc->tags ? "@" : "", desc->tags, layout);
    if (n < 0 || (size_t)n >= size)
        return kvt__fail(ENAMETOOLONG, "the key of model '%s' with tags '%s'", e->model,
                         desc->tags);
    return 0;
}

/* What all ranks have the first one puts: on every host where others cannot read it. */
static enum kvt__puts
puts_of(const struct kvt_engine *e, uint32_t group)
{
    if (!e->groups[group].replicated || !e->rank)
        return KVT__PUTS_ALL;
    return e->rank % e->local_ranks ? KVT__PUTS_MEMORY : KVT__PUTS_HOST;
}

static int
make(struct kvt_engine *e, const char *tags, uint32_t rank, uint32_t group,
     struct kvt__keyspace **out)
{
    struct kvt__keyspace *k = calloc(1, sizeof *k);
    struct kvt__space_desc desc = describe(e, tags, rank, group, 0);

    if (!k)
        return kvt__fail(ENOMEM, "keys of group %u", group);
    k->space.opaque = e->groups[group].view.opaque;
    k->space.rank = desc.rank;
    k->space.memory_rank = rank;
    k->space.puts = puts_of(e, group);
    int err = space_text(e, &desc, k->space.opaque, k->space.text,
                         sizeof k->space.text);
    if (!err)
        err = kvt__store_add_space(e->store, &k->space);
    if (err) {
        free(k);
        return err;
    }
    /* A reset is one of the model: tags that nobody asked for yet have it too. */
    k->epoch_of = e->untagged
        ? &atomic_load(&e->untagged->at[rank * e->n_groups + group])->space : &k->space;
    k->epoch = desc.epoch = kvt__store_epoch(e->store, k->epoch_of);
    kvt__space_digest(&desc, k->digest);
    *out = k;
    return 0;
}

/* A scheduler needs every rank's keys, a worker its own. */
static bool
needs_rank(const struct kvt_engine *e, uint32_t rank)
{
    return e->role & KVT_ROLE_SCHEDULER || rank == e->rank;
}

static void
free_tagset(const struct kvt_engine *e, struct kvt__tagset *t)
{
    for (uint32_t i = 0; i < e->world_size * e->n_groups; i++)
        free(atomic_load(&t->at[i]));
    free(t->tags);
    free(t);
}

static int
make_tagset(struct kvt_engine *e, const char *tags, struct kvt__tagset **out)
{
    size_t n = (size_t)e->world_size * e->n_groups;
    struct kvt__tagset *t = calloc(1, sizeof *t + n * sizeof t->at[0]);

    if (!t)
        return kvt__fail(ENOMEM, "keys with tags '%s'", tags);
    t->tags = strdup(tags);
    int err = t->tags ? 0 : kvt__fail(ENOMEM, "keys with tags '%s'", tags);
    for (uint32_t i = 0; !err && i < n; i++) {
        struct kvt__keyspace *k = NULL;

        if (needs_rank(e, i / e->n_groups))
            err = make(e, tags, i / e->n_groups, i % e->n_groups, &k);
        atomic_store(&t->at[i], k);
    }
    if (err)
        free_tagset(e, t);
    else
        *out = t;
    return err;
}

static struct kvt__tagset *
find_tagset(struct kvt_engine *e, const char *tags)
{
    for (struct kvt__tagset *t = atomic_load(&e->tagsets); t; t = t->next)
        if (!strcmp(t->tags, tags))
            return t;
    return NULL;
}

int
kvt__tagset(struct kvt_engine *engine, const char *tags, struct kvt__tagset **out)
{
    int err = 0;

    *out = find_tagset(engine, tags);
    if (*out)
        return 0;
    pthread_mutex_lock(&engine->keyspace_lock);
    *out = find_tagset(engine, tags);
    if (!*out) {
        err = make_tagset(engine, tags, out);
        if (!err) {
            (*out)->next = atomic_load(&engine->tagsets);
            atomic_store(&engine->tagsets, *out);
        }
    }
    pthread_mutex_unlock(&engine->keyspace_lock);
    return err;
}

/* The epoch has changed: make the keyspace anew, keep the old one for its
 * readers. */
static const struct kvt__keyspace *
renew(struct kvt_engine *e, struct kvt__tagset *t, uint32_t i)
{
    struct kvt__keyspace *old, *k = NULL;
    struct kvt__retired *r = NULL;

    pthread_mutex_lock(&e->keyspace_lock);
    old = atomic_load(&t->at[i]);
    if (old->epoch == kvt__store_epoch(e->store, old->epoch_of)) {
        k = old; /* somebody was faster */
    } else {
        if (!make(e, t->tags, i / e->n_groups, i % e->n_groups, &k))
            r = calloc(1, sizeof *r);
        if (k && !r) {
            free(k);
            k = NULL;
        }
        if (k) {
            *r = (struct kvt__retired){ e->retired, old };
            e->retired = r;
            atomic_store(&t->at[i], k);
        }
    }
    pthread_mutex_unlock(&e->keyspace_lock);
    return k;
}

const struct kvt__keyspace *
kvt__keyspace(struct kvt_engine *engine, struct kvt__tagset *tagset, uint32_t rank,
              uint32_t group)
{
    uint32_t i = rank * engine->n_groups + group;
    struct kvt__keyspace *k = atomic_load(&tagset->at[i]);

    if (k && k->epoch == kvt__store_epoch(engine->store, k->epoch_of))
        return k;
    return k ? renew(engine, tagset, i) : NULL;
}

void
kvt__tagsets_free(struct kvt_engine *engine)
{
    struct kvt__tagset *t = atomic_load(&engine->tagsets);

    while (t) {
        struct kvt__tagset *next = t->next;
        free_tagset(engine, t);
        t = next;
    }
    while (engine->retired) {
        struct kvt__retired *r = engine->retired;
        engine->retired = r->next;
        free(r->keyspace);
        free(r);
    }
}
