/* SPDX-License-Identifier: Apache-2.0
 *
 * A scanner of small XML documents, for xml.c: elements and text, decoded in place. */
#ifndef KVT_TIER_S3_XML_SCAN_H
#define KVT_TIER_S3_XML_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#define KVT__XML_MAX_DEPTH 16

enum kvt__xml_event {
    KVT__XML_END, /* of the document, which is whole */
    KVT__XML_OPEN,
    KVT__XML_CLOSE,
};

struct kvt__xml {
    char *begin, *at, *end;
    bool keep;     /* write nothing: texts are not decoded */
    bool closing;  /* the last event closed the innermost element */
    bool empty;    /* the next one does: <NAME/> */
    bool leaf;     /* no element was inside the innermost one so far */
    bool had_root;
    unsigned depth;
    struct {
        const char *text;
        size_t n;
    } open[KVT__XML_MAX_DEPTH]; /* names with their prefixes */

    /* Of an element that was closed.  It is "" for one with others inside, and where
     * nothing is kept not ended by NUL. */
    char *text;
    size_t n_text;
    char *to; /* where its next byte goes */
};

void kvt__xml_begin(struct kvt__xml *xml, char *text, size_t n, bool keep);

/* The next event, or -EBADMSG with a sentence.  Its element is the innermost one. */
int kvt__xml_next(struct kvt__xml *xml);

/* Whether the element that is up levels above the innermost one has that name, whatever
 * its prefix. */
bool kvt__xml_is(const struct kvt__xml *xml, unsigned up, const char *name);

#endif
