/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS's partitions and their domains, copied from botocore's partitions.json.
 * Any thread. */
#ifndef KVT_TIER_S3_PARTITION_H
#define KVT_TIER_S3_PARTITION_H

#include <stdbool.h>

struct kvt__s3_partition {
    const char *prefix;    /* start of the partition's region names */
    const char *domain;    /* domain of all hosts, and of S3's hosts with "dualstack" in the name */
    const char *dualstack; /* domain of other services' hosts with IPv6 and IPv4 */
};

/* Return true if the host is the domain or a name below the domain. */
bool kvt__s3_in_domain(const char *host, const char *domain);

/* Return the partition of a region; for an unknown region name, the commercial partition. */
const struct kvt__s3_partition *kvt__s3_partition_of_region(const char *region);

/* Return the partition of the host's domain, or NULL. */
const struct kvt__s3_partition *kvt__s3_partition_of_host(const char *host);

#endif
