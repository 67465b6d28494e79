/* SPDX-License-Identifier: Apache-2.0 */
#include "html.h"

#include <time.h>

#include "kvtier.h"

void
html_put_text(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            putc(*text, out);
        }
}

void
html_begin(FILE *out, const char *title)
{
    static const char style[] =
        ":root{color-scheme:light dark;--line:#8886}\n"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}\n"
        "figure{display:inline-block;margin:0 1em 1em 0;width:500px;max-width:100%}\n"
        "figcaption{font-weight:600}svg{width:100%}svg text{font-size:12px;fill:currentColor}\n"
        "polyline{fill:none;stroke-width:2}.grid{stroke:var(--line)}\n"
        ".legend{margin:0}.failed{color:#c2410c}\n"
        "table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;"
        "border-bottom:1px solid var(--line)}\n"
        "td:first-child,th:first-child{text-align:left}\n";
    time_t t = time(NULL);
    char when[32] = "";
    struct tm tm;

    if (gmtime_r(&t, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    fprintf(out, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width\"><title>%s</title>\n"
            "<style>\n%s</style>\n<h1>%s</h1>\n<p>kvtier %s, %s.</p>\n", title, style, title,
            kvt_version(), when);
}
