/* SPDX-License-Identifier: Apache-2.0
 *
 * XML as documented by AWS and as written by RGW, SeaweedFS, MinIO and moto; and malformed
 * documents. */
#include "kvt-test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/xml-scan.h"
#include "tier/s3/xml.h"

#define N_ROWS(table) (sizeof table / sizeof *table)
#define DECLARED "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define S3 " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""
#define MAX_KEYS 8

/* A copy in memory of exactly this size, so that a sanitizer reports an access behind the end. */
static char *
copy_of(const char *text, size_t n)
{
    char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    return copy;
}

/* -------------------------------------------------------------------- errors */

static int
read_error(const char *text, struct kvt__s3_error *out)
{
    char *copy = copy_of(text, strlen(text));
    int rc = kvt__s3_read_error(copy, strlen(text), out);

    free(copy);
    return rc;
}

static void
an_error_has_code_message_endpoint_and_region(void **state)
{
    (void)state;
    static const struct {
        const char *text, *code, *message, *endpoint, *region, *request_id;
    } rows[] = {
        { DECLARED "<Error><Code>PermanentRedirect</Code><Message>The bucket you are "
          "attempting to access must be addressed using the specified endpoint.</Message>"
          "<Endpoint>kv.s3.eu-west-1.amazonaws.com</Endpoint><Bucket>kv</Bucket><RequestId>"
          "656C76696E</RequestId><HostId>Uuag1LuByRx9e6j5Onimru9pO4ZVKnJ2Qz7/C1NPcfTWAtRPf"
          "TaOFg==</HostId></Error>",
          "PermanentRedirect", "The bucket you are attempting to access must be addressed "
          "using the specified endpoint.", "kv.s3.eu-west-1.amazonaws.com", "",
          "656C76696E" },
        { "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>"
          "AuthorizationHeaderMalformed</Code><Message>expecting &apos;eu-west-1&apos; "
          "&amp; not &#x27;us-east-1&#39;</Message><Region>eu-west-1</Region></Error>\n",
          "AuthorizationHeaderMalformed", "expecting 'eu-west-1' & not 'us-east-1'", "",
          "eu-west-1", "" },
        /* RGW: no message. */
        { "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>NoSuchKey</Code>"
          "<BucketName>b</BucketName><RequestId>tx00000b-default</RequestId>"
          "<HostId>1032-default-default</HostId></Error>",
          "NoSuchKey", "", "", "", "tx00000b-default" },
        /* STS: one level down. */
        { "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n"
          "  <Error>\n    <Type>Sender</Type>\n    <Code>\n ExpiredTokenException </Code>\n"
          "    <Message>Token\nexpired:\t1 &lt; 2</Message>\n  </Error>\n"
          "  <RequestId>ab-12</RequestId>\n</ErrorResponse>\n",
          "ExpiredTokenException", "Token expired: 1 < 2", "", "", "ab-12" },
    };
    struct kvt__s3_error e;

    for (size_t i = 0; i < N_ROWS(rows); i++) {
        assert_int_equal(read_error(rows[i].text, &e), 0);
        assert_string_equal(e.code, rows[i].code);
        assert_string_equal(e.message, rows[i].message);
        assert_string_equal(e.endpoint, rows[i].endpoint);
        assert_string_equal(e.region, rows[i].region);
        assert_string_equal(e.request_id, rows[i].request_id);
    }
    assert_int_equal(read_error("<ErrorResponse><RequestId>a</RequestId></ErrorResponse>",
                                &e), -EBADMSG);
}

static void
long_texts_of_errors_are_cut_between_characters(void **state)
{
    (void)state;
    struct kvt__s3_error e;
    char text[1024] = "<Error><Code>";

    for (int i = 0; i < 200; i++)
        strcat(text, "\xc3\xa9");
    strcat(text, "</Code></Error>");
    assert_int_equal(read_error(text, &e), 0);
    assert_int_equal(strlen(e.code), 62);
    assert_memory_equal(e.code + 60, "\xc3\xa9", 3);
}

/* ---------------------------------------------------------------------- lists */

struct seen {
    int n;
    char keys[MAX_KEYS][64];
    struct kvt__s3_listed objects[MAX_KEYS];
    char token[64];
};

