# SPDX-License-Identifier: Apache-2.0
"""LMCache's GDS back end and kvtier on one directory: each program reads the other program's
files.  LMCache copies through host memory (nogpu.py); LMCache's own code writes the files."""
import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
import unittest

import test_disk
import test_files
import theirs
from case import OnGds, lose_index
from geometry import DTYPES, LARGE, MLA, PAIR, SMALL, Geometry

HEADER_BYTES, DATA, METADATA = OnGds.header_bytes, OnGds.DATA, OnGds.METADATA
MOVERS = ("posix", "cufile")
MODELS = ("org/small%20model", "m%40x", "a b/c+d~e_f.g-h", "/models/ünïcode", "x" * 150)

# Files of LMCache 0.5.6 with PYTHONHASHSEED=0 for the first chunk of the tokens 0, 1, 2, ...;
# byte i of the chunk is (7 * i + 3) % 256.  Per geometry: the data file's path without suffix,
# SHA-256 of the metadata file, SHA-256 of the data file.
GOLDEN = [
    (SMALL, "79/70/org%2Fsmall-model%401%400%406e9ca116c2360103%40bfloat16",
     "aae28bcb66a9ccc7a7aaa46fa4ba4013486b269e300b7be402ffb03a0d8aea1b",
     "faddf0fcaf7e3e547a3cf9025af82a0c12478e7c21df1a1d33457ea6e53bb0bf"),
    (PAIR[1], "79/70/org%2Fsmall-model%402%401%406e9ca116c2360103%40bfloat16",
     "aae28bcb66a9ccc7a7aaa46fa4ba4013486b269e300b7be402ffb03a0d8aea1b",
     "faddf0fcaf7e3e547a3cf9025af82a0c12478e7c21df1a1d33457ea6e53bb0bf"),
    (Geometry(dtype="fp8_e4m3fn"),
     "79/70/org%2Fsmall-model%401%400%406e9ca116c2360103%40fp8_e4m3fn",
     "90db52e8f95ea675b316d33f1eaa8d004978a7130966a57d51bfe36ada4136a9",
     "086066314d83fd3daef5bc54382b7bc9ea5ed1dc6c42a0adbaa95e00f9db4ff8"),
    (MLA, "79/70/org%2Fsmall-model%401%400%406e9ca116c2360103%40half",
     "5f0959d6166ddc6f9a25831b096425806f0bf221b198ac0ca861df61817e06bc",
     "50cb2095811f64d652fe7bef2db43bb9d58c53096d76e937e7c4b7e3da9619ee"),
    (LARGE, "68/47/org%2Fsmall-model%401%400%405f05dec65811b7cc%40bfloat16",
     "fdcdb5caeea2dd32d2c919cb17a4a1fb23ddb85cc9521ae24e7c8978f0bb5bd1",
     "f98890c6b1a770bef74346bf642ba657da9f92f80d15a62c5b336d02ae722c59"),
    (Geometry(layers=32, heads=8, head_size=128, chunk_tokens=256),  # 32 MiB
     "68/47/org%2Fsmall-model%401%400%405f05dec65811b7cc%40bfloat16",
     "659c112fcb4f679453f5d2fc605fbdc8585e8c63d0b1aeff7b0c9a6f010445f8",
     "edc213900c3de5474dad738d57a6e85404b26a63a9d44b46dd2f9c5e11481bbc"),
]


