# SPDX-License-Identifier: Apache-2.0
"""Pins that requests ask for with pin_seconds: no process of the host evicts pinned chunks.

The server limits the pinned bytes of the engine: max_pinned_size.  The workers store chunks
after the end of a request, so Pins repeats a pin in the next steps until the chunk is stored.
"""

import collections
import heapq
import time

from . import _lib
from .vllm_log import log

_CHUNK = _lib.CHUNK_BYTES
_RETRY_S = 0.02
_IDLE_S = 2  # an idle engine steps so long after a request
_GIB = 1 << 30
_PATIENCE_S = 10  # for a store; a chunk that is not stored then was not to be stored
_MOST = 1024  # chunks of a call
MAX_SECONDS = 72000  # of a request
# A pin lasts so much longer than a request asks, so that requests one after the other do not pin
# their common chunks again each time.
_LONGER = 9 / 8  # MAX_SECONDS * _LONGER is below KVT_PIN_MAX_S


class _Wish:
    """Chunks of a group that are not pinned yet."""

    __slots__ = ("group", "tags", "chunks", "until", "give_up")

    def __init__(self, group, tags, chunks, until):
        self.group = group
        self.tags = tags
        self.chunks = chunks  # kvt_chunk structs, at most _MOST
        self.until = until
        self.give_up = time.monotonic() + _PATIENCE_S

    def keys(self, chunks):
        return [(self.group, self.tags, chunks[at:at + _CHUNK])
                for at in range(0, len(chunks), _CHUNK)]


class Pins:
    """The engine's pins.  chunk_bytes: bytes of a whole chunk of all ranks, for each group."""

    def __init__(self, engine, chunk_bytes, most_bytes):
        self._engine = engine
        self._chunk_bytes = chunk_bytes
        self._most_bytes = most_bytes
        self._bytes = 0
        self._until = {}  # (group, tags, kvt_chunk) -> end of the pin, or of the wish
        self._ends = []  # heap of (end, number, key); another end of the key is obsolete
        self._n_ends = 0
        self._wishes = collections.deque()
        self._next = self._idle_until = 0.0
        self._warned = None  # the last time

    def ask(self, pieces, tags, seconds):
        """Pin the chunks of a request: pieces are [(group, kvt_chunk structs)].  Without room
        for all of them, pin none."""
        now = time.monotonic()
        until = now + seconds * _LONGER
        self._idle_until = now + _IDLE_S
        self._expire(now)
        wishes = []
        for group, chunks in pieces:
            chunks = b"".join(key[2] for key in _Wish(group, tags, chunks, until).keys(chunks)
                              if self._until.get(key, 0) < now + seconds)
            wishes += [_Wish(group, tags, chunks[at:at + _MOST * _CHUNK], until)
                       for at in range(0, len(chunks), _MOST * _CHUNK)]
        size = sum(self._chunk_bytes[key[0]] for wish in wishes
                   for key in wish.keys(wish.chunks) if key not in self._until)
        if self._bytes + size > self._most_bytes:
            self._warn(now, size)
            return
        self._bytes += size
        for wish in wishes:
            for key in wish.keys(wish.chunks):
                self._until[key] = until
                self._n_ends += 1
                heapq.heappush(self._ends, (until, self._n_ends, key))
        self._wishes += wishes

    def _warn(self, now, size):
        if self._warned is None or now - self._warned > 60:
            self._warned = now
            log.warning("kvtier: %.3g GiB of a request are not pinned: pins already take %.3g "
                        "GiB, and max_pinned_size is %.3g GiB; raise max_pinned_size, or let "
                        "clients ask for fewer pin_seconds", size / _GIB, self._bytes / _GIB,
                        self._most_bytes / _GIB)

    def _expire(self, now):
        if not self._ends or self._ends[0][0] > now:
            return
        self._engine.end_pins()
        while self._ends and self._ends[0][0] <= now:
            until, _, key = heapq.heappop(self._ends)
            if self._until.get(key) == until:
                self._forget(key)

    def _forget(self, key):
        del self._until[key]
        self._bytes -= self._chunk_bytes[key[0]]

    def work(self):
        """Pin the chunks that are stored now.  Called in each step."""
        if not self._ends:
            return
        now = time.monotonic()
        self._expire(now)
        if now < self._next:
            return
        self._next = now + _RETRY_S
        for _ in range(len(self._wishes)):
            wish = self._wishes.popleft()
            self._try(wish, now)
            if not wish.chunks:
                continue
            if now < min(wish.give_up, wish.until):
                self._wishes.append(wish)
                continue
            for key in wish.keys(wish.chunks):
                if self._until.get(key) == wish.until:
                    self._forget(key)

    def _try(self, wish, now):
        seconds = max(1, int(wish.until - now))  # ends before the engine gives the bytes back
        try:
            pinned = self._engine.pin(wish.group, wish.chunks, wish.tags, seconds)
        except (OSError, ValueError) as e:
            log.warning("kvtier: chunks of a request are not pinned: %s", e)
            wish.give_up = now
            return
        wish.chunks = b"".join(wish.chunks[i * _CHUNK:(i + 1) * _CHUNK]
                               for i, medium in enumerate(pinned) if not medium)

    def has_pending(self):
        """Return True if an idle engine should step, so that work() is called: the last chunks
        of a request are stored after its last step."""
        return bool(self._wishes) and time.monotonic() < self._idle_until
