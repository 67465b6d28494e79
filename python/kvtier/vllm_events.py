# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache events (kv_events_config) for the chunks in kvtier: docs/vllm.md.

The scheduler notes each chunk that a request loads or saves, with the hashes of the chunk's
blocks.  take() compares the media that hold the noted chunks with the media that were reported:
a difference is an event.  So no event is lost with a process or an index, and a late event
describes the present state.

A noted chunk is watched until no medium has held the chunk for a minute.  The number of watched
chunks is limited; beyond the limit the oldest chunks are reported as removed, and are counted.
"""

import collections
import time
from array import array

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils

from . import _lib
from .vllm_log import log

try:
    from vllm.v1.kv_cache_interface import (
        get_kv_cache_spec_kind,
        get_kv_cache_spec_sliding_window,
    )
except ImportError:
    get_kv_cache_spec_kind = None

# vLLM without this function has extra keys in the form of events.
_event_extra_keys = getattr(kv_cache_utils, "to_event_extra_keys", lambda keys: keys)

MAX_CHUNKS = 65536  # watched chunks, about 3 KB each with 16 blocks
PERIOD_S = 0.01  # take() compares at most once in this time
COMPARED = 1024  # chunks that take() compares, divided by the number of ranks
ABSENT_S = 60.0  # a noted chunk that no medium holds is watched for this time
SETTLE_S = 1.0  # after a note, idle engines continue to step for this time

_CHUNK = _lib.CHUNK_BYTES
_N_TOKENS = slice(_lib.Chunk.n_tokens.offset, _lib.Chunk.n_tokens.offset + 4)
_CPU, _STORAGE = 1, 2
_MEDIA = {_CPU: "CPU", _STORAGE: "STORAGE"}  # vLLM's names


def open_events(engine, infos, settings, vllm_config, kv_cache_config):
    """Return the Events of an engine, or None if no medium is reported."""
    storage = settings.get("kv_events_storage")
    if storage == "none" and not (settings.get("local_cpu") or settings.get("shared_cpu")):
        log.warning("kvtier: no KV events: chunks do not stay in host memory; enable local_cpu "
                    "or shared_cpu, or set kv_events_storage")
        return None
    hash_tokens = getattr(kv_cache_config, "hash_block_size", None) or min(
        info.block_tokens for info in infos)
    return Events(engine, infos, kv_cache_config.kv_cache_groups, storage, hash_tokens,
                  vllm_config.parallel_config.world_size)


def _visible(storage):
    """Return the table for bytes.translate() from media of kvt_engine_media() to reported
    media.  storage: the setting kv_events_storage."""
    reported = {"none": 0, "host": _lib.MEDIUM_STORAGE,
                "all": _lib.MEDIUM_STORAGE | _lib.MEDIUM_SHARED_STORAGE}[storage]
    return bytes((_CPU if media & _lib.MEDIUM_MEMORY else 0)
                 | (_STORAGE if media & reported else 0) for media in range(256))


def _event(kind, **fields):
    """Return an event without the fields that this vLLM lacks."""
    known = kind.__struct_fields__
    return kind(**{name: value for name, value in fields.items() if name in known})


class _Blocks:
    """The blocks of a noted chunk, as BlockStored describes blocks."""

    __slots__ = ("hashes", "parent", "tokens", "lora", "extra_keys", "absent_since")

    def __init__(self, request, hashes, parent, start, size, now):
        end = start + len(hashes) * size
        self.hashes = [kv_cache_utils.maybe_convert_block_hash(one) for one in hashes]
        self.parent = parent and kv_cache_utils.maybe_convert_block_hash(parent)
        self.tokens = array("I", request.all_token_ids[start:end])
        self.lora = getattr(request, "lora_request", None)
        self.extra_keys = None
        if self.lora or request.mm_features or request.cache_salt:
            self.extra_keys = self._extra_keys(request, start, end, size)
        self.absent_since = now

    @staticmethod
    def _extra_keys(request, start, end, size):
        found, item = [], 0
        for at in range(start, end, size):
            keys, item = kv_cache_utils.generate_block_hash_extra_keys(
                request, at, at + size, item)
            found.append(keys)
        return _event_extra_keys(found)


class _Group:
    """A KV cache group of vLLM.  number: of kvtier's group."""

    def __init__(self, number, info, spec):
        self.number, self.table = number, info.table
        self.size = info.block_tokens
        self.per_chunk = info.blocks_per_chunk
        self.about = {"group_idx": info.table}
        if get_kv_cache_spec_kind:
            self.about["kv_cache_spec_kind"] = get_kv_cache_spec_kind(spec).value
            self.about["kv_cache_spec_sliding_window"] = get_kv_cache_spec_sliding_window(spec)

    def stored(self, blocks, medium):
        lora = blocks.lora
        return _event(
            BlockStored, block_hashes=blocks.hashes, parent_block_hash=blocks.parent,
            token_ids=blocks.tokens.tolist(), block_size=self.size,
            lora_id=lora.lora_int_id if lora else None,
            lora_name=lora.lora_name if lora else None, medium=_MEDIA[medium],
            extra_keys=blocks.extra_keys, **self.about)

    def removed(self, chunks, medium):
        return _event(BlockRemoved, block_hashes=[h for blocks in chunks for h in blocks.hashes],
                      medium=_MEDIA[medium], group_idx=self.table)


