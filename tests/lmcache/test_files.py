# SPDX-License-Identifier: Apache-2.0
"""LMCache and kvtier on one directory of fs: each program reads the other program's files."""
import dataclasses
import errno
import os
import subprocess
import tempfile
import threading
import unittest

import theirs
from case import OnFs, lose_index
from geometry import LARGE, MLA, OTHERS, SMALL

TRAILER_BYTES = 64


class WhatLMCacheWrites(OnFs):
    def test_is_found_and_returned_and_counted_as_unverified(self):
        for geometry in (SMALL, MLA, LARGE):
            for header in (True, False):
                with self.subTest(geometry=geometry, header=header):
                    self.check_found(geometry, dict(header=header))

    def test_is_found_by_an_engine_that_was_open_before(self):
        for header in (True, False):
            with self.subTest(header=header):
                self.check_found(SMALL, dict(header=header), early=True)

    @unittest.skipUnless(theirs.have_vllm(), "sha256_cbor comes from vLLM")
    def test_is_found_under_its_sha256_cbor_hash(self):
        for header in (True, False):
            with self.subTest(header=header):
                self.check_found(SMALL, dict(header=header), "sha256_cbor")

    def test_is_returned_after_a_write_with_direct_io(self):
        self.check_found(LARGE, dict(header=False), fs_connector_use_odirect=True)

    def test_is_returned_with_any_save_chunk_meta(self):
        for header in (True, False):
            tokens = self.tokens(LARGE, 3)
            chunks = self.chunks(LARGE, 3)
            self.lmcache(LARGE, header).put(theirs.keys(LARGE, tokens), chunks)
            with self.subTest(header=header):
                self.assertEqual(self.kvtier(LARGE, not header).get(tokens), chunks)

    def test_is_found_in_the_right_one_of_several_directories(self):
        several = self.several("abc")
        tokens, chunks = self.tokens(SMALL, 9), self.chunks(SMALL, 9)
        self.lmcache(directory=several).put(theirs.keys(SMALL, tokens), chunks)
        self.assertEqual(self.kvtier(directory=several).get(tokens), chunks)

    def test_with_tags_is_found_under_these_tags_only(self):
        tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
        keys = theirs.keys(SMALL, tokens, "builtin", {"lmcache.tag.user": "x"})
        self.lmcache().put(keys, chunks)
        kvtier = self.kvtier()
        self.assertEqual(kvtier.get(tokens, tags="user%x"), chunks)
        self.assertEqual(kvtier.lookup(tokens), 0)

    def test_is_refused_when_unverified_chunks_are(self):
        for header in (True, False):
            tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
            self.lmcache(header=header).put(theirs.keys(SMALL, tokens), chunks)
            kvtier = self.kvtier(header=header, refuse_unverified="true")
            with self.subTest(header=header):
                self.assertEqual(kvtier.lookup(tokens), 0)
                self.assertTrue(all(s < 0 for s in kvtier.load(tokens, 3)))

    def test_of_another_length_is_a_miss(self):
        tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
        self.lmcache().put(theirs.keys(SMALL, tokens), chunks)
        other = dataclasses.replace(SMALL, layers=4)
        self.assertEqual(self.kvtier(other).lookup(tokens), 0)

    def test_of_another_geometry_is_a_miss_that_stays(self):
        """Two models with equal names and chunk lengths."""
        for other in OTHERS:
            self.assertEqual(other.chunk_bytes, SMALL.chunk_bytes)
            for found_before in (False, True):
                tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
                keys = theirs.keys(SMALL, tokens)
                self.assertEqual(theirs.keys(other, tokens), keys)
                kvtier = self.kvtier()
                if found_before:
                    kvtier.store(tokens, 1)
                self.lmcache(other).put(keys, chunks)
                with self.subTest(other=other, found_before=found_before):
                    self.assertTrue(all(s < 0 for s in kvtier.load(tokens, 3)))
                    self.assertEqual(kvtier.lookup(tokens), 0)
                    self.assertEqual(kvtier.counters()["unverified_chunks"], 0)
                    self.assertEqual(kvtier.counters()["load_corrupt"], 0)
                    self.assertEqual(self.kvtier(other).get(tokens), chunks)


