/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a bucket is: from remote_url and the settings to host, port and path.  The table
 * of forms is in docs/s3.md.  Constant once made: any thread. */
#ifndef KVT_TIER_S3_ADDRESS_H
#define KVT_TIER_S3_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvt__s3_style { KVT__S3_AUTO, KVT__S3_VIRTUAL, KVT__S3_PATH };
enum kvt__s3_tls { KVT__S3_TLS_AUTO, KVT__S3_TLS_ON, KVT__S3_TLS_OFF };

/* What was configured; NULL or "": nothing. */
struct kvt__s3_place {
    const char *rest;         /* of remote_url, behind s3:// */
    const char *endpoint_url; /* [http[s]://]HOST[:PORT][/BASE] */
    const char *region;
    const char *file_prefix;  /* slashes at its ends do not count */
    const char *resolve;      /* HOST:PORT:ADDR[,HOST:PORT:ADDR...], as curl's */
    enum kvt__s3_style style;
    enum kvt__s3_tls tls;     /* disable_tls, where it was given */
    bool express;             /* s3_enable_s3express; on AWS a bucket's name decides */
    bool fips, dualstack;     /* endpoints of AWS with FIPS 140 cryptography, with IPv6 */
};

struct kvt__s3_address {
    bool tls, express;
    bool plain_by_host;  /* no TLS because of the host's domain: to be told once */
    bool aws;            /* a host of AWS */
    uint16_t port;
    char name[256];      /* host name or address to connect to, IPv6 in brackets */
    char host[272];      /* the Host header */
    char address[64];    /* of s3_resolve, without brackets; "": what name resolves to */
    char bucket[64];     /* "": the host implies it and it is not known */
    char region[64];
    char bucket_path[512]; /* encoded; path of requests to the bucket: "/" or "/BUCKET",
                            * behind the endpoint's /BASE */
    char object_path[1600]; /* encoded; what a key's path begins with, ends with '/' */
    char prefix[512];    /* unencoded; of all our keys in the bucket, "" or ends with '/' */
};

/* name: the setting, for messages.  0 or -EINVAL with a sentence that tells the forms. */
int kvt__s3_address(const char *name, const struct kvt__s3_place *place,
                    struct kvt__s3_address *out);

/* The same bucket at another host of the same registrable domain, or in another region,
 * which an answer told; NULL or "": as before.  The endpoint is [http[s]://]HOST[:PORT],
 * with or without the bucket in front, and what follows it does not count.  -EXDEV with a
 * sentence: the host is of another domain, an IP address or of another scheme. */
int kvt__s3_readdress(const struct kvt__s3_address *was, const char *endpoint,
                      const char *region, struct kvt__s3_address *out);

#endif