class _Watch:
    """The watched chunks of a group, and of an adapter (tags), in the order of their notes."""

    def __init__(self, group, tags):
        self.group = group
        self.tags = tags
        self.by_chunk = {}  # kvt_chunk -> _Blocks
        self.chunks = bytearray()  # the keys of by_chunk
        self.blocks = []  # the values of by_chunk
        self.media = bytearray()  # reported media of each chunk
        self.next = 0  # the chunk that compare() begins with

    def add(self, chunk, blocks):
        self.by_chunk[chunk] = blocks
        self.chunks += chunk
        self.blocks.append(blocks)
        self.media.append(0)

    def compare(self, engine, visible, most, now, events):
        """Compare up to `most` chunks, append the differences to events, and return the number
        of compared chunks."""
        first, end = self.next, min(self.next + most, len(self.blocks))
        found = engine.media(self.group.number, bytes(self.chunks[first * _CHUNK:end * _CHUNK]),
                             self.tags).translate(visible)
        if found != self.media[first:end]:
            self._report(first, found, now, events)
        self.next = end
        if 0 in found:
            self.next -= self._drop_absent(first, end, now)
        if self.next >= len(self.blocks):
            self.next = 0
        return end - first

    def _report(self, first, found, now, events):
        """Report the changes of chunks from number `first` on; found: their media now."""
        stored, removed = [], {_CPU: [], _STORAGE: []}
        for i, media in enumerate(found, first):
            before, blocks = self.media[i], self.blocks[i]
            if media == before:
                continue
            for medium in _MEDIA:
                if media & medium & ~before:
                    stored.append(self.group.stored(blocks, medium))
                elif before & medium & ~media:
                    removed[medium].append(blocks)
            if not media:
                blocks.absent_since = now
        self.media[first:first + len(found)] = found
        events += [self.group.removed(chunks, medium)
                   for medium, chunks in removed.items() if chunks]
        events += stored

    def _drop_absent(self, first, end, now):
        """Stop watching chunks that no medium has held for ABSENT_S; return their number."""
        absent = [i for i in range(first, end) if not self.media[i]
                  and now - self.blocks[i].absent_since > ABSENT_S]
        end = None  # of a run of absent chunks, which leaves in one piece
        for i, next_i in zip(reversed(absent), [*reversed(absent[:-1]), None]):
            end = i + 1 if end is None else end
            if next_i != i - 1:
                self._drop(i, end)
                end = None
        return len(absent)

    def _drop(self, first, end):
        for at in range(first * _CHUNK, end * _CHUNK, _CHUNK):
            del self.by_chunk[bytes(self.chunks[at:at + _CHUNK])]
        del self.chunks[first * _CHUNK:end * _CHUNK]
        del self.blocks[first:end]
        del self.media[first:end]

    def forget(self, n, now, events):
        """Report the n oldest chunks as removed, and stop watching the chunks.  Return how many
        of the chunks were in a medium."""
        n = min(n, len(self.blocks))
        held = n - self.media[:n].count(0)
        for first in range(0, n, COMPARED):
            self._report(first, bytes(min(COMPARED, n - first)), now, events)
        self._drop(0, n)
        self.next = max(0, self.next - n)
        return held


