# SPDX-License-Identifier: Apache-2.0
"""LMCache's fs connector and kvtier on one directory of 3FS.  kvtier writes and reads through
rings.  The fs connector stands for LMCache's hf3fs connector, which writes equal names and
bytes."""
import json
import os
import sys
import tempfile
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                             "demo"))
import mount  # noqa: E402
import workplace  # noqa: E402

import test_files  # noqa: E402
import theirs  # noqa: E402
from geometry import LARGE, SMALL  # noqa: E402


class On3FS:
    """A mixin for the tests of test_files.py: the directory is in a mount of the tests' 3FS."""

    @classmethod
    def setUpClass(cls):
        cls.mount = mount.Mount()
        cls.addClassCleanup(cls.mount.stop)
        try:
            cls.mount.start()
        except workplace.Unavailable as e:
            raise unittest.SkipTest(str(e))

    @classmethod
    def tearDownClass(cls):
        daemon = cls.mount.daemon
        daemon.stdin.write("stats\n")
        daemon.stdin.flush()
        stats = json.loads(daemon.stdout.readline())
        if not stats["reads"]:
            raise AssertionError("nothing was moved through rings")

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.mount.store)

    def kvtier(self, geometry=SMALL, header=True, directory=None, **more):
        base_path = directory or self.folder
        self.addCleanup(mount.forget, base_path.split(",")[0])
        return super().kvtier(geometry, header, remote_url="",
                              remote_storage_plugins="hf3fs.primary",
                              hf3fs_base_path=base_path, hf3fs_iov_size=100 << 20, **more)


class WhatLMCacheWrites(On3FS, test_files.WhatLMCacheWrites):
    pass


class WhatKvtierWrites(On3FS, test_files.WhatKvtierWrites):
    # The copy's directories are in no mount of 3FS.
    test_is_found_and_returned_by_lmcache_after_a_copy = None

    def contents(self):
        found = {}
        for name, path in self.files().items():
            with open(path, "rb") as file:
                found[name] = file.read()
            os.unlink(path)
        return found

    def test_has_lmcaches_names_and_bytes(self):
        for header in (True, False):
            tokens = self.tokens(LARGE, 3)
            chunks = self.kvtier(LARGE, header).store(tokens, 1)
            mine = self.contents()
            self.lmcache(LARGE, header).put(theirs.keys(LARGE, tokens), chunks)
            with self.subTest(header=header):
                self.assertTrue(self.contents() == {
                    name: content[:-test_files.TRAILER_BYTES]
                    for name, content in mine.items()})


class PartialChunks(On3FS, test_files.PartialChunks):
    def test_of_kvtier_are_found_and_returned_by_lmcache(self):
        """3FS has no extended attributes: without header a partial chunk is unverified."""
        def check(geometry, header, tokens):
            chunks = self.kvtier(geometry, header).store(tokens, 1)
            keys = theirs.keys(geometry, tokens, partial=True)
            lmcache = self.lmcache(geometry, header)
            self.assertEqual(lmcache.contains(keys), [True] * 4)
            self.assertEqual(lmcache.get(keys), chunks)
            again = self.kvtier(geometry, header)
            self.assertEqual(again.get(tokens), chunks)
            self.assertEqual(again.counters()["unverified_chunks"], 0 if header else 1)
        self.each(check)


class Together(On3FS, test_files.Together):
    # A promised chunk is verified in host memory: kvtier does not see a later change of the file.
    test_lmcache_overwrites_chunks_of_kvtier = None


class Damaged(On3FS, test_files.Damaged):
    test_a_file_of_lmcache_cut_under_an_open_engine_is_a_miss = None  # as in Together
    # The index of a 3FS directory is outside the directory: lose_index() cannot delete the index.
    test_a_file_of_kvtier_cut_anywhere_is_a_miss = None
    test_a_file_of_kvtier_that_was_cut_is_not_found_without_the_index = None


if __name__ == "__main__":
    unittest.main()
