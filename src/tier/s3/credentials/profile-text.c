/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of AWS's profile files.  Errors are tolerated, as in all other readers of these files: a
 * line that is neither a section nor a setting is skipped, sections with equal names are merged,
 * and the last value of a setting counts.  Indented lines belong to nested settings, which kvtier
 * does not use. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/credentials/profile.h"

static const char *const keys[KVT__N_PROFILE_KEYS] = {
    [KVT__PROFILE_ACCESS] = "aws_access_key_id",
    [KVT__PROFILE_SECRET] = "aws_secret_access_key",
    [KVT__PROFILE_TOKEN] = "aws_session_token",
    [KVT__PROFILE_REGION] = "region",
    [KVT__PROFILE_ENDPOINT] = "endpoint_url",
    [KVT__PROFILE_PROCESS] = "credential_process",
    [KVT__PROFILE_ROLE] = "role_arn",
    [KVT__PROFILE_SOURCE_PROFILE] = "source_profile",
    [KVT__PROFILE_CREDENTIAL_SOURCE] = "credential_source",
    [KVT__PROFILE_EXTERNAL_ID] = "external_id",
    [KVT__PROFILE_SESSION] = "role_session_name",
    [KVT__PROFILE_DURATION] = "duration_seconds",
    [KVT__PROFILE_TOKEN_FILE] = "web_identity_token_file",
    [KVT__PROFILE_MFA] = "mfa_serial",
    [KVT__PROFILE_SSO_SESSION] = "sso_session",
    [KVT__PROFILE_SSO_URL] = "sso_start_url",
    [KVT__PROFILE_FIPS] = "use_fips_endpoint",
    [KVT__PROFILE_DUALSTACK] = "use_dualstack_endpoint",
};

/* A part of the text. */
struct span {
    const char *at;
    size_t n;
};

static struct span
trim(struct span s)
{
    while (s.n && isspace((unsigned char)*s.at)) {
        s.at++;
        s.n--;
    }
    while (s.n && isspace((unsigned char)s.at[s.n - 1]))
        s.n--;
    return s;
}

static bool
is(struct span s, const char *word)
{
    return s.n == strlen(word) && !memcmp(s.at, word, s.n);
}

static int
find_key(struct span name)
{
    for (int i = 0; i < KVT__N_PROFILE_KEYS; i++)
        if (strlen(keys[i]) == name.n && !strncasecmp(keys[i], name.at, name.n))
            return i;
    return -1;
}

int
kvt__s3_profile_key(const char *name)
{
    return find_key((struct span){ name, strlen(name) });
}

/* Remove "profile" and the white space after the word.  Return false if the text does not begin
 * with "profile". */
static bool
strip_profile_word(struct span *s)
{
    static const char word[] = "profile";
    size_t n = sizeof word - 1;

    if (s->n <= n || memcmp(s->at, word, n) || !isspace((unsigned char)s->at[n]))
        return false;
    *s = trim((struct span){ s->at + n, s->n - n });
    return true;
}

/* Return true if a line that begins with '[' starts the section of this profile. */
static bool
is_section_of(struct span line, const char *name, bool config)
{
    const char *end = memchr(line.at, ']', line.n);

    if (!end)
        return false;
    struct span s = trim((struct span){ line.at + 1, (size_t)(end - line.at) - 1 });
    if (config && !strip_profile_word(&s) && !is(s, "default"))
        return false;
    if (s.n >= 2 && (*s.at == '"' || *s.at == '\'') && s.at[s.n - 1] == *s.at)
        s = (struct span){ s.at + 1, s.n - 2 };
    return is(s, name);
}

/* Remove a comment, which begins with # or ; after white space. */
static struct span
strip_comment(struct span value)
{
    for (size_t i = 1; i < value.n; i++)
        if ((value.at[i] == '#' || value.at[i] == ';') &&
            isspace((unsigned char)value.at[i - 1]))
            value.n = i;
    return trim(value);
}

static int
add_setting(struct kvt__s3_profile *profile, struct span line)
{
    const char *equals = memchr(line.at, '=', line.n);

    if (!equals)
        return 0;
    int key = find_key(trim((struct span){ line.at, (size_t)(equals - line.at) }));
    if (key < 0)
        return 0;
    size_t left = line.n - (size_t)(equals - line.at) - 1;
    struct span value = strip_comment((struct span){ equals + 1, left });
    kvt__s3_wipe_free(profile->value[key]);
    profile->value[key] = NULL;
    if (value.n && !(profile->value[key] = strndup(value.at, value.n)))
        return kvt__fail(ENOMEM, "read a profile");
    return 0;
}

int
kvt__s3_profile_add(struct kvt__s3_profile *profile, const char *name, bool config,
                    const char *text, size_t n)
{
    static const char bom[] = "\xef\xbb\xbf";
    bool inside = false;
    int err = 0;

    if (n >= 3 && !memcmp(text, bom, 3)) {
        text += 3;
        n -= 3;
    }
    while (n && !err) {
        const char *end = memchr(text, '\n', n);
        struct span line = { text, end ? (size_t)(end - text) : n };

        text += line.n + !!end;
        n -= line.n + !!end;
        if (!line.n || strchr(" \t\r#;", *line.at))
            continue;
        if (*line.at == '[')
            inside = is_section_of(line, name, config);
        else if (inside)
            err = add_setting(profile, line);
        profile->exists |= inside;
    }
    return err;
}

void
kvt__s3_profile_fini(struct kvt__s3_profile *profile)
{
    for (int i = 0; i < KVT__N_PROFILE_KEYS; i++)
        kvt__s3_wipe_free(profile->value[i]);
    *profile = (struct kvt__s3_profile){ 0 };
}
