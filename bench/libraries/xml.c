/* SPDX-License-Identifier: Apache-2.0
 *
 * A page of ListObjectsV2 with 1000 objects: kvtier's scanner, and a reader over expat with the
 * same promises: the document is complete and valid before the first object is reported, a type
 * declaration is an error, and the depth is limited. */
#include <expat.h>
#include <string.h>

#include "base/clock.h"
#include "measure.h"
#include "tier/s3/encode.h"
#include "tier/s3/xml-scan.h"
#include "tier/s3/xml.h"

#define N_OBJECTS 1000u
#define MAX_TEXT 4096

static char page[1u << 20], copy[1u << 20];
static size_t n_page, n_listed;

static void
on_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    (void)ctx;
    n_listed += *listed->key && listed->bytes && listed->modified_ns;
}

static void
make_page(void)
{
    char *at = page;

    at += sprintf(at, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns="
                  "\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>kv-cache</Name>"
                  "<Prefix>team-a%%2F</Prefix><NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbY"
                  "</NextContinuationToken><MaxKeys>1000</MaxKeys><EncodingType>url"
                  "</EncodingType><IsTruncated>true</IsTruncated>");
    for (unsigned i = 0; i < N_OBJECTS; i++)
        at += sprintf(at, "<Contents><Key>team-a%%2Fmeta-llama_Llama-3.1-70B-Instruct%%408%%40"
                      "%u%%40%016llx%%40bfloat16</Key><LastModified>2026-11-%02uT01:02:03.456Z"
                      "</LastModified><ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag>"
                      "<ChecksumAlgorithm>CRC32C</ChecksumAlgorithm><ChecksumType>FULL_OBJECT"
                      "</ChecksumType><Size>33554432</Size><StorageClass>STANDARD"
                      "</StorageClass></Contents>", i % 8,
                      0x9e3779b97f4a7c15ull * (i + 1), i % 28 + 1);
    at += sprintf(at, "</ListBucketResult>");
    n_page = (size_t)(at - page);
}

/* Prepare a round: the scanner overwrites the document, so both readers read a copy. */
static void
begin(void)
{
    memcpy(copy, page, n_page);
    n_listed = 0;
}

static void
end(bool is_valid)
{
    if (is_valid && n_listed == N_OBJECTS)
        return;
    puts("the page was not read");
    exit(1);
}

static void
run_scanner(void *ctx)
{
    char token[2048];

    (void)ctx;
    begin();
    end(!kvt__s3_read_list(copy, n_page, on_listed, NULL, token, sizeof token));
}

/* ----------------------------------------------------------------------- expat */

static struct reader {
    XML_Parser parser;
    char open[KVT__XML_MAX_DEPTH][64];
    unsigned depth;
    bool is_leaf;
    size_t n;
    char text[MAX_TEXT], key[MAX_TEXT];
    bool is_encoded, is_truncated;
    struct kvt__s3_listed object;
} reader;

static void
refuse(void)
{
    XML_StopParser(reader.parser, XML_FALSE);
}

static void
on_open(void *ctx, const XML_Char *name, const XML_Char **attributes)
{
    const char *colon = strchr(name, ':');

    (void)ctx;
    (void)attributes;
    if (reader.depth == KVT__XML_MAX_DEPTH) {
        refuse();
        return;
    }
    snprintf(reader.open[reader.depth++], sizeof *reader.open, "%s", colon ? colon + 1 : name);
    reader.is_leaf = true;
    reader.n = 0;
}

static void
on_text(void *ctx, const XML_Char *text, int n)
{
    (void)ctx;
    if (!reader.is_leaf)
        return;
    if (reader.n + (size_t)n >= sizeof reader.text) {
        refuse();
        return;
    }
    memcpy(reader.text + reader.n, text, (size_t)n);
    reader.n += (size_t)n;
}

static void
on_doctype(void *ctx, const XML_Char *name, const XML_Char *system_id,
           const XML_Char *public_id, int has_subset)
{
    (void)ctx;
    (void)name;
    (void)system_id;
    (void)public_id;
    (void)has_subset;
    refuse();
}

/* Return the name of the closed element, and end its text. */
static const char *
close_element(void)
{
    reader.text[reader.is_leaf ? reader.n : 0] = '\0';
    reader.is_leaf = false;
    return reader.open[--reader.depth];
}

/* The first pass: stores differ in the position of EncodingType. */
static void
on_first_close(void *ctx, const XML_Char *name)
{
    (void)ctx;
    (void)name;
    if (!strcmp(close_element(), "EncodingType"))
        reader.is_encoded = !strcmp(reader.text, "url");
}

static void
read_key(void)
{
    strcpy(reader.key, reader.text);
    for (char *at = reader.key; reader.is_encoded && (at = strchr(at, '+'));)
        *at = ' ';
    int n = reader.is_encoded ? kvt__s3_decode(reader.key, strlen(reader.key)) : 0;
    if (n < 0)
        refuse();
    else if (reader.is_encoded)
        reader.key[n] = '\0';
    reader.object.key = reader.key;
}

static void
on_close(void *ctx, const XML_Char *name)
{
    (void)ctx;
    (void)name;
    const char *element = close_element();
    bool in_object = reader.depth == 2 && !strcmp(reader.open[1], "Contents");

    if (in_object && !strcmp(element, "Key"))
        read_key();
    else if (in_object && !strcmp(element, "Size"))
        reader.object.bytes = strtoull(reader.text, NULL, 10);
    else if (in_object && !strcmp(element, "LastModified"))
        reader.object.modified_ns = kvt__s3_time(reader.text, NULL) * KVT__NS_PER_S;
    else if (reader.depth == 1 && !strcmp(element, "Contents"))
        on_listed(NULL, &reader.object);
    else if (reader.depth == 1 && !strcmp(element, "IsTruncated"))
        reader.is_truncated = !strcmp(reader.text, "true");
}

static bool
parse(XML_EndElementHandler on_end)
{
    reader.depth = 0;
    reader.parser = XML_ParserCreate(NULL);
    XML_SetElementHandler(reader.parser, on_open, on_end);
    XML_SetCharacterDataHandler(reader.parser, on_text);
    XML_SetStartDoctypeDeclHandler(reader.parser, on_doctype);
    bool is_valid = XML_Parse(reader.parser, copy, (int)n_page, 1) == XML_STATUS_OK;
    XML_ParserFree(reader.parser);
    return is_valid;
}

static void
run_expat(void *ctx)
{
    (void)ctx;
    begin();
    end(parse(on_first_close) && parse(on_close));
}

/* ------------------------------------------------- documents that stores send */

/* Print if both readers accept a key that a user can store and a store can list. */
static void
print_key(const char *what, const char *key)
{
    char token[2048];

    n_page = (size_t)sprintf(page, "<ListBucketResult><Contents><Key>%s</Key><Size>1</Size>"
                             "</Contents></ListBucketResult>", key);
    begin();
    bool in_expat = parse(on_close);
    begin();
    int err = kvt__s3_read_list(copy, n_page, on_listed, NULL, token, sizeof token);
    printf("%-52s expat %s, kvtier %s\n", what, in_expat ? "accepts" : "refuses",
           err ? "refuses" : "accepts");
}

int
main(void)
{
    make_page();
    measure("list of 1000 objects: kvtier", run_scanner, NULL, N_OBJECTS, "object");
    measure("list of 1000 objects: expat", run_expat, NULL, N_OBJECTS, "object");
    print_key("a key with a control character", "a&#1;b");
    print_key("a key that is not UTF-8", "a\xff" "b");
    return 0;
}
