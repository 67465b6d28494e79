# SPDX-License-Identifier: Apache-2.0
"""The bindings with the real library and a directory.  Skipped without the library."""

import ctypes
import os
import select
import tempfile
import time
import unittest
from array import array

import fake
from kvtier import _lib
from kvtier.vllm_model import View

BLOCK_BYTES = 4096
BLOCKS = 32
# Timeouts longer than any test: the wait of a thread for a processor changes no result.
PATIENT = ["lookup_timeout_ms=600000", "blocking_timeout_secs=600"]


class Memory:
    """KV of two layers and BLOCKS blocks."""

    def __init__(self):
        self.layers = [ctypes.create_string_buffer(BLOCKS * BLOCK_BYTES)
                       for _ in range(2)]
        self.bases = [ctypes.addressof(layer) for layer in self.layers]

    def fill(self, seed):
        for n, layer in enumerate(self.layers):
            for i in range(BLOCKS):
                what = bytes([(seed + 7 * n + 3 * i) % 251]) * BLOCK_BYTES
                ctypes.memmove(self.bases[n] + i * BLOCK_BYTES, what, BLOCK_BYTES)

    def block(self, i):
        return [layer.raw[i * BLOCK_BYTES:(i + 1) * BLOCK_BYTES]
                for layer in self.layers]


def view(memory):
    return View(memory.bases, 1, BLOCK_BYTES, 0, 0, _lib.MEMORY_HOST, 0)


