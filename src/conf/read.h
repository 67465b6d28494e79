/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal to conf: reading the sources.  yaml.c, json.c and environment.c convert each source
 * to a tree of nodes; apply.c merges the trees by precedence, and value.c converts nodes to
 * typed fields.
 *
 * A reading (struct kvt__reading) is one pass over all sources.  One thread uses a reading.  The
 * reading's arena owns nodes, problems and texts.  Functions do not return errors: a function
 * that notes a problem appends the problem to the reading, and a lack of memory sets
 * memory.failed. */
#ifndef KVT_CONF_READ_H
#define KVT_CONF_READ_H

#include <jansson.h>

#include "conf/conf.h"
#include "kvtier.h"

/* ------------------------------------------------------------------- table */

enum kvt__param_type {
    KVT__BOOL, KVT__INT, KVT__FLOAT, KVT__STR,
    KVT__INTS, KVT__FLOATS, KVT__STRS, KVT__JSON,
};

/* The places of a key in a file: at the top; inside extra_config, accepted at the top too; kvtier's
 * own keys, allowed in both places. */
enum kvt__param_scope { KVT__TOP, KVT__EXTRA, KVT__BOTH };

enum kvt__param_status {
    KVT__ACTIVE,
    KVT__SECRET, /* active; messages and dumps never show the value */
    /* The feature that kvtier lacks; the setting has no effect. */
#define KVT_STATUS(id, text) KVT__##id,
#include "conf/params.def"
};

/* A row KVT_PARAM of params.def. */
struct kvt__param {
    const char *name;
    enum kvt__param_type type;
    enum kvt__param_scope scope;
    enum kvt__param_status status;
    const char *fallback; /* default as text; NULL: unset */
    double min, max;      /* min == max: no limits */
    const char *choices;  /* "a|b"; NULL: any text */
    const char *unit;
    const char *text;
    size_t offset;        /* offset of the field in struct kvt_config */
};

extern const struct kvt__param kvt__params[KVT__N_PARAMS];

/* An older name of a setting, a row KVT_ALIAS of params.def. */
struct kvt__alias {
    const char *name;
    enum kvt__param_at real;
    const char *value; /* the older key is a truth value, and true stands for this value; NULL: both
                        * keys have equal values */
};

/* A family of keys, a row KVT_PATTERN of params.def: prefix, any name, suffix. */
struct kvt__pattern {
    const char *prefix;
    const char *suffix;
    struct kvt__param param;
};

/* Find a row by name.  NULL: no row has this name. */
const struct kvt__param *kvt__find_param(const char *name);
const struct kvt__alias *kvt__find_alias(const char *name);
const struct kvt__pattern *kvt__find_pattern(const char *name);

/* Return true if the name is a row KVT_VARIABLE. */
bool kvt__is_known_variable(const char *name);

/* Return the known key that is most similar to name; NULL: no key is similar. */
const char *kvt__nearest_key(const char *name);

/* Return the known variable that begins with prefix and is most similar to name; NULL: no variable
 * is similar.  The result may be in buf. */
const char *kvt__nearest_variable(const char *name, const char *prefix,
                                  char *buf, size_t size);

/* Return the title of the section that contains the setting.  at: an enum kvt__param_at. */
const char *kvt__param_section(size_t at);

/* Return family number i; NAME in the family's name is the variable part.  NULL: i is too
 * large. */
const struct kvt__param *kvt__family(size_t i);

/* Write the older names of setting `at`, separated by commas. */
void kvt__old_names(size_t at, char *buf, size_t size);

/* Return the feature that kvtier lacks, as kvt_param_info.not_done; "" if the setting has an
 * effect. */
const char *kvt__status_text(enum kvt__param_status status);

/* Write the allowed values: "a whole number from 1 to 1048576 (tokens)". */
void kvt__allowed(const struct kvt__param *param, char *buf, size_t size);

/* ------------------------------------------------------------------- nodes */

enum kvt__node_kind { KVT__NULL, KVT__SCALAR, KVT__LIST, KVT__MAP };

/* Limits of a source: number of nodes and depth of nesting. */
enum { KVT__MAX_NODES = 8192, KVT__MAX_DEPTH = 32 };

struct kvt__node {
    enum kvt__node_kind kind;
    bool quoted;            /* SCALAR: always text, never a number or truth value */
    const char *text;       /* SCALAR */
    const char *key;        /* if the node is a member of a MAP */
    const char *origin;     /* source of the node, for messages */
    struct kvt__node *next; /* in the same LIST or MAP */
    struct kvt__node *first, *last;
    size_t n;
};

/* ----------------------------------------------------------------- reading */

/* The sources, from the lowest to the highest precedence. */
enum kvt__source_level {
    KVT__FROM_DEFAULT, KVT__FROM_FILE, KVT__FROM_LMCACHE, KVT__FROM_KVTIER,
    KVT__FROM_CONNECTOR, KVT__FROM_SETTING,
    KVT__N_LEVELS
};

