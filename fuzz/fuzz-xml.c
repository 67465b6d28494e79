/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a storage's response with arbitrary bytes, parsed as each kind of document. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tier/s3/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

/* Check that a text of the document is shorter than the document. */
static void
see_text(size_t size, const char *text)
{
    expect(strlen(text) < size);
}

static void
see_listed(void *ctx, const struct kvt__s3_listed *listed)
{
    see_text(*(const size_t *)ctx, listed->key);
    expect(*listed->key && listed->bytes <= INT64_MAX && listed->modified_ns >= 0);
}

static void
see_failed(void *ctx, const char *key, const char *code, const char *message)
{
    see_text(*(const size_t *)ctx, key);
    see_text(*(const size_t *)ctx, code);
    see_text(*(const size_t *)ctx, message);
}

static void
read_as(int kind, char *xml, size_t size)
{
    struct kvt__s3_xml_credentials credentials;
    struct kvt__s3_error error;
    char text[32];

    switch (kind) {
    case 0:
        if (!kvt__s3_read_error(xml, size, &error))
            expect(strlen(error.code) < sizeof error.code &&
                   strlen(error.message) < sizeof error.message &&
                   !strpbrk(error.message, "\r\n"));
        break;
    case 1:
        if (!kvt__s3_read_list(xml, size, see_listed, &size, text, sizeof text))
            expect(strlen(text) < sizeof text);
        break;
    case 2:
        kvt__s3_read_deleted(xml, size, see_failed, &size);
        break;
    default:
        if (!kvt__s3_read_credentials(xml, size, &credentials)) {
            see_text(size, credentials.access);
            see_text(size, credentials.secret);
            see_text(size, credentials.token);
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int kind = 0; kind < 4; kind++) {
        char *copy = malloc(size ? size : 1);
        expect(copy != NULL);
        memcpy(copy, data, size);
        read_as(kind, copy, size);
        free(copy);
    }
    return 0;
}
