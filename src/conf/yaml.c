/* SPDX-License-Identifier: Apache-2.0
 *
 * Convert a YAML file to a tree of nodes with their lines. */
#include <string.h>
#include <yaml.h>

#include "conf/read.h"

struct walk {
    struct kvt__reading *r;
    yaml_document_t *document;
    const char *file;
};

static const char *
origin_of(const struct walk *walk, const yaml_node_t *from)
{
    return kvt__arena_printf(&walk->r->memory, "file %s:%zu", walk->file,
                             from->start_mark.line + 1);
}

static bool
is_null(const yaml_node_t *from)
{
    static const char *const words[] = { "", "~", "null", "Null", "NULL" };

    if (from->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp((const char *)from->data.scalar.value, words[i]))
            return true;
    return false;
}

static struct kvt__node *
scalar(const struct walk *walk, const yaml_node_t *from, const char *origin)
{
    const char *text = (const char *)from->data.scalar.value;
    size_t len = from->data.scalar.length;

    if (memchr(text, 0, len)) {
        kvt__note(walk->r, KVT__ERROR, NULL, origin, "%s: a zero byte in a value.", origin);
        return NULL;
    }
    struct kvt__node *node =
        kvt__node_new(walk->r, is_null(from) ? KVT__NULL : KVT__SCALAR, origin);
    if (node) {
        node->text = kvt__arena_text(&walk->r->memory, text, len);
        node->quoted = from->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    }
    return node;
}

static struct kvt__node *convert(const struct walk *walk, int index, unsigned depth);

static struct kvt__node *
sequence(const struct walk *walk, const yaml_node_t *from, const char *origin,
         unsigned depth)
{
    struct kvt__node *list = kvt__node_new(walk->r, KVT__LIST, origin);

    if (!list)
        return NULL;
    for (const yaml_node_item_t *item = from->data.sequence.items.start;
         item < from->data.sequence.items.top; item++) {
        struct kvt__node *child = convert(walk, *item, depth + 1);

        if (!child)
            return NULL;
        kvt__node_add(walk->r, list, NULL, child);
    }
    return list;
}

static struct kvt__node *
mapping(const struct walk *walk, const yaml_node_t *from, const char *origin,
        unsigned depth)
{
    struct kvt__node *map = kvt__node_new(walk->r, KVT__MAP, origin);

    if (!map)
        return NULL;
    for (const yaml_node_pair_t *pair = from->data.mapping.pairs.start;
         pair < from->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key_node = yaml_document_get_node(walk->document, pair->key);
        const char *where = origin_of(walk, key_node);

        if (key_node->type != YAML_SCALAR_NODE) {
            kvt__note(walk->r, KVT__ERROR, NULL, where, "%s: a key must be text.", where);
            return NULL;
        }
        struct kvt__node *key = scalar(walk, key_node, where);
        struct kvt__node *value = key ? convert(walk, pair->value, depth + 1) : NULL;
        if (!value)
            return NULL;
        value->origin = where;
        kvt__node_add(walk->r, map, key->text, value);
    }
    return map;
}

/* Convert a node of the document.  YAML aliases make the document a graph, which may have cycles;
 * the limits of nodes and depth end the walk.  NULL: a limit is exceeded or a node is invalid, and
 * a problem is noted. */
static struct kvt__node *
convert(const struct walk *walk, int index, unsigned depth)
{
    const yaml_node_t *from = yaml_document_get_node(walk->document, index);
    const char *origin = origin_of(walk, from);

    if (depth > KVT__MAX_DEPTH) {
        kvt__note(walk->r, KVT__ERROR, NULL, origin,
                  "%s: nested deeper than %d.", origin, KVT__MAX_DEPTH);
        return NULL;
    }
    if (from->type == YAML_SCALAR_NODE)
        return scalar(walk, from, origin);
    if (from->type == YAML_SEQUENCE_NODE)
        return sequence(walk, from, origin, depth);
    return mapping(walk, from, origin, depth);
}

static void
note_syntax_error(struct kvt__reading *r, const yaml_parser_t *parser, const char *file)
{
    if (!parser->problem) { /* no memory: then the parser does not always set the problem */
        r->memory.failed = true;
        return;
    }
    const char *origin = kvt__arena_printf(&r->memory, "file %s:%zu", file,
                                           parser->problem_mark.line + 1);
    kvt__note(r, KVT__ERROR, NULL, origin, "%s is not YAML: %s.", origin, parser->problem);
}

/* Convert the document, which must be a mapping or empty. */
static struct kvt__node *
document_tree(struct kvt__reading *r, yaml_document_t *document, const char *file)
{
    const struct walk walk = { r, document, file };
    const yaml_node_t *root = yaml_document_get_root_node(document);

    if (!root || (root->type == YAML_SCALAR_NODE && is_null(root)))
        return NULL;
    if (root->type != YAML_MAPPING_NODE) {
        const char *origin = origin_of(&walk, root);

        kvt__note(r, KVT__ERROR, NULL, origin,
                  "%s: a configuration must be lines of 'key: value'.", origin);
        return NULL;
    }
    return convert(&walk, 1, 0);
}

struct kvt__node *
kvt__read_yaml(struct kvt__reading *r, const char *text, size_t n_bytes,
               const char *file)
{
    struct kvt__node *tree = NULL;
    yaml_parser_t parser;
    yaml_document_t document;

    if (!yaml_parser_initialize(&parser)) {
        r->memory.failed = true;
        return NULL;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n_bytes);
    if (!yaml_parser_load(&parser, &document)) {
        note_syntax_error(r, &parser, file);
        goto out;
    }
    tree = document_tree(r, &document, file);
    yaml_document_delete(&document);

    if (!yaml_parser_load(&parser, &document)) {
        note_syntax_error(r, &parser, file);
        goto out;
    }
    if (yaml_document_get_root_node(&document)) {
        const char *origin = kvt__arena_printf(&r->memory, "file %s:%zu", file,
                                               document.start_mark.line + 1);
        kvt__note(r, KVT__ERROR, NULL, origin,
                  "%s: a second document begins; use a single document.", origin);
    }
    yaml_document_delete(&document);
out:
    yaml_parser_delete(&parser);
    return tree;
}
