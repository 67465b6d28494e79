/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen: the shape of a plane, and numbers for each element. */
#include "codec/cachegen-plane.h"

#define MAX_TOKENS 32768u /* planes with more tokens are stored */

unsigned
kvt__cachegen_c(const struct kvt__plane_shape *shape)
{
    bool is_fine = shape->n_layers < 10 || shape->layer < (shape->is_value ? 2u : 10u);

    return is_fine ? 15 : 7;
}

static bool
is_coded(const struct kvt__plane_shape *shape, size_t n_tokens)
{
    return shape->n_layers && n_tokens <= MAX_TOKENS &&
           (shape->element == KVT__ELEMENT_BF16 || shape->element == KVT__ELEMENT_F16 ||
            shape->element == KVT__ELEMENT_F32);
}

/* Choose the bits of the limits for the type. */
static void
choose_limits(struct kvt__cachegen_plane *p)
{
    switch (p->levels.element) {
    case KVT__ELEMENT_BF16:
        p->least_max = 27u << 7;
        p->infinity = 0x7f80;
        break;
    case KVT__ELEMENT_F16:
        p->least_max = 1;
        p->infinity = 0x7c00;
        break;
    default:
        p->least_max = 27u << 23;
        p->infinity = 0x7f800000;
    }
}

struct kvt__cachegen_plane
kvt__cachegen_plane_of(const struct kvt__plane_shape *shape)
{
    size_t n_rows = ((size_t)shape->n + shape->row - 1) / shape->row;
    size_t n_columns = shape->row < shape->n ? shape->row : shape->n;
    struct kvt__cachegen_plane p = {
        .layout = { .n = shape->n, .row = shape->row, .is_transposed = shape->is_transposed },
        .levels = { .element = shape->element, .c = kvt__cachegen_c(shape) },
        .element_bytes = kvt__element_bytes(shape->element),
    };

    p.layout.n_tokens = shape->is_transposed ? n_columns : n_rows;
    p.layout.n_channels = shape->is_transposed ? n_rows : n_columns;
    p.bytes = p.layout.n * p.element_bytes;
    choose_limits(&p);
    p.is_coded = is_coded(shape, p.layout.n_tokens);
    for (int s = 0; s <= 2 * (int)p.levels.c; s++)
        p.levels.level[s] = (float)(s - (int)p.levels.c) / (float)p.levels.c;
    return p;
}

size_t
kvt__class_bytes(const struct kvt__cachegen_plane *p, unsigned bits)
{
    return (p->layout.n_channels * bits + 7) / 8;
}

struct kvt__span
kvt__token_of(const struct kvt__cachegen_plane *p, size_t token)
{
    size_t row = p->layout.row, n = p->layout.n;

    if (p->layout.is_transposed)
        return (struct kvt__span){ token, row, (n - token + row - 1) / row };
    return (struct kvt__span){ token * row, 1, n - token * row < row ? n - token * row : row };
}

void
kvt__fill_classes(const struct kvt__cachegen_plane *p, const struct kvt__classes *classes,
                  size_t at, size_t n, uint8_t *out)
{
    if (!classes->bits) {
        memset(out, 0, n);
        return;
    }
    for (size_t i = 0, len; i < n; i += len) {
        size_t row = (at + i) / p->layout.row, column = (at + i) % p->layout.row;

        len = p->layout.row - column < n - i ? p->layout.row - column : n - i;
        if (p->layout.is_transposed)
            memset(out + i, classes->of[row], len);
        else
            memcpy(out + i, classes->of + column, len);
    }
}

static void
repeat(float number, size_t n, float *out)
{
    size_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (size_t k = 0; k < 32; k++) /* this loop is vectorized */
            out[i + k] = number;
    for (; i < n; i++)
        out[i] = number;
}

void
kvt__fill_numbers(const struct kvt__cachegen_form *form, const struct kvt__cachegen_plane *p,
                  enum kvt__element element, const unsigned char *numbers, size_t at, size_t n,
                  float *out)
{
    size_t bytes = kvt__element_bytes(element);

    for (size_t i = 0, len; i < n; i += len) {
        size_t row = (at + i) / p->layout.row, column = (at + i) % p->layout.row;

        len = p->layout.row - column < n - i ? p->layout.row - column : n - i;
        if (p->layout.is_transposed) {
            form->load(element, numbers + column * bytes, len, out + i);
            continue;
        }
        float number;

        form->load(element, numbers + row * bytes, 1, &number);
        repeat(number, len, out + i);
    }
}