/* The severity of a problem.  An unknown key is a warning, or an error in strict mode. */
enum kvt__severity { KVT__WARNING, KVT__UNKNOWN, KVT__ERROR };

struct kvt__problem {
    struct kvt__problem *next;
    enum kvt__severity severity;
    const char *key;
    const char *origin;
    const char *text;
};

struct kvt__reading {
    struct kvt_config *config;
    struct kvt_config *defaults;        /* all defaults, to compare with */
    const char *const *environment;
    struct kvt__arena memory;           /* for nodes and problems */
    struct kvt__node *source[KVT__N_LEVELS]; /* MAP; NULL: the source is empty */
    bool by_alias[KVT__N_PARAMS];       /* an older name has set the value */
    /* For each setting: the last node with an older name, and the source of the node.  A node with
     * the newer name may overrule this node. */
    struct {
        const struct kvt__node *node;
        enum kvt__source_level level;
    } old[KVT__N_PARAMS];
    bool has_noted_ec;                  /* the list has the problem of the settings ec_* */
    size_t n_nodes;
    struct kvt__problem *problems, *last_problem;
};

/* Append a problem of a key to the list; key NULL: a problem of the whole source. */
void kvt__note(struct kvt__reading *r, enum kvt__severity severity, const char *key,
               const char *origin, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Allocate a node.  NULL: no memory, or too many nodes; the reading has recorded the failure. */
struct kvt__node *
kvt__node_new(struct kvt__reading *r, enum kvt__node_kind kind, const char *origin);
struct kvt__node *
kvt__node_scalar(struct kvt__reading *r, const char *text, const char *origin);

/* Append child to a LIST, or to a MAP as member `key`.  The child replaces an earlier member with
 * the same key, and a problem is noted. */
void kvt__node_add(struct kvt__reading *r, struct kvt__node *parent,
                   const char *key, struct kvt__node *child);

/* Return a member of a MAP; NULL: there is no such member, or map is NULL. */
struct kvt__node *
kvt__node_member(const struct kvt__node *map, const char *key);

/* Return true if the node is null or an empty text. */
bool kvt__node_is_empty(const struct kvt__node *node);

/* Convert text to a tree of nodes.  NULL: the text is invalid, and a problem is noted; or, for
 * YAML, the text is empty. */
struct kvt__node *kvt__read_yaml(struct kvt__reading *r, const char *text,
                                 size_t n_bytes, const char *file);
struct kvt__node *kvt__read_json(struct kvt__reading *r, const char *text,
                                 const char *key, const char *origin);

/* Convert a node to JSON: plain YAML scalars become whole numbers, text or null.  The caller
 * owns the reference.  NULL: no memory. */
json_t *kvt__node_json(const struct kvt__node *node);

/* Convert text to JSON; bytes that are not UTF-8 become '?'.  The caller owns the reference.  NULL:
 * no memory. */
json_t *kvt__text_json(const char *text);

/* Fill r->source[] for the LMCACHE_ and KVTIER_ variables. */
void kvt__read_environment(struct kvt__reading *r);

/* Copy the environment of the sources into the configuration; do nothing for the environment of the
 * process. */
void kvt__keep_environment(struct kvt__reading *r);

/* Note unknown and unconfigured tiers in retrieve_locations and store_location. */
void kvt__check_locations(struct kvt__reading *r);

/* Note an invalid gpu_to_numa_mapping, or a missing mapping with numa_mode manual. */
void kvt__check_numa(struct kvt__reading *r);

/* Return the setting KIND_base_path of a plug-in's kind; NULL: the kind has no such setting. */
const struct kvt__param *kvt__base_path_of(const char *plugin);

/* The check of each backend, in the backend's folder: note settings that contradict each other or
 * have no effect, and normalise the settings' values. */
#define KVT_CHECK(kind) void kvt__check_##kind(struct kvt__reading *r);
#include "conf/params.def"

/* Rewrite the nested form storage_backend: {...} into flat keys. */
void kvt__flatten_nested(struct kvt__reading *r, struct kvt__node *map);

/* Fill r->config from the defaults and all sources, and check the result. */
void kvt__apply(struct kvt__reading *r);

/* ------------------------------------------------------------------ values */

/* Convert the node's value and store the value in the field of param in config.  Return false if
 * the type or the range is wrong: a problem is noted, and the field stays unchanged. */
bool kvt__set_value(struct kvt__reading *r, struct kvt_config *config,
                    const struct kvt__param *param, const char *key,
                    const struct kvt__node *node);

/* Return the truth value of a word: 1, 0, or -1 if text is not a truth value. */
int kvt__bool_word(const char *text);

/* Convert a field to JSON.  The caller owns the reference.  NULL: no memory. */
json_t *
kvt__value_json(const struct kvt_config *config, const struct kvt__param *param);

/* A key of a family (KVT_PATTERN) and the key's value. */
struct kvt__named {
    struct kvt__named *next;
    const char *key; /* in the newest spelling */
    const char *value;
    const char *origin;
};

#endif
