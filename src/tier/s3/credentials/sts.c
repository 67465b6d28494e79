/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of a role, from the Security Token Service (STS). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/encode.h"
#include "tier/s3/partition.h"
#include "tier/s3/xml.h"

#define TIMEOUT_MS 5000
#define MAX_REGION 63
#define FORM_ROOM ((size_t)64 << 10)

/* -------------------------------------------------------------- address of STS */

#define URL_ROOM ((size_t)256)

/* Write the URL of the region's STS.  In us-gov- regions the usual host is a FIPS endpoint, so
 * "-fips" is left out. */
static int
own_url(const struct kvt__s3_chain_params *params, const char *region, char out[URL_ROOM])
{
    const struct kvt__s3_partition *partition = kvt__s3_partition_of_region(region);
    bool fips, dualstack;
    int err = kvt__s3_use_fips(params, &fips);

    if (!err)
        err = kvt__s3_use_dualstack(params, &dualstack);
    if (err)
        return err;
    bool named = fips && (dualstack || strncmp(region, "us-gov-", 7));
    snprintf(out, URL_ROOM, "https://sts%s.%s.%s", named ? "-fips" : "", region,
             dualstack ? partition->dualstack : partition->domain);
    return 0;
}

static const char *
region_of(const struct kvt__s3_chain_params *params, const char *profile_region)
{
    const char *region = params->region && *params->region ? params->region : NULL;

    if (!region)
        region = kvt__s3_getenv(params, "AWS_REGION");
    if (!region)
        region = kvt__s3_getenv(params, "AWS_DEFAULT_REGION");
    if (!region)
        region = profile_region;
    return region ? region : "us-east-1";
}

int
kvt__s3_sts_url(const struct kvt__s3_chain_params *params, const char *profile_region,
                char *region, struct kvt__s3_url *out)
{
    const char *from = region_of(params, profile_region);
    const char *name = "AWS_ENDPOINT_URL_STS";
    const char *endpoint = kvt__s3_getenv(params, name);
    char text[URL_ROOM];

    if (strspn(from, "-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") !=
            strlen(from) || strlen(from) > MAX_REGION)
        return kvt__fail(EINVAL, "the region for STS is not a valid name.");
    snprintf(region, MAX_REGION + 1, "%s", from);
    if (!endpoint) {
        name = "AWS_ENDPOINT_URL";
        endpoint = kvt__s3_getenv(params, name);
    }
    /* AWS_ENDPOINT_URL is the store's address: STS is not used there without TLS, which would
     * expose a token. */
    if (endpoint && !strcmp(name, "AWS_ENDPOINT_URL") &&
        !strncasecmp(endpoint, "http:", 5))
        return kvt__fail(EACCES, "AWS_ENDPOINT_URL is http://: STS is not used there. Set "
                         "AWS_ENDPOINT_URL_STS.");
    if (!endpoint) {
        int err = own_url(params, region, text);

        if (err)
            return err;
        endpoint = text;
    }
    return kvt__s3_read_url(endpoint, name, out);
}

/* ----------------------------------------------------------------- request form */

struct form {
    char *text;
    size_t n;
    bool full;
};

static void
add(struct form *form, const char *name, const char *value)
{
    if (!value || form->full)
        return;
    int n = snprintf(form->text + form->n, FORM_ROOM - form->n, "%s%s=",
                     form->n ? "&" : "", name);
    if ((form->full = (size_t)n >= FORM_ROOM - form->n))
        return;
    form->n += (size_t)n;
    n = kvt__s3_encode(value, strlen(value), false, form->text + form->n,
                       FORM_ROOM - form->n);
    if (!(form->full = n < 0))
        form->n += (size_t)n;
}

