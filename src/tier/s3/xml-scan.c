/* SPDX-License-Identifier: Apache-2.0
 *
 * The scanner.  A document is an error if elements are not nested, if the document ends early or
 * has several roots, and if the document has a type declaration, which could define entities.
 * Names and attributes are not checked.
 *
 * No library replaces the scanner (make bench-libraries):
 *   - A store may list a key with a control character or with bytes that are not UTF-8.  Expat
 *     refuses such a document, so a single foreign object would end each listing of the prefix.
 *   - Expat needs 3.3 us for each object of a list, the scanner 2.1 us.
 *   - Expat copies texts to the heap, so keys of STS would need an allocator that wipes memory.
 *   - The wheel would contain 150 KB of expat and its security updates; the scanner has 4 KB.  A
 *     reader over expat needs its own stack of elements, text buffers and limits, so half of the
 *     scanner's lines would stay. */
#include "tier/s3/xml-scan.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"

void
kvt__xml_begin(struct kvt__xml *xml, char *text, size_t n, bool read_only)
{
    *xml = (struct kvt__xml){ .begin = text, .at = text, .end = text + n, .read_only = read_only };
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        xml->at += 3;
}

static int
fail_syntax(const struct kvt__xml *xml, const char *what)
{
    return kvt__fail(EBADMSG, "S3: a response is not valid XML: %s at byte %zu of "
                     "%zu.", what, (size_t)(xml->at - xml->begin),
                     (size_t)(xml->end - xml->begin));
}

static bool
starts(const struct kvt__xml *xml, const char *with)
{
    size_t n = strlen(with);

    return (size_t)(xml->end - xml->at) >= n && !memcmp(xml->at, with, n);
}

static bool
is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Find `what` and advance behind the match.  Return the start of the match, or NULL. */
static char *
skip_past(struct kvt__xml *xml, const char *what)
{
    size_t n = strlen(what);
    char *found = memmem(xml->at, (size_t)(xml->end - xml->at), what, n);

    if (found)
        xml->at = found + n;
    return found;
}

/* ---------------------------------------------------------------------- text */

/* Append decoded bytes to the text.  Decoded text is never longer than the source text, so the text
 * fits. */
static void
put(struct kvt__xml *xml, const char *text, size_t n)
{
    if (xml->read_only || !xml->leaf)
        return;
    memmove(xml->to, text, n);
    xml->to += n;
}