class WhatKvtierWrites(OnFs):
    def check(self, geometry, header, algorithm="builtin", heads_first=False,
              **more):
        tokens = self.tokens(geometry, 5, spare=3)
        lmcache = self.lmcache(geometry, header, **more)
        kvtier = self.kvtier(geometry, header, heads_first=heads_first,
                             pre_caching_hash_algorithm=algorithm)
        chunks = kvtier.store(tokens, self.random.randrange(2**32))
        keys = theirs.keys(geometry, tokens, algorithm)
        self.assertEqual(lmcache.contains(keys), [True] * 5)
        self.assertEqual(lmcache.remote.batched_contains(keys), 5)
        self.assertEqual(lmcache.get(keys), chunks)
        self.assertEqual(lmcache.get_each(keys), chunks)
        self.assertEqual(kvtier.get(tokens), chunks)
        self.assertEqual(kvtier.counters()["unverified_chunks"], 0)

    def test_is_found_and_returned_by_lmcache(self):
        for geometry in (SMALL, MLA, LARGE):
            for header in (True, False):
                for heads_first in (False, True):
                    with self.subTest(geometry=geometry, header=header,
                                      heads_first=heads_first):
                        self.check(geometry, header, heads_first=heads_first)

    def test_is_found_and_returned_by_lmcache_after_a_copy(self):
        kvtier = os.path.join(os.path.dirname(os.environ["KVTIER_LIBRARY"]), "kvtier")
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("LMCACHE_", "KVTIER_"))}
        for geometry in (SMALL, MLA, LARGE):
            for header in (True, False):
                with self.subTest(geometry=geometry, header=header), \
                        tempfile.TemporaryDirectory() as top:
                    tokens = self.tokens(geometry, 5)
                    source = self.kvtier(geometry, header, directory=top + "/from")
                    chunks = source.store(tokens, 1)
                    source.engine.close()
                    for name in ("from", "to"):
                        with open(f"{top}/{name}.yaml", "w") as f:
                            f.write(f"remote_url: fs://{top}/{name}\n"
                                    f"chunk_size: {geometry.chunk_tokens}\n"
                                    f"save_chunk_meta: {str(header).lower()}\n")
                    subprocess.run([kvtier, "cp", "--from", f"{top}/from.yaml",
                                    "--to", f"{top}/to.yaml"], check=True, env=environment)
                    lmcache = self.lmcache(geometry, header, directory=top + "/to")
                    self.assertEqual(lmcache.get(theirs.keys(geometry, tokens)), chunks)

    @unittest.skipUnless(theirs.have_vllm(), "sha256_cbor comes from vLLM")
    def test_is_found_under_its_sha256_cbor_hash(self):
        self.check(SMALL, True, "sha256_cbor")

    def test_is_returned_with_direct_io_and_with_read_ahead(self):
        self.check(LARGE, False, fs_connector_use_odirect=True)
        self.check(LARGE, False, fs_connector_read_ahead_size=4096)

    def test_is_in_the_right_directory_of_several(self):
        several = self.several("abc")
        tokens = self.tokens(SMALL, 9)
        chunks = self.kvtier(directory=several).store(tokens, 1)
        lmcache = self.lmcache(directory=several)
        self.assertEqual(lmcache.get(theirs.keys(SMALL, tokens)), chunks)

    def test_is_all_that_lmcache_lists(self):
        tokens = self.tokens(SMALL, 4)
        self.kvtier().store(tokens, 1)
        opaque = self.kvtier(opaque=True)
        opaque.store(tokens, 1)
        self.assertEqual(len(os.listdir(self.folder + "/kvtier")), 4)
        self.assertEqual(opaque.lookup(tokens), 4)
        self.assertEqual(
            sorted(self.lmcache().list()),
            sorted(k.to_string().replace("/", "-SEP-")
                   for k in theirs.keys(SMALL, tokens)))


