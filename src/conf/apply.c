/* SPDX-License-Identifier: Apache-2.0
 *
 * Apply the sources to the defaults, in the order of precedence.  Only the extra_config of the
 * highest source that has an extra_config is used, as in LMCache. */
#include <string.h>

#include "conf/read.h"
#include "tier-list.h"

static const char old_plugin[] = "remote_connector.";
static const char new_plugin[] = "remote_storage_plugin.";

static void
set_defaults(struct kvt__reading *r)
{
    for (size_t i = 0; i < KVT__N_PARAMS; i++) {
        const struct kvt__param *param = &kvt__params[i];
        const struct kvt__node node = {
            .kind = KVT__SCALAR, .text = param->fallback, .origin = "default",
        };

        r->config->origin[i] = "default";
        if (!param->fallback)
            continue;
        if (kvt__set_value(r, r->defaults, param, param->name, &node))
            (void)kvt__set_value(r, r->config, param, param->name, &node);
    }
}

/* Replace a default by the variable of another program (KVT_FALLBACK). */
static void
set_fallback(struct kvt__reading *r, enum kvt__param_at at, const char *variable)
{
    const char *text = kvt__variable(r->environment, variable);
    const struct kvt__node node = {
        .kind = KVT__SCALAR, .text = text, .origin = variable,
    };

    if (!text || !*text)
        return;
    if (kvt__set_value(r, r->defaults, &kvt__params[at], kvt__params[at].name, &node) &&
        kvt__set_value(r, r->config, &kvt__params[at], kvt__params[at].name, &node))
        r->config->origin[at] = variable;
}

static void
note_unknown_key(struct kvt__reading *r, const struct kvt__node *node)
{
    const char *near_key = kvt__nearest_key(node->key);

    if (near_key)
        kvt__note(r, KVT__UNKNOWN, node->key, node->origin,
                  "unknown key '%.80s' (%s): did you mean %s?", node->key, node->origin,
                  near_key);
    else
        kvt__note(r, KVT__UNKNOWN, node->key, node->origin, "unknown key '%.80s' (%s).",
                  node->key, node->origin);
}

static void
set_param(struct kvt__reading *r, enum kvt__source_level level,
          const struct kvt__param *param, const struct kvt__node *node)
{
    size_t at = (size_t)(param - kvt__params);

    if (!kvt__set_value(r, r->config, param, node->key, node))
        return;
    /* An empty value resets the setting to the default, as if no source had the key. */
    r->config->level[at] = (uint8_t)(kvt__node_is_empty(node) ? KVT__FROM_DEFAULT : level);
    r->config->origin[at] =
        kvt__arena_text(&r->config->memory, node->origin, strlen(node->origin));
    r->by_alias[at] = false;
}

static void
set_alias(struct kvt__reading *r, enum kvt__source_level level,
          const struct kvt__alias *alias, const struct kvt__node *node)
{
    const struct kvt__param *param = &kvt__params[alias->real];
    struct kvt__node meant = *node;

    kvt__note(r, KVT__WARNING, alias->name, node->origin,
              "%s (%s) is an older name: write %s%s%s.", alias->name, node->origin,
              param->name, alias->value ? ": " : "", alias->value ? alias->value : "");
    r->old[alias->real].node = node;
    r->old[alias->real].level = level;
    if (r->config->level[alias->real] == level && !r->by_alias[alias->real])
        return; /* the same source also has the newer name, which wins */
    if (alias->value) {
        int truth = node->kind == KVT__SCALAR ? kvt__bool_word(node->text) : -1;

        if (truth < 0)
            kvt__note(r, KVT__ERROR, node->key, node->origin,
                      "%s (%s): use true or false.", node->key, node->origin);
        if (truth <= 0)
            return;
        meant.text = alias->value;
    }
    set_param(r, level, param, &meant);
    r->by_alias[alias->real] = true;
}

static void
note_no_effect(struct kvt__reading *r, const struct kvt__param *param, const char *key,
               const char *origin)
{
    if (param->status == KVT__NEEDLESS)
        kvt__note(r, KVT__WARNING, key, origin, "%s (%s) has no effect in kvtier. %s",
                  key, origin, param->text);
    else
        kvt__note(r, KVT__WARNING, key, origin,
                  "%s (%s) has no effect: kvtier does not %s.", key, origin,
                  kvt__status_text(param->status));
}

