/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs kv8 and kv4: minimum and scale of the groups, and the order of the parts.
 *
 * An encoded plane is a byte STORED and the plane; or a byte CODED and the rows, KVT__GROUP_ROWS at
 * a time: the minima of the columns, their scales, and the codes of each row.  Planes with NaN or
 * infinities, and of other types than bfloat16, are stored. */
#include "codec/affine.h"

#include <math.h>

#include "codec/codec.h"

enum { STORED, CODED };

#define MIN_SCALE 0x1p-100f /* the inverse is finite */
#define MAX_ELEMENT 0x1p127f /* half a scale above this number is finite */
#define COLUMNS 1024u /* columns that are encoded or decoded together */

struct plane {
    unsigned bits;
    size_t row, n_rows;
    size_t bytes;      /* of the plane */
    size_t code_bytes; /* of a row's codes */
    bool is_coded;     /* the shape allows codes */
};

static struct plane
plane_of(unsigned bits, const struct kvt__plane_shape *shape)
{
    struct plane p = { .bits = bits, .row = shape->row, .n_rows = shape->n / shape->row };

    p.bytes = (size_t)shape->n * kvt__element_bytes(shape->element);
    p.code_bytes = (p.row * bits + 7) / 8;
    p.is_coded = shape->element == KVT__ELEMENT_BF16 && shape->n % shape->row == 0;
    return p;
}

/* Return the bytes of a coded plane. */
static size_t
coded_bytes(const struct plane *p)
{
    size_t n_groups = (p->n_rows + KVT__GROUP_ROWS - 1) / KVT__GROUP_ROWS;

    return 1 + n_groups * 4 * p->row + p->n_rows * p->code_bytes;
}

/* A plane is stored if codes need more bytes. */
static size_t
room(const struct kvt__plane_shape *shape)
{
    return 1 + (size_t)shape->n * kvt__element_bytes(shape->element);
}

static size_t
store_plane(const struct plane *p, const unsigned char *plane, unsigned char *out)
{
    out[0] = STORED;
    memcpy(out + 1, plane, p->bytes);
    return 1 + p->bytes;
}

/* ------------------------------------------------------------------------ encode */

/* Write minimum and scale of a group in bfloat16, and set *min and *inverse to the numbers for the
 * encoder.  False: the range is too large or too small. */
static bool
choose_scale(unsigned bits, float *min, float max, float *inverse, unsigned char *min_at,
             unsigned char *scale_at)
{
    float scale = (max - *min) / (float)((1u << bits) - 1);
    uint32_t up = (kvt__bits_of_float(scale) + 0xffff) & ~UINT32_C(0xffff);

    scale = kvt__float_of_bits(up);
    kvt__store_bf16(min_at, *min); /* exact: the minimum is an element */
    kvt__store_bf16(scale_at, scale);
    *inverse = scale > 0 ? 1 / scale : 0;
    return max < MAX_ELEMENT && isfinite(scale) && (scale >= MIN_SCALE || scale == 0);
}

/* Encode some columns of a group of rows.  in, codes: the first row's first element and code.
 * min_at: where the minima belong; the scales follow p->row columns behind. */
static bool
encode_columns(const struct kvt__affine_form *form, const struct plane *p,
               const unsigned char *in, size_t n_rows, size_t n, unsigned char *min_at,
               unsigned char *codes)
{
    float min[COLUMNS], max[COLUMNS], inverse[COLUMNS];
    bool is_finite = true;

    for (size_t i = 0; i < n; i++) {
        min[i] = INFINITY;
        max[i] = -INFINITY;
    }
    for (size_t r = 0; r < n_rows; r++)
        form->measure(in + r * p->row * 2, n, min, max, &is_finite);
    for (size_t i = 0; is_finite && i < n; i++)
        is_finite = choose_scale(p->bits, &min[i], max[i], &inverse[i], min_at + 2 * i,
                                 min_at + 2 * (p->row + i));
    for (size_t r = 0; is_finite && r < n_rows; r++) {
        struct kvt__affine_row row = { min, inverse, n };

        (p->bits == 8 ? form->encode8 : form->encode4)(row, in + r * p->row * 2,
                                                       codes + r * p->code_bytes);
    }
    return is_finite;
}

