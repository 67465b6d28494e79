# SPDX-License-Identifier: Apache-2.0
"""kvtier names chunks as LMCache's token database does.  run.py runs these tests with several
values of PYTHONHASHSEED, which determines the root of the hashes in both programs."""
import os
import random
import struct
import tempfile
import types
import unittest

import torch

import ours
import theirs
from geometry import SMALL, Geometry

SEED = os.environ.get("PYTHONHASHSEED")
ALGORITHMS = ("builtin", "sha256_cbor", "sha256_cbor_64bit")
INT32_MAX = 2**31 - 1


def shares(algorithm):
    """Return true if LMCache's root is equal in all processes with this PYTHONHASHSEED."""
    if algorithm == "builtin":
        return SEED not in (None, "random")
    return theirs.have_vllm()


class Keys(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.random = random.Random(7)

    def kvtier(self, geometry=SMALL, **settings):
        engine = ours.Kvtier(self.folder, geometry, **settings)
        self.addCleanup(engine.close)
        return engine

    def tokens(self, n, most=200000):
        return [self.random.randint(0, most) for _ in range(n)]

    def signed(self, keys):
        return [k.chunk_hash - 2**64 if k.chunk_hash >= 2**63 else k.chunk_hash
                for k in keys]

    def sharing(self):
        there = [a for a in ALGORITHMS if shares(a)]
        if not there:
            self.skipTest("LMCache has no fixed root here")
        return there

    def test_hashes_of_older_releases_follow_their_rule(self):
        """Older LMCache releases chain the whole digest of vLLM's hash function."""
        if not theirs.have_vllm() or SEED is None:
            self.skipTest("LMCache has no fixed root here")
        from vllm.utils.hashing import sha256_cbor

        for release, third in (("0.3.15", None), ("0.4.5", ())):
            engine = self.kvtier(Geometry(chunk_tokens=16, block_tokens=16),
                                 pre_caching_hash_algorithm="sha256_cbor",
                                 lmcache_release=release)
            for most in (20, 300, 70000, INT32_MAX):
                tokens = self.tokens(16 * 9, most)
                want, last = [], sha256_cbor(SEED)
                for at in range(0, len(tokens), 16):
                    last = sha256_cbor((last, tuple(tokens[at:at + 16]), third))
                    want.append(struct.unpack(">4Q", last))
                with self.subTest(release=release, most=most):
                    self.assertEqual(engine.wide_names(tokens), want)

    def test_hashes_of_random_tokens_are_lmcaches(self):
        for algorithm in self.sharing():
            for chunk in (1, 4, 16, 100, 256):
                g = Geometry(chunk_tokens=chunk, block_tokens=chunk)
                engine = self.kvtier(g, pre_caching_hash_algorithm=algorithm)
                for most in (20, 300, 70000, INT32_MAX):
                    tokens = self.tokens(chunk * 9 + chunk // 2, most)
                    with self.subTest(algorithm=algorithm, chunk=chunk, most=most):
                        keys = theirs.keys(g, tokens, algorithm, partial=True)
                        self.assertEqual(len(keys), 9 if chunk == 1 else 10)
                        self.assertEqual(engine.names(tokens), self.signed(keys))

    def stored_names(self):
        return {n for n in os.listdir(self.folder) if n.endswith(".data")}

    def test_names_of_files_are_lmcaches(self):
        tags = {"lmcache.tag.user": "a/b%c", "other": "x", "lmcache.tag.n": "2"}
        for algorithm in self.sharing():
            for dtype in ("half", "bfloat16", "float", "uint8", "fp8_e4m3fn"):
                g = Geometry(dtype=dtype, model="org/m.1-x", world_size=3, rank=2)
                engine = self.kvtier(g, pre_caching_hash_algorithm=algorithm)
                tokens = self.tokens(64)
                before = self.stored_names()
                engine.store(tokens, 1)
                engine.store(tokens, 1, tags="user%a/b%c@n%2")
                keys = (theirs.keys(g, tokens, algorithm) +
                        theirs.keys(g, tokens, algorithm, tags))
                names = {k.to_string().replace("/", "-SEP-") + ".data"
                         for k in keys}
                with self.subTest(algorithm=algorithm, dtype=dtype):
                    self.assertEqual(len(names), 8)
                    self.assertEqual(self.stored_names() - before, names)

    def test_placeholders_of_images_are_replaced_as_lmcache_does(self):
        try:
            from lmcache.integration.vllm.utils import (
                apply_mm_hashes_to_token_ids as replace)
        except ImportError:
            self.skipTest("LMCache's code for multimodal items needs vLLM")
        items = [("img-1", 3, 20), ("b" * 64, 30, 1), ("\u00e9", 40, 44)]
        places = [types.SimpleNamespace(offset=at, length=n) for _, at, n in items]
        for algorithm in self.sharing():
            engine = self.kvtier(pre_caching_hash_algorithm=algorithm)
            tokens = self.tokens(87)  # the last item ends in the partial chunk
            replaced = replace(torch.tensor(tokens),
                               [i for i, _, _ in items], places).tolist()
            with self.subTest(algorithm=algorithm):
                keys = theirs.keys(SMALL, replaced, algorithm, partial=True)
                self.assertEqual(engine.names(tokens, mm=items),
                                 self.signed(keys))

    def without_a_fixed_root_there_kvtier_has_one(self):
        tokens = self.tokens(64)
        if SEED == "random":
            with self.assertRaisesRegex(ValueError, "PYTHONHASHSEED|hash_seed"):
                self.kvtier()
            return
        self.assertEqual(self.kvtier().names(tokens),
                         self.kvtier(hash_seed="0").names(tokens))
        self.assertNotEqual(self.kvtier().names(tokens),
                            self.signed(theirs.keys(SMALL, tokens)))

    if not shares("builtin"):
        test_without_a_fixed_root_there_kvtier_has_one = \
            without_a_fixed_root_there_kvtier_has_one


if __name__ == "__main__":
    unittest.main()