/* Store a key of a family, unless the family has no effect. */
static void
set_named(struct kvt__reading *r, const struct kvt__pattern *pattern,
          const char *key, const struct kvt__node *node)
{
    struct kvt__arena *memory = &r->config->memory;

    if (pattern->param.status != KVT__ACTIVE) {
        note_no_effect(r, &pattern->param, key, node->origin);
        return;
    }
    if (kvt__node_is_empty(node))
        return;
    if (node->kind != KVT__SCALAR) {
        kvt__note(r, KVT__ERROR, key, node->origin, "%s (%s): use text.", key,
                  node->origin);
        return;
    }
    struct kvt__named *named = kvt__arena_alloc(memory, sizeof *named);
    if (!named)
        return;
    named->key = kvt__arena_text(memory, key, strlen(key));
    named->value = kvt__arena_text(memory, node->text, strlen(node->text));
    named->origin = kvt__arena_text(memory, node->origin, strlen(node->origin));
    named->next = r->config->named;
    r->config->named = named;
}

static void
set_member(struct kvt__reading *r, enum kvt__source_level level,
           const struct kvt__node *node, bool in_extra)
{
    const struct kvt__param *param = kvt__find_param(node->key);
    const struct kvt__alias *alias = kvt__find_alias(node->key);
    const char *key = node->key;

    if (!strncmp(key, old_plugin, sizeof old_plugin - 1)) {
        key = kvt__arena_printf(&r->memory, "%s%s", new_plugin,
                                key + sizeof old_plugin - 1);
        kvt__note(r, KVT__WARNING, node->key, node->origin,
                  "%s (%s) is an older name: write %s.", node->key, node->origin, key);
    }
    const struct kvt__pattern *pattern = kvt__find_pattern(key);
    if (param && in_extra && param->scope == KVT__TOP)
        kvt__note(r, KVT__UNKNOWN, key, node->origin,
                  "%s (%s) does not belong in extra_config: write it outside.", key,
                  node->origin);
    else if (param)
        set_param(r, level, param, node);
    else if (alias)
        set_alias(r, level, alias, node);
    else if (pattern)
        set_named(r, pattern, key, node);
    else
        note_unknown_key(r, node);
}

static bool
is_container(const char *key)
{
    return !strcmp(key, "extra_config") || !strcmp(key, "storage_backend") ||
           !strcmp(key, "local_device");
}

static void
set_source(struct kvt__reading *r, enum kvt__source_level level,
           const struct kvt__node *map, bool in_extra)
{
    for (const struct kvt__node *node = map ? map->first : NULL; node; node = node->next) {
        bool ec = !strcmp(node->key, "ec") || !strncmp(node->key, "ec_", 3);

        if (ec && !r->has_noted_ec)
            kvt__note(r, KVT__WARNING, node->key, node->origin,
                      "%s (%s) and all other ec_ settings have no effect: kvtier does "
                      "not keep encoder outputs.", node->key, node->origin);
        r->has_noted_ec |= ec;
        if (!ec && (in_extra || !is_container(node->key)))
            set_member(r, level, node, in_extra);
    }
}

/* Return the effective extra_config, a map, and set *level to the map's source.  NULL: there is no
 * extra_config, or the effective extra_config is empty or invalid; an invalid map is noted. */
static const struct kvt__node *
find_extra(struct kvt__reading *r, enum kvt__source_level *level)
{
    for (*level = KVT__FROM_SETTING; *level > KVT__FROM_DEFAULT; (*level)--) {
        const struct kvt__node *node = kvt__node_member(r->source[*level], "extra_config");

        if (!node)
            continue;
        if (kvt__node_is_empty(node))
            return NULL;
        const char *origin = node->origin;
        if (node->kind == KVT__SCALAR &&
            !(node = kvt__read_json(r, node->text, "extra_config", origin)))
            return NULL;
        if (node->kind == KVT__MAP)
            return node;
        kvt__note(r, KVT__ERROR, "extra_config", origin, "extra_config (%s): use a map.",
                  origin);
        return NULL;
    }
    return NULL;
}

/* ------------------------------------------------------- after all sources */

/* Note settings without effect whose value differs from the default. */
static void
warn_of_no_effect(struct kvt__reading *r)
{
    for (size_t i = 0; i < KVT__N_PARAMS; i++) {
        const struct kvt__param *param = &kvt__params[i];

        if (param->status <= KVT__SECRET || !r->config->level[i])
            continue;
        json_t *now = kvt__value_json(r->config, param);
        json_t *otherwise = kvt__value_json(r->defaults, param);
        if (!json_equal(now, otherwise))
            note_no_effect(r, param, param->name, r->config->origin[i]);
        json_decref(now);
        json_decref(otherwise);
    }
}

/* Return true if a tier has the name. */
static bool
is_tier(const char *name, size_t n)
{
#define KVT_TIER(kind) #kind,
    static const char *const tiers[] = { KVT_TIERS };
#undef KVT_TIER

    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        if (strlen(tiers[i]) == n && !strncmp(name, tiers[i], n))
            return true;
    return false;
}

