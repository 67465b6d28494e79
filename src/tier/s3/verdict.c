/* SPDX-License-Identifier: Apache-2.0
 *
 * Judgement of responses, by S3 code and by status.  AWS documents the codes.  Other stores send
 * most of these codes, and some additional codes. */
#include "tier/s3/verdict.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

#define SKEW_S 300 /* a larger clock difference explains a rejected signature */

/* ---------------------------------------------------------------------- by code */

/* Codes with more information than the status, or with different statuses. */
static const struct {
    const char *code;
    enum s3_verdict verdict;
    int err;
} codes[] = {
    { "NoSuchKey", S3_FINAL, ENOENT },
    { "InvalidObjectState", S3_FINAL, ENOENT }, /* archived: a restore takes hours */
    { "NoSuchBucket", S3_FAILED, ENXIO },
    { "PreconditionFailed", S3_FINAL, EEXIST },
    { "ConditionalRequestConflict", S3_RETRY, EBUSY },
    { "OperationAborted", S3_RETRY, EBUSY },
    { "SlowDown", S3_SLOW_DOWN, EIO },
    { "SlowDownRead", S3_SLOW_DOWN, EIO },
    { "SlowDownWrite", S3_SLOW_DOWN, EIO },
    { "ServiceUnavailable", S3_SLOW_DOWN, EIO },
    { "Throttling", S3_SLOW_DOWN, EIO },
    { "ThrottlingException", S3_SLOW_DOWN, EIO },
    { "RequestLimitExceeded", S3_SLOW_DOWN, EIO },
    { "TooManyRequests", S3_SLOW_DOWN, EIO },
    { "InternalError", S3_RETRY, EIO },
    { "RequestTimeout", S3_SLOW_DOWN, EIO },
    { "BadDigest", S3_RETRY, EIO }, /* the body was corrupted in transit */
    { "XAmzContentSHA256Mismatch", S3_FAILED, EIO },
    { "RequestTimeTooSkewed", S3_SET_CLOCK, EACCES },
    { "ExpiredToken", S3_NEW_KEYS, EACCES },
    { "InvalidToken", S3_NEW_KEYS, EACCES },
    { "TokenRefreshRequired", S3_NEW_KEYS, EACCES },
    { "InvalidAccessKeyId", S3_NEW_KEYS, EACCES },
    { "AuthorizationHeaderMalformed", S3_REDIRECT, EACCES },
    { "PermanentRedirect", S3_REDIRECT, EIO },
    { "TemporaryRedirect", S3_REDIRECT, EIO },
    { "QuotaExceeded", S3_FAILED, ENOSPC },
    { "XMinioStorageFull", S3_FAILED, ENOSPC },
    { "EntityTooLarge", S3_FAILED, EFBIG },
    { "AccessDenied", S3_FAILED, EACCES },
    { "SignatureDoesNotMatch", S3_FAILED, EACCES },
};

/* -------------------------------------------------------------------- by status */

static bool
has_header(const struct s3_call *call, const char *name)
{
    for (size_t i = 0; i < call->n_headers; i++)
        if (!strcmp(call->headers[i].name, name))
            return true;
    return false;
}

static bool
has_clock_difference(const struct s3_call *call)
{
    int64_t now = (int64_t)time(NULL) + atomic_load(&call->tier->clock_s);

    return call->date_s && llabs((long long)(call->date_s - now)) > SKEW_S;
}

/* Judge a response with status 400, 401 or 403.  Keys close to expiry count as expired, because the
 * store reports a rounded time of expiry.  A response to a HEAD has no document with a code, so
 * rotated keys look like a missing permission. */
static enum s3_verdict
judge_refusal(const struct s3_call *call)
{
    int64_t now = (int64_t)time(NULL) + atomic_load(&call->tier->clock_s);

    if (has_clock_difference(call) && !call->has_set_clock)
        return S3_SET_CLOCK;
    if (call->keys && call->keys->expires_s - KVT__S3_EXPIRY_MARGIN_S <= now)
        return S3_NEW_KEYS;
    return *call->error.code ? S3_FAILED : S3_DOUBTED_KEYS;
}

