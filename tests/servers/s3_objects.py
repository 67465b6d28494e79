# SPDX-License-Identifier: Apache-2.0
"""Buckets in memory and S3's operations on buckets, for s3.py.  The caller has verified
the signature of a request.  One lock guards all data; operations are quick."""

import base64
import hashlib
import re
import secrets
import threading
import time
from dataclasses import dataclass, field

import checksums
import s3_xml
from s3_request import (CHECKSUM, ENCRYPTION, check_digests, encryption_headers,
                        http_date, parse_range, stored_headers)
from s3_wire import Answer
from sigv4 import Credentials, Refused

ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")


@dataclass
class Object:
    body: bytes
    etag: str
    headers: dict
    checksums: dict  # {name: value}
    modified: float


@dataclass
class Bucket:
    name: str
    objects: dict = field(default_factory=dict)

    @property
    def express(self):
        return self.name.endswith("--x-s3")


@dataclass
class Session:
    bucket: str
    credentials: Credentials
    read_only: bool


class Objects:
    def __init__(self, session_seconds=300):
        self.lock = threading.RLock()
        self.buckets = {}
        self.sessions = {}  # {access key: Session}
        self.session_seconds = session_seconds
        self.region = "us-east-1"
        self.now = time.time

    def bucket(self, name):
        try:
            return self.buckets[name]
        except KeyError:
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist",
                          BucketName=name) from None

    def run(self, request, fault):
        """Run the request's operation and return the response, or raise Refused."""
        if not request.operation:
            raise Refused(501, "NotImplemented", "A header or a query you provided "
                          "implies functionality that is not implemented")
        if len(request.key.encode()) > 1024:
            raise Refused(400, "KeyTooLongError", "Your key is too long")
        if request.operation == "PutObject":  # without the lock
            request.sums = check_digests(request, request.body)
            request.md5 = hashlib.md5(request.body).hexdigest()
        method = getattr(self, request.operation)
        with self.lock:
            if request.operation == "CreateBucket":
                return method(request)
            bucket = self.bucket(request.bucket)
            if request.operation == "DeleteObjects":
                return method(bucket, request, fault.get("delete_errors", {}))
            return method(bucket, request)

    # Buckets

    def CreateBucket(self, request):
        if request.bucket in self.buckets:
            raise Refused(409, "BucketAlreadyOwnedByYou", "You already own this bucket.")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", request.bucket):
            raise Refused(400, "InvalidBucketName", "The specified bucket is not valid.")
        self.buckets[request.bucket] = Bucket(request.bucket)
        return Answer(200, {"Location": "/" + request.bucket})

    def HeadBucket(self, _bucket, _request):
        return Answer(200, {"x-amz-bucket-region": self.region})

    def DeleteBucket(self, bucket, _request):
        if bucket.objects:
            raise Refused(409, "BucketNotEmpty", "The bucket is not empty")
        del self.buckets[bucket.name]
        return Answer(204)

    def CreateSession(self, bucket, request):
        if not bucket.express:
            raise Refused(400, "InvalidRequest", "This is not a directory bucket.")
        mode = request.folded.get("x-amz-create-session-mode", "ReadWrite")
        credentials = Credentials(
            "ASIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30),
            "session/+" + secrets.token_urlsafe(60) + "==",
            self.now() + self.session_seconds)
        self.sessions[credentials.access] = Session(bucket.name, credentials,
                                                    mode == "ReadOnly")
        return Answer(200, {}, s3_xml.document("CreateSessionResult", [("Credentials", [
            ("SessionToken", credentials.token), ("SecretAccessKey", credentials.secret),
            ("AccessKeyId", credentials.access),
            ("Expiration", s3_xml.timestamp(credentials.expires))])]))

    def ListObjectsV2(self, bucket, request):
        params = request.params
        prefix = params.get("prefix", "")
        if bucket.express and (prefix and not prefix.endswith("/") or
                               "start-after" in params):
            raise Refused(400, "InvalidRequest", "A directory bucket lists prefixes that "
                          "end in / and knows no start-after.")
        limit = min(1000, int(params.get("max-keys", 1000)))
        # A directory bucket is not sorted by key.
        place = (lambda key: hashlib.sha1(key.encode()).hexdigest()) if bucket.express \
            else (lambda key: key.encode())
        after = params.get("start-after", "")
        after = place(after) if after else None
        if "continuation-token" in params:
            after = place(token_key(params["continuation-token"]))
        found = sorted((place(key), key) for key in bucket.objects
                       if key.startswith(prefix) and (after is None or place(key) > after))
        page = [(key, bucket.objects[key]) for _, key in found[:limit]]
        cut = len(found) > limit > 0
        return Answer(200, {}, s3_xml.listing(bucket.name, params, page, cut,
                                              token_of(page[-1][0]) if cut else ""))

    def DeleteObjects(self, bucket, request, errors):
        if not any(name.startswith(CHECKSUM) or name == "content-md5"
                   for name in request.folded):
            raise Refused(400, "InvalidRequest", "Missing required header for this "
                          "request: Content-MD5 OR x-amz-checksum-*")
        check_digests(request, request.body)
        tree = s3_xml.parse(request.body, "Delete")
        keys = [each.text or "" for each in tree.iter("Key")]
        if not 1 <= len(keys) <= 1000:
            raise Refused(400, "MalformedXML", "1 to 1000 keys can be deleted at once")
        done = []
        for key in keys:
            code = next((errors[text] for text in errors if re.search(text, key)), None)
            if code:
                done.append(("Error", [("Key", key), ("Code", code), ("Message", code)]))
                continue
            bucket.objects.pop(key, None)
            if tree.findtext("Quiet", "").lower() != "true":
                done.append(("Deleted", [("Key", key)]))
        return Answer(200, {}, s3_xml.document("DeleteResult", done))

    # Objects

    def check_condition(self, bucket, request):
        old = bucket.objects.get(request.key)
        match = request.folded.get("if-match")
        if request.folded.get("if-none-match", "*") != "*":
            raise Refused(501, "NotImplemented", "If-None-Match knows * only")
        if "if-none-match" in request.folded and old:
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions "
                          "you specified did not hold", Condition="If-None-Match")
        if match is not None and not old:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        if match is not None and match.strip('"') != old.etag:
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions "
                          "you specified did not hold", Condition="If-Match")

    def put(self, bucket, key, body, etag, headers, sums):
        if bucket.express:
            etag = secrets.token_hex(16)
        bucket.objects[key] = Object(body, etag, headers, sums, self.now())
        answer = encryption_headers(headers)
        answer.update((CHECKSUM + name, value) for name, value in sums.items())
        return etag, answer

    def PutObject(self, bucket, request):
        if "content-length" not in request.folded:
            raise Refused(411, "MissingContentLength",
                          "You must provide the Content-Length HTTP header.")
        self.check_condition(bucket, request)
        etag, headers = self.put(bucket, request.key, request.body, request.md5,
                                 stored_headers(request), request.sums)
        return Answer(200, {"ETag": f'"{etag}"', **headers})

    def find(self, bucket, request):
        each = bucket.objects.get(request.key)
        if each is None:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.",
                          Key=request.key)
        name = ENCRYPTION + "-customer-key-md5"
        if each.headers.get(name) != request.folded.get(name):
            raise Refused(400, "InvalidRequest", "The object was stored using a form of "
                          "Server Side Encryption. The correct parameters must be "
                          "provided to retrieve the object.")
        match = request.folded.get("if-match")
        if match is not None and match.strip('"') != each.etag:
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions "
                          "you specified did not hold", Condition="If-Match")
        headers = {"Last-Modified": http_date(each.modified), "ETag": f'"{each.etag}"',
                   "Accept-Ranges": "bytes", **each.headers}
        span = parse_range(request.folded.get("range"), len(each.body))
        if request.folded.get("x-amz-checksum-mode") == "ENABLED" and span is None:
            if not each.checksums:  # S3 then computes a checksum
                each.checksums["crc64nvme"] = checksums.checksum("crc64nvme", each.body)
            headers.update((CHECKSUM + name, value)
                           for name, value in each.checksums.items())
        if span is None:
            return each, Answer(200, headers, each.body)
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{len(each.body)}"
        return each, Answer(206, headers, each.body[span[0]:span[1]])

    def GetObject(self, bucket, request):
        each, answer = self.find(bucket, request)
        storage = each.headers.get("x-amz-storage-class")
        if storage in ARCHIVED:
            raise Refused(403, "InvalidObjectState", "The operation is not valid for the "
                          "object's storage class", StorageClass=storage)
        return answer

    def HeadObject(self, bucket, request):
        return self.find(bucket, request)[1]

    def DeleteObject(self, bucket, request):
        bucket.objects.pop(request.key, None)
        return Answer(204)


def token_of(key):
    """Return an opaque token with characters that a query must encode."""
    return "é /+" + base64.b64encode(key.encode()).decode() + "==&"


def token_key(token):
    try:
        if not (token.startswith("é /+") and token.endswith("==&")):
            raise ValueError
        return base64.b64decode(token[4:-3], validate=True).decode()
    except ValueError:
        raise Refused(400, "InvalidArgument", "The continuation token provided is "
                      "incorrect", ArgumentName="continuation-token") from None
