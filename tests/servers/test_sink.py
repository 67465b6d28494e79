#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""http-sink: tests of all responses that benchmarks need.  $KVTIER_SINK is the path of
the program."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import checksums
import lifetime
from client import Client

SINK = os.environ.get("KVTIER_SINK", "build/tests/servers/http-sink")
if not os.path.exists(SINK):
    print(f"{SINK} is not there: build it, or name it in KVTIER_SINK", file=sys.stderr)
    sys.exit(77)


class Plain(unittest.TestCase):
    tls = False

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def start(self, *arguments):
        ca = None
        if self.tls:
            ca, key = lifetime.make_certificate(self.directory.name)
            arguments += ("--tls-port", "0", "--cert", ca, "--key", key)
        child = subprocess.Popen([SINK, *arguments], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self.facts = json.loads(child.stdout.readline())
        endpoint = (f"https://127.0.0.1:{self.facts['tls_port']}" if self.tls else
                    f"http://127.0.0.1:{self.facts['port']}")
        client = Client(endpoint, "AK", "SK", ca=ca)

        def stop():
            client.close()
            child.stdin.close()
            child.stdout.close()
            self.assertEqual(child.wait(60), 0)
        self.addCleanup(stop)
        return client

    def test_an_object_that_can_be_verified(self):
        client = self.start("--size", "3000001", "--header", "x-amz-meta-kv: 1")
        whole = client.do("GET", "/b/k")
        self.assertEqual((whole.status, len(whole.body)), (200, 3000001))
        self.assertEqual(whole.headers["x-amz-meta-kv"], "1")
        self.assertEqual(whole.headers["x-amz-checksum-crc32c"],
                         checksums.checksum("crc32c", whole.body))
        part = client.do("GET", "/b/k", range="bytes=1048570-1048580")
        self.assertEqual((part.status, part.body), (206, whole.body[1048570:1048581]))
        self.assertEqual(part.headers["content-range"], "bytes 1048570-1048580/3000001")
        self.assertEqual(client.do("GET", "/b/k", range="bytes=3000001-").status, 416)

    def test_an_object_from_a_file(self):
        client = self.start("--body", __file__)
        with open(__file__, "rb") as file:
            self.assertEqual(client.do("GET", "/b/k").body, file.read())

    def test_uploads_are_thrown_away(self):
        client = self.start("--size", "100")
        body = bytes(range(256)) * 30000
        for target in "/b/k", "/b/k?partNumber=1&uploadId=1":
            put = client.do("PUT", target, body)
            self.assertEqual((put.status, put.body), (200, b""))
            self.assertIn("etag", put.headers)
        put = client.do("PUT", "/b/k", body, expect="100-continue")
        self.assertEqual((put.status, put.interim), (200, 1))
        self.assertIn(b"<UploadId>1<", client.do("POST", "/b/k?uploads").body)
        self.assertIn(b"<ETag>", client.do("POST", "/b/k?uploadId=1", b"<x/>").body)
        self.assertEqual(client.do("DELETE", "/b/k").status, 204)
        self.assertEqual(client.do("GET", "/b/k", connection="close").status, 200)

    def test_names_that_do_not_exist_and_a_delay(self):
        client = self.start("--delay-ms", "20", "--size", "100")
        began = time.monotonic()
        self.assertEqual(client.do("HEAD", "/b/k").headers["content-length"], "100")
        self.assertEqual(client.do("HEAD", "/b/k.miss").status, 404)
        self.assertGreater(time.monotonic() - began, 0.04)
        self.assertIn(b"NoSuchKey", client.do("GET", "/b/k.miss?x").body)

    def test_many_connections_wait_each_for_its_own_answer(self):
        first = self.start("--delay-ms", "100", "--size", "100")
        clients = [first] + [Client(first.url.geturl(), "AK", "SK", ca=first.ca)
                             for _ in range(20)]
        for number, client in enumerate(clients):
            client.send("HEAD", f"/b/{number}" + ".miss" * (number % 2))
        for number, client in enumerate(clients):
            self.assertEqual(client.reply(True).status, 404 if number % 2 else 200)
        for client in clients:
            client.close()


class Tls(Plain):
    tls = True


if __name__ == "__main__":
    unittest.main()
