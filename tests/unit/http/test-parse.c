/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of heads and chunked bodies: valid and invalid texts, at once and byte by byte. */
#include "kvt-test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/parse.h"

#define OK "HTTP/1.1 200 OK\r\n"

static const struct {
    const char *head; /* without the empty line */
    int status;
    int64_t length;
    bool keep, chunked;
} good[] = {
    { OK, 200, -1, true, false },
    { "HTTP/1.1 200\r\n", 200, -1, true, false },
    { "HTTP/1.1 404 \r\n", 404, -1, true, false },
    { "HTTP/1.1 100 Continue\r\n", 100, -1, true, false },
    { "HTTP/1.1 500 gr\xc3\xbc\xdf\t!\r\n", 500, -1, true, false },
    { "HTTP/1.0 200 OK\r\n", 200, -1, false, false },
    { "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", 200, -1, true, false },
    { OK "Connection: close\r\n", 200, -1, false, false },
    { OK "connection: keep-alive,\t CLOSE ,x\r\n", 200, -1, false, false },
    { OK "Connection: closed, x-close\r\n", 200, -1, true, false },
    { OK "Connection: keep-alive\r\nConnection: close\r\n", 200, -1, false, false },
    { OK "Content-Length: 0\r\n", 200, 0, true, false },
    { OK "CONTENT-LENGTH:12\t \r\n", 200, 12, true, false },
    { OK "Content-Length: 9223372036854775807\r\n", 200, INT64_MAX, true, false },
    { OK "Content-Length: 5\r\nContent-Length: 05\r\n", 200, 5, true, false },
    { OK "Transfer-Encoding: Chunked\r\n", 200, -1, true, true },
    { OK "Empty:\r\n!#$%&'*+-.^_`|~09: x\r\n", 200, -1, true, false },
};

static const char *const bad[] = {
    "HTTP/2 200 OK\r\n", "HTTP/1.2 200 OK\r\n", "HTTP/1.1  200 OK\r\n", "\r\n",
    "HTTP/1.1 600 OK\r\n", "HTTP/1.1 099 OK\r\n", "HTTP/1.1 20 OK\r\n",
    "HTTP/1.1 2000 OK\r\n", "HTTP/1.1 200OK\r\n", "HTTP/1.1\t200 OK\r\n",
    "http/1.1 200 OK\r\n", " HTTP/1.1 200 OK\r\n", "ICY 200 OK\r\n", "GET / HTTP/1.1\r\n",
    "HTTP/1.1 200 O\x01K\r\n", "HTTP/1.1 200 O\rK\r\n", "HTTP/1.1 200 OK\nX: y\r\n",
    OK "Content-Length: 1\r\nContent-Length: 2\r\n", OK "Content-Length:\r\n",
    OK "Content-Length: -1\r\n", OK "Content-Length: +1\r\n", OK "Content-Length: 1 1\r\n",
    OK "Content-Length: 0x10\r\n", OK "Content-Length: 1, 1\r\n",
    OK "Content-Length: 1a\r\n",
    OK "Content-Length: 9223372036854775808\r\n",
    OK "Content-Length: 99999999999999999999999\r\n",
    OK "Transfer-Encoding: gzip, chunked\r\n", OK "Transfer-Encoding: identity\r\n",
    OK "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    OK "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    OK "Transfer-Encoding:\r\n", OK "Transfer-Encoding: xchunked\r\n",
    "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n",
    OK "Content-Length : 5\r\n", OK " Content-Length: 5\r\n", OK "X: y\r\n folded\r\n",
    OK "X: y\r\n\tfolded\r\n", OK "no colon\r\n", OK ": no name\r\n", OK "X y: z\r\n",
    OK "X: a\rb\r\n", OK "X: a\nb\r\n", OK "X: a\x7f\r\n", OK "X: a\x01\r\n",
    OK "X\nContent-Length: 5\r\n", OK "X(: y\r\n", OK "X\xe9: y\r\n",
};

/* Parse a copy of the n bytes in memory of the exact size, so that the sanitizer detects a read
 * behind the end. */
static ssize_t
parse(const char *text, size_t n, struct kvt__http_response *answer)
{
    const char *wrong;
    char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    ssize_t result = kvt__http_parse_head(copy, n, answer, &wrong);
    assert_int_equal(result < 0, wrong != NULL);
    if (result > 0)
        for (size_t i = 0; i < answer->head.n_fields; i++)
            assert_true(answer->head.fields[i].value >= copy &&
                        answer->head.fields[i].value + answer->head.fields[i].value_bytes <=
                            copy + result);
    free(copy);
    return result;
}

static void
good_heads_are_understood(void **state)
{
    struct kvt__http_response a;
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t n = (size_t)sprintf(text, "%s\r\n", good[i].head);

        memcpy(text + n, "body", 4);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(parse(text, cut, &a), 0);
        assert_int_equal(parse(text, n + 4, &a), n);
        assert_int_equal(a.head.status, good[i].status);
        assert_int_equal(a.head.content_length, good[i].length);
        assert_int_equal(a.keep_alive, good[i].keep);
        assert_int_equal(a.chunked, good[i].chunked);
    }
}

static void
bad_heads_are_refused(void **state)
{
    struct kvt__http_response a;
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = (size_t)sprintf(text, "%s\r\n", bad[i]);

        if (parse(text, n, &a) != -EPROTO)
            fail_msg("%s is taken", bad[i]);
    }
    assert_int_equal(parse(OK "X: a\0b\r\n\r\n", 26, &a), -EPROTO);
}