static void
on_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    struct seen *seen = ctx;

    assert_true(seen->n < MAX_KEYS);
    strcpy(seen->keys[seen->n], listed->key);
    seen->objects[seen->n++] = *listed;
}

static int
read_list(const char *text, struct seen *seen)
{
    char *copy = copy_of(text, strlen(text));

    memset(seen, 0, sizeof *seen);
    int rc = kvt__s3_read_list(copy, strlen(text), on_listed, seen, seen->token,
                               sizeof seen->token);
    free(copy);
    return rc;
}

static void
lists_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n;
        const char *key; /* the first object, with size and time */
        uint64_t bytes;
        int64_t modified_ns;
        const char *token;
    } rows[] = {
        { DECLARED "<ListBucketResult" S3 "><Name>kv</Name><Prefix>ns/</Prefix>"
          "<NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextConti"
          "nuationToken><KeyCount>2</KeyCount><MaxKeys>2</MaxKeys>"
          "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
          "<Contents><Key>ns/a+b%2Bc%401</Key><LastModified>2026-11-22T01:02:03.456Z"
          "</LastModified><ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag>"
          "<Size>33554432</Size><Owner><ID>x</ID><Size>7</Size></Owner>"
          "<StorageClass>STANDARD</StorageClass></Contents>"
          "<Contents><Key>ns/%C3%A9</Key><Size>0</Size></Contents>"
          "<CommonPrefixes><Prefix>ns/sub/</Prefix></CommonPrefixes></ListBucketResult>",
          2, "ns/a b+c@1", 33554432, 1795309323456000000,
          "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=" },
        { "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%C3%A9</Key>"
          "<Size>0</Size></Contents></ListBucketResult>", 1, "\xc3\xa9", 0, 0, "" },
        /* Entities are decoded before percent-encoding.  RGW: &apos; and unencoded ~!'()*.  The
         * token of the last page is ignored. */
        { "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult" S3 ">"
          "<Name>b</Name><Prefix>l/</Prefix><MaxKeys>1000</MaxKeys>"
          "<EncodingType> url </EncodingType><IsTruncated>false</IsTruncated>"
          "<Contents><Key>l%2Fa%20~!&apos;()*&#37;26</Key>"
          "<LastModified>2026-11-22T01:02:03Z</LastModified><Size> 5 </Size></Contents>"
          "<NextContinuationToken>x</NextContinuationToken></ListBucketResult>",
          1, "l/a ~!'()*&", 5, 1795309323000000000, "" },
        /* Unencoded keys stay unchanged.  SeaweedFS: the token is unencoded too, and equals the
         * last key. */
        { DECLARED "<ListBucketResult" S3 "><IsTruncated>true</IsTruncated><Contents>"
          "<Key> l/02 k+%41&amp;&#233; </Key><Size>1</Size></Contents>"
          "<NextContinuationToken>l/02 k+\xc3\xa9</NextContinuationToken>"
          "</ListBucketResult>", 1, " l/02 k+%41&\xc3\xa9 ", 1, 0, "l/02 k+\xc3\xa9" },
        /* Unusual but legal: prefixes, comments, CDATA, white space, attributes with '>'.  MinIO:
         * EncodingType is the last element. */
        { "\xef\xbb\xbf" DECLARED "<!-- a > b -->\n<?pi ?>"
          "<a:ListBucketResult xmlns:a='x>y'\n b = \"/\" >\n\t<!--<Contents>-->"
          "<a:Contents >\r\n<a:Key>a<!-- no -->b<![CDATA[%2B<&>]]>c</a:Key >"
          "<a:Size><![CDATA[12]]></a:Size><a:Owner/><a:Tag x=\"1\"/></a:Contents\n>"
          "<a:CommonPrefixes/><a:EncodingType>url</a:EncodingType></a:ListBucketResult>\n"
          "<!-- end -->\n", 1, "ab+<&>c", 12, 0, "" },
        /* Keys that XML 1.0 forbids: a control character, and bytes that are not UTF-8. */
        { "<ListBucketResult><Contents><Key>a&#1;b\xff</Key><Size>1</Size></Contents>"
          "</ListBucketResult>", 1, "a\x01" "b\xff", 1, 0, "" },
        { "<ListBucketResult/>", 0, "", 0, 0, "" },
    };
    struct seen seen;

    for (size_t i = 0; i < N_ROWS(rows); i++) {
        assert_int_equal(read_list(rows[i].text, &seen), 0);
        assert_int_equal(seen.n, rows[i].n);
        assert_string_equal(seen.keys[0], rows[i].key);
        assert_int_equal(seen.objects[0].bytes, rows[i].bytes);
        assert_int_equal(seen.objects[0].modified_ns, rows[i].modified_ns);
        assert_string_equal(seen.token, rows[i].token);
    }
}

