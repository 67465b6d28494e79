# SPDX-License-Identifier: Apache-2.0
"""A worker's half of the connector: moves chunks between blocks and kvtier.

Runs on the worker's main thread.  A save copies the blocks of a step before the step ends;
threads of the library write the copies, and do all of loading.  KV on a device that the
library does not reach passes through vllm_staging.
"""

from . import _lib, _testhook, vllm_adapters, vllm_hosts
from .vllm_log import log
from .vllm_meta import NOTHING, Report, UnusableWorker
from .vllm_model import NULL_BLOCK, Unsupported, is_staged, views
from .vllm_staging import Staging
from .vllm_stats import Collector


def _current_stream():
    import torch

    return torch.cuda.current_stream().cuda_stream


def _device_type(kv):
    """Return the type of the device of a layer's KV, one tensor or several tensors."""
    if isinstance(kv, (list, tuple)) and kv:
        kv = kv[0]
    return getattr(getattr(kv, "device", None), "type", "cpu")


class _Loading:
    __slots__ = ("request_id", "ios", "adapter", "doomed")

    def __init__(self, request_id, ios, adapter):
        self.request_id = request_id
        self.ios = ios
        self.adapter = adapter  # (LoRARequest, digest) or None
        # The load fails in any case: the cache was reset, the request ended, or vLLM has
        # another adapter.
        self.doomed = False


