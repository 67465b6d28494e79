/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen: maxima, tables, and the encoder. */
#include "codec/cachegen-plane.h"

#define WORK_ALIGNMENT 64u
#define PIECE 64u /* elements of a token that are compared together */

/* ------------------------------------------------------------------------ maxima */

static void
store_bits(const struct kvt__cachegen_plane *p, unsigned char *at, uint32_t bits)
{
    if (p->element_bytes == 2)
        kvt__store_word16(at, bits);
    else
        kvt__store_word32(at, bits);
}

/* Raise max[i] to the magnitude of element i.  As patterns of bits, NaN is above infinity, and
 * infinity above all other magnitudes. */
static void
raise16(const unsigned char *in, size_t n, unsigned char *max)
{
    size_t i = 0;

    for (; i + PIECE <= n; i += PIECE) {
        int16_t x[PIECE], m[PIECE];

        memcpy(x, in + 2 * i, sizeof x);
        memcpy(m, max + 2 * i, sizeof m);
        for (size_t k = 0; k < PIECE; k++) { /* this loop is vectorized */
            x[k] &= 0x7fff;
            m[k] = x[k] > m[k] ? x[k] : m[k];
        }
        memcpy(max + 2 * i, m, sizeof m);
    }
    for (; i < n; i++) {
        uint32_t x = kvt__load_word16(in + 2 * i) & 0x7fff;

        if (x > kvt__load_word16(max + 2 * i))
            kvt__store_word16(max + 2 * i, x);
    }
}

static void
raise32(const unsigned char *in, size_t n, unsigned char *max)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x = kvt__load_word32(in + 4 * i) & 0x7fffffff;

        if (x > kvt__load_word32(max + 4 * i))
            kvt__store_word32(max + 4 * i, x);
    }
}

static void
raise(const struct kvt__cachegen_plane *p, const unsigned char *in, size_t n, unsigned char *max)
{
    if (p->element_bytes == 2)
        raise16(in, n, max);
    else
        raise32(in, n, max);
}

/* Return the largest magnitude of n consecutive elements, as a pattern of bits. */
static uint32_t
largest(const struct kvt__cachegen_plane *p, const unsigned char *in, size_t n)
{
    unsigned char max[PIECE * 4] = { 0 };
    uint32_t result = 0;

    for (size_t i = 0; i < n; i += PIECE)
        raise(p, in + i * p->element_bytes, n - i < PIECE ? n - i : PIECE, max);
    for (size_t i = 0; i < PIECE; i++) {
        uint32_t x = kvt__load_bits(p, max + i * p->element_bytes);

        result = x > result ? x : result;
    }
    return result;
}

static void
measure(const struct kvt__cachegen_plane *p, const unsigned char *plane, unsigned char *maxima)
{
    size_t bytes = p->element_bytes;

    if (p->layout.is_transposed)
        memset(maxima, 0, p->layout.n_tokens * bytes);
    for (size_t at = 0, row = 0; at < p->layout.n; at += p->layout.row, row++) {
        size_t n = p->layout.n - at < p->layout.row ? p->layout.n - at : p->layout.row;

        if (p->layout.is_transposed)
            raise(p, plane + at * bytes, n, maxima);
        else
            store_bits(p, maxima + row * bytes, largest(p, plane + at * bytes, n));
    }
}

/* Replace the maxima of raw tokens by infinity, and compute C / m.  Return the bytes of the raw
 * tokens. */
static size_t
prepare_tokens(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
               unsigned char *maxima, float *factors)
{
    size_t raw_bytes = 0;

    for (size_t t = 0; t < p->layout.n_tokens; t++) {
        unsigned char *at = maxima + t * p->element_bytes;
        uint32_t bits = kvt__load_bits(p, at);
        float m;

        factors[t] = 0;
        if (bits >= p->infinity || (bits && bits < p->least_max)) {
            store_bits(p, at, p->infinity);
            raw_bytes += kvt__token_of(p, t).n * p->element_bytes;
        } else if (bits) {
            form->load(p->levels.element, at, 1, &m);
            factors[t] = (float)p->levels.c / m;
        }
    }
    return raw_bytes;
}

