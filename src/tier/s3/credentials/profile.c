/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's profile files.  The files are read again for each request of keys: they are small, and
 * other programs write new keys into them. */
#include "tier/s3/credentials/profile.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"

#define MAX_FILE ((size_t)1 << 20)

const char *
kvt__s3_profile_name(const struct kvt__s3_chain_params *params, bool *named)
{
    const char *name = params->profile && *params->profile ? params->profile : NULL;

    if (!name)
        name = kvt__s3_getenv(params, "AWS_PROFILE");
    *named = name != NULL;
    return name ? name : "default";
}

/* Write the path in the variable, or the path of the file in ~/.aws.  Return false if HOME is
 * required and unset. */
static bool
path_of(const struct kvt__s3_chain_params *params, const char *variable, const char *file,
        char out[PATH_MAX])
{
    const char *path = kvt__s3_getenv(params, variable);
    const char *home = kvt__s3_getenv(params, "HOME");
    bool at_home = !path || !strncmp(path, "~/", 2);
    int n;

    if (at_home && !home)
        return false;
    if (!path)
        n = snprintf(out, PATH_MAX, "%s/.aws/%s", home, file);
    else
        n = snprintf(out, PATH_MAX, "%s%s", at_home ? home : "", path + at_home);
    return n < PATH_MAX;
}

static int
add_file(const struct kvt__s3_chain_params *params, const char *name, bool config,
         struct kvt__s3_profile *profile)
{
    char path[PATH_MAX], *text;
    struct stat st;
    size_t n;

    if (!path_of(params, config ? "AWS_CONFIG_FILE" : "AWS_SHARED_CREDENTIALS_FILE",
                 config ? "config" : "credentials", path) ||
        !strcmp(path, "/dev/null")) /* the usual setting for no file */
        return 0;
    int err = kvt__s3_read_file(path, MAX_FILE, &text, &n);
    if (err == -EACCES && stat(path, &st) < 0)
        /* HOME belongs to another user, as in many containers: as in the SDKs, the file counts as
         * missing. */
        return 0;
    if (err)
        return err == -ENOENT || err == -ENOTDIR ? 0 : err;
    err = kvt__s3_profile_add(profile, name, config, text, n);
    kvt__s3_wipe_free(text);
    return err;
}

int
kvt__s3_profile_load(const struct kvt__s3_chain_params *params, const char *name,
                     struct kvt__s3_profile *out)
{
    *out = (struct kvt__s3_profile){ 0 };
    int err = add_file(params, name, true, out);
    if (!err)
        err = add_file(params, name, false, out);
    if (err)
        kvt__s3_profile_fini(out);
    return err;
}

int
kvt__s3_profile_text(const struct kvt__s3_chain_params *params, const char *key, char *out,
                     size_t room)
{
    struct kvt__s3_profile profile;
    bool named;
    const char *name = kvt__s3_profile_name(params, &named);
    int number = kvt__s3_profile_key(key);
    int err = kvt__s3_profile_load(params, name, &profile);

    if (err)
        return err;
    const char *value = number < 0 ? NULL : profile.value[number];
    if (!value)
        err = kvt__fail(ENOENT, "profile %s has no %s.", name, key);
    else if ((size_t)snprintf(out, room, "%s", value) >= room)
        err = kvt__fail(ENAMETOOLONG, "%s of profile %s is too long.", key, name);
    kvt__s3_profile_fini(&profile);
    return err;
}

static int
read_flag(const struct kvt__s3_chain_params *params, const char *variable,
          const char *key, bool *out)
{
    const char *text = kvt__s3_getenv(params, variable);
    char value[64] = "", why[256];

    if (!text) {
        int err = kvt__s3_profile_text(params, key, value, sizeof value);

        if (err && err != -ENOENT) {
            snprintf(why, sizeof why, "%s", kvt__why());
            return kvt__fail(-err, "%s of the profile cannot be read, and %s is not set: %s",
                             key, variable, why);
        }
        text = err ? NULL : value;
    }
    *out = text && !strcasecmp(text, "true");
    if (text && !*out && strcasecmp(text, "false"))
        return kvt__fail(EINVAL, "%s is neither true nor false.",
                         text == value ? key : variable);
    return 0;
}

int
kvt__s3_use_fips(const struct kvt__s3_chain_params *params, bool *out)
{
    return read_flag(params, "AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint", out);
}

int
kvt__s3_use_dualstack(const struct kvt__s3_chain_params *params, bool *out)
{
    return read_flag(params, "AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint", out);
}
