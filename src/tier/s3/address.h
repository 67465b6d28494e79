/* SPDX-License-Identifier: Apache-2.0
 *
 * The address of a bucket: host, port and path, made from remote_url and the settings.  docs/s3.md
 * has the table of all forms.  An address does not change after creation, so any thread may read an
 * address. */
#ifndef KVT_TIER_S3_ADDRESS_H
#define KVT_TIER_S3_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvt__s3_style { KVT__S3_AUTO, KVT__S3_VIRTUAL, KVT__S3_PATH };
enum kvt__s3_tls { KVT__S3_TLS_AUTO, KVT__S3_TLS_ON, KVT__S3_TLS_OFF };

/* The settings that define an address.  NULL or "": unset. */
struct kvt__s3_address_params {
    const char *rest;         /* remote_url without "s3://" */
    const char *endpoint_url; /* [http[s]://]HOST[:PORT][/BASE] */
    const char *region;
    const char *file_prefix;  /* slashes at both ends are ignored */
    const char *resolve;      /* HOST:PORT:ADDR[,HOST:PORT:ADDR...], as for curl */
    enum kvt__s3_style style;
    enum kvt__s3_tls tls;     /* from disable_tls, if set */
    bool express; /* s3_enable_s3express; ignored for AWS, where the bucket's name decides */
    bool fips, dualstack;     /* use AWS endpoints with FIPS 140 cryptography, with IPv6 */
};

struct kvt__s3_address {
    bool tls, express;
    bool plain_by_host;  /* no TLS because of the host's domain; logged once */
    bool aws;            /* the host belongs to AWS */
    uint16_t port;
    char name[256];      /* host name or address for connections, IPv6 in brackets */
    char host[272];      /* value of the Host header */
    char address[64];    /* address from s3_resolve, without brackets; "": resolve name */
    char bucket[64];     /* "": unknown, the host implies the bucket */
    char region[64];
    char bucket_path[512]; /* encoded path of requests to the bucket: the endpoint's /BASE, then "/"
                            * or "/BUCKET" */
    char object_path[1600]; /* encoded start of the path of every object, ends with '/' */
    char prefix[512];    /* unencoded start of all keys in the bucket, "" or ends with '/' */
};

/* Make the address.  name: the setting's name for messages.  0, or -EINVAL with a sentence that
 * lists the allowed forms. */
int kvt__s3_address(const char *name, const struct kvt__s3_address_params *params,
                    struct kvt__s3_address *out);

/* Make the address for a redirect of a bucket to another host or another region.  endpoint:
 * [http[s]://]HOST[:PORT], with or without the bucket as the first label; a path after the port is
 * ignored.  endpoint or region NULL or "": unchanged.  0, or -EXDEV with a sentence: the new host
 * has another registrable domain, another scheme, or is an IP address. */
int kvt__s3_readdress(const struct kvt__s3_address *was, const char *endpoint,
                      const char *region, struct kvt__s3_address *out);

#endif
