# SPDX-License-Identifier: Apache-2.0
"""Fakes for the tests: a kvtier engine in memory, and vLLM's base classes.

The fake engine has the methods of kvtier._lib.Engine.  The fake base classes are the names
that the connector's modules import from vLLM; stub_vllm() installs the base classes only if
vLLM is not installed.
"""

import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import os
import sys
import types
from array import array

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "..", "..", "python")
if importlib.util.find_spec("kvtier") is None:
    sys.path.insert(0, PYTHON)

from kvtier import _lib  # noqa: E402
from kvtier._lib import CHUNK_BYTES, Chunk  # noqa: E402

HAVE_VLLM = importlib.util.find_spec("vllm") is not None


def have_library():
    """Return True if libkvtier.so can be loaded."""
    try:
        _lib.lib()
    except OSError:
        return False
    return True


class ConnectorBase:
    """The methods of vLLM's KVConnectorBase_V1 that vLLM's worker calls."""

    def __init__(self, vllm_config, role, kv_cache_config):
        self._connector_metadata = None

    def bind_connector_metadata(self, meta):
        self._connector_metadata = meta

    def clear_connector_metadata(self):
        self._connector_metadata = None


def stub_vllm():
    """Put the connector's base classes into sys.modules, unless vLLM is installed."""
    if HAVE_VLLM:
        return
    v1 = "vllm.distributed.kv_transfer.kv_connector.v1"
    parts = v1.split(".")
    for n in range(1, len(parts) + 1):
        name = ".".join(parts[:n])
        sys.modules.setdefault(name, types.ModuleType(name))
    base = sys.modules[v1 + ".base"] = types.ModuleType(v1 + ".base")
    base.KVConnectorMetadata = type("KVConnectorMetadata", (), {})
    base.KVConnectorBase_V1 = ConnectorBase
    base.KVConnectorRole = types.SimpleNamespace(SCHEDULER=0, WORKER=1)
    base.KVConnectorTransferResults = dataclasses.make_dataclass(
        "KVConnectorTransferResults",
        [(name, set, dataclasses.field(default_factory=set)) for name in (
            "finished_sending", "finished_recving", "failed_recving")])
    metrics = sys.modules[v1 + ".metrics"] = types.ModuleType(v1 + ".metrics")
    metrics.KVConnectorStats = dataclasses.make_dataclass(
        "KVConnectorStats", [("data", dict, dataclasses.field(default_factory=dict))])
    metrics.KVConnectorPromMetrics = type("KVConnectorPromMetrics", (), {})


COUNTERS = [("hit_tokens", "tokens", "Tokens that lookups promised.", 1),
            ("load_failed", "chunks", "Chunks whose reading failed.", 1),
            ("loads_pending", "chunks", "Chunks being read.", 2)]


STORAGE = _lib.MEDIUM_STORAGE  # medium of Store.chunks


class Store:
    """The storage of all fake engines of a test, and settings of the fake lookups."""

    def __init__(self, chunk_tokens):
        self.chunk_tokens = chunk_tokens
        self.chunks = {}  # (group, prefix) -> bytes
        self.pins = {}  # key -> seconds
        self.resets = 0
        self.answer = None  # fixed result of each lookup (negative: None); None: look up
        self.lookups = 0
        self.seqs = 0
        self.leased = set()
        self.memory = None  # keys of chunks in host memory; None: lookups ignore memory
        # patience and shared apply if memory is a set.
        self.patience = 100  # lookups that may yet return None for missing chunks
        self.shared = True  # after the wait, promise only chunks in host memory
        self.lost = set()  # keys of chunks that another host has deleted
        self.prefetch_works = True
        self.missed = 0  # chunks that loads did not find

    def config(self, **kwargs):
        return Config(self)


class Config:
    extra = {}

    def __init__(self, store):
        self.store = store

    def values(self):
        return dict({"chunk_size": self.store.chunk_tokens,
                     "model_fingerprint": "f",
                     "pin_timeout_sec": 300}, **self.extra)

    def close(self):
        pass


def chunk_tokens(chunk):
    """Return the number of tokens of a kvt_chunk."""
    return Chunk.from_buffer_copy(chunk).n_tokens


def root(weights="", lora=None, cache_salt=None, mm=(), tags=None):
    """Return the first input of a sequence's chain of digests."""
    return repr((weights, lora, cache_salt, tuple(mm), tags))


