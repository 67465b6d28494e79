/* SPDX-License-Identifier: Apache-2.0
 *
 * The lossless codec: the bases of a plane, and the order of the parts.  lossless.h describes how
 * elements are stored.
 *
 * An encoded plane is a byte STORED and the plane; or a byte CODED, the bases, the groups and the
 * escapes.  The bases repeat with a period that is a multiple of the row and of a group.  The last
 * group is filled up with zeros. */
#include "codec/lossless.h"

#include <string.h>

#include "codec/codec.h"

enum { STORED, CODED };

#define SAMPLES 64u /* rows that choose the bases */
#define SHIFTS 10u  /* a base is the largest exponent of a column, or up to SHIFTS - 1 less */
#define DISTANCES (SHIFTS + KVT__ESCAPE - 1)

/* The parts of a plane. */
struct plane {
    struct kvt__split split;
    size_t bytes;     /* of the plane */
    size_t n;         /* elements */
    size_t period;    /* bases; a multiple of KVT__GROUP */
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

static struct plane
plane_of(const struct kvt__plane_shape *shape)
{
    struct plane p = { .split = splits[shape->element], .n = shape->n };

    p.bytes = p.n * p.split.bytes;
    p.period = choose_period(shape->row, shape->n);
    p.n_groups = (p.n + KVT__GROUP - 1) / KVT__GROUP;
    p.groups_at = 1 + p.period;
    p.escapes_at = p.groups_at + p.n_groups * kvt__group_bytes(p.split);
    return p;
}

/* ------------------------------------------------------------------------ bases */

/* Write the exponents of a group. */
static void
read_exponents(struct kvt__split split, const unsigned char *in, uint8_t *out)
{
    if (split.bytes == 2) { /* this loop is vectorized */
        for (size_t i = 0; i < KVT__GROUP; i++) {
            uint16_t v = (uint16_t)(in[2 * i] | in[2 * i + 1] << 8);
            out[i] = (uint8_t)((uint8_t)(v >> 7) >> split.low_bits);
        }
        return;
    }
    for (size_t i = 0; i < KVT__GROUP; i++)
        out[i] = (uint8_t)((uint8_t)(kvt__load_rotated(split, in, i) >> 8 * (split.bytes - 1))
                           >> split.low_bits);
}

/* Choose the bases of KVT__GROUP columns from n samples, so that few of them need an escape.  The
 * largest exponent may be that of a single token, so a base can be up to SHIFTS - 1 less. */
static void
choose_bases(uint8_t samples[][KVT__GROUP], size_t n, unsigned char *base)
{
    uint8_t counts[DISTANCES][KVT__GROUP] = { 0 }; /* samples by the distance from the largest */

    memset(base, 0, KVT__GROUP);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < KVT__GROUP; i++)
            base[i] = samples[r][i] > base[i] ? samples[r][i] : base[i];
    for (size_t r = 0; r < n; r++)
        for (uint8_t d = 0; d < DISTANCES; d++)
            for (size_t i = 0; i < KVT__GROUP; i++)
                counts[d][i] = (uint8_t)(counts[d][i] + ((uint8_t)(base[i] - samples[r][i]) == d));
    for (size_t i = 0; i < KVT__GROUP; i++) {
        int coded = 0, most;
        uint8_t best = 0;

        for (uint8_t d = 0; d < KVT__ESCAPE; d++)
            coded += counts[d][i];
        most = coded;
        for (uint8_t s = 1; s < SHIFTS && s <= base[i]; s++) {
            coded += counts[s + KVT__ESCAPE - 1][i] - counts[s - 1][i];
            if (coded > most) {
                most = coded;
                best = s;
            }
        }
        base[i] = (uint8_t)(base[i] - best);
    }
}

static void
choose_all_bases(const struct plane *p, const unsigned char *in, unsigned char *base)
{
    uint8_t samples[SAMPLES][KVT__GROUP];
    size_t n_periods = p->n / p->period, step = (n_periods + SAMPLES - 1) / SAMPLES;

    for (size_t at = 0; at < p->period; at += KVT__GROUP) {
        size_t n = 0;

        for (size_t i = at; i + KVT__GROUP <= p->n && n < SAMPLES; i += step * p->period)
            read_exponents(p->split, in + i * p->split.bytes, samples[n++]);
        choose_bases(samples, n, base + at);
    }
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
    unsigned char group[KVT__GROUP * 4] = { 0 };
    size_t at = p->n / KVT__GROUP * KVT__GROUP;

    memcpy(group, plane + at * p->split.bytes, (p->n - at) * p->split.bytes);
    return form->encode(p->split, group, 1, base + at % p->period, out, escapes);
}

size_t
kvt__lossless_encode(const struct kvt__lossless_form *form,
                     const struct kvt__plane_shape *shape, const unsigned char *plane,
                     unsigned char *out)
{
    struct plane p = plane_of(shape);
    unsigned char *base = out + 1, *to = out + p.groups_at, *escapes = out + p.escapes_at;
    size_t n_full = p.n / KVT__GROUP, in_period = p.period / KVT__GROUP, n;

    if (shape->element == KVT__ELEMENT_BYTE)
        return store_plane(&p, plane, out);
    out[0] = CODED;
    choose_all_bases(&p, plane, base);
    for (size_t g = 0; g < n_full; g += n) {
        n = n_full - g < in_period ? n_full - g : in_period;
        escapes = form->encode(p.split, plane + g * KVT__GROUP * p.split.bytes, n, base,
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
    unsigned char group[KVT__GROUP * 4];
    size_t at = p->n / KVT__GROUP * KVT__GROUP;

    escapes = form->decode(p->split, in, 1, base + at % p->period, group, escapes, end);
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
    size_t n_full = p->n / KVT__GROUP, in_period = p->period / KVT__GROUP, n;

    for (size_t g = 0; escapes && g < n_full; g += n) {
        n = n_full - g < in_period ? n_full - g : in_period;
        escapes = form->decode(p->split, from + g * kvt__group_bytes(p->split), n, base,
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
