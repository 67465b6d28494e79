/* SPDX-License-Identifier: Apache-2.0
 *
 * The common parts of the pages of --html.  A page refers to no other file, so the page works
 * without a network. */
#ifndef KVT_CLI_HTML_H
#define KVT_CLI_HTML_H

#include <stdio.h>

/* Write the head of a page, and a line with the version of kvtier and the time.  title: without
 * special characters of HTML. */
void html_begin(FILE *out, const char *title);

/* Write text with the special characters of HTML escaped. */
void html_put_text(FILE *out, const char *text);

#endif
