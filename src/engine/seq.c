/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences: the tokens of a request, divided into chunks and hashed twice: for LMCache's name of
 * each chunk, and for the identity.  One thread at a time uses a sequence. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/sized.h"
#include "engine/seq.h"

/* ------------------------------------------------------------ new and free */

/* Copy the multimodal items.  seq->n_mm counts the complete copies. */
static int
copy_items(struct kvt_seq *seq, const struct kvt_seq_extra *extra)
{
    seq->mm = calloc(extra->n_mm, sizeof *seq->mm);
    if (!seq->mm)
        return -ENOMEM;
    for (size_t i = 0; i < extra->n_mm; i++) {
        seq->mm[i] = extra->mm[i];
        seq->mm[i].id = strdup(extra->mm[i].id);
        if (!seq->mm[i].id)
            return -ENOMEM;
        seq->n_mm++;
    }
    return 0;
}

/* Start the hash chains with the properties of the whole request. */
static void
start(struct kvt_seq *seq, const struct kvt_seq_extra *extra)
{
    const char *lora = kvt__or_empty(extra->lora), *salt = kvt__or_empty(extra->cache_salt);
    struct kvt__seq_weights weights = kvt__current_weights(seq->engine);

    seq->flags = weights.flags;
    if (*lora || *salt)
        seq->flags |= KVT_CHUNK_OWN;
    strcpy(seq->tags, kvt__or_empty(extra->tags)); /* kvt__check_tags() has checked the length */
    seq->hash = seq->engine->hash_root;
    kvt__hash_salt(&seq->hash, salt);
    if (weights.random)
        kvt__hash_weights(&seq->hash, &weights.id);
    kvt__prefix_start(&seq->prefix, &weights.id, seq->tags, lora, salt);
}

/* If the sequence has tags, make the spaces with the tags.  Return false without memory. */
static bool
make_spaces(struct kvt_seq *seq)
{
    uint32_t n_groups = seq->engine->n_groups;

    if (!*seq->tags)
        return true;
    seq->spaces = calloc(seq->n_ids, sizeof *seq->spaces);
    for (uint32_t i = 0; seq->spaces && i < seq->n_ids; i++)
        (void)kvt__engine_space(seq->engine, i / n_groups, i % n_groups, seq->tags,
                                &seq->spaces[i]);
    return seq->spaces;
}

/* Allocate memory for n_more chunks.  0; -ENOMEM with a sentence. */
static int
reserve(struct kvt_seq *seq, size_t n_more)
{
    if (seq->n_chunks + n_more <= seq->max_chunks)
        return 0;
    size_t max = seq->max_chunks * 2 > seq->n_chunks + n_more
        ? seq->max_chunks * 2 : seq->n_chunks + n_more;
    struct kvt_chunk *chunks = realloc(seq->chunks, max * sizeof *chunks);
    if (!chunks)
        return kvt__fail(ENOMEM, "allocate the hashes of %zu chunks", max);
    seq->chunks = chunks;
    seq->max_chunks = max;
    return 0;
}

/* Allocate a sequence with the tags of extra and without tokens.  n_tail: capacity of `tail`.  0;
 * -ENOMEM with a sentence. */
static int
make(struct kvt_engine *engine, const struct kvt_seq_extra *extra, size_t n_tail,
     struct kvt_seq **out)
{
    struct kvt_seq *seq = calloc(1, sizeof *seq);

    if (!seq)
        return kvt__fail(ENOMEM, "kvt_seq_new");
    seq->engine = engine;
    start(seq, extra);
    seq->tail = calloc(n_tail, sizeof *seq->tail);
    seq->n_ids = kvt__n_keyspaces(engine);
    seq->ids = calloc(seq->n_ids, sizeof *seq->ids);
    if (!seq->tail || !seq->ids || !make_spaces(seq) || (extra->n_mm && copy_items(seq, extra))) {
        kvt_seq_free(seq);
        return kvt__fail(ENOMEM, "kvt_seq_new");
    }
    *out = seq;
    return 0;
}

