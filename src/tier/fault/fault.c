/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault tier, fault://KEY=VALUE,.../NEXT-URL: wraps another tier, and fails operations at the
 * rates of the settings.  The seed and the operation's number alone determine the faults of an
 * operation.  Any thread: only the number changes. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tier/fault/settings.h"
#include "tier/tier.h"

extern const struct kvt__tier_ops kvt__tier_fault;

struct fault_tier {
    struct kvt__tier tier;
    struct kvt__tier *next;
    double value[KVT__N_FAULTS];
    _Atomic uint64_t n_ops;
    _Atomic int64_t read_until_ns; /* time until which earlier reads use the limit read_mb_s */
};

static struct fault_tier *
fault_of(struct kvt__tier *tier)
{
    return (struct fault_tier *)tier;
}

static const struct kvt__tier *
next_of(const struct kvt__tier *tier)
{
    return ((const struct fault_tier *)tier)->next;
}

/* ----------------------------------------------------------------- chances */

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* SplitMix64's finaliser. */
static uint64_t
mix(uint64_t v)
{
    v = (v ^ (v >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ (v >> 27)) * UINT64_C(0x94d049bb133111eb);
    return v ^ (v >> 31);
}

/* Count an operation and return its random bits. */
static uint64_t
draw_operation(struct fault_tier *t)
{
    uint64_t n = atomic_fetch_add_explicit(&t->n_ops, 1, memory_order_relaxed);

    return mix(mix((uint64_t)t->value[KVT__FAULT_seed] + GOLDEN) + (n + 1) * GOLDEN);
}

/* Return the random bits of a fault.  Each fault has its own bits, so the rate of a fault does
 * not affect other faults. */
static uint64_t
draw_fault(uint64_t op, enum kvt__fault which)
{
    return mix(op + ((uint64_t)which + 1) * GOLDEN);
}

static bool
happens(const struct fault_tier *t, uint64_t op, enum kvt__fault which)
{
    return (double)(draw_fault(op, which) >> 11) * 0x1p-53 < t->value[which];
}

static void
sleep_until(int64_t until_ns)
{
    struct timespec at = kvt__timespec(until_ns);

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        continue;
}

static void
sleep_ms(double ms)
{
    sleep_until(kvt__now_ns() + (int64_t)(ms * (double)KVT__NS_PER_MS));
}

/* Sleep until a read that began at begin_ns has its bytes by the limit read_mb_s. */
static void
throttle(struct fault_tier *t, int64_t begin_ns, size_t bytes)
{
    int64_t old = atomic_load(&t->read_until_ns), end;

    if (!(t->value[KVT__FAULT_read_mb_s] > 0))
        return;
    do
        end = (old > begin_ns ? old : begin_ns) +
              (int64_t)((double)bytes * 1e3 / t->value[KVT__FAULT_read_mb_s]);
    while (!atomic_compare_exchange_weak(&t->read_until_ns, &old, end));
    sleep_until(end);
}

/* Apply the delays that precede every operation. */
static void
apply_delays(const struct fault_tier *t, uint64_t op)
{
    if (t->value[KVT__FAULT_delay_ms] > 0 && happens(t, op, KVT__FAULT_delay))
        sleep_ms(t->value[KVT__FAULT_delay_ms]);
    if (happens(t, op, KVT__FAULT_hang))
        sleep_ms(t->value[KVT__FAULT_hang_ms]);
}

static void
flip_bit(unsigned char *payload, size_t bytes, uint64_t random)
{
    if (bytes)
        payload[random / 8 % bytes] ^= (unsigned char)(1 << random % 8);
}

/* -------------------------------------------------------------- operations */

/* Store a payload with a flipped bit, and restore the bit: other tiers receive the caller's
 * payload too. */
static int
put_corrupt(struct fault_tier *t, struct kvt__tier_op *op, uint64_t random)
{
    flip_bit(op->slot.payload, op->slot.bytes, random);
    int err = kvt__tier_wait(t->next, op);
    flip_bit(op->slot.payload, op->slot.bytes, random);
    return err;
}

/* Keep a random number of the first bytes of a read, and fail with -EIO. */
static int
cut_short(const struct kvt__tier_op *op, uint64_t random)
{
    size_t bytes = op->found.payload_bytes, keep = bytes ? random % bytes : 0;

    memset(op->slot.payload + keep, 0xee, bytes - keep);
    return kvt__fail(EIO, "%s: read of %zu bytes in place of %zu made by fault://.",
                     op->object->key, keep, bytes);
}

static int
get(struct fault_tier *t, struct kvt__tier_op *op, uint64_t random)
{
    int64_t begin = kvt__now_ns();
    int err = kvt__tier_wait(t->next, op);

    if (err)
        return err;
    throttle(t, begin, op->found.payload_bytes);
    if (happens(t, random, KVT__FAULT_short_read))
        return cut_short(op, random);
    if (happens(t, random, KVT__FAULT_bit_flip)) {
        flip_bit(op->slot.payload, op->found.payload_bytes, random);
        op->found.has_read_crc = false;
    }
    return 0;
}

static int
fault_run(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    static const struct { enum kvt__fault which; const char *word; } errors[] = {
        [KVT__TIER_PUT] = { KVT__FAULT_write_error, "write" },
        [KVT__TIER_GET] = { KVT__FAULT_read_error, "read" },
        [KVT__TIER_PROBE] = { KVT__FAULT_probe_error, "probe" },
        [KVT__TIER_REMOVE] = { KVT__FAULT_remove_error, "remove" },
    };
    struct fault_tier *t = fault_of(tier);
    const char *key = op->object->key;
    uint64_t random = draw_operation(t);

    apply_delays(t, random);
    if (happens(t, random, errors[op->kind].which))
        return kvt__fail(EIO, "%s: %s error made by fault://.", key, errors[op->kind].word);
    if (op->kind == KVT__TIER_PUT && happens(t, random, KVT__FAULT_enospc))
        return kvt__fail(ENOSPC, "%s: disk full made by fault://.", key);
    if (op->kind == KVT__TIER_PUT && happens(t, random, KVT__FAULT_write_corrupt))
        return put_corrupt(t, op, random);
    return op->kind == KVT__TIER_GET ? get(t, op, random) : kvt__tier_wait(t->next, op);
}

static int
fault_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    struct fault_tier *t = fault_of(tier);

    return t->next->ops->list(t->next, prefix, fn, ctx);
}