static bool
judge_code(const struct s3_call *call, enum s3_verdict *verdict, int *err)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(codes[i].code, call->error.code))
            continue;
        *verdict = codes[i].verdict;
        *err = -codes[i].err;
        if (*verdict == S3_FAILED && codes[i].err == EACCES)
            *verdict = judge_refusal(call); /* SeaweedFS sends AccessDenied for expired keys */
        return true;
    }
    return false;
}

static enum s3_verdict
judge_status(const struct s3_call *call, int *err)
{
    int status = call->http.http_status;

    *err = -EIO;
    switch (status) {
    case 304: /* from older MinIO after If-None-Match */
    case 412:
        *err = -EEXIST;
        return S3_FINAL;
    case 404:
        *err = -ENOENT;
        return call->name ? S3_FINAL : S3_FAILED;
    case 500:
    case 502:
        return S3_RETRY;
    case 408:
    case 429:
    case 503:
    case 504:
        return S3_SLOW_DOWN;
    case 409:
        *err = -EBUSY;
        return S3_RETRY;
    case 400:
        return call->http.is_head ? judge_refusal(call) : S3_FAILED;
    case 401:
    case 403:
        *err = -EACCES;
        return judge_refusal(call);
    case 301:
    case 302:
    case 307:
    case 308:
        return S3_REDIRECT;
    case 416:
        *err = -EBADMSG;
        return S3_FINAL;
    case 413:
        *err = -EFBIG;
        return S3_FAILED;
    case 507:
        *err = -ENOSPC;
        return S3_FAILED;
    default:
        return S3_FAILED;
    }
}

/* Return true, and set the verdict, if the store does not implement an optional header of the
 * request.  A wrong checksum has a separate code. */
static bool
judge_optional_headers(const struct s3_call *call, enum s3_verdict *verdict)
{
    int status = call->http.http_status;

    if (status == 501 && has_header(call, "if-none-match"))
        *verdict = S3_NO_CONDITIONS;
    else if (has_header(call, "x-amz-checksum-crc32c") &&
             (status == 501 ||
              (status == 400 && strstr(call->error.message, "checksum"))))
        *verdict = S3_NO_CHECKSUMS;
    else
        return false;
    return true;
}

/* -------------------------------------------------------------------------- judge */

static enum s3_verdict
judge_connection(const struct s3_call *call, int *err)
{
    *err = call->head_err ? call->head_err : call->http.status;
    if (call->head_err)
        return call->head_err == -ENOENT ? S3_FINAL : S3_FAILED;
    switch (call->http.status) {
    case -ETIMEDOUT: /* the deadline has passed, or the connection has stalled */
        return kvt__now_ns() < call->deadline_ns ? S3_RETRY : S3_FAILED;
    case -ECANCELED:
    case -EKEYREJECTED:
    case -EACCES: /* a proxy requires a user and password */
    case -EMSGSIZE:
    case -ENAMETOOLONG:
    case -EINVAL:
    case -ENOMEM:
        return S3_FAILED;
    default:
        return S3_RETRY;
    }
}

bool
kvt__s3_is_good(const struct s3_call *call, int status)
{
    bool reads = !strcmp(call->method, "GET") || !strcmp(call->method, "HEAD");

    if (!reads)
        return status >= 200 && status < 300;
    return status == 200 || (status == 206 && has_header(call, "range"));
}

enum s3_verdict
kvt__s3_judge(struct s3_call *call, int *err)
{
    int status = call->http.http_status;
    enum s3_verdict verdict;

    if (call->http.status && (status < 300 || call->head_err))
        return judge_connection(call, err);
    if (kvt__s3_is_good(call, status))
        return S3_GOOD;
    if (call->error_body && !call->http.status)
        (void)kvt__s3_read_error(call->error_body, call->http.received_bytes,
                                 &call->error);
    if (*call->error.request_id && !*call->request_id)
        snprintf(call->request_id, sizeof call->request_id, "%s",
                 call->error.request_id);
    *err = -EIO;
    if (judge_code(call, &verdict, err) || judge_optional_headers(call, &verdict)) {
        if (verdict == S3_FAILED && *err == -EACCES && has_clock_difference(call) &&
            !call->has_set_clock)
            verdict = S3_SET_CLOCK;
        return verdict;
    }
    verdict = judge_status(call, err);
    /* A HEAD of a bucket in another region returns the region, without a code. */
    if (status == 400 && *call->redirect_region &&
        strcmp(call->redirect_region, call->target->address.region))
        verdict = S3_REDIRECT;
    return verdict;
}

