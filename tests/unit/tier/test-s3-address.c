/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses of buckets: the tables of docs/s3.md, whose path is the argument; then cases outside
 * the tables, and redirects. */
#include "kvt-test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/address.h"
#include "tier/s3/encode.h"

#define MAX_CELLS 8

static const char *page; /* docs/s3.md */

/* ---------------------------------------------------------------- the tables */

/* Return a cell without blanks and backticks at both ends. */
static char *
bare(char *cell)
{
    cell += strspn(cell, " `");
    for (size_t n = strlen(cell); n && strchr(" `\n", cell[n - 1]); n--)
        cell[n - 1] = '\0';
    return cell;
}

static size_t
split_row(char *line, char *cells[MAX_CELLS])
{
    size_t n = 0;
    char *at = line + 1;

    for (char *end; n < MAX_CELLS && (end = strchr(at, '|')); at = end + 1) {
        *end = '\0';
        cells[n++] = bare(at);
    }
    return n;
}

/* Parse "NAME=VALUE NAME=VALUE".  A word without '=' continues the value before the word. */
static void
read_settings(char *text, struct kvt__s3_address_params *place)
{
    static const char *const styles[] = { "auto", "virtual", "path" };

    while (*text) {
        char *value = strchr(text, '=');
        assert_non_null(value);
        *value++ = '\0';
        char *next = strchr(value, '='), *end = value + strlen(value);
        if (next) {
            for (end = next; *end != ' '; end--)
                continue;
            *end++ = '\0';
        }
        if (!strcmp(text, "s3_region"))
            place->region = value;
        else if (!strcmp(text, "s3_file_prefix"))
            place->file_prefix = value;
        else if (!strcmp(text, "s3_endpoint_url"))
            place->endpoint_url = value;
        else if (!strcmp(text, "s3_enable_s3express"))
            place->express = !strcmp(value, "true");
        else if (!strcmp(text, "AWS_USE_FIPS_ENDPOINT"))
            place->fips = !strcmp(value, "true");
        else if (!strcmp(text, "AWS_USE_DUALSTACK_ENDPOINT"))
            place->dualstack = !strcmp(value, "true");
        else if (!strcmp(text, "disable_tls"))
            place->tls = !strcmp(value, "true") ? KVT__S3_TLS_OFF : KVT__S3_TLS_ON;
        else if (!strcmp(text, "s3_addressing"))
            for (int i = 0; i < 3; i++)
                place->style = !strcmp(value, styles[i]) ? (enum kvt__s3_style)i
                                                         : place->style;
        else
            fail_msg("%s is no setting", text);
        text = end;
    }
}

/* Check the fields of an address that follow from other fields. */
static void
assert_consistent(const struct kvt__s3_address *a)
{
    char expected[4096], prefix[2048];
    size_t n = strlen(a->bucket_path), n_prefix = strlen(a->prefix);
    const char *port = strrchr(a->host, ':');

    assert_true(kvt__s3_encode(a->prefix, n_prefix, true, prefix, sizeof prefix) >= 0);
    snprintf(expected, sizeof expected, "%s%s%s", a->bucket_path,
             a->bucket_path[n - 1] == '/' ? "" : "/", prefix);
    assert_string_equal(a->object_path, expected);
    assert_true(!n_prefix || a->prefix[n_prefix - 1] == '/');
    assert_memory_equal(a->host, a->name, strlen(a->name));
    if (port && port > a->host + strlen(a->name) - 1)
        assert_int_equal(atoi(port + 1), a->port);
    else
        assert_int_equal(a->port, a->tls ? 443 : 80);
}

static void
assert_row(char *cells[MAX_CELLS])
{
    struct kvt__s3_address_params place = { .rest = cells[0] + strlen("s3://") };
    struct kvt__s3_address a;
    char url[4096];

    read_settings(cells[1], &place);
    if (kvt__s3_address("remote_url", &place, &a))
        fail_msg("%s: %s", cells[0], kvt__why());
    snprintf(url, sizeof url, "%s://%s%s", a.tls ? "https" : "http", a.host, a.object_path);
    assert_string_equal(url, cells[2]);
    assert_string_equal(a.bucket, cells[3]);
    assert_string_equal(a.region, cells[4]);
    assert_string_equal(a.express ? "yes" : "", cells[5]);
    assert_consistent(&a);
}

