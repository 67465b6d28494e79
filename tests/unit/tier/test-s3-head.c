/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads of requests: content, limits, and rejected texts. */
#include "s3-sign-test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "kvtier.h"

/* A request with the most headers and parameters. */
static void
the_signed_head_is_sent(void **state)
{
    (void)state;
    const struct vector *v = &vectors[5];
    struct kvt__s3_head head = head_of(v);
    char out[4096], expected[4096];

    snprintf(expected, sizeof expected,
             "PUT /kv-cache/ns/7f/model%%401.5%%20x%%3Dy%%2Bz~%%C3%%A9/00ff.kv HTTP/1.1\r\n"
             "host: s3.example.internal:9000\r\n"
             "if-none-match: *\r\n"
             "x-amz-checksum-crc32c: 4waSgw==\r\n"
             "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"
             "x-amz-date: 20150830T123600Z\r\n"
             "x-amz-meta-note:   two   words \r\n"
             "x-amz-security-token: IQoJb3JpZ2luX2VjFAKE/TOKEN+example==\r\n"
             "x-amz-server-side-encryption: aws:kms\r\n"
             "x-amz-server-side-encryption-aws-kms-key-id: "
             "1234abcd-12ab-34cd-56ef-1234567890ab\r\n"
             "Content-Length: 9\r\n"
             "Expect: 100-continue\r\n"
             "User-Agent: kvtier/%s\r\n"
             "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/s3/"
             "aws4_request, SignedHeaders=%s, Signature=%s\r\n\r\n",
             kvt_version(), v->names, v->signature);
    assert_int_equal(kvt__s3_write_head(&head, out, sizeof out), strlen(expected));
    assert_string_equal(out, expected);
    kvt__s3_keys_unref(head.keys);

    head = head_of(&vectors[4]);
    assert_true(kvt__s3_write_head(&head, out, sizeof out) > 0);
    static const char line[] = "GET /?continuation-token=1%2Fab%2Bc%3D%3D"
                               "&encoding-type=url&list-type=2&max-keys=100&prefix="
                               "ns%2Fmodel%20a%2Bb%3D%C3%A9%2F&start-after= HTTP/1.1\r\n";
    assert_memory_equal(out, line, strlen(line));
    kvt__s3_keys_unref(head.keys);
}

static void
without_keys_nothing_is_signed(void **state)
{
    (void)state;
    static const struct kvt__s3_pair headers[] = {
        { "content-type", "application/x-www-form-urlencoded" } };
    const struct kvt__s3_head head = { .method = "POST", .host = "sts.example", .path = "/",
                                       .headers = headers, .n_headers = 1,
                                       .content_length = 0 };
    char out[512], expected[512];

    snprintf(expected, sizeof expected, "POST / HTTP/1.1\r\n"
             "content-type: application/x-www-form-urlencoded\r\nhost: sts.example\r\n"
             "Content-Length: 0\r\nUser-Agent: kvtier/%s\r\n\r\n", kvt_version());
    assert_int_equal(kvt__s3_write_head(&head, out, sizeof out), strlen(expected));
    assert_string_equal(out, expected);
}

/* -------------------------------------------------------------------- bounds */

/* The buffer has exactly this size, so that a sanitizer reports an access behind the end. */
static void
a_head_stays_in_its_buffer(void **state)
{
    (void)state;

    for (size_t i = 4; i < N_ROWS(vectors); i++) {
        struct kvt__s3_head head = head_of(&vectors[i]);
        char whole[4096];
        size_t n = (size_t)kvt__s3_write_head(&head, whole, sizeof whole);
        for (size_t room = 0; room <= n + 1; room++) {
            char *out = malloc(room ? room : 1);
            assert_non_null(out);
            int rc = kvt__s3_write_head(&head, out, room);
            assert_int_equal(rc, room <= n ? -EMSGSIZE : (int)n);
            if (rc >= 0)
                assert_string_equal(out, whole);
            free(out);
        }
        n = strlen(vectors[i].canonical);
        assert_int_equal(kvt__s3_canonical(&head, whole, n), -EMSGSIZE);
        assert_int_equal(kvt__s3_canonical(&head, whole, n + 1), n);
        kvt__s3_keys_unref(head.keys);
    }
}

static void
headers_and_parameters_are_counted(void **state)
{
    (void)state;
    struct kvt__s3_pair pairs[KVT__S3_MAX_HEADERS + 1];
    char names[KVT__S3_MAX_HEADERS + 1][16], out[4096];
    struct kvt__s3_head head = head_of(&vectors[5]);

    /* The names are in reverse order. */
    for (int i = 0; i <= KVT__S3_MAX_HEADERS; i++) {
        snprintf(names[i], sizeof names[i], "x-h%02d", KVT__S3_MAX_HEADERS - i);
        pairs[i] = (struct kvt__s3_pair){ names[i], "v" };
    }
    head.headers = pairs;
    head.n_headers = KVT__S3_MAX_HEADERS;
    assert_true(kvt__s3_canonical(&head, out, sizeof out) > 0);
    assert_non_null(strstr(out, "\nhost:s3.example.internal:9000\nx-amz-content-sha256:"));
    for (int i = 1; i < KVT__S3_MAX_HEADERS; i++) {
        char two[64];
        snprintf(two, sizeof two, "\nx-h%02d:v\nx-h%02d:v\n", i, i + 1);
        assert_non_null(strstr(out, two));
    }
    head.n_headers++;
    assert_int_equal(kvt__s3_write_head(&head, out, sizeof out), -EMSGSIZE);
    assert_non_null(strstr(kvt__why(), "24 headers"));

    head.n_headers = 0;
    head.query = pairs;
    head.n_query = KVT__S3_MAX_QUERY;
    assert_true(kvt__s3_write_head(&head, out, sizeof out) > 0);
    head.n_query++;
    assert_int_equal(kvt__s3_write_head(&head, out, sizeof out), -EMSGSIZE);
    kvt__s3_keys_unref(head.keys);
}