class Events:
    """storage: the setting kv_events_storage; hash_tokens: tokens of each of a request's
    block hashes."""

    def __init__(self, engine, infos, groups, storage, hash_tokens, n_ranks):
        self._engine = engine
        # Groups with a common block table have the same blocks: the first describes them all.
        self._groups = {}
        for i, info in enumerate(infos):
            if not i or info.table != infos[i - 1].table:
                self._groups[i] = _Group(i, info, groups[info.table].kv_cache_spec)
        self._visible = _visible(storage)
        self._storage = storage != "none"
        self._hash_tokens = hash_tokens
        self._compared = max(1, COMPARED // n_ranks)
        self._watches = {}  # (group, tags) -> _Watch
        self._order = collections.deque()  # the watches; the first is compared next
        self._queue = []
        self._next = 0.0  # time of the next comparison
        self._settled = 0.0  # time until which an idle engine continues to step
        self._warned = False
        self.forgotten = 0  # chunks that left the watch because of MAX_CHUNKS

    # ----------------------------------------------------------------- notes

    def note(self, request, extra, group, first, chunks):
        """Watch chunks of a request: `chunks` has the kvt_chunk structs from chunk number
        `first` on.  extra: the request's Extra."""
        lora = getattr(request, "lora_request", None)
        if extra.tags != (lora and "lora%%%s" % lora.lora_name):
            return  # a router cannot match a client's own tags
        if group not in self._groups:
            return
        hashes = self._block_hashes(request, self._groups[group].size)
        watch = self._watches.get((group, extra.tags))
        if hashes is None:
            return
        if watch is None:
            watch = self._watches[group, extra.tags] = _Watch(self._groups[group], extra.tags)
            self._order.append(watch)
        now = time.monotonic()
        per, size = watch.group.per_chunk, watch.group.size
        whole = (per * size).to_bytes(4, "little")
        for i in range(len(chunks) // _CHUNK):
            chunk, at = chunks[i * _CHUNK:(i + 1) * _CHUNK], (first + i) * per
            if chunk[_N_TOKENS] != whole or at + per > len(hashes):
                break  # a partial chunk, or vLLM has not hashed the last tokens yet
            blocks = watch.by_chunk.get(chunk)
            if blocks is None:
                watch.add(chunk, _Blocks(request, hashes[at:at + per],
                                         hashes[at - 1] if at else None, at * size, size, now))
            else:
                blocks.absent_since = now
        self._settled = now + SETTLE_S
        self._limit(now)

    def _block_hashes(self, request, size):
        """Return vLLM's hashes of the request's blocks of this size, or None."""
        hashes, step = request.block_hashes, self._hash_tokens
        if not (request.num_prompt_tokens // step <= len(hashes)
                <= request.num_tokens // step):
            if not self._warned:
                log.warning("kvtier: no KV events for a request: vLLM has %d block hashes for %d "
                            "tokens in blocks of %d; start vLLM with --enable-prefix-caching",
                            len(hashes), request.num_tokens, step)
            self._warned = True
            return None
        if size == step:
            return hashes
        return kv_cache_utils.BlockHashListWithBlockSize(hashes, step, size)

    def _limit(self, now):
        over = sum(len(watch.blocks) for watch in self._order) - MAX_CHUNKS
        if over > 0:
            longest = max(self._order, key=lambda watch: len(watch.blocks))
            self.forgotten += longest.forget(over, now, self._queue)

    # ---------------------------------------------------------------- events

    def take(self):
        """Return the events since the last call."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PERIOD_S
            self._compare(now)
        events, self._queue = self._queue, []
        return events

    def _compare(self, now):
        left = self._compared
        for _ in range(len(self._order)):
            watch = self._order[0]
            left -= watch.compare(self._engine, self._visible, left, now, self._queue)
            if not watch.blocks:
                self._order.popleft()
                del self._watches[watch.group.number, watch.tags]
            elif watch.next == 0:
                self._order.rotate(-1)
            if left <= 0:
                break

    def has_pending(self):
        """Return True if an idle engine should step, so that vLLM takes events: vLLM takes
        events only in steps, and storage gets the last chunks after the last step.  The time
        is limited, because vLLM waits for the end before a pause, sleep or shutdown.  As vLLM's
        own events, the events of a reset wait for the next step."""
        return time.monotonic() < self._settled and (
            self._storage or any(0 in watch.media for watch in self._order))

    def reset(self):
        """Report all chunks as removed: requests have other weights from now on."""
        now = time.monotonic()
        for watch in self._order:
            watch.forget(len(watch.blocks), now, self._queue)
        self._watches.clear()
        self._order.clear()