static int
put_character(struct kvt__xml *xml, uint32_t c)
{
    char utf8[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    if (!c || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return fail_syntax(xml, "a reference to an invalid character");
    for (size_t i = n - 1; i; i--, c >>= 6)
        utf8[i] = (char)(0x80 | (c & 0x3f));
    utf8[0] = (char)(n == 1 ? c : c | (0xf00u >> n & 0xf0u));
    put(xml, utf8, n);
    return 0;
}

/* Parse the digits of &#N; or &#xN;.  Return 0 for invalid digits; 0 is not a character either. */
static uint32_t
number(const char *at, const char *end)
{
    int base = 10;
    uint32_t value = 0;

    if (at < end && *at == 'x') {
        base = 16;
        at++;
    }
    for (; at < end; at++) {
        int digit = kvt__hex_digit(*at);

        if (digit < 0 || digit >= base || value > 0x10ffff)
            return 0;
        value = value * (uint32_t)base + (uint32_t)digit;
    }
    return value;
}

static int
entity(struct kvt__xml *xml)
{
    static const struct {
        const char *name, *text;
    } known[] = { { "&amp;", "&" },  { "&lt;", "<" },    { "&gt;", ">" },
                  { "&quot;", "\"" }, { "&apos;", "'" } };
    size_t left = (size_t)(xml->end - xml->at);
    char *end = memchr(xml->at, ';', left < 16 ? left : 16);

    if (!end)
        return fail_syntax(xml, "an '&' without an entity");
    if (starts(xml, "&#")) {
        int rc = put_character(xml, number(xml->at + 2, end));
        xml->at = end + 1;
        return rc;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (starts(xml, known[i].name)) {
            put(xml, known[i].text, 1);
            xml->at = end + 1;
            return 0;
        }
    return fail_syntax(xml, "an unknown entity");
}

/* Take text up to the next '<' or the end of the document. */
static int
take_text(struct kvt__xml *xml)
{
    while (xml->at < xml->end && *xml->at != '<') {
        if (*xml->at == '&' && xml->depth) {
            int rc = entity(xml);
            if (rc)
                return rc;
            continue;
        }
        if (!*xml->at || (!xml->depth && !is_blank(*xml->at)))
            return fail_syntax(xml, xml->depth ? "a NUL" : "text outside of all elements");
        put(xml, xml->at++, 1);
    }
    return 0;
}

/* Take a comment, an instruction or CDATA.  Return 0; 1: none of these; -EBADMSG with a
 * sentence. */
static int
skip_aside(struct kvt__xml *xml)
{
    if (starts(xml, "<!--")) {
        xml->at += 4;
        return skip_past(xml, "-->") ? 0 : fail_syntax(xml, "a comment without end");
    }
    if (starts(xml, "<?"))
        return skip_past(xml, "?>") ? 0 : fail_syntax(xml, "an instruction without end");
    if (starts(xml, "<![CDATA[") && xml->depth) {
        char *from = xml->at += 9, *end = skip_past(xml, "]]>");
        if (!end || memchr(from, '\0', (size_t)(end - from)))
            return fail_syntax(xml, "CDATA without end or with a NUL");
        put(xml, from, (size_t)(end - from));
        return 0;
    }
    return starts(xml, "<!") ? fail_syntax(xml, "a declaration") : 1;
}

/* ------------------------------------------------------------------ elements */

/* Advance over the name at xml->at.  Return the length; 0: no name. */
static size_t
take_name(struct kvt__xml *xml)
{
    char *from = xml->at;

    while (xml->at < xml->end && (unsigned char)*xml->at > ' ' && *xml->at != 0x7f &&
           !strchr("/>&<\"'=", *xml->at))
        xml->at++;
    return (size_t)(xml->at - from);
}

static int
close_element(struct kvt__xml *xml, char *text_end)
{
    if (!xml->leaf)
        xml->text = xml->to = text_end;
    xml->n_text = (size_t)((xml->read_only ? text_end : xml->to) - xml->text);
    if (!xml->read_only)
        xml->text[xml->n_text] = '\0';
    xml->closing = true;
    return KVT__XML_CLOSE;
}

static int
take_close(struct kvt__xml *xml)
{
    char *begin = xml->at;

    xml->at += 2;
    const char *name = xml->at;
    size_t n = take_name(xml);
    while (xml->at < xml->end && is_blank(*xml->at))
        xml->at++;
    if (!xml->depth || n != xml->open[xml->depth - 1].n ||
        memcmp(name, xml->open[xml->depth - 1].text, n) || !starts(xml, ">"))
        return fail_syntax(xml, "an end tag without a start tag");
    xml->at++;
    return close_element(xml, begin);
}

static int
take_open(struct kvt__xml *xml)
{
    char quote = '\0';

    xml->at++;
    const char *name = xml->at;
    size_t n = take_name(xml);
    if (!n || xml->depth == KVT__XML_MAX_DEPTH || (!xml->depth && xml->had_root))
        return fail_syntax(xml, !n           ? "an element without a name"
                                : xml->depth ? "too many nested elements"
                                             : "a second root");
    for (; xml->at < xml->end && (quote || *xml->at != '>'); xml->at++) {
        char c = *xml->at;
        if (!c || (c == '<' && !quote))
            break;
        if (quote ? c == quote : c == '"' || c == '\'')
            quote = quote ? '\0' : c;
    }
    if (quote || !starts(xml, ">"))
        return fail_syntax(xml, "an unterminated start tag");
    xml->empty = xml->at[-1] == '/';
    xml->open[xml->depth].text = name;
    xml->open[xml->depth++].n = n;
    xml->text = xml->to = ++xml->at;
    xml->leaf = xml->had_root = true;
    return KVT__XML_OPEN;
}

int
kvt__xml_next(struct kvt__xml *xml)
{
    if (xml->closing) {
        xml->closing = xml->leaf = false;
        xml->depth--;
    }
    if (xml->empty) {
        xml->empty = false;
        /* Overwrites the '>', which is not read again. */
        xml->text = xml->to = xml->at - 1;
        return close_element(xml, xml->text);
    }
    for (;;) {
        int rc = take_text(xml);
        if (rc)
            return rc;
        if (xml->at == xml->end)
            return xml->depth || !xml->had_root ? fail_syntax(xml, "an early end")
                                                : KVT__XML_END;
        if (starts(xml, "</"))
            return take_close(xml);
        rc = skip_aside(xml);
        if (rc)
            return rc < 0 ? rc : take_open(xml);
    }
}

bool
kvt__xml_is(const struct kvt__xml *xml, unsigned up, const char *name)
{
    if (xml->depth <= up)
        return false;
    const char *text = xml->open[xml->depth - 1 - up].text;
    size_t n = xml->open[xml->depth - 1 - up].n;
    const char *colon = memchr(text, ':', n);

    if (colon) {
        n -= (size_t)(colon + 1 - text);
        text = colon + 1;
    }
    return n == strlen(name) && !memcmp(text, name, n);
}
