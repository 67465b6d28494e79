/* SPDX-License-Identifier: Apache-2.0
 *
 * See conf-test.h. */
#include "conf-test.h"

#include <errno.h>

struct conf_log conf_log;

static char directory[] = "/tmp/kvt-conf-XXXXXX";

static void
keep_line(void *ctx, enum kvt_log_level level, const char *line)
{
    size_t used = strlen(conf_log.text);

    (void)ctx;
    assert_int_equal(level, KVT_LOG_WARN);
    snprintf(conf_log.text + used, sizeof conf_log.text - used, "%s\n", line);
    conf_log.n_lines++;
}

int
conf_setup(void **state)
{
    (void)state;
    kvt_set_log(keep_line, NULL, KVT_LOG_DEBUG);
    return !mkdtemp(directory) || chdir(directory);
}

int
conf_teardown(void **state)
{
    (void)state;
    unlink("lmcache.yaml");
    return chdir("/") || rmdir(directory);
}

const char *
conf_file(const char *yaml)
{
    if (!yaml)
        return NULL;
    FILE *f = fopen("lmcache.yaml", "w");
    assert_non_null(f);
    fputs(yaml, f);
    assert_int_equal(fclose(f), 0);
    return "lmcache.yaml";
}

struct kvt_config *
conf_open_all(const struct kvt_config_sources *sources)
{
    struct kvt_config *config;

    memset(&conf_log, 0, sizeof conf_log);
    if (kvt_config_open(sources, &config))
        fail_msg("%s", kvt_last_error());
    return config;
}

static struct kvt_config_sources
sources_of(const char *yaml, const char *const *environment)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);

    sources.file = conf_file(yaml);
    sources.environment = environment;
    return sources;
}

struct kvt_config *
conf_open(const char *yaml, const char *const *environment)
{
    struct kvt_config_sources sources = sources_of(yaml, environment);

    return conf_open_all(&sources);
}

void
conf_refuses(const char *yaml, const char *const *environment, const char *why)
{
    struct kvt_config_sources sources = sources_of(yaml, environment);
    struct kvt_config *config = (struct kvt_config *)1;

    memset(&conf_log, 0, sizeof conf_log);
    assert_int_equal(kvt_config_open(&sources, &config), -EINVAL);
    assert_null(config);
    assert_string_equal(kvt_last_error(), why);
}

void
conf_warns(const char *yaml, const char *const *environment, const char *lines)
{
    kvt_config_free(conf_open(yaml, environment));
    assert_string_equal(conf_log.text, lines);
}