/* Note plug-ins of an unknown kind, and plug-ins without a directory or bucket. */
static void
check_plugins(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, remote_storage_plugins);

    for (size_t i = 0; i < c->remote_storage_plugins.n; i++) {
        const char *plugin = c->remote_storage_plugins.items[i];
        int kind = (int)strcspn(plugin, ".");

        if (!is_tier(plugin, (size_t)kind))
            kvt__note(r, KVT__ERROR, "remote_storage_plugins", origin,
                      "remote_storage_plugins (%s): this kvtier has no tier for '%.*s'; write "
                      "fs, s3 or hf3fs, alone or with a name as in fs.a.", origin, kind, plugin);
        else if (kvt__base_path_of(plugin) && !kvt__config_base_path(c, plugin))
            kvt__note(r, KVT__ERROR, "remote_storage_plugins", origin,
                      "remote_storage_plugins (%s): '%s' has no directory; set "
                      "extra_config remote_storage_plugin.%s.base_path or "
                      "%.*s_base_path.", origin,
                      plugin, plugin, kind, plugin);
        else if (!kvt__config_base_path(c, plugin))
            kvt__note(r, KVT__ERROR, "remote_storage_plugins", origin,
                      "remote_storage_plugins (%s): '%s' has no place; set extra_config "
                      "remote_storage_plugin.%s.base_path.", origin, plugin, plugin);
    }
}

static void
check_url(struct kvt__reading *r)
{
    const char *origin = kvt__config_origin(r->config, remote_url);
    const char *url = r->config->remote_url, *rest = url ? strstr(url, "://") : NULL;

    if (url && !rest)
        kvt__note(r, KVT__ERROR, "remote_url", origin,
                  "remote_url (%s) is no URL: write fs:///directory, s3://bucket or "
                  "hf3fs:///directory.", origin);
    else if (url && !is_tier(url, (size_t)(rest - url)))
        kvt__note(r, KVT__ERROR, "remote_url", origin,
                  "remote_url (%s): this kvtier has no tier for '%.*s://'; write "
                  "fs:///directory, s3://bucket or hf3fs:///directory.", origin,
                  (int)(rest - url), url);
}

static bool
is_serde(const char *name)
{
    static const char *const serdes[] = { "naive", "lossless", "cachegen", "kv8", "kv4" };

    for (size_t i = 0; i < sizeof serdes / sizeof *serdes; i++)
        if (!strcmp(name, serdes[i]))
            return true;
    return false;
}

/* Note unknown encodings in the settings without a list of choices. */
static void
check_serdes(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    const char *origin = kvt__config_origin(c, accept_serde);

    for (size_t i = 0; i < c->accept_serde.n; i++)
        if (!is_serde(c->accept_serde.items[i]))
            kvt__note(r, KVT__ERROR, "accept_serde", origin,
                      "accept_serde (%s): '%s' is no encoding; write lossless, cachegen, kv8 or "
                      "kv4.", origin, c->accept_serde.items[i]);
    origin = kvt__config_origin(c, remote_storage_plugins);
    for (size_t i = 0; i < c->remote_storage_plugins.n; i++) {
        const char *plugin = c->remote_storage_plugins.items[i];
        const char *serde = kvt__config_plugin_serde(c, plugin);

        if (!is_serde(serde) && strcmp(serde, "auto") && strcmp(serde, "kivi"))
            kvt__note(r, KVT__ERROR, "remote_storage_plugins", origin,
                      "remote_storage_plugins (%s): remote_storage_plugin.%s.remote_serde is "
                      "'%s'; write naive, lossless, cachegen, kv8, kv4 or auto.", origin, plugin,
                      serde);
    }
}

static void
check_together(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;

    check_url(r);
    if (!strcmp(c->remote_serde, "kivi") && (c->remote_url || c->remote_storage_plugins.n)) {
        const char *origin = kvt__config_origin(c, remote_serde);

        kvt__note(r, KVT__WARNING, "remote_serde", origin,
                  "remote_serde is kivi (%s): kvtier stores naive chunks, as LMCache does.",
                  origin);
    }
    check_plugins(r);
    check_serdes(r);
#define KVT_CHECK(kind) kvt__check_##kind(r);
#include "conf/params.def"
    kvt__check_locations(r);
    kvt__check_numa(r);
}

void
kvt__apply(struct kvt__reading *r)
{
    enum kvt__source_level level, extra_level;

    set_defaults(r);
#define KVT_FALLBACK(name, variable) set_fallback(r, KVT__AT_##name, #variable);
#include "conf/params.def"

    const struct kvt__node *extra = find_extra(r, &extra_level);
    for (level = KVT__FROM_FILE; level < KVT__N_LEVELS; level++) {
        if (r->source[level])
            kvt__flatten_nested(r, r->source[level]);
        set_source(r, level, r->source[level], false);
        if (level == extra_level)
            set_source(r, level, extra, true);
    }
    warn_of_no_effect(r);
    check_together(r);
}
