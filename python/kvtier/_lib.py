# SPDX-License-Identifier: Apache-2.0
"""include/kvtier.h for ctypes, and one thin class for each handle.

The first call of lib() loads the library: $KVTIER_LIBRARY, else libkvtier.so beside this
file.  ctypes releases the GIL during every call, so other Python threads run while the
library copies or waits.
"""

import ctypes
import errno
import functools
import json
import os
from array import array
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)

ROLE_SCHEDULER = 1
ROLE_WORKER = 2
ROLE_BOTH = 3
GROUP_FULL = 1
GROUP_SLIDING = 2
FORMAT_OPAQUE = 1
FORMAT_2LTD = 2
FORMAT_MLA = 3
PACKING_UNKNOWN = 0
PACKING_HEADS = 1
MEMORY_HOST = 0
MEMORY_CUDA = 1
MEMORY_HIP = 2
MEDIUM_MEMORY = 1
MEDIUM_STORAGE = 2
MEDIUM_SHARED_STORAGE = 4
COUNTER_SUM = 1
CHUNK_BYTES = 56
OP_PUT = 1
OP_GET = 2
OP_STAT = 3
OP_DELETE = 4
OP_NAME = 1
FOUND_CHECKED = 1
FOUND_ID = 2


class _Sized(Structure):
    """A struct whose first field is the struct's size; __init__ fills in the size."""

    def __init__(self, **fields):
        super().__init__(struct_size=sizeof(type(self)), **fields)


class ConfigSources(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("file", c_char_p),
        ("environment", POINTER(c_char_p)),
        ("connector_json", c_char_p),
        ("settings", POINTER(c_char_p)),
        ("strict", c_int),
    ]


class Model(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("fingerprint", c_char_p),
        ("kv_dtype", c_char_p),
        ("world_size", c_uint32),
        ("rank", c_uint32),
    ]


class Group(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("window_tokens", c_uint32),
        ("block_tokens", c_uint32),
        ("format", c_uint32),
        ("n_layers", c_uint32),
        ("n_heads", c_uint32),
        ("head_bytes", c_uint32),
        ("block_bytes", c_uint64),
        ("layout", c_char_p),
        ("layers", c_char_p),
        ("replicated", c_uint32),
        ("packing", c_uint32),
    ]


class EngineParams(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("config", c_void_p),
        ("role", c_uint32),
        ("n_groups", c_uint32),
        ("groups", POINTER(Group)),
        ("model", POINTER(Model)),
        ("instance", c_char_p),
        ("local_ranks", c_uint32),
        ("staging_bytes", c_uint64),
        ("n_stages", c_uint32),
    ]


class KvView(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("base", POINTER(c_void_p)),
        ("n_kv", c_uint32),
        ("n_blocks", c_uint32),
        ("block_stride", c_int64),
        ("head_stride", c_int64),
        ("token_stride", c_int64),
        ("null_block", c_int32),
        ("memory", c_uint32),
        ("device", c_int32),
    ]


class MmItem(Structure):
    _fields_ = [
        ("id", c_char_p),
        ("first_token", c_uint64),
        ("n_tokens", c_uint64),
    ]


class SeqExtra(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lora", c_char_p),
        ("cache_salt", c_char_p),
        ("mm", POINTER(MmItem)),
        ("n_mm", c_size_t),
        ("tags", c_char_p),
    ]


class Chunk(Structure):
    _fields_ = [
        ("prefix", c_uint8 * 16),
        ("name_hash", c_uint64 * 4),
        ("n_tokens", c_uint32),
        ("flags", c_uint32),
    ]


class ChunkRange(Structure):
    _fields_ = [
        ("group", c_uint32),
        ("n_chunks", c_uint32),
        ("first_chunk", c_uint64),
    ]


class GroupIo(Structure):
    _fields_ = [
        ("group", c_uint32),
        ("n_chunks", c_uint32),
        ("chunks", c_void_p),
        ("blocks", c_void_p),
        ("n_blocks", c_size_t),
        ("tags", c_char_p),
        ("ttl_seconds", c_uint32),
    ]


class Op(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("key", c_char_p),
        ("buf", c_void_p),
        ("bytes", c_uint64),
        ("user", c_void_p),
        ("status", c_int),
        ("found", c_uint32),
        ("found_bytes", c_uint64),
        ("tokens", c_uint32),
        ("id", c_uint8 * 16),
        ("why", c_char * 320),
        ("tier", c_uint32),
        ("format", c_uint32),
        ("dtype", c_uint32),
        ("dims", c_uint32 * 4),
        ("expires_ns", c_int64),
    ]


class CounterInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("unit", c_char_p),
        ("text", c_char_p),
        ("kind", c_uint32),
    ]


# name of the C struct -> class; a test compares sizes and offsets with C's.
STRUCTS = {
    "kvt_config_sources": ConfigSources,
    "kvt_model": Model,
    "kvt_group": Group,
    "kvt_engine_params": EngineParams,
    "kvt_kv_view": KvView,
    "kvt_mm_item": MmItem,
    "kvt_seq_extra": SeqExtra,
    "kvt_chunk": Chunk,
    "kvt_chunk_range": ChunkRange,
    "kvt_group_io": GroupIo,
    "kvt_op": Op,
    "kvt_counter_info": CounterInfo,
}

_PROTOTYPES = {
    "kvt_version": (c_char_p,),
    "kvt_last_error": (c_char_p,),
    "kvt_config_open": (c_int, POINTER(ConfigSources), POINTER(c_void_p)),
    "kvt_config_free": (None, c_void_p),
    "kvt_config_json": (c_void_p, c_void_p),
    "kvt_free": (None, c_void_p),
    "kvt_store_open": (c_int, c_void_p, POINTER(c_void_p)),
    "kvt_store_close": (None, c_void_p),
    "kvt_store_submit": (c_int, c_void_p, POINTER(POINTER(Op)), c_size_t),
    "kvt_store_poll": (c_size_t, c_void_p, POINTER(POINTER(Op)), c_size_t),
    "kvt_store_eventfd": (c_int, c_void_p),
    "kvt_engine_open": (c_int, POINTER(EngineParams), POINTER(c_void_p)),
    "kvt_engine_close": (None, c_void_p),
    "kvt_engine_chunk_tokens": (c_uint32, c_void_p),
    "kvt_engine_set_stream": (c_int, c_void_p, c_void_p),
    "kvt_engine_set_view": (c_int, c_void_p, c_uint32, POINTER(KvView)),
    "kvt_seq_new": (
        c_int, c_void_p, c_void_p, c_size_t, POINTER(SeqExtra),
        POINTER(c_void_p),
    ),
    "kvt_seq_from_chunks": (
        c_int, c_void_p, c_void_p, c_size_t, c_char_p, POINTER(c_void_p),
    ),
    "kvt_seq_tokens": (c_uint64, c_void_p),
    "kvt_seq_append": (c_int, c_void_p, c_void_p, c_size_t),
    "kvt_seq_chunks": (c_int, c_void_p, c_size_t, c_size_t, c_void_p),
    "kvt_seq_free": (None, c_void_p),
    "kvt_seq_in_memory": (None, c_void_p, c_size_t, c_size_t, c_void_p),
    "kvt_engine_lookup": (
        c_int, c_void_p, c_void_p, c_uint64, c_uint64, POINTER(c_uint64),
    ),
    "kvt_engine_wanted": (c_size_t, c_void_p, c_void_p, POINTER(ChunkRange)),
    "kvt_engine_begin_load": (None, c_void_p, c_void_p),
    "kvt_engine_note_prefill": (None, c_void_p, c_uint64, c_uint64, c_int64),
    "kvt_seq_skipped_tokens": (c_uint64, c_void_p),
    "kvt_engine_media": (c_int, c_void_p, POINTER(GroupIo), c_void_p),
    "kvt_engine_end_pins": (None, c_void_p),
    "kvt_engine_pin": (c_int, c_void_p, POINTER(GroupIo), c_uint32, c_void_p),
    "kvt_engine_release": (None, c_void_p, c_void_p),
    "kvt_engine_prefetch": (c_int, c_void_p, POINTER(GroupIo), c_size_t),
    "kvt_engine_store": (c_int, c_void_p, POINTER(GroupIo), c_size_t),
    "kvt_engine_flush": (c_int, c_void_p, c_int64),
    "kvt_engine_load": (
        c_int, c_void_p, POINTER(GroupIo), c_size_t, c_uint64,
        POINTER(c_void_p),
    ),
    "kvt_engine_poll": (c_size_t, c_void_p, POINTER(c_void_p), c_size_t),
    "kvt_engine_eventfd": (c_int, c_void_p),
    "kvt_load_cancel": (None, c_void_p),
    "kvt_load_cookie": (c_uint64, c_void_p),
    "kvt_load_status": (c_int, c_void_p, c_size_t, c_size_t),
    "kvt_load_free": (None, c_void_p),
    "kvt_engine_reset": (c_int, c_void_p, c_char_p),
    "kvt_n_counters": (c_size_t,),
    "kvt_counter": (POINTER(CounterInfo), c_size_t),
    "kvt_engine_counters": (None, c_void_p, POINTER(c_uint64), c_size_t),
}


