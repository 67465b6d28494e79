# SPDX-License-Identifier: Apache-2.0
"""Base classes of the file tests.  Each test has a temporary directory, and both programs open
the directory until the test ends."""
import contextlib
import errno
import glob
import os
import random
import shutil
import tempfile
import unittest

import ours
import theirs
from geometry import CUT, SMALL


def lose_index(folder):
    """Delete a directory's index: the next engine starts there without a known chunk."""
    for name in ("lock", "snapshot"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, ".kvtier", name))


class Case(unittest.TestCase):
    """Helpers for a directory that both programs use.

    A subclass defines lmcache() and kvtier(), which open the programs, and file(), the path of
    a chunk's file.
    """
    header_bytes = 0   # length of a file's header
    beside = ("",)     # suffixes of a chunk's files, relative to file()

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = random.Random(3)

    def tokens(self, geometry, chunks, spare=0):
        """Return random tokens for `chunks` whole chunks, and `spare` tokens more."""
        return [self.random.randint(0, 150000)
                for _ in range(chunks * geometry.chunk_tokens + spare)]

    def chunks(self, geometry, n):
        return [self.random.randbytes(geometry.chunk_bytes) for _ in range(n)]

    def several(self, names):
        """Return the paths of the named directories, separated by commas."""
        return ",".join(os.path.join(self.folder, name) for name in names)

    def opened(self, program):
        self.addCleanup(program.close)
        return program

    def stored(self, geometry=SMALL, chunks=3, **more):
        """Store chunks with LMCache; return the tokens, keys, chunks and file paths."""
        tokens, data = self.tokens(geometry, chunks), self.chunks(geometry, chunks)
        keys = theirs.keys(geometry, tokens)
        lmcache = self.lmcache(geometry, **more)
        lmcache.put(keys, data)
        return tokens, keys, data, [self.file(lmcache, key) for key in keys]

    def check_found(self, geometry, both, algorithm="builtin", early=False, **more):
        """Check that kvtier returns LMCache's chunks and counts the chunks as unverified.

        both: settings of both programs; more: settings of LMCache only; early: open kvtier, and
        look up the tokens, before LMCache writes.
        """
        tokens = self.tokens(geometry, 5, spare=3)
        chunks = self.chunks(geometry, 5)
        settings = dict(both, pre_caching_hash_algorithm=algorithm)
        if early:
            kvtier = self.kvtier(geometry, **settings)
            self.assertEqual(kvtier.lookup(tokens), 0)
        lmcache = self.lmcache(geometry, **both, **more)
        lmcache.put(theirs.keys(geometry, tokens, algorithm), chunks)
        if not early:
            kvtier = self.kvtier(geometry, **settings)
        self.assertEqual(kvtier.get(tokens), chunks)
        counters = kvtier.counters()
        self.assertEqual((counters["unverified_chunks"], counters["load_chunks"]),
                         (5, 5))

    def check_damaged(self, kvtier, tokens, first, path):
        """Check that the corrupt second chunk is a miss, is counted, and loses its files.

        first: bytes of the first chunk; path: file of the second chunk.
        """
        found = kvtier.load(tokens, 3)
        self.assertEqual(found[:2], [first, -errno.EBADMSG])
        self.assertEqual(kvtier.counters()["load_corrupt"], 1)
        for more in self.beside:
            self.assertFalse(os.path.exists(path + more))
        self.assertEqual(kvtier.lookup(tokens), 1)


    def check_cut(self, **more):
        """Check that a truncated file of kvtier is a miss.

        The lengths are around the ends of the file's parts, and multiples of 4096.
        """
        tokens = self.tokens(CUT, 1)
        writer = self.kvtier(CUT, **more)
        writer.store(tokens, 1)
        writer.engine.close()
        path, = (path for path in glob.glob(self.folder + "/**", recursive=True)
                 if path.endswith((".data", ".pt", ".safetensors")))
        if self.header_bytes < 4096 and "user.kvtier" not in os.listxattr(path):
            self.skipTest("files have no attributes here")
        saved, size = self.folder + "/saved", os.path.getsize(path)
        shutil.copy2(path, saved)  # with the extended attributes
        ends = {0, size, CUT.chunk_bytes}
        around = {end + part for end in ends for part in (0, 28, 64, 92, 4096)}
        lengths = {end + by for end in around for by in (-1, 0, 1)}
        for length in sorted(lengths | set(range(0, size, 4096))):
            if 0 <= length < size:
                shutil.copy2(saved, path)
                os.truncate(path, length)
                lose_index(self.folder)
                reader = self.kvtier(CUT, **more)
                with self.subTest(length=length, of=size):
                    self.assertEqual([one for one in reader.get(tokens)
                                      if isinstance(one, bytes)], [])
                reader.engine.close()
        shutil.copy2(saved, path)
        self.assertIsInstance(self.kvtier(CUT, **more).get(tokens)[0], bytes)


class OnFs(Case):
    """Both programs on remote_url fs://..., with or without LMCache's header."""

    def lmcache(self, geometry=SMALL, header=True, directory=None, **extra):
        return self.opened(theirs.LMCache(directory or self.folder, geometry,
                                          save_chunk_meta=header, **extra))

    def kvtier(self, geometry=SMALL, header=True, directory=None, **more):
        return self.opened(ours.Kvtier(directory or self.folder, geometry,
                                       save_chunk_meta="true" if header else "false",
                                       **more))

    def files(self):
        """Return a dictionary from name to path of the chunk files outside kvtier's directories."""
        return {os.path.basename(path): path
                for path in glob.glob(self.folder + "/*.data")}

    def file(self, lmcache, key):
        return str(lmcache.connector()._get_file_path(key))


class OnDisk(Case):
    """Both programs on local_disk."""

    def lmcache(self, geometry=SMALL, directory=None, **extra):
        return self.opened(theirs.LMCacheDisk(directory or self.folder, geometry, **extra))

    def kvtier(self, geometry=SMALL, directory=None, **more):
        given = dict(remote_url="", local_disk=directory or self.folder,
                     max_local_disk_size=1)
        return self.opened(ours.Kvtier("", geometry, **{**given, **more}))

    def file(self, lmcache, key):
        return lmcache.path(key)


class OnGds(Case):
    """Both programs on gds_path."""
    DATA, METADATA = theirs.LMCacheGds.DATA, theirs.LMCacheGds.METADATA
    header_bytes = 4096
    beside = ("", METADATA)

    def lmcache(self, geometry=SMALL, directory=None, **more):
        return self.opened(theirs.LMCacheGds(directory or self.folder, geometry, **more))

    def kvtier(self, geometry=SMALL, directory=None, **more):
        given = dict(remote_url="", gds_path=directory or self.folder, max_gds_size=1)
        return self.opened(ours.Kvtier("", geometry, **{**given, **more}))

    def files(self, directory=None, suffix=DATA):
        """Return a dictionary from name to path of the chunk files outside kvtier's directories.

        Names are relative to `directory`, which defaults to the test's directory.
        """
        top = directory or self.folder
        return {os.path.relpath(path, top): path
                for path in glob.glob(f"{top}/??/??/*{suffix}")}

    def file(self, lmcache, key):
        return lmcache.path(key)