class PartialChunks(OnFs):
    """Both programs run with save_unfull_chunk."""

    def each(self, check):
        """Call check(geometry, header, tokens) for each geometry, with and without headers.

        The tokens fill three whole chunks and a partial chunk.
        """
        for geometry in (SMALL, MLA, LARGE):
            for header in (True, False):
                for n in (1, geometry.block_tokens, geometry.chunk_tokens - 1):
                    with self.subTest(geometry=geometry, header=header, n=n):
                        check(geometry, header, self.tokens(geometry, 3, spare=n))

    def kvtier(self, *args, **more):
        return super().kvtier(*args, save_unfull_chunk="true", **more)

    def lmcaches_chunks(self, geometry, tokens):
        tail = len(tokens) % geometry.chunk_tokens * geometry.token_bytes
        return self.chunks(geometry, 3) + [self.random.randbytes(tail)]

    def test_of_lmcache_are_found_and_returned(self):
        def check(geometry, header, tokens):
            chunks = self.lmcaches_chunks(geometry, tokens)
            keys = theirs.keys(geometry, tokens, partial=True)
            self.lmcache(geometry, header).put(keys, chunks)
            kvtier = self.kvtier(geometry, header)
            self.assertEqual(kvtier.get(tokens), chunks)
            self.assertEqual(kvtier.counters()["unverified_chunks"], 4)
            self.assertEqual(kvtier.lookup(tokens[:-1]), 3)
        self.each(check)

    def test_of_lmcache_are_returned_with_any_save_chunk_meta(self):
        def check(geometry, header, tokens):
            chunks = self.lmcaches_chunks(geometry, tokens)
            keys = theirs.keys(geometry, tokens, partial=True)
            self.lmcache(geometry, header).put(keys, chunks)
            self.assertEqual(self.kvtier(geometry, not header).get(tokens), chunks)
        self.each(check)

    def test_of_kvtier_are_found_and_returned_by_lmcache(self):
        def check(geometry, header, tokens):
            lmcache = self.lmcache(geometry, header)
            kvtier = self.kvtier(geometry, header)
            chunks = kvtier.store(tokens, self.random.randrange(2**32))
            keys = theirs.keys(geometry, tokens, partial=True)
            self.assertEqual([len(chunk) // geometry.token_bytes for chunk in chunks],
                             [geometry.chunk_tokens] * 3 +
                             [len(tokens) % geometry.chunk_tokens])
            self.assertEqual(lmcache.contains(keys), [True] * 4)
            self.assertEqual(lmcache.get(keys), chunks)
            self.assertEqual(lmcache.get_each(keys), chunks)
            lose_index(self.folder)
            again = self.kvtier(geometry, header)
            self.assertEqual(again.get(tokens), chunks)
            self.assertEqual(again.counters()["unverified_chunks"], 0)
        self.each(check)

    def test_that_lmcache_writes_over_are_served(self):
        for header in (True, False):
            tokens = self.tokens(SMALL, 3, spare=5)
            kvtier, lmcache = self.kvtier(header=header), self.lmcache(header=header)
            chunks = kvtier.store(tokens, 1)
            keys = theirs.keys(SMALL, tokens, partial=True)
            self.assertTrue(lmcache.remote.remove(keys[3]))
            lmcache.put(keys[3:], chunks[3:])
            with self.subTest(header=header):
                self.assertEqual(kvtier.get(tokens), chunks)

    def test_cut_to_fewer_tokens_are_misses(self):
        for header in (True, False):
            tokens = self.tokens(SMALL, 3, spare=5)
            kvtier = self.kvtier(header=header)
            chunks = kvtier.store(tokens, 1)
            path = self.file(self.lmcache(header=header),
                             theirs.keys(SMALL, tokens, partial=True)[3])
            os.truncate(path, os.path.getsize(path) - SMALL.token_bytes)
            with self.subTest(header=header):
                found = kvtier.load(tokens, 4)
                self.assertEqual(found[:3], chunks[:3])
                self.assertLess(found[3], 0)
                self.assertEqual(kvtier.lookup(tokens), 3)


class Together(OnFs):
    def test_both_write_and_read_equal_chunks_concurrently(self):
        """The KV of a prompt does not depend on the program that computed the KV."""
        kvtier, lmcache = self.kvtier(), self.lmcache()
        prompts = []
        for i in range(20):
            tokens = self.tokens(SMALL, 4)
            kvtier.random.seed(i)  # determines the blocks, and so the bytes of each chunk
            chunks = kvtier.store(tokens, i)
            prompts.append((tokens, theirs.keys(SMALL, tokens), chunks, i))
        for path in self.files().values():
            os.unlink(path)
        wrong, errors = [], []

        def they():
            for tokens, keys, chunks, _ in prompts * 3:
                lmcache.put(keys, chunks)
                if lmcache.get(keys) != chunks:
                    wrong.append("LMCache")

        def we():
            for tokens, _, chunks, seed in prompts * 3:
                if any(found not in (chunk, -errno.ENOENT, -errno.ECANCELED)
                       for found, chunk in zip(kvtier.get(tokens), chunks)):
                    wrong.append("kvtier")
                kvtier.random.seed(seed)
                kvtier.store(tokens, seed)

        def caught(work):
            try:
                work()
            except Exception as e:
                errors.append(e)

        threads = [threading.Thread(target=caught, args=(work,))
                   for work in (they, we)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, errors), ([], []))
        for tokens, keys, chunks, _ in prompts:
            self.assertEqual(kvtier.get(tokens), chunks)
            self.assertEqual(lmcache.get(keys), chunks)
        self.assertEqual(kvtier.counters()["load_corrupt"], 0)

    def test_chunks_evicted_by_kvtier_are_a_miss_for_lmcache(self):
        limit = 20 * LARGE.chunk_bytes
        kvtier = self.kvtier(LARGE, max_remote_size=limit / 2**30)
        lmcache = self.lmcache(LARGE)
        old, new = self.tokens(LARGE, 8), self.tokens(LARGE, 8)
        their_tokens, theirs_ = self.tokens(LARGE, 8), self.chunks(LARGE, 8)
        first = kvtier.store(old, 1)
        lmcache.put(theirs.keys(LARGE, their_tokens), theirs_)
        self.assertEqual(kvtier.lookup(their_tokens), 8)
        self.assertEqual(kvtier.get(their_tokens), theirs_)
        second = kvtier.store(new, 2)
        size = sum(os.path.getsize(path) for path in self.files().values())
        self.assertLessEqual(size, limit)
        self.assertGreater(kvtier.counters()["evicted_chunks"], 0)
        found = lmcache.get_each(theirs.keys(LARGE, old))
        self.assertIn(None, found)
        for mine, their in zip(first, found):
            self.assertIn(their, (None, mine))
        self.assertEqual(lmcache.get_each(theirs.keys(LARGE, new)), second)
        self.assertEqual(lmcache.contains(theirs.keys(LARGE, old)),
                         [one is not None for one in found])

    def test_chunks_removed_by_lmcache_are_a_miss_for_kvtier(self):
        kvtier, lmcache = self.kvtier(), self.lmcache()
        tokens = self.tokens(SMALL, 3)
        chunks = kvtier.store(tokens, 1)
        keys = theirs.keys(SMALL, tokens)
        self.assertTrue(lmcache.remote.remove(keys[1]))
        found = kvtier.load(tokens, 3)
        self.assertEqual(found[0], chunks[0])
        self.assertLess(found[1], 0)
        self.assertEqual(kvtier.lookup(tokens), 1)

    def test_kvtier_overwrites_unusable_files(self):
        for header in (True, False):
            tokens, other = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
            keys = theirs.keys(SMALL, tokens)
            lmcache = self.lmcache(header=header)
            lmcache.put(keys, other)
            kvtier = self.kvtier(header=header, refuse_unverified="true")
            chunks = kvtier.store(tokens, 1)
            with self.subTest(header=header):
                self.assertEqual(lmcache.get(keys), chunks)
                self.assertEqual(kvtier.get(tokens), chunks)

    def test_lmcache_overwrites_chunks_of_kvtier(self):
        for header in (True, False):
            tokens = self.tokens(SMALL, 3)
            kvtier = self.kvtier(header=header)
            chunks = kvtier.store(tokens, 1)
            self.assertEqual(kvtier.get(tokens), chunks)
            self.lmcache(header=header).put(theirs.keys(SMALL, tokens), chunks)
            with self.subTest(header=header):
                self.assertEqual(kvtier.get(tokens), chunks)
                self.assertEqual(kvtier.counters()["unverified_chunks"], 3)
                self.assertEqual(kvtier.counters()["load_corrupt"], 0)

    def test_stray_files_of_either_are_nothing_to_the_other(self):
        tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
        lmcache = self.lmcache(fs_connector_relative_tmp_dir="tmp")
        keys = theirs.keys(SMALL, tokens)
        lmcache.put(keys, chunks)
        for name in ("x.data", "a@b@c.data", "m@1@0@12@bfloat16.tmp",
                     "tmp/org@1@0@1@half.data"):
            with open(os.path.join(self.folder, name), "wb") as f:
                f.write(b"stray")
        kvtier = self.kvtier()
        self.assertEqual(kvtier.get(tokens), chunks)
        self.assertEqual(lmcache.get(keys), chunks)


