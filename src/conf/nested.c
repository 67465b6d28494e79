/* SPDX-License-Identifier: Apache-2.0
 *
 * Convert the nested form of settings, which a porting guide for LMCache uses, to flat keys:
 *   storage_backend: { type: remote,
 *                      connector: { type: KIND, MEMBER: TEXT, ... } }
 * sets the settings that rows KVT_NESTED define for the members; local_device: cpu becomes
 * local_cpu: true. */
#include <stdio.h>
#include <string.h>

#include "conf/read.h"

static bool
is_text(const struct kvt__node *node)
{
    return node && node->kind == KVT__SCALAR && *node->text;
}

/* Members of connectors, by the connector's type. */
static const struct member {
    const char *kind, *name, *setting;
} members[] = {
#define KVT_NESTED(kind, member, setting) { #kind, #member, #setting },
#include "conf/params.def"
    { NULL, NULL, NULL }
};

/* Return true if the member names the storage: the text is the part of a URL behind KIND://. */
static bool
names_storage(const struct member *member)
{
    return !strcmp(member->setting, "remote_url");
}

/* Return the member's text if the text is one of the words; else note a problem. */
static const char *
require_word(struct kvt__reading *r, const struct kvt__node *map, const char *path,
             const char *key, const char *const *words)
{
    const struct kvt__node *node = kvt__node_member(map, key);
    char all[256] = "";
    size_t used = 0;

    for (const char *const *word = words; *word && used < sizeof all; word++) {
        if (is_text(node) && !strcmp(node->text, *word))
            return *word;
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? " or " : "",
                                 *word);
    }
    if (is_text(node))
        kvt__note(r, KVT__ERROR, path, node->origin, "%s.%s is '%.60s' (%s): use %s.",
                  path, key, node->text, node->origin, all);
    else
        kvt__note(r, KVT__ERROR, path, map->origin, "%s (%s) needs %s: %s.", path,
                  map->origin, key, all);
    return NULL;
}

static void
add_flat(struct kvt__reading *r, struct kvt__node *map, const char *key,
         const char *text, const char *origin)
{
    struct kvt__node *node = kvt__node_scalar(r, text, origin);

    if (node)
        kvt__node_add(r, map, key, node);
}

/* Note unknown members of a map.  Known members are `type`, `known` and, if kind is not NULL, the
 * members of connectors of this kind. */
static void
note_unknown_members(struct kvt__reading *r, const struct kvt__node *map, const char *path,
                     const char *kind, const char *known)
{
    for (const struct kvt__node *node = map->first; node; node = node->next) {
        const struct member *m = members;

        while (m->kind && (!kind || strcmp(m->kind, kind) || strcmp(m->name, node->key)))
            m++;
        if (!m->kind && strcmp(node->key, "type") && strcmp(node->key, known))
            kvt__note(r, KVT__UNKNOWN, node->key, node->origin,
                      "unknown key '%s.%s' (%s).", path, node->key, node->origin);
    }
}

static void
flatten_connector(struct kvt__reading *r, struct kvt__node *map,
                  const struct kvt__node *connector, const char *path, const char *kind)
{
    for (const struct member *m = members; m->kind; m++) {
        const struct kvt__node *node = kvt__node_member(connector, m->name);

        if (strcmp(m->kind, kind))
            continue;
        if (is_text(node))
            add_flat(r, map, m->setting,
                     names_storage(m) ? kvt__arena_printf(&r->memory, "%s://%s", kind, node->text)
                                 : node->text, node->origin);
        else if (names_storage(m))
            kvt__note(r, KVT__ERROR, path, connector->origin, "%s (%s) needs %s.", path,
                      connector->origin, m->name);
    }
}

static void
flatten_backend(struct kvt__reading *r, struct kvt__node *map,
                const struct kvt__node *backend)
{
    static const char path[] = "storage_backend", deep[] = "storage_backend.connector";
    static const char *const remote[] = { "remote", NULL };
    const char *kinds[sizeof members / sizeof *members] = { NULL };
    const struct kvt__node *connector = kvt__node_member(backend, "connector");
    size_t n = 0;

    if (!connector || connector->kind != KVT__MAP) {
        kvt__note(r, KVT__ERROR, path, backend->origin,
                  "%s (%s): use a map with type and connector.", path, backend->origin);
        return;
    }
    for (const struct member *m = members; m->kind; m++)
        if (names_storage(m))
            kinds[n++] = m->kind;
    note_unknown_members(r, backend, path, NULL, "connector");
    if (!require_word(r, backend, path, "type", remote))
        return;
    const char *kind = require_word(r, connector, deep, "type", kinds);
    if (!kind)
        return;
    note_unknown_members(r, connector, deep, kind, "type");
    flatten_connector(r, map, connector, deep, kind);
}

void
kvt__flatten_nested(struct kvt__reading *r, struct kvt__node *map)
{
    const struct kvt__node *backend = kvt__node_member(map, "storage_backend");
    const struct kvt__node *device = kvt__node_member(map, "local_device");

    if (backend)
        flatten_backend(r, map, backend);
    if (is_text(device) && !strcmp(device->text, "cpu"))
        add_flat(r, map, "local_cpu", "true", device->origin);
    else if (device)
        kvt__note(r, KVT__WARNING, "local_device", device->origin,
                  "local_device (%s) has no effect: only cpu is known.", device->origin);
}
