/* SPDX-License-Identifier: Apache-2.0
 *
 * Judgement of responses of the S3 API.  Call on the thread of the HTTP client that received the
 * response. */
#ifndef KVT_TIER_S3_VERDICT_H
#define KVT_TIER_S3_VERDICT_H

#include "tier/s3/call.h"

enum s3_verdict {
    S3_GOOD,
    S3_FINAL,         /* final: the object does not exist, or If-None-Match found an object */
    S3_FAILED,        /* final: a retry would fail too */
    S3_RETRY,         /* retry after a delay */
    S3_SLOW_DOWN,     /* retry after a delay, and lower the limit on stores */
    S3_NEW_KEYS,      /* retry with refreshed keys */
    S3_DOUBTED_KEYS,  /* retry with refreshed keys, if available: the response gives no reason */
    S3_SET_CLOCK,     /* retry with the server's time */
    S3_REDIRECT,      /* retry in another region or at another host */
    S3_NO_CONDITIONS, /* retry without If-None-Match */
    S3_NO_CHECKSUMS,  /* retry without x-amz-checksum-* */
};

/* Return true if a response with this status is a success.  A GET or HEAD requires 200, a GET with
 * a range 200 or 206, and other methods any 2xx. */
bool kvt__s3_is_good(const struct s3_call *call, int status);

/* Judge the result of the call's last attempt.  *err: the -errno of the call if the caller does not
 * retry.  Parses the error document into call->error. */
enum s3_verdict kvt__s3_judge(struct s3_call *call, int *err);

/* Write the sentence of a failed call to kvt__why(): status, S3 code, request id, object,
 * advice. */
void kvt__s3_set_call_why(const struct s3_call *call, int err);

#endif