/* ------------------------------------------------------------------------ sentence */

#define ADVICE_BYTES 192
#define CA_ADVICE " If a private authority has signed the certificate, set s3_ca_file."

/* Write the advice for a missing bucket to room.  The bucket's name may be unknown; then only the
 * host, earlier in the sentence, identifies the bucket. */
static const char *
no_bucket(const char *bucket, char room[ADVICE_BYTES])
{
    snprintf(room, ADVICE_BYTES, " There is no bucket%s%s%s there: make it, or correct "
             "remote_url, s3_region and s3_endpoint_url.", *bucket ? " '" : "", bucket,
             *bucket ? "'" : "");
    return room;
}

/* Return advice for the user, "" or with a leading blank. */
static const char *
advice(const struct s3_call *call, int err, char room[ADVICE_BYTES])
{
    if (err == -ENXIO)
        return no_bucket(call->target->address.bucket, room);
    if (!strcmp(call->error.code, "SignatureDoesNotMatch"))
        return " The secret key is wrong.";
    if (!strcmp(call->error.code, "InvalidAccessKeyId"))
        return " The store does not know the access key.";
    if (!strcmp(call->error.code, "ExpiredToken") || !strcmp(call->error.code, "InvalidToken") ||
        !strcmp(call->error.code, "TokenRefreshRequired"))
        return " The session token is wrong or has expired.";
    if (!strcmp(call->error.code, "RequestTimeTooSkewed"))
        return " The clocks of this host and of the store differ.";
    if (err == -EACCES && call->tier->is_unsigned)
        return " Requests are not signed (s3_unsigned).";
    if (err == -EACCES && (!strcmp(call->method, "DELETE") ||
                           (call->n_query && !strcmp(call->query[0].name, "delete"))))
        return " The keys need s3:DeleteObject.";
    if (err == -EACCES && !strcmp(call->method, "HEAD"))
        return " The keys are wrong, or lack s3:GetObject or s3:ListBucket.";
    if (err == -EACCES)
        return " The keys need s3:GetObject, s3:PutObject and s3:ListBucket.";
    return "";
}

/* Return the length of a sentence without the final dot. */
static int
without_stop(const char *why)
{
    size_t n = strlen(why);

    return (int)(n && why[n - 1] == '.' ? n - 1 : n);
}

void
kvt__s3_set_call_why(const struct s3_call *call, int err)
{
    const struct kvt__s3_address *a = &call->target->address;
    const struct kvt__s3_error *e = &call->error;
    int status = call->http.http_status;
    char tries[32] = "", room[ADVICE_BYTES];

    if (call->n_attempts > 1)
        snprintf(tries, sizeof tries, " (%u attempts)", call->n_attempts);
    if (call->http.status && (status < 300 || call->head_err))
        (void)kvt__fail(-err, "%s %s at %s%s: %.*s.%s", call->method,
                        call->name ? call->name : a->bucket_path, a->host, tries,
                        without_stop(call->http.why), call->http.why,
                        call->http.status == -EKEYREJECTED ? CA_ADVICE : "");
    else
        /* The final dot keeps kvt__fail() from adding the errno, which the store did not report. */
        (void)kvt__fail(-err, "status %d%s%s%s%s: %s %s at %s%s.%s%s%.*s%s", status,
                        *e->code ? " " : "", e->code,
                        *call->request_id ? ", request " : "", call->request_id,
                        call->method, call->name ? call->name : a->bucket_path, a->host,
                        tries, advice(call, err, room),
                        call->redirect_failed ? " " : *e->message ? " The store says: " : "",
                        without_stop(e->message), e->message, *e->message ? "." : "");
}
