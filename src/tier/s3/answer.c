/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers, by status and S3 code.  AWS documents the codes; other stores use the same
 * for most, and some of their own. */
#include "tier/s3/answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tier/s3/s3.h"

#define SKEW_S 300 /* farther apart a refused signature is the clocks' fault */

/* ---------------------------------------------------------------------- by code */

/* Where a code says more than its status, or another status comes with it. */
static const struct {
    const char *code;
    enum s3_verdict verdict;
    int err;
} codes[] = {
    { "NoSuchKey", S3_SETTLED, ENOENT },
    { "InvalidObjectState", S3_SETTLED, ENOENT }, /* archived: hours to bring it back */
    { "NoSuchBucket", S3_FAILED, ENXIO },
    { "PreconditionFailed", S3_SETTLED, EEXIST },
    { "ConditionalRequestConflict", S3_REPEAT, EBUSY },
    { "OperationAborted", S3_REPEAT, EBUSY },
    { "SlowDown", S3_SLOW_DOWN, EIO },
    { "SlowDownRead", S3_SLOW_DOWN, EIO },
    { "SlowDownWrite", S3_SLOW_DOWN, EIO },
    { "ServiceUnavailable", S3_SLOW_DOWN, EIO },
    { "Throttling", S3_SLOW_DOWN, EIO },
    { "ThrottlingException", S3_SLOW_DOWN, EIO },
    { "RequestLimitExceeded", S3_SLOW_DOWN, EIO },
    { "TooManyRequests", S3_SLOW_DOWN, EIO },
    { "InternalError", S3_REPEAT, EIO },
    { "RequestTimeout", S3_SLOW_DOWN, EIO },
    { "BadDigest", S3_REPEAT, EIO }, /* bytes were changed on the way */
    { "XAmzContentSHA256Mismatch", S3_FAILED, EIO },
    { "RequestTimeTooSkewed", S3_OTHER_CLOCK, EACCES },
    { "ExpiredToken", S3_OTHER_KEYS, EACCES },
    { "InvalidToken", S3_OTHER_KEYS, EACCES },
    { "TokenRefreshRequired", S3_OTHER_KEYS, EACCES },
    { "InvalidAccessKeyId", S3_OTHER_KEYS, EACCES },
    { "AuthorizationHeaderMalformed", S3_OTHER_PLACE, EACCES },
    { "PermanentRedirect", S3_OTHER_PLACE, EIO },
    { "TemporaryRedirect", S3_OTHER_PLACE, EIO },
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
clocks_differ(const struct s3_call *call)
{
    int64_t now = (int64_t)time(NULL) + atomic_load(&call->tier->clock_s);

    return call->date_s && llabs((long long)(call->date_s - now)) > SKEW_S;
}

/* Return why a request was refused with 400, 401 or 403.  The store knows better when keys
 * expire: the time it reported is rounded.  A response to a HEAD has no document with a
 * code, so keys that were rotated look like a missing right. */
static enum s3_verdict
why_refused(const struct s3_call *call)
{
    int64_t now = (int64_t)time(NULL) + atomic_load(&call->tier->clock_s);

    if (clocks_differ(call) && !call->set_clock)
        return S3_OTHER_CLOCK;
    if (call->keys && call->keys->expires_s - KVT__S3_LAST_S <= now)
        return S3_OTHER_KEYS;
    return *call->error.code ? S3_FAILED : S3_DOUBTED_KEYS;
}

static bool
by_code(const struct s3_call *call, enum s3_verdict *verdict, int *err)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(codes[i].code, call->error.code))
            continue;
        *verdict = codes[i].verdict;
        *err = -codes[i].err;
        if (*verdict == S3_FAILED && codes[i].err == EACCES)
            *verdict = why_refused(call); /* SeaweedFS says so of keys that expired */
        return true;
    }
    return false;
}

