/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs, units and constant tables for the kernels. */
#include "gpu/plan.h"

#include "base/crc32c.h"

#define ONE (UINT32_C(1) << 31) /* x^0 */

/* Return a * x^(8 * bytes). */
static uint32_t
times_power(uint32_t a, uint64_t bytes)
{
    return kvt__crc32c_times(a, kvt__crc32c_power(bytes));
}

static void
fill_table(uint32_t table[KVT__TABLE_WORDS], uint64_t bytes)
{
    static const uint32_t n_bits[] = { 6, 6, 5, 5, 5, 5 };
    uint32_t entry = 0, bit = 0;

    for (uint32_t f = 0; f < sizeof n_bits / sizeof *n_bits; f++) {
        table[entry] = 0;
        for (uint32_t b = 0; b < n_bits[f]; b++) {
            uint32_t moved = times_power(UINT32_C(1) << (bit + b), bytes);

            for (uint32_t low = 0; low < UINT32_C(1) << b; low++)
                table[entry + (UINT32_C(1) << b) + low] = moved ^ table[entry + low];
        }
        entry += UINT32_C(1) << n_bits[f];
        bit += n_bits[f];
    }
}

void
kvt__plan_sums(struct kvt__sums *sums)
{
    for (uint32_t log = 0; log < KVT__WIDTHS; log++) {
        uint32_t weight = times_power(ONE, 4);

        fill_table(sums->table[log], (uint64_t)KVT__THREADS << log);
        for (uint32_t t = KVT__THREADS; t--; weight = times_power(weight, 1u << log))
            sums->weight[log][t] = weight;
    }
}

uint32_t
kvt__plan_width(const struct kvt__view *view, uint64_t flat)
{
    uint64_t all = flat | UINT64_C(16);

    for (uint32_t i = 0; view && i < view->n_kv * view->n_layers; i++)
        all |= (uintptr_t)view->base[i];
    if (view)
        all |= (uint64_t)view->block_stride;
    if (view && view->opaque)
        all |= view->block_bytes;
    else if (view)
        all |= view->head_bytes | (uint64_t)(view->n_heads > 1 ? view->head_stride : 0) |
               (uint64_t)(view->block_tokens > 1 ? view->token_stride : 0);
    return (uint32_t)__builtin_ctzll(all);
}

/* Return the constants of a division by d.  `times` is rounded up, so that the quotient is exact
 * for all n < 2^31. */
static struct kvt__divisor
divisor(uint64_t d)
{
    uint32_t shift = 0;

    while (UINT64_C(1) << shift < d)
        shift++;
    return (struct kvt__divisor){
        .d = (uint32_t)d,
        .times = (uint32_t)(((UINT64_C(1) << (31 + shift)) + d - 1) / d),
        .shift = shift,
    };
}

static void
divide_opaque(struct kvt__copy_job *job, const struct kvt__view *view, uint32_t log)
{
    uint64_t block = view->block_bytes >> log;

    job->by[0] = divisor(block * view->n_layers);
    job->by[1] = job->by[2] = job->by[3] = divisor(block);
}

static void
divide(struct kvt__copy_job *job, const struct kvt__view *view, uint32_t n_tokens, uint32_t log)
{
    uint64_t head = view->head_bytes >> log, token = head * view->n_heads;

    job->by[0] = divisor(token * n_tokens);
    job->by[1] = divisor(token * view->block_tokens);
    job->by[2] = divisor(token);
    job->by[3] = divisor(head);
}

void
kvt__plan_offsets(uint64_t *offsets, const struct kvt__view *view, const int32_t *blocks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        offsets[i] = kvt__block_real(view, blocks[i])
                   ? (uint64_t)(blocks[i] * view->block_stride) : KVT__NOT_REAL;
}

void
kvt__plan_job(struct kvt__copy_job *job, enum kvt__copy_job_kind kind, const struct kvt__view *view,
              uint32_t n_tokens, uint32_t log, uint64_t flat, uint64_t bases,
              uint64_t offsets)
{
    *job = (struct kvt__copy_job){ .kind = kind, .flat = flat };
    if (!view)
        return;
    job->table[0] = view->opaque ? offsets : bases;
    job->table[1] = view->opaque ? bases : offsets;
    job->token_stride = view->token_stride;
    job->head_stride = view->head_stride;
    if (view->opaque)
        divide_opaque(job, view, log);
    else
        divide(job, view, n_tokens, log);
}

uint64_t
kvt__plan_unit_bytes(uint64_t bytes, uint32_t n_processors)
{
    uint64_t unit = KVT__MIN_UNIT_BYTES, most = 8 * (uint64_t)n_processors;

    most = most < KVT__MAX_UNITS ? most : KVT__MAX_UNITS;
    while (unit < KVT__MAX_UNIT_BYTES && bytes / unit > most)
        unit *= 2;
    return unit;
}

uint32_t
kvt__plan_units(struct kvt__unit *units, uint32_t job, uint32_t log, uint64_t from,
                uint64_t to, uint64_t unit_bytes)
{
    uint32_t n = 0;

    for (uint64_t step; from < to; from += step) {
        step = to - from < unit_bytes ? to - from : unit_bytes;
        units[n++] = (struct kvt__unit){ .job = job, .first = (uint32_t)(from >> log),
                                         .n = (uint32_t)(step >> log) };
    }
    return n;
}

uint32_t
kvt__plan_join(uint32_t sum, const uint32_t *sums, const struct kvt__unit *units,
               uint32_t n, uint32_t log)
{
    uint32_t power = 0, power_of = 0; /* most units have one size */

    for (uint32_t i = 0; i < n; i++) {
        if (units[i].n != power_of)
            power = kvt__crc32c_power((uint64_t)units[i].n << log);
        power_of = units[i].n;
        sum = kvt__crc32c_times(sum, power) ^ sums[i];
    }
    return sum;
}

uint32_t
kvt__plan_crc(uint32_t sum, uint64_t bytes)
{
    return ~(times_power(UINT32_MAX, bytes) ^ sum);
}
