/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen: the decoder. */
#include "codec/cachegen-plane.h"

/* Encoded bytes that are not read yet. */
struct input {
    const unsigned char *at, *end;
};

/* Return the next n bytes; NULL: there are fewer. */
static const unsigned char *
take(struct input *in, size_t n)
{
    const unsigned char *at = in->at;

    if ((size_t)(in->end - at) < n)
        return NULL;
    in->at += n;
    return at;
}

/* Read the maxima.  Set *raw_bytes to the bytes of the raw tokens. */
static const unsigned char *
read_maxima(const struct kvt__cachegen_plane *p, struct input *in, size_t *raw_bytes)
{
    const unsigned char *maxima = take(in, p->layout.n_tokens * p->element_bytes);

    *raw_bytes = 0;
    for (size_t t = 0; maxima && t < p->layout.n_tokens; t++) {
        uint32_t bits = kvt__load_bits(p, maxima + t * p->element_bytes);

        if (bits > p->infinity || (bits && bits < p->least_max))
            return NULL;
        *raw_bytes += bits == p->infinity ? kvt__token_of(p, t).n * p->element_bytes : 0;
    }
    return maxima;
}

/* Read a table of frequencies and fill the slots of a class. */
static bool
read_table(struct input *in, unsigned c, uint32_t slots[KVT__SLOTS])
{
    const unsigned char *range = take(in, 2), *at;
    uint32_t n = 0;

    if (!range || range[0] > range[1] || range[1] > 2 * c)
        return false;
    for (uint32_t s = range[0]; s <= range[1]; s++) {
        if (!(at = take(in, 1)))
            return false;
        uint32_t f = at[0];
        if (f >= 128) {
            if (!(at = take(in, 1)))
                return false;
            f += (at[0] - UINT32_C(1)) * 128;
        }
        if (f > KVT__SLOTS - n)
            return false;
        for (uint32_t i = 0; i < f; i++)
            slots[n + i] = kvt__rans_slot(s, f, i);
        n += f;
    }
    return n == KVT__SLOTS;
}

/* Read the classes of the channels and fill their slots. */
static bool
read_classes(const struct kvt__cachegen_plane *p, struct input *in, struct kvt__classes *classes,
             uint32_t slots[][KVT__SLOTS])
{
    const unsigned char *bits = take(in, 1), *packed;

    if (!bits || bits[0] > 3 || (bits[0] && p->layout.n_channels > KVT__CLASS_CHANNELS))
        return false;
    classes->bits = bits[0];
    if (!(packed = take(in, kvt__class_bytes(p, classes->bits))))
        return false;
    for (size_t c = 0; classes->bits && c < p->layout.n_channels; c++) {
        size_t bit = c * classes->bits;
        uint32_t word = packed[bit / 8];

        if (bit % 8 + classes->bits > 8)
            word |= (uint32_t)packed[bit / 8 + 1] << 8;
        classes->of[c] = (uint8_t)(word >> bit % 8 & ((1u << classes->bits) - 1));
    }
    for (unsigned k = 0; k < 1u << classes->bits; k++)
        if (!read_table(in, p->levels.c, slots[k]))
            return false;
    return true;
}

/* A segment uses at most so many bytes of the stream; a form reads at most KVT__STREAM_SLACK
 * more. */
#define SEGMENT_STREAM (2 * KVT__SEGMENT)

/* Decode all symbols and the elements.  The last bytes of the stream are copied in front of zeros,
 * so that no form has to look for the end. */
static bool
decode_symbols(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
               const struct kvt__classes *classes, const uint32_t *slots,
               const unsigned char *maxima, uint32_t *states, struct input in,
               unsigned char *plane)
{
    unsigned char rest[2 * (SEGMENT_STREAM + KVT__STREAM_SLACK)] = { 0 };
    uint8_t class_of[KVT__SEGMENT], symbols[KVT__SEGMENT];
    float max[KVT__SEGMENT];
    bool is_rest = false;

    for (size_t i = 0; i < p->layout.n; i += KVT__SEGMENT) {
        size_t n = p->layout.n - i < KVT__SEGMENT ? p->layout.n - i : KVT__SEGMENT;
        size_t left = (size_t)(in.end - in.at);

        if (!is_rest && left < SEGMENT_STREAM + KVT__STREAM_SLACK) {
            memcpy(rest, in.at, left);
            in = (struct input){ rest, rest + left };
            is_rest = true;
        }
        kvt__fill_classes(p, classes, i, n, class_of);
        kvt__fill_numbers(form, p, p->levels.element, maxima, i, n, max);
        in.at = form->decode(slots, class_of, n, states, in.at, symbols);
        if (in.at > in.end)
            return false;
        form->dequantise(&p->levels, symbols, n, max, plane + i * p->element_bytes);
    }
    for (size_t lane = 0; lane < KVT__LANES; lane++)
        if (states[lane] != KVT__LEAST_STATE)
            return false;
    return in.at == in.end;
}

static void
restore_raw(const struct kvt__cachegen_plane *p, const unsigned char *maxima,
            const unsigned char *raw, unsigned char *plane)
{
    size_t bytes = p->element_bytes;

    for (size_t t = 0; t < p->layout.n_tokens; t++)
        if (kvt__load_bits(p, maxima + t * bytes) == p->infinity)
            for (struct kvt__span s = kvt__token_of(p, t); s.n; s.n--, s.at += s.step, raw += bytes)
                memcpy(plane + s.at * bytes, raw, bytes);
}

static bool
decode_plane(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
             struct input in, unsigned char *plane)
{
    uint32_t slots[KVT__CLASSES][KVT__SLOTS], states[KVT__LANES];
    struct kvt__classes classes;
    size_t raw_bytes;
    const unsigned char *maxima = read_maxima(p, &in, &raw_bytes), *raw, *start;

    if (!maxima || !read_classes(p, &in, &classes, slots) || !(raw = take(&in, raw_bytes)) ||
        !(start = take(&in, KVT__STATES_BYTES)))
        return false;
    for (size_t lane = 0; lane < KVT__LANES; lane++)
        states[lane] = kvt__load_word32(start + 4 * lane);
    if (!decode_symbols(form, p, &classes, slots[0], maxima, states, in, plane))
        return false;
    if (raw_bytes)
        restore_raw(p, maxima, raw, plane);
    return true;
}

bool
kvt__cachegen_decode(const struct kvt__cachegen_form *form, const struct kvt__plane_shape *shape,
                     const unsigned char *in, size_t n, unsigned char *plane)
{
    struct kvt__cachegen_plane p = kvt__cachegen_plane_of(shape);

    if (n == 1 + p.bytes && in[0] == KVT__CACHEGEN_STORED) {
        memcpy(plane, in + 1, p.bytes);
        return true;
    }
    return p.is_coded && n > 1 && n <= p.bytes && in[0] == KVT__CACHEGEN_CODED &&
           decode_plane(form, &p, (struct input){ in + 1, in + n }, plane);
}
