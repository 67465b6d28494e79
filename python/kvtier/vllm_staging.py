# SPDX-License-Identifier: Apache-2.0
"""KV on a device that the library does not reach: chunks pass through staging memory.

Staging memory is host memory, divided into units; a unit holds a chunk.  In a save, torch
operations copy blocks of the device to a unit, and the library stores the unit.  In a load,
the library reads a chunk into a unit, and torch operations copy a verified chunk to the
device.  The copies are work of the device's current stream, in order with the model's work.
Half of the units are for saves: a save waits for the device at most, never for storage.
"""

import collections
import errno
import math
import queue
import threading
import time
from array import array

from .vllm_blocks import Group
from .vllm_log import log
from .vllm_model import NULL_BLOCK, Unsupported, is_staged

_MAX_BYTES = 512 << 20
_ROW_BYTES = 8  # of a block id on the device


def staging_bytes(infos, pool_bytes):
    """Return the bytes of staging memory of each worker: a power of two, because allocators
    of pinned memory round up."""
    least = 2 * sum(_unit_bytes(infos))
    size = 1 << max(0, int(min(_MAX_BYTES, pool_bytes / 8)).bit_length() - 1)
    while size < least:
        size *= 2
    return size


def _unit_bytes(infos):
    """Return the bytes of a unit, and the bytes of a unit's block ids."""
    largest = max(len(info.layers) * info.blocks_per_chunk * info.block_bytes
                  for info in infos)
    grain = math.lcm(*(info.block_bytes for info in infos))
    return (-(-largest // grain) * grain,
            _ROW_BYTES * max(info.blocks_per_chunk for info in infos))


# ---------------------------------------------------------------------- loads

class _Piece:
    """A chunk that the engine reads into a unit."""

    __slots__ = ("load", "at", "group", "unit", "ids")

    def __init__(self, load, at, group, unit, ids):
        self.load = load
        self.at = at  # (number of the io, number of the chunk)
        self.group = group
        self.unit = unit
        self.ids = ids  # blocks of the device, in the order of the unit's blocks


class _Load:
    """A load with the methods of _lib.Load."""

    def __init__(self, until):
        self.until = until  # deadline, on time.monotonic()
        self.waiting = collections.deque()  # (at, group's number, kvt_chunk, ids, tags)
        self.pieces = {}  # _lib.Load -> _Piece
        self._results = {}  # at -> 0 or a negative errno
        self._failed = {}  # number of an io -> number of the first failed chunk
        self.is_cancelled = False

    def note(self, at, result):
        """Note the result of a chunk.  A failure makes the io's later chunks useless."""
        self._results[at] = result
        if result:
            io, chunk = at
            self._failed[io] = min(chunk, self._failed.get(io, chunk))

    def is_wanted(self, at):
        io, chunk = at
        return chunk <= self._failed.get(io, chunk)

    def cancel(self):
        self.is_cancelled = True
        self.waiting.clear()
        for piece in self.pieces:
            piece.cancel()

    def status(self, io, chunk):
        return self._results.get((io, chunk), -errno.ECANCELED)

    def free(self):
        pass


# -------------------------------------------------------------------- staging

class Staging:
    """Moves chunks between a device and an engine, with methods of _lib.Engine.  The worker's
    main thread calls the methods; a thread of the object hands saved units to the engine."""

    def __init__(self, engine, infos, kv_caches, n_blocks, n_bytes, timeout_s):
        import torch

        self._engine = engine
        self._timeout_s = timeout_s
        self._groups = [Group(kv_caches, info, n_blocks) for info in infos]
        devices = {group.device for group in self._groups}
        device = self._device = self._groups[0].device
        if len(devices) > 1 or not n_bytes or not is_staged(device.type):
            raise Unsupported("a KV cache in %s memory" % " and ".join(map(str, devices)))
        self._module = getattr(torch, device.type, None)
        self._make_event = getattr(self._module, "Event", None)
        self._loads = []  # the loads before their return by poll()
        self._has_warned = False
        self._make_units(infos, n_bytes)
        for number, group in enumerate(self._groups):
            size = group.info.block_bytes
            last = (self._n_units - 1) * self._unit_bytes // size
            engine.set_view(number, group.view(self._buffer.data_ptr()),
                            last + group.info.blocks_per_chunk, -1)
        self._saves = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvtier-staging", daemon=True)
        self._thread.start()

    def _make_units(self, infos, n_bytes):
        import torch

        self._buffer, pinned = _allocate(n_bytes)
        self._unit_bytes, row_bytes = _unit_bytes(infos)
        self._n_units = n_bytes // (self._unit_bytes + row_bytes)
        rows = self._buffer[self._n_units * self._unit_bytes:][:self._n_units * row_bytes]
        self._rows = rows.view(torch.int64).view(self._n_units, -1)
        n_saves = max(1, self._n_units // 2)
        self._save_units = queue.SimpleQueue()
        for unit in range(n_saves):
            self._save_units.put(unit)
        self._load_units = list(range(n_saves, self._n_units))
        self._copying = collections.deque()  # (event, unit) of copies to the device
        log.info("kvtier: KV on %s passes through %d MiB of %s host memory of "
                 "max_local_cpu_size", self._device, n_bytes >> 20,
                 "pinned" if pinned else "pageable")

    def _warn(self, text, e):
        if not self._has_warned:
            self._has_warned = True
            log.warning("kvtier: %s (KV on %s): %s (logged once)", text, self._device, e)

    # ------------------------------------------------------------ the device

    def _mark(self):
        """Return an event after the queued work; None: the work has ended."""
        if self._make_event is None:
            return None
        event = self._make_event()
        event.record()
        return event

    def _host(self, group, unit):
        """Return a unit as the tensor [layer, block, ...] of a group's chunk."""
        at = unit * self._unit_bytes
        return self._buffer[at:at + group.bytes].view(group.dtype).view(group.shape)

    def _on_device(self, host):
        return host.to(self._device, non_blocking=self._make_event is not None)

    def _ids(self, unit, ids):
        """Return block ids on the device.  The unit keeps the ids until the copy has ended."""
        import torch

        return self._on_device(self._rows[unit][:len(ids)].copy_(torch.tensor(ids)))

    def _read(self, group, unit, blocks):
        """Queue a copy of blocks to a unit."""
        import torch

        n = group.info.blocks_per_chunk
        ids = self._ids(unit, (list(blocks) + [blocks[-1]] * n)[:n])
        found = torch.stack([layer.read(ids) for layer in group.layers])
        self._host(group, unit).copy_(found.contiguous(),
                                      non_blocking=self._make_event is not None)

    def _write(self, group, unit, blocks):
        """Queue a copy of a unit's first blocks to `blocks`."""
        ids = self._ids(unit, blocks)
        found = self._on_device(self._host(group, unit))
        for number, layer in enumerate(group.layers):
            layer.write(ids, found[number, :len(blocks)])

    # ----------------------------------------------------------------- saves

    def store(self, ios):
        """As _lib.Engine.store(), of blocks on the device: the model's later work may change
        the blocks.  Waits for the device if no unit is free."""
        for number, chunks, blocks, *tags_and_ttl in ios:
            group = self._groups[number]
            for chunk, ids in group.blocks_of(chunks, memoryview(blocks).cast("i").tolist()):
                if min(ids) > NULL_BLOCK:
                    self._save(group, (number, chunk, tags_and_ttl), ids)

    def _save(self, group, about, ids):
        unit, event = self._save_units.get(), None
        try:
            self._read(group, unit, ids)
        except RuntimeError as e:
            self._warn("a chunk is not stored", e)
            about = None
        try:  # also after a failure: the device may still write the unit
            event = self._mark()
        except RuntimeError as e:
            self._warn("a chunk is not stored", e)
            about = None
        self._saves.put((event, unit, about, len(ids)))

    def _run(self):
        """Hand each saved unit to the engine, which copies the unit."""
        is_set = False
        while True:
            save = self._saves.get()
            if save is None:
                return
            try:  # a unit that did not return would stop vLLM's steps
                if not is_set:
                    self._set_device()
                    is_set = True
                self._hand_over(*save)
            except Exception as e:
                self._warn("a chunk is not stored", e)
            self._save_units.put(save[1])

    def _set_device(self):
        set_device = getattr(self._module, "set_device", None)
        if set_device is not None and self._device.index is not None:
            set_device(self._device.index)

    def _hand_over(self, event, unit, about, n):
        if event is not None:
            event.synchronize()
        if about is not None:
            number, chunk, tags_and_ttl = about
            self._engine.store([(number, chunk, self._slots(number, unit, n), *tags_and_ttl)])

    def _slots(self, number, unit, n):
        """Return the ids of a unit's first n blocks."""
        first = unit * self._unit_bytes // self._groups[number].info.block_bytes
        return array("i", range(first, first + n)).tobytes()

    # ----------------------------------------------------------------- loads

    def load(self, ios):
        """As _lib.Engine.load().  The chunks wait for free units."""
        load = _Load(time.monotonic() + self._timeout_s)
        for io, (number, chunks, blocks, tags) in enumerate(ios):
            ids = memoryview(blocks).cast("i").tolist()
            for i, (chunk, mine) in enumerate(self._groups[number].blocks_of(chunks, ids)):
                load.waiting.append(((io, i), number, chunk, mine, tags))
        self._loads.append(load)
        self._start_waiting()
        return load

    def _start_waiting(self):
        self._reclaim()
        for load in self._loads:
            while load.waiting and self._load_units:
                piece = load.waiting.popleft()
                if load.is_wanted(piece[0]):
                    self._start(load, *piece)

    def _start(self, load, at, number, chunk, ids, tags):
        unit = self._load_units.pop()
        real = [block for block in ids if block > NULL_BLOCK]
        slots = iter(array("i", self._slots(number, unit, len(real))))
        blocks = array("i", (next(slots) if block > NULL_BLOCK else -1 for block in ids))
        try:
            one = self._engine.load([(number, chunk, blocks.tobytes(), tags)])
        except (OSError, ValueError) as e:
            self._warn("a chunk is not loaded", e)
            self._load_units.append(unit)
            load.note(at, -errno.EIO)
            return
        load.pieces[one] = _Piece(load, at, self._groups[number], unit, real)

    def _reclaim(self):
        """Free the units that the device has read."""
        while self._copying and self._copying[0][0].query():
            self._load_units.append(self._copying.popleft()[1])

    def poll(self):
        """Return the loads that have ended.  The device writes the loads' blocks before all
        work of later calls."""
        for one in self._engine.poll():
            piece = next(load.pieces.pop(one) for load in self._loads if one in load.pieces)
            self._end(piece, one.status(0, 0))
            one.free()
        now = time.monotonic()
        for load in self._loads:
            if now > load.until:
                load.cancel()
        self._start_waiting()
        done = [load for load in self._loads if not load.waiting and not load.pieces]
        self._loads = [load for load in self._loads if load not in done]
        return done

    def _end(self, piece, status):
        """The engine no longer uses a piece's unit: copy a good chunk to the device."""
        load, event = piece.load, None
        if not status and not load.is_cancelled and piece.ids:
            try:
                self._write(piece.group, piece.unit, piece.ids)
            except RuntimeError as e:
                self._warn("a chunk is not loaded", e)
                status = -errno.EIO
            event = self._mark()
        if event is None:
            self._load_units.append(piece.unit)
        else:
            self._copying.append((event, piece.unit))
        load.note(piece.at, -errno.ECANCELED if load.is_cancelled else status)

    def close(self):
        """Hand all saved units to the engine, and wait until the device has read all units.
        Return False if the device does not end the copies in time: the engine must then stay
        open."""
        self._saves.put(None)
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            log.warning("kvtier: %s has not ended its copies after %s s: chunks are lost",
                        self._device, self._timeout_s)
            return False
        for event, _ in self._copying:
            event.synchronize()
        return True


def _allocate(n_bytes):
    """Return (host memory of zeros, whether the memory is pinned)."""
    import torch

    try:
        return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True), True
    except (RuntimeError, NotImplementedError):
        return torch.zeros(n_bytes, dtype=torch.uint8), False
