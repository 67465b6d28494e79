/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiers over a directory, slots, and chunks with bytes that follow from a seed. */
#ifndef KVT_TIER_TEST_H
#define KVT_TIER_TEST_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config.h"
#include "index-dir.h"
#include "kvt-test.h"
#include "kvtier.h"
#include "temp-dir.h"

#include "base/bytes.h"
#include "base/crc32c.h"
#include "tier/tier.h"

/* Open a tier.  setting: a further setting "KEY=VALUE", or NULL.  The configuration is freed after
 * the open, because a tier must not keep a pointer to the configuration. */
static inline int
try_open_for(const char *url, bool header, const char *setting, uint32_t local_ranks,
             struct kvt__tier **out)
{
    const char *settings[] = { header ? "save_chunk_meta=true"
                                      : "save_chunk_meta=false", setting, NULL };
    struct kvt_config *config = config_with(settings);
    struct kvt__tier_params params = { .config = config, .url = url,
                                       .name = strncmp(url, "local_disk", 10)
                                           ? "remote_url" : "local_disk",
                                       .local_ranks = local_ranks };
    int err = kvt__tier_open(&params, out);
    kvt_config_free(config);
    return err;
}

static inline int
try_open(const char *url, bool header, struct kvt__tier **out)
{
    return try_open_for(url, header, NULL, 1, out);
}

static inline struct kvt__tier *
open_tier(const char *url, bool header)
{
    struct kvt__tier *tier = NULL;

    if (try_open(url, header, &tier))
        fail_msg("%s: %s", url, kvt__why());
    return tier;
}

/* ------------------------------------------------------------------- slots */

/* The pool of the slots for a tier whose slots need a pool; NULL: slots are in other memory. */
static struct kvt__pool *slot_pool;

/* The tier that lends slots, if the tier has a free slot; NULL: no tier. */
static struct kvt__tier *slot_tier;

static inline void
open_slot_pool(void)
{
    struct kvt__pool_params params = { .bytes = 64 << 20, .key = "test" };

    if (kvt__pool_open(&params, &slot_pool))
        fail_msg("%s", kvt__why());
    kvt__pool_wait_populated(slot_pool, params.bytes);
}

static inline void
close_slot_pool(void)
{
    kvt__pool_close(slot_pool);
    slot_pool = NULL;
}

/* Return a slot like a slot of the pool: with rooms, at an address of `phase` modulo 4096. */
static inline struct kvt__slot
slot_new(size_t bytes, size_t phase)
{
    struct kvt__slot slot;

    if (slot_pool && kvt__pool_acquire(slot_pool, bytes, 0, &slot))
        return slot;
    if (slot_tier && slot_tier->ops->acquire_slot(slot_tier, KVT__PRIO_LOAD, bytes, &slot))
        return slot;
    size_t n = kvt__round_up(2 * KVT__SLOT_MARGIN + phase + bytes, 4096);
    unsigned char *base = aligned_alloc(4096, n);

    if (!base)
        abort();
    memset(base, 0x5a, n);
    return (struct kvt__slot){ .payload = base + KVT__SLOT_MARGIN + phase, .bytes = bytes };
}

static inline void
slot_free(struct kvt__slot *slot, size_t phase)
{
    if (slot_pool || slot->source)
        kvt__pool_release(slot_pool, slot);
    else
        free(slot->payload - KVT__SLOT_MARGIN - phase);
}

