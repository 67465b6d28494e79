/* SPDX-License-Identifier: Apache-2.0
 *
 * Signatures of known requests, and the signing keys. */
#include "s3-sign-test.h"

#include <pthread.h>
#include <stdio.h>

#include "tier/s3/encode.h"
#include "tier/s3/signing-key.h"

static void
known_requests_have_their_known_signatures(void **state)
{
    (void)state;
    char out[4096], expected[1024];

    for (size_t i = 0; i < N_ROWS(vectors); i++) {
        const struct vector *v = &vectors[i];
        struct kvt__s3_head head = head_of(v);
        if (v->canonical) {
            int n = kvt__s3_canonical(&head, out, sizeof out);
            assert_int_equal(n, strlen(v->canonical));
            assert_string_equal(out, v->canonical);
        }
        int written = kvt__s3_write_head(&head, out, sizeof out);
        assert_int_equal(written, strlen(out));
        snprintf(expected, sizeof expected, "\r\nAuthorization: AWS4-HMAC-SHA256 "
                 "Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=%s, "
                 "Signature=%s\r\n\r\n", v->access,
                 v->head.time_s == MAY_2013 ? "20130524" : "20150830", v->head.region,
                 v->head.service, v->names, v->signature);
        assert_true(strlen(out) > strlen(expected));
        assert_string_equal(out + strlen(out) - strlen(expected), expected);
        kvt__s3_keys_unref(head.keys);
    }
}

static void
assert_hex(const uint8_t bytes[32], const char *hex)
{
    char text[65];

    kvt__s3_hex(bytes, 32, text);
    assert_string_equal(text, hex);
}

static void
a_signing_key_comes_in_known_steps(void **state)
{
    (void)state;
    uint8_t key[32];

    kvt__s3_hmac("AWS4" SECRET, strlen("AWS4" SECRET), "20150830", 8, key);
    assert_hex(key, "0138c7a6cbd60aa727b2f653a522567439dfb9f3e72b21f9b25941a42f04a7cd");
    kvt__s3_hmac(key, sizeof key, "us-west-2", 9, key);
    assert_hex(key, "97fead455c84bcbb7927a61ad97f659671af71aab21ceecaa1aaa52150a1be04");
    kvt__s3_hmac(key, sizeof key, "s3", 2, key);
    assert_hex(key, "869f5aa05b2cee4b6f9ca58c0361e3bda0cfdc9dd283be4b773872f58bbe7f06");
    kvt__s3_hmac(key, sizeof key, "aws4_request", 12, key);
    assert_hex(key, vectors[4].signing_key);
}

static void
a_key_for_another_scope_is_another(void **state)
{
    (void)state;
    struct kvt__s3_keys *keys =
        kvt__s3_keys_new("AKIDEXAMPLE", SECRET, NULL, INT64_MAX, "a test");
    uint8_t key[32];

    assert_non_null(keys);
    for (int round = 0; round < 3; round++)
        for (size_t i = 4; i <= 6; i++) {
            const struct kvt__s3_head *h = &vectors[i].head;
            char scope[KVT__S3_SCOPE_ROOM];
            snprintf(scope, sizeof scope, "20150830/%s/%s/aws4_request", h->region,
                     h->service);
            kvt__s3_signing_key(keys, "20150830", h->region, h->service, scope, key);
            assert_hex(key, vectors[i].signing_key);
        }
    kvt__s3_keys_unref(keys);
}

/* The cases of RFC 4231 with keys shorter and longer than a block. */
static void
hmac_equals_the_rfc(void **state)
{
    (void)state;
    uint8_t key[131], out[32];

    kvt__s3_hmac("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_hex(out, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    kvt__s3_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First",
                 54, out);
    assert_hex(out, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* The first HMAC key is "AWS4" and the secret, also if the secret is longer than a block. */
static void
secrets_of_any_length_sign(void **state)
{
    (void)state;
    char secret[132] = "AWS4";
    uint8_t key[32], expected[32];

    for (size_t n = 0; n < 128; n++) {
        memset(secret + 4, 's', n);
        struct kvt__s3_keys *keys =
            kvt__s3_keys_new("A", secret + 4, NULL, INT64_MAX, "a test");
        assert_non_null(keys);
        kvt__s3_signing_key(keys, "20150830", "r", "s3", "20150830/r/s3/aws4_request", key);
        kvt__s3_keys_unref(keys);
        kvt__s3_hmac(secret, n + 4, "20150830", 8, expected);
        kvt__s3_hmac(expected, 32, "r", 1, expected);
        kvt__s3_hmac(expected, 32, "s3", 2, expected);
        kvt__s3_hmac(expected, 32, "aws4_request", 12, expected);
        assert_memory_equal(key, expected, 32);
    }
}

static void *
sign_often(void *arg)
{
    const struct kvt__s3_head *of_caller = arg;
    struct kvt__s3_head head = *of_caller;
    char out[4096], first[2][4096];

    kvt__s3_keys_ref(head.keys);
    for (int i = 0; i < 200; i++) {
        head.time_s = AUGUST_2015 + i % 2 * 86400;
        if (kvt__s3_write_head(&head, i < 2 ? first[i] : out, sizeof out) < 0 ||
            (i >= 2 && strcmp(out, first[i % 2])))
            return (void *)1;
    }
    kvt__s3_keys_unref(head.keys);
    return NULL;
}

static void
threads_share_keys(void **state)
{
    (void)state;
    struct kvt__s3_head head = head_of(&vectors[5]);
    pthread_t threads[4];
    void *failed;

    for (size_t i = 0; i < N_ROWS(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sign_often, &head), 0);
    for (size_t i = 0; i < N_ROWS(threads); i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    kvt__s3_keys_unref(head.keys);
    kvt__s3_keys_unref(NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_requests_have_their_known_signatures),
        cmocka_unit_test(a_signing_key_comes_in_known_steps),
        cmocka_unit_test(a_key_for_another_scope_is_another),
        cmocka_unit_test(hmac_equals_the_rfc),
        cmocka_unit_test(secrets_of_any_length_sign),
        cmocka_unit_test(threads_share_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
