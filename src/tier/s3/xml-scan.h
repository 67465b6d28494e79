/* SPDX-License-Identifier: Apache-2.0
 *
 * A scanner of small XML documents, for xml.c: elements and text, decoded in place.  Call
 * kvt__xml_begin(), then kvt__xml_next() until KVT__XML_END or an error. */
#ifndef KVT_TIER_S3_XML_SCAN_H
#define KVT_TIER_S3_XML_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#define KVT__XML_MAX_DEPTH 16

enum kvt__xml_event {
    KVT__XML_END, /* end of a complete document */
    KVT__XML_OPEN,
    KVT__XML_CLOSE,
};

struct kvt__xml {
    char *begin, *at, *end;
    bool read_only; /* keep the document unchanged: do not decode texts */
    bool closing;  /* the last event was CLOSE; the innermost element is still in open */
    bool empty;    /* the last event was OPEN of <NAME/>; the next event is CLOSE */
    bool leaf;     /* the innermost element has no child so far */
    bool had_root;
    unsigned depth;
    struct {
        const char *text;
        size_t n;
    } open[KVT__XML_MAX_DEPTH]; /* names of open elements, with their namespace prefixes */

    /* After CLOSE: text of the closed element, "" if the element has children.  Ended by NUL,
     * unless read_only is set. */
    char *text;
    size_t n_text;
    char *to; /* private: address for the next decoded byte */
};

/* Start a scan of n bytes of text.  Unless read_only is set, the scan overwrites text. */
void kvt__xml_begin(struct kvt__xml *xml, char *text, size_t n, bool read_only);

/* Return the next event, or -EBADMSG with a sentence.  The event's element is the innermost open
 * element. */
int kvt__xml_next(struct kvt__xml *xml);

/* Return true if the element `up` levels above the innermost element has this name; a namespace
 * prefix is ignored. */
bool kvt__xml_is(const struct kvt__xml *xml, unsigned up, const char *name);

#endif
