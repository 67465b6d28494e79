/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-temporal copies.  Only whole lines of the destination go past the caches, what
 * is left over at both ends is written as usual.  The instructions are chosen when
 * the program runs: building this needs no special flags.  Other processors than x86
 * see by themselves that whole lines are written. */
#include "gpu/stream.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE ((size_t)64)

/* Fewer bytes than this are worth it only when they are nothing but whole lines. */
#define MIN_RAGGED ((size_t)1 << 10)

#if defined(__x86_64__)

/* How far ahead lines are fetched: what the processor fetches by itself stops at the
 * end of each page. */
#define AHEAD 8

/* The next n lines after those. */
static inline void
fetch(const unsigned char *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        _mm_prefetch((const void *)(from + (AHEAD + i) * LINE), _MM_HINT_T0);
}

__attribute__((target("avx512f"))) static inline void
four_avx512(unsigned char *to, const unsigned char *from)
{
    __m512i a = _mm512_loadu_si512(from);
    __m512i b = _mm512_loadu_si512(from + LINE);
    __m512i c = _mm512_loadu_si512(from + 2 * LINE);
    __m512i d = _mm512_loadu_si512(from + 3 * LINE);

    _mm512_stream_si512((void *)to, a);
    _mm512_stream_si512((void *)(to + LINE), b);
    _mm512_stream_si512((void *)(to + 2 * LINE), c);
    _mm512_stream_si512((void *)(to + 3 * LINE), d);
}

/* Four pages side by side keep more of the memory busy. */
__attribute__((target("avx512f"))) static void
lines_avx512(unsigned char *to, const unsigned char *from, size_t n)
{
    const size_t page = 64 * LINE;

    for (; n >= 4 * 64; n -= 4 * 64, to += 4 * page, from += 4 * page)
        for (size_t at = 0; at < page; at += 4 * LINE)
            for (size_t p = 0; p < 4 * page; p += page)
                four_avx512(to + p + at, from + p + at);
    for (; n >= 4; n -= 4, to += 4 * LINE, from += 4 * LINE) {
        if (n >= AHEAD + 4)
            fetch(from, 4);
        four_avx512(to, from);
    }
    for (; n; n--, to += LINE, from += LINE)
        _mm512_stream_si512((void *)to, _mm512_loadu_si512(from));
}

__attribute__((target("avx"))) static void
lines_avx(unsigned char *to, const unsigned char *from, size_t n)
{
    for (; n; n--, to += LINE, from += LINE) {
        const __m256i *f = (const void *)from;
        __m256i *t = (void *)to;
        __m256i a = _mm256_loadu_si256(f), b = _mm256_loadu_si256(f + 1);

        if (n > AHEAD)
            fetch(from, 1);
        _mm256_stream_si256(t, a);
        _mm256_stream_si256(t + 1, b);
    }
}

static void
lines_sse2(unsigned char *to, const unsigned char *from, size_t n)
{
    for (; n; n--, to += LINE, from += LINE) {
        const __m128i *f = (const void *)from;
        __m128i *t = (void *)to;
        __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1);
        __m128i c = _mm_loadu_si128(f + 2), d = _mm_loadu_si128(f + 3);

        if (n > AHEAD)
            fetch(from, 1);
        _mm_stream_si128(t, a);
        _mm_stream_si128(t + 1, b);
        _mm_stream_si128(t + 2, c);
        _mm_stream_si128(t + 3, d);
    }
}

static bool
has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

static bool
has_avx(void)
{
    return __builtin_cpu_supports("avx");
}

#endif

static void
lines_plain(unsigned char *to, const unsigned char *from, size_t n)
{
    memcpy(to, from, n * LINE);
}

static bool
always(void)
{
    return true;
}

static const struct kvt__stream streams[] = {
#if defined(__x86_64__)
    { "avx512", has_avx512, lines_avx512 },
    { "avx", has_avx, lines_avx },
    { "sse2", always, lines_sse2 },
#endif
    { "plain", always, lines_plain },
};

static const struct kvt__stream *_Atomic in_use;

const struct kvt__stream *
kvt__stream_at(size_t i)
{
    return i < sizeof streams / sizeof *streams ? &streams[i] : NULL;
}

void
kvt__stream_use(const struct kvt__stream *stream)
{
    atomic_store_explicit(&in_use, stream, memory_order_relaxed);
}

static const struct kvt__stream *
best(void)
{
    const struct kvt__stream *stream = streams;

    while (!stream->usable())
        stream++;
    return stream;
}

void
kvt__stream_copy(unsigned char *to, const unsigned char *from, size_t n)
{
    const struct kvt__stream *stream = atomic_load_explicit(&in_use, memory_order_relaxed);
    size_t head = -(uintptr_t)to % LINE;

    if (n < MIN_RAGGED && (head || n % LINE)) {
        memcpy(to, from, n);
        return;
    }
    if (!stream) {
        stream = best();
        kvt__stream_use(stream);
    }
    memcpy(to, from, head);
    stream->lines(to + head, from + head, (n - head) / LINE);

    size_t tail = (n - head) % LINE;
    memcpy(to + n - tail, from + n - tail, tail);
}

void
kvt__stream_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
