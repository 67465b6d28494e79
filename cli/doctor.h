/* SPDX-License-Identifier: Apache-2.0
 *
 * The findings of kvtier doctor. */
#ifndef KVT_CLI_DOCTOR_H
#define KVT_CLI_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>

#include "kvtier.h"

enum verdict { OK, WARN, BAD };

struct findings {
    json_t *all;     /* array of finding objects */
    bool json;       /* print no lines: the caller prints all as JSON */
    int n_bad;       /* findings with verdict BAD */
    bool no_storage; /* the configuration has no storage */
};

/* Append a finding to f->all and, without --json, print the finding as a line.  check: the checked
 * object. */
void add_finding(struct findings *f, enum verdict verdict, const char *check, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Append a finding of kvt_store_look(), and print the finding as add_finding() does.  The function
 * ignores a finding with the text of an earlier finding.  A finding about a GPU is always appended,
 * and print_gpu_findings() prints the finding later. */
void add_storage_finding(struct findings *f, const char *about, bool bad, const char *text);

/* Without --json, print a line for each group of GPUs with equal findings.  In JSON each GPU has a
 * finding with the GPU's number. */
void print_gpu_findings(struct findings *f);

/* Check the requirements of the configured storage.  Return false if a requirement is not met: an
 * engine would not start.  Blocks until the checks end or report nothing for PATIENCE_MS. */
bool doctor_storage(struct findings *f, const struct kvt_config *config);

#endif
