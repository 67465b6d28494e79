/* SPDX-License-Identifier: Apache-2.0
 *
 * Encode key texts as names of files and objects, and choose a key's directory.  A name contains
 * no '/', so a file never lies outside its directory.  Any thread. */
#include "key/key.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

static const char separator[] = "-SEP-";
static const char hex_digits[] = "0123456789ABCDEF";

/* A text that grows in a buffer of fixed size. */
struct sink {
    char *at;
    size_t n;
    size_t size;
    bool full;
};

static void
put(struct sink *s, const char *bytes, size_t n)
{
    if (s->full || n >= s->size - s->n) {
        s->full = true;
        return;
    }
    memcpy(s->at + s->n, bytes, n);
    s->n += n;
}

static void
put_byte(struct sink *s, char c)
{
    put(s, &c, 1);
}

/* Terminate the text in the sink.  what: the input, for the message.  Return the length, or
 * -ENAMETOOLONG with a sentence. */
static int
finish(struct sink *s, const char *what)
{
    if (s->full)
        return kvt__fail(ENAMETOOLONG, "'%.160s', spelled for or by its store, "
                                       "does not fit into %zu bytes.",
                         what, s->size);
    s->at[s->n] = '\0';
    return (int)s->n;
}

static bool
is_name(const char *name)
{
    return name[0] && strcmp(name, ".") && strcmp(name, "..");
}

/* Return true if Python's quote(text, safe="") keeps the character. */
static bool
is_safe(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' ||
           c == '~';
}

static void
put_percent(struct sink *s, char c)
{
    uint8_t byte = (uint8_t)c;
    char spelled[3] = {'%', hex_digits[byte >> 4], hex_digits[byte & 15]};

    put(s, spelled, sizeof spelled);
}

int
kvt__key_encode(const char *text, enum kvt__key_encoding how, char *out,
                size_t size)
{
    struct sink s = {.at = out, .size = size, .full = size == 0};

    if (!is_name(text))
        return kvt__fail(EINVAL, "'%s' is not a key text.", text);
    for (const char *at = text; *at && !s.full; at++) {
        if (how == KVT__KEY_PERCENT && !is_safe(*at))
            put_percent(&s, *at);
        else if (*at != '/')
            put_byte(&s, *at);
        else if (how == KVT__KEY_FS)
            put(&s, separator, sizeof separator - 1);
        else
            put_byte(&s, how == KVT__KEY_S3 ? '_' : '-');
    }
    return finish(&s, text);
}

/* Return the value of a digit, upper case as in put_percent(), or -1. */
static int
hex_digit(char c)
{
    const char *at = c ? strchr(hex_digits, c) : NULL;

    return at ? (int)(at - hex_digits) : -1;
}

/* Return the byte of the sequence "%XX"; 0: the encoder never writes this sequence. */
static char
unpercent(const char *at)
{
    int high = hex_digit(at[1]);
    int low = high < 0 ? -1 : hex_digit(at[2]);

    if (low < 0)
        return '\0';
    char c = (char)(high << 4 | low);
    return is_safe(c) ? '\0' : c;
}

int
kvt__key_decode(const char *name, enum kvt__key_encoding how, char *out,
                size_t size)
{
    struct sink s = {.at = out, .size = size, .full = size == 0};
    const char *at = name;

    if (how != KVT__KEY_FS && how != KVT__KEY_PERCENT)
        return kvt__fail(ENOTSUP, "a name in this kind of store does not contain the "
                                  "whole key.");
    if (!is_name(name))
        return kvt__fail(EINVAL, "'%s' is not the name of a chunk.", name);
    while (*at && !s.full) {
        if (how == KVT__KEY_FS && *at == *separator &&
            !strncmp(at, separator, sizeof separator - 1)) {
            put_byte(&s, '/');
            at += sizeof separator - 1;
        } else if (how == KVT__KEY_FS ? *at != '/' : is_safe(*at)) {
            put_byte(&s, *at++);
        } else if (how == KVT__KEY_PERCENT && *at == '%' && unpercent(at)) {
            put_byte(&s, unpercent(at));
            at += 3;
        } else {
            return kvt__fail(EINVAL, "'%.160s' is not the name of a chunk.", name);
        }
    }
    return finish(&s, name);
}

size_t
kvt__key_fs_path(const struct kvt__hash *hash, size_t n_paths)
{
    uint64_t magnitude = hash->bits[0];

    assert(n_paths > 0);
    if (hash->form == KVT__HASH_SIGNED && (int64_t)magnitude < 0)
        magnitude = 0 - magnitude;
    return (size_t)(magnitude % n_paths);
}

size_t
kvt__key_sharder_path(const struct kvt__hash *hash, size_t n_paths)
{
    uint64_t z = hash->bits[0];

    assert(n_paths > 0);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (size_t)((z ^ z >> 31) % n_paths);
}
