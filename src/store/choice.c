/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice between lossless and naive chunks in a storage with remote_serde: auto.  The codec is
 * worth its CPU time if a gigabyte of chunks, stored once and loaded once, saves more seconds of
 * the storage's time than the codec needs:
 *
 *   (1 - kept) * (1 / read + 1 / write)  >  (1 / encode + 1 / decode) / codec_threads
 *
 * A calibration at the start measures both sides; then the store's own operations do.  The rate of
 * a storage is the bytes of all operations in the time in which at least one is in progress.  The
 * rates are in the index, so the next process begins with them, and the command line shows them. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/private.h"

#define WINDOW_BYTES (UINT64_C(32) << 20) /* measured before a rate is revised */
#define LARGEST_OBJECT ((size_t)4 << 20)
#define ENOUGH_NS (KVT__NS_PER_S / 10)    /* a transfer of this time is long enough */
#define SAMPLE 64u                        /* of so many naive chunks, one is encoded */
#define PERMILLE 1000u
#define USUAL_KEPT 700u                   /* of bfloat16 */

/* ------------------------------------------------------------------------ decision */

static double
seconds_per_gb(uint64_t a, uint64_t b)
{
    return a && b ? 1e9 / (double)a + 1e9 / (double)b : 0;
}

/* Return the seconds that a gigabyte saves at the storage, and set *cost to the seconds of the
 * codec.  Both are 0 if a rate is unknown. */
static double
gain_of(const struct kvt__table_rates *r, unsigned n_threads, double *cost)
{
    double storage = seconds_per_gb(r->read, r->write);
    double codec = seconds_per_gb(r->encode, r->decode);
    bool is_known = storage > 0 && codec > 0;

    *cost = is_known ? codec / n_threads : 0;
    return is_known ? (1 - (double)r->kept_permille / PERMILLE) * storage : 0;
}

/* Choose again.  The choice changes only if the other choice is better by a quarter. */
static void
choose(struct kvt__level *owner, struct kvt__table_rates *r)
{
    bool encodes = atomic_load(&owner->choice.encodes);
    double cost, gain = gain_of(r, owner->store->codec_threads, &cost);

    if (encodes ? gain * 1.25 < cost : gain > cost * 1.25)
        encodes = !encodes;
    r->choice = 1 + (encodes ? KVT__SERDE_LOSSLESS : KVT__SERDE_NAIVE);
    if (encodes != atomic_exchange(&owner->choice.encodes, encodes))
        kvt__log(KVT_LOG_INFO, "%s: new chunks in %s are %s from now on", owner->tier->ops->name,
                 owner->url, encodes ? "lossless" : "naive");
    kvt__table_set_rates(kvt__level_index(owner), r);
}

void
kvt__choice_text(const struct kvt__table_rates *r, char *out, size_t size)
{
    double cost, gain = gain_of(r, 1, &cost);

    if (!r->choice)
        snprintf(out, size, "lossless until the first engine has measured the storage");
    else if (cost <= 0)
        snprintf(out, size, "lossless, because the storage could not be measured");
    else
        snprintf(out, size, "%s: a lossless GB saves %.2f s of reads (%.2f GB/s) and writes "
                 "(%.2f GB/s), and costs %.2f s of a thread", r->choice == 1 + KVT__SERDE_LOSSLESS
                 ? "lossless" : "naive", gain, (double)r->read / 1e9, (double)r->write / 1e9, cost);
}

/* ------------------------------------------------------------------------ operations */

/* A few chunks are encoded also while the choice is naive: otherwise chunks that the codec once
 * could not shrink would decide for ever. */
bool
kvt__choice_is_naive(struct kvt__level *owner)
{
    struct kvt__choice *choice = &owner->choice;

    return choice->is_measured && !atomic_load(&choice->encodes) &&
           (atomic_fetch_add(&choice->n_naive, 1) + 1) % SAMPLE;
}

/* Count the time until now in which an operation was in progress.  choice->lock is held. */
static void
count_busy(struct kvt__choice *choice, int kind)
{
    int64_t now = kvt__now_ns();

    if (choice->n[kind])
        choice->busy_ns[kind] += now - choice->counted_ns[kind];
    choice->counted_ns[kind] = now;
}

