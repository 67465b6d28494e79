# SPDX-License-Identifier: Apache-2.0
"""LMCache's local disk back end and kvtier use one directory, one after the other.  kvtier
reads the files of an ended LMCache, which a new LMCache does not find; LMCache reads kvtier's
files."""
import errno
import os
import unittest

import ours
import theirs
from case import OnDisk, lose_index
from geometry import LARGE, MLA, PAIR, SMALL

class WhatLMCacheLeaves(OnDisk):
    def test_is_found_and_returned_and_counted_as_unverified(self):
        for geometry in (SMALL, MLA, LARGE):
            for use_odirect in (False, True):
                tokens, _, chunks, paths = self.stored(geometry,
                                                       use_odirect=use_odirect)
                kvtier = self.kvtier(geometry)
                with self.subTest(geometry=geometry, use_odirect=use_odirect):
                    self.assertEqual(os.path.getsize(paths[0]),
                                     geometry.chunk_bytes)
                    self.assertEqual(kvtier.get(tokens), chunks)
                    self.assertEqual(kvtier.counters()["unverified_chunks"], 3)

    def test_is_refused_when_unverified_chunks_are(self):
        tokens, _, _, _ = self.stored()
        self.assertEqual(self.kvtier(refuse_unverified="true").lookup(tokens), 0)

    def test_is_in_the_directory_of_its_gpu(self):
        several = self.several("abc")
        tokens, chunks = self.tokens(SMALL, 3), []
        for geometry in PAIR:
            data = self.chunks(geometry, 3)
            lmcache = self.lmcache(geometry, several)
            lmcache.put(theirs.keys(geometry, tokens), data)
            chunks.append(data)
            self.assertEqual(
                len(os.listdir(os.path.join(self.folder, "ab"[geometry.rank]))), 3)
        for geometry in PAIR:
            kvtier = self.kvtier(geometry, several)
            self.assertEqual(kvtier.get(tokens), chunks[geometry.rank])

    def test_is_found_in_another_directory_too(self):
        several = [os.path.join(self.folder, name) for name in "ab"]
        tokens, _, chunks, _ = self.stored(directory=several[1])
        for sharding in ("by_gpu", "by_local_rank"):
            kvtier = self.kvtier(directory=",".join(several),
                                 local_disk_path_sharding=sharding)
            with self.subTest(sharding=sharding):
                self.assertEqual(kvtier.get(tokens), chunks)

    def test_counts_and_is_evicted(self):
        limit = 20 * LARGE.chunk_bytes
        old, _, _, old_paths = self.stored(LARGE, 16)
        kvtier = self.kvtier(LARGE, max_local_disk_size=limit / 2**30)
        for seed in range(3):
            tokens = self.tokens(LARGE, 6)
            chunks = kvtier.store(tokens, seed)
            self.assertEqual(kvtier.get(tokens), chunks)
        size = sum(os.path.getsize(os.path.join(self.folder, name))
                   for name in os.listdir(self.folder) if name.endswith(".pt"))
        self.assertLessEqual(size, limit)
        self.assertGreater(kvtier.counters()["evicted_chunks"], 0)
        self.assertIn(False, map(os.path.exists, old_paths))

    def test_of_fewer_tokens_is_returned_by_its_key(self):
        tokens = self.tokens(SMALL, 1)
        key = theirs.keys(SMALL, tokens)[0]
        part = self.chunks(SMALL, 1)[0][:SMALL.chunk_bytes // 4]
        lmcache = self.lmcache()
        lmcache.put([key], [part])
        self.assertEqual(lmcache.get([key]), [part])
        self.assertEqual(self.kvtier().lookup(tokens), 0)  # the file is shorter than a whole chunk
        store = ours.Store(local_disk=self.folder, max_local_disk_size=1)
        self.addCleanup(store.close)
        self.assertEqual(store.get(key.to_string()), part)
        self.assertEqual(store.get(key.to_string().replace("/", "-")), part)


class WhatKvtierWrites(OnDisk):
    def test_is_returned_by_lmcache_byte_for_byte(self):
        for geometry in (SMALL, MLA, LARGE):
            for use_odirect in (False, True):
                tokens = self.tokens(geometry, 5, spare=3)
                chunks = self.kvtier(geometry).store(tokens, 1)
                keys = theirs.keys(geometry, tokens)
                lmcache = self.lmcache(geometry, use_odirect=use_odirect)
                lmcache.adopt(keys)
                with self.subTest(geometry=geometry, use_odirect=use_odirect):
                    self.assertEqual(lmcache.get(keys), chunks)
                    self.assertEqual(lmcache.get_each(keys), chunks)

    def test_has_the_path_of_lmcache(self):
        several = self.several("ab")
        tokens = self.tokens(SMALL, 4)
        for geometry in PAIR:
            self.kvtier(geometry, several).store(tokens, 1)
            lmcache = self.lmcache(geometry, several)
            for key in theirs.keys(geometry, tokens):
                self.assertTrue(os.path.exists(lmcache.path(key)))

    def test_is_verified_after_a_restart(self):
        tokens = self.tokens(SMALL, 4)
        writer = self.kvtier()
        chunks = writer.store(tokens, 1)
        writer.engine.close()
        for index in (True, False):
            if not index:
                lose_index(self.folder)
            reader = self.kvtier()
            with self.subTest(index=index):
                self.assertEqual(reader.get(tokens), chunks)
                self.assertEqual(reader.counters()["unverified_chunks"], 0)
            reader.engine.close()

    def test_is_a_miss_after_lmcache_overwrote_it(self):
        """LMCache writes into kvtier's file: kvtier's extended attribute stays, with O_DIRECT also
        kvtier's trailer.

        kvtier cannot distinguish such a file from a truncated file of kvtier.  The chunk is a
        miss until kvtier or LMCache stores the chunk in a new file.  kvtier stores the chunk after
        a load of the chunk failed: a load that ends at the first chunk may cancel the others, and
        leaves their entries in the index.
        """
        for use_odirect in (False, True):
            tokens = self.tokens(LARGE, 3)
            kvtier = self.kvtier(LARGE)
            kvtier.store(tokens, 1)
            lmcache = self.lmcache(LARGE, use_odirect=use_odirect)
            lmcache.put(theirs.keys(LARGE, tokens), self.chunks(LARGE, 3))
            missed = {-errno.ENOENT, -errno.ECANCELED}
            if os.path.getsize(lmcache.path(theirs.keys(LARGE, tokens)[0])) > \
                    LARGE.chunk_bytes:
                missed.add(-errno.EBADMSG)
            with self.subTest(use_odirect=use_odirect):
                found = kvtier.get(tokens)
                self.assertEqual([one for one in found if one not in missed], [])
                for _ in range(4):  # each failed load removes an entry
                    chunks = kvtier.store(tokens, 2)
                    found = kvtier.get(tokens)
                    if found == chunks:
                        break
                self.assertEqual(found, chunks)


class Damaged(OnDisk):
    def test_a_file_of_kvtier_cut_anywhere_is_a_miss(self):
        self.check_cut()

    def test_a_file_of_lmcache_cut_in_half_is_a_miss(self):
        """LMCache returns a truncated chunk, filled up with bytes of another chunk."""
        tokens, _, chunks, paths = self.stored()
        os.truncate(paths[1], self.header_bytes + SMALL.chunk_bytes // 2)
        self.assertEqual(self.kvtier().get(tokens), chunks[:1])

    def test_a_file_of_lmcache_cut_under_an_open_engine_is_a_miss(self):
        tokens, _, chunks, paths = self.stored()
        kvtier = self.kvtier()
        self.assertEqual(kvtier.lookup(tokens), 3)
        os.truncate(paths[1], SMALL.chunk_bytes // 2)
        self.check_damaged(kvtier, tokens, chunks[0], paths[1])

    def test_a_file_of_kvtier_cut_or_changed_is_a_miss(self):
        for damage in ("half", "identity", "payload"):
            tokens, kvtier = self.tokens(SMALL, 3), self.kvtier()
            chunks = kvtier.store(tokens, 1)
            path = self.file(self.lmcache(), theirs.keys(SMALL, tokens)[1])
            with open(path, "r+b") as f:
                data = f.read()
                if damage == "half":
                    f.truncate(self.header_bytes + SMALL.chunk_bytes // 2)
                else:
                    at = (self.header_bytes + 700 if damage == "payload" else
                          20 if self.header_bytes else len(data) - 20)
                    f.seek(at)
                    f.write(bytes([data[at] ^ 4]))
            with self.subTest(damage=damage):
                self.check_damaged(kvtier, tokens, chunks[0], path)

    def test_a_file_deleted_under_the_index_is_a_miss(self):
        tokens, kvtier = self.tokens(SMALL, 3), self.kvtier()
        chunks = kvtier.store(tokens, 1)
        os.unlink(self.lmcache().path(theirs.keys(SMALL, tokens)[1]))
        found = kvtier.load(tokens, 3)
        self.assertEqual(found[0], chunks[0])
        self.assertLess(found[1], 0)
        self.assertEqual(kvtier.counters()["load_corrupt"], 0)
        self.assertEqual(kvtier.lookup(tokens), 1)

    def test_an_absent_directory_is_made(self):
        directory = os.path.join(self.folder, "deep", "er")
        tokens = self.tokens(LARGE, 3)
        kvtier = self.kvtier(LARGE, directory, use_odirect="true")
        chunks = kvtier.store(tokens, 1)
        self.assertEqual(kvtier.get(tokens), chunks)


if __name__ == "__main__":
    unittest.main()