@unittest.skipUnless(fake.have_library(), "no libkvtier.so")
class Engine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.config = _lib.Config(settings=[
            *PATIENT, "chunk_size=16", "local_cpu=false", "max_local_cpu_size=0.0625",
            "remote_url=fs://localhost:0/" + self.folder])
        self.addCleanup(self.config.close)

    def engine(self, role, **model):
        group = _lib.Group(kind=_lib.GROUP_FULL, block_tokens=8, n_layers=2,
                           format=_lib.FORMAT_OPAQUE, n_heads=1, head_bytes=64,
                           block_bytes=BLOCK_BYTES, layout=b"test",
                           layers=b"a,b")
        about = dict(name=b"m", fingerprint=b"f", kv_dtype=b"bfloat16",
                     world_size=1, rank=0)
        about.update(model)
        engine = _lib.Engine(self.config, role, [group], _lib.Model(**about))
        self.addCleanup(engine.close)
        return engine

    def lookup(self, engine, seq, have=0, most=1 << 20):
        for _ in range(120000):
            hit = engine.lookup(seq, have, most)
            if hit is not None:
                return hit
            time.sleep(0.005)
        self.fail("no answer")

    def store(self, tokens, seed=1, model={}, **extra):
        worker = self.engine(_lib.ROLE_WORKER, **model)
        memory = Memory()
        memory.fill(seed)
        worker.set_view(0, view(memory), BLOCKS, 0)
        seq = worker.seq(tokens, **extra)
        n = len(tokens) // 16
        for _ in range(2000):
            worker.store([(0, seq.chunks(0, n),
                           array("i", range(1, 2 * n + 1)).tobytes(),
                           extra.get("tags"))])
            worker.flush(600000)
            if self.counters(worker)["store_chunks"] == n:
                break
            time.sleep(0.005)  # the pool's first pages are not there yet
        seq.free()
        return worker, memory

    def expect(self, tokens, memory, model={}, **extra):
        """Check that all chunks of `tokens` hit and load the bytes of `memory`."""
        scheduler = self.engine(_lib.ROLE_SCHEDULER, **model)
        worker = self.engine(_lib.ROLE_WORKER, **model)
        seq = scheduler.seq(tokens, **extra)
        n = len(tokens) // 16
        self.assertEqual(self.lookup(scheduler, seq), n * 16)
        other = Memory()
        worker.set_view(0, view(other), BLOCKS, 0)
        blocks = array("i", range(1, 2 * n + 1)).tobytes()
        load = worker.load([(0, seq.chunks(0, n), blocks, extra.get("tags"))])
        self.assertIs(self.wait(worker), load)
        self.assertEqual([load.status(0, i) for i in range(n)], [0] * n)
        for block in range(1, 2 * n + 1):
            self.assertEqual(other.block(block), memory.block(block))
        load.free()
        seq.free()

    def test_chunks_live_as_long_as_the_store_says(self):
        tokens = array("i", range(64))
        worker, memory = self.store(tokens)
        worker.set_view(0, view(memory), BLOCKS, 0)
        scheduler = self.engine(_lib.ROLE_SCHEDULER)
        for start, ttl, hit in ((1000, 1000, 16), (2000, 1, 0)):
            seq = scheduler.seq(array("i", range(start, start + 16)))
            worker.store([(0, seq.chunks(0, 1), array("i", (1, 2)).tobytes(), None, ttl)])
            worker.flush(600000)
            for _ in range(200):  # 1 s ends at once, or at the next multiple of 16 s
                if self.lookup(scheduler, seq) == hit:
                    break
                scheduler.release(seq)
                time.sleep(0.01)
            else:
                self.fail("a chunk that lives %d s" % ttl)
            seq.free()
        self.assertEqual(self.counters(worker)["store_chunks"], 6)

    def counters(self, engine):
        return dict(zip((c[0] for c in _lib.counters()), engine.counters()))

    def wait(self, worker):
        for _ in range(100):
            fd = _lib.lib().kvt_engine_eventfd(worker.handle)
            select.select([fd], [], [], 5)
            done = worker.poll()
            if done:
                return done[0]
        self.fail("the load does not end")

    def test_texts_that_c_would_cut_are_refused(self):
        """Texts with NUL: C cuts a text at NUL, so different texts would share KV."""
        tokens = array("i", range(48))
        scheduler = self.engine(_lib.ROLE_SCHEDULER)
        for extra in (dict(lora="a\0:digest"), dict(cache_salt="a\0b"),
                      dict(tags="user%a\0b"), dict(mm=[("image\0b", 0, 16)])):
            with self.assertRaisesRegex(ValueError, "NUL"):
                scheduler.seq(tokens, **extra)
        with self.assertRaisesRegex(ValueError, "NUL"):
            scheduler.reset("new\0er")

    def test_stored_chunks_are_found_and_loaded(self):
        tokens = array("i", range(100, 170))
        worker, memory = self.store(tokens)
        scheduler = self.engine(_lib.ROLE_SCHEDULER)
        self.assertEqual(scheduler.chunk_tokens, 16)
        seq = scheduler.seq(tokens)
        self.assertEqual(self.lookup(scheduler, seq), 64)
        self.assertEqual(seq.in_memory(0, 5), bytes(5))
        self.assertEqual(self.lookup(scheduler, seq, 0, 63), 48)
        other = Memory()
        worker.set_view(0, view(other), BLOCKS, 0)
        # Load chunks 1 and 2 without the first block of chunk 1, which vLLM has already.
        ids = array("i", [-1, 9, 12, 11])
        load = worker.load([(0, seq.chunks(1, 2), ids.tobytes(), None)])
        self.assertIs(self.wait(worker), load)
        self.assertEqual([load.status(0, 0), load.status(0, 1)], [0, 0])
        for mine, theirs in ((9, 4), (12, 5), (11, 6)):
            self.assertEqual(other.block(mine), memory.block(theirs))
        self.assertEqual(other.block(10), [bytes(BLOCK_BYTES)] * 2)
        load.free()
        seq.free()
        counted = self.counters(worker)
        self.assertEqual((counted["store_chunks"], counted["load_chunks"]), (4, 2))

    def test_other_model_salt_lora_or_tags_find_nothing(self):
        tokens = array("i", range(100, 170))
        _, first = self.store(tokens)
        other = self.engine(_lib.ROLE_SCHEDULER, fingerprint=b"g")
        self.assertEqual(self.lookup(other, other.seq(tokens)), 0)
        same = self.engine(_lib.ROLE_SCHEDULER)
        kinds = ({"lora": "x", "tags": "lora%x"}, {"cache_salt": "x"},
                 {"tags": "a%b"}, {"mm": [("image", 4, 8)]})
        stored = []
        for seed, extra in enumerate(kinds, 2):
            with self.subTest(extra=extra):
                self.assertEqual(self.lookup(same, same.seq(tokens, **extra)), 0)
                stored.append(self.store(tokens, seed, **extra)[1])
        self.expect(tokens, first)
        for extra, memory in zip(kinds, stored):
            with self.subTest(extra=extra):
                self.expect(tokens, memory, **extra)

    def test_a_hit_reports_the_part_in_host_memory(self):
        config = _lib.Config(settings=[
            *PATIENT, "chunk_size=16", "local_cpu=true", "max_local_cpu_size=0.0625",
            "remote_url=fs://localhost:0/" + self.folder])
        self.addCleanup(config.close)
        tokens = array("i", range(100, 170))
        self.store(tokens[:32])  # in storage only
        self.config = config
        worker, _ = self.store_more(tokens)
        seq = worker.seq(tokens)
        self.assertEqual(self.lookup(worker, seq), 64)
        self.assertEqual(seq.in_memory(0, 5), bytes([0, 0, 1, 1, 0]))
        worker.release(seq)
        self.assertEqual(seq.in_memory(0, 5), bytes(5))
        seq.free()

    def store_more(self, tokens):
        """Store chunks 2 and 3 in an engine of both roles."""
        engine, memory = self.engine(_lib.ROLE_BOTH), Memory()
        memory.fill(1)
        engine.set_view(0, view(memory), BLOCKS, 0)
        seq = engine.seq(tokens)
        for _ in range(2000):
            engine.store([(0, seq.chunks(2, 2), array("i", [5, 6, 7, 8]).tobytes(),
                           None)])
            engine.flush(600000)
            if self.counters(engine)["store_chunks"] == 2:
                break
            time.sleep(0.005)  # the pool's first pages are not there yet
        seq.free()
        return engine, memory

    def test_a_deleted_file_is_a_failed_chunk(self):
        tokens = array("i", range(100, 170))
        worker, _ = self.store(tokens)
        for folder, _, files in os.walk(self.folder):
            for name in files:
                if name.endswith(".data"):
                    os.unlink(os.path.join(folder, name))
        seq = worker.seq(tokens)
        load = worker.load([(0, seq.chunks(0, 1), array("i", [8, 9]).tobytes(),
                             None)])
        self.assertIs(self.wait(worker), load)
        self.assertLess(load.status(0, 0), 0)
        load.free()

    def test_a_reset_affects_later_sequences(self):
        tokens = array("i", range(100, 170))
        _, memory = self.store(tokens)
        scheduler = self.engine(_lib.ROLE_SCHEDULER)
        other = self.engine(_lib.ROLE_SCHEDULER)
        before = scheduler.seq(tokens)
        scheduler.reset()
        self.assertEqual(self.lookup(scheduler, before), 64)
        self.assertEqual(self.lookup(scheduler, scheduler.seq(tokens)), 0)
        self.assertEqual(self.lookup(other, other.seq(tokens)), 64)
        self.expect(tokens, memory)
        scheduler.reset("f")
        self.assertEqual(self.lookup(scheduler, scheduler.seq(tokens)), 64)

    def test_errors_have_sentences(self):
        with self.assertRaisesRegex(ValueError, "kvtier: .*chunk_size.*'none'"):
            _lib.Config(settings=["chunk_size=none"])
        worker = self.engine(_lib.ROLE_WORKER)
        ios = [(5, bytes(_lib.CHUNK_BYTES), array("i", [1, 2]).tobytes(), None)]
        with self.assertRaisesRegex(ValueError, "kvtier: .*group 5 does not exist"):
            worker.store(ios)
        with self.assertRaisesRegex(ValueError, "kvtier: kvt_engine_set_view: group 5 "):
            worker.set_view(5, view(Memory()), BLOCKS, 0)
        with self.assertRaisesRegex(ValueError, "kvtier: model name ''"):
            self.engine(_lib.ROLE_WORKER, name=b"")

    def test_settings_are_shown(self):
        self.assertEqual(self.config.values()["chunk_size"], 16)


