# SPDX-License-Identifier: Apache-2.0
"""The scheduler's message to the workers in each step, pickled: the chunks to load, the
chunks to save, and the blocks of both."""

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
    structs and blocks as int32, both in bytes; of saves (..., tags, ttl in seconds or 0).

    lookups: questions to the workers (vllm_hosts), or None.

    Of LoRA adapters: load_adapters, request id -> (LoRARequest, digest); adapter_saves:
    [((keys, digest, number of loads), ios)].  A worker follows these only if vLLM has the
    adapter with this digest.
    """

    __slots__ = ("loads", "saves", "prefetches", "cancel", "load_adapters",
                 "adapter_saves", "lookups")

    def __init__(self, loads=(), saves=(), prefetches=(), cancel=False,
                 load_adapters=None, adapter_saves=(), lookups=None):
        self.loads = loads
        self.saves = saves
        self.prefetches = prefetches
        self.cancel = cancel
        self.load_adapters = load_adapters or {}
        self.adapter_saves = adapter_saves
        self.lookups = lookups

    def __reduce__(self):
        if self is NOTHING:
            return "NOTHING"
        if self is DESCRIBE:
            return "DESCRIBE"
        return KVTierMetadata, (self.loads, self.saves, self.prefetches,
                                self.cancel, self.load_adapters,
                                self.adapter_saves, self.lookups)


# The message of a step without work.  Unpickling returns this object.
NOTHING = KVTierMetadata()

# The message of a step in which each worker describes its layers and its host.  Unpickling
# returns this object.
DESCRIBE = KVTierMetadata()


class UnusableWorker(KVConnectorWorkerMetadata):
    """A worker's report of unusable KV cache memory, without stores and loads.  A single
    report counts for all ranks."""

    def aggregate(self, other):
        return self


class Report(KVConnectorWorkerMetadata):
    """A report of workers.

    adapter_loads: LoRA adapters that vLLM has loaded since the last report, [(keys, digest or
    None)].  answers: to questions of the scheduler (vllm_hosts).  places: the answer to
    DESCRIBE, {rank: (groups of the rank's layers, as GroupInfo, and the worker's host)}.
    """

    def __init__(self, adapter_loads=(), answers=None, places=None):
        self.adapter_loads = list(adapter_loads)
        self.answers = answers or {}
        self.places = places or {}

    def aggregate(self, other):
        if isinstance(other, UnusableWorker):
            return other
        answers = dict(self.answers)
        for question, tokens in other.answers.items():
            answers[question] = {**answers.get(question, {}), **tokens}
        return Report(self.adapter_loads + other.adapter_loads, answers,
                      {**self.places, **other.places})