static void
a_list_that_cannot_be_trusted_is_refused(void **state)
{
    (void)state;
#define CONTENTS(key, size) "<Contents><Key>" key "</Key><Size>" size "</Size></Contents>"
#define LIST(text) "<ListBucketResult>" text "</ListBucketResult>"
    static const char *const bad[] = {
        LIST("<Contents><Size>1</Size></Contents>"),
        LIST("<Contents><Key>a</Key></Contents>"),
        LIST(CONTENTS("", "1")),
        LIST(CONTENTS("a", "")),
        LIST(CONTENTS("a", "-1")),
        LIST(CONTENTS("a", "0x10")),
        LIST(CONTENTS("a", "18446744073709551617")),
        LIST("<EncodingType>url</EncodingType>" CONTENTS("a%4", "1")),
        LIST("<EncodingType>url</EncodingType>" CONTENTS("a%00b", "1")),
        LIST("<IsTruncated>true</IsTruncated>"),
        LIST("<IsTruncated>true</IsTruncated><NextContinuationToken>"
             "0123456789012345678901234567890123456789012345678901234567890123"
             "</NextContinuationToken>"),
        "<Error><Code>AccessDenied</Code></Error>",
    };
    struct seen seen;

    for (size_t i = 0; i < N_ROWS(bad); i++) {
        assert_int_equal(read_list(bad[i], &seen), -EBADMSG);
        assert_int_equal(seen.n, 0);
        assert_true(strlen(kvt__why()) > 20);
    }
    assert_non_null(strstr(kvt__why(), "<Error>"));
}

/* -------------------------------------------------------- deletions and texts */

static void
on_failed(void *ctx, const char *key, const char *code, const char *message)
{
    char *all = ctx;

    strcat(strcat(strcat(strcat(strcat(strcat(all, key), "|"), code), "|"), message), "\n");
}

static int
read_deleted(const char *text, char *all)
{
    char *copy = copy_of(text, strlen(text));

    *all = '\0';
    int rc = kvt__s3_read_deleted(copy, strlen(text), on_failed, all);
    free(copy);
    return rc;
}

static void
keys_not_deleted_are_reported(void **state)
{
    (void)state;
    char all[256];

    assert_int_equal(read_deleted(DECLARED "<DeleteResult" S3 "><Deleted><Key>a</Key>"
        "</Deleted><Error><Key>b&amp;c</Key><Code>AccessDenied</Code><Message>Access\n"
        "Denied</Message></Error><Error><Code>InternalError</Code></Error></DeleteResult>",
        all), 0);
    assert_string_equal(all, "b&c|AccessDenied|Access Denied\n|InternalError|\n");
    assert_int_equal(read_deleted("<DeleteResult" S3 "></DeleteResult>", all), 0);
    assert_string_equal(all, "");
    assert_int_equal(read_deleted("<Error><Code>x</Code></Error>", all), -EBADMSG);
    assert_int_equal(read_deleted("<DeleteResult><Error><Key>b</Key></Error>", all),
                     -EBADMSG);
    assert_string_equal(all, "");
}

/* Return the text of the root element, which has no children. */
static int
read_text(const char *text, size_t n, char *out, size_t room)
{
    char *copy = copy_of(text, n);
    struct kvt__xml xml;
    int event;

    *out = '\0';
    kvt__xml_begin(&xml, copy, n, false);
    while ((event = kvt__xml_next(&xml)) > 0)
        if (event == KVT__XML_CLOSE && xml.leaf && xml.depth == 1)
            snprintf(out, room, "%s", xml.text);
    free(copy);
    return event;
}

/* --------------------------------------------------------------- credentials */

