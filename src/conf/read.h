/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the room: how the sources are read.  Each source becomes a tree of
 * nodes (yaml.c, json.c, environment.c); apply.c lays the trees over each other
 * and value.c turns nodes into typed fields.  One thread a reading. */
#ifndef KVT_CONF_READ_H
#define KVT_CONF_READ_H

#include <jansson.h>

#include "conf/conf.h"
#include "kvtier.h"

/* ------------------------------------------------------------------- table */

enum kvt__type {
    KVT__BOOL, KVT__INT, KVT__FLOAT, KVT__STR,
    KVT__INTS, KVT__FLOATS, KVT__STRS, KVT__JSON,
};

enum kvt__scope { KVT__TOP, KVT__EXTRA, KVT__BOTH };

enum kvt__status {
    KVT__ACTIVE,
    KVT__SECRET,
#define KVT_STATUS(id, text) KVT__##id,
#include "conf/params.def"
};

struct kvt__param {
    const char *name;
    enum kvt__type type;
    enum kvt__scope scope;
    enum kvt__status status;
    const char *fallback; /* the default as text; NULL: unset */
    double min, max;      /* min == max: any */
    const char *choices;  /* "a|b"; NULL: any */
    const char *unit;
    const char *text;
    size_t offset;        /* of the field in struct kvt_config */
};

extern const struct kvt__param kvt__params[KVT__N_PARAMS];

struct kvt__alias {
    const char *name;
    enum kvt__param_at real;
    const char *value; /* what true stands for; NULL: the value itself */
};

struct kvt__pattern {
    const char *prefix;
    const char *suffix;
    struct kvt__param param;
};

/* NULL: no such. */
const struct kvt__param *kvt__find_param(const char *name);
const struct kvt__alias *kvt__find_alias(const char *name);
const struct kvt__pattern *kvt__find_pattern(const char *name);

bool kvt__is_known_variable(const char *name);

/* The known key nearest to what was written; NULL: none is near. */
const char *kvt__nearest_key(const char *name);

/* The same among variables that begin with prefix; buf holds the answer. */
const char *kvt__nearest_variable(const char *name, const char *prefix,
                                  char *buf, size_t size);

/* The section a setting stands in. */
const char *kvt__param_section(size_t at);

/* Family number i, its name with NAME for what varies; NULL: no such. */
const struct kvt__param *kvt__family(size_t i);

/* The older names of setting at, with commas between. */
void kvt__old_names(size_t at, char *buf, size_t size);

/* What kvtier does not do, "" where it does. */
const char *kvt__status_text(enum kvt__status status);

/* "a whole number from 1 to 1048576 (tokens)". */
void kvt__allowed(const struct kvt__param *param, char *buf, size_t size);

/* ------------------------------------------------------------------- nodes */

enum kvt__kind { KVT__NULL, KVT__SCALAR, KVT__LIST, KVT__MAP };

/* The most nodes and the deepest nesting a source may have. */
enum { KVT__MAX_NODES = 8192, KVT__MAX_DEPTH = 32 };

struct kvt__node {
    enum kvt__kind kind;
    bool quoted;            /* SCALAR: text and nothing else */
    const char *text;       /* SCALAR */
    const char *key;        /* member of a MAP */
    const char *origin;     /* where it was written */
    struct kvt__node *next; /* in the same LIST or MAP */
    struct kvt__node *first, *last;
    size_t n;
};

/* ----------------------------------------------------------------- reading */

enum kvt__level {
    KVT__FROM_DEFAULT, KVT__FROM_FILE, KVT__FROM_LMCACHE, KVT__FROM_KVTIER,
    KVT__FROM_CONNECTOR, KVT__FROM_SETTING,
    KVT__N_LEVELS
};

/* How bad: an unknown key is a warning, or an error when strict. */
enum kvt__gravity { KVT__WARNING, KVT__UNKNOWN, KVT__ERROR };

struct kvt__problem {
    struct kvt__problem *next;
    enum kvt__gravity gravity;
    const char *key;
    const char *origin;
    const char *text;
};

