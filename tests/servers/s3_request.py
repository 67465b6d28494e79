# SPDX-License-Identifier: Apache-2.0
"""The meaning of a request to S3, from the method, query and headers."""

import base64
import re
import time

import checksums
from sigv4 import Refused

# Headers of a PUT that a GET returns.
STORED = re.compile(r"x-amz-meta-.*|content-type|content-encoding|cache-control|"
                    r"x-amz-storage-class|x-amz-server-side-encryption(-aws-kms-key-id|"
                    r"-bucket-key-enabled|-customer-algorithm|-customer-key-md5)?")
ENCRYPTION = "x-amz-server-side-encryption"
CHECKSUM = "x-amz-checksum-"

# (method, has a key, required parameters): operation
OPERATIONS = [
    ("GET", False, {"session"}, "CreateSession"),
    ("GET", False, {"list-type"}, "ListObjectsV2"),
    ("HEAD", False, set(), "HeadBucket"),
    ("PUT", False, set(), "CreateBucket"),
    ("DELETE", False, set(), "DeleteBucket"),
    ("POST", False, {"delete"}, "DeleteObjects"),
    ("PUT", True, set(), "PutObject"),
    ("GET", True, set(), "GetObject"),
    ("HEAD", True, set(), "HeadObject"),
    ("DELETE", True, set(), "DeleteObject"),
]
LIST_PARAMS = {"prefix", "max-keys", "continuation-token", "start-after", "encoding-type",
               "fetch-owner"}
WRITES = {"PutObject", "DeleteObject", "DeleteObjects"}


def operation_of(request):
    """Return S3's name of the operation, "" for an unsupported operation."""
    params = set(request.params) - {"x-id"}
    for method, has_key, needed, name in OPERATIONS:
        extra = LIST_PARAMS if name == "ListObjectsV2" else set()
        if (method == request.method and has_key == bool(request.key) and
                needed <= params and params - extra <= needed and request.bucket and
                "x-amz-copy-source" not in request.folded):
            return name
    return ""


def check_digests(request, body):
    """Compare all checksums in the headers with the body; return the x-amz-checksum-*."""
    given = {}
    for header, value in request.folded.items():
        name = header.removeprefix(CHECKSUM)
        if header == "content-md5":
            name = "md5"
        elif name == header or name not in checksums.ALGORITHMS or name == "md5":
            continue
        else:
            given[name] = value
        right = checksums.checksum(name, body)
        if len(value) != len(right):
            code = "InvalidDigest" if name == "md5" else "InvalidRequest"
            raise Refused(400, code, f"Value for {header} header is invalid.")
        if value != right:
            raise Refused(400, "BadDigest", f"The {name.upper()} you specified did not "
                          "match the calculated checksum.")
    return given


def stored_headers(request):
    kept = {name: value for name, value in request.folded.items()
            if STORED.fullmatch(name)}
    if sum(len(name) + len(value) for name, value in kept.items()
           if name.startswith("x-amz-meta-")) > 2048:
        raise Refused(400, "MetadataTooLarge",
                      "Your metadata headers exceed the maximum allowed metadata size")
    customer = request.folded.get(ENCRYPTION + "-customer-key")
    if customer is not None:
        digest = checksums.checksum("md5", base64.b64decode(customer))
        if kept.get(ENCRYPTION + "-customer-key-md5") != digest:
            raise Refused(400, "InvalidArgument", "The calculated MD5 hash of the key did "
                          "not match the hash that was provided.")
    return kept


def encryption_headers(headers):
    return {name: value for name, value in headers.items() if name.startswith(ENCRYPTION)}


def parse_range(text, length):
    """Return (start, end) of a range in a body, or None for the whole body."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if not match or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, length - int(last)), length
    else:
        start, end = int(first), min(length, int(last) + 1) if last else length
        if last and int(last) < start:
            return None
    if start >= length or end <= start:
        raise Refused(416, "InvalidRange", "The requested range is not satisfiable",
                      RangeRequested=text, ActualObjectSize=length)
    return start, end


def http_date(seconds):
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))
