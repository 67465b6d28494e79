# SPDX-License-Identifier: Apache-2.0
"""For tests: write a hash of every saved or loaded block to a file.

KVTIER_TEST_BLOCK_HASHES=PREFIX appends lines to PREFIX.<pid>:

    save|load <prefix digest, hex> <group> <block in its chunk> <SHA-256>

A test compares the hashes of loaded blocks with the hashes of saved blocks.  Without the
variable open_hook() returns None, and the hook does nothing.
"""

import ctypes
import hashlib
import os
from array import array

from ._lib import CHUNK_BYTES


def open_hook():
    prefix = os.environ.get("KVTIER_TEST_BLOCK_HASHES")
    return Hook("%s.%d" % (prefix, os.getpid())) if prefix else None


class Hook:
    def __init__(self, path):
        self._file = open(path, "a", buffering=1)

    def set_views(self, infos, views):
        """views: the return value of vllm_model.views()."""
        self._groups = [
            (info.block_bytes, info.blocks_per_chunk, view.bases,
             view.block_stride) for info, view in zip(infos, views)]

    def record(self, what, ios, good=None):
        """Write the hashes of the blocks of ios; if `good` is given, only of chunks for
        which good(index of the io, index of the chunk) is true."""
        for at, (group, chunks, blocks, *_) in enumerate(ios):
            _, per_chunk, bases, stride = self._groups[group]
            ids = array("i")
            ids.frombytes(blocks)
            for chunk in range(len(chunks) // CHUNK_BYTES):
                if good is not None and not good(at, chunk):
                    continue
                mine = ids[chunk * per_chunk:(chunk + 1) * per_chunk]
                if what == "save" and min(mine) <= 0:
                    continue
                head = chunks[chunk * CHUNK_BYTES:][:16].hex()
                for number, block in enumerate(mine):
                    if block <= 0:
                        continue
                    self.record_block(what, head, group, number,
                                      [base + block * stride for base in bases])

    def record_block(self, what, head, group, number, addresses):
        """addresses: the block in each layer of the group."""
        digest = hashlib.sha256()
        for address in addresses:
            digest.update(ctypes.string_at(address, self._groups[group][0]))
        self._file.write("%s %s %d %d %s\n" % (
            what, head, group, number, digest.hexdigest()))
