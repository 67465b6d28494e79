/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's profiles: ~/.aws/credentials and ~/.aws/config. */
#ifndef KVT_TIER_S3_PROFILE_H
#define KVT_TIER_S3_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "tier/s3/credentials.h"

/* The keys that count, in the order of the table in profile-text.c. */
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
    bool there;                       /* a section has its name */
    char *value[KVT__N_PROFILE_KEYS]; /* NULL: not set */
};

/* Add what text says of the profile to *profile; what it had already gives way.
 * config: sections are [profile NAME] and [default], else [NAME].  0 or -ENOMEM with a
 * sentence; lines that cannot be read are passed over. */
int kvt__s3_profile_add(struct kvt__s3_profile *profile, const char *name, bool config,
                        const char *text, size_t n);
void kvt__s3_profile_fini(struct kvt__s3_profile *profile); /* wipes */

/* The number of the key of that name, -1: none. */
int kvt__s3_profile_key(const char *name);

/* The name of the profile that counts; *named: somebody named it. */
const char *kvt__s3_profile_name(const struct kvt__s3_chain_params *params, bool *named);

/* Read it from both files; the credentials' goes before the config's.  A file or profile
 * that is not there is no error. */
int kvt__s3_profile_load(const struct kvt__s3_chain_params *params, const char *name,
                         struct kvt__s3_profile *out);

#endif
