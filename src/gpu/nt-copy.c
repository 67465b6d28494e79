/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-temporal copies.  Only whole lines of the destination bypass the caches; the bytes at both
 * ends are written by ordinary stores.  The instruction set is chosen at run time, so that the
 * build needs no special flags.  CPUs other than x86 use memcpy(): their hardware detects stores
 * of whole lines. */
#include "gpu/nt-copy.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "base/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE ((size_t)64)

/* Bytes that are copied and then summed: fits the L1 cache. */
#define STEP ((size_t)16 << 10)

/* A shorter copy uses non-temporal stores only if the copy consists of whole lines. */
#define MIN_RAGGED ((size_t)1 << 10)

#if defined(__x86_64__)

/* Distance of the prefetch in lines.  The hardware prefetcher stops at the end of each page. */
#define AHEAD 8

/* Prefetch n lines, AHEAD lines behind `from`. */
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

/* Four pages are copied in parallel, which keeps more banks of the memory busy. */
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

/* CRC by folding: each of four vectors holds the remainder of every fourth line so far.  To shift
 * a remainder by d bits, multiply the two halves of each 128-bit lane by the constants x^(d + 32)
 * and x^(d - 32) modulo the polynomial, bit-reflected, times x. */
#define VPCLMUL __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))
#define BY_2048_BITS UINT64_C(0xdcb17aa4), UINT64_C(0xb9e02b86)
#define BY_512_BITS UINT64_C(0x740eef02), UINT64_C(0x9e4addf8)

VPCLMUL static inline __m512i
in_each_lane(uint64_t low, uint64_t high)
{
    return _mm512_set_epi64((long long)high, (long long)low, (long long)high,
                            (long long)low, (long long)high, (long long)low,
                            (long long)high, (long long)low);
}

/* Return the shifted remainder plus the next line. */
VPCLMUL static inline __m512i
fold(__m512i remainder, __m512i by, __m512i line)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(remainder, by, 0x00),
                                     _mm512_clmulepi64_epi128(remainder, by, 0x11), line,
                                     0x96); /* exclusive or of the three operands */
}

/* Copy one line, and return the line. */
VPCLMUL static inline __m512i
stream_line(unsigned char *to, const unsigned char *from)
{
    __m512i line = _mm512_loadu_si512(from);

    _mm512_stream_si512((void *)to, line);
    return line;
}

/* Return the CRC of the last 64 bytes, into which all other bytes were folded. */
VPCLMUL static inline uint32_t
crc_of(__m512i line)
{
    uint64_t words[8], crc = 0;

    _mm512_storeu_si512(words, line);
    for (size_t i = 0; i < 8; i++)
        crc = _mm_crc32_u64(crc, words[i]);
    return (uint32_t)crc;
}

/* The prefetch crosses the end of a page, where the hardware prefetcher stops. */
VPCLMUL static uint32_t
lines_sum_avx512(unsigned char *to, const unsigned char *from, size_t n, uint32_t crc)
{
    const __m512i by_four = in_each_lane(BY_2048_BITS), by_one = in_each_lane(BY_512_BITS);
    __m512i sums[KVT__NT_SUM_LINES];

    if (!n)
        return crc;
    for (size_t i = 0; i < KVT__NT_SUM_LINES; i++)
        sums[i] = stream_line(to + i * LINE, from + i * LINE);
    sums[0] = _mm512_xor_si512(sums[0],
                               _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (size_t at = KVT__NT_SUM_LINES; at < n; at += KVT__NT_SUM_LINES) {
        to += KVT__NT_SUM_LINES * LINE;
        from += KVT__NT_SUM_LINES * LINE;
        for (size_t i = 0; i < KVT__NT_SUM_LINES; i++)
            _mm_prefetch((const void *)(from + (2 * AHEAD + i) * LINE), _MM_HINT_T0);
        for (size_t i = 0; i < KVT__NT_SUM_LINES; i++)
            sums[i] = fold(sums[i], by_four, stream_line(to + i * LINE, from + i * LINE));
    }
    for (size_t i = 1; i < KVT__NT_SUM_LINES; i++)
        sums[i] = fold(sums[i - 1], by_one, sums[i]);
    return ~crc_of(sums[KVT__NT_SUM_LINES - 1]);
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
has_vpclmul(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
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

static const struct kvt__nt_code codes[] = {
#if defined(__x86_64__)
    { "vpclmul", has_vpclmul, lines_avx512, lines_sum_avx512 },
    { "avx512", has_avx512, lines_avx512, NULL },
    { "avx", has_avx, lines_avx, NULL },
    { "sse2", always, lines_sse2, NULL },
#endif
    { "plain", always, lines_plain, NULL },
};

static const struct kvt__nt_code *_Atomic in_use;

const struct kvt__nt_code *
kvt__nt_code_at(size_t i)
{
    return i < sizeof codes / sizeof *codes ? &codes[i] : NULL;
}

void
kvt__nt_code_use(const struct kvt__nt_code *code)
{
    atomic_store_explicit(&in_use, code, memory_order_relaxed);
}

static const struct kvt__nt_code *
best(void)
{
    const struct kvt__nt_code *code = codes;

    while (!code->usable())
        code++;
    return code;
}

static const struct kvt__nt_code *
chosen(void)
{
    const struct kvt__nt_code *code = atomic_load_explicit(&in_use, memory_order_relaxed);

    if (!code) {
        code = best();
        kvt__nt_code_use(code);
    }
    return code;
}

void
kvt__nt_copy(unsigned char *to, const unsigned char *from, size_t n)
{
    size_t head = -(uintptr_t)to % LINE;

    if (n < MIN_RAGGED && (head || n % LINE)) {
        memcpy(to, from, n);
        return;
    }
    memcpy(to, from, head);
    chosen()->lines(to + head, from + head, (n - head) / LINE);

    size_t tail = (n - head) % LINE;
    memcpy(to + n - tail, from + n - tail, tail);
}

/* Sum the source, not the destination: the copy has loaded the source into the cache, and the
 * destination has bypassed the cache. */
static uint32_t
copy_then_sum(unsigned char *to, const unsigned char *from, size_t n, uint32_t crc)
{
    for (size_t step; n; n -= step, to += step, from += step) {
        step = n < STEP ? n : STEP;
        kvt__nt_copy(to, from, step);
        crc = kvt__crc32c(crc, from, step);
    }
    return crc;
}

uint32_t
kvt__nt_copy_sum(unsigned char *to, const unsigned char *from, size_t n, uint32_t crc)
{
    const struct kvt__nt_code *code = chosen();
    size_t head = -(uintptr_t)to % LINE;

    if (n < MIN_RAGGED || !code->lines_sum)
        return copy_then_sum(to, from, n, crc);
    size_t n_lines = (n - head) / LINE / KVT__NT_SUM_LINES * KVT__NT_SUM_LINES;
    size_t tail = n - head - n_lines * LINE;

    memcpy(to, from, head);
    crc = kvt__crc32c(crc, from, head);
    crc = code->lines_sum(to + head, from + head, n_lines, crc);
    memcpy(to + n - tail, from + n - tail, tail);
    return kvt__crc32c(crc, from + n - tail, tail);
}

void
kvt__nt_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
