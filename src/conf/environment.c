/* SPDX-License-Identifier: Apache-2.0
 *
 * Read the variables LMCACHE_<KEY> and KVTIER_<KEY> into trees of nodes. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "conf/read.h"

const char *
kvt__variable(const char *const *environment, const char *name)
{
    const char *const *e = environment ? environment : (const char *const *)environ;
    size_t len = strlen(name);

    for (; e && *e; e++)
        if (!strncmp(*e, name, len) && (*e)[len] == '=')
            return *e + len + 1;
    return NULL;
}

/* Return the character of the escape sequence s, which follows a backslash; *n: length of the
 * sequence.  -1: s is not an escape sequence. */
static int
decode_escape(const char *s, size_t *n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = *s ? strchr(from, *s) : NULL;

    *n = 1;
    if (known)
        return (unsigned char)to[known - from];
    if (*s != 'x' || kvt__hex_digit(s[1]) < 0 || kvt__hex_digit(s[2]) < 0)
        return -1;
    *n = 3;
    int c = kvt__hex_digit(s[1]) * 16 + kvt__hex_digit(s[2]);
    return c > 0 && c < 0x80 ? c : -1;
}

/* Decode the content of a Python string literal.  Return false if the content contains the quote,
 * so the text is not a literal. */
static bool
unescape(const char *in, size_t len, char quote, char *out)
{
    size_t n, used = 0;

    for (size_t i = 0; i < len; i++) {
        if (in[i] == quote)
            return false;
        int c = in[i] == '\\' && i + 1 < len ? decode_escape(in + i + 1, &n) : -1;
        if (c < 0) {
            out[used++] = in[i];
            if (in[i] == '\\' && i + 1 < len)
                out[used++] = in[++i];
            continue;
        }
        out[used++] = (char)c;
        i += n;
    }
    out[used] = 0;
    return true;
}

/* Return the value without surrounding blanks, and without surrounding quotes, which some tools
 * add. */
static const char *
unquoted_value(struct kvt__reading *r, const char *value)
{
    size_t len = strlen(value);

    while (len && isspace((unsigned char)*value)) {
        value++;
        len--;
    }
    while (len && isspace((unsigned char)value[len - 1]))
        len--;
    if (len < 2 || (*value != '\'' && *value != '"') || value[len - 1] != *value)
        return kvt__arena_text(&r->memory, value, len);

    char *out = kvt__arena_alloc(&r->memory, len);
    if (!out)
        return "";
    if (unescape(value + 1, len - 2, *value, out))
        return out;
    return kvt__arena_text(&r->memory, value + 1, len - 2);
}

/* Convert the part of a variable's name behind the prefix to a key: CHUNK_SIZE becomes
 * chunk_size.  NULL: there is no such setting. */
static const char *
key_from_variable(struct kvt__reading *r, const char *upper, size_t len)
{
    char *key = (char *)kvt__arena_text(&r->memory, upper, len);

    for (char *c = key; *c; c++) {
        if (*c >= 'a' && *c <= 'z')
            return NULL;
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    }
    if (kvt__find_param(key) || kvt__find_alias(key) ||
        !strcmp(key, "extra_config") || !strncmp(key, "ec_", 3))
        return key;
    return NULL;
}

static void
note_unknown_variable(struct kvt__reading *r, const char *name, const char *prefix)
{
    char buf[96];
    const char *near_name = kvt__nearest_variable(name, prefix, buf, sizeof buf);

    if (near_name)
        kvt__note(r, KVT__UNKNOWN, name, name,
                  "unknown variable %s: did you mean %s?", name, near_name);
    else
        kvt__note(r, KVT__UNKNOWN, name, name, "unknown variable %s.", name);
}

static void
read_prefix(struct kvt__reading *r, enum kvt__source_level level, const char *prefix)
{
    size_t skip = strlen(prefix);
    struct kvt__node *map = kvt__node_new(r, KVT__MAP, "environment");

    for (const char *const *e = r->environment; map && *e; e++) {
        const char *end = strchr(*e, '=');

        if (!end || strncmp(*e, prefix, skip))
            continue;
        const char *name = kvt__arena_text(&r->memory, *e, (size_t)(end - *e));
        if (kvt__is_known_variable(name))
            continue;
        const size_t cut = *name ? skip : 0;
        const char *key = key_from_variable(r, name + cut, strlen(name) - cut);
        if (!key) {
            note_unknown_variable(r, name, prefix);
            continue;
        }
        struct kvt__node *value = kvt__node_scalar(r, unquoted_value(r, end + 1), name);
        if (value)
            kvt__node_add(r, map, key, value);
    }
    r->source[level] = map;
}

void
kvt__keep_environment(struct kvt__reading *r)
{
    struct kvt__arena *memory = &r->config->memory;
    size_t n = 0;

    if (r->environment == (const char *const *)environ)
        return;
    while (r->environment[n])
        n++;
    const char **kept = kvt__arena_alloc(memory, (n + 1) * sizeof *kept);
    for (size_t i = 0; kept && i < n; i++)
        kept[i] = kvt__arena_text(memory, r->environment[i], strlen(r->environment[i]));
    r->config->environment = kept;
}

void
kvt__read_environment(struct kvt__reading *r)
{
    if (!r->environment)
        return;
    read_prefix(r, KVT__FROM_LMCACHE, "LMCACHE_");
    read_prefix(r, KVT__FROM_KVTIER, "KVTIER_");
}