def content(path):
    with open(path, "rb") as f:
        return f.read()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Golden(OnGds):
    def test_files_equal_the_recorded_files_of_lmcache(self):
        for geometry, *golden in GOLDEN:
            pattern = bytes((7 * i + 3) % 256 for i in range(256))
            data = pattern * (geometry.chunk_bytes // 256)
            for mover in MOVERS:
                lmcache = self.lmcache(geometry, mover=mover)
                keys = theirs.keys(geometry, range(geometry.chunk_tokens))
                lmcache.put(keys, [data])
                path = lmcache.path(keys[0])
                with self.subTest(geometry=geometry, mover=mover):
                    self.assertTrue(content(path) == content(path + METADATA) + data)
                    self.assertEqual(
                        [os.path.relpath(path, self.folder).removesuffix(DATA),
                         sha256(content(path + METADATA)), sha256(content(path))], golden)


class WhatLMCacheWrites(OnGds):
    def test_is_found_and_returned_and_counted_as_unverified(self):
        for geometry in (SMALL, MLA, LARGE):
            for mover in MOVERS:
                with self.subTest(geometry=geometry, mover=mover):
                    self.check_found(geometry, {}, mover=mover)

    def test_is_found_with_every_type(self):
        for dtype in DTYPES:
            for mla in (False, True):
                with self.subTest(dtype=dtype, mla=mla):
                    self.check_found(Geometry(dtype=dtype, mla=mla), {})

    def test_is_found_by_an_engine_that_was_open_before(self):
        self.check_found(SMALL, {}, early=True)
        self.check_found(SMALL, dict(directory=self.several("abc")), early=True, device=2)

    @unittest.skipUnless(theirs.have_vllm(), "sha256_cbor comes from vLLM")
    def test_is_found_under_its_sha256_cbor_hash(self):
        self.check_found(SMALL, {}, "sha256_cbor")

    def test_is_found_under_names_that_are_escaped(self):
        for model in MODELS:
            with self.subTest(model=model):
                self.check_found(dataclasses.replace(SMALL, model=model), {})

    test_with_tags_is_found_under_these_tags_only = (
        test_files.WhatLMCacheWrites.test_with_tags_is_found_under_these_tags_only)

    def test_with_hashes_of_both_signs_is_found(self):
        tokens, keys, chunks, _ = self.stored(chunks=32)
        self.assertEqual({key.chunk_hash < 0 for key in keys}, {False, True})
        self.assertEqual(self.kvtier().get(tokens), chunks)

    def test_is_refused_when_unverified_chunks_are(self):
        tokens, _, _, _ = self.stored()
        kvtier = self.kvtier(refuse_unverified="true")
        self.assertEqual(kvtier.lookup(tokens), 0)
        self.assertTrue(all(s < 0 for s in kvtier.load(tokens, 3)))

    def test_of_another_length_is_a_miss(self):
        tokens, _, _, _ = self.stored()
        other = dataclasses.replace(SMALL, layers=4)
        self.assertEqual(self.kvtier(other).lookup(tokens), 0)

    test_of_another_geometry_is_a_miss_that_stays = (
        test_files.WhatLMCacheWrites.test_of_another_geometry_is_a_miss_that_stays)

    def test_is_in_the_directory_of_its_gpu(self):
        several, tokens, chunks = self.several("abc"), self.tokens(SMALL, 3), []
        # Open both back ends before the first put.  If LMCache's scan sees a subdirectory in one
        # directory, LMCache does not create the subdirectory in the other directory, and the
        # put fails.
        lmcaches = [self.lmcache(geometry, directory=several) for geometry in PAIR]
        for geometry, lmcache in zip(PAIR, lmcaches):
            lmcache.scanned()
            chunks.append(self.chunks(geometry, 3))
            lmcache.put(theirs.keys(geometry, tokens), chunks[-1])
            own = os.path.join(self.folder, "ab"[geometry.rank])
            self.assertEqual(len(self.files(own)), 3)
        for geometry in PAIR:
            kvtier = self.kvtier(geometry, directory=several)
            self.assertEqual(kvtier.get(tokens), chunks[geometry.rank])

    def test_is_found_in_another_directory_too(self):
        several = self.several("abcd")
        for device in range(6):
            tokens, _, chunks, paths = self.stored(directory=several, device=device)
            self.assertTrue(paths[0].startswith(
                os.path.join(self.folder, "abcd"[device % 4])))
            for sharding in ("by_gpu", "by_local_rank"):
                kvtier = self.kvtier(directory=several, gds_path_sharding=sharding)
                with self.subTest(device=device, sharding=sharding):
                    self.assertEqual(kvtier.get(tokens), chunks)
                kvtier.engine.close()

    def test_counts_and_is_evicted_with_its_metadata(self):
        limit = 20 * (LARGE.chunk_bytes + 2 * HEADER_BYTES)
        _, _, _, old_paths = self.stored(LARGE, 16)
        kvtier = self.kvtier(LARGE, max_gds_size=limit / 2**30)
        for seed in range(3):
            tokens = self.tokens(LARGE, 6)
            chunks = kvtier.store(tokens, seed)
            self.assertEqual(kvtier.get(tokens), chunks)
        data, about = self.files(), self.files(suffix=DATA + METADATA)
        self.assertLessEqual(sum(os.path.getsize(path) for found in (data, about)
                                 for path in found.values()), limit)
        self.assertGreater(kvtier.counters()["evicted_chunks"], 0)
        self.assertIn(False, map(os.path.exists, old_paths))
        self.assertEqual({name + METADATA for name in data}, set(about))

    def test_is_found_without_its_metadata(self):
        """LMCache does not find a data file without metadata file."""
        tokens, keys, chunks, paths = self.stored()
        os.unlink(paths[1] + METADATA)
        lmcache = self.lmcache()
        self.assertEqual(lmcache.scanned(), {keys[0], keys[2]})
        self.assertEqual(lmcache.contains(keys), [True, False, True])
        self.assertEqual(self.kvtier().get(tokens), chunks)


class WhatKvtierWrites(OnGds):
    def check(self, geometry, mover="posix", algorithm="builtin", heads_first=False):
        tokens = self.tokens(geometry, 5, spare=3)
        early = self.lmcache(geometry, mover=mover)
        early.scanned()
        kvtier = self.kvtier(geometry, heads_first=heads_first,
                             pre_caching_hash_algorithm=algorithm)
        chunks = kvtier.store(tokens, self.random.randrange(2**32))
        keys = theirs.keys(geometry, tokens, algorithm)
        late = self.lmcache(geometry, mover=mover)
        self.assertLessEqual(set(keys), late.scanned())
        for lmcache in (early, late):
            self.assertEqual(lmcache.contains(keys), [True] * 5)
            self.assertEqual(lmcache.get(keys), chunks)
            self.assertEqual(lmcache.get_each(keys), chunks)
        self.assertEqual(kvtier.get(tokens), chunks)
        self.assertEqual(kvtier.counters()["unverified_chunks"], 0)

    def test_is_found_by_a_scan_and_by_a_lookup_of_lmcache(self):
        for geometry in (SMALL, MLA, LARGE):
            for mover in MOVERS:
                for heads_first in (False, True):
                    with self.subTest(geometry=geometry, mover=mover,
                                      heads_first=heads_first):
                        self.check(geometry, mover, heads_first=heads_first)

    @unittest.skipUnless(theirs.have_vllm(), "sha256_cbor comes from vLLM")
    def test_is_found_under_its_sha256_cbor_hash(self):
        self.check(SMALL, algorithm="sha256_cbor")

    def test_is_found_under_names_that_are_escaped(self):
        for model in MODELS:
            with self.subTest(model=model):
                self.check(dataclasses.replace(SMALL, model=model))

    def test_is_not_stored_under_names_too_long_for_a_file(self):
        """The name of the data file fits, the longer name of the metadata file does not."""
        geometry = dataclasses.replace(SMALL, model="x" * 190)
        tokens, kvtier = self.tokens(SMALL, 3), self.kvtier(geometry)
        kvtier.store(tokens, 1)
        self.assertEqual(kvtier.counters()["store_failed"], 3)
        self.assertEqual(kvtier.lookup(tokens), 0)
        self.assertEqual(self.files(suffix=""), {})

    def test_with_tags_is_found_by_lmcache(self):
        tokens = self.tokens(SMALL, 3)
        chunks = self.kvtier().store(tokens, 1, tags="user%x")
        keys = theirs.keys(SMALL, tokens, "builtin", {"lmcache.tag.user": "x"})
        lmcache = self.lmcache()
        self.assertEqual(lmcache.scanned(), set(keys))
        self.assertEqual(lmcache.get(keys), chunks)

    def test_has_lmcaches_names_and_bytes(self):
        """kvtier's files have LMCache's names and bytes, and more fields within __metadata__."""
        for number, dtype in enumerate(DTYPES):
            for mla in (False, True):
                geometry = Geometry(dtype=dtype, mla=mla)
                folders = [f"{self.folder}/{who}{number}{mla}" for who in ("we", "they")]
                tokens = self.tokens(geometry, 4)
                chunks = self.kvtier(geometry, directory=folders[0]).store(tokens, 1)
                self.lmcache(geometry, directory=folders[1]).put(
                    theirs.keys(geometry, tokens), chunks)
                mine, their = map(self.files, folders)
                with self.subTest(geometry=geometry):
                    self.assertEqual(set(mine), set(their))
                    for name, path in mine.items():
                        self.compare(path, their[name])
                    self.assertEqual(set(self.files(folders[0], METADATA)),
                                     set(self.files(folders[1], METADATA)))

    def compare(self, mine, their):
        ours_, theirs_ = content(mine), content(their)
        self.assertTrue(ours_[HEADER_BYTES:] == theirs_[HEADER_BYTES:])
        self.assertEqual(ours_[:HEADER_BYTES], content(mine + METADATA))
        self.assertEqual(ours_[:8], theirs_[:8])
        text = ours_[8:HEADER_BYTES].decode()
        self.assertEqual(json.loads(text)["kvcache"]["__metadata__"]["lmcache_version"],
                         "1")
        plain = re.sub(r'("__metadata__": \{"lmcache_version": "1")[^}]*\}', r"\1}",
                       text).rstrip(" ")
        self.assertEqual(plain, theirs_[8:HEADER_BYTES].decode().rstrip(" "))

    def test_has_the_path_of_lmcache(self):
        """LMCache supports only by_gpu; with by_local_rank LMCache's start raises ValueError."""
        several, tokens = self.several("abc"), self.tokens(SMALL, 4)
        for geometry in PAIR:
            chunks = self.kvtier(geometry, directory=several).store(tokens, 1)
            lmcache = self.lmcache(geometry, directory=several)
            keys = theirs.keys(geometry, tokens)
            self.assertEqual([os.path.exists(lmcache.path(key)) for key in keys],
                             [True] * 4)
            self.assertEqual(lmcache.contains(keys), [True] * 4)
            self.assertEqual(lmcache.get(keys), chunks)
        with self.assertRaises(ValueError):
            self.lmcache(directory=several, gds_path_sharding="by_local_rank")

    def test_by_local_rank_is_found_by_lmcache(self):
        several, tokens = self.several("abcd"), self.tokens(SMALL, 9)
        for geometry in PAIR:
            kvtier = self.kvtier(geometry, directory=several,
                                 gds_path_sharding="by_local_rank")
            chunks = kvtier.store(tokens, 1)
            keys = theirs.keys(geometry, tokens)
            lmcache = self.lmcache(geometry, directory=several)
            self.assertLessEqual(set(keys), lmcache.scanned())
            self.assertEqual(lmcache.get(keys), chunks)

    def test_is_all_that_lmcache_scans(self):
        tokens = self.tokens(SMALL, 4)
        self.kvtier().store(tokens, 1)
        opaque = self.kvtier(opaque=True)
        opaque.store(tokens, 1)
        self.assertEqual(opaque.lookup(tokens), 4)
        self.assertEqual(self.lmcache().scanned(), set(theirs.keys(SMALL, tokens)))

    test_is_verified_after_a_restart = (
        test_disk.WhatKvtierWrites.test_is_verified_after_a_restart)


class PartialChunks(OnGds):
    """Both programs run with save_unfull_chunk."""

    def each(self, check):
        for geometry in (SMALL, MLA, LARGE):
            for n in (1, geometry.block_tokens, geometry.chunk_tokens - 1):
                with self.subTest(geometry=geometry, n=n):
                    check(geometry, self.tokens(geometry, 3, spare=n))

    def kvtier(self, *args, **more):
        return super().kvtier(*args, save_unfull_chunk="true", **more)

    def test_of_lmcache_are_found_and_returned(self):
        def check(geometry, tokens):
            tail = len(tokens) % geometry.chunk_tokens * geometry.token_bytes
            chunks = self.chunks(geometry, 3) + [self.random.randbytes(tail)]
            keys = theirs.keys(geometry, tokens, partial=True)
            self.lmcache(geometry).put(keys, chunks)
            kvtier = self.kvtier(geometry)
            self.assertEqual(kvtier.get(tokens), chunks)
            self.assertEqual(kvtier.counters()["unverified_chunks"], 4)
            self.assertEqual(kvtier.lookup(tokens[:-1]), 3)
        self.each(check)

    def test_of_kvtier_are_found_and_returned_by_lmcache(self):
        def check(geometry, tokens):
            kvtier = self.kvtier(geometry)
            chunks = kvtier.store(tokens, self.random.randrange(2**32))
            keys = theirs.keys(geometry, tokens, partial=True)
            lmcache = self.lmcache(geometry)
            self.assertLessEqual(set(keys), lmcache.scanned())
            self.assertEqual(lmcache.get(keys), chunks)
            lose_index(self.folder)
            again = self.kvtier(geometry)
            self.assertEqual(again.get(tokens), chunks)
            self.assertEqual(again.counters()["unverified_chunks"], 0)
        self.each(check)

    def test_cut_to_fewer_tokens_are_misses(self):
        tokens = self.tokens(SMALL, 3, spare=5)
        kvtier = self.kvtier()
        chunks = kvtier.store(tokens, 1)
        path = self.lmcache().path(theirs.keys(SMALL, tokens, partial=True)[3])
        os.truncate(path, os.path.getsize(path) - SMALL.token_bytes)
        found = kvtier.load(tokens, 4)
        self.assertEqual(found[:3], chunks[:3])
        self.assertLess(found[3], 0)
        self.assertEqual(kvtier.lookup(tokens), 3)


class Together(OnGds):
    test_both_write_and_read_equal_chunks_concurrently = (
        test_files.Together.test_both_write_and_read_equal_chunks_concurrently)

    def test_chunks_evicted_by_kvtier_are_a_miss_for_lmcache(self):
        limit = 20 * (LARGE.chunk_bytes + 2 * HEADER_BYTES)
        kvtier = self.kvtier(LARGE, max_gds_size=limit / 2**30)
        old, other, new = (self.tokens(LARGE, 8) for _ in range(3))
        first = kvtier.store(old, 1)
        open_before = self.lmcache(LARGE)
        open_before.scanned()
        self.assertEqual(open_before.get(theirs.keys(LARGE, old)), first)
        kvtier.store(other, 2)
        second = kvtier.store(new, 3)
        self.assertGreater(kvtier.counters()["evicted_chunks"], 0)
        opened_now = self.lmcache(LARGE)
        opened_now.scanned()
        for lmcache in (open_before, opened_now):
            lmcache.contains(theirs.keys(LARGE, old + new))
            found = lmcache.get_each(theirs.keys(LARGE, old))
            self.assertIn(None, found)
            for mine, their in zip(first, found):
                self.assertIn(their, (None, mine))
            self.assertEqual(lmcache.contains(theirs.keys(LARGE, old)),
                             [one is not None for one in found])
            lmcache.contains(theirs.keys(LARGE, new))
            self.assertEqual(lmcache.get_each(theirs.keys(LARGE, new)), second)
        # LMCache creates each directory once: kvtier must keep the directories of evicted files.
        open_before.put(theirs.keys(LARGE, old), first)
        self.assertEqual(open_before.get(theirs.keys(LARGE, old)), first)

    def test_kvtier_overwrites_unusable_files(self):
        tokens, keys, _, _ = self.stored()
        kvtier = self.kvtier(refuse_unverified="true")
        chunks = kvtier.store(tokens, 1)
        lmcache = self.lmcache()
        lmcache.scanned()
        self.assertEqual(lmcache.get(keys), chunks)
        self.assertEqual(kvtier.get(tokens), chunks)

    def test_lmcache_overwrites_chunks_of_kvtier(self):
        tokens = self.tokens(SMALL, 3)
        kvtier = self.kvtier()
        chunks = kvtier.store(tokens, 1)
        self.assertEqual(kvtier.get(tokens), chunks)
        for data in (chunks, self.chunks(SMALL, 3)):
            before = kvtier.counters()["unverified_chunks"]
            self.lmcache().put(theirs.keys(SMALL, tokens), data)
            self.assertEqual(kvtier.get(tokens), data)
            self.assertEqual(kvtier.counters()["unverified_chunks"], before + 3)
        self.assertEqual(kvtier.counters()["load_corrupt"], 0)

    def test_leftovers_of_a_killed_lmcache_are_a_miss(self):
        """LMCache derives the names of temporary files from the final names."""
        tokens, keys, chunks, paths = self.stored()
        unfinished = [paths[1] + ".tmp0123abcd", paths[1] + METADATA + ".tmp0123abcd",
                      paths[2] + METADATA + ".tmp4567cdef"]
        for path in unfinished:
            os.rename(path.rpartition(".tmp")[0], path)
        os.unlink(paths[2])
        self.assertEqual(self.kvtier().get(tokens), chunks[:1])
        self.assertEqual(list(map(os.path.exists, unfinished)), [True] * 3)
        self.pass_time(unfinished, 2 * 3600)
        self.assertEqual(self.kvtier().get(tokens), chunks[:1])
        self.gone(unfinished)

    def test_metadata_without_data_is_a_miss_and_is_removed(self):
        """LMCache reports a hit for the chunk, but cannot load the chunk."""
        tokens, keys, chunks, paths = self.stored()
        os.unlink(paths[1])
        lmcache = self.lmcache()
        lmcache.scanned()
        self.assertEqual(lmcache.contains(keys), [True] * 3)
        self.assertEqual(lmcache.get(keys), [chunks[0], None, chunks[2]])
        self.pass_time([paths[1] + METADATA], 120)
        self.assertEqual(self.kvtier().get(tokens), chunks[:1])
        self.gone([paths[1] + METADATA])
        self.assertEqual(lmcache.contains(keys), [True, False, True])

    def pass_time(self, paths, seconds):
        """Set the files' times to `seconds` ago, and start kvtier without an index."""
        for path in paths:
            os.utime(path, times=(time.time() - seconds,) * 2)
        shutil.rmtree(self.folder + "/.kvtier", ignore_errors=True)

    def gone(self, paths):
        """Wait for the end of the background scan, which deletes the files."""
        deadline = time.monotonic() + theirs.TIMEOUT_S
        while any(map(os.path.exists, paths)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class Damaged(OnGds):
    test_a_file_of_kvtier_cut_anywhere_is_a_miss = (
        test_disk.Damaged.test_a_file_of_kvtier_cut_anywhere_is_a_miss)
    test_a_file_of_lmcache_cut_in_half_is_a_miss = (
        test_disk.Damaged.test_a_file_of_lmcache_cut_in_half_is_a_miss)
    test_a_file_of_kvtier_cut_or_changed_is_a_miss = (
        test_disk.Damaged.test_a_file_of_kvtier_cut_or_changed_is_a_miss)
    test_a_file_deleted_under_the_index_is_a_miss = (
        test_disk.Damaged.test_a_file_deleted_under_the_index_is_a_miss)

    def test_a_file_of_lmcache_cut_under_an_open_engine_is_a_miss(self):
        for n_bytes in (HEADER_BYTES + SMALL.chunk_bytes // 2, HEADER_BYTES, 100, 0):
            tokens, _, chunks, paths = self.stored()
            kvtier = self.kvtier()
            self.assertEqual(kvtier.lookup(tokens), 3)
            os.truncate(paths[1], n_bytes)
            with self.subTest(n_bytes=n_bytes):
                self.check_damaged(kvtier, tokens, chunks[0], paths[1])

    def test_a_contradicting_header_of_lmcache_is_a_miss(self):
        for was, is_ in ((b'"BF16"', b'"F32" '), (b"[2, 3, 16, 16]", b"[2, 3, 8, 16] "),
                         (b'version": "1"', b'version": "2"'), (b"kvcache", b"kvcach3"),
                         (b"[0, 3072]", b"[0, 3071]"), (b"}}}", b"}}["),
                         (b"\xf8\x0f", b"\xf8\xff")):
            tokens, _, chunks, paths = self.stored()
            data = content(paths[1])
            self.assertIn(was, data[:HEADER_BYTES])
            with open(paths[1], "wb") as f:
                f.write(data.replace(was, is_, 1))
            with self.subTest(now=is_):
                found = self.kvtier().get(tokens)
                self.assertEqual([one for one in found if isinstance(one, bytes)],
                                 chunks[:1])

    def test_absent_directories_are_made(self):
        several = self.several(("deep/er", "deep/est"))
        tokens = self.tokens(LARGE, 3)
        kvtier = self.kvtier(LARGE, directory=several)
        self.assertTrue(all(map(os.path.isdir, several.split(","))))
        chunks = kvtier.store(tokens, 1)
        self.assertEqual(kvtier.get(tokens), chunks)


class Isolation(OnGds, test_files.Isolation):
    """The only identity in a file of LMCache is the key text, which is the file's name."""


if __name__ == "__main__":
    unittest.main()
