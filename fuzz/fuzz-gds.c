/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: the header of a file of gds_path, and names in its directories.  An input is { 0,
 * text of a header } or { another byte, a name, NUL, header bytes }.  The target adds length and
 * padding to the text, so that mutations reach the text's fields. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "tier/gds/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

static void
read_header(const uint8_t *data, size_t size, bool text)
{
    unsigned char *header = malloc(KVT__GDS_HEADER_BYTES); /* allocated, so that a sanitizer
                                                            * checks the end */
    size_t room = KVT__GDS_HEADER_BYTES - (text ? 8 : 0);
    struct kvt__found found = { 0 };

    expect(header != NULL);
    memset(header, ' ', KVT__GDS_HEADER_BYTES);
    memcpy(header + KVT__GDS_HEADER_BYTES - room, data, size < room ? size : room);
    if (text)
        kvt__put_le64(header, KVT__GDS_HEADER_BYTES - 8);
    int err = kvt__gds_header_get(header, &found);
    expect(!err || err == -EBADMSG || err == -ENOENT);
    expect(!found.has_id || !err);
    expect(found.payload_bytes <= INT64_MAX);
    free(header);
}

static void
read_name(const char *name)
{
    char again[KVT__FILE_NAME_BYTES], chunk[KVT__FILE_NAME_BYTES];
    char key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;

    if (!kvt__layout_key(&kvt__layout_gds, name, key, sizeof key, &parts) &&
        !kvt__layout_name(&kvt__layout_gds, key, &parts.hash, again, sizeof again))
        expect(!strcmp(again, name));
    if (kvt__layout_other(&kvt__layout_gds, name, chunk) != KVT__OTHER_NONE)
        expect(!kvt__layout_key(&kvt__layout_gds, chunk, key, sizeof key, &parts) &&
               !strncmp(chunk, name, strlen(chunk)));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (!data[0]) {
        read_header(data + 1, size - 1, true);
        return 0;
    }
    size_t n = strnlen((const char *)data + 1, size - 1);
    char *name = malloc(n + 1);
    expect(name != NULL);
    memcpy(name, data + 1, n);
    name[n] = '\0';
    read_name(name);
    free(name);
    if (n + 2 <= size)
        read_header(data + 2 + n, size - 2 - n, false);
    return 0;
}
