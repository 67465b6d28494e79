# SPDX-License-Identifier: Apache-2.0
"""What the scheduler tells its workers in one step: which chunks to load into
and to save from which blocks.  Travels pickled, in every step."""

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorWorkerMetadata,
    )
except ImportError:
    KVConnectorWorkerMetadata = object


class KVTierMetadata(KVConnectorMetadata):
    """loads: [(request id, ios)]; saves: ios; prefetches: ios, without blocks;
    cancel: give up all loads.

    ios is a list of (group, chunks, blocks, tags) with chunks as kvt_chunk
    structs and blocks as int32, both in bytes.
    """

    __slots__ = ("loads", "saves", "prefetches", "cancel")

    def __init__(self, loads=(), saves=(), prefetches=(), cancel=False):
        self.loads = loads
        self.saves = saves
        self.prefetches = prefetches
        self.cancel = cancel

    def __reduce__(self):
        if self is NOTHING:
            return "NOTHING"
        return KVTierMetadata, (self.loads, self.saves, self.prefetches,
                                self.cancel)


# The message of a step with nothing to do; unpickles to itself.
NOTHING = KVTierMetadata()


class UnusableWorker(KVConnectorWorkerMetadata):
    """A worker's report of unusable KV cache memory, without stores and loads.  A single
    report counts for all ranks."""

    def aggregate(self, other):
        return self
