/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptions of the keys, from the library's table. */
#ifndef KVT_CLI_CONFIG_KEYS_H
#define KVT_CLI_CONFIG_KEYS_H

#include <jansson.h>
#include <stdbool.h>

/* All keys, a line each; or into an array, with all about them. */
void cli_config_list(json_t *into);

/* All about one key, printed or into an array; false: there is none of that name. */
bool cli_config_describe(const char *name, json_t *into);

/* The whole of docs/configuration.md; returns an exit code. */
int cli_config_page(void);

#endif