def library_path():
    """Return the expected path of libkvtier.so."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libkvtier.so")
    return os.environ.get("KVTIER_LIBRARY") or here


@functools.lru_cache(maxsize=None)
def lib():
    """Return the library with prototypes set; raise OSError if the library cannot be
    loaded."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as e:
        raise OSError(
            "kvtier: cannot load %s (%s); install the kvtier package or point "
            "KVTIER_LIBRARY at a libkvtier.so" % (path, e)
        ) from e
    for name, (result, *arguments) in _PROTOTYPES.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


def _bytes(text):
    """Return a text as bytes for C, or None.  ValueError: the text has a NUL character."""
    if text is None:
        return None
    if "\0" in text:
        raise ValueError("kvtier: the text %.160r has a NUL character" % text)
    return text.encode("utf-8", "surrogateescape")


def _texts(texts):
    """Return a list of texts as an array for C that ends with NULL."""
    items = (c_char_p * (len(texts) + 1))(*map(_bytes, texts))
    return ctypes.cast(items, POINTER(c_char_p))


def error(rc, sentence):
    """Return the exception for a negative errno: ValueError for -EINVAL, else OSError."""
    text = "kvtier: " + (sentence.decode("utf-8", "replace") or os.strerror(-rc))
    return ValueError(text) if rc == -errno.EINVAL else OSError(-rc, text)


def _check(rc):
    if rc < 0:
        raise error(rc, lib().kvt_last_error())


def version():
    return lib().kvt_version().decode()


@functools.lru_cache(maxsize=None)
def counters():
    """[(name, unit, text, kind)] of every counter, in the library's order."""
    n = lib().kvt_n_counters()
    infos = [lib().kvt_counter(i).contents for i in range(n)]
    return [(i.name.decode(), i.unit.decode(), i.text.decode(), i.kind)
            for i in infos]


class Config:
    """struct kvt_config: the settings of all sources.  environment: ["NAME=value"] instead
    of the process's environment."""

    def __init__(self, connector_json=None, settings=(), file=None,
                 environment=None):
        sources = ConfigSources(
            file=_bytes(file),
            connector_json=_bytes(connector_json),
            settings=_texts(settings),
            environment=None if environment is None else _texts(environment),
        )
        self.handle = c_void_p()
        _check(lib().kvt_config_open(ctypes.byref(sources),
                                     ctypes.byref(self.handle)))

    def values(self):
        """{key: effective value}; secrets are "***"."""
        text = lib().kvt_config_json(self.handle)
        if not text:
            raise MemoryError("kvtier: no memory for the configuration's text")
        try:
            settings = json.loads(ctypes.string_at(text))
        finally:
            lib().kvt_free(text)
        return {key: setting.get("value") for key, setting in settings.items()}

    def close(self):
        handle, self.handle = self.handle, None
        if handle:
            lib().kvt_config_free(handle)


class Seq:
    """struct kvt_seq: the hashed tokens of one request."""

    def __init__(self, handle, tags=None):
        self.handle = handle
        self.tags = tags

    def n_tokens(self):
        return lib().kvt_seq_tokens(self.handle)

    def append(self, tokens):
        """Append tokens, an array('i')."""
        address, n = tokens.buffer_info()
        _check(lib().kvt_seq_append(self.handle, address, n))

    def chunks(self, first, n):
        """Return n chunks, starting with chunk number `first`, CHUNK_BYTES bytes each.  The
        last chunk may be partial."""
        out = ctypes.create_string_buffer(n * CHUNK_BYTES)
        if n:
            _check(lib().kvt_seq_chunks(self.handle, first, n, out))
        return out.raw

    def in_memory(self, first, n):
        """Return for each of n chunks of the last lookup's hit: 1 if the chunk is in host
        memory, else 0."""
        out = ctypes.create_string_buffer(n)
        lib().kvt_seq_in_memory(self.handle, first, n, out)
        return out.raw

    def skipped_tokens(self):
        """Return the stored tokens that the last lookup's hit leaves out because the
        computation is faster than the load."""
        return lib().kvt_seq_skipped_tokens(self.handle)

    def free(self):
        handle, self.handle = self.handle, None
        if handle:
            lib().kvt_seq_free(handle)