static void
assert_row_refused(char *cells[MAX_CELLS])
{
    struct kvt__s3_address_params place = { .rest = cells[0] + strlen("s3://") };
    struct kvt__s3_address a;

    read_settings(cells[1], &place);
    if (kvt__s3_address("remote_url", &place, &a) != -EINVAL)
        fail_msg("%s is not refused", cells[0]);
    if (!*cells[2] || !strstr(kvt__why(), cells[2]))
        fail_msg("%s: '%s' says nothing of '%s'", cells[0], kvt__why(), cells[2]);
    assert_null(strstr(kvt__why(), "secret"));
}

static void
the_table_of_addresses_in_the_page_is_right(void **state)
{
    (void)state;
    FILE *f = fopen(page, "re");
    size_t n_rows[2] = { 0, 0 };
    char line[1024], *cells[MAX_CELLS];

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "| `s3://", 8))
            continue;
        size_t n = split_row(line, cells);
        assert_true(n == 6 || n == 3);
        if (n == 6)
            assert_row(cells);
        else
            assert_row_refused(cells);
        n_rows[n == 3]++;
    }
    fclose(f);
    assert_true(n_rows[0] >= 40 && n_rows[1] >= 25);
}

/* --------------------------------------------------------------- other cases */

static struct kvt__s3_address
address(const char *rest, const char *endpoint, const char *region)
{
    const struct kvt__s3_address_params place = { .rest = rest, .endpoint_url = endpoint,
                                         .region = region };
    struct kvt__s3_address a;

    if (kvt__s3_address("remote_url", &place, &a))
        fail_msg("%s: %s", rest, kvt__why());
    return a;
}

static void
plain_http_by_domain_is_reported(void **state)
{
    (void)state;

    assert_true(address("kv.cwlota.com", NULL, NULL).plain_by_host);
    assert_true(address("kv", "cwlota.com", NULL).plain_by_host);
    assert_false(address("kv", "http://cwlota.com", NULL).plain_by_host);
    assert_false(address("kv.cwobject.com", NULL, NULL).plain_by_host);
    struct kvt__s3_address_params place = { .rest = "kv.cwlota.com", .tls = KVT__S3_TLS_OFF };
    struct kvt__s3_address a;
    assert_int_equal(kvt__s3_address("remote_url", &place, &a), 0);
    assert_false(a.plain_by_host || a.tls);
}

static void
hosts_of_aws_are_known(void **state)
{
    (void)state;

    assert_true(address("kv-cache", NULL, "us-east-1").aws);
    assert_true(address("kv-cache.S3.US-EAST-1.AMAZONAWS.com/x", "", "").aws);
    assert_false(address("kv.example.com", NULL, NULL).aws);
    assert_false(address("kv.notamazonaws.com", NULL, NULL).aws);
    assert_false(address("kv.s3.us-east-1.amazonaws.com.example.com", NULL, NULL).aws);
    assert_false(address("ec2-1-2-3-4.compute.amazonaws.com", NULL, NULL).aws);
}

static void
names_resolve_as_set(void **state)
{
    (void)state;
    static const struct {
        const char *resolve, *address; /* NULL: rejected */
    } rows[] = {
        { "s3.example.com:9000:10.0.0.1", "10.0.0.1" },
        { "S3.Example.com:9000:10.0.0.1", "10.0.0.1" },
        { "other:9000:10.0.0.1,s3.example.com:9000:[fd00::1], s3.example.com:9000:10.0.0.3",
          "fd00::1" },
        { "s3.example.com:9000:fd00::2", "fd00::2" },
        { "s3.example.com:443:10.0.0.1", "" },
        { "[::1]:9000:10.0.0.1", "" },
        { "s3.example.com", NULL },
        { "s3.example.com:9000", NULL },
        { "s3.example.com:9000:", NULL },
        { "s3.example.com:9000:[]", NULL },
        { "s3.example.com:9000:elsewhere", NULL },
        { "s3.example.com:9000:10.0.0.1,", NULL },
        { "s3.example.com:9000:10.0.0.1:5", NULL },
        { "s3.example.com:x:10.0.0.1", NULL },
        { "s3.example.com::10.0.0.1", NULL },
        { ":9000:10.0.0.1", NULL },
        { "[::1:9000:10.0.0.1", NULL },
        { "-s3.example.com:9000:10.0.0.1,bad", NULL },
        { "s3.example.com:9000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:00",
          NULL },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvt__s3_address_params place = { .rest = "s3.example.com:9000/kv-cache",
                                       .resolve = rows[i].resolve };
        struct kvt__s3_address a;
        int rc = kvt__s3_address("remote_url", &place, &a);
        if (rows[i].address) {
            assert_int_equal(rc, 0);
            assert_string_equal(a.address, rows[i].address);
        } else {
            assert_int_equal(rc, -EINVAL);
            assert_non_null(strstr(kvt__why(), "s3_resolve"));
        }
    }
}

