/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a server's response.  The fields of the head are within the head.  A chunked body
 * has equal results in one piece and in small pieces; the first byte of the input is the size of
 * the pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

static bool
within(const char *at, size_t n, const char *bytes, size_t size)
{
    return at >= bytes && n <= size && at <= bytes + size - n;
}

static ssize_t
parse(const char *bytes, size_t n)
{
    struct kvt__http_response a;
    const char *wrong;
    ssize_t head = kvt__http_parse_head(bytes, n, &a, &wrong);

    expect(head <= (ssize_t)n && (head < 0) == !!wrong);
    if (head <= 0)
        return head;
    expect(head >= 4 && !memcmp(bytes + head - 4, "\r\n\r\n", 4));
    expect(a.head.status >= 100 && a.head.status < 600);
    expect(a.head.content_length >= -1 && !(a.chunked && a.head.content_length >= 0));
    expect(a.head.n_fields <= KVT__HTTP_MAX_FIELDS);
    for (size_t i = 0; i < a.head.n_fields; i++) {
        const struct kvt__http_field *f = &a.head.fields[i];

        expect(f->name_bytes && within(f->name, f->name_bytes, bytes, (size_t)head) &&
               within(f->value, f->value_bytes, bytes, (size_t)head));
        expect(!memchr(f->value, '\r', f->value_bytes) &&
               !memchr(f->value, '\n', f->value_bytes));
    }
    kvt__http_field(&a.head, "Content-Length");
    return head;
}

/* Decode into out, from pieces of n bytes.  Return the length. *rest: the length after the body;
 * -1: the body is malformed. */
static size_t
decode(const char *bytes, size_t size, size_t piece, char *out, ssize_t *rest)
{
    struct kvt__http_chunks c = { 0 };
    size_t at = 0, n_out = 0;

    while (!c.done && at < size) {
        size_t n = size - at < piece ? size - at : piece;

        if (c.data) {
            n = n < c.data ? n : (size_t)c.data;
            memcpy(out + n_out, bytes + at, n);
            c.data -= n;
            n_out += n;
            at += n;
            continue;
        }
        ssize_t used = kvt__http_chunks_read(&c, bytes + at, n);
        if (used < 0) {
            *rest = -1;
            return n_out;
        }
        expect(used > 0 && (size_t)used <= n);
        at += (size_t)used;
    }
    *rest = c.done ? (ssize_t)(size - at) : 0;
    return n_out;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *bytes = (const char *)data + 1;
    ssize_t head, rest, rest2;
    char *out, *out2;

    if (!size--)
        return 0;
    head = parse(bytes, size);
    if (head > 0) {
        expect(parse(bytes, (size_t)head) == head);
        expect(parse(bytes, (size_t)head - 1) == 0);
        bytes += head;
        size -= (size_t)head;
    }
    out = malloc(size + 1);
    out2 = malloc(size + 1);
    if (!out || !out2)
        abort();
    size_t n = decode(bytes, size, SIZE_MAX, out, &rest);
    expect(decode(bytes, size, 1u + data[0] % 16, out2, &rest2) == n && rest == rest2 &&
           !memcmp(out, out2, n));
    free(out);
    free(out2);
    return 0;
}
