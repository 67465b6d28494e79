/* SPDX-License-Identifier: Apache-2.0
 *
 * The combined meaning of several S3 settings: the number of requests, contradictions, and settings
 * without effect. */
#include <string.h>
#include <strings.h>

#include "conf/read.h"
#include "tier/s3/s3.h"

enum { USUAL_REQUESTS = 64 };

static const char scheme[] = "s3://";

int64_t
kvt__s3_max_requests(const struct kvt_config *config)
{
    const int64_t given[] = { config->s3_num_io_threads, config->s3_max_io_concurrency,
                              config->s3_max_inflight_reqs };
    int64_t least = 0;

    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (given[i] && (!least || given[i] < least))
            least = given[i];
    return least ? least : USUAL_REQUESTS;
}

/* ------------------------------------------------------------ the S3 stores */

/* Return the location of store i: for i = 0 remote_url without "s3://", else the base_path of
 * plug-in i - 1.  "": the store is not S3.  NULL: no more stores. */
static const char *
store_location(const struct kvt_config *c, size_t i)
{
    if (!i)
        return c->remote_url && !strncmp(c->remote_url, scheme, sizeof scheme - 1)
                   ? c->remote_url + sizeof scheme - 1 : "";
    if (i > c->remote_storage_plugins.n)
        return NULL;
    const char *plugin = c->remote_storage_plugins.items[i - 1];
    if (strncmp(plugin, "s3", 2) || (plugin[2] && plugin[2] != '.'))
        return "";
    const char *path = kvt__config_base_path(c, plugin);
    return path ? path : "";
}

/* Return true if text begins with a host in this domain. */
static bool
is_under(const char *text, const char *domain)
{
    size_t n = strlen(domain), len = strcspn(text, ":/");

    return len >= n && !strncasecmp(text + len - n, domain, n) &&
           (len == n || text[len - n - 1] == '.');
}

/* Return true if text begins with the name of an S3 Express bucket, alone or as the first label of
 * a host. */
static bool
is_express(const char *text)
{
    static const char ending[] = "--x-s3";
    size_t n = sizeof ending - 1, len = strcspn(text, ".:/");

    return len > n && !strncmp(text + len - n, ending, n);
}

/* ---------------------------------------------------- warnings and errors */

#define NOTE(r, severity, name, fmt)                                            \
    kvt__note(r, severity, #name, kvt__config_origin((r)->config, name), fmt,   \
              kvt__config_origin((r)->config, name))

static void
note_without_effect(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;

    if (kvt__config_is_set(c, s3_prefer_http2) && c->s3_prefer_http2)
        NOTE(r, KVT__WARNING, s3_prefer_http2, "s3_prefer_http2 (%s) has no effect: kvtier "
             "speaks HTTP/1.1, as AWS S3 does.");
    if (c->s3_max_inflight_reqs)
        NOTE(r, KVT__WARNING, s3_max_inflight_reqs, "s3_max_inflight_reqs (%s) makes no "
             "buffers in /dev/shm: requests use the memory of max_local_cpu_size.");
    if (kvt__config_is_set(c, save_chunk_meta) && c->save_chunk_meta)
        NOTE(r, KVT__WARNING, save_chunk_meta, "save_chunk_meta (%s) has no effect on S3: "
             "objects there never have LMCache's header.");
}

static void
check_keys(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;

    if (c->aws_access_key_id && !c->aws_secret_access_key)
        NOTE(r, KVT__WARNING, aws_access_key_id, "aws_access_key_id (%s) has no effect "
             "without aws_secret_access_key.");
    if (c->aws_secret_access_key && !c->aws_access_key_id)
        NOTE(r, KVT__WARNING, aws_secret_access_key, "aws_secret_access_key (%s) has no "
             "effect without aws_access_key_id.");
    if (c->aws_session_token && !c->aws_access_key_id && !c->aws_secret_access_key)
        NOTE(r, KVT__WARNING, aws_session_token, "aws_session_token (%s) has no effect "
             "without aws_access_key_id and aws_secret_access_key.");
    if (c->s3_sse_kms_key_id && (!c->s3_sse || strcmp(c->s3_sse, "aws:kms")))
        NOTE(r, KVT__ERROR, s3_sse_kms_key_id, "s3_sse_kms_key_id (%s) needs s3_sse: "
             "aws:kms.");
    if (c->s3_client_key && !c->s3_client_cert)
        NOTE(r, KVT__ERROR, s3_client_key, "s3_client_key (%s) needs s3_client_cert.");
}

static void
check_locations(struct kvt__reading *r, bool express, bool lota)
{
    const struct kvt_config *c = r->config;

    if (express && !strcmp(c->s3_addressing, "path"))
        NOTE(r, KVT__ERROR, s3_addressing, "s3_addressing is path (%s): S3 Express takes "
             "the bucket in the host's name only; use auto.");
    if (lota && !kvt__config_is_set(c, disable_tls))
        kvt__note(r, KVT__WARNING, "disable_tls", "default",
                  "disable_tls is not set: plain HTTP is used, as the host is under "
                  "cwlota.com. Set it to true to say so, to false for TLS.");
}

/* Remove the slashes at both ends of the prefix. */
static void
trim_prefix(struct kvt_config *c)
{
    const char *prefix = c->s3_file_prefix + strspn(c->s3_file_prefix, "/");
    size_t len = strlen(prefix);

    while (len && prefix[len - 1] == '/')
        len--;
    c->s3_file_prefix = len ? kvt__arena_text(&c->memory, prefix, len) : NULL;
}

void
kvt__check_s3(struct kvt__reading *r)
{
    const struct kvt_config *c = r->config;
    bool any = false, express = c->s3_enable_s3express, lota = false;
    const char *location;

    if (c->s3_file_prefix)
        trim_prefix(r->config);
    for (size_t i = 0; (location = store_location(c, i)); i++) {
        if (!*location)
            continue;
        any = true;
        express = express || is_express(location);
        lota = lota ||
               is_under(c->s3_endpoint_url ? c->s3_endpoint_url : location, "cwlota.com");
    }
    if (!any)
        return;
    note_without_effect(r);
    check_keys(r);
    check_locations(r, express, lota);
}