@unittest.skipUnless(fake.have_library(), "no libkvtier.so")
class Staging(unittest.TestCase):
    """Staging memory of the caller is a part of max_local_cpu_size."""

    def engine(self, staging_bytes):
        config = _lib.Config(environment=[], settings=[
            *PATIENT, "chunk_size=16", "max_local_cpu_size=0.0625"])
        self.addCleanup(config.close)
        group = _lib.Group(kind=_lib.GROUP_FULL, block_tokens=16, n_layers=1,
                           format=_lib.FORMAT_OPAQUE, block_bytes=1 << 20, layout=b"test",
                           layers=b"a")
        model = _lib.Model(name=b"m", fingerprint=b"f", kv_dtype=b"bfloat16", world_size=1)
        engine = _lib.Engine(config, _lib.ROLE_BOTH, [group], model,
                             staging_bytes=staging_bytes)
        self.addCleanup(engine.close)
        return engine

    def used_when_full(self, staging_bytes):
        """Store more chunks than fit in host memory; return the used bytes of the pool."""
        engine = self.engine(staging_bytes)
        memory = ctypes.create_string_buffer(1 << 20)
        engine.set_view(0, View([ctypes.addressof(memory)], 1, 1 << 20, 0, 0, 0, 0), 1, -1)
        for number in range(80):
            seq = engine.seq(array("i", [number] * 16))
            engine.store([(0, seq.chunks(0, 1), array("i", [0]).tobytes(), None)])
            engine.flush(600000)
            seq.free()
        names = [name for name, *_ in _lib.counters()]
        return engine.counters()[names.index("pool_used")]

    def test_the_pool_is_smaller_by_the_staging_memory(self):
        mib = 1 << 20
        self.assertGreater(self.used_when_full(0), 40 * mib)
        used = self.used_when_full(32 * mib)
        self.assertGreater(used, 16 * mib)
        self.assertLessEqual(used, 32 * mib)

    def test_staging_memory_that_leaves_no_room_is_an_error(self):
        for mib in (63, 64, 1 << 30):
            with self.assertRaisesRegex(ValueError, "max_local_cpu_size: 64 MiB cannot hold "
                                        "%d MiB of staging.*raise max_local_cpu_size" % mib):
                self.engine(mib << 20)


if __name__ == "__main__":
    unittest.main()
