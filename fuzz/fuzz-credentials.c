/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: sources of S3 keys.  The first byte selects the parser: c and p, a profile file
 * (config and credentials); j and s, JSON of a program and of a service; w, a command line; u, a
 * URL. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/credentials/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

static void
read_profile(bool config, const char *text, size_t n)
{
    struct kvt__s3_profile profile = { 0 };

    kvt__s3_profile_add(&profile, "a", config, text, n);
    kvt__s3_profile_add(&profile, "default", config, text, n);
    for (int i = 0; i < KVT__N_PROFILE_KEYS; i++)
        expect(!profile.value[i] || profile.exists);
    kvt__s3_profile_fini(&profile);
}

static void
read_json(enum kvt__s3_json kind, const char *text, size_t n)
{
    struct kvt__s3_keys *keys;
    char text_of_error[80];

    if (!kvt__s3_keys_from_json(text, n, kind, "fuzz", &keys)) {
        expect(*keys->access && *keys->secret && (!keys->token || *keys->token));
        kvt__s3_keys_unref(keys);
    } else if (kind == KVT__S3_JSON_PROCESS) { /* the error of a service contains the service's
                                                * code */
        expect(!strstr(kvt__why(), "s3cr3t"));
    }
    kvt__s3_error_from_json(text, n, text_of_error, sizeof text_of_error);
    for (const char *c = text_of_error; *c; c++)
        expect(*c >= ' ' && *c <= '~');
}

/* Check that the words have all bytes but blanks, quotes and backslashes. */
static void
split(const char *line)
{
    char **words;
    size_t n = 0;

    if (kvt__s3_split_words(line, &words))
        return;
    for (size_t i = 0; words[i]; i++)
        n += strlen(words[i]) + 1;
    expect(n <= strlen(line) + 1);
    free(words);
}

/* Check that a parsed URL can be written and parsed again. */
static void
read_url(const char *text)
{
    struct kvt__s3_url url, again;
    char made[2048];

    if (kvt__s3_read_url(text, "it", &url))
        return;
    expect(*url.name && url.port && *url.path == '/' && !strpbrk(url.path, "\r\n "));
    snprintf(made, sizeof made, "%s://%s%s", url.tls ? "https" : "http", url.host,
             url.path);
    expect(!kvt__s3_read_url(made, "it", &again));
    expect(url.tls == again.tls && url.port == again.port);
    expect(!strcmp(url.name, again.name) && !strcmp(url.path, again.path));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *rest = (const char *)data + 1;
    char *text;

    if (!size || !(text = malloc(size)))
        return 0;
    memcpy(text, rest, size - 1);
    text[size - 1] = '\0';
    switch (*data) {
    case 'c':
    case 'p':
        read_profile(*data == 'c', rest, size - 1);
        break;
    case 'j':
    case 's':
        read_json(*data == 'j' ? KVT__S3_JSON_PROCESS : KVT__S3_JSON_SERVICE, rest,
                  size - 1);
        break;
    case 'w':
        split(text);
        break;
    default:
        read_url(text);
    }
    free(text);
    return 0;
}