/* Each length of each part either fits or is rejected. */
static void
long_parts_fit_or_are_refused(void **state)
{
    (void)state;
    char text[4096], rest[4200];
    struct kvt__s3_address a;
    int n_refused = 0;

    memset(text, '@', sizeof text);
    for (size_t n = 1; n < 700; n++) {
        text[n] = '\0';
        struct kvt__s3_address_params place = { .rest = rest, .region = "r", .file_prefix = text };
        struct kvt__s3_address_params at = { .rest = "kv/@@@", .endpoint_url = rest,
                                             .region = "r" };
        snprintf(rest, sizeof rest, "10.0.0.1/%063d", 0);
        if (!kvt__s3_address("remote_url", &place, &a))
            assert_consistent(&a);
        n_refused += n > 510;
        assert_int_equal(strlen(a.prefix), n > 510 ? 0 : n + 1);
        memset(text, 'a', n);
        snprintf(rest, sizeof rest, "http://h/%s", text);
        if (!kvt__s3_address("remote_url", &at, &a))
            assert_consistent(&a);
        else
            assert_true(n > 500);
        snprintf(rest, sizeof rest, "h:1/%s", text);
        place.file_prefix = NULL;
        assert_int_equal(kvt__s3_address("remote_url", &place, &a), n > 63 ? -EINVAL : 0);
        snprintf(rest, sizeof rest, "%s.s3.us-east-1.amazonaws.com", text);
        assert_int_equal(kvt__s3_address("remote_url", &place, &a),
                         n > 63 || n < 3 ? -EINVAL : 0);
        snprintf(rest, sizeof rest, "h:1/b");
        place.region = text;
        assert_int_equal(kvt__s3_address("remote_url", &place, &a), n > 63 ? -EINVAL : 0);
        memset(text, '@', sizeof text);
    }
    assert_true(n_refused > 0);
}

/* ----------------------------------------------------------------- redirects */