int
kvt_seq_new(struct kvt_engine *engine, const int32_t *tokens, size_t n_tokens,
            const struct kvt_seq_extra *theirs, struct kvt_seq **out)
{
    struct kvt_seq_extra given = { 0 }, *extra = &given;
    int err = kvt__engine_check(engine, "kvt_seq_new");

    if (!err && theirs)
        err = kvt__copy_sized(extra, sizeof *extra, theirs, "kvt_seq_new: extra");
    if (!err)
        err = kvt__check_tags(engine, extra->tags);
    struct kvt_seq *seq = NULL;
    if (!err)
        err = make(engine, extra, engine->chunk_tokens, &seq);
    if (!err)
        err = kvt_seq_append(seq, tokens, n_tokens);
    if (err)
        kvt_seq_free(seq);
    else
        *out = seq;
    return err;
}

/* Check that all chunks are full chunks, except the last.  0; -EINVAL with a sentence. */
static int
check_chunks(const struct kvt_engine *engine, const struct kvt_chunk *chunks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t size = chunks[i].n_tokens;

        if (size != engine->chunk_tokens && (!size || i + 1 < n || size > engine->chunk_tokens))
            return kvt__fail(EINVAL, "kvt_seq_from_chunks: chunk %zu of %zu has %u tokens; "
                             "chunk_size is %u, and must be equal in all processes of an engine.",
                             i, n, size, engine->chunk_tokens);
    }
    return 0;
}

int
kvt_seq_from_chunks(struct kvt_engine *engine, const struct kvt_chunk *chunks, size_t n,
                    const char *tags, struct kvt_seq **out)
{
    struct kvt_seq_extra extra = { .tags = tags };
    struct kvt_seq *seq = NULL;
    int err = kvt__engine_check(engine, "kvt_seq_from_chunks");

    if (!err)
        err = kvt__check_tags(engine, tags);
    if (!err)
        err = check_chunks(engine, chunks, n);
    if (!err)
        err = make(engine, &extra, 1, &seq);
    if (!err)
        err = reserve(seq, n);
    if (err) {
        kvt_seq_free(seq);
        return err;
    }
    if (n) {
        uint32_t last = chunks[n - 1].n_tokens;

        memcpy(seq->chunks, chunks, n * sizeof *chunks);
        seq->flags = chunks[0].flags;
        seq->n_tail = last < engine->chunk_tokens ? last : 0;
        seq->tail_known = seq->n_tail;
        seq->n_chunks = n - seq->tail_known;
    }
    seq->is_fixed = true;
    *out = seq;
    return 0;
}

void
kvt_seq_free(struct kvt_seq *seq)
{
    if (!seq)
        return;
    kvt__search_abandon(seq->promise.search);
    for (size_t i = 0; i < seq->n_mm; i++)
        free((char *)seq->mm[i].id);
    free(seq->mm);
    for (size_t i = 0; seq->ids && i < seq->n_ids; i++)
        free(seq->ids[i].ids);
    free(seq->ids);
    free(seq->spaces);
    free(seq->promise.leases);
    free(seq->chunks);
    free(seq->tail);
    free(seq);
}

/* ------------------------------------------------------------------- hashing */

/* Add n full chunks without multimodal items.  0; -ENOMEM with a sentence. */
static int
add_plain(struct kvt_seq *seq, const int32_t *tokens, size_t n)
{
    enum { BATCH = 64 };
    size_t chunk = seq->engine->chunk_tokens;
    struct kvt__prefix prefixes[BATCH];
    uint64_t names[BATCH][KVT__HASH_WORDS];
    int err = reserve(seq, n);

    if (err)
        return err;
    while (n) {
        size_t step = n < BATCH ? n : BATCH;

        kvt__hash_chunks(&seq->hash, tokens, chunk, step, names);
        kvt__prefix_add_chunks(&seq->prefix, tokens, chunk, step, prefixes);
        for (size_t i = 0; i < step; i++) {
            struct kvt_chunk *c = &seq->chunks[seq->n_chunks++];

            assert(seq->n_chunks <= seq->max_chunks);
            *c = (struct kvt_chunk){ .n_tokens = (uint32_t)chunk, .flags = seq->flags };
            memcpy(c->name_hash, names[i], sizeof c->name_hash);
            memcpy(c->prefix, prefixes[i].b, sizeof c->prefix);
        }
        tokens += step * chunk;
        n -= step;
    }
    return 0;
}