static int
read_credentials(const char *text, const char *access, const char *token)
{
    struct kvt__s3_xml_credentials c;
    char *copy = copy_of(text, strlen(text));
    int rc = kvt__s3_read_credentials(copy, strlen(text), &c);

    if (!rc) {
        assert_string_equal(c.access, access);
        assert_string_equal(c.secret, "TESTSECRET/+=");
        assert_string_equal(c.token, token);
        assert_int_equal(c.expires_s, 1795309323);
    }
    free(copy);
    return rc;
}

#define SECRET "<SecretAccessKey>TESTSECRET/+=</SecretAccessKey>"
#define EXPIRES "<Expiration>2026-11-22T01:02:03Z</Expiration>"

static void
credentials_are_found_wherever_they_are(void **state)
{
    (void)state;
    static const char session[] = DECLARED
        "<CreateSessionResult" S3 "><Credentials><SessionToken>A+/==</SessionToken>" SECRET
        "<AccessKeyId>ASIA</AccessKeyId>" EXPIRES "</Credentials></CreateSessionResult>";
    static const char role[] =
        "<AssumeRoleWithWebIdentityResponse"
        " xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n"
        "  <AssumeRoleWithWebIdentityResult>\n    <AssumedRoleUser><Arn>a</Arn>"
        "</AssumedRoleUser>\n    <Credentials>\n      <AccessKeyId>ASIB</AccessKeyId>\n"
        SECRET "\n      <SessionToken>\nline&#61;\n</SessionToken>\n      " EXPIRES
        "\n    </Credentials>\n  </AssumeRoleWithWebIdentityResult>\n"
        "</AssumeRoleWithWebIdentityResponse>";

    assert_int_equal(read_credentials(session, "ASIA", "A+/=="), 0);
    assert_int_equal(read_credentials(role, "ASIB", "line="), 0);
}

static void
an_answer_without_whole_credentials_is_none(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "<ListBucketResult" S3 "><Name>b</Name></ListBucketResult>",
        "<S><Credentials/></S>",
        "<S><AccessKeyId>A</AccessKeyId>" SECRET "<SessionToken>T</SessionToken>" EXPIRES
        "</S>",
        "<S><Credentials>" SECRET "<SessionToken>T</SessionToken>" EXPIRES
        "</Credentials></S>",
        "<S><Credentials><AccessKeyId>A</AccessKeyId>" SECRET
        "<SessionToken>T</SessionToken><Expiration>soon</Expiration></Credentials></S>",
        "<S><Credentials><AccessKeyId>A</AccessKeyId>" SECRET
        "<SessionToken>T</SessionToken>" EXPIRES,
    };

    for (size_t i = 0; i < N_ROWS(bad); i++) {
        assert_int_equal(read_credentials(bad[i], "", ""), -EBADMSG);
        assert_null(strstr(kvt__why(), "TESTSECRET"));
        if (!i)
            assert_non_null(strstr(kvt__why(), "<ListBucketResult>"));
    }
}

/* ----------------------------------------------------------------- malformed */

#define FOUR(x) x x x x

static void
invalid_xml_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", " ", "text", "<", "<>", "</a>", "<a", "<a>", "<a/", "<a b='>", "<a b=\"'>",
        "<a></b>", "<a><b></a></b>", "<a/><b/>", "<a/>x", "x<a/>", "<a>&</a>",
        "<a>&amp</a>", "<a>&nbsp;</a>", "<a>&#0;</a>", "<a>&#;</a>", "<a>&#x;</a>",
        "<a>&#xD800;</a>",
        "<a>&#x110000;</a>", "<a>&#99999999999;</a>", "<a>&#1a;</a>", "<a>&#-1;</a>",
        "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>", "<a><!ELEMENT b></a>", "<!-- <a/>",
        "<a><![CDATA[</a>", "<![CDATA[<a/>]]>", "<? <a/>", "<a><</a>", "<a <b/></a>",
        "<html><head><title>502</title><body><hr></body></html>", "{\"code\": 1}",
        "<a></a", "<a></ a>", "<\x01/>",
        FOUR("<a>") FOUR("<a>") FOUR("<a>") FOUR("<a>") "<a></a>" FOUR("</a>") FOUR("</a>")
        FOUR("</a>") FOUR("</a>"),
    };
    char out[64];

    for (size_t i = 0; i < N_ROWS(bad); i++)
        assert_int_equal(read_text(bad[i], strlen(bad[i]), out, sizeof out), -EBADMSG);
    assert_int_equal(read_text("<a>b\0c</a>", 10, out, sizeof out), -EBADMSG);
    assert_int_equal(read_text("<a><![CDATA[\0]]></a>", 20, out, sizeof out), -EBADMSG);
}

