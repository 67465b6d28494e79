/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal interface of the codec cachegen: the quantiser of CacheGen, and an entropy coder and a
 * format of kvtier.
 *
 * Quantiser.  A token of a plane has a maximum m, the largest magnitude of the token's channels.
 * A symbol is q = x * C / m + C, rounded to the nearest whole number, ties to even.  The decoder
 * computes x = (q - C) / C * m and rounds to the element's type.  C is bins / 2 - 1: 15 or 7
 * (kvt__cachegen_c()); symbols are 0 to 2 C.  A token is raw, and the plane contains the token bit
 * for bit, if m is NaN, infinite, or greater than 0 and below 2^-100.
 *
 * Classes.  Channels have different distributions, so the channels of a plane are divided into up
 * to 8 classes.  Each class has a table with the frequency of each symbol; the frequencies of a
 * class add up to 1024.
 *
 * Encoded plane.  All numbers are little-endian.  The first byte is 0 (STORED), and the plane
 * follows; or the first byte is 1 (CODED), and these parts follow without gaps:
 *
 *   part        bytes
 *   maxima      an element for each token: m, or 0 if all elements are 0, or positive infinity if
 *               the token is raw
 *   bits        1: the binary logarithm b of the number of classes, 0 to 3; 0 if the plane has more
 *               than 4096 channels
 *   classes     (channels * b + 7) / 8: the class of each channel, b bits each; the first channel
 *               is in the lowest bits of the first byte
 *   tables      for each class: a byte `first`, a byte `last`, and the frequencies of the symbols
 *               first to last.  A frequency below 128 is one byte; another frequency f is the
 *               bytes 128 + f % 128 and f / 128.  Other symbols have the frequency 0
 *   raw tokens  the elements of each raw token, in the order of the channels
 *   states      32 words of 32 bits
 *   stream      words of 16 bits, up to the end of the encoded plane
 *
 * Entropy coder.  Element i of the plane, in the plane's order, belongs to rANS state number
 * i % 32.  Elements of raw tokens have symbols too, of any value.  The decoder reads the states and
 * decodes the elements in order.  With state x, the slot is x % 1024; the element's symbol is the
 * symbol s with start(s) <= slot < start(s) + frequency(s), where start(s) is the sum of the
 * frequencies below s.  The next state is y = frequency(s) * (x / 1024) + slot - start(s).  If y is
 * below 2^16, the next state is y * 2^16 + the next word of the stream instead.  After the last
 * element the stream is at the end, and all states are 2^16.
 *
 * All forms of a function produce the same bytes: products and sums are fused multiply-adds, which
 * have one rounding on each processor. */
#ifndef KVT_CODEC_CACHEGEN_H
#define KVT_CODEC_CACHEGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "codec/codec.h"

#define KVT__SYMBOLS 32u /* a table's length; at most 31 symbols are used */
#define KVT__CLASSES 8u
#define KVT__CLASS_CHANNELS 4096u /* planes with more channels have one class */
#define KVT__LANES 32u            /* states */
#define KVT__SLOT_BITS 10u
#define KVT__SLOTS (1u << KVT__SLOT_BITS)
#define KVT__LEAST_STATE (UINT32_C(1) << 16)
#define KVT__STREAM_SLACK 64u /* bytes around the stream that a form may read, or write */

/* How symbols become numbers. */
struct kvt__levels {
    enum kvt__element element; /* bfloat16, float16 or float32 */
    unsigned c;
    float level[KVT__SYMBOLS]; /* (symbol - C) / C */
};

/* A symbol for the encoder. */
struct kvt__rans_symbol {
    uint32_t inverse; /* 2^32 / frequency, rounded down; at most 2^32 - 1 */
    uint16_t start, frequency;
};

/* A form of the functions, for some processors.  The symbols of one call are consecutive elements;
 * classes: the class of each.  n: any number. */
struct kvt__cachegen_form {
    const char *name;
    bool (*is_supported)(void);

    /* Convert elements to float. */
    void (*load)(enum kvt__element element, const unsigned char *in, size_t n, float *out);

    /* factor: C / m for each element; 0 if the element's token is raw, or 0. */
    void (*quantise)(const struct kvt__levels *levels, const unsigned char *in, size_t n,
                     const float *factor, uint8_t *symbols);

    /* max: m for each element. */
    void (*dequantise)(const struct kvt__levels *levels, const uint8_t *symbols, size_t n,
                       const float *max, unsigned char *out);

    /* Encode from the last symbol to the first.  The first symbol belongs to state 0.  table:
     * KVT__SYMBOLS for each class.  The words of the stream end at `end`.  Return their start.  The
     * function may write up to KVT__STREAM_SLACK bytes before. */
    unsigned char *(*encode)(const struct kvt__rans_symbol *table, const uint8_t *symbols,
                             const uint8_t *classes, size_t n, uint32_t *states,
                             unsigned char *end);

