/* SPDX-License-Identifier: Apache-2.0
 *
 * KV with known statistics, and the entropy of the exponents. */
#include "kv.h"

#include <math.h>
#include <string.h>

/* Standard deviation of the binary logarithm of the columns' scales: the exponents of a plane then
 * have 3.0 bits, those of a column 2.5, as measured (Gemma 3 270M: 3.0, 2.4 to 2.6). */
#define SPREAD 1.1

static double
uniform(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return ((double)((x ^ x >> 31) >> 11) + 0.5) / 0x1p53;
}

static double
normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(uniform(state)));

    return radius * cos(6.283185307179586 * uniform(state));
}

void
kv_fill(const struct kvt__plane_shape *shape, size_t n_planes, uint16_t *chunk)
{
    for (size_t p = 0; p < n_planes; p++) {
        uint64_t values = p << 32;

        for (size_t i = 0; i < shape->n; i++) {
            uint64_t column = (p * shape->row + i % shape->row) << 20;
            float x = (float)(normal(&values) * exp2(SPREAD * normal(&column)));
            uint32_t bits;

            memcpy(&bits, &x, sizeof bits);
            *chunk++ = (uint16_t)(bits >> 16);
        }
    }
}

static double
entropy(const uint32_t counts[256])
{
    double sum = 0, bits = 0;

    for (int i = 0; i < 256; i++)
        sum += counts[i];
    for (int i = 0; i < 256; i++)
        bits -= counts[i] ? counts[i] / sum * log2(counts[i] / sum) : 0;
    return bits;
}

/* Count the exponents of the elements first, first + step, ... of a plane. */
static void
count(const struct kvt__plane_shape *shape, const uint16_t *plane, size_t first, size_t step,
      uint32_t counts[256])
{
    memset(counts, 0, 256 * sizeof *counts);
    for (size_t i = first; i < shape->n; i += step)
        counts[plane[i] >> 7 & 0xff]++;
}

double
kv_plane_entropy(const struct kvt__plane_shape *shape, size_t n_planes, const uint16_t *chunk)
{
    uint32_t counts[256];
    double sum = 0;

    for (size_t p = 0; p < n_planes; p++) {
        count(shape, chunk + p * shape->n, 0, 1, counts);
        sum += entropy(counts);
    }
    return sum / (double)n_planes;
}

double
kv_column_entropy(const struct kvt__plane_shape *shape, size_t n_planes, const uint16_t *chunk)
{
    uint32_t counts[256];
    double sum = 0;

    for (size_t p = 0; p < n_planes; p++)
        for (size_t c = 0; c < shape->row; c++) {
            count(shape, chunk + p * shape->n, c, shape->row, counts);
            sum += entropy(counts);
        }
    return sum / ((double)n_planes * shape->row);
}

static float
number(uint16_t element)
{
    uint32_t bits = (uint32_t)element << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

double
kv_symbol_entropy(const struct kvt__plane_shape *shape, unsigned c, const uint16_t *plane)
{
    uint32_t counts[256] = { 0 };

    for (size_t at = 0; at < shape->n; at += shape->row) {
        float max = 0;

        for (size_t i = 0; i < shape->row; i++)
            max = fmaxf(max, fabsf(number(plane[at + i])));
        for (size_t i = 0; i < shape->row; i++)
            counts[(int)rintf(number(plane[at + i]) * ((float)c / max) + (float)c)]++;
    }
    return entropy(counts);
}
