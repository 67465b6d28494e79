# SPDX-License-Identifier: Apache-2.0
"""KVTierConnector that records every saved and every loaded block, for engine.py.

KVTIER_BENCH_BLOCKS=PREFIX: a worker writes PREFIX.save and PREFIX.load.  Each block is a line

    <prefix digest, hex> <group> <block in its chunk> <layers> <heads> <bytes of a layer's block>

and the bytes of the block in each layer of the group.
"""
import ctypes
import os

from kvtier import _lib
from kvtier._testhook import Hook
from kvtier.connector import KVTierConnector


class _Recorder(Hook):
    def __init__(self, prefix, infos):
        self._infos = infos
        self._files = {what: open(f"{prefix}.{what}", "ab") for what in ("save", "load")}

    def record_block(self, what, head, group, number, addresses):
        info, file = self._infos[group], self._files[what]
        file.write(b"%s %d %d %d %d %d\n" % (head.encode(), group, number, len(addresses),
                                             info.n_heads, info.block_bytes))
        for address in addresses:
            file.write(ctypes.string_at(address, info.block_bytes))
        file.flush()


class RecordingConnector(KVTierConnector):
    def register_kv_caches(self, kv_caches):
        if self._worker:
            infos = self._worker._infos
            if any(info.format != _lib.FORMAT_OPAQUE for info in infos):
                raise ValueError("the KV cache has not the layout of vLLM on a CPU")
            self._worker._hook = _Recorder(os.environ["KVTIER_BENCH_BLOCKS"], infos)
        super().register_kv_caches(kv_caches)
