/* SPDX-License-Identifier: Apache-2.0
 *
 * The lossless codec: the bases of a plane, and the order of the parts.  lossless.h describes how
 * elements are stored.
 *
 * An encoded plane is a byte STORED and the plane; or a byte CODED, the bases, the groups and the
 * escapes.  Each column has a base; the bases repeat with a period that is a multiple of the row
 * and of a group.  In a transposed plane each span of one or two groups has a base.  The last group
 * is filled up with zeros. */
#include "codec/lossless.h"

#include <string.h>

#include "codec/codec.h"

enum { STORED, CODED };

#define SAMPLES 64u /* rows that choose the bases */
#define SHIFTS 10u  /* a base is the largest exponent of a column, or up to SHIFTS - 1 less */
#define DISTANCES (SHIFTS + KVT__ESCAPE - 1)
#define MAX_SPAN (2 * KVT__GROUP)
#define REPEATED (16 * KVT__GROUP) /* bases that are repeated for the elements of spans at a time */

/* The parts of a plane. */
struct plane {
    struct kvt__split split;
    size_t bytes;     /* of the plane */
    size_t n;         /* elements */
    size_t period;    /* bases; a multiple of KVT__GROUP */
    size_t span;      /* elements of a base in a transposed plane; else 0 */
    size_t n_groups;
    size_t groups_at; /* offset of the groups in the encoded plane */
    size_t escapes_at;
};

static const struct kvt__split splits[KVT__N_ELEMENTS] = {
    [KVT__ELEMENT_BYTE] = { 1, 0 }, [KVT__ELEMENT_BF16] = { 2, 0 },
    [KVT__ELEMENT_F16] = { 2, 3 },  [KVT__ELEMENT_F32] = { 4, 0 },
    [KVT__ELEMENT_E4M3] = { 1, 4 }, [KVT__ELEMENT_E5M2] = { 1, 3 },
};

uint32_t
kvt__element_bytes(enum kvt__element element)
{
    return splits[element].bytes;
}

/* Return the smallest common multiple of the row and KVT__GROUP if a plane has at least 16 of these
 * periods, else KVT__GROUP: bases should take few bytes. */
static size_t
choose_period(uint32_t row, uint32_t n)
{
    uint64_t period = row;

    for (uint32_t group = KVT__GROUP; group > 1; group /= 2)
        if (period % KVT__GROUP)
            period *= 2;
    return period <= n / 16 ? (size_t)period : KVT__GROUP;
}

/* Return the elements of a base in a transposed plane: elements of one channel, if possible.  A
 * base for 128 tokens takes half the bytes, and the exponents of a channel hardly change. */
static size_t
choose_span(uint32_t row)
{
    return row % MAX_SPAN ? KVT__GROUP : MAX_SPAN;
}

static struct plane
plane_of(const struct kvt__plane_shape *shape)
{
    struct plane p = { .split = splits[shape->element], .n = shape->n };

    p.bytes = p.n * p.split.bytes;
    p.period = choose_period(shape->row, shape->n);
    p.span = shape->is_transposed ? choose_span(shape->row) : 0;
    p.n_groups = (p.n + KVT__GROUP - 1) / KVT__GROUP;
    p.groups_at = 1 + (p.span ? (p.n + p.span - 1) / p.span : p.period);
    p.escapes_at = p.groups_at + p.n_groups * kvt__group_bytes(p.split);
    return p;
}

/* ------------------------------------------------------------------------ bases */

/* Write the exponents of a group. */
static void
read_exponents(struct kvt__split split, const unsigned char *in, uint8_t *out)
{
    if (split.bytes == 2) { /* this loop is vectorized */
        uint16_t v[KVT__GROUP];

        memcpy(v, in, sizeof v);
        for (size_t i = 0; i < KVT__GROUP; i++)
            out[i] = (uint8_t)((v[i] >> 7 & 0xff) >> split.low_bits);
        return;
    }
    for (size_t i = 0; i < KVT__GROUP; i++)
        out[i] = (uint8_t)((uint8_t)(kvt__load_rotated(split, in, i) >> 8 * (split.bytes - 1))
                           >> split.low_bits);
}

/* Return the base with the fewest escapes.  counts: elements by the distance from the largest
 * exponent, `stride` bytes apart.  The largest exponent may be that of a single token, so the base
 * can be up to SHIFTS - 1 less. */
static uint8_t
choose_base(const uint8_t *counts, size_t stride, uint8_t largest)
{
    int coded = 0, most;
    uint8_t best = 0;

    for (size_t d = 0; d < KVT__ESCAPE; d++)
        coded += counts[d * stride];
    most = coded;
    for (uint8_t s = 1; s < SHIFTS && s <= largest; s++) {
        coded += counts[(s + KVT__ESCAPE - 1) * stride] - counts[(s - 1) * stride];
        if (coded > most) {
            most = coded;
            best = s;
        }
    }
    return (uint8_t)(largest - best);
}

