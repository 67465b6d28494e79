/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's profiles, from ~/.aws/credentials and ~/.aws/config. */
#ifndef KVT_TIER_S3_PROFILE_H
#define KVT_TIER_S3_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "tier/s3/credentials.h"

/* The settings that kvtier reads, in the order of the table in profile-text.c. */
enum kvt__s3_profile_key {
    KVT__PROFILE_ACCESS,
    KVT__PROFILE_SECRET,
    KVT__PROFILE_TOKEN,
    KVT__PROFILE_REGION,
    KVT__PROFILE_ENDPOINT,
    KVT__PROFILE_PROCESS,
    KVT__PROFILE_ROLE,
    KVT__PROFILE_SOURCE_PROFILE,
    KVT__PROFILE_CREDENTIAL_SOURCE,
    KVT__PROFILE_EXTERNAL_ID,
    KVT__PROFILE_SESSION,
    KVT__PROFILE_DURATION,
    KVT__PROFILE_TOKEN_FILE,
    KVT__PROFILE_MFA,
    KVT__PROFILE_SSO_SESSION,
    KVT__PROFILE_SSO_URL,
    KVT__PROFILE_FIPS,
    KVT__PROFILE_DUALSTACK,
    KVT__N_PROFILE_KEYS
};

struct kvt__s3_profile {
    bool exists;                      /* a section with the profile's name exists */
    char *value[KVT__N_PROFILE_KEYS]; /* on the heap; NULL: unset */
};

/* Add the settings of the profile `name` from n bytes of text; a new value replaces an old value.
 * config: sections are [profile NAME] and [default]; otherwise [NAME].  Unreadable lines are
 * skipped.  0 or -ENOMEM with a sentence; the caller calls kvt__s3_profile_fini() in both cases. */
int kvt__s3_profile_add(struct kvt__s3_profile *profile, const char *name, bool config,
                        const char *text, size_t n);
void kvt__s3_profile_fini(struct kvt__s3_profile *profile); /* wipe and free the values */

/* Return the index of a setting by name, or -1. */
int kvt__s3_profile_key(const char *name);

/* Return the name of the selected profile.  *named: the user has selected the profile; false: the
 * name is "default" because no profile is selected. */
const char *kvt__s3_profile_name(const struct kvt__s3_chain_params *params, bool *named);

/* Read a profile from both files; the credentials file has priority.  A missing file or profile is
 * not an error.  0 or -errno with a sentence.  After success the caller calls
 * kvt__s3_profile_fini(). */
int kvt__s3_profile_load(const struct kvt__s3_chain_params *params, const char *name,
                         struct kvt__s3_profile *out);

#endif