/* ------------------------------------------------------------------------ encode */

/* Return the largest number of bytes in front of the raw tokens. */
static size_t
max_header(const struct kvt__cachegen_plane *p)
{
    size_t classes = p->layout.n_channels <= KVT__CLASS_CHANNELS ? kvt__class_bytes(p, 3) : 0;

    return 1 + p->layout.n_tokens * p->element_bytes + 1 + classes +
           KVT__CLASSES * (2 + 2 * KVT__SYMBOLS);
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Return the bytes behind the symbols in the buffer of the encoded plane: they hold the factors,
 * then the counts, then the stream.  When k symbols are encoded, the stream has at most 2 k bytes,
 * and the last k symbols are not needed any more.  So the stream meets no symbol that is needed. */
static size_t
work_bytes(const struct kvt__cachegen_plane *p)
{
    size_t factors = p->layout.n_tokens * sizeof(float), counts = kvt__counts_bytes(&p->layout);

    return larger(p->layout.n, larger(factors, counts)) + KVT__STREAM_SLACK;
}

size_t
kvt__cachegen_room(const struct kvt__plane_shape *shape)
{
    struct kvt__cachegen_plane p = kvt__cachegen_plane_of(shape);
    size_t coded = max_header(&p) + p.layout.n + WORK_ALIGNMENT + work_bytes(&p);

    return p.is_coded ? larger(1 + p.bytes, coded) : 1 + p.bytes;
}

static void
quantise(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
         const unsigned char *plane, const float *factors, uint8_t *symbols)
{
    float factor[KVT__SEGMENT];

    for (size_t i = 0; i < p->layout.n; i += KVT__SEGMENT) {
        size_t n = p->layout.n - i < KVT__SEGMENT ? p->layout.n - i : KVT__SEGMENT;

        kvt__fill_numbers(form, p, KVT__ELEMENT_F32, (const unsigned char *)factors, i, n, factor);
        form->quantise(&p->levels, plane + i * p->element_bytes, n, factor, symbols + i);
    }
}

static unsigned char *
write_table(const uint16_t *frequency, unsigned char *to)
{
    unsigned first = 0, last = KVT__SYMBOLS - 1;

    while (!frequency[first])
        first++;
    while (!frequency[last])
        last--;
    *to++ = (unsigned char)first;
    *to++ = (unsigned char)last;
    for (unsigned s = first; s <= last; s++)
        if (frequency[s] < 128) {
            *to++ = (unsigned char)frequency[s];
        } else {
            *to++ = (unsigned char)(128 + frequency[s] % 128);
            *to++ = (unsigned char)(frequency[s] / 128);
        }
    return to;
}

static unsigned char *
write_classes(const struct kvt__cachegen_plane *p, const struct kvt__classes *classes,
              unsigned char *to)
{
    *to++ = (unsigned char)classes->bits;
    memset(to, 0, kvt__class_bytes(p, classes->bits));
    for (size_t c = 0; classes->bits && c < p->layout.n_channels; c++) {
        size_t bit = c * classes->bits;
        uint32_t word = (uint32_t)classes->of[c] << bit % 8;

        to[bit / 8] |= (unsigned char)word;
        if (word >> 8)
            to[bit / 8 + 1] |= (unsigned char)(word >> 8);
    }
    to += kvt__class_bytes(p, classes->bits);
    for (unsigned k = 0; k < 1u << classes->bits; k++)
        to = write_table(classes->frequency[k], to);
    return to;
}

static void
fill_table(const struct kvt__classes *classes, struct kvt__rans_symbol table[][KVT__SYMBOLS])
{
    for (unsigned k = 0; k < 1u << classes->bits; k++) {
        uint32_t start = 0;

        for (unsigned s = 0; s < KVT__SYMBOLS; s++) {
            uint32_t f = classes->frequency[k][s];
            uint32_t inverse = f > 1 ? (uint32_t)((UINT64_C(1) << 32) / f) : UINT32_MAX;

            table[k][s] = (struct kvt__rans_symbol){ inverse, (uint16_t)start, (uint16_t)f };
            start += f;
        }
    }
}

/* Encode all symbols, the last first.  Return the start of the stream. */
static unsigned char *
encode_symbols(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
               const struct kvt__classes *classes, const uint8_t *symbols, uint32_t *states,
               unsigned char *end)
{
    struct kvt__rans_symbol table[KVT__CLASSES][KVT__SYMBOLS];
    uint8_t class_of[KVT__SEGMENT];

    fill_table(classes, table);
    for (size_t lane = 0; lane < KVT__LANES; lane++)
        states[lane] = KVT__LEAST_STATE;
    for (size_t left = p->layout.n; left;) {
        size_t n = left % KVT__SEGMENT ? left % KVT__SEGMENT : KVT__SEGMENT;

        left -= n;
        kvt__fill_classes(p, classes, left, n, class_of);
        end = form->encode(table[0], symbols + left, class_of, n, states, end);
    }
    return end;
}

/* Write the raw tokens, the states and the stream behind the header.  Return the end. */
static unsigned char *
assemble(const struct kvt__cachegen_plane *p, const unsigned char *plane,
         const unsigned char *maxima, const uint32_t *states, const unsigned char *stream,
         size_t n_stream, unsigned char *to, size_t raw_bytes)
{
    size_t bytes = p->element_bytes;

    memmove(to + raw_bytes + KVT__STATES_BYTES, stream, n_stream);
    for (size_t t = 0; raw_bytes && t < p->layout.n_tokens; t++)
        if (kvt__load_bits(p, maxima + t * bytes) == p->infinity)
            for (struct kvt__span s = kvt__token_of(p, t); s.n; s.n--, s.at += s.step, to += bytes)
                memcpy(to, plane + s.at * bytes, bytes);
    for (size_t lane = 0; lane < KVT__LANES; lane++, to += 4)
        kvt__store_word32(to, states[lane]);
    return to + n_stream;
}

static size_t
store_plane(const struct kvt__cachegen_plane *p, const unsigned char *plane, unsigned char *out)
{
    out[0] = KVT__CACHEGEN_STORED;
    memcpy(out + 1, plane, p->bytes);
    return 1 + p->bytes;
}

static unsigned char *
aligned(unsigned char *at)
{
    return at + (WORK_ALIGNMENT - (uintptr_t)at % WORK_ALIGNMENT);
}

size_t
kvt__cachegen_encode(const struct kvt__cachegen_form *form, const struct kvt__plane_shape *shape,
                     const unsigned char *plane, unsigned char *out)
{
    struct kvt__cachegen_plane p = kvt__cachegen_plane_of(shape);
    struct kvt__classes classes;
    uint32_t states[KVT__LANES];

    if (!p.is_coded)
        return store_plane(&p, plane, out);
    unsigned char *maxima = out + 1, *symbols = out + max_header(&p);
    unsigned char *work = aligned(symbols + p.layout.n), *end = work + work_bytes(&p);
    out[0] = KVT__CACHEGEN_CODED;
    measure(&p, plane, maxima);
    size_t raw_bytes = prepare_tokens(form, &p, maxima, (void *)work);
    if (raw_bytes >= p.bytes)
        return store_plane(&p, plane, out);
    quantise(form, &p, plane, (void *)work, symbols);
    kvt__choose_classes(&p.layout, p.levels.c, symbols, (void *)work, &classes);
    unsigned char *to = write_classes(&p, &classes, maxima + p.layout.n_tokens * p.element_bytes);
    unsigned char *stream = encode_symbols(form, &p, &classes, symbols, states, end);
    size_t n_stream = (size_t)(end - stream);
    if ((size_t)(to - out) + raw_bytes + KVT__STATES_BYTES + n_stream > p.bytes)
        return store_plane(&p, plane, out);
    to = assemble(&p, plane, maxima, states, stream, n_stream, to, raw_bytes);
    return (size_t)(to - out);
}
