/* SPDX-License-Identifier: Apache-2.0
 *
 * Convert nodes to typed fields, strictly: a value of another type or outside the range is a
 * problem, with the allowed values in the message. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "conf/read.h"

int
kvt__bool_word(const char *text)
{
    static const char *const words[][2] = {
        { "false", "true" }, { "0", "1" }, { "no", "yes" }, { "off", "on" },
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int truth = 0; truth < 2; truth++)
            if (!strcasecmp(text, words[i][truth]))
                return truth;
    return -1;
}

static bool
in_range(const struct kvt__param *param, double value)
{
    return !(param->min < param->max) || (value >= param->min && value <= param->max);
}

/* Copy a number without underscores, which may group digits as in YAML and Python. */
static bool
number_text(const char *text, char *buf, size_t size)
{
    size_t n = 0;

    for (; *text; text++) {
        if (*text == '_' && n && text[1])
            continue;
        if (n + 1 == size)
            return false;
        buf[n++] = *text;
    }
    buf[n] = 0;
    return n > 0;
}

static bool
to_float(const struct kvt__param *param, const char *text, double *out)
{
    char buf[64], *end;

    if (!number_text(text, buf, sizeof buf))
        return false;
    *out = strtod(!strcasecmp(buf, ".inf") ? "inf" : buf, &end);
    if (*end || isnan(*out))
        return false;
    return in_range(param, *out);
}

static bool
to_int(const struct kvt__param *param, const char *text, int64_t *out)
{
    char buf[64], *end;
    double number;

    if (!number_text(text, buf, sizeof buf))
        return false;
    errno = 0;
    *out = strtoll(buf, &end, 10);
    if (*end && to_float(param, text, &number) && fabs(number) < 0x1p53) {
        *out = (int64_t)number;
        return (double)*out == number;
    }
    return !*end && !errno && in_range(param, (double)*out);
}

static bool
to_choice(struct kvt__arena *memory, const struct kvt__param *param,
          const char *text, const char **out)
{
    for (const char *word = param->choices; *word;) {
        size_t len = strcspn(word, "|");

        if (strlen(text) == len && !strncasecmp(text, word, len)) {
            *out = kvt__arena_text(memory, word, len);
            return true;
        }
        word += len + (word[len] == '|');
    }
    return false;
}

/* ------------------------------------------------------------------- lists */

static struct kvt__node *
split_commas(struct kvt__reading *r, const struct kvt__node *node)
{
    struct kvt__node *list = kvt__node_new(r, KVT__LIST, node->origin);

    for (const char *at = node->text; list && *at;) {
        at += strspn(at, " \t");
        size_t len = strcspn(at, ","), part = len;

        while (part && (at[part - 1] == ' ' || at[part - 1] == '\t'))
            part--;
        if (part) {
            const char *text = kvt__arena_text(&r->memory, at, part);
            struct kvt__node *item = kvt__node_scalar(r, text, node->origin);

            if (!item)
                return NULL;
            kvt__node_add(r, list, NULL, item);
        }
        at += len + (at[len] == ',');
    }
    return list;
}

/* Convert a node to a list: the node is a list, JSON text, or text with commas.  NULL: the node is
 * none of these. */
static const struct kvt__node *
as_list(struct kvt__reading *r, const char *key, const struct kvt__node *node)
{
    if (node->kind == KVT__SCALAR)
        node = *node->text == '[' ? kvt__read_json(r, node->text, key, node->origin)
                                  : split_commas(r, node);
    return node && node->kind == KVT__LIST ? node : NULL;
}

static bool
set_list(struct kvt__reading *r, void *field, const struct kvt__param *param,
         const char *key, const struct kvt__node *node)
{
    struct kvt__arena *memory = &r->config->memory;
    const struct kvt__node *list = as_list(r, key, node);
    size_t i = 0;

    if (!list)
        return false;
    int64_t *ints = kvt__arena_alloc(memory, list->n * sizeof *ints);
    double *floats = kvt__arena_alloc(memory, list->n * sizeof *floats);
    const char **strs = kvt__arena_alloc(memory, list->n * sizeof *strs);
    if (!ints || !floats || !strs)
        return true; /* read_sources() reports the failed allocation */

    for (const struct kvt__node *item = list->first; item; item = item->next, i++) {
        if (item->kind != KVT__SCALAR ||
            (param->type == KVT__INTS && !to_int(param, item->text, &ints[i])) ||
            (param->type == KVT__FLOATS && !to_float(param, item->text, &floats[i])))
            return false;
        strs[i] = kvt__arena_text(memory, item->text, strlen(item->text));
    }
    if (param->type == KVT__INTS)
        *(struct kvt__ints *)field = (struct kvt__ints){ i, ints };
    else if (param->type == KVT__FLOATS)
        *(struct kvt__floats *)field = (struct kvt__floats){ i, floats };
    else
        *(struct kvt__strs *)field = (struct kvt__strs){ i, strs };
    return true;
}