static void
numbered_characters_become_utf8(void **state)
{
    (void)state;
    char text[] = "<a>&#65;&#x7f;&#128;&#x7FF;&#x800;&#xffff;&#x10000;&#x10FFFF;</a>";
    char out[64];

    assert_int_equal(read_text(text, strlen(text), out, sizeof out), 0);
    assert_string_equal(out, "A\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80"
                             "\xf4\x8f\xbf\xbf");
}

/* A truncated document is an error, at every length. */
static void
a_part_of_a_document_is_refused(void **state)
{
    (void)state;
    static const char text[] = DECLARED
        "<ListBucketResult" S3 "><Contents><Key>a&amp;b</Key><Size>1</Size></Contents>"
        "<IsTruncated>false</IsTruncated></ListBucketResult>";
    struct seen seen = { 0 };

    for (size_t n = 0; n < strlen(text); n++) {
        char *copy = copy_of(text, n);
        assert_int_equal(kvt__s3_read_list(copy, n, on_listed, &seen, seen.token,
                                           sizeof seen.token), -EBADMSG);
        assert_int_equal(seen.n, 0);
        free(copy);
    }
}

/* --------------------------------------------------------------------- times */

static void
times_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t s, ns;
    } rows[] = {
        { "1970-01-01T00:00:00Z", 0, 0 },
        { "2026-11-22T01:02:03Z", 1795309323, 0 },
        { "2026-11-22T01:02:03.456Z", 1795309323, 456000000 },
        { "2026-11-22T01:02:03.000000001Z", 1795309323, 1 },
        { "2026-11-22T01:02:03.1234567899Z", 1795309323, 123456789 },
        { "2026-11-22T01:02:03+00:00", 1795309323, 0 },
        { "2026-11-22T01:02:03.5+0000", 1795309323, 500000000 },
        { "2026-11-22T03:32:03+02:30", 1795309323, 0 },
        { "2026-11-21T20:02:03-05:00", 1795309323, 0 },
        { "2024-02-29T23:59:59Z", 1709251199, 0 },
    };
    static const char *const bad[] = {
        "", "2026", "2026-11-22", "2026-11-22T01:02:03", "2026-11-22 01:02:03Z",
        "2026-11-22T01:02:03.Z", "2026-11-22T01:02:03Zx", "2026-02-30T01:02:03Z",
        "2026-13-01T01:02:03Z", "2026-00-01T01:02:03Z", "2026-11-00T01:02:03Z",
        "2026-11-22T24:02:03Z", "2026-11-22T01:60:03Z", "2026-11-22T01:02:60Z",
        "2026-11-22T01:02:03+24:00", "2026-11-22T01:02:03+1:00",
        "2026-11-22T01:02:03+01:60",
        "2026-11-22T01:02:03+01", "2026-11-22T01:02:03+01:000", "-026-11-22T01:02:03Z",
        "Sun, 22 Nov 2026 01:02:03 GMT",
    };
    int64_t ns;

    for (size_t i = 0; i < N_ROWS(rows); i++) {
        assert_int_equal(kvt__s3_time(rows[i].text, &ns), rows[i].s);
        assert_int_equal(ns, rows[i].ns);
        assert_int_equal(kvt__s3_time(rows[i].text, NULL), rows[i].s);
    }
    for (size_t i = 0; i < N_ROWS(bad); i++)
        assert_true(kvt__s3_time(bad[i], &ns) == INT64_MIN);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_has_code_message_endpoint_and_region),
        cmocka_unit_test(long_texts_of_errors_are_cut_between_characters),
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(a_list_that_cannot_be_trusted_is_refused),
        cmocka_unit_test(keys_not_deleted_are_reported),
        cmocka_unit_test(credentials_are_found_wherever_they_are),
        cmocka_unit_test(an_answer_without_whole_credentials_is_none),
        cmocka_unit_test(invalid_xml_is_refused),
        cmocka_unit_test(numbered_characters_become_utf8),
        cmocka_unit_test(a_part_of_a_document_is_refused),
        cmocka_unit_test(times_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