class Load:
    """struct kvt_load: one load, in flight or done."""

    def __init__(self, handle, ios):
        self.handle = handle
        self.ios = ios

    def cancel(self):
        lib().kvt_load_cancel(self.handle)

    def status(self, io, chunk):
        return lib().kvt_load_status(self.handle, io, chunk)

    def free(self):
        handle, self.handle = self.handle, None
        if handle:
            lib().kvt_load_free(handle)


def _group_ios(ios):
    """Convert [(group, chunks, blocks, tags)], or [(group, chunks, blocks, tags, ttl)] for
    stores, with chunks as bytes and blocks as int32 in bytes, for C.  Return the array, and a
    list of objects that must live as long as C uses the array."""
    out = (GroupIo * len(ios))()
    keep = []
    for c, (group, chunks, blocks, tags, *ttl) in zip(out, ios):
        chunk_words = array("q")
        chunk_words.frombytes(chunks)
        block_ids = array("i")
        block_ids.frombytes(blocks)
        keep += (chunk_words, block_ids)
        c.group = group
        c.n_chunks = len(chunks) // CHUNK_BYTES
        c.chunks = chunk_words.buffer_info()[0]
        c.blocks, c.n_blocks = block_ids.buffer_info()
        c.tags = _bytes(tags)
        c.ttl_seconds = ttl[0] if ttl else 0
    return out, keep


