# SPDX-License-Identifier: Apache-2.0
"""AWS Signature Version 4 for S3, written from the specification, to verify the
signatures of the clients under test.  Shares no code with these clients.

Header values are str decoded from Latin-1, so that encoding restores the bytes.  The
functions have no state; any thread may call any function."""

import calendar
import hashlib
import hmac
import re
import time
from collections import namedtuple
from urllib.parse import quote, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW_S = 15 * 60
UNSIGNED = "UNSIGNED-PAYLOAD"

Signed = namedtuple("Signed", "access date region service headers signature")
Credentials = namedtuple("Credentials", "access secret token expires",
                         defaults=(None, None))


class Refused(Exception):
    """A request that S3 would reject: HTTP status, S3 code, message."""

    def __init__(self, status, code, message, **fields):
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.fields = fields


def fold(headers):
    """Return {lower-case name: value}; commas join the values of equal names."""
    folded = {}
    for name, value in headers:
        name = name.lower()
        value = re.sub(" +", " ", value.strip(" \t"))
        folded[name] = f"{folded[name]},{value}" if name in folded else value
    return folded


def canonical_path(path):
    return quote(unquote_to_bytes(path or "/"), safe="/")


def canonical_query(query):
    pairs = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        pairs.append((quote(unquote_to_bytes(name), safe=""),
                      quote(unquote_to_bytes(value), safe="")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def canonical_request(method, target, headers, signed):
    """headers: from fold(); signed: the sorted names of signed headers."""
    path, _, query = target.partition("?")
    return "\n".join([method, canonical_path(path), canonical_query(query)] +
                     [f"{name}:{headers.get(name, '')}" for name in signed] +
                     ["", ";".join(signed), headers["x-amz-content-sha256"]])


def string_to_sign(canonical, when, region, service):
    digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
    return f"{ALGORITHM}\n{when}\n{when[:8]}/{region}/{service}/aws4_request\n{digest}"


def signing_key(secret, date, region, service):
    key = ("AWS4" + secret).encode()
    for part in date, region, service, "aws4_request":
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signature(secret, text, region, service):
    date = text.split("\n")[1][:8]
    return hmac.digest(signing_key(secret, date, region, service),
                       text.encode(), "sha256").hex()


def authorize(method, target, headers, credentials, region, service="s3"):
    """Return the Authorization header of a request with these (name, value) pairs, all
    signed, for the clients of tests."""
    folded = fold(headers)
    signed = sorted(folded)
    text = string_to_sign(canonical_request(method, target, folded, signed),
                          folded["x-amz-date"], region, service)
    return (f"{ALGORITHM} Credential={credentials.access}/{text.splitlines()[2]}, "
            f"SignedHeaders={';'.join(signed)}, "
            f"Signature={signature(credentials.secret, text, region, service)}")


def parse(authorization):
    match = re.fullmatch(
        ALGORITHM + r" Credential=([^/, ]+)/(\d{8})/([^/, ]+)/([^/, ]+)/aws4_request, ?"
        r"SignedHeaders=([^, ]+), ?Signature=([0-9a-f]{64})", authorization)
    if not match:
        raise Refused(400, "AuthorizationHeaderMalformed",
                      "The authorization header is malformed.")
    access, date, region, service, names, mac = match.groups()
    return Signed(access, date, region, service, names.split(";"), mac)


def without_secrets(canonical):
    """Return a canonical request for messages, without the values of tokens and keys."""
    return re.sub(r"(?m)^(x-amz-security-token|x-amz-s3session-token|"
                  r"x-amz-server-side-encryption-customer-key):.*$", r"\1:(left out)",
                  canonical)


def check_scope(signed, region, service):
    if signed.region != region:
        raise Refused(400, "AuthorizationHeaderMalformed",
                      f"The authorization header is malformed; the region "
                      f"'{signed.region}' is wrong; expecting '{region}'", Region=region)
    if signed.service != service:
        raise Refused(400, "AuthorizationHeaderMalformed",
                      f"The authorization header is malformed; incorrect service "
                      f"'{signed.service}'. This endpoint belongs to '{service}'.")


def check_time(signed, headers, now):
    when = headers.get("x-amz-date", "")
    if not re.fullmatch(r"\d{8}T\d{6}Z", when):
        raise Refused(403, "AccessDenied",
                      "AWS authentication requires a valid Date or x-amz-date header")
    if when[:8] != signed.date:
        raise Refused(400, "AuthorizationHeaderMalformed",
                      "The date of the credential is not that of x-amz-date.")
    then = calendar.timegm(time.strptime(when, "%Y%m%dT%H%M%SZ"))
    if abs(then - now) > MAX_SKEW_S:
        server = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        raise Refused(403, "RequestTimeTooSkewed",
                      "The difference between the request time and the current time "
                      "is too large.", RequestTime=when, ServerTime=server,
                      MaxAllowedSkewMilliseconds=MAX_SKEW_S * 1000)


def check_signed_headers(signed, headers):
    if signed.headers != sorted(signed.headers):
        raise Refused(400, "AuthorizationHeaderMalformed",
                      "SignedHeaders is not in order.")
    if "x-amz-content-sha256" not in headers:
        raise Refused(400, "InvalidRequest", "Missing required header for this "
                      "request: x-amz-content-sha256")
    must = [name for name in headers
            if name.startswith("x-amz-") or name in ("host", "content-md5")]
    missing = sorted(set(must + ["host"]) - set(signed.headers))
    if missing:
        raise Refused(403, "AccessDenied", "There were headers present in the request "
                      "which were not signed", HeadersNotSigned=", ".join(missing))


def check_credentials(credentials, headers, token_header, now):
    if credentials is None:
        raise Refused(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided "
                      "does not exist in our records.")
    if headers.get(token_header) != credentials.token:
        raise Refused(400, "InvalidToken",
                      "The provided token is malformed or otherwise invalid.")
    if credentials.expires is not None and now >= credentials.expires:
        raise Refused(400, "ExpiredToken", "The provided token has expired.",
                      **{"Token-0": credentials.token})  # as S3 does; never log this


def verify(method, target, headers, find, now, region, service="s3",
           token_header="x-amz-security-token"):
    """Return the signed values, or raise Refused.  headers: (name, value) pairs; find
    returns the Credentials of an access key, or None."""
    headers = fold(headers)
    if "authorization" not in headers:
        raise Refused(403, "AccessDenied", "Access Denied")
    signed = parse(headers["authorization"])
    check_scope(signed, region, service)
    check_time(signed, headers, now)
    check_signed_headers(signed, headers)
    credentials = find(signed.access)
    check_credentials(credentials, headers, token_header, now)
    canonical = canonical_request(method, target, headers, signed.headers)
    text = string_to_sign(canonical, headers["x-amz-date"], region, service)
    if not hmac.compare_digest(signature(credentials.secret, text, region, service),
                               signed.signature):
        raise Refused(403, "SignatureDoesNotMatch", "The request signature we "
                      "calculated does not match the signature you provided.",
                      StringToSign=text, CanonicalRequest=without_secrets(canonical))
    return signed