    /* Decode.  table: KVT__SLOTS for each class, made by kvt__rans_slot().  The function may read
     * 2 bytes of `in` for each symbol, and KVT__STREAM_SLACK bytes.  Return the end of the words
     * that were used. */
    const unsigned char *(*decode)(const uint32_t *table, const uint8_t *classes, size_t n,
                                   uint32_t *states, const unsigned char *in, uint8_t *symbols);
};

extern const struct kvt__cachegen_form kvt__cachegen_plain, kvt__cachegen_avx2,
    kvt__cachegen_avx512, kvt__cachegen_neon;

/* Return all forms of this build that the processor supports, the fastest first; NULL ends the
 * list. */
const struct kvt__cachegen_form *const *kvt__cachegen_forms(void);

/* Return C of a plane: the model's layers and the plane's layer choose the bins. */
unsigned kvt__cachegen_c(const struct kvt__plane_shape *shape);

/* Encode and decode as kvt__codec_cachegen does, by the functions of a form. */
size_t kvt__cachegen_room(const struct kvt__plane_shape *shape);
size_t kvt__cachegen_encode(const struct kvt__cachegen_form *form,
                            const struct kvt__plane_shape *shape, const unsigned char *plane,
                            unsigned char *out);
bool kvt__cachegen_decode(const struct kvt__cachegen_form *form,
                          const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
                          unsigned char *plane);

/* ------------------------------------------------------------------------ classes */

/* The tokens and channels of a plane.  Element i is in row i / row and column i % row. */
struct kvt__layout {
    size_t n, row, n_tokens, n_channels;
    bool is_transposed; /* a row is a channel */
};

/* Classes of the channels, and the frequencies of the symbols in each class. */
struct kvt__classes {
    unsigned bits; /* 1 << bits classes */
    uint8_t of[KVT__CLASS_CHANNELS];
    uint16_t frequency[KVT__CLASSES][KVT__SYMBOLS];
};

/* Return the bytes of memory that kvt__choose_classes() needs for its counts. */
size_t kvt__counts_bytes(const struct kvt__layout *layout);

/* Choose classes and frequencies for the symbols of a plane, so that the encoded plane is small.
 * counts: kvt__counts_bytes() of aligned memory for intermediate results. */
void kvt__choose_classes(const struct kvt__layout *layout, unsigned c, const uint8_t *symbols,
                         uint16_t *counts, struct kvt__classes *out);

/* ---------------------------------------------------------------- shared by the forms */

static inline uint32_t
kvt__load_word16(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

static inline void
kvt__store_word16(unsigned char *at, uint32_t word)
{
    at[0] = (unsigned char)word;
    at[1] = (unsigned char)(word >> 8);
}

static inline uint32_t
kvt__load_word32(const unsigned char *at)
{
    return kvt__load_word16(at) | kvt__load_word16(at + 2) << 16;
}

static inline void
kvt__store_word32(unsigned char *at, uint32_t word)
{
    kvt__store_word16(at, word);
    kvt__store_word16(at + 2, word >> 16);
}

/* Encode a symbol.  The remainder of the approximate division is below 2 * frequency. */
static inline uint32_t
kvt__rans_put(struct kvt__rans_symbol symbol, uint32_t x, unsigned char **end)
{
    uint32_t frequency = symbol.frequency;

    if (x >> (32 - KVT__SLOT_BITS) >= frequency) {
        *end -= 2;
        kvt__store_word16(*end, x);
        x >>= 16;
    }
    uint32_t quotient = (uint32_t)((uint64_t)x * symbol.inverse >> 32);
    uint32_t remainder = x - quotient * frequency;
    uint32_t correction = remainder >= frequency ? KVT__SLOTS - frequency : 0;
    return (quotient << KVT__SLOT_BITS) + symbol.start + remainder + correction;
}

/* Return the decoder's table entry for a slot. */
static inline uint32_t
kvt__rans_slot(uint32_t symbol, uint32_t frequency, uint32_t slot_in_symbol)
{
    return frequency << 16 | slot_in_symbol << 5 | symbol;
}

/* Decode a symbol. */
static inline uint32_t
kvt__rans_get(uint32_t entry, uint32_t x, const unsigned char **in)
{
    x = (entry >> 16) * (x >> KVT__SLOT_BITS) + (entry >> 5 & (KVT__SLOTS - 1));
    if (x < KVT__LEAST_STATE) {
        x = x << 16 | kvt__load_word16(*in);
        *in += 2;
    }
    return x;
}

#endif
