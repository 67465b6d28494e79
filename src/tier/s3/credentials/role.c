/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of a profile: keys in the profile, keys from a credential_process, or keys of a role.  A
 * request to STS for a role needs keys of another source, which may be a profile with another
 * role. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/credentials/profile.h"

#define SOURCE "profile"
#define PROCESS_MS 30000
#define MAX_PROFILES 8

/* The chain of profiles that refer to each other, from the selected profile. */
struct profile_path {
    const struct kvt__s3_chain_params *params;
    const char *name[MAX_PROFILES];
    unsigned n;
    bool named; /* the user has named the first profile */
};

static int get_profile_keys(struct profile_path *path, const char *name, struct kvt__s3_keys **out);

static int
run_process(const struct kvt__s3_chain_params *params, const char *command,
            struct kvt__s3_keys **out)
{
    char *text;
    size_t n;
    int err = kvt__s3_run_process(command, params->environment, PROCESS_MS, params->stop,
                                  &text, &n);

    if (err)
        return err;
    err = kvt__s3_keys_from_json(text, n, KVT__S3_JSON_PROCESS, SOURCE, out);
    explicit_bzero(text, n);
    kvt__s3_wipe_free(text);
    return err;
}

static int
get_static_keys(const char *name, const struct kvt__s3_profile *profile,
                struct kvt__s3_keys **out)
{
    char *const *value = profile->value;
    bool access = value[KVT__PROFILE_ACCESS] != NULL;

    if (!access || !value[KVT__PROFILE_SECRET])
        return kvt__fail(ENOKEY, "profile %s has %s but not %s.", name,
                         access ? "aws_access_key_id" : "aws_secret_access_key",
                         access ? "aws_secret_access_key" : "aws_access_key_id");
    *out = kvt__s3_keys_new(value[KVT__PROFILE_ACCESS], value[KVT__PROFILE_SECRET],
                            value[KVT__PROFILE_TOKEN], INT64_MAX, SOURCE);
    return *out ? 0 : kvt__fail(ENOMEM, "profile %s", name);
}

/* ------------------------------------------------------------------- a role */

static int
get_source_keys(const struct profile_path *path, const char *word, struct kvt__s3_keys **out)
{
    static const struct {
        const char *word;
        kvt__s3_source_fn *get_keys;
    } sources[] = {
        { "Environment", kvt__s3_keys_from_environment },
        { "Ec2InstanceMetadata", kvt__s3_keys_from_metadata },
        { "EcsContainer", kvt__s3_keys_from_container },
    };
    const char *name = path->name[path->n - 1];

    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (strcasecmp(sources[i].word, word))
            continue;
        int err = sources[i].get_keys(path->params, out);
        if (err == KVT__S3_NOT_SET)
            return kvt__fail(ENOKEY, "profile %s: its credential_source %s is not set.",
                             name, sources[i].word);
        return err;
    }
    return kvt__fail(ENOKEY, "profile %s: its credential_source is none of Environment, "
                     "Ec2InstanceMetadata, EcsContainer.", name);
}

/* Get the keys for the request to STS. */
static int
get_sts_keys(struct profile_path *path, const struct kvt__s3_profile *profile,
             struct kvt__s3_keys **out)
{
    const char *name = path->name[path->n - 1];
    const char *from = profile->value[KVT__PROFILE_SOURCE_PROFILE];
    const char *word = profile->value[KVT__PROFILE_CREDENTIAL_SOURCE];

    if (!from == !word)
        return kvt__fail(ENOKEY, "profile %s has role_arn: it needs one of source_profile, "
                         "credential_source, web_identity_token_file.", name);
    if (word)
        return get_source_keys(path, word, out);
    if (strcmp(from, name))
        return get_profile_keys(path, from, out);
    if (!profile->value[KVT__PROFILE_ACCESS] && !profile->value[KVT__PROFILE_SECRET])
        return kvt__fail(ENOKEY, "profile %s is its own source_profile but has no keys.",
                         name);
    return get_static_keys(name, profile, out);
}

static int
get_role_keys(struct profile_path *path, const struct kvt__s3_profile *profile,
              struct kvt__s3_keys **out)
{
    char *const *value = profile->value;
    struct kvt__s3_role role = {
        .arn = value[KVT__PROFILE_ROLE], .session = value[KVT__PROFILE_SESSION],
        .external_id = value[KVT__PROFILE_EXTERNAL_ID],
        .duration = value[KVT__PROFILE_DURATION], .region = value[KVT__PROFILE_REGION] };
    struct kvt__s3_keys *keys;

    if (value[KVT__PROFILE_TOKEN_FILE])
        return kvt__s3_assume_role_by_token(path->params, &role,
                                            value[KVT__PROFILE_TOKEN_FILE], SOURCE, out);
    if (value[KVT__PROFILE_MFA])
        return kvt__fail(ENOKEY, "profile %s requires an MFA code (mfa_serial): use "
                         "credential_process.", path->name[path->n - 1]);
    int err = get_sts_keys(path, profile, &keys);
    if (err)
        return err;
    err = kvt__s3_assume_role(path->params, &role, keys, out);
    kvt__s3_keys_unref(keys);
    return err;
}

/* ---------------------------------------------------------------- a profile */

static int
get_loaded_keys(struct profile_path *path, const struct kvt__s3_profile *profile,
                struct kvt__s3_keys **out)
{
    const char *name = path->name[path->n - 1];
    char *const *value = profile->value;
    bool has_keys = value[KVT__PROFILE_ACCESS] || value[KVT__PROFILE_SECRET];

    /* If another profile's role needs the keys of this profile, keys in this profile have priority
     * over a role of this profile. */
    if (value[KVT__PROFILE_ROLE] && !(has_keys && path->n > 1))
        return get_role_keys(path, profile, out);
    if (has_keys)
        return get_static_keys(name, profile, out);
    if (value[KVT__PROFILE_PROCESS])
        return run_process(path->params, value[KVT__PROFILE_PROCESS], out);
    if (value[KVT__PROFILE_SSO_SESSION] || value[KVT__PROFILE_SSO_URL])
        return kvt__fail(ENOKEY, "profile %s is for SSO: make another profile with "
                         "\"credential_process = aws configure export-credentials "
                         "--profile %s --format process\".", name, name);
    return KVT__S3_NOT_SET;
}

static int
get_profile_keys(struct profile_path *path, const char *name, struct kvt__s3_keys **out)
{
    struct kvt__s3_profile profile;

    for (unsigned i = 0; i < path->n; i++)
        if (!strcmp(path->name[i], name))
            return kvt__fail(ENOKEY, "profile %s is its own source_profile by way of %s.",
                             name, path->name[path->n - 1]);
    if (path->n == MAX_PROFILES)
        return kvt__fail(ENOKEY, "profile %s: more than %d source_profiles.", path->name[0],
                         MAX_PROFILES - 1);
    int err = kvt__s3_profile_load(path->params, name, &profile);
    if (err)
        return err;
    path->name[path->n++] = name;
    err = profile.exists ? get_loaded_keys(path, &profile, out) : KVT__S3_NOT_SET;
    path->n--;
    if (err == KVT__S3_NOT_SET && (path->named || path->n))
        err = kvt__fail(ENOKEY, profile.exists ? "profile %s has no keys."
                                               : "there is no profile %s.", name);
    kvt__s3_profile_fini(&profile);
    return err;
}

int
kvt__s3_keys_from_profile(const struct kvt__s3_chain_params *params, struct kvt__s3_keys **out)
{
    struct profile_path path = { .params = params };

    return get_profile_keys(&path, kvt__s3_profile_name(params, &path.named), out);
}
