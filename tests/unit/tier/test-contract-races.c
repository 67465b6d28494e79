/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of tiers, tested with each kind: races of calls for one chunk. */
#include <pthread.h>
#include <stdatomic.h>

#include "contract-test.h"

#define N_THREADS 4
#define N_ROUNDS 40
#define RACE_BYTES ((size_t)300 << 10)

struct race {
    struct fixture *f;
    _Atomic int n_bad;
    _Atomic int n_good;
};

struct racer {
    struct race *race;
    unsigned number;
    struct kvt__slot slot;
};

/* The identity contains the seed, so a reader notices the bytes of another writer. */
static void
race_put(struct racer *r, const struct chunk *c, unsigned round)
{
    struct fixture *f = r->race->f;
    struct kvt__object object = c->object;
    uint32_t seed = r->number * 1000 + round;

    memset(&object.id, 0, sizeof object.id);
    kvt__put_le32(object.id.b, seed);
    slot_fill(&r->slot, seed);
    if (kvt__tier_put(f->tier, &object, &r->slot,
                      kvt__crc32c(0, r->slot.payload, RACE_BYTES)))
        r->race->n_bad++;
}

static void
race_get(struct racer *r, const struct chunk *c)
{
    struct fixture *f = r->race->f;
    struct kvt__found found;
    int err = kvt__tier_get(f->tier, &c->object, &r->slot, &found);

    if (err == -ENOENT)
        return;
    if (err || !found.has_id || !slot_holds(&r->slot, kvt__get_le32(found.id.b)) ||
        (!f->tier->in_memory &&
         kvt__crc32c(0, r->slot.payload, RACE_BYTES) != found.crc))
        r->race->n_bad++;
    else
        r->race->n_good++;
}

static void *
racer_main(void *arg)
{
    struct racer *r = arg;
    struct fixture *f = r->race->f;
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", 1);
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        if (r->number % 2) {
            race_get(r, &c);
            int err = kvt__tier_probe(f->tier, &c.object, &found);
            if (err ? err != -ENOENT : found.payload_bytes != RACE_BYTES)
                r->race->n_bad++;
        } else {
            race_put(r, &c, round);
            if (round % 8 == 7) {
                int err = kvt__tier_remove(f->tier, &c.object);
                if (err && err != -ENOENT)
                    r->race->n_bad++;
            }
        }
    }
    return NULL;
}

static void
racing_calls_for_one_key_never_yield_a_torn_chunk(void **state)
{
    struct fixture *f = *state;
    size_t phase = f->tier->phase;
    struct race race = { .f = f };
    struct racer racers[N_THREADS];
    pthread_t threads[N_THREADS];

    for (unsigned i = 0; i < N_THREADS; i++) {
        racers[i] = (struct racer){ &race, i, slot_new(RACE_BYTES, phase) };
        assert_int_equal(pthread_create(&threads[i], NULL, racer_main, &racers[i]),
                         0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        slot_free(&racers[i].slot, phase);
    }
    assert_int_equal(race.n_bad, 0);
}

int
main(int argc, char **argv)
{
    static const struct promise promises[] = {
        CONTRACT(racing_calls_for_one_key_never_yield_a_torn_chunk),
    };

    if (!contract_begin(argc, argv))
        return 77;
    add_promises(promises, sizeof promises / sizeof *promises);
    return contract_run("tier contract, races");
}