/* Choose the bases of KVT__GROUP columns from n samples. */
static void
choose_bases(uint8_t samples[][KVT__GROUP], size_t n, unsigned char *base)
{
    uint8_t counts[DISTANCES][KVT__GROUP] = { 0 };

    memset(base, 0, KVT__GROUP);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < KVT__GROUP; i++)
            base[i] = samples[r][i] > base[i] ? samples[r][i] : base[i];
    for (size_t r = 0; r < n; r++)
        for (uint8_t d = 0; d < DISTANCES; d++)
            for (size_t i = 0; i < KVT__GROUP; i++)
                counts[d][i] = (uint8_t)(counts[d][i] + ((uint8_t)(base[i] - samples[r][i]) == d));
    for (size_t i = 0; i < KVT__GROUP; i++)
        base[i] = choose_base(&counts[0][i], KVT__GROUP, base[i]);
}

/* Return the largest exponent of a group. */
static uint8_t
largest_of(const uint8_t exponents[KVT__GROUP])
{
    uint8_t largest = 0;

    for (size_t i = 0; i < KVT__GROUP; i++) /* this loop and the next are vectorized */
        largest = exponents[i] > largest ? exponents[i] : largest;
    return largest;
}

/* Return how many exponents of a group are equal to `exponent`. */
static uint8_t
count_equal(const uint8_t exponents[KVT__GROUP], uint8_t exponent)
{
    uint8_t n = 0;

    for (size_t i = 0; i < KVT__GROUP; i++)
        n = (uint8_t)(n + (exponents[i] == exponent));
    return n;
}

/* Choose the base of a span of n groups with these exponents. */
static uint8_t
choose_span_base(uint8_t exponents[][KVT__GROUP], size_t n)
{
    uint8_t counts[DISTANCES] = { 0 }, largest = 0;

    for (size_t g = 0; g < n; g++) {
        uint8_t of_group = largest_of(exponents[g]);

        largest = of_group > largest ? of_group : largest;
    }
    for (size_t g = 0; g < n; g++)
        for (uint8_t d = 0; d < DISTANCES; d++)
            counts[d] = (uint8_t)(counts[d] + count_equal(exponents[g], (uint8_t)(largest - d)));
    return choose_base(counts, 1, largest);
}

static void
choose_bases_of_spans(const struct plane *p, const unsigned char *in, unsigned char *base)
{
    uint8_t exponents[MAX_SPAN / KVT__GROUP][KVT__GROUP];
    unsigned char last[KVT__GROUP * 4] = { 0 };

    for (size_t at = 0; at < p->n; at += p->span) {
        size_t n = 0;

        for (size_t i = at; i < p->n && i < at + p->span; i += KVT__GROUP) {
            const unsigned char *group = in + i * p->split.bytes;

            if (p->n - i < KVT__GROUP)
                group = memcpy(last, group, (p->n - i) * p->split.bytes);
            read_exponents(p->split, group, exponents[n++]);
        }
        *base++ = choose_span_base(exponents, n);
    }
}

static void
choose_all_bases(const struct plane *p, const unsigned char *in, unsigned char *base)
{
    uint8_t samples[SAMPLES][KVT__GROUP];
    size_t n_periods = p->n / p->period, step = (n_periods + SAMPLES - 1) / SAMPLES;

    if (p->span) {
        choose_bases_of_spans(p, in, base);
        return;
    }
    for (size_t at = 0; at < p->period; at += KVT__GROUP) {
        size_t n = 0;

        for (size_t i = at; i + KVT__GROUP <= p->n && n < SAMPLES; i += step * p->period)
            read_exponents(p->split, in + i * p->split.bytes, samples[n++]);
        choose_bases(samples, n, base + at);
    }
}

/* Return the base of each element from group g on, and set *n to the number of groups with bases.
 * repeated: REPEATED bytes for the bases of spans. */
static const unsigned char *
bases_of(const struct plane *p, const unsigned char *base, size_t g, size_t *n,
         unsigned char *repeated)
{
    size_t at = g * KVT__GROUP % p->period;

    if (!p->span) {
        *n = (p->period - at) / KVT__GROUP;
        return base + at;
    }
    for (*n = 0; *n < REPEATED / KVT__GROUP && g + *n < p->n_groups; ++*n)
        memset(repeated + *n * KVT__GROUP, base[(g + *n) * KVT__GROUP / p->span], KVT__GROUP);
    return repeated;
}

/* ------------------------------------------------------------------------ encode */

/* Each element may need an escape: encode() knows the size of a coded plane only at the end. */
static size_t
room(const struct kvt__plane_shape *shape)
{
    struct plane p = plane_of(shape);

    return shape->element == KVT__ELEMENT_BYTE ? 1 + p.bytes
                                               : p.escapes_at + p.n_groups * KVT__GROUP;
}

static size_t
store_plane(const struct plane *p, const unsigned char *plane, unsigned char *out)
{
    out[0] = STORED;
    memcpy(out + 1, plane, p->bytes);
    return 1 + p->bytes;
}