struct kvt__reading {
    struct kvt_config *config;
    struct kvt_config *defaults;        /* to see what differs from them */
    const char *const *environment;
    struct kvt__memory memory;          /* of nodes and problems */
    struct kvt__node *source[KVT__N_LEVELS]; /* MAP, or NULL: nothing there */
    bool by_alias[KVT__N_PARAMS];
    /* The older name of a setting that was written last, and where, whether it counts or
     * not. */
    struct {
        const struct kvt__node *node;
        enum kvt__level level;
    } old[KVT__N_PARAMS];
    bool said_ec;
    size_t n_nodes;
    struct kvt__problem *problems, *last_problem;
};

/* Note a problem of a key (NULL: of the source). */
void kvt__note(struct kvt__reading *r, enum kvt__gravity gravity, const char *key,
               const char *origin, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* A new node; NULL: no memory or too many, which is then noted. */
struct kvt__node *
kvt__node_new(struct kvt__reading *r, enum kvt__kind kind, const char *origin);
struct kvt__node *
kvt__node_scalar(struct kvt__reading *r, const char *text, const char *origin);

/* Put child at the end of a LIST, or of a MAP under key, where it replaces an
 * older member (and a problem is noted). */
void kvt__node_add(struct kvt__reading *r, struct kvt__node *parent,
                   const char *key, struct kvt__node *child);

struct kvt__node *
kvt__node_member(const struct kvt__node *map, const char *key);

/* Nothing is written there. */
bool kvt__node_is_empty(const struct kvt__node *node);

/* A source's text as a tree.  NULL: it was no such text (noted), or, for YAML,
 * it was empty. */
struct kvt__node *kvt__read_yaml(struct kvt__reading *r, const char *text,
                                 size_t n_bytes, const char *file);
struct kvt__node *kvt__read_json(struct kvt__reading *r, const char *text,
                                 const char *key, const char *origin);

/* A node as JSON: plain YAML scalars become numbers, booleans or null. */
json_t *kvt__node_json(const struct kvt__node *node);

/* Text as JSON; what is no UTF-8 becomes '?'.  NULL: no memory. */
json_t *kvt__text_json(const char *text);

/* Fill r->source[] for the LMCACHE_ and KVTIER_ variables. */
void kvt__read_environment(struct kvt__reading *r);

/* Keep a copy of an environment that is not the process's own. */
void kvt__keep_environment(struct kvt__reading *r);

/* Note names of tiers in retrieve_locations and store_location that are none. */
void kvt__check_locations(struct kvt__reading *r);

/* Note a gpu_to_numa_mapping that is none, or is missing. */
void kvt__check_numa(struct kvt__reading *r);

/* The setting KIND_base_path of a plug-in of this kind; NULL: the kind has none. */
const struct kvt__param *kvt__base_path_of(const char *plugin);

/* Of each backend, in its folder: note settings that contradict each other or have no
 * effect, and normalise their values. */
#define KVT_CHECK(kind) void kvt__check_##kind(struct kvt__reading *r);
#include "conf/params.def"

/* Rewrite the nested form storage_backend: {...} into flat keys. */
void kvt__flatten_nested(struct kvt__reading *r, struct kvt__node *map);

/* Lay all sources over the defaults. */
void kvt__apply(struct kvt__reading *r);

/* ------------------------------------------------------------------ values */

/* Convert node to the field of param in config.  False: its type or range is
 * wrong (noted); the field is as before. */
bool kvt__set_value(struct kvt__reading *r, struct kvt_config *config,
                    const struct kvt__param *param, const char *key,
                    const struct kvt__node *node);

/* One truth value in words: 1, 0, or -1 when it is none. */
int kvt__bool_word(const char *text);

/* A field as JSON; NULL: no memory. */
json_t *
kvt__value_json(const struct kvt_config *config, const struct kvt__param *param);

/* A key of a family. */
struct kvt__named {
    struct kvt__named *next;
    const char *key; /* in its newest spelling */
    const char *value;
    const char *origin;
};

#endif