/* Return the number of an item's tokens in the chunk of tokens [start, start + n); *first: the
 * first of these tokens. */
static uint64_t
overlap(const struct kvt_mm_item *item, uint64_t start, size_t n, uint64_t *first)
{
    uint64_t from = item->first_token > start ? item->first_token : start;
    uint64_t item_end = item->first_token + item->n_tokens;
    uint64_t to = item_end < start + n ? item_end : start + n;

    *first = from;
    return to > from ? to - from : 0;
}

/* Append the bytes that describe an item's part of a chunk (docs/formats.md) to *extra.  0;
 * -ENOMEM. */
static int
add_extra(unsigned char **extra, size_t *n_extra, const struct kvt_mm_item *item,
          uint64_t start, uint64_t first, uint64_t n)
{
    size_t id_bytes = strlen(item->id);
    unsigned char *grown = realloc(*extra, *n_extra + 20 + id_bytes);

    if (!grown)
        return -ENOMEM;
    *extra = grown;
    grown += *n_extra;
    kvt__put_le64(grown, first - item->first_token);
    kvt__put_le32(grown + 8, (uint32_t)(first - start));
    kvt__put_le32(grown + 12, (uint32_t)n);
    kvt__put_le32(grown + 16, (uint32_t)id_bytes);
    memcpy(grown + 20, item->id, id_bytes);
    *n_extra += 20 + id_bytes;
    return 0;
}

/* Describe a chunk of the n tokens after the sequence's full chunks.  Multimodal items in the chunk
 * become part of the identity; for the name, hashes of the items replace the placeholder tokens, as
 * in LMCache.  hash and prefix advance.  0; -ENOMEM with a sentence. */
static int
describe_next(const struct kvt_seq *seq, const int32_t *tokens, size_t n_tokens,
              struct kvt__hash_chain *hash, struct kvt__prefix *prefix,
              struct kvt_chunk *out)
{
    uint64_t start = (uint64_t)seq->n_chunks * seq->engine->chunk_tokens;

    assert(n_tokens && n_tokens <= seq->engine->chunk_tokens);
    int32_t *named = malloc(n_tokens * sizeof *named);
    unsigned char *extra = NULL;
    size_t n_extra = 0;
    int err = named ? 0 : -ENOMEM;

    if (!err)
        memcpy(named, tokens, n_tokens * sizeof *named);
    for (size_t i = 0; !err && i < seq->n_mm; i++) {
        uint64_t first, n = overlap(&seq->mm[i], start, n_tokens, &first);

        if (!n)
            continue;
        kvt__hash_mm_tokens(seq->mm[i].id, first - seq->mm[i].first_token,
                            named + (first - start), n);
        err = add_extra(&extra, &n_extra, &seq->mm[i], start, first, n);
    }
    if (!err) {
        kvt__prefix_add(prefix, tokens, n_tokens, extra, n_extra);
        *out = (struct kvt_chunk){ .n_tokens = (uint32_t)n_tokens, .flags = seq->flags };
        kvt__hash_chunks(hash, named, n_tokens, 1, &out->name_hash);
        memcpy(out->prefix, prefix->b, sizeof out->prefix);
    }
    free(named);
    free(extra);
    return err ? kvt__fail(-err, "hash a chunk") : 0;
}

static int
add_with_items(struct kvt_seq *seq, const int32_t *tokens)
{
    int err = reserve(seq, 1);

    if (!err)
        err = describe_next(seq, tokens, seq->engine->chunk_tokens, &seq->hash,
                            &seq->prefix, &seq->chunks[seq->n_chunks]);
    if (!err)
        seq->n_chunks++;
    return err;
}

static int
add_chunks(struct kvt_seq *seq, const int32_t *tokens, size_t n)
{
    int err = 0;

    if (!seq->n_mm)
        return add_plain(seq, tokens, n);
    for (size_t i = 0; !err && i < n; i++)
        err = add_with_items(seq, tokens + i * seq->engine->chunk_tokens);
    return err;
}

