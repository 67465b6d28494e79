/* SPDX-License-Identifier: Apache-2.0
 *
 * The cleaner's lease.  One listing of the lease's objects returns number, time of writing and the
 * store's clock.  The host's own clock is never compared with these times. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tier/s3/clean.h"

#define LEASES ".kvtier/cleaner/"
#define MAX_DIGITS 15

struct lease_state {
    uint64_t number;  /* highest number; 0: no lease exists */
    bool is_released;
    int64_t written_s, now_s; /* times of the store's clock; 0: unknown */
};

/* Return the number of a lease's object, or 0: the object is not a lease. */
static uint64_t
number_of(const char *name)
{
    const char *digits = name + sizeof LEASES - 1;
    size_t n = strspn(digits, "0123456789");
    uint64_t number;

    if (!n || n > MAX_DIGITS || digits[n] || *digits == '0' ||
        sscanf(digits, "%" SCNu64, &number) != 1)
        return 0;
    return number;
}

static void
on_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    struct lease_state *state = ctx;
    uint64_t number = number_of(listed->key);

    if (number <= state->number)
        return;
    state->number = number;
    state->is_released = !listed->bytes;
    state->written_s = listed->modified_ns / KVT__NS_PER_S;
}

static int
read_state(struct s3_tier *t, struct lease_state *out)
{
    struct s3_walk *w = kvt__s3_walk_begin(t, LEASES, on_listed, out);
    int more = w ? 1 : -ENOMEM;

    *out = (struct lease_state){ 0 };
    while (more > 0)
        more = kvt__s3_walk_page(w);
    if (!more)
        out->now_s = kvt__s3_walk_date(w);
    kvt__s3_walk_end(w);
    return more;
}

/* Return the seconds since the lease was written; 0 if the age is unknown. */
static int64_t
age_of(const struct lease_state *state)
{
    return state->now_s && state->written_s && state->now_s > state->written_s
        ? state->now_s - state->written_s : 0;
}

/* ---------------------------------------------------------------------------- write */

/* Write the lease's object.  body: host and process id, for an operator who looks for the cleaner;
 * "": release the lease.  is_new: fail with -EEXIST if the object exists. */
static int
put(struct s3_tier *t, uint64_t number, const char *body, bool is_new)
{
    char name[sizeof LEASES + MAX_DIGITS + 8];
    struct s3_call call = {
        .tier = t, .method = "PUT", .name = name, .prio = KVT__PRIO_STORE,
        .body = body, .body_bytes = strlen(body),
        .timeout_ns = KVT__S3_LEASE_MARGIN_S * KVT__NS_PER_S / 4, .conditional = is_new };

    snprintf(name, sizeof name, LEASES "%" PRIu64, number);
    kvt__s3_add_header(&call, "content-type", "text/plain");
    if (!kvt__s3_address_of(t)->express)
        kvt__s3_add_encryption(&call);
    if (t->request_payer)
        kvt__s3_add_header(&call, "x-amz-request-payer", "requester");
    if (is_new)
        kvt__s3_add_header(&call, "if-none-match", "*");
    return kvt__s3_call_wait(&call);
}

static void
describe(char *out, size_t room)
{
    char host[64] = "";

    (void)!gethostname(host, sizeof host - 1);
    snprintf(out, room, "%s %ld\n", host, (long)getpid());
}

static int
remove_number(struct s3_tier *t, uint64_t number)
{
    char name[sizeof LEASES + MAX_DIGITS + 8];

    snprintf(name, sizeof name, LEASES "%" PRIu64, number);
    return kvt__s3_delete_one(t, name);
}

/* -------------------------------------------------------------------------- acquire */

static int
fail_unsupported(void)
{
    return kvt__fail(EOPNOTSUPP, "the store ignores If-None-Match, so several processes "
                     "could delete old chunks at the same time.");
}

static int
fail_lost(void)
{
    return kvt__fail(EBUSY, "the cleaner's lease was lost.");
}

/* Create the object `number`.  To test the store, the first lease of the tier is created twice: a
 * store that accepts the second request ignores If-None-Match. */
static int
create(struct s3_tier *t, uint64_t number)
{
    char who[96];

    describe(who, sizeof who);
    int err = put(t, number, who, true);
    if (!err && !t->cleaner.has_verified_conditions) {
        err = put(t, number, who, true);
        if (!err)
            atomic_store(&t->no_conditions, true);
        t->cleaner.has_verified_conditions = err == -EEXIST;
        err = err == -EEXIST ? 0 : err;
    }
    if (atomic_load(&t->no_conditions))
        return fail_unsupported();
    return err == -EEXIST ? kvt__fail(EBUSY, "another process has acquired the lease.") : err;
}

/* Return 0 if the lease `state` is free or expired; -EBUSY or -EPROTO with a sentence. */
static int
check_free(const struct s3_tier *t, const struct lease_state *state)
{
    int64_t free_s = state->is_released ? t->cleaner.short_interval_ns / KVT__NS_PER_S
                                        : KVT__S3_LEASE_S;

    if (!state->now_s)
        return kvt__fail(EPROTO, "the store's responses have no Date, so the age of the "
                         "lease is unknown.");
    return !state->number || age_of(state) >= free_s ? 0
        : kvt__fail(EBUSY, "another process deletes old chunks, or has just finished.");
}

int
kvt__s3_lease_acquire(struct s3_tier *t, struct s3_lease *lease)
{
    struct lease_state state, now;
    int err = atomic_load(&t->no_conditions) ? fail_unsupported() : read_state(t, &state);

    if (!err)
        err = check_free(t, &state);
    if (err)
        return err;
    *lease = (struct s3_lease){ .tier = t, .number = state.number + 1,
                                .checked_ns = kvt__now_ns() };
    err = create(t, lease->number);
    if (!err)
        err = read_state(t, &now);
    if (err)
        return err;
    if (now.number != lease->number) {
        (void)!remove_number(t, lease->number);
        return fail_lost();
    }
    /* Without permission to delete, each lease would leave an object behind. */
    err = state.number ? remove_number(t, state.number) : 0;
    return err == -EACCES ? err : 0;
}

/* Check that the lease is still held and not close to expiry.  *age_s: seconds since the last
 * renewal.  0; -EBUSY: lost; -errno; errors with a sentence. */
static int
check_held(struct s3_lease *lease, int64_t *age_s)
{
    int64_t now = kvt__now_ns();
    struct lease_state state;
    int err = read_state(lease->tier, &state);

    if (err)
        return err;
    *age_s = age_of(&state);
    if (state.number != lease->number || state.is_released || !state.now_s ||
        *age_s >= KVT__S3_LEASE_S - KVT__S3_LEASE_MARGIN_S)
        return fail_lost();
    lease->checked_ns = now;
    return 0;
}

int
kvt__s3_lease_renew(struct s3_lease *lease)
{
    char who[96];
    int64_t age_s;
    int err = check_held(lease, &age_s);

    if (err || age_s < KVT__S3_LEASE_S / 3)
        return err;
    describe(who, sizeof who);
    err = put(lease->tier, lease->number, who, false);
    return err ? err : check_held(lease, &age_s);
}

void
kvt__s3_lease_release(struct s3_lease *lease)
{
    (void)!put(lease->tier, lease->number, "", false);
}