class Damaged(OnFs):
    def test_a_file_of_kvtier_cut_anywhere_is_a_miss(self):
        for header in (True, False):
            self.setUp()  # a new directory for each header setting
            self.check_cut(header=header)

    def cut(self, path, to):
        os.truncate(path, to)

    def test_a_file_of_lmcache_cut_to_fewer_tokens_is_a_miss(self):
        """LMCache reads the file as a shorter chunk: LMCache checks only the length."""
        for part in (2, 4, 16):
            tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
            keys = theirs.keys(SMALL, tokens)
            lmcache = self.lmcache(header=False)
            lmcache.put(keys, chunks)
            self.cut(self.file(lmcache, keys[1]), SMALL.chunk_bytes // part)
            with self.subTest(part=part):
                self.assertEqual(self.kvtier(header=False).get(tokens), chunks[:1])

    def test_a_file_of_lmcache_cut_under_an_open_engine_is_a_miss(self):
        for header in (True, False):
            tokens, chunks = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
            keys = theirs.keys(SMALL, tokens)
            lmcache = self.lmcache(header=header)
            lmcache.put(keys, chunks)
            kvtier = self.kvtier(header=header)
            self.assertEqual(kvtier.lookup(tokens), 3)
            path = self.file(lmcache, keys[1])
            self.cut(path, os.path.getsize(path) // 2)
            with self.subTest(header=header):
                self.assertLess(kvtier.load(tokens, 3)[1], 0)
                self.assertEqual(kvtier.counters()["load_corrupt"], 1)
                self.assertFalse(os.path.exists(path))
                self.assertEqual(kvtier.lookup(tokens), 1)

    def test_a_file_of_kvtier_that_was_cut_is_a_miss(self):
        for header in (True, False):
            for where in ("half", "trailer", "token"):
                tokens = self.tokens(SMALL, 3)
                chunks = self.kvtier(header=header).store(tokens, 1)
                path = self.file(self.lmcache(header=header),
                                 theirs.keys(SMALL, tokens)[1])
                size = os.path.getsize(path)
                self.cut(path, {"half": size // 2, "trailer": size - 1, "token":
                                size - TRAILER_BYTES - SMALL.chunk_bytes //
                                SMALL.chunk_tokens}[where])
                with self.subTest(header=header, where=where):
                    reader = self.kvtier(header=header)
                    self.assertEqual(reader.load(tokens, 3)[:2],
                                     [chunks[0], -errno.EBADMSG])
                    self.assertFalse(os.path.exists(path))
                    self.assertEqual(reader.get(tokens), chunks[:1])

    def test_a_file_of_kvtier_that_was_cut_is_not_found_without_the_index(self):
        for header in (True, False):
            for cut in (SMALL.chunk_bytes // 2, TRAILER_BYTES + 1, 1):
                tokens = self.tokens(SMALL, 3)
                directory = tempfile.mkdtemp(dir=self.folder)
                writer = self.kvtier(header=header, directory=directory)
                chunks = writer.store(tokens, 1)
                writer.engine.close()
                lmcache = self.lmcache(header=header, directory=directory)
                path = self.file(lmcache, theirs.keys(SMALL, tokens)[1])
                self.cut(path, os.path.getsize(path) - cut)
                lose_index(directory)
                with self.subTest(header=header, cut=cut):
                    reader = self.kvtier(header=header, directory=directory)
                    self.assertEqual(reader.get(tokens), chunks[:1])

    def test_a_flipped_bit_in_a_file_of_kvtier_is_a_miss(self):
        for header in (True, False):
            kvtier = self.kvtier(header=header)
            tokens = self.tokens(SMALL, 3)
            chunks = kvtier.store(tokens, 1)
            path = self.file(self.lmcache(header=header),
                             theirs.keys(SMALL, tokens)[1])
            with open(path, "r+b") as f:
                f.seek(700)
                byte = f.read(1)[0]
                f.seek(700)
                f.write(bytes([byte ^ 4]))
            with self.subTest(header=header):
                found = kvtier.load(tokens, 3)
                self.assertEqual(found[0], chunks[0])
                self.assertLess(found[1], 0)
                self.assertEqual(kvtier.counters()["load_corrupt"], 1)
                self.assertEqual(kvtier.lookup(tokens), 1)

    def test_an_absent_directory_is_made_with_direct_io(self):
        directory = os.path.join(self.folder, "deep", "er")
        tokens = self.tokens(LARGE, 3)
        kvtier = self.kvtier(LARGE, False, directory,
                             fs_connector_use_odirect="true")
        chunks = kvtier.store(tokens, 1)
        self.assertEqual(kvtier.get(tokens), chunks)
        lmcache = self.lmcache(LARGE, False, directory,
                               fs_connector_use_odirect=True)
        self.assertEqual(lmcache.get(theirs.keys(LARGE, tokens)), chunks)


class Isolation(OnFs):
    """The only identity in a file of LMCache is the key text, which is the file's name."""

    def setUp(self):
        super().setUp()
        self.prompt, self.stored = self.tokens(SMALL, 3), self.chunks(SMALL, 3)
        self.lmcache().put(theirs.keys(SMALL, self.prompt), self.stored)

    def test_is_a_miss_for_requests_with_an_adapter_or_a_salt(self):
        kvtier = self.kvtier()
        for extra in ({"lora": "sql"}, {"lora": "sql", "tags": "lora%sql"},
                      {"cache_salt": "alice"}):
            with self.subTest(extra=extra):
                self.assertEqual(kvtier.lookup(self.prompt, **extra), 0)
        self.assertEqual(kvtier.get(self.prompt), self.stored)

    def test_is_a_miss_after_a_reset(self):
        kvtier = self.kvtier()
        self.assertEqual(kvtier.lookup(self.prompt), 3)
        kvtier.engine.reset()
        self.assertEqual(kvtier.lookup(self.prompt), 0)


if __name__ == "__main__":
    unittest.main()
