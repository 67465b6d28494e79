/* SPDX-License-Identifier: Apache-2.0
 *
 * Show settings: as JSON with all values, and as descriptions of all settings. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "conf/read.h"

static json_t *
number_json(double number)
{
    /* JSON has no infinity. */
    return isfinite(number) ? json_real(number) : json_string("inf");
}

static json_t *
text_json(const char *text)
{
    return text ? kvt__text_json(text) : json_null();
}

static json_t *
list_json(enum kvt__param_type type, const void *field)
{
    const struct kvt__ints *ints = field;
    const struct kvt__floats *floats = field;
    const struct kvt__strs *strs = field;
    json_t *list = json_array();

    if (type == KVT__INTS)
        for (size_t i = 0; i < ints->n; i++)
            json_array_append_new(list, json_integer(ints->items[i]));
    else if (type == KVT__FLOATS)
        for (size_t i = 0; i < floats->n; i++)
            json_array_append_new(list, number_json(floats->items[i]));
    else
        for (size_t i = 0; i < strs->n; i++)
            json_array_append_new(list, kvt__text_json(strs->items[i]));
    return list;
}

json_t *
kvt__value_json(const struct kvt_config *config, const struct kvt__param *param)
{
    const void *field = (const char *)config + param->offset;

    switch (param->type) {
    case KVT__BOOL:
        return json_boolean(*(const bool *)field);
    case KVT__INT:
        return json_integer(*(const int64_t *)field);
    case KVT__FLOAT:
        return number_json(*(const double *)field);
    case KVT__STR:
        return text_json(*(const char *const *)field);
    case KVT__JSON: {
        const char *text = *(const char *const *)field;
        return text ? json_loads(text, 0, NULL) : json_null();
    }
    default:
        return list_json(param->type, field);
    }
}

/* Convert "[scheme://]user:password@host" to JSON, with *** in place of user and password.  NULL:
 * the text has no such part. */
static json_t *
hide_userinfo(const char *text)
{
    const char *scheme = strstr(text, "://"), *host = scheme ? scheme + 3 : text;
    size_t authority = strcspn(host, "/?#");
    const char *at = memrchr(host, '@', authority);

    if (!at || (!scheme && !memchr(host, ':', (size_t)(at - host))))
        return NULL;
    char *hidden = NULL;
    if (asprintf(&hidden, "%.*s***%s", (int)(host - text), text, at) < 0)
        return json_string("***");
    json_t *json = kvt__text_json(hidden);
    free(hidden);
    return json;
}

/* Convert a setting to JSON for users: secrets become ***. */
static json_t *
shown_json(const struct kvt_config *config, size_t at)
{
    const struct kvt__param *param = &kvt__params[at];
    const char *const *text = (const void *)((const char *)config + param->offset);

    /* An unset number is null, not 0.  A text is NULL if unset, and a variable may have set a text
     * without a level. */
    if (!param->fallback && !config->level[at] && param->type != KVT__STR)
        return json_null();
    if (param->status == KVT__SECRET && (param->type != KVT__STR || *text))
        return json_string("***");
    if (param->type == KVT__STR && *text) {
        json_t *hidden = hide_userinfo(*text);
        if (hidden)
            return hidden;
    }
    return kvt__value_json(config, param);
}

static int
add_shown(json_t *all, const char *key, json_t *value, const char *origin)
{
    json_t *one = json_object();
    int err = json_object_set_new(one, "value", value);

    err |= json_object_set_new(one, "origin", kvt__text_json(origin));
    return json_object_set_new(all, key, one) | err;
}

char *
kvt_config_json(const struct kvt_config *config)
{
    json_t *all = json_object();
    char *text = NULL;
    int err = 0;

    for (size_t i = 0; i < KVT__N_PARAMS; i++)
        err |= add_shown(all, kvt__params[i].name, shown_json(config, i),
                         config->origin[i]);
    /* The list is newest first: the effective value is the first value of a key. */
    for (const struct kvt__named *n = config->named; n; n = n->next)
        if (!json_object_get(all, n->key))
            err |= add_shown(all, n->key, kvt__text_json(n->value), n->origin);
    if (!err)
        text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(all);
    return text;
}

void
kvt_free(void *p)
{
    free(p);
}

/* --------------------------------------------------------- descriptions */

int
kvt_param(size_t i, struct kvt_param_info *out)
{
    static const char *const types[] = {
        "bool", "int", "float", "text", "ints", "floats", "texts", "map",
    };
    const struct kvt__param *param = i < KVT__N_PARAMS
                                         ? &kvt__params[i]
                                         : kvt__family(i - KVT__N_PARAMS);

    if (!param)
        return kvt__fail(ENOENT, "setting %zu of %d.", i, KVT__N_PARAMS);
    memset(out, 0, sizeof *out);
    out->section = i < KVT__N_PARAMS ? kvt__param_section(i) : "Families of keys";
    out->name = param->name;
    out->type = types[param->type];
    out->fallback = param->fallback;
    out->text = param->text;
    out->not_done = kvt__status_text(param->status);
    out->has_effect = param->status <= KVT__SECRET;
    out->in_extra_config = param->scope == KVT__EXTRA;
    kvt__allowed(param, out->allowed, sizeof out->allowed);
    kvt__old_names(i, out->old_names, sizeof out->old_names);
    return 0;
}

/* ------------------------------------------------------------- for tiers */

const struct kvt__param *
kvt__base_path_of(const char *plugin)
{
    char name[64];
    int kind = (int)strcspn(plugin, ".");

    return snprintf(name, sizeof name, "%.*s_base_path", kind, plugin) < (int)sizeof name
        ? kvt__find_param(name) : NULL;
}

/* Return remote_storage_plugin.<plugin><after> of extra_config; NULL: not set. */
static const char *
plugin_value(const struct kvt_config *config, const char *plugin, const char *after)
{
    static const char before[] = "remote_storage_plugin.";
    size_t n = strlen(plugin);

    for (const struct kvt__named *named = config->named; named; named = named->next) {
        const char *name = named->key + sizeof before - 1;

        if (!strncmp(named->key, before, sizeof before - 1) &&
            !strncmp(name, plugin, n) && !strcmp(name + n, after))
            return named->value;
    }
    return NULL;
}

const char *
kvt__config_plugin_serde(const struct kvt_config *config, const char *plugin)
{
    const char *serde = plugin_value(config, plugin, ".remote_serde");

    return serde ? serde : config->remote_serde;
}

const char *
kvt__config_base_path(const struct kvt_config *config, const char *plugin)
{
    const char *path = plugin_value(config, plugin, ".base_path");

    if (path)
        return path;
    const struct kvt__param *of_kind = kvt__base_path_of(plugin);
    return of_kind ? *(const char *const *)((const char *)config + of_kind->offset) : NULL;
}
