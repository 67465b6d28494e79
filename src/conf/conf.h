/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective settings.  Each setting is a typed field with the name of its key, for instance
 * config->chunk_size or config->remote_url.  kvt_config_open() makes a configuration, which never
 * changes afterwards: any thread may read it.  The configuration owns all texts and lists. */
#ifndef KVT_CONF_CONF_H
#define KVT_CONF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf/arena.h"

struct kvt__ints {
    size_t n;
    const int64_t *items;
};

struct kvt__floats {
    size_t n;
    const double *items;
};

struct kvt__strs {
    size_t n;
    const char *const *items;
};

/* KVT__AT_chunk_size ...: the index of a setting in kvt__params (conf/read.h). */
enum kvt__param_at {
#define KVT_PARAM(type, name, def, range, unit, scope, status, text) \
    KVT__AT_##name,
#include "conf/params.def"
    KVT__N_PARAMS
};

typedef bool kvt__field_BOOL;
typedef int64_t kvt__field_INT;
typedef double kvt__field_FLOAT;
typedef const char *kvt__field_STR;
typedef struct kvt__ints kvt__field_INTS;
typedef struct kvt__floats kvt__field_FLOATS;
typedef struct kvt__strs kvt__field_STRS;
typedef const char *kvt__field_JSON; /* compact JSON text */

struct kvt_config {
#define KVT_PARAM(type, name, def, range, unit, scope, status, text) \
    kvt__field_##type name;
#include "conf/params.def"
    const char *origin[KVT__N_PARAMS]; /* "default", "file x.yaml:12", ... */
    uint8_t level[KVT__N_PARAMS];      /* enum kvt__source_level */
    struct kvt__named *named;          /* keys with a variable part, rows KVT_PATTERN of params.def;
                                        * newest first */
    const char *const *environment;    /* environment of this configuration, for variables that
                                        * are not settings; NULL: the process's environment */
    struct kvt__arena memory;
};

/* Return true if a source sets the setting: kvt__config_is_set(config, s3_region). */
#define kvt__config_is_set(config, name) \
    ((config)->level[KVT__AT_##name] != 0)

/* Return the value of a variable, which points into the environment; NULL: not set.  environment:
 * as config->environment. */
const char *kvt__variable(const char *const *environment, const char *name);

/* Return the source of a setting, for messages. */
#define kvt__config_origin(config, name) ((config)->origin[KVT__AT_##name])

/* Return remote_storage_plugin.<plugin>.base_path of extra_config, or else the plug-in kind's
 * setting <kind>_base_path; NULL: neither is set. */
const char *
kvt__config_base_path(const struct kvt_config *config, const char *plugin);

/* Return remote_storage_plugin.<plugin>.remote_serde of extra_config, or else remote_serde. */
const char *
kvt__config_plugin_serde(const struct kvt_config *config, const char *plugin);

/* The storage that a setting of a backend names: a row KVT_STORAGE of params.def.  The texts
 * live as long as the configuration. */
struct kvt__storage_setting {
    const char *scheme;   /* "gds://" */
    const char *setting;  /* "gds_path" */
    const char *location; /* LMCache's name */
    const char *value;    /* the part of the URL behind the scheme; NULL: not configured */
    double limit_gib;     /* 0: not set */
    bool is_per_worker;   /* the limit applies to each worker separately */
    const char *serde;    /* encoding of new chunks */
};

/* Fill *out with the i-th storage setting.  Return false if i is too large. */
bool kvt__config_storage(const struct kvt_config *config, size_t i,
                         struct kvt__storage_setting *out);

/* Return the memory node of a device from gpu_to_numa_mapping, which must be set, in *node.
 * Return 0, or -EINVAL with a sentence: the mapping lacks the device. */
int kvt__config_numa_node(const struct kvt_config *config, uint32_t device, int *node);

#endif
