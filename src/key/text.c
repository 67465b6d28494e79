/* SPDX-License-Identifier: Apache-2.0
 *
 * Parse and write key text.  Only the exact form that LMCache prints is accepted (no padding, no
 * upper case): then the key of a listed file leads back to the file's name.  Any thread. */
#include "key/key.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* A part of a text, between two '@'. */
struct span {
    const char *at;
    size_t n;
};

static const char *const dtypes[] = {
    "half",       "bfloat16",     "float",      "double",         "int8",
    "uint8",      "int16",        "int32",      "int64",          "bool",
    "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2",   "fp8_e5m2fnuz",
};

bool
kvt__key_dtype_known(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtype, dtypes[i]))
            return true;
    return false;
}

/* Return true for ASCII characters that Python's str.strip() removes. */
static bool
is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
}

static int
fail_parse(const char *text, const char *what)
{
    return kvt__fail(EINVAL, "key text '%.160s': %s.", text, what);
}

/* Remove the text up to the next '@' from rest, and return the text.  After the last part,
 * rest->at is NULL. */
static struct span
take_part(struct span *rest)
{
    const char *at = memchr(rest->at, '@', rest->n);
    struct span part = *rest;

    if (at) {
        part.n = (size_t)(at - part.at);
        *rest = (struct span){at + 1, rest->n - part.n - 1};
    } else {
        *rest = (struct span){NULL, 0};
    }
    return part;
}

static bool
copy(char *to, size_t size, struct span part)
{
    if (part.n >= size)
        return false;
    memcpy(to, part.at, part.n);
    to[part.n] = '\0';
    return true;
}

static bool
all_digits(struct span part)
{
    for (size_t i = 0; i < part.n; i++)
        if (part.at[i] < '0' || part.at[i] > '9')
            return false;
    return part.n > 0;
}

