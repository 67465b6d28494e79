/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests with known signatures.  The first four are AWS's published examples; two independent
 * programs computed the others.  All keys are fake. */
#ifndef S3_SIGN_TEST_H
#define S3_SIGN_TEST_H

#include "kvt-test.h"

#include <stdbool.h>
#include <string.h>

#include "tier/s3/sign.h"

#define N_ROWS(table) (sizeof table / sizeof *table)
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define WELCOME "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
#define MAY_2013 1369353600    /* 20130524T000000Z */
#define AUGUST_2015 1440938160 /* 20150830T123600Z */
#define EXPRESS "kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com"
#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

struct vector {
    struct kvt__s3_head head;
    struct kvt__s3_pair query[8], headers[8];
    const char *access, *secret, *token;
    const char *canonical;  /* NULL: unknown */
    const char *signing_key;
    const char *names;      /* SignedHeaders */
    const char *signature;
};

#define EXAMPLE .access = "AKIAIOSFODNN7EXAMPLE", \
                .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define EXAMPLE_HEAD(m, p, hash) \
    .head = { .method = m, .host = "examplebucket.s3.amazonaws.com", .path = p, \
              .region = "us-east-1", .service = "s3", .time_s = MAY_2013, \
              .payload_hash = hash, .content_length = -1 }

