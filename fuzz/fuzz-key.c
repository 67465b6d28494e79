/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: key text.  A parsed key prints as the parsed text; an encoded key is a single file
 * name; an encoded name of a decoded name is the name again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "key/key.h"
#include "store/private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

/* Check that space and hash make the key again. */
static void
parse(const char *text)
{
    char *printed = malloc(KVT__KEY_TEXT_MAX + 1);
    struct kvt__space space;
    struct kvt__hash hash;

    if (printed && !kvt__space_from_key(text, &space, &hash))
        expect(!kvt__space_key(space.text, &hash, printed, KVT__KEY_TEXT_MAX + 1) &&
               !strcmp(printed, text));
    free(printed);
}

static void
encode(const char *text, enum kvt__key_encoding how, size_t size)
{
    char *name = malloc(size ? size : 1), back[1024];

    if (!name)
        return;
    int n = kvt__key_encode(text, how, name, size);
    if (n >= 0) {
        expect((size_t)n < size && strlen(name) == (size_t)n && n > 0);
        expect(!strchr(name, '/') && strcmp(name, ".") && strcmp(name, ".."));
        int n_back = kvt__key_decode(name, how, back, sizeof back);
        if (how == KVT__KEY_PERCENT)
            expect(n_back >= 0 && !strcmp(back, text));
    }
    n = kvt__key_decode(text, how, name, size);
    if (n >= 0) {
        expect((size_t)n < size && strlen(name) == (size_t)n);
        n = kvt__key_encode(name, how, back, sizeof back);
        expect(n < 0 || !strcmp(back, text));
    }
    free(name);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvt__hash_chain chain;
    char *text;

    if (!size || !(text = malloc(size)))
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    parse(text);
    for (int how = KVT__KEY_FS; how <= KVT__KEY_PERCENT; how++)
        encode(text, how, data[0]);
    kvt__hash_start(&chain, KVT__HASH_BUILTIN, text);
    free(text);
    return 0;
}