/* Forget the partial chunk because its tokens become another chunk: end its leases, and delete its
 * identities. */
static void
forget_tail(struct kvt_seq *seq)
{
    if (!kvt__engine_check(seq->engine, "kvt_seq_append"))
        kvt__hit_unlease(seq, seq->n_chunks);
    seq->promise.state = KVT__PROMISE_NONE;
    for (size_t i = 0; i < seq->n_ids; i++)
        if (seq->ids[i].n > seq->n_chunks)
            seq->ids[i].n = seq->n_chunks;
    seq->tail_known = false;
}

static int
append(struct kvt_seq *seq, const int32_t *tokens, size_t n_tokens)
{
    size_t chunk = seq->engine->chunk_tokens;
    int err = 0;

    assert(seq->n_tail < chunk && (!seq->tail_known || seq->n_tail));
    if (seq->tail_known && n_tokens)
        forget_tail(seq);
    if (seq->n_tail) { /* complete the partial chunk */
        size_t n = chunk - seq->n_tail < n_tokens ? chunk - seq->n_tail : n_tokens;

        memcpy(seq->tail + seq->n_tail, tokens, n * sizeof *tokens);
        seq->n_tail += n;
        tokens += n;
        n_tokens -= n;
        if (seq->n_tail < chunk)
            return 0;
        err = add_chunks(seq, seq->tail, 1);
        seq->n_tail = 0;
    }
    if (!err)
        err = add_chunks(seq, tokens, n_tokens / chunk);
    if (!err && n_tokens % chunk) {
        seq->n_tail = n_tokens % chunk;
        memcpy(seq->tail, tokens + n_tokens - seq->n_tail,
               seq->n_tail * sizeof *tokens);
    }
    return err;
}

int
kvt_seq_append(struct kvt_seq *seq, const int32_t *tokens, size_t n_tokens)
{
    if (seq->is_fixed)
        return kvt__fail(EINVAL, "kvt_seq_append: the sequence was made from chunks");
    if (seq->lost_tokens) /* more tokens would get the positions of the lost tokens */
        return kvt__fail(ENOMEM, "kvt_seq_append: tokens of an earlier call are lost");
    int err = append(seq, tokens, n_tokens);
    seq->lost_tokens = err != 0;
    return err;
}

uint64_t
kvt_seq_tokens(const struct kvt_seq *seq)
{
    return (uint64_t)seq->n_chunks * seq->engine->chunk_tokens + seq->n_tail;
}

/* Describe the partial chunk.  The sequence's hash chains stay at the last full chunk, because more
 * tokens may follow. */
static int
describe_tail(const struct kvt_seq *seq, struct kvt_chunk *out)
{
    struct kvt__hash_chain hash = seq->hash;
    struct kvt__prefix prefix = seq->prefix;

    return describe_next(seq, seq->tail, seq->n_tail, &hash, &prefix, out);
}

int
kvt__seq_describe_tail(struct kvt_seq *seq)
{
    if (seq->tail_known || !seq->n_tail)
        return 0;
    int err = reserve(seq, 1);
    if (!err)
        err = describe_tail(seq, &seq->chunks[seq->n_chunks]);
    seq->tail_known = !err;
    return err;
}

int
kvt_seq_chunks(const struct kvt_seq *seq, size_t first, size_t n,
               struct kvt_chunk *out)
{
    size_t n_all = seq->n_chunks + (seq->n_tail ? 1 : 0);

    if (first > n_all || n > n_all - first)
        return kvt__fail(EINVAL, "kvt_seq_chunks: %zu chunks from number %zu are out of range; "
                         "the sequence has %zu chunks.", n, first, n_all);
    size_t n_whole = n && first + n > seq->n_chunks ? n - 1 : n;
    if (n_whole)
        memcpy(out, seq->chunks + first, n_whole * sizeof *out);
    if (n_whole < n && seq->tail_known) {
        out[n_whole] = seq->chunks[seq->n_chunks];
        return 0;
    }
    return n_whole < n ? describe_tail(seq, out + n_whole) : 0;
}
