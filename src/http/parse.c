/* SPDX-License-Identifier: Apache-2.0
 *
 * Parse heads and chunked bodies (RFC 9112) without the leniency that the standard permits: each
 * line ends with CRLF, folded lines are errors, and repeated fields Content-Length must have
 * equal values. */
#include "http/parse.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"

/* Limit of skipped bytes: chunk extensions and trailers are ignored, and servers send few. */
#define MAX_SKIPPED 16384

static bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A character of a token (RFC 9110, 5.6.2). */
static bool
is_token(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool
is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* A visible character, a blank, or a byte of non-ASCII text. */
static bool
is_text(char c)
{
    return (unsigned char)c >= 0x20 ? c != 0x7f : c == '\t';
}

static bool
is_text_all(const char *at, const char *end)
{
    while (at < end && is_text(*at))
        at++;
    return at == end;
}

static bool
equals(const char *at, size_t n, const char *word)
{
    return n == strlen(word) && !strncasecmp(at, word, n);
}

const struct kvt__http_field *
kvt__http_field(const struct kvt__http_head *head, const char *name)
{
    for (size_t i = 0; i < head->n_fields; i++)
        if (equals(head->fields[i].name, head->fields[i].name_bytes, name))
            return &head->fields[i];
    return NULL;
}

/* ------------------------------------------------------------------- heads */

/* The values of the fields that frame the body. */
struct framing {
    bool http_1_1, close, keep_alive, chunked;
    int64_t length; /* -1: no Content-Length */
};

static const char *
read_status_line(const char *at, const char *end, struct kvt__http_head *head,
                 struct framing *framing)
{
    if (end - at < 12 || memcmp(at, "HTTP/1.", 7) || (at[7] != '0' && at[7] != '1') ||
        at[8] != ' ' || at[9] < '1' || at[9] > '5' || !is_digit(at[10]) ||
        !is_digit(at[11]) || (end - at > 12 && at[12] != ' ') || !is_text_all(at, end))
        return "the status line is not valid HTTP/1.1";
    framing->http_1_1 = at[7] == '1';
    head->status = (at[9] - '0') * 100 + (at[10] - '0') * 10 + (at[11] - '0');
    return NULL;
}

static const char *
read_length(const char *at, size_t n, struct framing *framing)
{
    int64_t length = 0;

    if (!n)
        return "an empty Content-Length";
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(at[i]) || __builtin_mul_overflow(length, 10, &length) ||
            __builtin_add_overflow(length, at[i] - '0', &length))
            return "a Content-Length that is not a number";
    }
    if (framing->length >= 0 && framing->length != length)
        return "two different Content-Lengths";
    framing->length = length;
    return NULL;
}

static void
read_connection(const char *at, const char *end, struct framing *framing)
{
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        const char *last = stop;

        while (at < last && is_blank(*at))
            at++;
        while (last > at && is_blank(last[-1]))
            last--;
        framing->close |= equals(at, (size_t)(last - at), "close");
        framing->keep_alive |= equals(at, (size_t)(last - at), "keep-alive");
        at = comma ? comma + 1 : end;
    }
}

static const char *
read_framing(const struct kvt__http_field *f, struct framing *framing)
{
    if (equals(f->name, f->name_bytes, "Content-Length"))
        return read_length(f->value, f->value_bytes, framing);
    if (equals(f->name, f->name_bytes, "Connection"))
        read_connection(f->value, f->value + f->value_bytes, framing);
    if (equals(f->name, f->name_bytes, "Transfer-Encoding")) {
        if (framing->chunked || !equals(f->value, f->value_bytes, "chunked"))
            return "a Transfer-Encoding other than chunked";
        framing->chunked = true;
    }
    return NULL;
}

static const char *
read_field(const char *at, const char *end, struct kvt__http_field *field)
{
    const char *colon = at;

    while (colon < end && is_token(*colon))
        colon++;
    if (colon == at || colon == end || *colon != ':')
        return "a header line that is not a field";
    field->name = at;
    field->name_bytes = (uint16_t)(colon - at);
    at = colon + 1;
    while (at < end && is_blank(*at))
        at++;
    while (end > at && is_blank(end[-1]))
        end--;
    if (!is_text_all(at, end))
        return "control characters in a field";
    field->value = at;
    field->value_bytes = (uint16_t)(end - at);
    return NULL;
}

/* Derive the body's framing from all fields.  Return NULL, or why the head is invalid. */
static const char *
finish_framing(const struct framing *framing, struct kvt__http_response *out)
{
    if (framing->chunked && (framing->length >= 0 || !framing->http_1_1))
        return "a Transfer-Encoding beside a Content-Length, or in HTTP/1.0";
    out->chunked = framing->chunked;
    out->head.content_length = framing->length;
    out->keep_alive = !framing->close && (framing->http_1_1 || framing->keep_alive);
    return NULL;
}

