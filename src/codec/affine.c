/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs kv8 and kv4: minimum and scale of the groups, and the order of the parts.
 *
 * An encoded plane is a byte STORED and the plane; or a byte CODED and the strips.  A strip is up
 * to KVT__GROUP_TOKENS rows of a plane.  If the plane is transposed, a strip is a single row, or
 * all rows if each row consists of complete groups.  A strip consists of the minima of the strip's
 * groups, the scales of the groups, and the codes of each row. */
#include "codec/affine.h"

#include <math.h>

#include "codec/codec.h"

enum { STORED, CODED };

#define MIN_SCALE 0x1p-100f /* the inverse is finite */
#define MAX_ELEMENT 0x1p127f /* half a scale above this number is finite */
#define COLUMNS 1024u /* columns that are encoded or decoded together; whole groups */

struct plane {
    unsigned bits;
    size_t row, n_rows;
    size_t strip_rows; /* rows of a strip; the last strip may have fewer rows */
    unsigned shift;    /* column i belongs to group i >> shift */
    size_t n_groups;   /* groups of a strip */
    size_t bytes;      /* of the plane */
    size_t code_bytes; /* of a row's codes */
    bool is_coded;     /* the shape allows codes */
};

/* Return the groups of n columns. */
static size_t
groups_of(const struct plane *p, size_t n)
{
    return (n + (1u << p->shift) - 1) >> p->shift;
}

static struct plane
plane_of(unsigned bits, const struct kvt__plane_shape *shape)
{
    struct plane p = { .bits = bits, .row = shape->row, .n_rows = shape->n / shape->row };

    p.is_coded = shape->n_layers && shape->element == KVT__ELEMENT_BF16 &&
                 shape->n % shape->row == 0;
    if (shape->is_transposed && p.row % KVT__GROUP_TOKENS == 0) { /* the rows form one long row */
        p.row *= p.n_rows;
        p.n_rows = 1;
    }
    p.strip_rows = shape->is_transposed ? 1 : KVT__GROUP_TOKENS;
    p.shift = shape->is_transposed ? KVT__GROUP_SHIFT : 0;
    p.n_groups = groups_of(&p, p.row);
    p.bytes = (size_t)shape->n * kvt__element_bytes(shape->element);
    p.code_bytes = (p.row * bits + 7) / 8;
    return p;
}

/* Return the bytes of a coded plane. */
static size_t
coded_bytes(const struct plane *p)
{
    size_t n_strips = (p->n_rows + p->strip_rows - 1) / p->strip_rows;

    return 1 + n_strips * 4 * p->n_groups + p->n_rows * p->code_bytes;
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
    *min += 0.0f; /* -0 becomes 0 */
    max += 0.0f;
    float scale = (max - *min) / (float)((1u << bits) - 1);
    uint32_t up = (kvt__bits_of_float(scale) + 0xffff) & ~UINT32_C(0xffff);

    scale = kvt__float_of_bits(up);
    kvt__store_bf16(min_at, *min); /* exact: the minimum is an element */
    kvt__store_bf16(scale_at, scale);
    *inverse = scale > 0 ? 1 / scale : 0;
    return max < MAX_ELEMENT && isfinite(scale) && (scale >= MIN_SCALE || scale == 0);
}

/* Find the minima and maxima of the groups of n columns of a strip.  False: an element is NaN or
 * infinite. */
static bool
measure(const struct kvt__affine_form *form, const struct plane *p, const unsigned char *in,
        size_t n_rows, size_t n, float *min, float *max)
{
    bool is_finite = true;

    if (p->shift) {
        form->measure_groups(in, n, min, max, &is_finite);
        return is_finite;
    }
    for (size_t i = 0; i < n; i++) {
        min[i] = INFINITY;
        max[i] = -INFINITY;
    }
    for (size_t r = 0; r < n_rows; r++)
        form->measure(in + r * p->row * 2, n, min, max, &is_finite);
    return is_finite;
}

/* Encode n columns of a strip.  in, codes: the first row's first element and code.  min_at: where
 * the minima belong; the scales follow p->n_groups groups behind. */
static bool
encode_columns(const struct kvt__affine_form *form, const struct plane *p,
               const unsigned char *in, size_t n_rows, size_t n, unsigned char *min_at,
               unsigned char *codes)
{
    float min[COLUMNS], max[COLUMNS], inverse[COLUMNS];

    if (!measure(form, p, in, n_rows, n, min, max))
        return false;
    for (size_t g = 0; g < groups_of(p, n); g++)
        if (!choose_scale(p->bits, &min[g], max[g], &inverse[g], min_at + 2 * g,
                          min_at + 2 * (p->n_groups + g)))
            return false;
    for (size_t r = 0; r < n_rows; r++) {
        struct kvt__affine_row row = { min, inverse, n, p->shift };

        (p->bits == 8 ? form->encode8 : form->encode4)(row, in + r * p->row * 2,
                                                       codes + r * p->code_bytes);
    }
    return true;
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
        n_rows = p.n_rows - first < p.strip_rows ? p.n_rows - first : p.strip_rows;
        for (size_t c = 0, n; c < p.row; c += n) {
            n = p.row - c < COLUMNS ? p.row - c : COLUMNS;
            if (!encode_columns(form, &p, plane + (first * p.row + c) * 2, n_rows, n,
                                to + 2 * (c >> p.shift), to + 4 * p.n_groups + c * bits / 8))
                return store_plane(&p, plane, out);
        }
        to += 4 * p.n_groups + n_rows * p.code_bytes;
    }
    return (size_t)(to - out);
}

/* ------------------------------------------------------------------------ decode */

/* Decode n columns of a strip.  Arguments as of encode_columns(). */
static bool
decode_columns(const struct kvt__affine_form *form, const struct plane *p,
               const unsigned char *min_at, const unsigned char *codes, size_t n_rows, size_t n,
               unsigned char *out)
{
    float min[COLUMNS], scale[COLUMNS];

    for (size_t g = 0; g < groups_of(p, n); g++) {
        min[g] = kvt__load_bf16(min_at + 2 * g);
        scale[g] = kvt__load_bf16(min_at + 2 * (p->n_groups + g));
        if (!isfinite(min[g]) || !isfinite(scale[g])) /* NaN would differ between the forms */
            return false;
    }
    for (size_t r = 0; r < n_rows; r++) {
        struct kvt__affine_row row = { min, scale, n, p->shift };

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
    const unsigned char *from;

    if (n_bytes == 1 + p.bytes && in[0] == STORED) {
        memcpy(plane, in + 1, p.bytes);
        return true;
    }
    if (!p.is_coded || n_bytes != coded_bytes(&p) || in[0] != CODED)
        return false;
    from = in + 1;
    for (size_t first = 0, n_rows; first < p.n_rows; first += n_rows) {
        n_rows = p.n_rows - first < p.strip_rows ? p.n_rows - first : p.strip_rows;
        for (size_t c = 0, n; c < p.row; c += n) {
            n = p.row - c < COLUMNS ? p.row - c : COLUMNS;
            if (!decode_columns(form, &p, from + 2 * (c >> p.shift),
                                from + 4 * p.n_groups + c * bits / 8, n_rows, n,
                                plane + (first * p.row + c) * 2))
                return false;
        }
        from += 4 * p.n_groups + n_rows * p.code_bytes;
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
#elif defined(__aarch64__)
        &kvt__affine_neon,
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
