/* SPDX-License-Identifier: Apache-2.0
 *
 * The nested form of a porting guide for LMCache, as flat keys:
 *   storage_backend: { type: remote,
 *                      connector: { type: s3, bucket: B, prefix: P, region: R } }
 * is remote_url: s3://B, s3_file_prefix: P, s3_region: R;
 * local_device: cpu is local_cpu: true. */
#include <string.h>

#include "conf/read.h"

static bool
is_text(const struct kvt__node *node)
{
    return node && node->kind == KVT__SCALAR && *node->text;
}

/* The member is exactly this word, or a problem is noted. */
static bool
must_be(struct kvt__reading *r, const struct kvt__node *map, const char *path,
        const char *key, const char *word)
{
    const struct kvt__node *node = kvt__node_member(map, key);

    if (is_text(node) && !strcmp(node->text, word))
        return true;
    if (is_text(node))
        kvt__note(r, KVT__ERROR, path, node->origin, "%s.%s is '%.60s' (%s): use %s.",
                  path, key, node->text, node->origin, word);
    else
        kvt__note(r, KVT__ERROR, path, map->origin, "%s (%s) needs %s: %s.", path,
                  map->origin, key, word);
    return false;
}

static void
add_flat(struct kvt__reading *r, struct kvt__node *map, const char *key,
         const char *text, const char *origin)
{
    struct kvt__node *node = kvt__node_scalar(r, text, origin);

    if (node)
        kvt__node_add(r, map, key, node);
}

static void
note_strangers(struct kvt__reading *r, const struct kvt__node *map,
               const char *path, const char *const *known)
{
    for (const struct kvt__node *node = map->first; node; node = node->next) {
        const char *const *word = known;

        while (*word && strcmp(*word, node->key))
            word++;
        if (!*word)
            kvt__note(r, KVT__UNKNOWN, node->key, node->origin,
                      "unknown key '%s.%s' (%s).", path, node->key, node->origin);
    }
}

static void
flatten_backend(struct kvt__reading *r, struct kvt__node *map,
                const struct kvt__node *backend)
{
    static const char *const outer[] = { "type", "connector", NULL };
    static const char *const inner[] = { "type", "bucket", "prefix", "region", NULL };
    static const char path[] = "storage_backend", deep[] = "storage_backend.connector";
    const struct kvt__node *connector, *bucket, *prefix, *region;

    connector = kvt__node_member(backend, "connector");
    if (!connector || connector->kind != KVT__MAP) {
        kvt__note(r, KVT__ERROR, path, backend->origin,
                  "%s (%s): use a map with type and connector.", path, backend->origin);
        return;
    }
    note_strangers(r, backend, path, outer);
    note_strangers(r, connector, deep, inner);
    if (!must_be(r, backend, path, "type", "remote") ||
        !must_be(r, connector, deep, "type", "s3"))
        return;

    bucket = kvt__node_member(connector, "bucket");
    prefix = kvt__node_member(connector, "prefix");
    region = kvt__node_member(connector, "region");
    if (is_text(bucket))
        add_flat(r, map, "remote_url",
                 kvt__memory_printf(&r->memory, "s3://%s", bucket->text), bucket->origin);
    else
        kvt__note(r, KVT__ERROR, deep, connector->origin, "%s (%s) needs bucket.", deep,
                  connector->origin);
    if (is_text(prefix))
        add_flat(r, map, "s3_file_prefix", prefix->text, prefix->origin);
    if (is_text(region))
        add_flat(r, map, "s3_region", region->text, region->origin);
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