void
kvt__choice_begin(struct kvt__level *owner, enum kvt__table_pause kind)
{
    struct kvt__choice *choice = &owner->choice;

    if (!choice->is_measured)
        return;
    pthread_mutex_lock(&choice->lock);
    count_busy(choice, kind);
    choice->n[kind]++;
    pthread_mutex_unlock(&choice->lock);
}

void
kvt__choice_end(struct kvt__level *owner, enum kvt__table_pause kind, uint64_t bytes)
{
    struct kvt__choice *choice = &owner->choice;

    if (!choice->is_measured)
        return;
    pthread_mutex_lock(&choice->lock);
    assert(choice->n[kind]);
    count_busy(choice, kind);
    choice->n[kind]--;
    choice->bytes[kind] += bytes;
    pthread_mutex_unlock(&choice->lock);
}

void
kvt__choice_count_codec(struct kvt__level *owner, enum kvt__table_pause kind, uint64_t decoded,
                        uint64_t encoded, int64_t ns)
{
    struct kvt__choice *choice = &owner->choice;

    if (!choice->is_measured)
        return;
    pthread_mutex_lock(&choice->lock);
    choice->decoded[kind] += decoded;
    choice->encoded[kind] += encoded;
    choice->codec_ns[kind] += ns;
    pthread_mutex_unlock(&choice->lock);
}

/* Set *rate to bytes / ns, or to the mean of the old and the new rate, if enough was measured;
 * then zero the measurement, and return true. */
static bool
revise(uint64_t *rate, uint64_t *bytes, int64_t *ns)
{
    if (*bytes < WINDOW_BYTES || *ns <= 0)
        return false;
    uint64_t now = (uint64_t)((double)*bytes * 1e9 / (double)*ns);

    *rate = *rate ? (*rate + now) / 2 : now;
    *bytes = 0;
    *ns = 0;
    return true;
}

void
kvt__choice_revise(struct kvt__level *owner)
{
    struct kvt__choice *choice = &owner->choice;
    uint64_t *rates[] = { &choice->rates.read, &choice->rates.write };
    uint64_t *speeds[] = { &choice->rates.decode, &choice->rates.encode };
    bool changed = false;

    if (!choice->is_measured)
        return;
    pthread_mutex_lock(&choice->lock);
    for (int kind = 0; kind < 2; kind++) {
        uint64_t decoded = choice->decoded[kind], encoded = choice->encoded[kind];

        changed |= revise(rates[kind], &choice->bytes[kind], &choice->busy_ns[kind]);
        if (revise(speeds[kind], &choice->decoded[kind], &choice->codec_ns[kind])) {
            /* All decoded chunks were once smaller than naive chunks; new chunks may not be. */
            if (kind == KVT__PAUSE_WRITES)
                choice->rates.kept_permille = encoded * PERMILLE / decoded;
            choice->encoded[kind] = 0;
            changed = true;
        }
    }
    pthread_mutex_unlock(&choice->lock);
    if (changed)
        choose(owner, &choice->rates);
}

/* ------------------------------------------------------------------------ calibration */

static int64_t
rate_of(size_t bytes, int64_t ns)
{
    return (int64_t)((double)bytes * 1e9 / (double)(ns > 0 ? ns : 1));
}

/* Measure the storage with an object, which is removed.  Return the time of the transfers in ns;
 * -1: a transfer failed. */
static int64_t
measure_object(struct kvt__level *owner, const struct kvt__object *object,
               const struct kvt__slot *slot, uint32_t crc)
{
    struct kvt__table_rates *rates = &owner->choice.rates;
    struct kvt__found found;
    int64_t t0 = kvt__now_ns();
    int err = kvt__tier_put(owner->tier, object, slot, crc);
    int64_t t1 = kvt__now_ns();

    if (!err)
        err = kvt__tier_get(owner->tier, object, slot, &found);
    int64_t t2 = kvt__now_ns();
    (void)kvt__tier_remove(owner->tier, object);
    if (err)
        return -1;
    rates->write = (uint64_t)rate_of(slot->bytes, t1 - t0);
    rates->read = (uint64_t)rate_of(slot->bytes, t2 - t1);
    return t2 - t0;
}

