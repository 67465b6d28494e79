# SPDX-License-Identifier: Apache-2.0
"""kvtier through its Python binding, over paged KV in host memory."""
import ctypes
import os
import random
import struct
import select
import sys
import time
from array import array

import numpy

if "KVTIER_LIBRARY" not in os.environ:
    os.environ["KVTIER_LIBRARY"] = os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "..", "build",
        "libkvtier.so")
sys.path.insert(0, os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

from kvtier import _lib  # noqa: E402
from kvtier.vllm_model import View  # noqa: E402

FORMAT_2LTD, FORMAT_MLA = 2, 3
BLOCKS = 64
TIMEOUT_S = 60


class Memory:
    """Paged KV of an engine in host memory.

    The order of dimensions is [kv, layer, block, token, head], with heads_first [kv, layer,
    block, head, token]; each element has head_bytes bytes.
    """

    def __init__(self, geometry, heads_first=False):
        self.geometry = g = geometry
        self.heads_first = heads_first
        inner = ((g.n_heads, g.block_tokens) if heads_first
                 else (g.block_tokens, g.n_heads))
        self.bytes = numpy.zeros((g.n_kv, g.layers, BLOCKS, *inner, g.head_bytes),
                                 numpy.uint8)

    def fill(self, seed):
        self.bytes[...] = numpy.random.default_rng(seed).integers(
            0, 256, self.bytes.shape, numpy.uint8)

    def chunk(self, blocks, n_tokens):
        """Return the first n_tokens tokens of `blocks` as bytes in LMCache's order."""
        g = self.geometry
        pieces = self.bytes[:, :, list(blocks)]
        if self.heads_first:
            pieces = pieces.swapaxes(3, 4)
        tokens = pieces.reshape(g.n_kv, g.layers, len(blocks) * g.block_tokens, -1)
        return tokens[:, :, :n_tokens].tobytes()

    def view(self):
        g, strides = self.geometry, self.bytes.strides
        bases = [self.bytes[kv, layer].ctypes.data
                 for kv in range(g.n_kv) for layer in range(g.layers)]
        base = (ctypes.c_void_p * len(bases))(*bases)
        token, head = (strides[4], strides[3]) if self.heads_first \
            else (strides[3], strides[4])
        return base, _lib.KvView(
            base=ctypes.cast(base, ctypes.POINTER(ctypes.c_void_p)),
            n_kv=g.n_kv, n_blocks=BLOCKS, block_stride=strides[2],
            head_stride=head, token_stride=token, null_block=-1)


class Kvtier:
    """An engine in both roles.

    directory: one path, or several paths separated by commas; settings: configuration keys,
    which override the keys chosen here.
    """

    def __init__(self, directory, geometry, heads_first=False, opaque=False,
                 **settings):
        self.geometry = g = geometry
        self.random = random.Random(1)
        given = dict(chunk_size=g.chunk_tokens, local_cpu="false",
                     max_local_cpu_size=0.0625, blocking_timeout_secs=TIMEOUT_S,
                     lookup_timeout_ms=TIMEOUT_S * 1000,
                     remote_url="fs://localhost:0" + directory)
        given.update(settings)
        self.partial = given.get("save_unfull_chunk") == "true"
        self.config = _lib.Config(settings=["%s=%s" % pair
                                            for pair in given.items()])
        group = _lib.Group(
            kind=_lib.GROUP_FULL, block_tokens=g.block_tokens, n_layers=g.layers,
            n_heads=g.n_heads, head_bytes=g.head_bytes, layers=b"layers",
            format=_lib.FORMAT_OPAQUE if opaque else
            FORMAT_MLA if g.mla else FORMAT_2LTD,
            block_bytes=g.chunk_bytes // g.chunk_tokens * g.block_tokens //
            g.layers if opaque else 0, layout=b"test" if opaque else b"")
        model = _lib.Model(name=g.model.encode(), fingerprint=b"test",
                           kv_dtype=g.dtype.encode(), world_size=g.world_size,
                           rank=g.rank)
        self.engine = _lib.Engine(self.config, _lib.ROLE_BOTH, [group], model)
        self.memory = Memory(g, heads_first)
        if opaque:
            bytes_ = self.opaque = numpy.zeros(
                (g.layers, BLOCKS, group.block_bytes), numpy.uint8)
            self.engine.set_view(
                0, View([b.ctypes.data for b in bytes_], 1, group.block_bytes, 0, 0,
                        _lib.MEMORY_HOST, 0), BLOCKS, -1)
        else:
            base, view = self.memory.view()
            self._keep = base
            _lib._check(_lib.lib().kvt_engine_set_view(
                self.engine.handle, 0, ctypes.byref(view)))

    def close(self):
        self.engine.close()
        self.config.close()

    def counters(self):
        return dict(zip((c[0] for c in _lib.counters()), self.engine.counters()))

    def seq(self, tokens, **extra):
        return self.engine.seq(array("i", tokens), **extra)

    def wide_names(self, tokens, **extra):
        """Return the 256-bit hash of each chunk of `tokens`, as four 64-bit words.

        Older LMCache releases have such hashes.  The result includes a partial chunk.
        """
        seq = self.seq(tokens, **extra)
        raw = seq.chunks(0, -(-len(tokens) // self.geometry.chunk_tokens))
        seq.free()
        return [struct.unpack_from("<4Q", raw, i + 16)
                for i in range(0, len(raw), _lib.CHUNK_BYTES)]

    def names(self, tokens, **extra):
        """Return the signed 64-bit hashes that name the chunks of `tokens`."""
        return [first - 2**64 if first >= 2**63 else first
                for first, *_ in self.wide_names(tokens, **extra)]

    def _sizes(self, tokens):
        """Return the number of tokens of each chunk that the engine stores."""
        size = self.geometry.chunk_tokens
        sizes = [size] * (len(tokens) // size)
        if self.partial and len(tokens) % size:
            sizes.append(len(tokens) % size)
        return sizes

    def _blocks(self, sizes):
        """Choose random distinct blocks for chunks of `sizes` tokens; return a list per chunk."""
        counts = [-(-n // self.geometry.block_tokens) for n in sizes]
        ids = self.random.sample(range(BLOCKS), sum(counts))
        return [[ids.pop(0) for _ in range(n)] for n in counts]

    def _io(self, seq, blocks, tags):
        flat = array("i", [b for chunk in blocks for b in chunk])
        return [(0, seq.chunks(0, len(blocks)), flat.tobytes(), tags)]

    def store(self, tokens, seed, **extra):
        """Store random KV for the chunks of `tokens`; return the bytes of each chunk."""
        sizes = self._sizes(tokens)
        blocks = self._blocks(sizes)
        self.memory.fill(seed)
        seq = self.seq(tokens, **extra)
        deadline = time.monotonic() + TIMEOUT_S
        while True:  # a full pool drops chunks: repeat the store
            before = self.counters()["store_dropped"]
            self.engine.store(self._io(seq, blocks, extra.get("tags")))
            self.engine.flush(TIMEOUT_S * 1000)
            if self.counters()["store_dropped"] == before:
                break
            if time.monotonic() > deadline:
                raise TimeoutError("kvtier drops chunks for ever")
        seq.free()
        return [self.memory.chunk(b, n) for b, n in zip(blocks, sizes)]

    def lookup(self, tokens, **extra):
        """Return the number of chunks in a lookup's hit; a partial chunk counts."""
        seq = self.seq(tokens, **extra)
        deadline = time.monotonic() + TIMEOUT_S
        while (hit := self.engine.lookup(seq, 0, len(tokens))) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("kvtier does not answer a lookup")
            time.sleep(0.001)
        self.engine.release(seq)
        seq.free()
        return -(-hit // self.geometry.chunk_tokens)

    def load(self, tokens, n, **extra):
        """Load the first n chunks; return the bytes or the negative errno of each chunk."""
        sizes = self._sizes(tokens)[:n]
        blocks = self._blocks(sizes)
        self.memory.bytes[...] = 0
        seq = self.seq(tokens, **extra)
        load = self.engine.load(self._io(seq, blocks, extra.get("tags")))
        fd = _lib.lib().kvt_engine_eventfd(self.engine.handle)
        done = []
        while not done:
            if not select.select([fd], [], [], TIMEOUT_S)[0]:
                raise TimeoutError("kvtier does not finish a load")
            done = self.engine.poll()
        status = [load.status(0, i) for i in range(n)]
        load.free()
        seq.free()
        return [s or self.memory.chunk(b, tokens_in)
                for s, b, tokens_in in zip(status, blocks, sizes)]

    def get(self, tokens, **extra):
        """Load the chunks of a lookup's hit; return the values of load()."""
        return self.load(tokens, self.lookup(tokens, **extra), **extra)


class Op(_lib._Sized):
    """struct kvt_op of kvtier.h."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("kind", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("key", ctypes.c_char_p),
                ("buf", ctypes.c_void_p),
                ("bytes", ctypes.c_uint64), ("user", ctypes.c_void_p),
                ("status", ctypes.c_int), ("found", ctypes.c_uint32),
                ("found_bytes", ctypes.c_uint64), ("tokens", ctypes.c_uint32),
                ("id", ctypes.c_uint8 * 16), ("why", ctypes.c_char * 320)]


class Store:
    """A store of kvtier.h (kvt_store_open): chunks of any length, addressed by key texts."""
    GET = 2

    def __init__(self, **settings):
        self.config = _lib.Config(settings=["%s=%s" % pair
                                            for pair in settings.items()])
        self.handle = ctypes.c_void_p()
        _lib._check(_lib.lib().kvt_store_open(
            self.config.handle, ctypes.byref(self.handle)))

    def close(self):
        _lib.lib().kvt_store_close(self.handle)
        self.config.close()

    def get(self, key, room=1 << 24):
        """Return the bytes of the chunk with this key text, or a negative errno.

        room: length of the receiving buffer in bytes.
        """
        buf = (ctypes.c_char * room)()
        op = Op(kind=self.GET, key=key.encode(), bytes=room,
                buf=ctypes.cast(buf, ctypes.c_void_p))
        _lib.lib().kvt_store_run(self.handle, ctypes.byref(op))
        return op.status or buf.raw[:op.found_bytes]
