/* SPDX-License-Identifier: Apache-2.0
 *
 * Open configurations in tests: from text, with a given environment, in an empty directory.
 * conf_log has the log's lines. */
#ifndef CONF_TEST_H
#define CONF_TEST_H

#include "kvt-test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/conf.h"
#include "kvtier.h"

/* A name = value list for sources. */
#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define NOTHING ((const char *const[]){ NULL })

struct conf_log {
    char text[8192]; /* lines, each with a newline */
    size_t n_lines;
};

extern struct conf_log conf_log;

int conf_setup(void **state);
int conf_teardown(void **state);

/* Write text to lmcache.yaml and return the file's name; NULL: write no file, return NULL. */
const char *conf_file(const char *yaml);

/* Open a configuration.  The test fails if the open fails. */
struct kvt_config *conf_open(const char *yaml, const char *const *environment);
struct kvt_config *conf_open_all(const struct kvt_config_sources *sources);

/* Open and expect -EINVAL with exactly this sentence. */
void conf_refuses(const char *yaml, const char *const *environment, const char *why);

/* Open and expect these log lines. */
void conf_warns(const char *yaml, const char *const *environment, const char *lines);

#endif