static const struct vector vectors[] = {
    { EXAMPLE, EXAMPLE_HEAD("GET", "/test.txt", EMPTY),
      .headers = { { "range", "bytes=0-9" } },
      .names = "host;range;x-amz-content-sha256;x-amz-date",
      .signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41" },
    { EXAMPLE, EXAMPLE_HEAD("GET", "/", EMPTY),
      .query = { { "lifecycle", "" } },
      .names = "host;x-amz-content-sha256;x-amz-date",
      .signature = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
    { EXAMPLE, EXAMPLE_HEAD("GET", "/", EMPTY),
      .query = { { "prefix", "J" }, { "max-keys", "2" } },
      .names = "host;x-amz-content-sha256;x-amz-date",
      .signature = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
    { EXAMPLE, EXAMPLE_HEAD("PUT", "/test%24file.text", WELCOME),
      .headers = { { "x-amz-storage-class", "REDUCED_REDUNDANCY" },
                   { "date", "Fri, 24 May 2013 00:00:00 GMT" } },
      .names = "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
      .signature = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd" },

    { .access = "AKIDEXAMPLE", .secret = SECRET,
      .head = { .method = "GET", .host = "kv-cache.s3.us-west-2.amazonaws.com", .path = "/",
                .region = "us-west-2", .service = "s3", .time_s = AUGUST_2015,
                .content_length = -1 },
      .query = { { "list-type", "2" }, { "prefix", "ns/model a+b=\xc3\xa9/" },
                 { "max-keys", "100" }, { "encoding-type", "url" },
                 { "continuation-token", "1/ab+c==" }, { "start-after", "" } },
      .canonical =
          "GET\n/\n"
          "continuation-token=1%2Fab%2Bc%3D%3D&encoding-type=url&list-type=2&max-keys=100&"
          "prefix=ns%2Fmodel%20a%2Bb%3D%C3%A9%2F&start-after=\n"
          "host:kv-cache.s3.us-west-2.amazonaws.com\n"
          "x-amz-content-sha256:UNSIGNED-PAYLOAD\n"
          "x-amz-date:20150830T123600Z\n\n"
          "host;x-amz-content-sha256;x-amz-date\n"
          "UNSIGNED-PAYLOAD",
      .signing_key = "4d58ac621f34d9fc9e54a5cc66dda3342e556759ac2f7241647cd71a66d3beba",
      .names = "host;x-amz-content-sha256;x-amz-date",
      .signature = "f724948ef9792e5d5325566242cc7c49dc2e4b50853957d6b79be984d5cd35ab" },

    { .access = "AKIDEXAMPLE", .secret = SECRET,
      .token = "IQoJb3JpZ2luX2VjFAKE/TOKEN+example==",
      .head = { .method = "PUT", .host = "s3.example.internal:9000",
                .path = "/kv-cache/ns/7f/model%401.5%20x%3Dy%2Bz~%C3%A9/00ff.kv",
                .region = "us-east-1", .service = "s3", .time_s = AUGUST_2015,
                .content_length = 9, .expect_continue = true },
      .headers = { { "x-amz-server-side-encryption-aws-kms-key-id",
                     "1234abcd-12ab-34cd-56ef-1234567890ab" },
                   { "x-amz-server-side-encryption", "aws:kms" },
                   { "x-amz-meta-note", "  two   words " },
                   { "x-amz-checksum-crc32c", "4waSgw==" },
                   { "if-match", NULL },
                   { "if-none-match", "*" } },
      .canonical =
          "PUT\n/kv-cache/ns/7f/model%401.5%20x%3Dy%2Bz~%C3%A9/00ff.kv\n\n"
          "host:s3.example.internal:9000\n"
          "if-none-match:*\n"
          "x-amz-checksum-crc32c:4waSgw==\n"
          "x-amz-content-sha256:UNSIGNED-PAYLOAD\n"
          "x-amz-date:20150830T123600Z\n"
          "x-amz-meta-note:two words\n"
          "x-amz-security-token:IQoJb3JpZ2luX2VjFAKE/TOKEN+example==\n"
          "x-amz-server-side-encryption:aws:kms\n"
          "x-amz-server-side-encryption-aws-kms-key-id:"
          "1234abcd-12ab-34cd-56ef-1234567890ab\n"
          "\nhost;if-none-match;x-amz-checksum-crc32c;x-amz-content-sha256;x-amz-date;"
          "x-amz-meta-note;x-amz-security-token;x-amz-server-side-encryption;"
          "x-amz-server-side-encryption-aws-kms-key-id\n"
          "UNSIGNED-PAYLOAD",
      .signing_key = "32f78051dcde24c552811d654f4a769112bb834b03975cdd6b1fd7d16248c269",
      .names = "host;if-none-match;x-amz-checksum-crc32c;x-amz-content-sha256;x-amz-date;"
               "x-amz-meta-note;x-amz-security-token;x-amz-server-side-encryption;"
               "x-amz-server-side-encryption-aws-kms-key-id",
      .signature = "9a81d648b51b178279866149c619e41b4623effa11982a5e091cce43adef5583" },

    { .access = "AKIDEXAMPLE", .secret = SECRET,
      .head = { .method = "GET", .host = EXPRESS, .path = "/", .region = "us-east-1",
                .service = "s3express", .time_s = AUGUST_2015, .content_length = -1 },
      .query = { { "session", "" } },
      .headers = { { "x-amz-create-session-mode", "ReadWrite" } },
      .canonical =
          "GET\n/\nsession=\n"
          "host:" EXPRESS "\n"
          "x-amz-content-sha256:UNSIGNED-PAYLOAD\n"
          "x-amz-create-session-mode:ReadWrite\n"
          "x-amz-date:20150830T123600Z\n\n"
          "host;x-amz-content-sha256;x-amz-create-session-mode;x-amz-date\n"
          "UNSIGNED-PAYLOAD",
      .signing_key = "52a847d2bbfd31e73eeed98ef8b50784017ec2f32c974006028ef862b950a3c0",
      .names = "host;x-amz-content-sha256;x-amz-create-session-mode;x-amz-date",
      .signature = "b8ff93f1ac83059495876055581dc4daafc9b7a01e9f05f4dc4b2d5fb0010611" },

    { .access = "ASIDEXAMPLESESSION", .secret = "sessionSecretEXAMPLEKEYsessionSecretEXAM",
      .token = "AAAAsessiontokenEXAMPLE/1+2==",
      .head = { .method = "GET", .host = EXPRESS, .path = "/ns/7f/00ff.kv",
                .region = "us-east-1", .service = "s3express", .session = true,
                .time_s = AUGUST_2015, .content_length = -1 },
      .headers = { { "range", "bytes=0-1048575" } },
      .canonical =
          "GET\n/ns/7f/00ff.kv\n\n"
          "host:" EXPRESS "\n"
          "range:bytes=0-1048575\n"
          "x-amz-content-sha256:UNSIGNED-PAYLOAD\n"
          "x-amz-date:20150830T123600Z\n"
          "x-amz-s3session-token:AAAAsessiontokenEXAMPLE/1+2==\n\n"
          "host;range;x-amz-content-sha256;x-amz-date;x-amz-s3session-token\n"
          "UNSIGNED-PAYLOAD",
      .signing_key = "5a9395ef17676db32db27e7a25855e9adfad8489f416ddc1e12323a2fe5404a5",
      .names = "host;range;x-amz-content-sha256;x-amz-date;x-amz-s3session-token",
      .signature = "8d500f25af9fc908f45aff49fc8d8662f5507c6633fc1ec4c06f20085bbfcb89" },
};

/* Return the vector's head with joined parts; the caller releases the keys. */
static struct kvt__s3_head
head_of(const struct vector *v)
{
    struct kvt__s3_head head = v->head;

    head.query = v->query;
    while (head.n_query < N_ROWS(v->query) && v->query[head.n_query].name)
        head.n_query++;
    head.headers = v->headers;
    while (head.n_headers < N_ROWS(v->headers) && v->headers[head.n_headers].name)
        head.n_headers++;
    head.keys = kvt__s3_keys_new(v->access, v->secret, v->token, INT64_MAX, "a test");
    assert_non_null(head.keys);
    return head;
}

#endif
