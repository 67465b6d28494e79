#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Signatures and checksums against published vectors: the examples of S3, and vectors on
which Ceph, Swift and botocore agree."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import checksums
import sigv4
from sigv4 import Credentials, Refused

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
PUBLISHED = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
OURS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
EXPRESS = "kv--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com"
DATES = {"20130524T000000Z": 1369353600, "20150830T123600Z": 1440938160}

# (credentials, method, target, headers, region, service, signature)
VECTORS = [
    (PUBLISHED, "GET", "/test.txt", {"range": "bytes=0-9"}, "us-east-1", "s3",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    (PUBLISHED, "GET", "/?lifecycle", {}, "us-east-1", "s3",
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    (PUBLISHED, "GET", "/?max-keys=2&prefix=J", {}, "us-east-1", "s3",
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    (PUBLISHED, "PUT", "/test$file.text",
     {"date": "Fri, 24 May 2013 00:00:00 GMT",
      "x-amz-storage-class": "REDUCED_REDUNDANCY", "x-amz-content-sha256":
      "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"},
     "us-east-1", "s3",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    (OURS, "GET", "/?list-type=2&prefix=ns%2Fmodel%20a%2Bb%3D%C3%A9%2F&max-keys=100"
     "&encoding-type=url&continuation-token=1%2Fab%2Bc%3D%3D&start-after=",
     {"host": "kv-cache.s3.us-west-2.amazonaws.com"}, "us-west-2", "s3",
     "f724948ef9792e5d5325566242cc7c49dc2e4b50853957d6b79be984d5cd35ab"),
    (OURS._replace(token="IQoJb3JpZ2luX2VjFAKE/TOKEN+example=="), "PUT",
     "/kv-cache/ns/7f/model%401.5%20x%3Dy%2Bz~%C3%A9/00ff.kv",
     {"host": "s3.example.internal:9000", "If-None-Match": "*",
      "x-amz-checksum-crc32c": "4waSgw==", "x-amz-meta-note": "  two   words ",
      "x-amz-security-token": "IQoJb3JpZ2luX2VjFAKE/TOKEN+example==",
      "x-amz-server-side-encryption": "aws:kms",
      "x-amz-server-side-encryption-aws-kms-key-id":
      "1234abcd-12ab-34cd-56ef-1234567890ab"}, "us-east-1", "s3",
     "9a81d648b51b178279866149c619e41b4623effa11982a5e091cce43adef5583"),
    (OURS, "GET", "/?session", {"host": EXPRESS, "x-amz-create-session-mode": "ReadWrite"},
     "us-east-1", "s3express",
     "b8ff93f1ac83059495876055581dc4daafc9b7a01e9f05f4dc4b2d5fb0010611"),
    (Credentials("ASIDEXAMPLESESSION", "sessionSecretEXAMPLEKEYsessionSecretEXAM"), "GET",
     "/ns/7f/00ff.kv", {"host": EXPRESS, "Range": "bytes=0-1048575",
                        "x-amz-s3session-token": "AAAAsessiontokenEXAMPLE/1+2=="},
     "us-east-1", "s3express",
     "8d500f25af9fc908f45aff49fc8d8662f5507c6633fc1ec4c06f20085bbfcb89"),
]


def complete(credentials, headers):
    if credentials is PUBLISHED:
        base = {"host": "examplebucket.s3.amazonaws.com", "x-amz-content-sha256": EMPTY,
                "x-amz-date": "20130524T000000Z"}
    else:
        base = {"x-amz-content-sha256": sigv4.UNSIGNED, "x-amz-date": "20150830T123600Z"}
    return list({**base, **headers}.items())


class Vectors(unittest.TestCase):
    def judge(self, vector, **changes):
        credentials, method, target, headers, region, service, mac = vector
        pairs = complete(credentials, headers)
        when = dict(pairs)["x-amz-date"]
        names = ";".join(sorted(name.lower() for name, _ in pairs))
        pairs.append(("Authorization", f"{sigv4.ALGORITHM} Credential={credentials.access}/"
                      f"{when[:8]}/{region}/{service}/aws4_request, "
                      f"SignedHeaders={names}, Signature={changes.get('mac', mac)}"))
        token = changes.get("token", credentials.token)
        found = credentials._replace(token=token, expires=changes.get("expires"))
        return sigv4.verify(method, changes.get("target", target), pairs,
                            lambda access: found if access == credentials.access else None,
                            DATES[when] + changes.get("late", 0),
                            changes.get("region", region), service)

    def refused(self, code, vector, **changes):
        with self.assertRaises(Refused) as caught:
            self.judge(vector, **changes)
        self.assertEqual(caught.exception.code, code)
        return caught.exception

    def test_published_signatures_are_accepted(self):
        for vector in VECTORS:
            with self.subTest(vector[2]):
                self.judge(vector)

    def test_the_signer_makes_them_too(self):
        for credentials, method, target, headers, region, service, mac in VECTORS:
            made = sigv4.authorize(method, target, complete(credentials, headers),
                                   credentials, region, service)
            self.assertTrue(made.endswith(mac), target)

    def test_another_signature_is_refused_and_no_secret_is_shown(self):
        shown = self.refused("SignatureDoesNotMatch", VECTORS[5], mac="0" * 64)
        self.assertIn("x-amz-meta-note:two words", shown.fields["CanonicalRequest"])
        self.assertNotIn("TOKEN+example", str(shown.fields))

    def test_a_changed_path_is_refused(self):
        self.refused("SignatureDoesNotMatch", VECTORS[0], target="/test.txu")

    def test_fifteen_minutes_are_the_limit_in_both_directions(self):
        for late in -900, 900:
            self.judge(VECTORS[0], late=late)
        for late in -901, 901:
            self.refused("RequestTimeTooSkewed", VECTORS[0], late=late)

    def test_tokens_regions_and_expiry(self):
        self.refused("InvalidToken", VECTORS[5], token="another")
        self.refused("ExpiredToken", VECTORS[5], expires=1)
        wrong = self.refused("AuthorizationHeaderMalformed", VECTORS[0], region="eu-west-1")
        self.assertEqual(wrong.fields["Region"], "eu-west-1")

    def test_every_amz_header_must_be_signed(self):
        credentials, method, target, headers, region, service, _ = VECTORS[0]
        pairs = complete(credentials, headers)
        pairs.append(("authorization", sigv4.authorize(method, target, pairs, credentials,
                                                       region, service)))
        pairs.append(("x-amz-meta-a", "b"))
        with self.assertRaises(Refused) as caught:
            sigv4.verify(method, target, pairs, lambda _: credentials, 1369353600, region)
        self.assertEqual(caught.exception.fields["HeadersNotSigned"], "x-amz-meta-a")


class Checksums(unittest.TestCase):
    def test_vectors(self):
        for data, *values in (
                (b"", "AAAAAA==", "AAAAAAAAAAA=", "1B2M2Y8AsgTpgAmY7PhCfg=="),
                (b"123456789", "4waSgw==", "rosUhgp5mIg=", "JfnnlDI7RTiF9RgfG2JNCw=="),
                (bytes(32), "ipE2qg==", "zzRzQ01Ozzs=", "cLyPS3KoaSFGi/joRB3OUQ=="),
                (b"a" * 1000000, "Q2/iQA==", "OLDvUEGeC0w=", "dwfWrk4CfHDuoqk1wilvIQ==")):
            for name, value in zip(("crc32c", "crc64nvme", "md5"), values):
                self.assertEqual(checksums.checksum(name, data), value)

    def test_crc32c_without_the_library(self):
        self.assertEqual(checksums.crc(b"123456789", 0x82F63B78, 0xffffffff), 0xe3069283)


if __name__ == "__main__":
    unittest.main()