static void
text_that_cannot_become_http_is_refused_at_once(void **state)
{
    struct kvt__http_response a;

    (void)state;
    assert_int_equal(parse("H", 1, &a), 0);
    assert_int_equal(parse("h", 1, &a), -EPROTO);
    assert_int_equal(parse("\x15\x03\x01\x00\x02", 5, &a), -EPROTO);
}

static void
fields_are_found_in_any_case(void **state)
{
    static const char text[] = OK "ETag: \"a b\" \r\nX-Amz-Id: 1\r\netag: second\r\n\r\n";
    struct kvt__http_response a;
    const char *wrong;

    (void)state;
    assert_true(kvt__http_parse_head(text, sizeof text - 1, &a, &wrong) > 0);
    const struct kvt__http_field *f = kvt__http_field(&a.head, "eTaG");
    assert_non_null(f);
    assert_int_equal(f->value_bytes, 5);
    assert_memory_equal(f->value, "\"a b\"", 5);
    assert_null(kvt__http_field(&a.head, "X-Amz"));
    assert_int_equal(a.head.n_fields, 3);
}

static void
fields_beyond_the_limit_still_frame(void **state)
{
    char text[4096];
    struct kvt__http_response a;
    size_t n = (size_t)sprintf(text, OK);

    (void)state;
    for (int i = 0; i < 100; i++)
        n += (size_t)sprintf(text + n, "X: %d\r\n", i);
    n += (size_t)sprintf(text + n, "Connection: close\r\nContent-Length: 7\r\n\r\n");
    assert_int_equal(parse(text, n, &a), n);
    assert_int_equal(a.head.n_fields, KVT__HTTP_MAX_FIELDS);
    assert_int_equal(a.head.content_length, 7);
    assert_false(a.keep_alive);
}

/* --------------------------------------------------------------------- chunks */

static const struct {
    const char *in, *out; /* out: NULL if the body is invalid */
    size_t rest;          /* bytes behind the end */
} chunked[] = {
    { "0\r\n\r\n", "", 0 },
    { "5\r\nhello\r\n0\r\n\r\n", "hello", 0 },
    { "5\r\nhello\r\n1\r\n!\r\n000\r\n\r\nnext", "hello!", 4 },
    { "0000000000000000000000000000000a;x=\"y\";z\r\n0123456789\r\n0;last\r\n\r\n",
      "0123456789", 0 },
    { "A \r\n0123456789\r\n0\r\nX: y\r\nZ: \r\n\r\n", "0123456789", 0 },
    { "\r\n", NULL, 0 },
    { "g\r\n", NULL, 0 },
    { "-1\r\n", NULL, 0 },
    { "0x5\r\nhello\r\n", NULL, 0 },
    { " 5\r\nhello\r\n", NULL, 0 },
    { ";x\r\n", NULL, 0 },
    { "5\nhello\r\n", NULL, 0 },
    { "5\r\nhelloo\r\n", NULL, 0 },
    { "5\r\nhello\n0\r\n\r\n", NULL, 0 },
    { "5;a\nb\r\nhello\r\n", NULL, 0 },
    { "5\rx", NULL, 0 },
    { "10000000000000000\r\n", NULL, 0 },
    { "fffffffffffffffff\r\n", NULL, 0 },
    { "0\r\n folded\r\n\r\n", NULL, 0 },
    { "0\r\nX: \x01\r\n\r\n", NULL, 0 },
    { "0\r\n\rx", NULL, 0 },
};

/* Decode a body in steps of at most `step` bytes.  Return the number of bytes behind the body, or
 * -EPROTO. */
static ssize_t
decode(const char *in, size_t step, char *out)
{
    struct kvt__http_chunks c = { 0 };
    size_t n = strlen(in), at = 0, piece;

    while (!c.done && at < n) {
        piece = n - at < step ? n - at : step;
        if (c.data) {
            piece = piece < c.data ? piece : (size_t)c.data;
            memcpy(out, in + at, piece);
            out += piece;
            c.data -= piece;
            at += piece;
            continue;
        }
        char *copy = malloc(piece);
        assert_non_null(copy);
        memcpy(copy, in + at, piece);
        ssize_t used = kvt__http_chunks_read(&c, copy, piece);
        free(copy);
        if (used < 0)
            return used;
        at += (size_t)used;
    }
    *out = '\0';
    assert_true(c.done);
    return (ssize_t)(n - at);
}

static void
chunks_are_put_together(void **state)
{
    char out[128];

    (void)state;
    for (size_t i = 0; i < sizeof chunked / sizeof *chunked; i++) {
        for (size_t step = 1; step < 20; step++) {
            ssize_t rest = decode(chunked[i].in, step, out);

            if ((rest < 0) != !chunked[i].out)
                fail_msg("%s", chunked[i].in);
            if (rest < 0)
                continue;
            assert_int_equal(rest, chunked[i].rest);
            assert_string_equal(out, chunked[i].out);
        }
    }
}

static void
an_extension_without_end_is_refused(void **state)
{
    struct kvt__http_chunks c = { 0 };
    static char endless[100000];

    (void)state;
    memset(endless, 'x', sizeof endless);
    endless[0] = '1';
    endless[1] = ';';
    assert_int_equal(kvt__http_chunks_read(&c, endless, sizeof endless), -EPROTO);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_heads_are_understood),
        cmocka_unit_test(bad_heads_are_refused),
        cmocka_unit_test(text_that_cannot_become_http_is_refused_at_once),
        cmocka_unit_test(fields_are_found_in_any_case),
        cmocka_unit_test(fields_beyond_the_limit_still_frame),
        cmocka_unit_test(chunks_are_put_together),
        cmocka_unit_test(an_extension_without_end_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