/* Return the end of the line, its CRLF; NULL: the end has not arrived.  A lone CR or LF becomes a
 * part of the line, and the line's parser refuses the character. */
static const char *
line_end(const char *at, const char *end)
{
    while (at < end && (at = memchr(at, '\r', (size_t)(end - at)))) {
        if (at + 1 < end && at[1] == '\n')
            return at;
        at++;
    }
    return NULL;
}

ssize_t
kvt__http_parse_head(const char *bytes, size_t n, struct kvt__http_response *out,
                     const char **wrong)
{
    const char *at = bytes, *end = bytes + n, *stop;
    struct framing framing = { .length = -1 };

    *wrong = NULL;
    out->head.n_fields = 0;
    for (bool first = true; (stop = line_end(at, end)); first = false) {
        struct kvt__http_field spare;
        bool place = out->head.n_fields < KVT__HTTP_MAX_FIELDS;
        struct kvt__http_field *f = place ? &out->head.fields[out->head.n_fields] : &spare;

        if (first) {
            *wrong = read_status_line(at, stop, &out->head, &framing);
        } else if (stop == at) {
            *wrong = finish_framing(&framing, out);
            return *wrong ? -EPROTO : stop + 2 - bytes;
        } else {
            *wrong = stop - at > UINT16_MAX ? "a header line that is too long"
                                            : read_field(at, stop, f);
            if (!*wrong)
                *wrong = read_framing(f, &framing);
            out->head.n_fields += place;
        }
        if (*wrong)
            return -EPROTO;
        at = stop + 2;
    }
    /* Another protocol may never send the end of a line: do not wait for the end. */
    if (at == bytes && memcmp(bytes, "HTTP/1.", n < 7 ? n : 7)) {
        *wrong = "the response is not HTTP/1.1";
        return -EPROTO;
    }
    return 0;
}

/* ------------------------------------------------------------------ chunks */

enum {
    SIZE, EXTENSION, SIZE_LF,    /* 1f;name=value CR LF */
    DATA, DATA_CR, DATA_LF,      /* data CR LF */
    TRAILER, TRAILER_LINE, TRAILER_LF, /* lines, then an empty line */
    LAST_LF
};

static bool
read_size(struct kvt__http_chunks *c, char byte)
{
    int digit = kvt__hex_digit(byte);

    if (digit >= 0) {
        if (c->size >> 59) /* the shift below would overflow int64_t */
            return false;
        c->size = c->size << 4 | (unsigned)digit;
        c->digits = true;
        return true;
    }
    c->state = byte == '\r' ? SIZE_LF : EXTENSION;
    return c->digits && (byte == '\r' || byte == ';' || is_blank(byte));
}

/* Skip a byte of an ignored line; the line's CR changes the state to at_cr. */
static bool
skip(struct kvt__http_chunks *c, char byte, uint8_t at_cr)
{
    if (byte == '\r')
        c->state = at_cr;
    return byte == '\r' || (is_text(byte) && ++c->skipped <= MAX_SKIPPED);
}

static bool
read_byte(struct kvt__http_chunks *c, char byte)
{
    switch (c->state) {
    case SIZE:
        return read_size(c, byte);
    case EXTENSION:
        return skip(c, byte, SIZE_LF);
    case SIZE_LF:
        c->state = c->size ? DATA : TRAILER;
        c->data = c->size;
        return byte == '\n';
    case DATA: /* the caller has taken the data */
    case DATA_CR:
        c->state = DATA_LF;
        return byte == '\r';
    case DATA_LF:
        c->state = SIZE;
        c->digits = false;
        c->size = 0;
        c->skipped = 0;
        return byte == '\n';
    case TRAILER:
        c->state = byte == '\r' ? LAST_LF : TRAILER_LINE;
        return byte == '\r' || (is_token(byte) && ++c->skipped <= MAX_SKIPPED);
    case TRAILER_LINE:
        return skip(c, byte, TRAILER_LF);
    case TRAILER_LF:
        c->state = TRAILER;
        return byte == '\n';
    default:
        c->done = true;
        return byte == '\n';
    }
}

ssize_t
kvt__http_chunks_read(struct kvt__http_chunks *c, const char *bytes, size_t n)
{
    size_t used = 0;

    while (used < n && !c->done && !(c->state == DATA && c->data))
        if (!read_byte(c, bytes[used++]))
            return -EPROTO;
    return (ssize_t)used;
}
