/* SPDX-License-Identifier: Apache-2.0
 *
 * What an answer of the S3 API means. */
#ifndef KVT_TIER_S3_ANSWER_H
#define KVT_TIER_S3_ANSWER_H

#include "tier/s3/call.h"

enum s3_verdict {
    S3_GOOD,
    S3_SETTLED,       /* answered, but with no object, or that there is one */
    S3_FAILED,        /* and would again */
    S3_REPEAT,        /* later */
    S3_SLOW_DOWN,     /* later, and less */
    S3_OTHER_KEYS,    /* with newer ones */
    S3_DOUBTED_KEYS,  /* with newer ones, if there are any: refused without a reason */
    S3_OTHER_CLOCK,   /* with the server's time */
    S3_OTHER_PLACE,   /* in another region, or at another host */
    S3_NO_CONDITIONS, /* without If-None-Match */
    S3_NO_CHECKSUMS,  /* without x-amz-checksum-* */
};

/* Return true if a response with this status does what the call asks for.  A GET or HEAD
 * takes 200 alone, a GET with a range also 206; other methods take any 2xx. */
bool kvt__s3_is_good(const struct s3_call *call, int status);

/* What the call's last attempt came to; err: what it would end with.  Reads the error's
 * document into call->error. */
enum s3_verdict kvt__s3_judge(struct s3_call *call, int *err);

/* Make the sentence: status, S3 code, request id, the object, what to do. */
void kvt__s3_tell(const struct s3_call *call, int err);

#endif
