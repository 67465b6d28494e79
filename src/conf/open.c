/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls: read the sources, apply them, and report the problems.  kvt_config_open() logs
 * warnings and returns the first error; kvt_config_check() passes all problems to a callback. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "conf/read.h"

/* Limit of a configuration file, so that a wrong file does not fill the memory. */
enum { MAX_FILE_BYTES = 1 << 20 };

extern char **environ;

static int
read_file(struct kvt__reading *r, const char *path)
{
    char *text = kvt__arena_alloc(&r->memory, MAX_FILE_BYTES + 1);
    size_t used = 0;
    ssize_t n;

    if (!text)
        return kvt__fail(ENOMEM, "configuration file %s", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kvt__fail(errno, "configuration file %s", path);
    do {
        n = read(fd, text + used, MAX_FILE_BYTES + 1 - used);
        if (n > 0)
            used += (size_t)n;
    } while ((n > 0 && used <= MAX_FILE_BYTES) || (n < 0 && errno == EINTR));
    int err = n < 0 ? errno : 0;
    close(fd);
    if (err)
        return kvt__fail(err, "configuration file %s", path);
    if (used > MAX_FILE_BYTES)
        return kvt__fail(EINVAL, "configuration file %s is larger than 1 MiB.", path);
    r->source[KVT__FROM_FILE] = kvt__read_yaml(r, text, used, path);
    return 0;
}

static const char *
config_path(const struct kvt_config_sources *sources)
{
    if (sources->file)
        return sources->file;
    const char *path = kvt__variable(sources->environment, "KVTIER_CONFIG_FILE");
    if (!path || !*path)
        path = kvt__variable(sources->environment, "LMCACHE_CONFIG_FILE");
    return path && *path ? path : NULL;
}

/* Copy the members of `from` whose keys begin with prefix to map, without the prefix.  prefix "":
 * copy the members without one of the prefixes lmcache. and kvtier. */
static void
copy_prefixed(struct kvt__reading *r, const struct kvt__node *from, const char *prefix,
              struct kvt__node *map)
{
    size_t skip = strlen(prefix);

    for (const struct kvt__node *node = from->first; node; node = node->next) {
        bool plain = strncmp(node->key, "lmcache.", 8) && strncmp(node->key, "kvtier.", 7);

        if (skip ? strncmp(node->key, prefix, skip) != 0 : !plain)
            continue;
        /* kvtier.x wins over lmcache.x, without a problem. */
        struct kvt__node *older = kvt__node_member(map, node->key + skip);
        struct kvt__node *copy =
            older ? older : kvt__arena_alloc(&r->memory, sizeof *copy);
        if (!copy)
            return;
        struct kvt__node *next = copy->next;
        *copy = *node;
        copy->key = node->key + skip;
        copy->next = next;
        if (!older)
            kvt__node_add(r, map, copy->key, copy);
    }
}

static void
read_connector(struct kvt__reading *r, const char *json)
{
    static const char origin[] = "kv_connector_extra_config";
    struct kvt__node *tree = kvt__read_json(r, json, origin, "argument");
    struct kvt__node *map = kvt__node_new(r, KVT__MAP, origin);

    if (!tree || !map)
        return;
    if (tree->kind != KVT__MAP) {
        kvt__note(r, KVT__ERROR, origin, origin, "%s: use a JSON object.", origin);
        return;
    }
    for (struct kvt__node *node = tree->first; node; node = node->next)
        node->origin = origin;
    copy_prefixed(r, tree, "", map);
    copy_prefixed(r, tree, "lmcache.", map);
    copy_prefixed(r, tree, "kvtier.", map);
    r->source[KVT__FROM_CONNECTOR] = map;
}

static void
read_settings(struct kvt__reading *r, const char *const *settings)
{
    struct kvt__node *map = kvt__node_new(r, KVT__MAP, "argument");

    for (; map && *settings; settings++) {
        const char *equals = strchr(*settings, '=');

        if (!equals) {
            kvt__note(r, KVT__ERROR, *settings, "argument",
                      "setting '%.80s': write key=value.", *settings);
            continue;
        }
        const char *key = kvt__arena_text(&r->memory, *settings,
                                          (size_t)(equals - *settings));
        struct kvt__node *value = kvt__node_scalar(r, equals + 1, "argument");
        if (value)
            kvt__node_add(r, map, key, value);
    }
    r->source[KVT__FROM_SETTING] = map;
}

/* Read and apply all sources.  Return 0, or -errno with a sentence if a source cannot be read. */
static int
read_sources(struct kvt__reading *r, const struct kvt_config_sources *sources)
{
    const char *path = config_path(sources);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    /* Numbers have a decimal point in every locale of the host program. */
    locale_t before = plain ? uselocale(plain) : (locale_t)0;

    int err = path ? read_file(r, path) : 0;
    if (!err) {
        kvt__keep_environment(r);
        kvt__read_environment(r);
        if (sources->connector_json && *sources->connector_json)
            read_connector(r, sources->connector_json);
        if (sources->settings)
            read_settings(r, sources->settings);
        kvt__apply(r);
    }
    if (plain) {
        uselocale(before);
        freelocale(plain);
    }
    if (!err && (r->memory.failed || r->config->memory.failed))
        err = kvt__fail(ENOMEM, "configuration");
    return err;
}

/* Initialize a reading, and copy the caller's sources, with defaults for missing fields. */
static int
reading_init(struct kvt__reading *r, struct kvt_config_sources *sources,
             const struct kvt_config_sources *given)
{
    memset(r, 0, sizeof *r);
    memset(sources, 0, sizeof *sources);
    if (given)
        memcpy(sources, given, given->struct_size < sizeof *sources ? given->struct_size
                                                                    : sizeof *sources);
    if (!sources->environment)
        sources->environment = (const char *const *)environ;
    r->environment = sources->environment;
    r->config = calloc(1, sizeof *r->config);
    r->defaults = calloc(1, sizeof *r->defaults);
    return r->config && r->defaults ? 0 : kvt__fail(ENOMEM, "configuration");
}

static void
reading_fini(struct kvt__reading *r)
{
    kvt__arena_free(&r->memory);
    free(r->defaults);
}

static bool
is_error(const struct kvt__problem *problem, bool strict)
{
    return problem->severity == KVT__ERROR ||
           (problem->severity == KVT__UNKNOWN && strict);
}

int
kvt_config_open(const struct kvt_config_sources *given, struct kvt_config **out)
{
    const struct kvt__problem *first_error = NULL;
    struct kvt_config_sources sources;
    struct kvt__reading r;

    *out = NULL;
    int err = reading_init(&r, &sources, given);
    if (!err)
        err = read_sources(&r, &sources);
    for (struct kvt__problem *p = err ? NULL : r.problems; p; p = p->next) {
        if (!is_error(p, sources.strict || r.config->strict_config))
            kvt__log(KVT_LOG_WARN, "%s", p->text);
        else if (!first_error)
            first_error = p;
    }
    if (first_error) {
        kvt__set_why(first_error->text);
        err = -EINVAL;
    }
    if (err)
        kvt_config_free(r.config);
    else
        *out = r.config;
    reading_fini(&r);
    return err;
}

int
kvt_config_check(const struct kvt_config_sources *given, kvt_config_problem_fn fn,
                 void *ctx)
{
    struct kvt_config_sources sources;
    struct kvt__reading r;

    int err = reading_init(&r, &sources, given);
    if (!err)
        err = read_sources(&r, &sources);
    for (struct kvt__problem *p = err ? NULL : r.problems; p; p = p->next) {
        const struct kvt_config_problem problem = {
            .key = p->key,
            .origin = p->origin,
            .text = p->text,
            .is_error = is_error(p, true),
        };

        if (problem.is_error && !err) {
            kvt__set_why(p->text);
            err = -EINVAL;
        }
        fn(ctx, &problem);
    }
    kvt_config_free(r.config);
    reading_fini(&r);
    return err;
}

void
kvt_config_free(struct kvt_config *config)
{
    if (!config)
        return;
    kvt__arena_free(&config->memory);
    free(config);
}
