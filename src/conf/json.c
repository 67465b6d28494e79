/* SPDX-License-Identifier: Apache-2.0
 *
 * Convert JSON text (extra_config from the environment, an engine's extra configuration) to a tree
 * of nodes.  Messages never quote the text, because the text may contain credentials. */
#include <stdio.h>
#include <string.h>

#include "conf/read.h"

static struct kvt__node *
scalar(struct kvt__reading *r, const json_t *json, const char *origin)
{
    char number[64];
    struct kvt__node *node;

    switch (json_typeof(json)) {
    case JSON_STRING:
        node = kvt__node_scalar(r, json_string_value(json), origin);
        if (node)
            node->quoted = true;
        return node;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(json));
        return kvt__node_scalar(r, number, origin);
    case JSON_REAL:
        snprintf(number, sizeof number, "%.17g", json_real_value(json));
        return kvt__node_scalar(r, number, origin);
    case JSON_TRUE:
        return kvt__node_scalar(r, "true", origin);
    case JSON_FALSE:
        return kvt__node_scalar(r, "false", origin);
    default:
        return kvt__node_new(r, KVT__NULL, origin);
    }
}

static struct kvt__node *
convert(struct kvt__reading *r, const json_t *json, const char *origin, unsigned depth)
{
    struct kvt__node *node, *child;
    const char *key;
    json_t *value;
    size_t i;

    if (!json_is_object(json) && !json_is_array(json))
        return scalar(r, json, origin);
    if (depth > KVT__MAX_DEPTH) {
        kvt__note(r, KVT__ERROR, NULL, origin, "%s: nested deeper than %d.", origin,
                  KVT__MAX_DEPTH);
        return NULL;
    }
    node = kvt__node_new(r, json_is_array(json) ? KVT__LIST : KVT__MAP, origin);
    if (!node)
        return NULL;
    json_array_foreach(json, i, value) {
        if (!(child = convert(r, value, origin, depth + 1)))
            return NULL;
        kvt__node_add(r, node, NULL, child);
    }
    json_object_foreach((json_t *)json, key, value) {
        if (!(child = convert(r, value, origin, depth + 1)))
            return NULL;
        kvt__node_add(r, node, kvt__arena_text(&r->memory, key, strlen(key)), child);
    }
    return node;
}

struct kvt__node *
kvt__read_json(struct kvt__reading *r, const char *text, const char *key,
               const char *origin)
{
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);

    if (!json) {
        const char *why = json_error_code(&error) == json_error_duplicate_key
                              ? "a map has a key twice"
                              : "not JSON";
        kvt__note(r, KVT__ERROR, key, origin, "%s (%s): %s, line %d, column %d.", key,
                  origin, why, error.line, error.column);
        return NULL;
    }
    struct kvt__node *tree = convert(r, json, origin, 0);
    json_decref(json);
    return tree;
}