static const struct {
    const char *rest, *endpoint; /* settings */
    const char *to, *region;     /* the redirect in the response */
    const char *keys, *in;       /* expected URL and region; NULL: rejected */
} redirects[] = {
    /* Another region at AWS: the redirect has the host with or without the bucket, the region, or
     * both. */
    { "kv-cache", NULL, "kv-cache.s3.eu-west-1.amazonaws.com", NULL,
      "https://kv-cache.s3.eu-west-1.amazonaws.com/p/", "eu-west-1" },
    { "kv-cache", NULL, "s3.eu-west-1.amazonaws.com", "",
      "https://kv-cache.s3.eu-west-1.amazonaws.com/p/", "eu-west-1" },
    { "kv-cache", NULL, NULL, "eu-west-1", "https://kv-cache.s3.eu-west-1.amazonaws.com/p/",
      "eu-west-1" },
    { "kv-cache", NULL, "kv-cache.s3.amazonaws.com", "eu-west-1",
      "https://kv-cache.s3.amazonaws.com/p/", "eu-west-1" },
    { "kv-cache", NULL, "https://kv-cache.s3-eu-west-1.amazonaws.com/p/key?x", NULL,
      "https://kv-cache.s3-eu-west-1.amazonaws.com/p/", "eu-west-1" },
    { "kv-cache.s3-accelerate.amazonaws.com", NULL, NULL, "eu-west-1",
      "https://kv-cache.s3-accelerate.amazonaws.com/p/", "eu-west-1" },
    { "s3.us-east-1.amazonaws.com/my.kv", NULL, "s3.eu-west-1.amazonaws.com", NULL,
      "https://s3.eu-west-1.amazonaws.com/my.kv/p/", "eu-west-1" },
    { "s3.us-east-1.amazonaws.com/my.kv", NULL, "my.kv.s3.eu-west-1.amazonaws.com", NULL,
      "https://my.kv.s3.eu-west-1.amazonaws.com/p/", "eu-west-1" },
    { "kv-cache", NULL, "", NULL, "https://kv-cache.s3.us-east-1.amazonaws.com/p/",
      "us-east-1" },
    { "kv-cache", NULL, "kv-cache.s3.eusc-de-west-1.amazonaws.eu", NULL, NULL, NULL },
    { "kv-cache.s3.eusc-de-east-1.amazonaws.eu", NULL, "s3.eusc-de-west-1.amazonaws.eu",
      NULL, "https://kv-cache.s3.eusc-de-west-1.amazonaws.eu/p/", "eusc-de-west-1" },
    { "kv-cache.s3.eusc-de-east-1.amazonaws.eu", NULL, "vm.compute.amazonaws.eu", NULL,
      NULL, NULL },
    /* FIPS endpoints redirect to FIPS endpoints only. */
    { "kv-cache.s3-fips.us-east-1.amazonaws.com", NULL, NULL, "us-west-2",
      "https://kv-cache.s3-fips.us-west-2.amazonaws.com/p/", "us-west-2" },
    { "kv-cache.s3-fips.us-east-1.amazonaws.com", NULL,
      "kv-cache.s3-fips.us-west-2.amazonaws.com", NULL,
      "https://kv-cache.s3-fips.us-west-2.amazonaws.com/p/", "us-west-2" },
    { "kv-cache.s3-fips.us-east-1.amazonaws.com", NULL,
      "kv-cache.s3.us-west-2.amazonaws.com", NULL, NULL, NULL },
    /* Another owner at AWS, or another bucket, is rejected. */
    { "kv-cache", NULL, "other.s3.eu-west-1.amazonaws.com", NULL, NULL, NULL },
    { "kv-cache", NULL, "ec2-1-2-3-4.compute.amazonaws.com", NULL, NULL, NULL },
    { "kv-cache", NULL, "kv-cache.s3.cn-north-1.amazonaws.com.cn", NULL, NULL, NULL },
    { "kv-cache", NULL, "kv-cache.s3.eu-west-1.amazonaws.com.example.com", NULL, NULL,
      NULL },
    { "kv-cache", NULL, "kv-cache.cwobject.com", NULL, NULL, NULL },
    { "kv-cache", NULL, "10.0.0.1", NULL, NULL, NULL },
    { "kv-cache", NULL, "http://kv-cache.s3.eu-west-1.amazonaws.com", NULL, NULL, NULL },
    { "kv-cache", NULL, NULL, "x.example.com/", NULL, NULL },
    { "kv-cache", NULL, NULL, "a b", NULL, NULL },
    { "kv-cache", NULL, NULL, "other.s3.eu-west-1", NULL, NULL },
    { "kv-cache.cwobject.com", NULL, "other.cwobject.com", NULL, NULL, NULL },
    { "kv-cache.cwobject.com", NULL, "kv-cache.b.cwobject.com", NULL,
      "https://kv-cache.b.cwobject.com/p/", "us-east-1" },
    { "kv.s3.example.com", "https://s3.example.com", "other.s3.example.com", NULL, NULL,
      NULL },
    { "kv.s3.example.com", "https://s3.example.com", "b.example.com", NULL, NULL, NULL },
    { "kv.s3.example.com", "https://s3.example.com", "kv.b.example.com", NULL,
      "https://kv.b.example.com/p/", "us-east-1" },
    /* Other stores: the same domain, with the host unchanged. */
    { "kv.example.com", NULL, "node2.example.com:9000", NULL,
      "https://node2.example.com:9000/p/", "us-east-1" },
    { "kv.example.com", NULL, "example.com", "eu", "https://example.com/p/", "eu" },
    { "kv", "http://a.example.com:9000", "http://b.example.com/kv/p/key", NULL,
      "http://b.example.com/kv/p/", "us-east-1" },
    { "kv", "http://a.example.com:9000", "b.example.com", NULL,
      "http://b.example.com:9000/kv/p/", "us-east-1" },
    { "kv", "http://a.example.com:9000/base", NULL, "eu",
      "http://a.example.com:9000/base/kv/p/", "eu" },
    { "kv", "http://10.0.0.1:9000", "http://10.0.0.1:9001", NULL,
      "http://10.0.0.1:9001/kv/p/", "us-east-1" },
    { "kv", "http://minio:9000", "minio:9001", NULL, "http://minio:9001/kv/p/",
      "us-east-1" },
    { "kv", "http://minio:9000", "minio2:9000", NULL, NULL, NULL },
    { "kv", "http://10.0.0.1:9000", "10.0.0.2:9000", NULL, NULL, NULL },
    { "kv.example.com", NULL, "kv.example.org", NULL, NULL, NULL },
    { "kv.example.com", NULL, "notexample.com", NULL, NULL, NULL },
    { "kv.example.com", NULL, "com", NULL, NULL, NULL },
    { "kv.example.co.uk", NULL, "kv.other.co.uk", NULL, NULL, NULL },
    { "kv.example.co.uk", NULL, "b.example.co.uk", NULL, "https://b.example.co.uk/p/",
      "us-east-1" },
    { "kv.example.com", NULL, "user:pw@kv.example.com", NULL, NULL, NULL },
    /* In Kubernetes each namespace is a separate owner. */
    { "minio.team-a.svc.cluster.local", NULL, "minio.team-b.svc.cluster.local", NULL, NULL,
      NULL },
    { "minio.team-a.svc.cluster.local", NULL, "team-b.svc.cluster.local", NULL, NULL,
      NULL },
    { "minio.team-a.svc.k8s.example.com", NULL, "minio.team-b.svc.k8s.example.com", NULL,
      NULL, NULL },
    { "minio.team-a.svc.k8s.example.com", NULL, "www.example.com", NULL, NULL, NULL },
    { "minio.team-a.svc", NULL, "minio.team-b.svc", NULL, NULL, NULL },
    { "minio.team-a.svc.cluster.local", NULL, "0.hl.team-a.svc.cluster.local", NULL,
      "https://0.hl.team-a.svc.cluster.local/p/", "us-east-1" },
    { "kv.svc.example.com", NULL, "b.example.com", NULL, "https://b.example.com/p/",
      "us-east-1" },
    { "kv.example.com", NULL, "https:///", NULL, NULL, NULL },
};