static int
open_form(struct form *form, const char *action, const struct kvt__s3_role *role,
          const char *session)
{
    *form = (struct form){ calloc(1, FORM_ROOM), 0, false };
    if (!form->text)
        return kvt__fail(ENOMEM, "request to STS");
    add(form, "Action", action);
    add(form, "Version", "2011-06-15");
    add(form, "RoleArn", role->arn);
    add(form, "RoleSessionName", role->session ? role->session : session);
    add(form, "DurationSeconds", role->duration);
    return 0;
}

/* --------------------------------------------------------------------- request */

static int
read_response(struct kvt__s3_fetch *fetch, const char *source, const char *secret,
              struct kvt__s3_keys **out)
{
    struct kvt__s3_xml_credentials found;

    if (fetch->http_status != 200)
        return kvt__s3_fetch_fail(fetch, secret);
    int err = kvt__s3_read_credentials(fetch->text, fetch->n, &found);
    if (err)
        return kvt__fail(EBADMSG, "%s answered without credentials.", fetch->url->host);
    *out = kvt__s3_keys_new(found.access, found.secret, found.token, found.expires_s,
                            source);
    return *out ? 0 : kvt__fail(ENOMEM, "keys");
}

/* Send the form to STS.  secret: a secret in the form, or NULL; an external id is not a secret. */
static int
request_keys(const struct kvt__s3_chain_params *params, const char *profile_region,
             const struct form *form, struct kvt__s3_keys *keys, const char *source,
             const char *secret, struct kvt__s3_keys **out)
{
    static const struct kvt__s3_pair headers[] = {
        { "content-type", "application/x-www-form-urlencoded; charset=utf-8" },
        { "accept", "application/xml" },
    };
    struct kvt__s3_url url;
    char region[MAX_REGION + 1];

    if (form->full)
        return kvt__fail(EMSGSIZE, "the request to STS is too long.");
    int err = kvt__s3_sts_url(params, profile_region, region, &url);
    if (err)
        return err;
    struct kvt__s3_fetch *fetch = kvt__s3_fetch_new();
    if (!fetch)
        return -ENOMEM;
    fetch->url = &url;
    fetch->method = "POST";
    fetch->headers = headers;
    fetch->n_headers = sizeof headers / sizeof *headers;
    fetch->body = form->text;
    fetch->keys = keys;
    fetch->region = region;
    fetch->timeout_ms = TIMEOUT_MS;
    err = kvt__s3_fetch(params->http, fetch);
    if (!err)
        err = read_response(fetch, source, secret, out);
    kvt__s3_fetch_free(fetch);
    return err;
}

/* Return the role's session name: AWS's variable, or "kvtier". */
static const char *
session_name(const struct kvt__s3_chain_params *params)
{
    const char *name = kvt__s3_getenv(params, "AWS_ROLE_SESSION_NAME");

    return name ? name : "kvtier";
}

int
kvt__s3_assume_role(const struct kvt__s3_chain_params *params,
                    const struct kvt__s3_role *role, struct kvt__s3_keys *keys,
                    struct kvt__s3_keys **out)
{
    struct form form;
    int err = open_form(&form, "AssumeRole", role, session_name(params));

    if (err)
        return err;
    add(&form, "ExternalId", role->external_id);
    err = request_keys(params, role->region, &form, keys, keys->source, NULL, out);
    kvt__s3_wipe_free(form.text);
    return err;
}

int
kvt__s3_assume_role_by_token(const struct kvt__s3_chain_params *params,
                             const struct kvt__s3_role *role, const char *token_file,
                             const char *source, struct kvt__s3_keys **out)
{
    struct form form;
    char *token;
    int err = kvt__s3_read_token(token_file, &token);

    if (err)
        return err;
    if (!(err = open_form(&form, "AssumeRoleWithWebIdentity", role,
                          session_name(params)))) {
        add(&form, "WebIdentityToken", token);
        err = request_keys(params, role->region, &form, NULL, source, token, out);
        kvt__s3_wipe_free(form.text);
    }
    kvt__s3_wipe_free(token);
    return err;
}
