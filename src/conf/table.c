/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of settings (params.def) as data, and the search for names in the table.  The data is
 * constant: any thread. */
#include <stdio.h>
#include <string.h>

#include "conf/read.h"

#define RANGE(least, greatest) .min = (least), .max = (greatest)
#define CHOICE(words) .choices = (words)
#define ANY .choices = NULL

const struct kvt__param kvt__params[KVT__N_PARAMS] = {
#define KVT_PARAM(type_, name_, def_, range_, unit_, scope_, status_, text_) \
    { #name_, KVT__##type_, KVT__##scope_, KVT__##status_, def_,             \
      .unit = unit_, .text = text_,                                         \
      .offset = offsetof(struct kvt_config, name_), range_ },
#include "conf/params.def"
};

#undef RANGE
#undef CHOICE
#undef ANY

static const struct kvt__alias aliases[] = {
#define KVT_ALIAS(old, new, value) { #old, KVT__AT_##new, value },
#include "conf/params.def"
};

static const struct kvt__pattern patterns[] = {
#define KVT_PATTERN(prefix, suffix, type_, status_, text_)              \
    { prefix, suffix, { prefix "NAME" suffix, KVT__##type_, KVT__EXTRA, \
                        KVT__##status_, .unit = "", .text = text_ } },
#include "conf/params.def"
};

static const char *const variables[] = {
#define KVT_VARIABLE(name) #name,
#include "conf/params.def"
};

static const char *const status_texts[] = {
    "", "",
#define KVT_STATUS(id, text) text,
#include "conf/params.def"
};

/* KVT__SECTION_x is the index of the section's first setting.  A section must not use a number of
 * the enumeration, so KVT__SECTION_BACK_x steps back by 1. */
enum {
#define KVT_PARAM(type, name, def, range, unit, scope, status, text) \
    KVT__SECTION_HAS_##name,
#define KVT_SECTION(id, title) \
    KVT__SECTION_##id, KVT__SECTION_BACK_##id = KVT__SECTION_##id - 1,
#include "conf/params.def"
};

static const struct {
    size_t first;
    const char *title;
} sections[] = {
#define KVT_SECTION(id, title) { KVT__SECTION_##id, title },
#include "conf/params.def"
};

/* Keys that contain settings. */
static const char *const containers[] = {
    "extra_config", "storage_backend", "local_device",
};

#define N(array) (sizeof(array) / sizeof *(array))

const struct kvt__param *
kvt__find_param(const char *name)
{
    for (size_t i = 0; i < N(kvt__params); i++)
        if (!strcmp(name, kvt__params[i].name))
            return &kvt__params[i];
    return NULL;
}

const struct kvt__alias *
kvt__find_alias(const char *name)
{
    for (size_t i = 0; i < N(aliases); i++)
        if (!strcmp(name, aliases[i].name))
            return &aliases[i];
    return NULL;
}

const struct kvt__pattern *
kvt__find_pattern(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < N(patterns); i++) {
        size_t before = strlen(patterns[i].prefix);
        size_t after = strlen(patterns[i].suffix);

        if (len > before + after && !strncmp(name, patterns[i].prefix, before) &&
            !strcmp(name + len - after, patterns[i].suffix))
            return &patterns[i];
    }
    return NULL;
}

const struct kvt__param *
kvt__family(size_t i)
{
    return i < N(patterns) ? &patterns[i].param : NULL;
}

void
kvt__old_names(size_t at, char *buf, size_t size)
{
    size_t used = 0;

    *buf = 0;
    for (size_t i = 0; i < N(aliases) && used < size; i++)
        if ((size_t)aliases[i].real == at) {
            int n = snprintf(buf + used, size - used, "%s%s", used ? ", " : "",
                             aliases[i].name);
            used += n < 0 ? 0 : (size_t)n;
        }
}

bool
kvt__is_known_variable(const char *name)
{
    for (size_t i = 0; i < N(variables); i++)
        if (!strcmp(name, variables[i]))
            return true;
    return false;
}

const char *
kvt__param_section(size_t at)
{
    const char *title = "";

    for (size_t i = 0; i < N(sections); i++)
        if (sections[i].first <= at)
            title = sections[i].title;
    return title;
}

const char *
kvt__status_text(enum kvt__param_status status)
{
    return status_texts[status];
}

/* ----------------------------------------------------------- nearest names */

enum { LONGEST = 64 };

/* Return the number of edits that change a into b: insertions, deletions, replacements and swaps
 * of adjacent characters. */
static size_t
edit_distance(const char *a, const char *b)
{
    size_t row[3][LONGEST + 1];
    size_t n_a = strlen(a), n_b = strlen(b);

    if (n_a > LONGEST || n_b > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= n_b; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *now = row[i % 3], *before = row[(i + 2) % 3];
        const size_t *two_before = row[(i + 1) % 3];

        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = before[j - 1] + (a[i - 1] != b[j - 1]);

            if (before[j] + 1 < best)
                best = before[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_before[j - 2] + 1 < best)
                best = two_before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n_a % 3][n_b];
}

struct nearest {
    const char *wanted;
    const char *name;
    size_t distance;
};

static void
keep_nearest(struct nearest *best, const char *name)
{
    size_t distance = edit_distance(best->wanted, name);

    if (distance < best->distance) {
        best->distance = distance;
        best->name = name;
    }
}

/* Return the limit of edits for a typing error; a name with more edits is another word. */
static size_t
max_distance(const char *name)
{
    return 2 + strlen(name) / 4;
}

const char *
kvt__nearest_key(const char *name)
{
    struct nearest best = { name, NULL, max_distance(name) };

    for (size_t i = 0; i < N(kvt__params); i++)
        keep_nearest(&best, kvt__params[i].name);
    for (size_t i = 0; i < N(containers); i++)
        keep_nearest(&best, containers[i]);
    for (size_t i = 0; i < N(aliases); i++)
        keep_nearest(&best, aliases[i].name);
    return best.name;
}

const char *
kvt__nearest_variable(const char *name, const char *prefix, char *buf, size_t size)
{
    struct nearest best = { name, NULL, max_distance(name) };
    char key[LONGEST + 1];
    size_t skip = strlen(prefix);

    for (size_t i = 0; i < N(variables); i++)
        keep_nearest(&best, variables[i]);
    snprintf(key, sizeof key, "%s", name + skip);
    for (char *c = key; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');

    const char *near_key = kvt__nearest_key(key);
    if (!near_key || edit_distance(key, near_key) >= best.distance)
        return best.name;
    snprintf(buf, size, "%s%s", prefix, near_key);
    for (char *c = buf; *c; c++)
        if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 'a' + 'A');
    return buf;
}

/* ------------------------------------------------------------ what is allowed */

/* "LRU|LFU|FIFO" becomes "LRU, LFU or FIFO". */
static void
choices_text(const char *choices, char *buf, size_t size)
{
    size_t used = 0;

    for (const char *word = choices; *word && used < size;) {
        size_t len = strcspn(word, "|");
        const char *after = word + len + (word[len] == '|');
        const char *between = word == choices ? "" : *after ? ", " : " or ";
        int n = snprintf(buf + used, size - used, "%s%.*s", between, (int)len, word);

        used += n < 0 ? 0 : (size_t)n;
        word = after;
    }
}

void
kvt__allowed(const struct kvt__param *param, char *buf, size_t size)
{
    static const char *const names[] = {
        [KVT__BOOL] = "true or false",
        [KVT__INT] = "a whole number",
        [KVT__FLOAT] = "a number",
        [KVT__STR] = "text",
        [KVT__INTS] = "a list of whole numbers",
        [KVT__FLOATS] = "a list of numbers",
        [KVT__STRS] = "a list of texts",
        [KVT__JSON] = "a map",
    };
    char range[64] = "";

    if (param->choices) {
        choices_text(param->choices, buf, size);
        return;
    }
    if (param->min < param->max)
        snprintf(range, sizeof range, " from %.15g to %.15g", param->min, param->max);
    snprintf(buf, size, "%s%s%s%s", names[param->type], range,
             *param->unit ? " " : "", param->unit);
}
