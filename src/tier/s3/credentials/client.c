/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client for services that provide keys.  The store's settings (s3_verify_tls, s3_ca_file,
 * s3_client_cert) are not used here: a store may be a test server without a valid certificate, a
 * service that provides keys may not. */
#include "conf/conf.h"
#include "tier/s3/credentials/private.h"

static const char *
setting(const char *const *environment, const char *name, const char *upper)
{
    const char *value = kvt__variable(environment, name);

    if (!value && upper)
        value = kvt__variable(environment, upper);
    return value && *value ? value : NULL;
}

void
kvt__s3_read_proxies(const char *const *environment, struct kvt__http_params *out)
{
    out->http_proxy = setting(environment, "http_proxy", NULL);
    out->https_proxy = setting(environment, "https_proxy", "HTTPS_PROXY");
    out->no_proxy = setting(environment, "no_proxy", "NO_PROXY");
}

int
kvt__s3_open_key_client(const char *const *environment, int64_t connect_ns,
                        struct kvt__http **out)
{
    struct kvt__http_params params = {
        .n_threads = 1, .max_requests = 4, .connect_ns = connect_ns,
        .more_ca_file = setting(environment, "AWS_CA_BUNDLE", NULL) };

    kvt__s3_read_proxies(environment, &params);
    params.http_proxy = NULL; /* plain HTTP is used only for this host and link-local addresses */
    return kvt__http_open(&params, out);
}
