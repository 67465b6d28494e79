# SPDX-License-Identifier: Apache-2.0
"""The chunks that requests used: store_policy second_use."""

from . import _lib

_CHUNK = _lib.CHUNK_BYTES


class Uses:
    """The last `most` used chunks.  Chunks are known by a hash: two chunks of one hash count
    as one, and the first use of the second is taken for a second use."""

    def __init__(self, most=1 << 16):
        self._most = most
        self._seen = {}  # hash of a chunk -> None, the least recently used first

    def note(self, chunks, tags):
        """Note a use of each chunk of `chunks`, kvt_chunk structs.  Return the number of
        leading chunks that were used before."""
        n_used, all_used = 0, True
        for at in range(0, len(chunks), _CHUNK):
            key = hash((chunks[at:at + _CHUNK], tags))
            all_used = all_used and key in self._seen
            n_used += all_used
            self._seen.pop(key, None)
            self._seen[key] = None
        while len(self._seen) > self._most:
            del self._seen[next(iter(self._seen))]
        return n_used
