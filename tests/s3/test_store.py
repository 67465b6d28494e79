# SPDX-License-Identifier: Apache-2.0
"""kvtier's commands on buckets of SeaweedFS and of Ceph's gateway: output and exit
status."""
import os
import re
import subprocess
import unittest

from place import (BUCKET, KEY, KVTIER, Case, clean_environment, in_host, in_path,
                   path_of, running)

LISTED = KEY.replace("/", "_")
ODD_KEYS = ["a b+c=d&e;f,g:h?i#j%k\"l<m>n|o^p`q{r}s[t]u@1@0@5@bfloat16",
            "org/é~!'()*$\u4e2d\U0001f600@1@0@5@bfloat16",
            "m%2Fn+o@8@7@ffffffffffffffff@half", "a/b/c//d@1@0@5@half",
            "m@1@0@5@half@tag%1%2"]


class Store:
    """The tests of each server."""

    def setUp(self):
        super().setUp()
        self.keys = self.server.keys()
        self.endpoint = self.server.facts["endpoint"]
        self.bucket = self.at(in_path(self.endpoint, prefix=self.id().rpartition(".")[2]))

    def do(self, code, *arguments, address=None, env=None, **more):
        return self.kvtier(code, *arguments, address=address or self.bucket,
                           env={**self.keys, **(env or {})}, **more)

    def test_a_chunk_is_stored_read_and_deleted(self):
        data = os.urandom(1_234_567)
        given, back = self.path("given", data), self.path("back")
        self.expect_output(self.do(1, "stat", KEY), "No such file")
        self.expect_output(self.do(1, "get", KEY, back), "No such file")
        self.assertEqual(self.do(0, "put", KEY, given).err, "")
        self.do(0, "get", KEY, back)
        self.assertEqual(self.content("back"), data)
        self.expect_output(self.do(0, "stat", KEY), r"bytes +1234567", "identity  [0-9a-f]{32}")
        self.expect_output(self.do(0, "ls"), re.escape(LISTED), r"1 chunks, 1\.23 MB")
        self.expect_output(self.do(0, "verify"), "1 good, 0 without checksum, 0 bad")
        self.do(0, "get", LISTED, back)
        self.assertEqual(self.content("back"), data)
        self.expect_output(self.do(0, "stat", LISTED), r"bytes +1234567")
        self.expect_output(self.do(0, "verify", LISTED), "1 good")
        other = self.path("other", data[::-1])
        self.assertEqual(self.do(0, "put", KEY, other).err, "")
        self.do(0, "get", KEY, back)
        self.assertEqual(self.content("back"), data[::-1])
        self.assertEqual(self.do(0, "rm", LISTED).err, "")
        self.do(1, "rm", KEY)
        self.expect_output(self.do(0, "ls"), "^0 chunks")

    def test_a_chunk_may_be_empty(self):
        self.do(0, "put", KEY, self.path("empty", b""))
        self.do(0, "get", KEY, self.path("back"))
        self.assertEqual(self.content("back"), b"")

    def test_the_object_has_the_keys_name_and_only_the_bytes(self):
        self.do(0, "put", KEY, self.path("given", b"bytes"))
        client = self.server.client()
        self.addCleanup(client.close)
        name = self.bucket.settings["s3_file_prefix"] + "/" + LISTED
        reply = client.do("GET", path_of(BUCKET, name))
        self.assertEqual((reply.status, reply.body), (200, b"bytes"))
        self.assertIn("x-amz-meta-kvtier", reply.headers)

    def test_odd_keys_are_kept_apart(self):
        for number, key in enumerate(ODD_KEYS):
            self.do(0, "put", key, self.path("given", b"%d" % number))
        for number, key in enumerate(ODD_KEYS):
            with self.subTest(key=key):
                self.do(0, "get", key, self.path("back"))
                self.assertEqual(self.content("back"), b"%d" % number)
        listed = self.do(0, "ls")
        for key in ODD_KEYS:
            self.assertIn(key.replace("/", "_"), listed.out)
        self.expect_output(self.do(0, "verify"), f"{len(ODD_KEYS)} good")
        self.do(0, "rm", *ODD_KEYS)
        self.expect_output(self.do(0, "ls"), "^0 chunks")

    def test_a_damaged_chunk_is_reported_and_can_be_stored_again(self):
        self.do(0, "put", KEY, self.path("given", b"abcdef" * 1000))
        client = self.server.client()
        self.addCleanup(client.close)
        name = path_of(BUCKET, self.bucket.settings["s3_file_prefix"] + "/" + LISTED)
        meta = client.do("HEAD", name).headers["x-amz-meta-kvtier"]
        for damaged in b"abcdeX" * 1000, b"abcdef" * 999:
            self.assertEqual(client.do("PUT", name, damaged,
                                       x_amz_meta_kvtier=meta).status, 200)
            with self.subTest(bytes=len(damaged)):
                self.expect_output(self.do(1, "verify"), "1 bad")
        self.do(0, "put", KEY, self.path("given"))
        self.expect_output(self.do(0, "verify"), "1 good")

    def test_the_bucket_may_stand_in_the_hosts_name(self):
        host = self.at(in_host(self.server.facts))
        self.do(0, "put", KEY, self.path("given", b"in the host"), address=host)
        self.do(0, "get", KEY, self.path("back"), address=host)
        self.assertEqual(self.content("back"), b"in the host")
        root = self.at(in_path(self.endpoint))
        self.do(0, "get", KEY, self.path("back"), address=root)
        self.do(0, "rm", KEY, address=host)
        self.do(1, "stat", KEY, address=root)

    def test_tls(self):
        tls = self.at(in_path(self.server.facts["tls_endpoint"], prefix="tls"))
        ca = self.server.facts["ca"]
        self.expect_output(self.do(3, "put", KEY, self.path("given", b"safe"), address=tls),
                  "certificate is not accepted")
        self.do(0, "put", KEY, self.path("given"), address=tls, s3_ca_file=ca)
        self.do(0, "get", KEY, self.path("back"), address=tls,
                env={"AWS_CA_BUNDLE": ca})
        self.assertEqual(self.content("back"), b"safe")
        self.do(0, "stat", KEY, address=tls, s3_verify_tls="false")
        self.expect_output(self.do(2, "ls", address=tls, s3_ca_file="/nonexistent"),
                  "/nonexistent")

    def test_wrong_keys_are_reported(self):
        wrong = {"AWS_SECRET_ACCESS_KEY": "SOMETHINGELSE"}
        self.expect_output(self.do(3, "put", KEY, self.path("given", b"x"), env=wrong),
                  "status 403 SignatureDoesNotMatch", "The secret key is wrong")
        self.expect_output(self.do(3, "ls", env=wrong), "The secret key is wrong")
        self.expect_output(self.do(3, "get", KEY, self.path("back"), env=wrong), "status 403")
        nobody = {"AWS_ACCESS_KEY_ID": "AKNOBODY"}
        self.expect_output(self.do(3, "put", KEY, self.path("given"), env=nobody),
                  "status 403 InvalidAccessKeyId")

    def test_missing_keys_are_reported(self):
        none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        done = self.do(3, "ls", env=none)
        self.expect_output(done, "no keys for S3", "environment", "profile")
        self.assertEqual(done.err.count("no keys for S3"), 1)
        self.expect_output(self.do(3, "ls", env=none, s3_unsigned="true"),
                  "status 403", "not signed")

    def test_a_missing_bucket_is_reported(self):
        nowhere = self.at(in_path(self.endpoint, bucket="nowhere"))
        sentence = "status 404 NoSuchBucket.*There is no bucket 'nowhere' there: make"
        self.expect_output(self.do(3, "put", KEY, self.path("given", b"x"), address=nowhere),
                  sentence)
        self.expect_output(self.do(3, "get", KEY, self.path("back"), address=nowhere), sentence)
        self.expect_output(self.do(3, "ls", address=nowhere), sentence)
        self.expect_output(self.do(1, "doctor", address=nowhere), "BAD +s3 list.*" + sentence)

    def test_the_doctor_checks_the_store(self):
        self.expect_output(self.do(0, "doctor"), "ok +s3 +s3://test",
                  "ok +store +a chunk of 1 MiB was stored, read back and removed")
        self.expect_output(self.do(0, "ls"), "^0 chunks")

    def test_a_configuration_file_can_have_all_settings(self):
        extra = "".join(f"  {name}: '{value}'\n"
                        for name, value in self.bucket.settings.items()
                        if name != "remote_url")
        config = self.path("kvtier.yaml", f"""\
chunk_size: 256
remote_url: "{self.bucket.settings['remote_url']}"
extra_config:
{extra}  s3_region: us-east-1
  aws_access_key_id: {self.keys['AWS_ACCESS_KEY_ID']}
  aws_secret_access_key: {self.keys['AWS_SECRET_ACCESS_KEY']}
""".encode())
        self.bucket.arguments()
        done = self.run_kvtier("config", "check", config, env={})
        self.assertEqual(done.code, 0, done)
        for command in ("put", KEY, self.path("given", b"x")), ("verify",), ("rm", KEY):
            done = self.run_kvtier(command[0], "--config", config, *command[1:], env={})
            self.assertEqual((done.code, done.err), (0, ""))
        shown = self.run_kvtier("config", "show", config, env={})
        self.assertNotIn(self.keys["AWS_SECRET_ACCESS_KEY"], shown.out)

    def test_several_write_one_key_at_once(self):
        contents = [os.urandom(300_000) for _ in range(4)]
        files = [self.path(f"given{i}", data) for i, data in enumerate(contents)]
        env = clean_environment(**self.keys)
        running = [subprocess.Popen([KVTIER, "put", KEY, file, *self.bucket.arguments()],
                                    env=env) for file in files]
        self.assertEqual([child.wait(60) for child in running], [0] * 4)
        self.do(0, "get", KEY, self.path("back"))
        self.assertIn(self.content("back"), contents)
        self.expect_output(self.do(0, "ls"), "^.*\n1 chunks")

    def test_a_list_has_many_pages(self):
        client = self.server.client()
        self.addCleanup(client.close)
        prefix = self.bucket.settings["s3_file_prefix"]
        names = {f"é m&o<d>+{i % 7}@1@0@{i:x}@half" for i in range(1, 2101)}
        for name in names:
            client.send("PUT", path_of(BUCKET, f"{prefix}/{name}"), b"x")
            self.assertEqual(client.reply().status, 200)
        client.do("PUT", path_of(BUCKET, f"{prefix}/no key of ours"), b"x")
        done = self.do(0, "ls", "--json")
        found = re.findall(r'"key": "(.*?)", "tier"', done.out)
        self.assertEqual({name.encode().decode("unicode_escape")
                          if "\\" in name else name for name in found}, names)
        self.assertEqual(len(found), len(names))


class SeaweedFS(Store, Case):
    @classmethod
    def setUpClass(cls):
        cls.server = running("seaweedfs.py", "--tls")

    def test_read_only_keys_can_read(self):
        reader = self.server.keys("read_access", "read_secret")
        given = self.path("given", b"to be read")
        denied = "status 403 AccessDenied.*s3:PutObject"
        self.expect_output(self.do(3, "put", KEY, given, env=reader), "PUT", denied)
        self.do(0, "put", KEY, given)
        self.do(0, "get", KEY, self.path("back"), env=reader)
        self.assertEqual(self.content("back"), b"to be read")
        self.expect_output(self.do(0, "verify", env=reader), "1 good")
        self.expect_output(self.do(3, "put", KEY, given, env=reader), "PUT", denied)
        self.expect_output(self.do(3, "rm", KEY, env=reader), "DELETE", "status 403 AccessDenied")
        self.expect_output(self.do(1, "doctor", env=reader), "BAD +s3 write.*403")
        self.do(0, "get", KEY, self.path("back"))


class Rgw(Store, Case):
    @classmethod
    def setUpClass(cls):
        cls.server = running("rgw.py", "--tls")


if __name__ == "__main__":
    unittest.main()