/* Measure the storage with larger and larger objects, until the time is long enough. */
static void
measure_storage(struct kvt__level *owner, unsigned char *memory)
{
    char key[64];
    struct kvt__object object = {
        .key = key, .opaque = true,
        .hash.bits[0] = (uint64_t)kvt__wall_ns() ^ (uint64_t)getpid() << 40,
        .hash.form = KVT__HASH_UNSIGNED };
    struct kvt__slot slot = { .payload = memory + KVT__SLOT_MARGIN + owner->tier->phase };
    int64_t ns = 0;

    snprintf(key, sizeof key, "kvtier@1@0@%" PRIx64 "@uint8@%scalibration",
             object.hash.bits[0], KVT__KEY_OWN_TAG);
    for (size_t bytes = LARGEST_OBJECT / 16; bytes <= LARGEST_OBJECT && ns >= 0 && ns < ENOUGH_NS &&
         !atomic_load(&owner->store->stopping); bytes *= 4) {
        slot.bytes = bytes;
        object.shape = (struct kvt__shape){ .format = 4, .dtype = 6, .dims = { (uint32_t)bytes } };
        ns = measure_object(owner, &object, &slot, kvt__crc32c(0, slot.payload, bytes));
    }
}

/* Measure the codec with a chunk of made-up bfloat16 numbers. */
static void
measure_codec(struct kvt__level *owner, unsigned char *chunk, unsigned char *frame)
{
    static const struct kvt__chunk_shape shape = { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 1, 1,
                                                   1024, 128 * 1024, 2 };
    size_t bytes = (size_t)kvt__chunk_shape_bytes(&shape);
    struct kvt__table_rates *rates = &owner->choice.rates;
    struct kvt__frame parsed;
    struct kvt__id id = { { 0 } };
    size_t n = 0;

    for (int round = 0; round < 2; round++) { /* the first round warms up */
        int64_t t0 = kvt__now_ns();

        n = kvt__frame_encode(KVT__SERDE_LOSSLESS, &shape, &id, chunk, 0, frame);
        rates->encode = (uint64_t)rate_of(bytes, kvt__now_ns() - t0);
        if (!n || kvt__frame_parse(frame, n, true, &parsed))
            return;
        t0 = kvt__now_ns();
        (void)kvt__frame_decode(&parsed, chunk);
        rates->decode = (uint64_t)rate_of(bytes, kvt__now_ns() - t0);
    }
    rates->kept_permille = USUAL_KEPT;
}

/* Fill memory with bfloat16 numbers whose exponents are spread as those of KV. */
static void
fill(unsigned char *memory, size_t bytes)
{
    uint32_t random = 1;

    for (size_t i = 0; i < bytes; i += 2) {
        random = random * 1664525u + 1013904223u;
        uint32_t exponent = 127 - (uint32_t)__builtin_clz(random | 1);

        memory[i] = (unsigned char)(random >> 8); /* also the lowest bit of the exponent */
        memory[i + 1] = (unsigned char)(exponent >> 1 | (random & 1) << 7);
    }
}

void
kvt__choice_calibrate(struct kvt__level *owner)
{
    struct kvt__choice *choice = &owner->choice;
    size_t bytes = LARGEST_OBJECT + 2 * KVT__SLOT_MARGIN + 4096;

    if (!choice->is_measured)
        return;
    choice->rates = kvt__table_get_rates(kvt__level_index(owner));
    if (choice->rates.choice) /* the choice of the host's other processes */
        atomic_store(&choice->encodes, choice->rates.choice == 1 + KVT__SERDE_LOSSLESS);
    unsigned char *memory = choice->rates.choice ? NULL : aligned_alloc(4096, bytes);
    if (memory) {
        fill(memory, bytes);
        measure_codec(owner, memory, memory + LARGEST_OBJECT / 2);
        if (!owner->no_put && !owner->no_get && !atomic_load(&owner->reads_only))
            measure_storage(owner, memory);
        free(memory);
    }
    choose(owner, &choice->rates);
}
