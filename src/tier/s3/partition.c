/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/s3/partition.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* The last partition contains all other regions, including us-gov- regions. */
static const struct kvt__s3_partition partitions[] = {
    { "cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn" },
    { "eusc-", "amazonaws.eu", "api.amazonwebservices.eu" },
    { "us-iso-", "c2s.ic.gov", "api.aws.ic.gov" },
    { "us-isob-", "sc2s.sgov.gov", "api.aws.scloud" },
    { "us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov" },
    { "eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk" },
    { "", "amazonaws.com", "api.aws" },
};

#define N_PARTITIONS (sizeof partitions / sizeof *partitions)

bool
kvt__s3_in_domain(const char *host, const char *domain)
{
    size_t n = strlen(host), n_domain = strlen(domain);

    return n >= n_domain && !strcasecmp(host + n - n_domain, domain) &&
           (n == n_domain || host[n - n_domain - 1] == '.');
}

const struct kvt__s3_partition *
kvt__s3_partition_of_region(const char *region)
{
    size_t i = 0;

    while (strncasecmp(region, partitions[i].prefix, strlen(partitions[i].prefix)))
        i++;
    return &partitions[i];
}

const struct kvt__s3_partition *
kvt__s3_partition_of_host(const char *host)
{
    for (size_t i = 0; i < N_PARTITIONS; i++)
        if (kvt__s3_in_domain(host, partitions[i].domain))
            return &partitions[i];
    return NULL;
}
