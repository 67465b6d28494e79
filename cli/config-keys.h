/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptions of the configuration keys, from the library's table of settings. */
#ifndef KVT_CLI_CONFIG_KEYS_H
#define KVT_CLI_CONFIG_KEYS_H

#include <jansson.h>
#include <stdbool.h>

/* List all keys.  into NULL: print a line for each key that has an effect; else append an object
 * with the full description of each key to the array. */
void cli_config_list(json_t *into);

/* Describe a key.  into NULL: print the description; else append an object to the array.  Return
 * false if no key has the name. */
bool cli_config_describe(const char *name, json_t *into);

/* Print docs/configuration.md.  Return CLI_DONE. */
int cli_config_page(void);

#endif