class Engine:
    """struct kvt_engine.  groups: [Group], of a scheduler stage by stage; model: Model;
    instance: the name by which the processes of one engine find each other's host memory;
    n_stages: stages of pipeline parallelism."""

    def __init__(self, config, role, groups, model, instance=None, local_ranks=0,
                 staging_bytes=0, n_stages=1):
        n_groups = len(groups) // (n_stages if role & ROLE_SCHEDULER else 1)
        array_of_groups = (Group * len(groups))(*groups)
        params = EngineParams(
            config=config.handle,
            role=role,
            n_groups=n_groups,
            groups=ctypes.cast(array_of_groups, POINTER(Group)),
            model=ctypes.pointer(model),
            instance=_bytes(instance),
            local_ranks=local_ranks,
            staging_bytes=staging_bytes,
            n_stages=n_stages,
        )
        self.handle = c_void_p()
        self._loads = {}
        self._ranges = (ChunkRange * n_groups)()
        self._next_cookie = 1
        _check(lib().kvt_engine_open(ctypes.byref(params),
                                     ctypes.byref(self.handle)))
        self.chunk_tokens = lib().kvt_engine_chunk_tokens(self.handle)

    def set_view(self, group, view, n_blocks, null_block):
        """view: as vllm_model.View."""
        addresses = (c_void_p * len(view.bases))(*view.bases)
        view = KvView(
            base=ctypes.cast(addresses, POINTER(c_void_p)),
            n_kv=view.n_kv,
            n_blocks=n_blocks,
            block_stride=view.block_stride,
            head_stride=view.head_stride,
            token_stride=view.token_stride,
            null_block=null_block,
            memory=view.memory,
            device=view.device,
        )
        _check(lib().kvt_engine_set_view(self.handle, group, ctypes.byref(view)))

    def set_stream(self, stream):
        """Set the CUDA or HIP stream, by address, on which vLLM reads and writes KV."""
        _check(lib().kvt_engine_set_stream(self.handle, stream))

    def seq(self, tokens, lora=None, cache_salt=None, mm=(), tags=None):
        """tokens: array('i') or array('I'); mm: [(id, first token, number of tokens)]."""
        items = (MmItem * len(mm))(*((_bytes(i), at, n) for i, at, n in mm))
        extra = SeqExtra(
            lora=_bytes(lora),
            cache_salt=_bytes(cache_salt),
            mm=ctypes.cast(items, POINTER(MmItem)) if mm else None,
            n_mm=len(mm),
            tags=_bytes(tags),
        )
        address, n = tokens.buffer_info()
        handle = c_void_p()
        _check(lib().kvt_seq_new(self.handle, address, n, ctypes.byref(extra),
                                 ctypes.byref(handle)))
        return Seq(handle, tags)

    def seq_from_chunks(self, chunks, tags=None):
        """Return a sequence for a worker's lookups.  chunks: all chunks of a sequence of the
        scheduler, as bytes."""
        words = array("q")
        words.frombytes(chunks)
        handle = c_void_p()
        _check(lib().kvt_seq_from_chunks(
            self.handle, words.buffer_info()[0], len(chunks) // CHUNK_BYTES, _bytes(tags),
            ctypes.byref(handle)))
        return Seq(handle, tags)

    def lookup(self, seq, have_tokens, max_tokens):
        """Return the number of tokens that can be loaded, or None: not known yet, repeat
        the lookup later."""
        hit = c_uint64()
        rc = lib().kvt_engine_lookup(self.handle, seq.handle, have_tokens,
                                     max_tokens, ctypes.byref(hit))
        if rc == -errno.EAGAIN:
            return None
        _check(rc)
        return hit.value

    def wanted(self, seq):
        """After a lookup that returned None, or that skipped tokens: return the chunks that
        the workers should prefetch, [(group, first chunk, number of chunks)].  Each chunk is
        returned once."""
        n = lib().kvt_engine_wanted(self.handle, seq.handle, self._ranges)
        return [(r.group, r.first_chunk, r.n_chunks) for r in self._ranges[:n]]

    def begin_load(self, seq):
        """Note that the workers begin to load the hit of the last lookup."""
        lib().kvt_engine_begin_load(self.handle, seq.handle)

    def note_prefill(self, n_tokens, sum_positions, ns):
        """Note that the model has computed tokens of prompts in ns nanoseconds."""
        lib().kvt_engine_note_prefill(self.handle, n_tokens, sum_positions, ns)

    def release(self, seq):
        lib().kvt_engine_release(self.handle, seq.handle)

    def media(self, group, chunks, tags):
        """Return for each chunk the media in which all ranks have the chunk: MEDIUM_*."""
        out = ctypes.create_string_buffer(len(chunks) // CHUNK_BYTES)
        io, keep = _group_ios([(group, chunks, b"", tags)])
        _check(lib().kvt_engine_media(self.handle, io, out))
        del keep
        return out.raw

    def pin(self, group, chunks, tags, seconds):
        """Pin chunks.  Return for each chunk the medium of the pin, MEDIUM_*; 0: no pin."""
        out = ctypes.create_string_buffer(len(chunks) // CHUNK_BYTES)
        io, keep = _group_ios([(group, chunks, b"", tags)])
        _check(lib().kvt_engine_pin(self.handle, io, seconds, out))
        del keep
        return out.raw

    def end_pins(self):
        """End the pins whose time is over."""
        lib().kvt_engine_end_pins(self.handle)

    def prefetch(self, ios):
        """Read chunks into host memory; ios as for load(), without blocks."""
        out, keep = _group_ios(ios)
        _check(lib().kvt_engine_prefetch(self.handle, out, len(out)))
        del keep

    def store(self, ios):
        out, keep = _group_ios(ios)
        _check(lib().kvt_engine_store(self.handle, out, len(out)))
        del keep

    def load(self, ios):
        """Start a load; poll() returns the load when it has ended."""
        out, keep = _group_ios(ios)
        cookie = self._next_cookie
        self._next_cookie += 1
        handle = c_void_p()
        _check(lib().kvt_engine_load(self.handle, out, len(out), cookie,
                                     ctypes.byref(handle)))
        del keep
        load = self._loads[cookie] = Load(handle, ios)
        return load

    def poll(self):
        """Return the loads that have ended since the last call."""
        if not self._loads:
            return ()
        handles = (c_void_p * len(self._loads))()
        n = lib().kvt_engine_poll(self.handle, handles, len(handles))
        return [self._loads.pop(lib().kvt_load_cookie(handle))
                for handle in handles[:n]]

    def flush(self, timeout_ms):
        _check(lib().kvt_engine_flush(self.handle, timeout_ms))

    def reset(self, fingerprint=None):
        """Give other weights to the sequences made from now on: the weights of the
        fingerprint, or new random weights."""
        _check(lib().kvt_engine_reset(self.handle, _bytes(fingerprint)))

    def counters(self):
        """Return the values in the order of the module's counters()."""
        n = len(counters())
        out = (c_uint64 * n)()
        lib().kvt_engine_counters(self.handle, out, n)
        return list(out)

    def close(self):
        handle, self.handle = self.handle, None
        if handle:
            lib().kvt_engine_close(handle)
