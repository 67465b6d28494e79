#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""s3.py without faults: operations, conditions, checksums, sessions."""

import base64
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import checksums
from client import Client, path
from s3 import Server

ODD_KEY = "a@b=c+d/e f/é~!'()*&$,;:#?%"
DIRECTORY = "kv--use1-az4--x-s3"


def code(reply):
    return re.search(rb"<Code>(.*?)</Code>", reply.body).group(1).decode()


def keys(reply):
    return re.findall(rb"<Key>(.*?)</Key>", reply.body)


class Case(unittest.TestCase):
    options = {}

    def setUp(self):
        self.server = Server(**{"buckets": ["kv", DIRECTORY], **self.options})
        self.addCleanup(self.server.stop)
        self.client = self.connect()

    def connect(self, **words):
        facts = self.server.facts()
        client = Client(words.pop("endpoint", facts["endpoint"]), facts["access"],
                        words.pop("secret", facts["secret"]), ca=facts.get("ca"), **words)
        self.addCleanup(client.close)
        return client

    def check(self, status, what, *arguments, **headers):
        reply = self.client.do(*arguments, **headers)
        self.assertEqual(reply.status, status, reply.body)
        if what:
            self.assertEqual(code(reply), what)
        return reply


class Operations(Case):
    def test_an_object_with_an_odd_name_round_trips(self):
        target = path("kv", ODD_KEY)
        put = self.check(200, None, "PUT", target, b"123456789", x_amz_meta_note="n",
                         x_amz_checksum_crc32c="4waSgw==",
                         content_md5="JfnnlDI7RTiF9RgfG2JNCw==")
        self.assertEqual(put.headers["etag"], '"25f9e794323b453885f5181f1b624d0b"')
        got = self.check(200, None, "GET", target, x_amz_checksum_mode="ENABLED")
        self.assertEqual((got.body, got.headers["x-amz-meta-note"]), (b"123456789", "n"))
        self.assertEqual(got.headers["x-amz-checksum-crc32c"], "4waSgw==")
        head = self.check(200, None, "HEAD", target)
        self.assertEqual(head.headers["content-length"], "9")
        self.assertNotIn("x-amz-checksum-crc32c", head.headers)
        part = self.check(206, None, "GET", target, range="bytes=2-4",
                          x_amz_checksum_mode="ENABLED")
        self.assertEqual((part.body, part.headers["content-range"]),
                         (b"345", "bytes 2-4/9"))
        self.assertNotIn("x-amz-checksum-crc32c", part.headers)
        self.check(416, "InvalidRange", "GET", target, range="bytes=9-")
        self.check(204, None, "DELETE", target)
        self.check(404, "NoSuchKey", "GET", target)
        self.assertEqual(self.server.stats.show()["connections"]["opened"], 1)

    def test_a_missing_object_has_a_head_with_the_length_of_no_body(self):
        missing = self.check(404, None, "HEAD", "/kv/none")
        self.assertGreater(int(missing.headers["content-length"]), 100)
        self.check(404, "NoSuchKey", "GET", "/kv/none")
        self.check(404, "NoSuchBucket", "GET", "/nokv/none")

    def test_buckets(self):
        self.check(200, None, "PUT", "/new-one")
        self.check(409, "BucketAlreadyOwnedByYou", "PUT", "/new-one")
        head = self.check(200, None, "HEAD", "/new-one")
        self.assertEqual(head.headers["x-amz-bucket-region"], "us-east-1")
        self.check(501, "NotImplemented", "GET", "/kv?acl")

    def test_virtual_hosted_style(self):
        self.check(200, None, "PUT", "/a%20b", b"x", host="kv.s3.localhost:1")
        self.assertEqual(self.check(200, None, "GET", "/kv/a%20b").body, b"x")

    def test_conditional_writes_have_one_winner(self):
        def put(client):
            replies.append(client.do("PUT", "/kv/one", b"x", if_none_match="*").status)
        replies = []
        threads = [threading.Thread(target=put, args=(self.connect(),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(replies), [200] + [412] * 7)
        self.check(412, "PreconditionFailed", "PUT", "/kv/one", b"y", if_match='"0"')

    def test_digests_that_are_wrong(self):
        for header, value in (("x_amz_checksum_crc32c", "AAAAAA=="),
                              ("x_amz_checksum_crc64nvme", "AAAAAAAAAAA="),
                              ("content_md5", "1B2M2Y8AsgTpgAmY7PhCfg==")):
            self.check(400, "BadDigest", "PUT", "/kv/k", b"x", **{header: value})
        self.check(400, "XAmzContentSHA256Mismatch", "PUT", "/kv/k", b"x",
                   x_amz_content_sha256="0" * 64)
        self.check(404, None, "HEAD", "/kv/k")

    def test_an_object_without_checksum_gets_one(self):
        self.check(200, None, "PUT", "/kv/k", b"123456789")
        head = self.check(200, None, "HEAD", "/kv/k", x_amz_checksum_mode="ENABLED")
        self.assertEqual(head.headers["x-amz-checksum-crc64nvme"], "rosUhgp5mIg=")

    def test_storage_classes_encryption_and_payer(self):
        self.check(200, None, "PUT", "/kv/cold", b"x", x_amz_storage_class="GLACIER")
        self.check(403, "InvalidObjectState", "GET", "/kv/cold")
        put = self.check(200, None, "PUT", "/kv/k", b"x",
                         x_amz_server_side_encryption="aws:kms",
                         x_amz_request_payer="requester")
        self.assertEqual(put.headers["x-amz-server-side-encryption"], "aws:kms")
        self.assertEqual(put.headers["x-amz-request-charged"], "requester")
        name = "x_amz_server_side_encryption_customer_"
        customer = {name + "algorithm": "AES256", name + "key":
                    base64.b64encode(bytes(32)).decode(),
                    name + "key_MD5": checksums.checksum("md5", bytes(32))}
        self.check(200, None, "PUT", "/kv/c", b"x", **customer)
        self.check(400, "InvalidRequest", "GET", "/kv/c")
        self.check(200, None, "GET", "/kv/c", **customer)

    def test_expect_is_answered_before_or_after_the_body(self):
        good = self.check(200, None, "PUT", "/kv/k", b"x", expect="100-continue")
        self.assertEqual(good.interim, 1)
        bad = self.connect(secret="wrong")
        bad.connect()
        bad.sock.sendall(bad.head("PUT", "/kv/k", {"expect": "100-continue"}, b"x"))
        reply = bad.reply()
        self.assertEqual((reply.status, reply.interim), (403, 0))

    def test_invalid_numbers_are_refused(self):
        self.check(400, "InvalidArgument", "GET", "/kv?list-type=2&max-keys=x")

    def test_requests_that_are_not_http(self):
        for text in (b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0\r\n\r\n",
                     b"GET / HTTP/1.1\nHost: x\r\n\r\n",
                     b"PUT /kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                     b"PUT /kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
                     b"Content-Length: 2\r\n\r\n"):
            self.client.close()
            self.client.connect()
            self.client.sock.sendall(text)
            self.assertEqual(self.client.reply().status, 400, text)
            self.assertIn("malformed", self.server.stats.lines[-1])

    def test_a_body_without_length(self):
        self.client.connect()
        head = self.client.head("PUT", "/kv/k", {}, b"")
        self.client.sock.sendall(head.replace(b"content-length: 0\r\n", b""))
        self.assertEqual(self.client.reply().status, 411)


class Listing(Case):
    def pages(self, query):
        token, found = "", []
        while token is not None:
            reply = self.check(200, None, "GET", f"/kv?list-type=2{query}" +
                               (f"&continuation-token={token}" if token else ""))
            found.append(keys(reply))
            token = re.search(rb"<NextContinuationToken>(.*?)<", reply.body)
            if token:
                token = path("", token.group(1).decode().replace("&amp;", "&"))[2:]
                token = token.replace("/", "%2F")
        return found

    def test_pages_in_order(self):
        for number in range(25):
            self.check(200, None, "PUT", f"/kv/p/{number:02}", b"x")
        self.check(200, None, "PUT", "/kv/q", b"x")
        pages = self.pages("&prefix=p%2F&max-keys=10")
        self.assertEqual([len(page) for page in pages], [10, 10, 5])
        self.assertEqual(sum(pages, []), [b"p/%02d" % n for n in range(25)])
        self.assertEqual(len(self.pages("&start-after=p%2F20")[0]), 5)

    def test_encoding(self):
        self.check(200, None, "PUT", path("kv", "a b+&\x01"), b"x")
        self.assertEqual(self.pages("&encoding-type=url"), [[b"a+b%2B%26%01"]])
        self.assertEqual(self.pages(""), [[b"a b+&amp;&#x1;"]])

    def test_delete_many(self):
        for name in "abc":
            self.check(200, None, "PUT", f"/kv/{name}", b"x")
        body = (b"<Delete><Quiet>true</Quiet><Object><Key>a</Key></Object>"
                b"<Object><Key>b</Key></Object><Object><Key>none</Key></Object></Delete>")
        self.check(400, "InvalidRequest", "POST", "/kv?delete", body)
        self.check(400, "BadDigest", "POST", "/kv?delete", body,
                   content_md5="1B2M2Y8AsgTpgAmY7PhCfg==")
        self.server.faults.add({"do": {"delete_errors": {"^b$": "AccessDenied"}}})
        reply = self.check(200, None, "POST", "/kv?delete", body,
                           x_amz_checksum_crc32c=checksums.checksum("crc32c", body))
        self.assertIn(b"<Error><Key>b</Key><Code>AccessDenied</Code>", reply.body)
        self.assertEqual(self.pages(""), [[b"b", b"c"]])


class Judgement(Case):
    def test_wrong_secret_and_access_key(self):
        self.client = self.connect(secret="wrong")
        reply = self.check(403, "SignatureDoesNotMatch", "GET", "/kv/k")
        self.assertIn(b"<StringToSign>AWS4-HMAC-SHA256", reply.body)
        self.assertIn("/kv/k", "\n".join(self.server.stats.lines))
        self.client.credentials = self.client.credentials._replace(access="AKNONE")
        self.check(403, "InvalidAccessKeyId", "GET", "/kv/k")

    def test_clocks(self):
        self.check(404, "NoSuchKey", "GET", "/kv/k")
        self.server.config["clock_offset_s"] = 1200
        reply = self.check(403, "RequestTimeTooSkewed", "GET", "/kv/k")
        then = time.mktime(time.strptime(reply.headers["date"],
                                         "%a, %d %b %Y %H:%M:%S GMT")) - time.timezone
        self.assertAlmostEqual(then, time.time() + 1200, delta=60)
        self.client.clock_s = 1200
        self.check(404, "NoSuchKey", "GET", "/kv/k")

    def test_missing_payload_hash_and_region(self):
        self.client.connect()
        head = self.client.head("GET", "/kv/k", {}, b"")
        self.client.sock.sendall(re.sub(rb"x-amz-content-sha256:.*?\r\n", b"", head))
        self.assertEqual(code(self.client.reply()), "InvalidRequest")
        self.client.scope = "eu-west-1", "s3"
        reply = self.check(400, "AuthorizationHeaderMalformed", "GET", "/kv/k")
        self.assertIn(b"<Region>us-east-1</Region>", reply.body)
        self.assertEqual(reply.headers["x-amz-bucket-region"], "us-east-1")

    def test_temporary_credentials_expire(self):
        from s3_control import act
        act(self.server, "POST", "/credentials",
            b'{"access": "ASIA1", "secret": "s", "token": "t+/=", "expires_in": 60}')
        self.client.credentials = self.client.credentials._replace(
            access="ASIA1", secret="s", token="t+/=")
        self.check(404, "NoSuchKey", "GET", "/kv/k")
        act(self.server, "POST", "/credentials",
            b'{"access": "ASIA1", "secret": "s", "token": "t+/=", "expires_in": 0}')
        reply = self.check(400, "ExpiredToken", "GET", "/kv/k")
        self.assertIn(b"<Token-0>t+/=</Token-0>", reply.body)
        self.assertNotIn("t+/=", str(self.server.stats.show()) +
                         str(self.server.stats.lines))


class Express(Case):
    def session(self, **headers):
        self.client.scope = "us-east-1", "s3express"
        reply = self.check(200, None, "GET", f"/{DIRECTORY}?session", **headers)
        get = lambda name: re.search(rf"<{name}>(.*?)<".encode(),
                                     reply.body).group(1).decode()
        facts = self.server.facts()
        client = Client(facts["endpoint"], get("AccessKeyId"), get("SecretAccessKey"),
                        get("SessionToken"), service="s3express",
                        token_header="x-amz-s3session-token")
        self.addCleanup(client.close)
        return client

    def test_requests_are_signed_with_the_session(self):
        target = f"/{DIRECTORY}/a/k"
        self.client.scope = "us-east-1", "s3express"
        self.check(403, "InvalidAccessKeyId", "PUT", target, b"x")
        ordinary, self.client = self.client, self.session()
        self.check(200, None, "PUT", target, b"x", host=f"{DIRECTORY}.s3.localhost")
        self.check(400, "InvalidRequest", "GET", target, x_amz_security_token="t")
        self.client.scope = "us-east-1", "s3"
        self.check(400, "AuthorizationHeaderMalformed", "GET", target)
        self.client = ordinary
        self.client.scope = "us-east-1", "s3"
        self.check(400, "AuthorizationHeaderMalformed", "GET", f"/{DIRECTORY}?session")

    def test_sessions_expire_and_may_only_read(self):
        self.client = reader = self.session(x_amz_create_session_mode="ReadOnly")
        self.check(403, "AccessDenied", "PUT", f"/{DIRECTORY}/k", b"x")
        self.check(404, "NoSuchKey", "GET", f"/{DIRECTORY}/k")
        self.server.config["clock_offset_s"] = 301
        reader.clock_s = 301
        self.check(400, "ExpiredToken", "GET", f"/{DIRECTORY}/k")

    def test_listings_have_no_order(self):
        self.client = self.session()
        names = [b"d/%02d" % n for n in range(20)]
        for name in names:
            self.check(200, None, "PUT", f"/{DIRECTORY}/{name.decode()}", b"x")
        reply = self.check(200, None, "GET", f"/{DIRECTORY}?list-type=2&prefix=d%2F")
        self.assertEqual(sorted(keys(reply)), names)
        self.assertNotEqual(keys(reply), names)
        self.check(400, "InvalidRequest", "GET", f"/{DIRECTORY}?list-type=2&prefix=d")


class Tls(Case):
    options = {"tls": True}

    def test_tls_and_plain_ports_serve_equal_objects(self):
        self.check(200, None, "PUT", "/kv/k", b"x")
        self.client = self.connect(endpoint=self.server.facts()["tls_endpoint"])
        self.assertEqual(self.check(200, None, "GET", "/kv/k").body, b"x")


@unittest.skipUnless(shutil.which("curl"), "curl is not installed")
class Curl(Case):
    def curl(self, *arguments):
        facts = self.server.facts()
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "60", "--aws-sigv4", "aws:amz:us-east-1:s3",
             "--user", f"{facts['access']}:{facts['secret']}", "-H",
             "x-amz-content-sha256:UNSIGNED-PAYLOAD", "-w", "%{http_code}", *arguments],
            stdout=subprocess.PIPE, check=True)
        return done.stdout

    def test_put_get_and_list(self):
        url = self.server.endpoint
        self.assertEqual(self.curl("-X", "PUT", url + "/bucket"), b"200")
        self.assertEqual(self.curl("-T", __file__, url + "/bucket/key"), b"200")
        with open(__file__, "rb") as file:
            self.assertEqual(self.curl(url + "/bucket/key"), file.read() + b"200")
        self.assertIn(b"<Key>key</Key>", self.curl(url + "/bucket?list-type=2&prefix="))


if __name__ == "__main__":
    unittest.main()