size_t
kvt__affine_encode(const struct kvt__affine_form *form, unsigned bits,
                   const struct kvt__plane_shape *shape, const unsigned char *plane,
                   unsigned char *out)
{
    struct plane p = plane_of(bits, shape);
    unsigned char *to = out + 1;

    if (!p.is_coded || coded_bytes(&p) > p.bytes)
        return store_plane(&p, plane, out);
    out[0] = CODED;
    for (size_t first = 0, n_rows; first < p.n_rows; first += n_rows) {
        n_rows = p.n_rows - first < KVT__GROUP_ROWS ? p.n_rows - first : KVT__GROUP_ROWS;
        for (size_t c = 0, n; c < p.row; c += n) {
            n = p.row - c < COLUMNS ? p.row - c : COLUMNS;
            if (!encode_columns(form, &p, plane + (first * p.row + c) * 2, n_rows, n, to + 2 * c,
                                to + 4 * p.row + c * bits / 8))
                return store_plane(&p, plane, out);
        }
        to += 4 * p.row + n_rows * p.code_bytes;
    }
    return (size_t)(to - out);
}

/* ------------------------------------------------------------------------ decode */

/* Decode some columns of a group of rows.  Arguments as of encode_columns(). */
static bool
decode_columns(const struct kvt__affine_form *form, const struct plane *p,
               const unsigned char *min_at, const unsigned char *codes, size_t n_rows, size_t n,
               unsigned char *out)
{
    float min[COLUMNS], scale[COLUMNS];

    for (size_t i = 0; i < n; i++) {
        min[i] = kvt__load_bf16(min_at + 2 * i);
        scale[i] = kvt__load_bf16(min_at + 2 * (p->row + i));
        if (!isfinite(min[i]) || !isfinite(scale[i])) /* NaN would differ between the forms */
            return false;
    }
    for (size_t r = 0; r < n_rows; r++) {
        struct kvt__affine_row row = { min, scale, n };

        (p->bits == 8 ? form->decode8 : form->decode4)(row, codes + r * p->code_bytes,
                                                       out + r * p->row * 2);
    }
    return true;
}

bool
kvt__affine_decode(const struct kvt__affine_form *form, unsigned bits,
                   const struct kvt__plane_shape *shape, const unsigned char *in, size_t n_bytes,
                   unsigned char *plane)
{
    struct plane p = plane_of(bits, shape);
    const unsigned char *from = in + 1;

    if (n_bytes == 1 + p.bytes && in[0] == STORED) {
        memcpy(plane, in + 1, p.bytes);
        return true;
    }
    if (!p.is_coded || n_bytes != coded_bytes(&p) || in[0] != CODED)
        return false;
    for (size_t first = 0, n_rows; first < p.n_rows; first += n_rows) {
        n_rows = p.n_rows - first < KVT__GROUP_ROWS ? p.n_rows - first : KVT__GROUP_ROWS;
        for (size_t c = 0, n; c < p.row; c += n) {
            n = p.row - c < COLUMNS ? p.row - c : COLUMNS;
            if (!decode_columns(form, &p, from + 2 * c, from + 4 * p.row + c * bits / 8, n_rows,
                                n, plane + (first * p.row + c) * 2))
                return false;
        }
        from += 4 * p.row + n_rows * p.code_bytes;
    }
    return true;
}

/* ------------------------------------------------------------------------- codecs */

const struct kvt__affine_form *const *
kvt__affine_forms(void)
{
    static const struct kvt__affine_form *const all[] = {
#ifdef __x86_64__
        &kvt__affine_avx512, &kvt__affine_avx2,
#endif
        &kvt__affine_plain, NULL,
    };
    const struct kvt__affine_form *const *form = all;

    while (!(*form)->is_supported())
        form++;
    return form;
}

static size_t
encode8(const struct kvt__plane_shape *shape, const unsigned char *plane, unsigned char *out)
{
    return kvt__affine_encode(kvt__affine_forms()[0], 8, shape, plane, out);
}

static bool
decode8(const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
        unsigned char *plane)
{
    return kvt__affine_decode(kvt__affine_forms()[0], 8, shape, in, n, plane);
}

static size_t
encode4(const struct kvt__plane_shape *shape, const unsigned char *plane, unsigned char *out)
{
    return kvt__affine_encode(kvt__affine_forms()[0], 4, shape, plane, out);
}

static bool
decode4(const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
        unsigned char *plane)
{
    return kvt__affine_decode(kvt__affine_forms()[0], 4, shape, in, n, plane);
}

const struct kvt__codec kvt__codec_kv8 = { "kv8", room, encode8, decode8 };
const struct kvt__codec kvt__codec_kv4 = { "kv4", room, encode4, decode4 };
