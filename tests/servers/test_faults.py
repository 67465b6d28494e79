#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each fault of s3.py, seen from a client's socket, and s3.py as a program."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from client import Client
from test_s3 import Case, DIRECTORY, code, keys

BODY = bytes(range(256)) * 4096


class Faults(Case):
    def setUp(self):
        super().setUp()
        self.check(200, None, "PUT", "/kv/k", BODY)

    def fault(self, count=1, match=None, **do):
        self.server.faults.add({"match": match or {}, "count": count, "do": {
            word.rstrip("_"): value for word, value in do.items()}})

    def get(self):
        return self.client.do("GET", "/kv/k")

    def wait_for(self, method, n):
        """Wait until the server has begun n requests with this method."""
        while self.server.stats.show()["methods"].get(method, 0) < n:
            time.sleep(0.001)

    def assert_healthy(self, reconnect=False):
        if reconnect:
            self.client.close()
        self.assertEqual(self.get().body, BODY)

    def test_matching_requests_get_the_status_as_often_as_set(self):
        self.fault(2, {"method": "^GET$", "key": "^k$"}, status=503, code="SlowDown",
                   retry_after=1)
        self.check(200, None, "HEAD", "/kv/k")
        for _ in range(2):
            reply = self.check(503, "SlowDown", "GET", "/kv/k")
            self.assertEqual(reply.headers["retry-after"], "1")
        self.assert_healthy()
        self.assertEqual(self.server.faults.show()[0]["done"], 2)

    def test_some_are_skipped(self):
        self.server.faults.add({"skip": 1, "do": {"status": 500}})
        self.assertEqual([self.get().status for _ in range(3)], [200, 500, 200])

    def test_some_are_drawn(self):
        self.server.faults.add({"count": None, "rate": 0.5, "do": {"status": 503}})
        seen = [self.client.do("HEAD", "/kv/k").status for _ in range(40)]
        self.assertEqual(set(seen), {200, 503})

    def test_unknown_words_are_refused(self):
        for fault in {"do": {"stauts": 500}}, {"do": {}}, {"match": {"x": ""},
                                                          "do": {"status": 1}}:
            with self.assertRaises(ValueError):
                self.server.faults.add(fault)

    def test_redirects_and_regions(self):
        self.fault(status=301, code="PermanentRedirect", region="eu-west-1",
                   endpoint="s3.eu-west-1.amazonaws.com")
        reply = self.check(301, "PermanentRedirect", "GET", "/kv/k")
        self.assertEqual(reply.headers["x-amz-bucket-region"], "eu-west-1")
        self.assertIn(b"<Endpoint>s3.eu-west-1.amazonaws.com</Endpoint>", reply.body)
        self.fault(status=307, code="TemporaryRedirect", location="http://127.0.0.1:1/k")
        self.assertEqual(self.get().headers["location"], "http://127.0.0.1:1/k")
        self.fault(status=400, code="AuthorizationHeaderMalformed", region="eu-west-1")
        self.assertIn(b"<Region>eu-west-1</Region>", self.get().body)
        self.assert_healthy()

    def test_an_error_with_status_200(self):
        self.fault(status=200, code="InternalError")
        self.assertEqual(code(self.check(200, None, "GET", "/kv/k")), "InternalError")

    def test_a_body_that_is_not_xml(self):
        self.fault(status=502, body="<html>bad gateway",
                   headers={"Content-Type": "text/html"})
        reply = self.get()
        self.assertEqual((reply.status, reply.body), (502, b"<html>bad gateway"))
        self.assertEqual(reply.headers["content-type"], "text/html")

    def test_any_answer_can_be_written_down(self):
        self.fault(None, {"bucket": "^latest$", "key": "^api/token$"}, status=200,
                   body="secret", headers={"Content-Type": "text/plain"})
        self.client.sock.sendall(b"PUT /latest/api/token HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(self.client.reply().body, b"secret")

    def test_resets(self):
        for where in {"reset": True}, {"reset_at": 0}, {"reset_at": 300000}:
            self.fault(**where)
            with self.assertRaises(ConnectionResetError):
                self.get()
            self.assert_healthy(reconnect=True)

    def test_a_put_without_a_response_stores_the_object(self):
        self.fault(reset_at=0)
        self.client.send("PUT", "/kv/new", b"x")
        with self.assertRaises(OSError):
            while self.client.fill():
                pass
        self.client.close()
        self.check(200, None, "HEAD", "/kv/new")

    def test_a_body_that_is_cut(self):
        self.fault(close_at=1000)
        reply = self.get()
        self.assertEqual((reply.complete, len(reply.body)), (False, 1000))
        self.assert_healthy(reconnect=True)

    def test_wrong_lengths(self):
        self.fault(extra=5)
        self.assertEqual(self.get().body, BODY)
        while len(self.client.ahead) < 5:
            self.client.fill()
        self.assertEqual(self.client.ahead, b"xxxxx")
        self.client.close()
        self.fault(content_length=7)
        self.assertEqual(self.get().body, BODY[:7])
        self.client.close()
        self.fault(content_length=len(BODY) + 1, close=True)
        self.assertFalse(self.get().complete)

    def test_wrong_headers_and_bytes(self):
        self.fault(headers={"x-amz-checksum-crc32c": "AAAAAA==", "ETag": None})
        reply = self.get()
        self.assertEqual(reply.headers["x-amz-checksum-crc32c"], "AAAAAA==")
        self.assertNotIn("etag", reply.headers)
        self.fault(corrupt_at=1000)
        body = self.get().body
        self.assertEqual([n for n in range(len(BODY)) if body[n] != BODY[n]], [1000])
        self.assert_healthy()

    def test_chunks(self):
        self.fault(chunked=1000)
        reply = self.get()
        self.assertEqual((reply.body, reply.headers.get("content-length")), (BODY, None))
        self.server.config["chunked"] = True
        self.assertEqual(code(self.client.do("GET", "/kv/none")), "NoSuchKey")
        self.assert_healthy()

    def test_slow_answers(self):
        self.fault(drip=1 << 22)
        began = time.monotonic()
        self.assertEqual(self.get().body, BODY)
        self.assertGreater(time.monotonic() - began, 0.2)
        self.fault(delay_ms=100)
        self.assert_healthy()

    def test_a_stall_lasts_until_the_client_leaves(self):
        self.fault(stall_at=1000)
        self.client.send("GET", "/kv/k")
        while len(self.client.ahead) < 1000:
            self.client.fill()
        self.client.sock.settimeout(0.2)
        with self.assertRaises(TimeoutError):
            while True:
                self.client.fill()
        self.assert_healthy(reconnect=True)
        self.fault(stall_at=1000, stall_s=0.1)
        self.assert_healthy()

    def test_a_connection_that_is_closed_in_silence(self):
        self.fault(close=True)
        self.assertNotIn("connection", self.get().headers)
        self.assertEqual(self.client.sock.recv(1), b"")
        self.client.close()
        self.fault(hold=True)
        self.client.send("GET", "/kv/k")
        self.wait_for("GET", 2)
        self.server.config["idle_ms"] = 50  # from the next request on
        self.server.faults.clear()
        self.assertEqual(self.client.reply().body, BODY)
        self.assertEqual(self.client.sock.recv(1), b"")

    def test_as_many_100s_as_wanted(self):
        for times, expect in (2, "100-continue"), (0, "100-continue"), (1, None):
            self.fault(continue_=times)
            reply = self.check(200, None, "PUT", "/kv/k", BODY, expect=expect)
            self.assertEqual(reply.interim, times)

    def test_an_answer_before_the_body(self):
        self.fault(early=True, status=403, code="AccessDenied")
        self.client.sock.sendall(self.client.head("PUT", "/kv/k", {}, BODY))
        reply = self.client.reply()
        self.assertEqual((reply.status, reply.headers["connection"]), (403, "close"))
        self.assert_healthy(reconnect=True)

    def test_a_listing_in_place_of_a_session(self):
        self.fault(1, {"operation": "CreateSession"}, listing=True)
        self.client.scope = "us-east-1", "s3express"
        reply = self.check(200, None, "GET", f"/{DIRECTORY}?session")
        self.assertIn(b"<ListBucketResult", reply.body)
        self.assertEqual(keys(reply), [])

    def test_requests_at_a_time_are_counted(self):
        self.fault(4, hold=True)
        clients = [self.connect() for _ in range(4)]
        threads = [threading.Thread(target=client.do, args=("GET", "/kv/none"))
                   for client in clients]
        for thread in threads:
            thread.start()
        self.wait_for("GET", 4)
        self.server.faults.clear()
        for thread in threads:
            thread.join()
        self.assertEqual(self.server.stats.show()["max_at_a_time"], 4)


class Program(unittest.TestCase):
    def start(self, *arguments, stdin=subprocess.PIPE):
        child = subprocess.Popen([sys.executable, os.path.join(HERE, "s3.py"), *arguments],
                                 stdin=stdin, stdout=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.addCleanup(lambda: child.poll() is None and child.kill())
        return child, json.loads(child.stdout.readline())

    def call(self, facts, method, path, value=None):
        request = urllib.request.Request(
            facts["control"] + path, method=method,
            data=None if value is None else json.dumps(value).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            body = reply.read()
        return body.decode() if path == "/log" else json.loads(body)

    def test_the_second_port(self):
        child, facts = self.start("--tls", "--bucket", "kv")
        client = Client(facts["tls_endpoint"], facts["access"], facts["secret"],
                        ca=facts["ca"])
        self.assertEqual(client.do("PUT", "/kv/k", b"x").status, 200)
        self.assertEqual(self.call(facts, "POST", "/faults", {"do": {"status": 500}}),
                         {"ids": [1]})
        self.assertEqual(client.do("GET", "/kv/k").status, 500)
        self.assertEqual(self.call(facts, "GET", "/faults")[0]["done"], 1)
        self.assertEqual(self.call(facts, "POST", "/config",
                                   {"delay_ms": 1})["delay_ms"], 1)
        self.assertIn("k", self.call(facts, "GET", "/objects")["kv"]["objects"])
        stats = self.call(facts, "GET", "/stats")
        self.assertEqual(stats["operations"], {"PutObject": 1, "GetObject": 1})
        self.assertEqual(stats["requests"][0]["signed"]["service"], "s3")
        self.assertNotIn("Signature", json.dumps(stats))
        client.credentials = client.credentials._replace(secret="wrong")
        self.assertEqual(client.do("GET", "/kv/k").status, 403)
        self.assertIn("SignatureDoesNotMatch", self.call(facts, "GET", "/log"))
        self.call(facts, "DELETE", "/stats")
        self.assertEqual(self.call(facts, "GET", "/stats")["requests"], [])
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.call(facts, "POST", "/faults", {"do": {"nonsense": 1}})
        caught.exception.close()
        self.assertEqual(caught.exception.code, 400)
        client.close()
        child.stdin.close()
        self.assertEqual(child.wait(60), 0)
        self.assertFalse(os.path.exists(facts["ca"]))

    def test_the_server_ends_on_a_signal(self):
        child, _ = self.start(stdin=subprocess.DEVNULL)
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
