# SPDX-License-Identifier: Apache-2.0
"""LMCache's S3 connector and kvtier on one bucket of SeaweedFS: each program reads the other
program's objects."""
import dataclasses
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import unittest

import hosts

BUCKET = "test"
HOST = BUCKET + ".s3.localhost"
NAMED = hosts.name_loopback(HOST)  # before other imports: may restart the program

import ours  # noqa: E402
import theirs  # noqa: E402
import geometry  # noqa: E402

SERVERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "servers")
sys.path.insert(0, SERVERS)
from client import Client, path as path_of  # noqa: E402

# LMCache stores only chunks that fill whole pages of LMCache's pool.
SMALL = dataclasses.replace(geometry.SMALL, layers=4, head_size=32)
MLA = dataclasses.replace(geometry.MLA, layers=4, head_size=64)
# 10 MiB: LMCache stores such a chunk in parts and reads the chunk in ranges.
HUGE = dataclasses.replace(geometry.LARGE, layers=40)
FORMS = [SMALL, MLA, geometry.LARGE, HUGE]


def name_of(key):
    """Return LMCache's object name for a key."""
    return key.to_string().replace("/", "_")


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not NAMED:
            raise unittest.SkipTest(f"{HOST} cannot be given a meaning here: LMCache "
                                    "knows no other way to a bucket")
        server = subprocess.Popen(
            [sys.executable, os.path.join(SERVERS, "seaweedfs.py")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        cls.addClassCleanup(server.communicate)
        line = server.stdout.readline()
        if not line:
            raise unittest.SkipTest(server.stderr.read())
        facts = json.loads(line)
        host = f"{HOST}:{facts['port']}"
        cls.url = f"s3://{host}"
        cls.extra = dict(s3_region=facts["region"], aws_access_key_id=facts["access"],
                         aws_secret_access_key=facts["secret"])
        cls.client = Client(facts["endpoint"], facts["access"], facts["secret"])
        cls.addClassCleanup(cls.client.close)
        digest = hashlib.sha256(f"s3://{host}/".encode()).digest()[:8]
        cls.index = "/var/tmp/kvtier-%d/%016x" % (
            os.geteuid(), int.from_bytes(digest, "little"))
        cls.addClassCleanup(shutil.rmtree, cls.index, ignore_errors=True)
        cls.random = random.Random(3)

    def tokens(self, form, chunks):
        return [self.random.randint(0, 150000)
                for _ in range(chunks * form.chunk_tokens)]

    def chunks(self, form, n):
        return [self.random.randbytes(form.chunk_bytes) for _ in range(n)]

    def lmcache(self, form=SMALL):
        made = theirs.LMCacheS3(self.url, form, **self.extra)
        self.addCleanup(made.close)
        return made

    def kvtier(self, form=SMALL, **more):
        host = self.url.removeprefix("s3://")
        made = ours.Kvtier("", form, remote_url=self.url, disable_tls="true",
                           local_cpu="true", s3_resolve=f"{host}:127.0.0.1",
                           **self.extra, **more)
        self.addCleanup(made.close)
        return made

    def check_same(self, found, chunks):
        """Assert equal chunks; a failure prints which chunks differ or their errno, no bytes."""
        self.assertEqual([one if isinstance(one, int) else one == chunk
                          for one, chunk in zip(found, chunks)], [True] * len(chunks))

    def stored_by_lmcache(self, form=SMALL, n=2):
        tokens, chunks = self.tokens(form, n), self.chunks(form, n)
        self.lmcache(form).put(theirs.keys(form, tokens), chunks)
        return tokens, chunks


class WhatLMCacheStores(Case):
    def test_is_found_and_returned_and_counted_as_unverified(self):
        for form in FORMS:
            tokens, chunks = self.stored_by_lmcache(form)
            kvtier = self.kvtier(form)
            with self.subTest(form=form):
                self.check_same(kvtier.get(tokens), chunks)
                self.assertEqual(kvtier.counters()["unverified_chunks"], 2)

    def test_is_refused_when_unverified_chunks_are(self):
        tokens, _ = self.stored_by_lmcache()
        kvtier = self.kvtier(refuse_unverified="true")
        self.assertEqual(kvtier.lookup(tokens), 0)
        self.assertEqual(kvtier.counters()["unverified_chunks"], 0)

    def test_is_a_miss_after_a_deletion(self):
        tokens, chunks = self.stored_by_lmcache()
        kvtier = self.kvtier()
        self.assertEqual(kvtier.lookup(tokens), 2)
        target = path_of(BUCKET, name_of(theirs.keys(SMALL, tokens)[1]))
        self.assertEqual(self.client.do("DELETE", target).status, 204)
        self.check_same(self.kvtier().get(tokens), chunks[:1])

    def test_is_a_miss_of_another_length(self):
        tokens, chunks = self.stored_by_lmcache()
        target = path_of(BUCKET, name_of(theirs.keys(SMALL, tokens)[1]))
        self.assertEqual(self.client.do("PUT", target, chunks[1][:-1]).status, 200)
        self.check_same(self.kvtier().get(tokens), chunks[:1])

    def test_is_replaced_by_a_chunk_of_kvtier_with_equal_tokens(self):
        """LMCache's object is unverified; kvtier's verified object replaces LMCache's object."""
        tokens, _ = self.stored_by_lmcache()
        writer = self.kvtier(refuse_unverified="true")
        chunks = writer.store(tokens, 1)
        reader = self.kvtier(refuse_unverified="true")
        self.check_same(reader.get(tokens), chunks)


class WhatKvtierStores(Case):
    def test_is_returned_by_lmcache_byte_for_byte(self):
        for form in FORMS:
            tokens = self.tokens(form, 2)
            chunks = self.kvtier(form).store(tokens, 1)
            keys = theirs.keys(form, tokens)
            lmcache = self.lmcache(form)
            with self.subTest(form=form):
                self.assertEqual(lmcache.contains(keys), [True, True])
                self.check_same(lmcache.get(keys), chunks)
                self.check_same(lmcache.get_each(keys), chunks)

    def test_has_lmcaches_name_and_nothing_but_the_bytes(self):
        tokens = self.tokens(SMALL, 1)
        chunks = self.kvtier().store(tokens, 1)
        name = name_of(theirs.keys(SMALL, tokens)[0])
        reply = self.client.do("GET", path_of(BUCKET, name))
        self.assertEqual((reply.status, reply.body), (200, chunks[0]))

    def test_is_verified_by_another_host(self):
        tokens = self.tokens(SMALL, 2)
        writer = self.kvtier()
        chunks = writer.store(tokens, 1)
        writer.engine.close()
        shutil.rmtree(self.index)
        reader = self.kvtier(refuse_unverified="true")
        self.check_same(reader.get(tokens), chunks)
        self.assertEqual(reader.counters()["unverified_chunks"], 0)

    def test_may_be_written_over_by_lmcache(self):
        """A promised chunk becomes a miss; the next lookup finds LMCache's chunk."""
        tokens = self.tokens(SMALL, 2)
        writer = self.kvtier()
        writer.store(tokens, 1)
        writer.engine.close()
        others = self.chunks(SMALL, 2)
        self.lmcache().put(theirs.keys(SMALL, tokens), others)
        reader = self.kvtier()
        for _ in range(3):
            found = reader.get(tokens)
            self.check_same(found, others[:len(found)])
        self.assertEqual(len(found), 2)


if __name__ == "__main__":
    unittest.main()