class Worker:
    def __init__(self, engine, infos, n_blocks, adapters=None, staging=(0, 0),
                 rank=0):
        self._engine = engine
        self._mover = engine  # copies the blocks: the engine, or a Staging
        self._staging = staging  # bytes, and maximum seconds of a load
        self._rank = rank
        self._host = vllm_hosts.this_host()
        self._answers = None  # vllm_hosts.Answers, with several hosts
        self._infos = infos
        self._n_blocks = n_blocks
        self._adapters = adapters  # the return value of vllm_adapters.watch()
        self._ready = False
        self._stream = None  # returns the stream that uses the KV; None on a CPU
        self._loads = {}  # request id -> (_lib.Load, _Loading)
        self._refused = []  # each _Loading that could not be started
        self._bad_blocks = set()
        self._hook = _testhook.open_hook()
        self._stats = Collector(engine)

    def register(self, kv_caches):
        try:
            if is_staged(_device_type(kv_caches.get(self._infos[0].layers[0]))):
                self._stage(kv_caches)
                return
            found = views(kv_caches, self._infos, self._n_blocks)
            for group, view in enumerate(found):
                self._engine.set_view(group, view, self._n_blocks, NULL_BLOCK)
        except (Unsupported, OSError, RuntimeError, ValueError) as e:
            log.warning("kvtier: nothing is stored or loaded: %s", e)
            return
        if found[0].memory != _lib.MEMORY_HOST:
            self._stream = _current_stream
            self._hook = None  # reads blocks of host memory
        if self._hook:
            self._hook.set_views(self._infos, found)
        self._ready = True

    def _stage(self, kv_caches):
        if self._mover is not self._engine:  # vLLM has reallocated the KV
            self._mover.close()
            self._mover = self._engine
        self._mover = Staging(self._engine, self._infos, kv_caches, self._n_blocks,
                              *self._staging)
        self._hook = None  # reads blocks of host memory
        self._ready = True

    def _begin(self):
        """Prepare a store or a load."""
        self._stats.touch()
        if self._stream:
            self._engine.set_stream(self._stream())

    def start_loads(self, meta):
        if meta is NOTHING:
            return
        if meta.cancel:
            for load, loading in self._loads.values():
                loading.doomed = True
                load.cancel()
        if meta.lookups:
            self._stats.touch(ended=True)
            if self._answers is None:
                self._answers = vllm_hosts.Answers(self._engine, self._rank)
            self._answers.receive(meta.lookups)
        if meta.prefetches and self._ready:
            self._prefetch(meta.prefetches)
        for request_id, ios in meta.loads:
            adapter = meta.load_adapters.get(request_id)
            loading = _Loading(request_id, ios, adapter)
            if adapter and not vllm_adapters.may_load(self._adapters, *adapter):
                self._refused.append(loading)
            else:
                self._start(loading)

    def _prefetch(self, ios):
        self._stats.touch()
        try:
            self._engine.prefetch(ios)
        except (OSError, ValueError) as e:
            log.warning("kvtier: chunks are not read ahead: %s", e)

    def _start(self, loading):
        if self._ready:
            try:
                self._begin()
                load = self._mover.load(loading.ios)
                self._loads[loading.request_id] = (load, loading)
                return
            except (OSError, ValueError) as e:
                log.warning("kvtier: a load could not start, its prompt is "
                            "computed: %s", e)
        self._refused.append(loading)

    def save(self, meta):
        if meta is NOTHING or not self._ready:
            return
        saves = list(meta.saves)
        # The step is computed, so vLLM has loaded the step's adapters.
        for adapter, ios in meta.adapter_saves:
            if vllm_adapters.may_store(self._adapters, *adapter):
                saves += ios
        if not saves:
            return
        try:
            self._begin()
            self._mover.store(saves)
        except (OSError, ValueError) as e:
            log.warning("kvtier: chunks are not stored: %s", e)
            return
        if self._hook:
            self._hook.record("save", saves)

    def finished(self, finished_request_ids):
        """Return (ids of requests whose loads ended, ids of requests whose loads failed).
        Until then vLLM keeps the blocks, even of a request that has ended."""
        if not self._loads and not self._refused:
            return None, None
        for request_id in finished_request_ids:
            if request_id in self._loads:
                load, loading = self._loads[request_id]
                loading.doomed = True
                load.cancel()
        done, failed = set(), set()
        for loading in self._refused:
            done.add(loading.request_id)
            self._fail(loading, None, failed)
        self._refused.clear()
        for load in self._mover.poll():
            loading = self._end(load)
            done.add(loading.request_id)
            self._check(load, loading, failed)
            load.free()
        if done:
            self._stats.touch(ended=True)
        return done, failed

    def _end(self, load):
        for request_id, (mine, loading) in self._loads.items():
            if mine is load:
                del self._loads[request_id]
                return loading
        raise AssertionError("a load that was not started here")

    def _check(self, load, loading, failed):
        def good(at, chunk):
            return load.status(at, chunk) == 0

        if not loading.doomed and loading.adapter:
            loading.doomed = not vllm_adapters.ensure(self._adapters, *loading.adapter)
        if loading.doomed or not all(
                good(at, chunk) for at, io in enumerate(loading.ios)
                for chunk in range(len(io[1]) // _lib.CHUNK_BYTES)):
            self._fail(loading, None if loading.doomed else good, failed)
        if self._hook:
            self._hook.record("load", loading.ios, good)

    def _fail(self, loading, good, failed):
        """Report a failed load to vLLM, either by block or by request.

        With one full-attention group, the ids of the bad blocks let vLLM keep the earlier
        blocks.  With several groups vLLM cannot map a block to a request, and a sliding
        group has no window before a bad block: vLLM restarts the request.  Never report
        both: the second report would undo the first."""
        if len(self._infos) > 1 or self._infos[0].kind == _lib.GROUP_SLIDING:
            failed.add(loading.request_id)
            return
        per_chunk = self._infos[0].blocks_per_chunk
        for at, (_, chunks, blocks, _) in enumerate(loading.ios):
            ids = memoryview(blocks).cast("i")
            for chunk in range(len(chunks) // _lib.CHUNK_BYTES):
                if good is None or not good(at, chunk):
                    self._bad_blocks.update(
                        block for block
                        in ids[chunk * per_chunk:(chunk + 1) * per_chunk]
                        if block > NULL_BLOCK)

    def take_bad_blocks(self):
        if not self._bad_blocks:
            return set()
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def report(self, describe=False):
        """Return an UnusableWorker for the scheduler if register() failed, else a Report or
        None.  describe: the scheduler sent DESCRIBE."""
        if not self._ready:
            return UnusableWorker()
        if describe:
            return Report(places={self._rank: (self._infos, self._host)})
        loads = vllm_adapters.take_unreported()
        answers = self._answers and self._answers.take()
        return Report(loads, answers) if loads or answers else None

    def stats(self):
        return self._stats.collect()

    def shutdown(self):
        if self._answers:
            self._answers.close()
        if self._mover is self._engine or self._mover.close():
            self._engine.close()