static bool
parse_decimal(struct span part, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;

    if (!all_digits(part) || (part.at[0] == '0' && part.n > 1))
        return false;
    for (size_t i = 0; i < part.n; i++) {
        uint64_t digit = (uint64_t)(part.at[i] - '0');
        if (v > (max - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *out = v;
    return true;
}

static bool
parse_u32(struct span part, uint32_t *out)
{
    uint64_t v;

    if (!parse_decimal(part, UINT32_MAX, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

static bool
all_hex(struct span part)
{
    for (size_t i = 0; i < part.n; i++) {
        char c = part.at[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
    }
    return part.n > 0;
}

/* Return the value of at most 16 digits; all_hex() must be true. */
static uint64_t
hex_value(struct span part)
{
    uint64_t v = 0;

    for (size_t i = 0; i < part.n; i++) {
        char c = part.at[i];
        v = v << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return v;
}

static bool
parse_hash(struct span part, struct kvt__hash *out)
{
    bool negative = part.n && part.at[0] == '-';

    if (negative)
        part = (struct span){part.at + 1, part.n - 1};
    if (!all_hex(part))
        return false;
    if (part.n == KVT__HASH_DIGITS && !negative) {
        for (size_t i = 0; i < KVT__HASH_WORDS; i++)
            out->bits[i] = hex_value((struct span){part.at + 16 * i, 16});
        out->form = KVT__HASH_WIDE;
        return true;
    }
    if (part.n > 16 || (part.at[0] == '0' && (part.n > 1 || negative)))
        return false;
    uint64_t v = hex_value(part);
    if (negative && v > UINT64_C(1) << 63)
        return false;
    out->bits[0] = negative ? 0 - v : v;
    out->form = !negative && v > INT64_MAX ? KVT__HASH_UNSIGNED : KVT__HASH_SIGNED;
    return true;
}

/* Return true if each tag contains '%'. */
static bool
are_tags_valid(struct span tags)
{
    while (tags.at) {
        struct span tag = take_part(&tags);
        if (!memchr(tag.at, '%', tag.n))
            return false;
    }
    return true;
}

static bool
is_own_tag(struct span tag)
{
    size_t n = strlen(KVT__KEY_OWN_TAG);

    return tag.n >= n && !memcmp(tag.at, KVT__KEY_OWN_TAG, n);
}

/* Return true if a line of a log or a listing cannot show the text. */
static bool
has_control(struct span text)
{
    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char)text.at[i] < ' ' || text.at[i] == 0x7f)
            return true;
    return false;
}

/* Tags are the end of key text, and kvt__key_parse() would drop blanks at the end. */
int
kvt__key_check_tags(const char *tags, size_t max_bytes)
{
    struct span rest = { tags, strlen(tags) };

    if (!rest.n)
        return 0;
    if (has_control(rest))
        return kvt__fail(EINVAL, "tags: control characters are not possible.");
    if (rest.n > max_bytes)
        return kvt__fail(EINVAL, "tags '%.160s': %zu bytes, at most %zu are possible.",
                         tags, rest.n, max_bytes);
    if (is_blank(rest.at[rest.n - 1]))
        return kvt__fail(EINVAL, "tags '%.160s': the last one ends in a blank.", tags);
    while (rest.at) {
        struct span tag = take_part(&rest);

        if (!tag.n || *tag.at == '%' || !memchr(tag.at, '%', tag.n))
            return kvt__fail(EINVAL, "tags '%.160s': each must be name%%value.", tags);
        if (is_own_tag(tag))
            return kvt__fail(EINVAL, "tags '%.160s': the name kvt is kvtier's own.", tags);
    }
    return 0;
}

bool
kvt__key_has_tags(const char *text)
{
    const char *gap = strstr(text, "@@");
    const char *at = gap ? strchr(gap + 2, '@') : NULL;
    struct span rest = { at ? at + 1 : NULL, at ? strlen(at + 1) : 0 };

    while (rest.at) {
        struct span tag = take_part(&rest);

        if (memchr(tag.at, '%', tag.n) && !is_own_tag(tag))
            return true;
    }
    return false;
}

int
kvt__key_parse(const char *text, struct kvt__key_parts *out)
{
    struct span rest = {text, strlen(text)};
    struct span part[5];
    uint64_t layer;

    *out = (struct kvt__key_parts){.layer = -1};
    while (rest.n && is_blank(*rest.at))
        rest = (struct span){rest.at + 1, rest.n - 1};
    while (rest.n && is_blank(rest.at[rest.n - 1]))
        rest.n--;
    for (int i = 0; i < 5; i++) {
        if (!rest.at)
            return fail_parse(text, "it has fewer than five parts, "
                              "model@world_size@worker_id@hash@dtype");
        part[i] = take_part(&rest);
    }
    if (!part[0].n || !copy(out->model, sizeof out->model, part[0]))
        return fail_parse(text, "the model name must have 1 to 255 bytes");
    if (!parse_u32(part[1], &out->world_size))
        return fail_parse(text, "the world size is not a number below 2^32");
    if (!parse_u32(part[2], &out->worker_id))
        return fail_parse(text, "the worker id is not a number below 2^32");
    if (!parse_hash(part[3], &out->hash))
        return fail_parse(text, "the hash is not lower-case hex of 64 bits without "
                          "padding, nor 64 digits");
    if (!copy(out->dtype, sizeof out->dtype, part[4]) ||
        !kvt__key_dtype_known(out->dtype))
        return fail_parse(text, "the dtype is not one that LMCache writes");
    struct span tags = rest;
    if (rest.at && all_digits(part[0] = take_part(&rest))) {
        if (!parse_decimal(part[0], INT64_MAX, &layer))
            return fail_parse(text, "the layer is not a number below 2^63");
        out->layer = (int64_t)layer;
        tags = rest;
    }
    if (!are_tags_valid(tags))
        return fail_parse(text, "a tag has no '%'");
    if (tags.at && !copy(out->tags, sizeof out->tags, tags))
        return fail_parse(text, "its tags are longer than 255 bytes");
    return 0;
}

void
kvt__hash_text(const struct kvt__hash *hash, char out[KVT__HASH_DIGITS + 1])
{
    const uint64_t *bits = hash->bits;
    bool negative = hash->form == KVT__HASH_SIGNED && (int64_t)bits[0] < 0;

    if (hash->form == KVT__HASH_WIDE)
        snprintf(out, KVT__HASH_DIGITS + 1,
                 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64, bits[0],
                 bits[1], bits[2], bits[3]);
    else
        snprintf(out, KVT__HASH_DIGITS + 1, "%s%" PRIx64, negative ? "-" : "",
                 negative ? 0 - bits[0] : bits[0]);
}

int
kvt__space_key(const char *space_text, const struct kvt__hash *hash, char *out,
               size_t size)
{
    char digits[KVT__HASH_DIGITS + 1];
    const char *gap = strstr(space_text, "@@");

    if (!gap)
        return kvt__fail(EINVAL, "space '%s' has no place for a hash.", space_text);
    kvt__hash_text(hash, digits);
    size_t head = (size_t)(gap + 1 - space_text);
    size_t n = strlen(space_text) + strlen(digits);
    if (n >= size)
        return kvt__fail(ENAMETOOLONG, "key in space '%s'", space_text);
    memcpy(out, space_text, head);
    strcpy(out + head, digits);
    strcat(out, space_text + head);
    return 0;
}

bool
kvt__key_is_opaque(const char *key)
{
    return strstr(key, "@kvt%");
}
