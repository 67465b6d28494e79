/* SPDX-License-Identifier: Apache-2.0
 *
 * Responses of SeaweedFS 4.48 and Ceph RGW 16.2; only times and checksums were replaced by equal
 * values.  Both stores have equal objects; one key contains every character that is encoded. */
#include "kvt-test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/xml.h"

#define DECLARED "<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
#define S3 " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""
#define ETAG "9dd4e461268c8034f5c8564e155c67a6"
#define ODD "l/a@b=c+d/e f/\xc3\xa9~!'()*&$,;:#?%"

static const char *const first_pages[] = {
    DECLARED "\n<ListBucketResult" S3 "><Name>kvx</Name><Prefix>l/</Prefix><MaxKeys>2"
    "</MaxKeys><IsTruncated>true</IsTruncated><Contents><Key>l/00+k%2B%C3%A9</Key>"
    "<ETag>&#34;" ETAG "&#34;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass>"
    "<LastModified>2026-11-22T02:16:40Z</LastModified></Contents><Contents>"
    "<Key>l/01+k%2B%C3%A9</Key><ETag>&#34;" ETAG "&#34;</ETag><Size>1</Size>"
    "<StorageClass>STANDARD</StorageClass><LastModified>2026-11-22T02:16:40Z"
    "</LastModified></Contents><NextContinuationToken>l/01 k+\xc3\xa9"
    "</NextContinuationToken><EncodingType>url</EncodingType><KeyCount>2</KeyCount>"
    "</ListBucketResult>",
    DECLARED "<ListBucketResult" S3 "><EncodingType>url</EncodingType><Name>kvx</Name>"
    "<Prefix>l/</Prefix><MaxKeys>2</MaxKeys><IsTruncated>true</IsTruncated><Contents>"
    "<Key>l%2F00%20k%2B%C3%A9</Key><LastModified>2026-11-22T02:16:40.000Z</LastModified>"
    "<ETag>&quot;" ETAG "&quot;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass>"
    "<Type>Normal</Type></Contents><Contents><Key>l%2F01%20k%2B%C3%A9</Key>"
    "<LastModified>2026-11-22T02:16:40.000Z</LastModified><ETag>&quot;" ETAG "&quot;"
    "</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass><Type>Normal</Type>"
    "</Contents><NextContinuationToken>l/01 k+\xc3\xa9</NextContinuationToken>"
    "<KeyCount>2</KeyCount></ListBucketResult>",
};

static const char *const last_pages[] = {
    DECLARED "\n<ListBucketResult" S3 "><Name>kvx</Name><Prefix>l/</Prefix><MaxKeys>1000"
    "</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>l/a@b=c%2Bd/e%20f/%C3%A9~"
    "%21%27%28%29%2A%26%24%2C%3B%3A%23%3F%25</Key><ETag>&#34;" ETAG "&#34;</ETag>"
    "<Size>5</Size><StorageClass>STANDARD</StorageClass><LastModified>"
    "2026-11-22T02:16:40Z</LastModified></Contents><ContinuationToken>l/01 k+\xc3\xa9"
    "</ContinuationToken><EncodingType>url</EncodingType><KeyCount>1</KeyCount>"
    "</ListBucketResult>",
    DECLARED "<ListBucketResult" S3 "><EncodingType>url</EncodingType><Name>kvx</Name>"
    "<Prefix>l/</Prefix><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents>"
    "<Key>l%2Fa%40b%3Dc%2Bd%2Fe%20f%2F%C3%A9~!&apos;()*%26$%2C%3B%3A%23%3F%25</Key>"
    "<LastModified>2026-11-22T02:16:40.000Z</LastModified><ETag>&quot;" ETAG "&quot;"
    "</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass><Type>Normal</Type>"
    "</Contents><ContinuationToken>l/01 k+\xc3\xa9</ContinuationToken><KeyCount>1"
    "</KeyCount></ListBucketResult>",
    /* RGW without encoding-type=url. */
    DECLARED "<ListBucketResult" S3 "><Name>kvx</Name><Prefix></Prefix><MaxKeys>1000"
    "</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>l/a@b=c+d/e f/\xc3\xa9~!"
    "&apos;()*&amp;$,;:#?%</Key><LastModified>2026-11-22T02:16:40.000Z</LastModified>"
    "<ETag>&quot;" ETAG "&quot;</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass>"
    "<Owner><ID>test</ID><DisplayName>test</DisplayName></Owner><Type>Normal</Type>"
    "</Contents><Marker></Marker></ListBucketResult>",
};

static void
on_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    char *all = ctx;

    assert_int_equal(listed->modified_ns, 1795313800000000000);
    assert_int_equal(listed->bytes, strcmp(listed->key, ODD) ? 1 : 5);
    strcat(strcat(all, listed->key), "\n");
}

static void
assert_page(const char *text, const char *keys, const char *next)
{
    char *copy = strdup(text), all[256] = "", token[64];

    assert_non_null(copy);
    if (kvt__s3_read_list(copy, strlen(text), on_listed, all, token, sizeof token))
        fail_msg("%s", kvt__why());
    assert_string_equal(all, keys);
    assert_string_equal(token, next);
    free(copy);
}

static void
lists_of_all_stores_parse_alike(void **state)
{
    (void)state;

    for (int i = 0; i < 2; i++)
        assert_page(first_pages[i], "l/00 k+\xc3\xa9\nl/01 k+\xc3\xa9\n",
                    "l/01 k+\xc3\xa9");
    for (int i = 0; i < 3; i++)
        assert_page(last_pages[i], ODD "\n", "");
}

/* RGW's response to CreateSession of S3 Express. */
static void
a_list_is_no_session(void **state)
{
    (void)state;
    char *copy = strdup(last_pages[2]);
    struct kvt__s3_xml_credentials credentials;

    assert_non_null(copy);
    assert_int_equal(kvt__s3_read_credentials(copy, strlen(copy), &credentials), -EBADMSG);
    assert_non_null(strstr(kvt__why(), "<ListBucketResult>"));
    free(copy);
}

static void
errors_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message, *request_id;
    } rows[] = {
        { DECLARED "\n<Error><Code>NoSuchKey</Code><Message>The specified key does not "
          "exist.</Message><Resource>/kvx/none</Resource><RequestId>"
          "18EA3C63B5BC489714D1F825</RequestId><Key>none</Key><BucketName>kvx</BucketName>"
          "</Error>", "The specified key does not exist.", "18EA3C63B5BC489714D1F825" },
        { DECLARED "<Error><Code>NoSuchKey</Code><Message></Message><BucketName>kvx"
          "</BucketName><RequestId>tx000007d3839ddf7df1cdb-006b02509f-101c-default"
          "</RequestId><HostId>101c-default-default</HostId></Error>", "",
          "tx000007d3839ddf7df1cdb-006b02509f-101c-default" },
    };

    for (int i = 0; i < 2; i++) {
        char *copy = strdup(rows[i].text);
        struct kvt__s3_error e;
        assert_non_null(copy);
        assert_int_equal(kvt__s3_read_error(copy, strlen(copy), &e), 0);
        assert_string_equal(e.code, "NoSuchKey");
        assert_string_equal(e.message, rows[i].message);
        assert_string_equal(e.request_id, rows[i].request_id);
        free(copy);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_all_stores_parse_alike),
        cmocka_unit_test(a_list_is_no_session),
        cmocka_unit_test(errors_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