static bool
set_json(struct kvt__reading *r, const char **field, const char *key,
         const struct kvt__node *node)
{
    if (node->kind == KVT__SCALAR)
        node = kvt__read_json(r, node->text, key, node->origin);
    if (!node || node->kind != KVT__MAP)
        return false;

    json_t *json = kvt__node_json(node);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    if (text)
        *field = kvt__arena_text(&r->config->memory, text, strlen(text));
    else
        r->memory.failed = true;
    free(text);
    return true;
}

/* ----------------------------------------------------------------- a value */

static size_t
field_size(enum kvt__param_type type)
{
    static const size_t sizes[] = {
        [KVT__BOOL] = sizeof(kvt__field_BOOL), [KVT__INT] = sizeof(kvt__field_INT),
        [KVT__FLOAT] = sizeof(kvt__field_FLOAT), [KVT__STR] = sizeof(kvt__field_STR),
        [KVT__INTS] = sizeof(kvt__field_INTS), [KVT__FLOATS] = sizeof(kvt__field_FLOATS),
        [KVT__STRS] = sizeof(kvt__field_STRS), [KVT__JSON] = sizeof(kvt__field_JSON),
    };
    return sizes[type];
}

static bool
set_scalar(struct kvt__reading *r, void *field, const struct kvt__param *param,
           const char *text)
{
    struct kvt__arena *memory = &r->config->memory;
    int truth = 0;

    switch (param->type) {
    case KVT__BOOL:
        truth = kvt__bool_word(text);
        if (truth >= 0)
            *(bool *)field = truth;
        return truth >= 0;
    case KVT__INT: {
        int64_t number;
        if (!to_int(param, text, &number))
            return false;
        *(int64_t *)field = number;
        return true;
    }
    case KVT__FLOAT: {
        double number;
        if (!to_float(param, text, &number))
            return false;
        *(double *)field = number;
        return true;
    }
    default:
        if (param->choices)
            return to_choice(memory, param, text, field);
        *(const char **)field = kvt__arena_text(memory, text, strlen(text));
        return true;
    }
}

static void
note_wrong(struct kvt__reading *r, const struct kvt__param *param, const char *key,
           const struct kvt__node *node)
{
    char allowed[160];

    kvt__allowed(param, allowed, sizeof allowed);
    if (node->kind == KVT__LIST || node->kind == KVT__MAP)
        kvt__note(r, KVT__ERROR, key, node->origin, "%s is a %s (%s): use %s.", key,
                  node->kind == KVT__LIST ? "list" : "map", node->origin, allowed);
    else
        kvt__note(r, KVT__ERROR, key, node->origin, "%s is '%.60s' (%s): use %s.", key,
                  node->text, node->origin, allowed);
}

bool
kvt__set_value(struct kvt__reading *r, struct kvt_config *config,
               const struct kvt__param *param, const char *key,
               const struct kvt__node *node)
{
    void *field = (char *)config + param->offset;
    const struct kvt__problem *before = r->last_problem;
    bool done = false;

    /* An empty value means the default. */
    if (kvt__node_is_empty(node)) {
        memcpy(field, (char *)r->defaults + param->offset, field_size(param->type));
        return true;
    }
    if (param->type == KVT__JSON)
        done = set_json(r, field, key, node);
    else if (param->type >= KVT__INTS)
        done = set_list(r, field, param, key, node);
    else if (node->kind == KVT__SCALAR)
        done = set_scalar(r, field, param, node->text);
    if (!done && r->last_problem == before)
        note_wrong(r, param, key, node);
    return done;
}
