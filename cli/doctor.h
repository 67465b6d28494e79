/* SPDX-License-Identifier: Apache-2.0
 *
 * What kvtier doctor has found so far. */
#ifndef KVT_CLI_DOCTOR_H
#define KVT_CLI_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>

#include "kvtier.h"

enum verdict { OK, WARN, BAD };

struct findings {
    json_t *all;
    bool json;
    int n_bad;
    bool no_storage; /* the configuration names none */
};

/* One finding: a line, and an object of all. */
void say(struct findings *f, enum verdict verdict, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Take what kvt_store_look() tells, once.  Of a GPU it is not said before say_gpus(), in a
 * line for all that have the same; in JSON each has its own finding, with its number. */
void take_look(struct findings *f, const char *about, bool bad, const char *text);
void say_gpus(struct findings *f);

/* Look at the requirements of the storage that is configured.  False: an engine would not
 * start. */
bool doctor_storage(struct findings *f, const struct kvt_config *config);

#endif