/* ----------------------------------------------------------------- opening */

static int
fault_private_dir(const struct kvt__tier *tier)
{
    return next_of(tier)->ops->private_dir(next_of(tier));
}

static uint64_t
fault_shortage(const struct kvt__tier *tier, const struct kvt__object *object,
               uint64_t bytes)
{
    return next_of(tier)->ops->shortage(next_of(tier), object, bytes);
}

static bool
fault_makes_room(const struct kvt__tier *tier, const struct kvt__object *gone,
                 const struct kvt__object *object)
{
    return next_of(tier)->ops->makes_room(next_of(tier), gone, object);
}

static uint64_t
fault_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *object,
                   uint64_t payload)
{
    return next_of(tier)->ops->stored_bytes(next_of(tier), object, payload);
}

static void
fault_close(struct kvt__tier *tier)
{
    struct fault_tier *t = fault_of(tier);

    t->next->ops->close(t->next);
    free(t);
}

/* Parse KEY=VALUE,.../NEXT-URL into values, and set next->url. */
static int
parse_url(const struct kvt__tier_params *params, double *values, struct kvt__tier_params *next)
{
    const char *name = params->name, *url = params->rest;
    size_t n = strcspn(url, "/");

    if (!url[n])
        return kvt__fail(EINVAL, "%s: fault://%s wraps nothing; write fault://"
                         "KEY=VALUE,.../URL, for example fault://read_error=0.1/"
                         "fs:///var/cache/kvtier.", name, url);
    *next = *params;
    next->url = url + n + 1;
    return kvt__faults_parse(name, url, n, values);
}

static int
fault_check_url(const struct kvt__tier_params *params)
{
    struct kvt__tier_params next;
    double values[KVT__N_FAULTS];
    int err = parse_url(params, values, &next);

    return err ? err : kvt__tier_check_url(&next);
}

static int
fault_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct kvt__tier_params next;
    struct fault_tier *t = calloc(1, sizeof *t);
    int err;

    if (!t)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    t->tier.ops = &kvt__tier_fault;
    err = parse_url(params, t->value, &next);
    if (!err)
        err = kvt__tier_open(&next, &t->next);
    if (err) {
        free(t);
        return err;
    }
    t->tier.multi_host = t->next->multi_host || t->value[KVT__FAULT_shared] > 0;
    t->tier.several_disks = t->next->several_disks;
    t->tier.phase = t->next->phase;
    t->tier.slash = t->next->slash;
    t->tier.default_limit = t->tier.multi_host ? 0 : t->next->default_limit;
    *out = &t->tier;
    return 0;
}

const struct kvt__tier_ops kvt__tier_fault = {
    .name = "fault",
    .open = fault_open,
    .check_url = fault_check_url,
    .close = fault_close,
    .private_dir = fault_private_dir,
    .shortage = fault_shortage,
    .makes_room = fault_makes_room,
    .stored_bytes = fault_stored_bytes,
    .run = fault_run,
    .list = fault_list,
};
