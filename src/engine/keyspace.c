/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyspaces: the common part of the keys of a rank and group, and the digest for identities.
 * kvt_engine_open() makes the keyspaces, which never change.  Weights and tags belong to a request,
 * and are therefore part of the chunks' prefixes. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/private.h"

/* Return the rank in the keys of a group.  The ranks of a stage share the keys of a replicated
 * group: the keys of the stage's first rank, or, in a world with one rank for each stage, the keys
 * of the stage. */
static uint32_t
rank_in_keys(const struct kvt_engine *e, const struct kvt__group *g, uint32_t rank)
{
    if (!g->replicated)
        return rank;
    return kvt__first_of_stage(e, rank) / (e->world_size / g->world_size);
}

static struct kvt__space_desc
describe(const struct kvt_engine *e, uint32_t rank, uint32_t group)
{
    static const char *const formats[] = {
        [KVT_FORMAT_OPAQUE] = "opaque", [KVT_FORMAT_2LTD] = "kv_2ltd",
        [KVT_FORMAT_MLA] = "kv_mla" };
    const struct kvt__group *g = kvt__group_of(e, rank, group);

    return (struct kvt__space_desc){
        .model = e->model, .kv_dtype = e->kv_dtype,
        .world_size = g->world_size, .rank = rank_in_keys(e, g, rank), .serde = "naive",
        .chunk_tokens = e->chunk_tokens, .group = group,
        .kind = g->kind == KVT_GROUP_FULL ? "full" : "sliding",
        .window_tokens = g->window_tokens, .n_layers = g->view.n_layers,
        .n_heads = g->view.n_heads, .head_bytes = g->view.head_bytes,
        .block_tokens = g->view.opaque ? g->view.block_tokens : 0,
        .block_bytes = g->view.opaque ? g->view.block_bytes : 0,
        .format = formats[g->format], .layout = g->layout,
        .layers = g->layers };
}

/* Fill in space->text, the key text with an empty hash, and space->own_tag.  0; -ENAMETOOLONG with
 * a sentence. */
static int
space_text(const struct kvt__space_desc *desc, bool opaque, struct kvt__space *space)
{
    char own[32] = "";

    if (opaque)
        snprintf(own, sizeof own, "@%s%016" PRIx64, KVT__KEY_OWN_TAG,
                 kvt__layout_fingerprint(desc));
    int n = snprintf(space->text, sizeof space->text, "%s@%u@%u@@%s%s", desc->model,
                     desc->world_size, desc->rank, desc->kv_dtype, own);
    if (n < 0 || (size_t)n >= sizeof space->text)
        return kvt__fail(ENAMETOOLONG, "model '%s': a key text of the model is longer than %zu "
                         "bytes; use a shorter model name.", desc->model, sizeof space->text - 1);
    space->own_tag = (size_t)n - strlen(own);
    return 0;
}

/* Return the largest number of bytes for the tags of a request in the text.  added: bytes that a
 * level may add to the text for its encoding. */
static size_t
room_for_tags(const struct kvt__space *space, size_t added)
{
    size_t n = strlen(space->text) + added, own = n - space->own_tag;

    if (own >= KVT__KEY_TAGS_MAX || n + 1 >= KVT__TABLE_TEXT_MAX)
        return 0;
    size_t in_tags = KVT__KEY_TAGS_MAX - own, in_text = KVT__TABLE_TEXT_MAX - n - 1;

    return in_tags < in_text ? in_tags : in_text;
}

/* Return the tiers in which this rank stores a group's chunks.  The first rank of a stage stores
 * the chunks of a replicated group in all tiers; the first rank of each other host stores the
 * chunks in tiers that other hosts cannot read. */
static enum kvt__puts
puts_of(const struct kvt_engine *e, uint32_t group)
{
    if (!e->groups[group].replicated || e->rank == kvt__first_of_stage(e, e->rank))
        return KVT__PUTS_ALL;
    return e->rank % e->local_ranks ? KVT__PUTS_MEMORY : KVT__PUTS_HOST;
}

static int
make(struct kvt_engine *e, uint32_t rank, uint32_t group, struct kvt__keyspace *k)
{
    struct kvt__space_desc desc = describe(e, rank, group);

    k->space.opaque = e->groups[group].view.opaque;
    k->space.rank = desc.rank;
    k->space.memory_rank = rank;
    k->space.puts = puts_of(e, group);
    kvt__space_digest(&desc, k->digest);
    assert(rank < e->world_size && group < e->n_groups && desc.rank < desc.world_size);
    int err = space_text(&desc, k->space.opaque, &k->space);
    size_t room = room_for_tags(&k->space, kvt__store_traits(e->store)->serde_text_bytes);
    if (!err && room < e->max_tag_bytes)
        e->max_tag_bytes = room;
    return err ? err : kvt__store_set_tags(e->store, &k->space, "");
}

int
kvt__keyspaces_make(struct kvt_engine *engine)
{
    size_t n = (size_t)engine->world_size * engine->n_groups;
    int err = 0;

    engine->max_tag_bytes = KVT__KEY_TAGS_MAX;
    engine->keyspaces = calloc(n, sizeof *engine->keyspaces);
    if (!engine->keyspaces)
        return kvt__fail(ENOMEM, "allocate the keys of %zu ranks and groups", n);
    for (uint32_t i = 0; !err && i < n; i++)
        err = make(engine, i / engine->n_groups, i % engine->n_groups,
                   &engine->keyspaces[i]);
    return err;
}

int
kvt__check_tags(const struct kvt_engine *engine, const char *tags)
{
    return kvt__key_check_tags(kvt__or_empty(tags), engine->max_tag_bytes);
}

const struct kvt__space *
kvt__engine_space(const struct kvt_engine *engine, uint32_t rank, uint32_t group,
                  const char *tags, struct kvt__space *own)
{
    const struct kvt__space *space = &kvt__keyspace(engine, rank, group)->space;

    if (!tags || !*tags)
        return space;
    *own = *space;
    (void)kvt__store_set_tags(engine->store, own, tags); /* the tags fit: kvt__check_tags() */
    return own;
}
