/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptions of the keys, from the library's table. */
#ifndef KVT_CLI_CONFIG_KEYS_H
#define KVT_CLI_CONFIG_KEYS_H

#include <stdbool.h>

/* All keys, a line each; returns an exit code. */
int cli_config_list(void);

/* All about one key; false: there is none of that name. */
bool cli_config_describe(const char *name);

/* The whole of docs/configuration.md; returns an exit code. */
int cli_config_page(void);

#endif
