#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""s3.py with botocore as the client, to compare both implementations of S3's rules.
Needs the Python of scripts/s3-env's environment."""

import os
import socket
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_s3 import ODD_KEY, Case

try:
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import ClientError
except ImportError:
    print("botocore is not installed: see scripts/s3-env", file=sys.stderr)
    sys.exit(77)

GETADDRINFO = socket.getaddrinfo


def resolve(host, *arguments):
    return GETADDRINFO("127.0.0.1" if host.endswith(".localhost") else host, *arguments)


class Path(Case):
    options = {"buckets": ["kv-cache"]}
    style = "path"

    def setUp(self):
        super().setUp()
        facts = self.server.facts()
        endpoint = facts["endpoint"]
        if self.style == "virtual":
            mock = unittest.mock.patch("socket.getaddrinfo", resolve)
            mock.start()
            self.addCleanup(mock.stop)
            endpoint = endpoint.replace("127.0.0.1", facts["domain"])
        self.s3 = botocore.session.Session().create_client(
            "s3", region_name="us-east-1", endpoint_url=endpoint,
            aws_access_key_id=facts["access"], aws_secret_access_key=facts["secret"],
            config=Config(s3={"addressing_style": self.style},
                          retries={"max_attempts": 0}))
        self.addCleanup(self.s3.close)

    def test_an_object(self):
        put = self.s3.put_object(Bucket="kv-cache", Key=ODD_KEY, Body=b"123456789",
                                 ChecksumAlgorithm="SHA256", Metadata={"a": "b"})
        self.assertIn("ChecksumSHA256", put)
        got = self.s3.get_object(Bucket="kv-cache", Key=ODD_KEY, ChecksumMode="ENABLED")
        self.assertEqual((got["Body"].read(), got["Metadata"]), (b"123456789", {"a": "b"}))
        part = self.s3.get_object(Bucket="kv-cache", Key=ODD_KEY, Range="bytes=1-2")
        self.assertEqual(part["Body"].read(), b"23")
        with self.assertRaises(ClientError) as caught:
            self.s3.put_object(Bucket="kv-cache", Key=ODD_KEY, Body=b"", IfNoneMatch="*")
        self.assertEqual(caught.exception.response["Error"]["Code"], "PreconditionFailed")
        self.s3.delete_object(Bucket="kv-cache", Key=ODD_KEY)
        with self.assertRaises(ClientError) as caught:
            self.s3.head_object(Bucket="kv-cache", Key=ODD_KEY)
        self.assertEqual(caught.exception.response["Error"]["Code"], "404")

    def test_pages_and_deletion(self):
        names = sorted([f"p/{n:03}" for n in range(25)] + ["p/" + ODD_KEY])
        for name in names:
            self.s3.put_object(Bucket="kv-cache", Key=name, Body=b"x")
        pages = list(self.s3.get_paginator("list_objects_v2").paginate(
            Bucket="kv-cache", Prefix="p/", PaginationConfig={"PageSize": 10}))
        self.assertEqual([page["KeyCount"] for page in pages], [10, 10, 6])
        self.assertEqual([each["Key"] for page in pages for each in page["Contents"]],
                         names)
        done = self.s3.delete_objects(Bucket="kv-cache", Delete={
            "Objects": [{"Key": name} for name in names]})
        self.assertEqual(sorted(each["Key"] for each in done["Deleted"]), names)
        self.assertNotIn("Contents", self.s3.list_objects_v2(Bucket="kv-cache"))


class Virtual(Path):
    style = "virtual"

    def test_the_bucket_is_in_the_host(self):
        self.s3.list_objects_v2(Bucket="kv-cache")
        request = self.server.stats.show()["requests"][0]
        self.assertTrue(request["headers"]["host"].startswith("kv-cache.s3.localhost:"))


if __name__ == "__main__":
    unittest.main()