/* Return the i-th word of the bytes that follow from seed. */
static inline uint64_t
word_at(uint64_t seed, size_t i)
{
    uint64_t v = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + i;

    return (v ^ (v >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
}

static inline unsigned char
byte_at(uint64_t seed, size_t i)
{
    return (unsigned char)(word_at(seed, i / 8) >> (8 * (i % 8)));
}

#define STRETCH ((size_t)4096)

/* Write the bytes that follow from seed, at most STRETCH, from byte i on (a multiple of STRETCH).
 * Returns the number of bytes.  The callers copy or compare a whole stretch with one call, which
 * is fast under a sanitizer. */
static inline size_t
stretch_of(const struct kvt__slot *slot, uint64_t seed, size_t i, unsigned char *out)
{
    size_t n = slot->bytes - i < STRETCH ? slot->bytes - i : STRETCH;

    for (size_t at = 0; at < n; at += 8)
        kvt__put_le64(out + at, word_at(seed, (i + at) / 8));
    return n;
}

static inline void
slot_fill(const struct kvt__slot *slot, uint64_t seed)
{
    unsigned char right[STRETCH];

    for (size_t i = 0; i < slot->bytes; i += STRETCH) {
        size_t n = stretch_of(slot, seed, i, right);

        memcpy(slot->payload + i, right, n);
    }
}

static inline bool
slot_holds(const struct kvt__slot *slot, uint64_t seed)
{
    unsigned char right[STRETCH];

    for (size_t i = 0; i < slot->bytes; i += STRETCH) {
        size_t n = stretch_of(slot, seed, i, right);

        if (memcmp(slot->payload + i, right, n))
            return false;
    }
    return true;
}

/* ----------------------------------------------------------------- objects */

struct chunk {
    struct kvt__object object;
    char key[KVT__KEY_TEXT_MAX + 1];
};

static inline void
chunk_init(struct chunk *c, const char *model, int64_t hash)
{
    struct kvt__hash name = { .bits = { (uint64_t)hash } };
    char digits[KVT__HASH_DIGITS + 1];

    kvt__hash_text(&name, digits);
    snprintf(c->key, sizeof c->key, "%s@1@0@%s@bfloat16", model, digits);
    c->object = (struct kvt__object){
        .key = c->key, .hash = name, .is_full = true, .tokens = 256,
        .shape = { 1, 3, { 2, 32, 256, 1024 } } };
    for (size_t i = 0; i < sizeof c->object.id.b; i++)
        c->object.id.b[i] = (uint8_t)((uint64_t)hash * 31 + i);
}

/* Put a chunk with the bytes that follow from seed.  0 or -errno. */
static inline int
put_bytes(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
          uint64_t seed)
{
    size_t phase = tier->phase;
    struct kvt__slot slot = slot_new(bytes, phase);

    slot_fill(&slot, seed);
    int err = kvt__tier_put(tier, object, &slot,
                            kvt__crc32c(0, slot.payload, bytes));
    slot_free(&slot, phase);
    return err;
}

/* Get a chunk; *same: the bytes follow from seed. */
static inline int
get_bytes(struct kvt__tier *tier, const struct kvt__object *object, size_t bytes,
          uint64_t seed, struct kvt__found *found, bool *same)
{
    size_t phase = tier->phase;
    struct kvt__slot slot = slot_new(bytes, phase);

    int err = kvt__tier_get(tier, object, &slot, found);
    *same = !err && slot_holds(&slot, seed);
    slot_free(&slot, phase);
    return err;
}

static inline uint32_t
crc_of(size_t bytes, uint64_t seed)
{
    struct kvt__slot slot = slot_new(bytes, 0);

    slot_fill(&slot, seed);
    uint32_t crc = kvt__crc32c(0, slot.payload, bytes);
    slot_free(&slot, 0);
    return crc;
}

/* Remove the directory of a tier's index, and assert that the tier makes it again under the same
 * path and descriptor. */
static inline void
index_dir_is_made_again(const struct kvt__tier *tier)
{
    char link[64], before[PATH_MAX] = "", after[PATH_MAX] = "";
    int fd = tier->ops->private_dir(tier);
    struct stat st;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    assert_true(readlink(link, before, sizeof before - 1) > 0);
    index_dir_remove(fd);
    assert_int_equal(stat(before, &st), -1);
    assert_int_equal(tier->ops->private_dir(tier), fd);
    assert_true(readlink(link, after, sizeof after - 1) > 0);
    assert_string_equal(after, before);
    assert_int_equal(stat(after, &st), 0);
}

#endif