static enum s3_verdict
by_status(const struct s3_call *call, int *err)
{
    int status = call->http.http_status;

    *err = -EIO;
    switch (status) {
    case 304: /* older MinIO's answer to If-None-Match */
    case 412:
        *err = -EEXIST;
        return S3_SETTLED;
    case 404:
        *err = -ENOENT;
        return call->name ? S3_SETTLED : S3_FAILED;
    case 500:
    case 502:
        return S3_REPEAT;
    case 408:
    case 429:
    case 503:
    case 504:
        return S3_SLOW_DOWN;
    case 409:
        *err = -EBUSY;
        return S3_REPEAT;
    case 400:
        return call->http.is_head ? why_refused(call) : S3_FAILED;
    case 401:
    case 403:
        *err = -EACCES;
        return why_refused(call);
    case 301:
    case 302:
    case 307:
    case 308:
        return S3_OTHER_PLACE;
    case 416:
        *err = -EBADMSG;
        return S3_SETTLED;
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

/* Stores that do not know what we send beside the object.  Checksums that are wrong have
 * a code of their own. */
static bool
is_too_new(const struct s3_call *call, enum s3_verdict *verdict)
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

/* ------------------------------------------------------------------- all together */

static enum s3_verdict
judge_connection(const struct s3_call *call, int *err)
{
    *err = call->refused ? call->refused : call->http.status;
    if (call->refused)
        return call->refused == -ENOENT ? S3_SETTLED : S3_FAILED;
    switch (call->http.status) {
    case -ETIMEDOUT: /* the call's time is over, or nothing came for long */
        return kvt__now_ns() < call->deadline_ns ? S3_REPEAT : S3_FAILED;
    case -ECANCELED:
    case -EKEYREJECTED:
    case -EACCES: /* a proxy wants a user and password */
    case -EMSGSIZE:
    case -ENAMETOOLONG:
    case -EINVAL:
    case -ENOMEM:
        return S3_FAILED;
    default:
        return S3_REPEAT;
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

    if (call->http.status && (status < 300 || call->refused))
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
    if (by_code(call, &verdict, err) || is_too_new(call, &verdict)) {
        if (verdict == S3_FAILED && *err == -EACCES && clocks_differ(call) &&
            !call->set_clock)
            verdict = S3_OTHER_CLOCK;
        return verdict;
    }
    verdict = by_status(call, err);
    /* HEAD of a bucket in another region has no code, but the region. */
    if (status == 400 && *call->told_region &&
        strcmp(call->told_region, call->where->address.region))
        verdict = S3_OTHER_PLACE;
    return verdict;
}

/* -------------------------------------------------------------------- the sentence */

#define ADVICE_BYTES 192

/* At the host that is told in front of it, which may be all that is known of a bucket. */
static const char *
no_bucket(const char *bucket, char room[ADVICE_BYTES])
{
    snprintf(room, ADVICE_BYTES, " There is no bucket%s%s%s there: make it, or correct "
             "remote_url, s3_region and s3_endpoint_url.", *bucket ? " '" : "", bucket,
             *bucket ? "'" : "");
    return room;
}

/* What the user can do. */
static const char *
advice(const struct s3_call *call, int err, char room[ADVICE_BYTES])
{
    if (err == -ENXIO)
        return no_bucket(call->where->address.bucket, room);
    if (!strcmp(call->error.code, "SignatureDoesNotMatch"))
        return " The secret key is wrong.";
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

/* The length of a sentence that is to go on. */
static int
without_stop(const char *why)
{
    size_t n = strlen(why);

    return (int)(n && why[n - 1] == '.' ? n - 1 : n);
}

void
kvt__s3_tell(const struct s3_call *call, int err)
{
    const struct kvt__s3_address *a = &call->where->address;
    const struct kvt__s3_error *e = &call->error;
    int status = call->http.http_status;
    char tries[32] = "", room[ADVICE_BYTES];

    if (call->n_attempts > 1)
        snprintf(tries, sizeof tries, " (%u attempts)", call->n_attempts);
    if (call->http.status && (status < 300 || call->refused))
        (void)kvt__fail(-err, "%s %s at %s%s: %.*s.", call->method,
                        call->name ? call->name : a->bucket_path, a->host, tries,
                        without_stop(call->http.why), call->http.why);
    else
        (void)kvt__fail(-err, "status %d%s%s%s%s: %s %s at %s%s.%s%s%s", status,
                        *e->code ? " " : "", e->code,
                        *call->request_id ? ", request " : "", call->request_id,
                        call->method, call->name ? call->name : a->bucket_path, a->host,
                        tries, advice(call, err, room),
                        *e->message ? " The store says: " : "", e->message);
}