/* Encode the incomplete group behind the last full group. */
static unsigned char *
encode_rest(const struct kvt__lossless_form *form, const struct plane *p,
            const unsigned char *plane, const unsigned char *base, unsigned char *out,
            unsigned char *escapes)
{
    unsigned char group[KVT__GROUP * 4] = { 0 }, repeated[REPEATED];
    size_t at = p->n / KVT__GROUP * KVT__GROUP, n;

    memcpy(group, plane + at * p->split.bytes, (p->n - at) * p->split.bytes);
    base = bases_of(p, base, at / KVT__GROUP, &n, repeated);
    return form->encode(p->split, group, 1, base, out, escapes);
}

size_t
kvt__lossless_encode(const struct kvt__lossless_form *form,
                     const struct kvt__plane_shape *shape, const unsigned char *plane,
                     unsigned char *out)
{
    struct plane p = plane_of(shape);
    unsigned char *base = out + 1, *to = out + p.groups_at, *escapes = out + p.escapes_at;
    unsigned char repeated[REPEATED];
    size_t n_full = p.n / KVT__GROUP, n;

    if (shape->element == KVT__ELEMENT_BYTE)
        return store_plane(&p, plane, out);
    out[0] = CODED;
    choose_all_bases(&p, plane, base);
    for (size_t g = 0; g < n_full; g += n) {
        const unsigned char *bases = bases_of(&p, base, g, &n, repeated);

        n = n_full - g < n ? n_full - g : n;
        escapes = form->encode(p.split, plane + g * KVT__GROUP * p.split.bytes, n, bases,
                               to + g * kvt__group_bytes(p.split), escapes);
    }
    if (n_full < p.n_groups)
        escapes = encode_rest(form, &p, plane, base, to + n_full * kvt__group_bytes(p.split),
                              escapes);
    size_t bytes = (size_t)(escapes - out);
    return bytes <= p.bytes ? bytes : store_plane(&p, plane, out);
}

/* ------------------------------------------------------------------------ decode */

static const unsigned char *
decode_rest(const struct kvt__lossless_form *form, const struct plane *p,
            const unsigned char *in, const unsigned char *base, unsigned char *plane,
            const unsigned char *escapes, const unsigned char *end)
{
    unsigned char group[KVT__GROUP * 4], repeated[REPEATED];
    size_t at = p->n / KVT__GROUP * KVT__GROUP, n;

    base = bases_of(p, base, at / KVT__GROUP, &n, repeated);
    escapes = form->decode(p->split, in, 1, base, group, escapes, end);
    if (escapes)
        memcpy(plane + at * p->split.bytes, group, (p->n - at) * p->split.bytes);
    return escapes;
}

static bool
decode_groups(const struct kvt__lossless_form *form, const struct plane *p,
              const unsigned char *in, size_t n_bytes, unsigned char *plane)
{
    const unsigned char *base = in + 1, *from = in + p->groups_at, *end = in + n_bytes;
    const unsigned char *escapes = in + p->escapes_at;
    unsigned char repeated[REPEATED];
    size_t n_full = p->n / KVT__GROUP, n;

    for (size_t g = 0; escapes && g < n_full; g += n) {
        const unsigned char *bases = bases_of(p, base, g, &n, repeated);

        n = n_full - g < n ? n_full - g : n;
        escapes = form->decode(p->split, from + g * kvt__group_bytes(p->split), n, bases,
                               plane + g * KVT__GROUP * p->split.bytes, escapes, end);
    }
    if (escapes && n_full < p->n_groups)
        escapes = decode_rest(form, p, from + n_full * kvt__group_bytes(p->split), base, plane,
                              escapes, end);
    return escapes == end;
}

bool
kvt__lossless_decode(const struct kvt__lossless_form *form,
                     const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
                     unsigned char *plane)
{
    struct plane p = plane_of(shape);

    if (n == 1 + p.bytes && in[0] == STORED) {
        memcpy(plane, in + 1, p.bytes);
        return true;
    }
    return n >= p.escapes_at && in[0] == CODED && shape->element != KVT__ELEMENT_BYTE &&
           decode_groups(form, &p, in, n, plane);
}

/* ------------------------------------------------------------------------- forms */

const struct kvt__lossless_form *const *
kvt__lossless_forms(void)
{
    static const struct kvt__lossless_form *const all[] = {
#ifdef __x86_64__
        &kvt__lossless_avx512, &kvt__lossless_avx2,
#elif defined(__aarch64__)
        &kvt__lossless_neon,
#endif
        &kvt__lossless_plain, NULL,
    };
    const struct kvt__lossless_form *const *form = all;

    while (!(*form)->is_supported())
        form++;
    return form;
}

static size_t
encode(const struct kvt__plane_shape *shape, const unsigned char *plane, unsigned char *out)
{
    return kvt__lossless_encode(kvt__lossless_forms()[0], shape, plane, out);
}

static bool
decode(const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
       unsigned char *plane)
{
    return kvt__lossless_decode(kvt__lossless_forms()[0], shape, in, n, plane);
}

const struct kvt__codec kvt__codec_lossless = { "lossless", room, encode, decode };