static void
a_long_query_is_whole_or_refused(void **state)
{
    (void)state;
    static char text[8193];
    static char out[16384];
    const struct kvt__s3_pair query[] = { { "prefix", text } };
    const size_t most = (8192 - sizeof "prefix" - 1) / 3; /* with a NUL after each text */
    struct kvt__s3_head head = head_of(&vectors[4]);

    head.query = query;
    head.n_query = 1;
    for (size_t n = 2600; n < 2800; n++) {
        memset(text, '/', n);
        text[n] = '\0';
        int rc = kvt__s3_write_head(&head, out, sizeof out);
        if (n > most) {
            assert_int_equal(rc, -EMSGSIZE);
            assert_non_null(strstr(kvt__why(), "8192 bytes"));
            continue;
        }
        assert_int_equal(rc, strlen(out));
        const char *value = strchr(out, '=') + 1;
        for (size_t i = 0; i < n; i++)
            assert_memory_equal(value + 3 * i, "%2F", 3);
        assert_memory_equal(value + 3 * n, " HTTP/1.1\r\n", 11);
    }
    text[2048] = '\0';
    assert_true(kvt__s3_write_head(&head, out, sizeof out) > 0);
    kvt__s3_keys_unref(head.keys);
}

static void
parameters_are_sorted_by_encoded_name_and_value(void **state)
{
    (void)state;
    /* '-' and '.' sort before '=', '~' after '=', and '%' before all of these. */
    static const struct kvt__s3_pair query[] = {
        { "a~", "1" }, { "a", "b" },     { "a", "~" }, { "a-b", "1" }, { "A", "1" },
        { "a", "/" },  { "\xc3\xa9", "1" }, { "left-out", NULL }, { "a", "" },
        { "a", "\n" } };
    struct kvt__s3_head head = head_of(&vectors[4]);
    char out[1024];

    head.query = query;
    head.n_query = N_ROWS(query);
    assert_true(kvt__s3_canonical(&head, out, sizeof out) > 0);
    static const char start[] =
        "GET\n/\n%C3%A9=1&A=1&a=&a=%0A&a=%2F&a=b&a=~&a-b=1&a~=1\nhost:";
    assert_memory_equal(out, start, strlen(start));
    kvt__s3_keys_unref(head.keys);
}

/* ------------------------------------------------------------- rejected texts */

static void
assert_refused(const struct kvt__s3_head *head, const char *what)
{
    char out[4096];

    assert_int_equal(kvt__s3_write_head(head, out, sizeof out), -EINVAL);
    assert_non_null(strstr(kvt__why(), what));
    assert_null(strstr(kvt__why(), "hidden"));
    assert_int_equal(kvt__s3_canonical(head, out, sizeof out), -EINVAL);
}

static void
control_characters_are_refused_and_not_repeated(void **state)
{
    (void)state;
    static const char *const bad[] = { "hidden\r\nx-evil: 1", "hidden\n", "\rhidden",
                                       "hidden\x01", "hidden\x7f", "hidden\t" };
    const struct vector *v = &vectors[0];

    for (size_t i = 0; i < N_ROWS(bad); i++) {
        struct kvt__s3_pair header = { "x-amz-meta-note", bad[i] };
        struct kvt__s3_head head = head_of(v), good = head;
        head.headers = &header;
        assert_refused(&head, "x-amz-meta-note");
        head = good;
        head.host = bad[i];
        assert_refused(&head, "host");
        head = good;
        head.path = bad[i];
        assert_refused(&head, "path");
        head = good;
        head.region = bad[i];
        assert_refused(&head, "region");
        head = good;
        head.payload_hash = bad[i];
        assert_refused(&head, "x-amz-content-sha256");
        kvt__s3_keys_unref(good.keys);
        head.payload_hash = NULL;
        head.keys = kvt__s3_keys_new(bad[i], "s", NULL, INT64_MAX, "a test");
        assert_refused(&head, "access key");
        kvt__s3_keys_unref(head.keys);
        head.keys = kvt__s3_keys_new("a", "s", bad[i], INT64_MAX, "a test");
        assert_refused(&head, "session token");
        kvt__s3_keys_unref(head.keys);
    }
}

static void
paths_and_hosts_have_no_blanks(void **state)
{
    (void)state;
    struct kvt__s3_head head = head_of(&vectors[0]), good = head;

    head.path = "/a b";
    assert_refused(&head, "path");
    head.path = "a";
    assert_refused(&head, "path");
    head.path = "/\xc3\xa9";
    assert_refused(&head, "path");
    head = good;
    head.host = "a b";
    assert_refused(&head, "host");
    head.host = "";
    assert_refused(&head, "host");
    head = good;
    head.time_s = -1;
    assert_refused(&head, "time");
    head.time_s = INT64_MAX;
    assert_refused(&head, "time");
    head.time_s = 253402300800; /* the year 10000 */
    assert_refused(&head, "time");
    kvt__s3_keys_unref(good.keys);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_signed_head_is_sent),
        cmocka_unit_test(without_keys_nothing_is_signed),
        cmocka_unit_test(a_head_stays_in_its_buffer),
        cmocka_unit_test(headers_and_parameters_are_counted),
        cmocka_unit_test(a_long_query_is_whole_or_refused),
        cmocka_unit_test(parameters_are_sorted_by_encoded_name_and_value),
        cmocka_unit_test(control_characters_are_refused_and_not_repeated),
        cmocka_unit_test(paths_and_hosts_have_no_blanks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