static void
redirects_stay_in_the_owners_domain(void **state)
{
    (void)state;

    for (size_t i = 0; i < sizeof redirects / sizeof *redirects; i++) {
        struct kvt__s3_address_params place = { .rest = redirects[i].rest, .file_prefix = "p",
                                       .endpoint_url = redirects[i].endpoint };
        struct kvt__s3_address was, now;
        char url[4096];
        if (kvt__s3_address("remote_url", &place, &was)) {
            place.region = "us-east-1";
            assert_int_equal(kvt__s3_address("remote_url", &place, &was), 0);
        }
        strcpy(was.address, "10.0.0.9");
        int rc = kvt__s3_readdress(&was, redirects[i].to, redirects[i].region, &now);
        if (!redirects[i].keys) {
            assert_int_equal(rc, -EXDEV);
            assert_null(strstr(kvt__why(), "pw"));
            continue;
        }
        if (rc)
            fail_msg("%s to %s: %s", was.name, redirects[i].to, kvt__why());
        snprintf(url, sizeof url, "%s://%s%s", now.tls ? "https" : "http", now.host,
                 now.object_path);
        assert_string_equal(url, redirects[i].keys);
        assert_string_equal(now.region, redirects[i].in);
        assert_string_equal(now.bucket, was.bucket);
        assert_string_equal(now.address, strcmp(now.host, was.host) ? "" : was.address);
        assert_consistent(&now);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_addresses_in_the_page_is_right),
        cmocka_unit_test(plain_http_by_domain_is_reported),
        cmocka_unit_test(hosts_of_aws_are_known),
        cmocka_unit_test(names_resolve_as_set),
        cmocka_unit_test(long_parts_fit_or_are_refused),
        cmocka_unit_test(redirects_stay_in_the_owners_domain),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s docs/s3.md\n", argv[0]);
        return 2;
    }
    page = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
