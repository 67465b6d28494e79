/* SPDX-License-Identifier: Apache-2.0
 *
 * Trees of nodes, and the list of problems. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "conf/read.h"

/* Return the number of bytes of the UTF-8 character at s; 0: the bytes are not UTF-8. */
static size_t
utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char mask, lead, least_second, greatest_second;
    } forms[] = {
        { 0xff, 0xe0, 0xa0, 0xbf }, { 0xff, 0xed, 0x80, 0x9f },
        { 0xff, 0xf0, 0x90, 0xbf }, { 0xff, 0xf4, 0x80, 0x8f },
        { 0xe0, 0xc0, 0x80, 0xbf }, { 0xf0, 0xe0, 0x80, 0xbf },
        { 0xfc, 0xf0, 0x80, 0xbf },
    };
    size_t len = *s < 0x80 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;

    if (len == 1)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if ((*s & forms[i].mask) != forms[i].lead)
            continue;
        if (*s < 0xc2 || s[1] < forms[i].least_second || s[1] > forms[i].greatest_second)
            return 0;
        for (size_t j = 2; j < len; j++)
            if ((s[j] & 0xc0) != 0x80)
                return 0;
        return len;
    }
    return 0;
}

/* Replace bytes that are not UTF-8: names of files and values of variables may contain any bytes,
 * messages and JSON must be UTF-8. */
static void
clean_utf8(char *text)
{
    while (*text) {
        size_t len = utf8_length((const unsigned char *)text);

        if (!len)
            *text = '?';
        text += len ? len : 1;
    }
}

/* Replace control characters too: a message is a single line. */
static void
clean_line(char *text)
{
    clean_utf8(text);
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

json_t *
kvt__text_json(const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        return NULL;
    clean_utf8(copy);
    json_t *json = json_string(copy);
    free(copy);
    return json;
}

void
kvt__note(struct kvt__reading *r, enum kvt__severity severity, const char *key,
          const char *origin, const char *fmt, ...)
{
    struct kvt__problem *problem = kvt__arena_alloc(&r->memory, sizeof *problem);
    va_list ap;

    if (!problem)
        return;
    problem->severity = severity;
    problem->key = key ? kvt__arena_text(&r->memory, key, strlen(key)) : NULL;
    problem->origin = origin ? kvt__arena_text(&r->memory, origin, strlen(origin)) : NULL;
    va_start(ap, fmt);
    problem->text = kvt__arena_vprintf(&r->memory, fmt, ap);
    va_end(ap);
    clean_line((char *)problem->text);
    if (key)
        clean_line((char *)problem->key);
    if (origin)
        clean_line((char *)problem->origin);
    if (r->last_problem)
        r->last_problem->next = problem;
    else
        r->problems = problem;
    r->last_problem = problem;
}

struct kvt__node *
kvt__node_new(struct kvt__reading *r, enum kvt__node_kind kind, const char *origin)
{
    if (r->n_nodes++ == KVT__MAX_NODES)
        kvt__note(r, KVT__ERROR, NULL, origin,
                  "%s: more than %d values, too many for a configuration.", origin,
                  KVT__MAX_NODES);
    if (r->n_nodes > KVT__MAX_NODES)
        return NULL;

    struct kvt__node *node = kvt__arena_alloc(&r->memory, sizeof *node);
    if (!node)
        return NULL;
    node->kind = kind;
    node->origin = origin;
    return node;
}

struct kvt__node *
kvt__node_scalar(struct kvt__reading *r, const char *text, const char *origin)
{
    struct kvt__node *node = kvt__node_new(r, KVT__SCALAR, origin);

    if (node)
        node->text = kvt__arena_text(&r->memory, text, strlen(text));
    return node;
}

static void
remove_member(struct kvt__reading *r, struct kvt__node *map, const char *key,
              const struct kvt__node *newer)
{
    struct kvt__node *last = NULL;

    for (struct kvt__node **at = &map->first; *at;) {
        if (strcmp((*at)->key, key)) {
            last = *at;
            at = &(*at)->next;
            continue;
        }
        kvt__note(r, KVT__WARNING, key, newer->origin,
                  "%s is set twice (%s and %s): the second value is used.", key,
                  (*at)->origin, newer->origin);
        *at = (*at)->next;
        map->n--;
    }
    map->last = last;
}

void
kvt__node_add(struct kvt__reading *r, struct kvt__node *parent, const char *key,
              struct kvt__node *child)
{
    if (key) {
        remove_member(r, parent, key, child);
        child->key = key;
    }
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    parent->n++;
}

struct kvt__node *
kvt__node_member(const struct kvt__node *map, const char *key)
{
    struct kvt__node *member = map ? map->first : NULL;

    while (member && strcmp(member->key, key))
        member = member->next;
    return member;
}

bool
kvt__node_is_empty(const struct kvt__node *node)
{
    return node->kind == KVT__NULL || (node->kind == KVT__SCALAR && !*node->text);
}

/* Convert a scalar to JSON, a plain scalar by the rules of YAML. */
static json_t *
scalar_json(const struct kvt__node *node)
{
    const char *text = node->text;
    char *end;

    if (node->quoted || !*text)
        return kvt__text_json(text);
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    return *end || errno ? kvt__text_json(text) : json_integer(whole);
}

json_t *
kvt__node_json(const struct kvt__node *node)
{
    json_t *json;

    switch (node->kind) {
    case KVT__NULL:
        return json_null();
    case KVT__SCALAR:
        return scalar_json(node);
    case KVT__LIST:
        json = json_array();
        for (node = node->first; node; node = node->next)
            json_array_append_new(json, kvt__node_json(node));
        return json;
    case KVT__MAP:
        json = json_object();
        for (node = node->first; node; node = node->next)
            json_object_set_new(json, node->key, kvt__node_json(node));
        return json;
    }
    return NULL;
}
