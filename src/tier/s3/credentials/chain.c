/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of keys in order.  A source that fails does not end the search, unlike in AWS's own
 * chain; if no source has keys, the message lists all tried sources.  A profile that the user has
 * named does end the search, because the machine's role is another identity. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/secret.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/credentials/profile.h"

static const struct {
    const char *name;
    kvt__s3_source_fn *get_keys;
} sources[] = {
    { "configuration", kvt__s3_keys_from_configuration },
    { "environment", kvt__s3_keys_from_environment },
    { "profile", kvt__s3_keys_from_profile },
    { "web identity", kvt__s3_keys_from_web_identity },
    { "container", kvt__s3_keys_from_container },
    { "EC2 metadata", kvt__s3_keys_from_metadata },
};

#define N_SOURCES (sizeof sources / sizeof *sources)
#define MAX_WHY 256

struct kvt__s3_chain {
    void *memory;                       /* memory of the texts in params */
    struct kvt__s3_chain_params params;
    size_t last_source; /* index of the source that last had keys; N_SOURCES: none */
};

/* The error of each source; "": the source is not set. */
struct failures {
    size_t n; /* number of sources to try */
    char why[N_SOURCES][MAX_WHY];
};

/* ------------------------------------------------------------- open and close */

static size_t
size_of(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

/* Copy a text to *to and advance *to behind the copy. */
static const char *
copy(const char *text, char **to)
{
    char *at = *to;

    if (!text)
        return NULL;
    *to = stpcpy(at, text) + 1;
    return at;
}

/* Copy the parameters and the environment: the process may change its environment later. */
static bool
copy_params(struct kvt__s3_chain *chain, const struct kvt__s3_chain_params *from)
{
    const char *const *environment = from->environment
        ? from->environment : (const char *const *)environ;
    struct kvt__s3_chain_params *to = &chain->params;
    size_t n = 0, bytes = 0;

    for (; environment && environment[n]; n++)
        bytes += size_of(environment[n]);
    bytes += size_of(from->access) + size_of(from->secret) + size_of(from->token) +
             size_of(from->profile) + size_of(from->region);
    chain->memory = kvt__secret_alloc((n + 1) * sizeof(char *) + bytes);
    if (!chain->memory)
        return false;
    const char **list = chain->memory;
    char *at = (char *)(list + n + 1);
    for (size_t i = 0; i < n; i++)
        list[i] = copy(environment[i], &at);
    to->environment = list;
    to->access = copy(from->access, &at);
    to->secret = copy(from->secret, &at);
    to->token = copy(from->token, &at);
    to->profile = copy(from->profile, &at);
    to->region = copy(from->region, &at);
    return true;
}

int
kvt__s3_chain_open(const struct kvt__s3_chain_params *params, struct kvt__s3_chain **out)
{
    struct kvt__s3_chain *chain = calloc(1, sizeof *chain);

    if (!chain || !copy_params(chain, params)) {
        free(chain);
        return kvt__fail(ENOMEM, "open the chain of credentials");
    }
    chain->last_source = N_SOURCES;
    chain->params.http = params->http;
    chain->params.stop = params->stop;
    *out = chain;
    return 0;
}

void
kvt__s3_chain_close(struct kvt__s3_chain *chain)
{
    if (!chain)
        return;
    kvt__secret_free(chain->memory);
    free(chain);
}

/* ------------------------------------------------------------------- get keys */

/* Try a source.  Return true if the source has unexpired keys; else note the error. */
static bool
try_source(const struct kvt__s3_chain *chain, size_t i, struct kvt__s3_keys **out,
           struct failures *failures)
{
    bool named = chain->params.profile && *chain->params.profile;
    struct kvt__s3_keys *keys = NULL;
    /* If s3_profile names a profile, keys in the environment are ignored. */
    int err = named && sources[i].get_keys == kvt__s3_keys_from_environment
        ? KVT__S3_NOT_SET : sources[i].get_keys(&chain->params, &keys);

    if (!err && keys->expires_s <= time(NULL)) {
        err = kvt__fail(EKEYEXPIRED, "its keys have expired.");
        kvt__s3_keys_unref(keys);
    }
    if (!err)
        *out = keys;
    else if (err != KVT__S3_NOT_SET)
        snprintf(failures->why[i], MAX_WHY, "%s", kvt__why());
    return !err;
}

struct text {
    char at[480]; /* limit of a sentence of kvt__fail() */
    size_t n;
};

/* Append at most max bytes of a text. */
static void
append(struct text *text, size_t max, const char *what)
{
    size_t room = sizeof text->at - text->n;

    if (max >= room)
        max = room - 1;
    int n = snprintf(text->at + text->n, max + 1, "%s", what);
    text->n += (size_t)n < max ? (size_t)n : max;
}

/* Append the errors.  Each source has an equal share of the remaining room. */
static void
append_failures(struct text *text, const struct failures *failures, size_t n_failed)
{
    for (size_t i = 0; i < failures->n; i++) {
        if (!*failures->why[i])
            continue;
        size_t share = (sizeof text->at - text->n) / n_failed--;
        size_t room = share - strlen(sources[i].name) - sizeof " : ...";
        size_t n = strlen(failures->why[i]);

        append(text, SIZE_MAX, " ");
        append(text, SIZE_MAX, sources[i].name);
        append(text, SIZE_MAX, ": ");
        append(text, room, failures->why[i]);
        if (n > room)
            append(text, SIZE_MAX, "...");
        else if (failures->why[i][n - 1] != '.')
            append(text, SIZE_MAX, ".");
    }
}

static int
fail_all(const struct failures *failures)
{
    struct text text = { .n = 0 };
    size_t n_failed = 0;

    for (size_t i = 0; i < failures->n; i++)
        n_failed += *failures->why[i] != '\0';
    append(&text, SIZE_MAX, "no keys for S3.");
    if (n_failed < failures->n)
        append(&text, SIZE_MAX, " Not set:");
    for (size_t i = 0, n = n_failed; i < failures->n; i++) {
        if (*failures->why[i])
            continue;
        append(&text, SIZE_MAX, " ");
        append(&text, SIZE_MAX, sources[i].name);
        append(&text, SIZE_MAX, ++n < failures->n ? "," : ".");
    }
    append_failures(&text, failures, n_failed);
    return kvt__fail(ENOKEY, "%s%s", text.at, text.at[text.n - 1] == '.' ? "" : ".");
}

/* Return the number of sources to try: all, or up to the profile if the user has named a
 * profile. */
static size_t
count_sources(const struct kvt__s3_chain *chain)
{
    bool named;
    size_t n = 0;

    kvt__s3_profile_name(&chain->params, &named);
    while (named && sources[n].get_keys != kvt__s3_keys_from_profile)
        n++;
    return named ? n + 1 : N_SOURCES;
}

int
kvt__s3_chain_get_keys(struct kvt__s3_chain *chain, struct kvt__s3_keys **out)
{
    struct failures failures = { .n = count_sources(chain) };
    size_t before = chain->last_source;

    if (before < N_SOURCES && try_source(chain, before, out, &failures))
        return 0;
    chain->last_source = N_SOURCES;
    for (size_t i = 0; i < failures.n && !kvt__s3_is_stopped(chain->params.stop); i++) {
        if (i == before || !try_source(chain, i, out, &failures))
            continue;
        chain->last_source = i;
        return 0;
    }
    return kvt__s3_is_stopped(chain->params.stop)
        ? kvt__fail(ECANCELED, "the store is being closed.") : fail_all(&failures);
}