@functools.lru_cache(1 << 16)
def next_chunk(prefix, tokens, i):
    """Return the prefix digest and the kvt_chunk of chunk i.

    prefix: digest of the tokens before the chunk.  tokens: bytes of the chunk's tokens.
    """
    prefix = hashlib.sha256(prefix + tokens).digest()[:16]
    return prefix, bytes(Chunk(prefix=(ctypes.c_uint8 * 16)(*prefix),
                               name_hash=(ctypes.c_uint64 * 4)(i),
                               n_tokens=len(tokens) // 4))


class Seq:
    def __init__(self, store, tokens, root):
        self.store = store
        self.tokens = array("i", tokens)
        self.root = hashlib.sha256(root.encode()).digest()[:16]
        store.seqs += 1

    def append(self, tokens):
        self.tokens.extend(tokens)

    def chunks(self, first, n):
        size, prefix, out = self.store.chunk_tokens, self.root, []
        assert first + n <= -(-len(self.tokens) // size)
        for i in range(first + n):
            tokens = self.tokens[i * size:(i + 1) * size].tobytes()
            prefix, chunk = next_chunk(prefix, tokens, i)
            out.append(chunk)
        return b"".join(out[first:])

    def in_memory(self, first, n):
        there = {key[-1] for key in self.store.memory or ()}
        heads = self.chunks(first, n)
        return bytes(heads[i * CHUNK_BYTES:][:16] in there for i in range(n))

    def free(self):
        self.store.seqs -= 1
        self.store.leased.discard(self)


class Load:
    def __init__(self, ios):
        self.ios = ios
        self.result = {}
        self.cancelled = False

    def cancel(self):
        self.cancelled = True

    def status(self, io, chunk):
        return self.result[io, chunk]

    def free(self):
        self.result = None


class Engine:
    """A fake of kvtier._lib.Engine.  A load writes no block before the test calls complete()."""

    opened = []

    def __init__(self, config, role, groups, model, instance=None, local_ranks=0,
                 staging_bytes=0, n_stages=1):
        self.store_ = config.store
        self.instance = instance
        self.prefetched = []
        self.waits_for = {}
        self.partial = config.values().get("save_unfull_chunk", False)
        self.chunk_tokens = config.store.chunk_tokens
        self.role = role
        self.groups = groups
        self.model = model
        self.views = {}
        self.null_block = 0
        self.loading = []
        self.done = []
        self.counted = [0, 0]
        self.calls = 0
        self.weights = ""
        self.before_store = lambda ios: None
        self.before_scatter = lambda load: None
        Engine.opened.append(self)

    def set_view(self, group, view, n_blocks, null_block):
        self.views[group] = (view.bases, n_blocks, view.block_stride,
                             self.groups[group].block_bytes)
        self.null_block = null_block

    def set_stream(self, stream):
        self.stream = stream

    def seq(self, tokens, lora=None, cache_salt=None, mm=(), tags=None):
        return Seq(self.store_, tokens,
                   root(self.weights, lora, cache_salt, mm, tags))

    def lookup(self, seq, have_tokens, max_tokens):
        store = self.store_
        store.lookups += 1
        if store.answer is not None:
            return store.answer if store.answer >= 0 else None
        hit, needed = self._longest(seq, have_tokens, max_tokens, store.chunks)
        if store.memory is not None:
            missing = [(group, i) for group, i, key in needed
                       if key not in store.memory]
            if missing and store.patience:
                store.patience -= 1
                self.waits_for.setdefault(seq, {}).setdefault(hit, missing)
                store.leased.add(seq)
                return None
            if missing and store.shared:
                hit, _ = self._longest(seq, have_tokens, max_tokens, store.memory)
        if hit:
            store.leased.add(seq)
            self.counted[0] += hit - have_tokens
        return hit

    def _longest(self, seq, have_tokens, max_tokens, there):
        """Return the longest hit (tokens) and its chunks [(group, chunk number, key)].

        there: keys of the chunks that may be part of the hit.
        """
        size = self.store_.chunk_tokens
        longest = min(max_tokens, len(seq.tokens))
        most = -(-longest // size) if self.partial else longest // size
        heads = seq.chunks(0, most)
        for n in range(most, have_tokens // size, -1):
            end = min(n * size, longest)
            needed = self._needed(heads, n, end, have_tokens)
            if end > have_tokens and all(key in there for _, _, key in needed):
                return end, needed
        return 0, []

    def _needed(self, heads, n, end, have):
        size, needed = self.store_.chunk_tokens, []
        for group, about in enumerate(self.groups):
            first = have // size
            if about.kind == 2:
                first = max(first, max(0, end - about.window_tokens + 1) // size)
            needed += ((group, i, self._key(group, heads[i * CHUNK_BYTES:]))
                       for i in range(first, n))
        return needed

    def _key(self, group, chunk):
        return group, chunk[:16]

    def wanted(self, seq):
        """Return ranges of chunks that cover the missing chunks of the hits that lookups wait for.

        A range is (group, first chunk, count).  Each missing chunk is returned in one call only.
        """
        ranges = []
        for hit, missing in self.waits_for.get(seq, {}).items():
            self.waits_for[seq][hit] = []
            for group in sorted({group for group, _ in missing}):
                numbers = [i for other, i in missing if other == group]
                ranges.append((group, min(numbers),
                               max(numbers) + 1 - min(numbers)))
        return ranges

    def media(self, group, chunks, tags):
        store, out = self.store_, []
        for at in range(0, len(chunks), CHUNK_BYTES):
            key = self._key(group, chunks[at:])
            out.append((key in (store.memory or ())) * _lib.MEDIUM_MEMORY
                       + (key in store.chunks) * STORAGE)
        return bytes(out)

    def pin(self, group, chunks, tags, seconds):
        for at in range(0, len(chunks), CHUNK_BYTES):
            key = self._key(group, chunks[at:])
            if key in self.store_.chunks:
                self.store_.pins[key] = seconds
        return bytes(medium & STORAGE for medium in self.media(group, chunks, tags))

    def end_pins(self):
        pass

    def prefetch(self, ios):
        assert all(not blocks for _, _, blocks, _ in ios)
        self.prefetched += ios
        for group, chunks, _, _ in ios if self.store_.prefetch_works else ():
            for at in range(0, len(chunks), CHUNK_BYTES):
                key = self._key(group, chunks[at:])
                if key in self.store_.lost:
                    self.store_.chunks.pop(key, None)
                elif key in self.store_.chunks:
                    self.store_.memory.add(key)

    def release(self, seq):
        assert isinstance(seq, Seq)
        self.store_.leased.discard(seq)

    def _blocks(self, io):
        """Return [(chunk, block ids of the chunk)] for an io."""
        group, chunks, blocks, *_ = io
        ids = array("i")
        ids.frombytes(blocks)
        size, found, at = self.groups[group].block_tokens, [], 0
        for i in range(0, len(chunks), CHUNK_BYTES):
            n = -(-chunk_tokens(chunks[i:]) // size)
            found.append((chunks[i:i + CHUNK_BYTES], ids[at:at + n]))
            at += n
        assert len(ids) == at, (len(ids), at)
        return found

    def _is_real(self, block):
        return block >= 0 and block != self.null_block

    def _address(self, group, block):
        bases, n_blocks, stride, _ = self.views[group]
        assert self._is_real(block) and block < n_blocks
        return [base + block * stride for base in bases]

    def store(self, ios):
        self.calls += 1
        self.before_store(ios)
        for io in ios:
            size = self.groups[io[0]].block_bytes
            for chunk, blocks in self._blocks(io):
                if all(map(self._is_real, blocks)):
                    key = self._key(io[0], chunk)
                    self.store_.lost.discard(key)
                    if self.store_.memory is not None:
                        self.store_.memory.add(key)
                    self.store_.chunks.setdefault(
                        key, b"".join(
                            ctypes.string_at(at, size) for block in blocks
                            for at in self._address(io[0], block)))

    def load(self, ios):
        load = Load(ios)
        self.loading.append(load)
        return load

    def complete(self, load, fail=lambda io, chunk: False):
        self.loading.remove(load)
        self.done.append(load)
        self.before_scatter(load)
        for at, io in enumerate(load.ios):
            for number, (chunk, blocks) in enumerate(self._blocks(io)):
                key = self._key(io[0], chunk)
                found = None if key in self.store_.lost else (
                    self.store_.chunks.get(key))
                self.store_.missed += found is None
                bad = load.cancelled or found is None or fail(at, number)
                load.result[at, number] = -5 if bad else 0
                self.counted[1] += bool(bad)
                if not bad:
                    self._scatter(io[0], blocks, found)

    def _scatter(self, group, blocks, found):
        size, at = self.groups[group].block_bytes, 0
        for block in blocks:
            is_real = self._is_real(block)
            for address in (self._address(group, block) if is_real
                            else self.views[group][0]):
                if is_real:
                    ctypes.memmove(address, found[at:at + size], size)
                at += size

    def poll(self):
        self.calls += 1
        done, self.done = self.done, []
        return done

    def flush(self, timeout_ms):
        pass

    def reset(self, fingerprint=None):
        self.store_.resets += 1
        self.weights = fingerprint or "random %d" % self.store_.resets

    def counters(self):
        self.calls += 1
        return self.counted + [sum(
            len(io[1]) // CHUNK_BYTES for load in self.loading for io in load.ios)]

    def close(self):
        pass


def install(lib, store):
    """Replace Engine, Config and counters in the module kvtier._lib with the fakes.

    Return a function that restores the module.
    """
    saved = lib.Engine, lib.Config, lib.counters
    Engine.opened = []
    lib.Engine, lib.counters = Engine, lambda: COUNTERS
    lib.Config = store.config

    def undo():
        lib.Engine, lib.Config, lib.counters = saved
    return undo
